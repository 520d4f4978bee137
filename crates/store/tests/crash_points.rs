//! The power fails at every write and every sync of a workload, with every kind of loss: the heap
//! opens at the last checkpoint that returned, or at the one that was being made, whole. So it does
//! if the process is killed first, and another one opens the heap and goes on: what that one has
//! read is in no case durable for it.
//!
//! DEEPHEAP_CRASH_POINTS says how many points to try.

mod model;
mod saved_heap;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deepheap_sim::{Event, Image, Loss, Medium, Random, Recorder};
use deepheap_store::{DurableError, StoreError};
use model::Sizes;
use saved_heap::{Map, Pinning, SavedHeap, device_len, judge, judge_snapshots};

/// So few that segments are collected, and the store is full now and then.
const SEGMENTS: u64 = 12;
const NAMES: u64 = 90;
const CHECKPOINTS: u32 = 12;
/// Points of CI.
const POINTS: u64 = 20_000;

/// What a workload asked of its device, and what each of its checkpoints holds.
struct Recorded {
    start: Medium,
    events: Vec<Event>,
    /// By the number of the checkpoint.
    maps: Vec<Option<Held>>,
    sizes: Sizes,
    /// Segments that were emptied meanwhile.
    collected: u64,
}

/// What a checkpoint holds: the objects, and the checkpoints that are snapshots then.
#[derive(Clone, Default)]
struct Held {
    map: Map,
    snapshots: Vec<u64>,
}

/// Notes that checkpoint `number` is being made.
const fn begun(number: u64) -> u64 {
    2 * number
}

/// Notes that checkpoint `number` was made.
const fn done(number: u64) -> u64 {
    2 * number + 1
}

impl Recorded {
    fn map(&self, checkpoint: u64) -> Option<Map> {
        Some(self.maps.get(checkpoint as usize)?.as_ref()?.map.clone())
    }
}

fn sizes_of(seed: u64) -> Sizes {
    match seed % 4 {
        0 | 2 => Sizes::Whole,
        1 => Sizes::Mixed,
        _ => Sizes::Encrypted,
    }
}

/// Work and checkpoints, from an empty device on.
fn record(seed: u64, pinning: Pinning) -> Recorded {
    let sizes = sizes_of(seed);
    let device = Recorder::over(device_len(SEGMENTS), Image::default());
    let mut random = Random::new(seed);
    device.mark(begun(1));
    let heap = SavedHeap::create(Arc::new(device.clone()), SEGMENTS, sizes);
    let mut heap = heap.expect("a correct device");
    heap.pinning = pinning;
    device.mark(done(1));
    let mut maps = vec![None, Some(Held::default())];
    go_on(&mut heap, &device, &mut random, &mut maps, CHECKPOINTS);
    let collected = heap.model.store.stats().segments_collected;
    Recorded { start: Medium::default(), events: device.events(), maps, sizes, collected }
}

/// Work, with so many checkpoints in it.
fn go_on(
    heap: &mut SavedHeap,
    device: &Recorder,
    random: &mut Random,
    maps: &mut Vec<Option<Held>>,
    checkpoints: u32,
) {
    for round in 0..checkpoints {
        let steps = random.below(if heap.model.sizes == Sizes::Mixed { 30 } else { 300 }) as u32;
        work(heap, random, steps);
        heap.model.store.seal_and_drain();
        let number = heap.file.checkpoint() + 1;
        device.mark(begun(number));
        assert_eq!(heap.checkpoint(), Ok(number));
        device.mark(done(number));
        // To make room it may have moved objects.
        maps.resize(number as usize, None);
        maps.push(Some(Held { map: heap.model.map.clone(), snapshots: snapshots(heap) }));
        if heap.pinning == Pinning::Careful && random.once_in(3) {
            change_snapshots(heap, device, random, maps, round);
        }
    }
    // What comes after the last checkpoint must not harm it.
    work(heap, random, 30);
    heap.model.store.seal_and_drain();
}

fn snapshots(heap: &SavedHeap) -> Vec<u64> {
    heap.file.snapshots().iter().map(|snapshot| snapshot.checkpoint).collect()
}

/// Takes a snapshot, removes one, or goes back to one.
fn change_snapshots(
    heap: &mut SavedHeap,
    device: &Recorder,
    random: &mut Random,
    maps: &mut Vec<Option<Held>>,
    round: u32,
) {
    let last = heap.file.checkpoint();
    let mut state = maps[last as usize].clone().expect("it was made");
    device.mark(begun(last + 1));
    let known = state.snapshots.len() as u64;
    // What it will be is noted first, as a crash may come at any time.
    let chosen = random.below(known.max(1)) as usize;
    let name = heap.file.snapshots().get(chosen).map(|snapshot| snapshot.name.clone());
    let made = match (random.below(4), name) {
        (2, Some(name)) => {
            state.snapshots.remove(chosen);
            maps.push(Some(state));
            heap.forget(&name)
        }
        (3, Some(name)) => {
            let then = maps[state.snapshots[chosen] as usize].clone().expect("it was made");
            state.map = then.map;
            maps.push(Some(state));
            heap.go_back(&name)
        }
        _ => {
            state.snapshots.push(last);
            maps.push(Some(state));
            heap.snapshot(&format!("{last}-{round}"))
        }
    };
    match made {
        Ok(made) => {
            assert_eq!(made, last + 1);
            device.mark(done(made));
        }
        Err(DurableError::NoRoomForSnapshot) => {
            maps.pop();
            device.mark(begun(last));
        }
        Err(error) => panic!("a correct device: {error}"),
    }
}

/// Random work, until the store is full of what the last checkpoint needs.
fn work(heap: &mut SavedHeap, random: &mut Random, steps: u32) {
    match heap.work(random, NAMES, steps) {
        Ok(()) | Err(StoreError::Full) => {}
        Err(error) => panic!("a correct device: {error}"),
    }
}

/// What a search through the points of a workload found.
struct Found {
    points: u64,
    /// The first that went wrong.
    wrong: Option<String>,
    /// What was opened well, now and then one.
    survivors: Vec<Survivor>,
}

/// A heap that was opened after the power had failed, or after its process was killed.
struct Survivor {
    /// After a kill what was not synced is still to be lost.
    medium: Medium,
    /// The last checkpoint that had returned.
    known: u64,
    opened: u64,
}

/// Whether a kill after this event leaves a checkpoint that returned to nobody.
fn is_superblock(event: &Event) -> bool {
    matches!(event, Event::Write { offset: 0 | 0x1_0000, .. })
}

/// Lets the power fail after every event. Before the first one `known` is there, or `opened`.
fn search(
    recorded: &Recorded,
    random: &mut Random,
    (known, opened): (u64, u64),
    losses: &[Loss],
) -> Found {
    let mut medium = recorded.start.clone();
    let (mut last, mut making) = (known, opened);
    let mut found = Found { points: 0, wrong: None, survivors: Vec::new() };
    for (at, event) in recorded.events.iter().enumerate() {
        medium.apply(event);
        match event {
            Event::Mark(number) if number % 2 == 0 => making = number / 2,
            Event::Mark(number) => last = number / 2,
            _ => {}
        }
        for &loss in losses {
            let image = medium.crash(loss, random);
            found.points += 1;
            let device = Arc::new(Recorder::over(device_len(SEGMENTS), image.clone()));
            let maps = |checkpoint: u64| {
                let is_one = (last..=making).contains(&checkpoint);
                is_one.then(|| recorded.map(checkpoint)).flatten()
            };
            let judged = judge(device, recorded.sizes, maps).and_then(|heap| {
                if random.once_in(4) {
                    judge_snapshots(&heap, |checkpoint| recorded.map(checkpoint))?;
                }
                let right = recorded.maps[heap.file.checkpoint() as usize].as_ref();
                match right.is_some_and(|right| right.snapshots == snapshots(&heap)) {
                    true => Ok(heap),
                    false => Err(format!("the snapshots are {:?}", snapshots(&heap))),
                }
            });
            match judged {
                Ok(heap) if random.once_in(if is_superblock(event) { 20 } else { 150 }) => {
                    let is_kill = loss == Loss::Nothing;
                    let medium = if is_kill { medium.clone() } else { Medium::over(image) };
                    let opened = heap.file.checkpoint();
                    let known = if is_kill { last } else { opened };
                    found.survivors.push(Survivor { medium, known, opened });
                }
                Ok(_) => {}
                // Nothing was promised yet.
                Err(_) if last == 0 => {}
                Err(error) => {
                    found.wrong = Some(format!("event {at} ({loss:?}), after {last}: {error}"));
                    return found;
                }
            }
        }
    }
    found
}

/// The workload of a seed, the power failing everywhere; and then everywhere in what came after
/// some of that.
fn round(seed: u64) -> (u64, u64) {
    let recorded = record(seed, Pinning::Careful);
    let mut random = Random::new(seed ^ 0xc0ffee);
    let found = search(&recorded, &mut random, (0, 0), &Loss::ALL);
    assert_eq!(found.wrong, None, "seed {seed}");
    let mut points = found.points;
    for Survivor { medium: start, known, opened } in found.survivors {
        let read = start.crash(Loss::Nothing, &mut random);
        let device = Recorder::over(device_len(SEGMENTS), read);
        let heap = SavedHeap::open(Arc::new(device.clone()), recorded.sizes);
        let mut heap = heap.expect("it was opened before");
        let mut maps = recorded.maps.clone();
        maps.truncate(opened as usize + 1);
        go_on(&mut heap, &device, &mut random, &mut maps, 2);
        let events = device.events();
        let again = Recorded { start, events, maps, sizes: recorded.sizes, collected: 0 };
        let losses = [Loss::Everything, Loss::Writes, Loss::Sectors];
        let found = search(&again, &mut random, (known, opened), &losses);
        assert_eq!(found.wrong, None, "seed {seed}, after a recovery at {opened}");
        points += found.points;
    }
    (points, recorded.collected)
}

#[test]
fn every_crash_leaves_the_last_checkpoint_or_the_one_being_made() {
    let wanted = std::env::var("DEEPHEAP_CRASH_POINTS").ok().and_then(|it| it.parse().ok());
    let wanted = wanted.unwrap_or(POINTS);
    let seed = model::seed(21);
    let [points, rounds, collected] = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while points.load(Ordering::Relaxed) < wanted {
                    let number = rounds.fetch_add(1, Ordering::Relaxed);
                    let (of_round, emptied) = round(seed + number);
                    points.fetch_add(of_round, Ordering::Relaxed);
                    collected.fetch_add(emptied, Ordering::Relaxed);
                }
            });
        }
    });
    let [points, rounds, collected] = [points, rounds, collected].map(AtomicU64::into_inner);
    println!("{points} crash points in {rounds} workloads, {collected} segments collected");
    assert!(collected > 0, "collection has to work");
}

/// The events with each superblock before the sync that ought to come before it.
fn superblocks_too_early(events: &[Event]) -> Vec<Event> {
    let mut events = events.to_vec();
    // The first are those of the creation.
    for at in 8..events.len() {
        if is_superblock(&events[at]) && matches!(events[at - 1], Event::Sync) {
            events.swap(at - 1, at);
        }
    }
    events
}

#[test]
fn canary_a_superblock_before_its_sync_is_caught() {
    let mut recorded = record(model::seed(22), Pinning::Careful);
    recorded.events = superblocks_too_early(&recorded.events);
    let found = search(&recorded, &mut Random::new(1), (0, 0), &Loss::ALL);
    assert!(found.wrong.is_some(), "{} points and nothing was found", found.points);
}

#[test]
fn canary_segments_that_nobody_pins_are_caught() {
    let caught = (0..4).any(|number| {
        let recorded = record(model::seed(24) + 2 * number, Pinning::Forgotten);
        search(&recorded, &mut Random::new(1), (0, 0), &Loss::ALL).wrong.is_some()
    });
    assert!(caught, "nothing was found");
}
