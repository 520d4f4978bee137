//! Snapshot work: everything that can be done with a durable heap and its snapshots, in an order
//! that is drawn, each time held against a model.
#![allow(dead_code)] // each test file uses a part of it

use std::collections::BTreeMap;
use std::sync::Arc;

use deepheap_sim::{Image, Random, Recorder};
use deepheap_store::device::Device;
use deepheap_store::durable::verify::{verify_blocks, verify_tables};
use deepheap_store::{DurableError, DurableFile, StoreError};

use crate::model::Sizes;
use crate::saved_heap::{Map, SavedHeap, device_len, judge, judge_snapshots, key_of, open_store};

pub const SEGMENTS: u64 = 60;
pub const NAMES: u64 = 200;

pub fn recorder() -> (Recorder, Arc<dyn Device>) {
    let device = Recorder::over(device_len(SEGMENTS), Image::default());
    (device.clone(), Arc::new(device))
}

/// Random work; a full store is no news.
pub fn work(heap: &mut SavedHeap, random: &mut Random, steps: u32) {
    match heap.work(random, NAMES, steps) {
        Ok(()) | Err(StoreError::Full) => {}
        Err(error) => panic!("a correct device: {error}"),
    }
}

/// Whether nothing in it is damaged.
pub fn is_clean(device: &Arc<dyn Device>, sizes: Sizes) -> bool {
    let key = key_of(sizes);
    let open = || DurableFile::open(device.clone(), key.as_ref()).expect("a heap");
    let mut report = verify_tables(device.clone(), key.as_ref()).expect("a heap");
    let file = open();
    let names = file.snapshots().iter().map(|snapshot| snapshot.name.as_str());
    let mut files: Vec<_> = names.map(|name| file.open_snapshot(name).expect("whole")).collect();
    files.push(open());
    for file in files {
        let (store, _) = open_store(&file).expect("a store");
        verify_blocks(&store, &mut report).expect("memory");
    }
    report.is_clean()
}

/// How many operations there are, and the bound of how many accesses one of them draws.
pub struct Bounds {
    pub operations: u32,
    pub accesses: u64,
}

/// Draws operations on a new heap. Panics where the model says otherwise. Returns the snapshots at
/// the end, and how many were refused for want of room.
pub fn round(random: &mut Random, sizes: Sizes, bounds: &Bounds) -> (usize, u32) {
    let (_, device) = recorder();
    let mut heap = SavedHeap::create(device.clone(), SEGMENTS, sizes).expect("a heap");
    let (mut maps, mut names) = (BTreeMap::<u64, Map>::new(), Vec::<String>::new());
    let (mut last, mut refused) = (Map::new(), 0);
    for step in 0..bounds.operations {
        match random.below(8) {
            0..3 => {
                let steps = random.below(bounds.accesses) as u32;
                work(&mut heap, random, steps);
            }
            3 | 4 => {
                heap.checkpoint().expect("a correct device");
                last = heap.model.map.clone();
            }
            5 => {
                let (at, name) = (heap.file.checkpoint(), format!("{step}"));
                match heap.snapshot(&name) {
                    Ok(made) => {
                        assert_eq!(made, at + 1);
                        maps.insert(at, last.clone());
                        names.push(name);
                    }
                    Err(DurableError::NoRoomForSnapshot) => refused += 1,
                    Err(DurableError::Truncated { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            6 if !names.is_empty() => {
                let at = random.below(names.len() as u64) as usize;
                heap.forget(&names.swap_remove(at)).expect("it is there");
            }
            7 if !names.is_empty() && random.once_in(2) => {
                let at = random.below(names.len() as u64) as usize;
                let then = heap.file.snapshot(&names[at]).expect("it is there").checkpoint;
                heap.go_back(&names[at]).expect("a correct device");
                last = maps[&then].clone();
                assert_eq!(heap.model.map, last);
            }
            _ => {
                heap = judge(device.clone(), sizes, |_| Some(last.clone())).expect("right");
            }
        }
        heap.model.store.check_invariants();
        let mut listed: Vec<_> = heap.file.snapshots().iter().map(|it| it.name.clone()).collect();
        listed.sort_unstable();
        names.sort_unstable();
        assert_eq!(listed, names, "step {step}");
        judge_snapshots(&heap, |at| maps.get(&at).cloned())
            .unwrap_or_else(|error| panic!("step {step}: {error}"));
    }
    assert!(is_clean(&device, sizes));
    (names.len(), refused)
}
