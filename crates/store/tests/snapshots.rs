//! Snapshots of a durable heap: a checkpoint that has a name stays as it is, whatever happens to
//! the heap, and the heap can go back to it.

mod model;
mod saved_heap;
mod snapshot_work;

use std::collections::BTreeMap;
use std::sync::Arc;

use deepheap_sim::{Image, Loss, Medium, Random, Recorder};
use deepheap_store::device::Device;
use deepheap_store::{DurableError, DurableFile, StoreError, give_back_free, move_down};
use model::Sizes;
use saved_heap::{Map, SavedHeap, device_len, judge, judge_snapshots, open_store};
use snapshot_work::{Bounds, NAMES, SEGMENTS, is_clean, recorder, work};

#[test]
fn a_snapshot_stays_as_it_is_while_the_heap_is_written_over_and_opened_again() {
    for sizes in [Sizes::Whole, Sizes::Mixed] {
        let (_, device) = recorder();
        let mut random = Random::new(model::seed(61));
        let mut heap = SavedHeap::create(device.clone(), SEGMENTS, sizes).expect("a heap");
        work(&mut heap, &mut random, 300);
        let kept = heap.checkpoint().expect("a correct device");
        let map = heap.model.map.clone();
        assert_eq!(heap.snapshot("first"), Ok(kept + 1));
        for _ in 0..12 {
            work(&mut heap, &mut random, 400);
            heap.checkpoint().expect("a correct device");
            heap.model.store.check_invariants();
            judge_snapshots(&heap, |at| (at == kept).then(|| map.clone())).expect("as it was");
            heap = SavedHeap::open(device.clone(), sizes).expect("a heap");
            heap.model.store.check_invariants();
        }
        assert!(is_clean(&device, sizes));
        let held = heap.model.store.snapshot_bytes();
        assert!(held > 0);
        heap.forget("first").expect("a correct device");
        heap.model.store.check_invariants();
        assert_eq!(heap.model.store.snapshot_bytes(), 0);
        assert_eq!(heap.file.open_snapshot("first").map(drop), Err(DurableError::NoSnapshot));
        work(&mut heap, &mut random, 2000);
        heap.checkpoint().expect("a correct device");
        assert_eq!(heap.model.check_everything(), 0);
    }
}

#[test]
fn a_heap_that_goes_back_is_what_it_was_and_other_snapshots_stay() {
    for sizes in [Sizes::Whole, Sizes::Mixed] {
        let (_, device) = recorder();
        let mut random = Random::new(model::seed(62));
        let mut heap = SavedHeap::create(device.clone(), SEGMENTS, sizes).expect("a heap");
        let mut maps: BTreeMap<u64, Map> = BTreeMap::new();
        for name in ["old", "middle", "young"] {
            work(&mut heap, &mut random, 250);
            let at = heap.checkpoint().expect("a correct device");
            heap.snapshot(name).expect("room");
            maps.insert(at, heap.model.map.clone());
        }
        work(&mut heap, &mut random, 250);
        heap.checkpoint().expect("a correct device");
        for (name, map) in ["middle", "young", "old", "old", "young"].iter().zip([1, 2, 0, 0, 2]) {
            heap.go_back(name).expect("it is there");
            let map = maps.values().nth(map).expect("one of three").clone();
            heap = judge(device.clone(), sizes, |_| Some(map.clone())).expect("as it was");
            judge_snapshots(&heap, |at| maps.get(&at).cloned()).expect("as they were");
            work(&mut heap, &mut random, 300);
            heap.checkpoint().expect("a correct device");
            judge_snapshots(&heap, |at| maps.get(&at).cloned()).expect("as they were");
            assert_eq!(heap.model.check_everything(), 0);
            assert!(is_clean(&device, sizes));
        }
    }
}

/// Everything that can be done with snapshots, at random, each time held against a model.
#[test]
fn random_work_with_snapshots_is_what_the_model_says() {
    let seed = model::seed(63);
    for round in 0..12 {
        let sizes = if round % 2 == 0 { Sizes::Whole } else { Sizes::Mixed };
        let bounds = Bounds { operations: 60, accesses: 300 };
        let (kept, refused) = snapshot_work::round(&mut Random::new(seed + round), sizes, &bounds);
        println!("round {round}: {kept} snapshots at the end, {refused} refused");
    }
}

#[test]
fn what_cannot_be_kept_is_refused_and_nothing_changes() {
    let (_, device) = recorder();
    let mut heap = SavedHeap::create(device.clone(), SEGMENTS, Sizes::Whole).expect("a heap");
    work(&mut heap, &mut Random::new(model::seed(64)), 200);
    let at = heap.checkpoint().expect("a correct device");
    for bad in ["", "a,b", "a b", "a\n", &"x".repeat(65)] {
        assert_eq!(heap.snapshot(bad), Err(DurableError::SnapshotName), "{bad:?}");
    }
    assert_eq!(heap.forget("none"), Err(DurableError::NoSnapshot));
    assert_eq!(heap.go_back("none"), Err(DurableError::NoSnapshot));
    assert_eq!(heap.file.checkpoint(), at, "nothing was committed");
    heap.snapshot(&"x".repeat(64)).expect("just short enough");
    assert_eq!(heap.snapshot(&"x".repeat(64)), Err(DurableError::SnapshotExists));
    // Half of the rest of the log is for what a snapshot keeps.
    let room = heap.model.store.room();
    heap.model.store.reserve(room).expect("there is room");
    for name in 0..30_000 {
        match heap.model.put(name % NAMES) {
            Ok(()) => {}
            Err(StoreError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let at = heap.checkpoint().expect("a correct device");
    assert_eq!(heap.snapshot("more"), Err(DurableError::NoRoomForSnapshot));
    assert_eq!(heap.file.checkpoint(), at, "nothing was committed");
    heap.model.store.check_invariants();
    let mut reader = DurableFile::open_to_read(device, None).expect("a heap");
    assert_eq!(reader.begin().map(drop), Err(DurableError::ReadOnly));
    assert_eq!(reader.keep("read"), Err(DurableError::ReadOnly));
    assert_eq!(reader.forget(&"x".repeat(64)), Err(DurableError::ReadOnly));
}

#[test]
fn all_snapshots_that_the_format_has_room_for_can_be_taken_and_removed() {
    const MOST: usize = 64;
    let device = Recorder::over(device_len(SEGMENTS) + (128 << 20), Image::default());
    let device: Arc<dyn Device> = Arc::new(device);
    let mut heap = SavedHeap::create(device.clone(), SEGMENTS, Sizes::Whole).expect("a heap");
    let mut random = Random::new(model::seed(65));
    let mut maps = BTreeMap::new();
    for number in 0..MOST {
        work(&mut heap, &mut random, 3);
        let at = heap.checkpoint().expect("a correct device");
        maps.insert(at, heap.model.map.clone());
        heap.snapshot(&format!("{number}")).expect("room");
    }
    heap.checkpoint().expect("a correct device");
    assert_eq!(heap.snapshot("more"), Err(DurableError::TooManySnapshots));
    let mut heap = SavedHeap::open(device, Sizes::Whole).expect("a heap");
    judge_snapshots(&heap, |at| maps.get(&at).cloned()).expect("as they were");
    for number in (0..MOST).rev() {
        heap.forget(&format!("{number}")).expect("it is there");
    }
    assert_eq!(heap.model.store.snapshot_bytes(), 0);
    heap.model.store.check_invariants();
}

#[test]
fn what_an_earlier_reader_may_need_is_kept_until_it_ends() {
    let (_, device) = recorder();
    let mut random = Random::new(model::seed(66));
    let mut heap = SavedHeap::create(device.clone(), SEGMENTS, Sizes::Whole).expect("a heap");
    work(&mut heap, &mut random, 300);
    heap.checkpoint().expect("a correct device");
    let reader = DurableFile::open_to_read(device.clone(), None).expect("a heap");
    let (store, _) = open_store(&reader).expect("a store");
    let all: Vec<_> = heap.model.map.clone().into_iter().collect();
    // The writer dies, and its successor knows only that somebody reads.
    (0..NAMES).for_each(|name| heap.model.put(name).expect("room"));
    heap.checkpoint().expect("a correct device");
    let mut heap = SavedHeap::open(device, Sizes::Whole).expect("a heap");
    let held = heap.model.store.hold_everything().expect("a pin");
    heap.checkpoint().expect("a correct device");
    let before = model::check_all(&store, &all);
    assert!(before.iter().all(|seen| *seen == model::Seen::Right), "nothing is lost yet");
    for round in 0..20 {
        for name in 0..NAMES {
            if heap.model.put(name).is_err() {
                break;
            }
        }
        heap.checkpoint().expect("a correct device");
        assert_eq!(model::check_all(&store, &all), before, "round {round}");
        heap.model.store.check_invariants();
    }
    heap.model.store.unpin(held);
    heap.checkpoint().expect("a correct device");
    heap.model.store.check_invariants();
    let full = (1000..10_000).find_map(|name| heap.model.put(name).err());
    assert_eq!(full, Some(StoreError::Full));
    assert_ne!(model::check_all(&store, &all), before, "the space is used again");
}

#[test]
fn space_that_nothing_needs_is_given_back_and_the_rest_is_as_it_was() {
    let (recorder, device) = recorder();
    let mut random = Random::new(model::seed(67));
    let mut heap = SavedHeap::create(device.clone(), SEGMENTS, Sizes::Mixed).expect("a heap");
    work(&mut heap, &mut random, 400);
    let at = heap.checkpoint().expect("a correct device");
    let then = heap.model.map.clone();
    heap.snapshot("one").expect("room");
    heap.checkpoint().expect("a correct device");
    heap.snapshot("gone").expect("room");
    for _ in 0..6 {
        work(&mut heap, &mut random, 500);
        heap.checkpoint().expect("a correct device");
    }
    heap.forget("gone").expect("it is there");
    let map = heap.model.map.clone();
    drop(heap);
    let before = recorder.image().pages().len();
    let file = DurableFile::open(device.clone(), None).expect("a heap");
    let end = give_back_free(&file).expect("a correct device");
    let pages = recorder.image().pages();
    println!("{before} pages, then {}", pages.len());
    assert!(pages.len() < before);
    assert!(pages.iter().all(|page| page * 4096 < end));
    let heap = judge(device.clone(), Sizes::Mixed, |_| Some(map.clone())).expect("as it was");
    judge_snapshots(&heap, |it| (it == at).then(|| then.clone())).expect("as it was");
    assert!(is_clean(&device, Sizes::Mixed));
}

/// Segments at the end of the log go to free places; snapshots keep theirs; power fails meanwhile.
#[test]
fn segments_that_move_down_take_everything_with_them_and_a_crash_undoes_it() {
    let seed = model::seed(71);
    for number in 0..6 {
        let sizes = if number % 2 == 0 { Sizes::Mixed } else { Sizes::Encrypted };
        let recorder = Recorder::over(device_len(SEGMENTS), Image::default());
        let device: Arc<dyn Device> = Arc::new(recorder.clone());
        let mut heap = SavedHeap::create(device.clone(), SEGMENTS, sizes).expect("a heap");
        let mut random = Random::new(seed + number);
        let mut maps: BTreeMap<u64, Map> = BTreeMap::new();
        for round in 0..4 {
            work(&mut heap, &mut random, 120);
            let made = heap.checkpoint().expect("a correct device");
            maps.insert(made, heap.model.map.clone());
            if round == 1 {
                // Full, or not: a snapshot is not what this is about.
                let _ = heap.snapshot("kept");
            }
        }
        let names: Vec<u64> = heap.model.map.keys().copied().collect();
        names.iter().filter(|name| *name % 3 != 0).for_each(|name| heap.model.remove(*name));
        let made = heap.checkpoint().expect("a correct device");
        let last = heap.model.map.clone();
        maps.insert(made, last.clone());
        drop(heap);
        let key = saved_heap::key_of(sizes);
        let before = recorder.events().len();
        let mut file = DurableFile::open(device.clone(), key.as_ref()).expect("a heap");
        let moved = move_down(&mut file).expect("a correct device");
        let end = give_back_free(&file).expect("a correct device");
        drop(file);
        println!("{moved} segments moved, the file ends at {end}");
        let right = |at: u64| Some(maps.get(&at).unwrap_or(&last).clone());
        let heap = judge(device.clone(), sizes, right).unwrap_or_else(|error| panic!("{error}"));
        judge_snapshots(&heap, right).unwrap_or_else(|error| panic!("{error}"));
        drop(heap);
        // The power fails after each of its events.
        let events = recorder.events();
        let mut medium = Medium::over(Image::default());
        for (number, event) in events.iter().enumerate() {
            medium.apply(event);
            if number >= before {
                for loss in Loss::ALL {
                    let image = medium.crash(loss, &mut random);
                    let crashed = Arc::new(Recorder::over(device_len(SEGMENTS), image));
                    let heap = judge(crashed, sizes, right);
                    let heap = heap.unwrap_or_else(|error| panic!("event {number}: {error}"));
                    judge_snapshots(&heap, right).unwrap_or_else(|error| panic!("{error}"));
                }
            }
        }
    }
}
