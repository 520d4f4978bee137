//! Each single operation of a durable heap's device fails, once or for ever; a device loses, tears
//! and misdirects; tables are forged: the last checkpoint is intact, or the damage has a name.

mod model;
mod saved_heap;

use std::collections::BTreeMap;
use std::sync::Arc;

use deepheap_sim::{Fault, Operation, Random, Script, SimDevice};
use deepheap_store::device::{Device, Errno};
use deepheap_store::{DurableError, DurableFile, Store};
use model::Sizes;
use saved_heap::{Map, SavedHeap, device_len, judge};

const SEGMENTS: u64 = 16;
const NAMES: u64 = 60;

fn is_stopped(file: &DurableFile) -> bool {
    file.may_keep("a-name") == Err(DurableError::Stopped)
}

/// Work and checkpoints on a device that fails as told; how often it was asked.
fn workload(seed: u64, script: Option<Script>) -> [u64; 5] {
    let device = SimDevice::new(device_len(SEGMENTS), seed);
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    if let Some(script) = script {
        device.add_script(script);
    }
    let mut random = Random::new(seed);
    // The maps of the checkpoints at which the heap may open.
    let mut possible: BTreeMap<u64, Map> = BTreeMap::new();
    match SavedHeap::create(shared.clone(), SEGMENTS, Sizes::Whole) {
        Ok(mut heap) => {
            possible.insert(1, Map::new());
            for round in 0..5 {
                if round > 1 {
                    let last = (heap.file.checkpoint(), possible.clone());
                    change_snapshots(&mut heap, round, &mut possible);
                    assert!(script.is_some() || heap.file.checkpoint() > last.0, "{round}");
                }
                // A full or broken store is no news here.
                let _ = heap.work(&mut random, NAMES, 40);
                let next = heap.file.checkpoint() + 1;
                match heap.checkpoint() {
                    Ok(number) => {
                        assert_eq!(number, next);
                        possible = BTreeMap::from([(number, heap.model.map.clone())]);
                    }
                    Err(DurableError::Undecided(_)) => {
                        assert!(script.is_some() && is_stopped(&heap.file));
                        possible.insert(next, heap.model.map.clone());
                    }
                    Err(error) => {
                        let stops = matches!(error, DurableError::SyncFailed(_));
                        assert!(script.is_some(), "nothing fails by itself: {error}");
                        assert!(!stops || is_stopped(&heap.file));
                        let is_again = error == DurableError::Stopped;
                        assert!(is_stopped(&heap.file) || !is_again, "{error}");
                    }
                }
            }
            if script.is_some_and(|script| script.operation == Operation::Sync) {
                assert!(is_stopped(&heap.file), "a sync that failed is not repeated");
            }
        }
        Err(error) => assert!(matches!(error, DurableError::Io(_)), "{error}"),
    }
    let counts = Operation::ALL.map(|operation| device.count(operation));
    device.heal();
    if !possible.is_empty() {
        let opened = judge(shared, Sizes::Whole, |at| possible.get(&at).cloned());
        let mut heap = opened.unwrap_or_else(|error| panic!("{error}, with {script:?}"));
        heap.work(&mut random, NAMES, 40).expect("a healthy device");
        heap.checkpoint().expect("a healthy device");
    }
    counts
}

/// Takes a snapshot, goes back to it, or removes it; whatever fails.
fn change_snapshots(heap: &mut SavedHeap, round: u32, possible: &mut BTreeMap<u64, Map>) {
    let (last, map) = match possible.last_key_value() {
        Some((&last, map)) if possible.len() == 1 && last == heap.file.checkpoint() => {
            (last, map.clone())
        }
        _ => return, // undecided: nothing more is made
    };
    let made = match round {
        2 | 4 => heap.snapshot(&format!("{round}")),
        _ => heap.forget("2"),
    };
    match made {
        Ok(made) => *possible = BTreeMap::from([(made, map)]),
        Err(DurableError::Undecided(_)) => {
            possible.insert(last + 1, map);
        }
        Err(_) => assert_eq!(heap.file.checkpoint(), last),
    }
}

#[test]
fn the_last_checkpoint_survives_whichever_operation_fails() {
    let seed = model::seed(51);
    let counts = workload(seed, None);
    for operation in [Operation::Write, Operation::Sync, Operation::Reserve, Operation::Read] {
        let count = counts[operation as usize];
        for nth in 0..count {
            for for_ever in [false, true] {
                let errno = if nth % 2 == 0 { Errno::EIO } else { Errno::ENOSPC };
                // Syncs of the creation leave no heap, which is another matter.
                let of_creation = operation == Operation::Sync && nth < 2;
                if !of_creation {
                    workload(seed, Some(Script { operation, nth, for_ever, errno }));
                }
            }
        }
        println!("{count} of {operation:?}");
        assert!(count > 0);
    }
}

#[test]
fn a_device_that_lies_is_found_out() {
    let seed = model::seed(52);
    let faults = [Fault::WriteLost, Fault::WriteTorn, Fault::WriteMisdirected, Fault::WriteFlipped];
    let (mut intact, mut refused) = (0, 0);
    for round in 0..200 {
        let device = SimDevice::new(device_len(SEGMENTS), seed + round);
        let shared: Arc<dyn Device> = Arc::new(device.clone());
        let mut random = Random::new(seed + round);
        let heap = SavedHeap::create(shared.clone(), SEGMENTS, Sizes::Whole);
        let mut heap = heap.expect("a correct device so far");
        let mut maps = vec![None, Some(Map::new())];
        device.set_chance(faults[(round % 4) as usize], 12);
        for _ in 0..4 {
            let _ = heap.work(&mut random, NAMES, 30);
            heap.checkpoint().expect("it says that all is well");
            maps.push(Some(heap.model.map.clone()));
        }
        device.heal();
        // A lost superblock leaves an older one: then its own map, or nothing, is right.
        match judge(shared, Sizes::Whole, |at| maps.get(at as usize).cloned().flatten()) {
            Ok(_) => intact += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{intact} intact, {refused} refused");
    assert!(intact > 0 && refused > 0);
}

#[test]
fn reads_that_fail_now_and_then_stop_nobody_and_never_serve_wrong_bytes() {
    let seed = model::seed(53);
    let device = SimDevice::new(device_len(SEGMENTS), seed);
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let mut heap = SavedHeap::create(shared.clone(), SEGMENTS, Sizes::Whole).expect("a heap");
    heap.work(&mut Random::new(seed), NAMES, 200).expect("room");
    heap.checkpoint().expect("a correct device");
    let map = heap.model.map;
    let faults = [Fault::ReadRefused, Fault::ReadShort, Fault::ReadFlipped, Fault::ReadMisdirected];
    let mut opened = 0;
    for round in 0..200 {
        let fault = faults[round % 4];
        device.set_chance(fault, 40);
        opened += u32::from(
            judge(shared.clone(), Sizes::Whole, |at| {
                // One superblock that is read wrong leaves the other.
                if at == 2 { Some(map.clone()) } else { Some(Map::new()) }
            })
            .is_ok(),
        );
        device.heal();
    }
    assert!(opened > 100, "{opened}");
}

/// The tables of a store, by id and page.
type Tables = BTreeMap<(u32, u32), Vec<u8>>;

fn tables(file: &DurableFile) -> Tables {
    let mut tables = Tables::new();
    for table in file.shape().tables.iter().take(4) {
        let mut visit = |page, bytes: &[u8]| {
            tables.insert((table.id, page), bytes.to_vec());
            Ok(())
        };
        file.load_table(table.id, &mut visit).expect("a heap");
    }
    tables
}

/// The store that these tables make.
fn open(file: &DurableFile, tables: &Tables) -> Result<Store, DurableError> {
    let options = file.store_options(4, 2);
    let opened = Store::open_saved(file, options, &mut |id, visit| {
        let mut pages = tables.range((id, 0)..=(id, u32::MAX));
        pages.try_for_each(|(&(_, page), bytes)| visit(page, bytes))
    });
    opened.map(|(store, _)| store)
}

#[test]
fn forged_tables_are_refused_or_make_a_store_that_is_consistent() {
    let seed = model::seed(54);
    let device: Arc<dyn Device> = Arc::new(SimDevice::new(device_len(SEGMENTS), seed));
    let mut heap = SavedHeap::create(device, SEGMENTS, Sizes::Mixed).expect("a heap");
    let mut random = Random::new(seed);
    heap.work(&mut random, NAMES, 60).expect("room");
    heap.checkpoint().expect("a correct device");
    let right = tables(&heap.file);
    assert!(open(&heap.file, &right).is_ok());
    let (mut refused, mut opened) = (0, 0);
    for _ in 0..1500 {
        let mut forged = right.clone();
        for _ in 0..1 + random.below(3) {
            let keys: Vec<_> = forged.keys().copied().collect();
            let key = keys[random.below(keys.len() as u64) as usize];
            // The tables of scalars and segments say something at their beginnings.
            let at = random.below(if key.0 <= 2 { 16 * 32 } else { 4096 }) as usize;
            let page = forged.get_mut(&key).expect("a page");
            match random.below(4) {
                0 => page[at] = random.number() as u8,
                1 => page[at] ^= 1 << random.below(8),
                2 => page[at & !7..][..8].fill(0xff),
                _ => {
                    let page = forged.remove(&key).expect("a page");
                    forged.insert((key.0, key.1 + random.below(3) as u32), page);
                }
            }
        }
        match open(&heap.file, &forged) {
            Ok(store) => {
                opened += 1;
                store.check_invariants();
                let all: Vec<_> =
                    heap.model.map.iter().map(|(&name, &held)| (name, held)).collect();
                model::check_all(&store, &all);
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, DurableError::Inconsistent(_)), "{error}");
            }
        }
    }
    println!("{refused} refused, {opened} opened");
    assert!(refused > 100 && opened > 100);
}
