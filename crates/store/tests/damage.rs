//! What is damaged on the device stays unreadable, however often collection passes by, and takes
//! nothing else with it.

mod model;

use std::collections::{BTreeMap, BTreeSet};

use deepheap_sim::{Fault, Random, SimDevice};
use deepheap_store::{StoreError, StoreStats};
use model::{Held, Model, SEGMENT_BYTES, Seen, Sizes, options};

const SEGMENTS: u64 = 40;

/// A store in which each segment of the first `names` objects was damaged by the fault, and what
/// of these objects could not be read then. Most of the others are removed, so that collection
/// will come.
fn damaged(fault: Fault, sizes: Sizes, names: u64, seed: u64) -> (Model, BTreeMap<u64, Held>) {
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    device.set_chance(fault, 1);
    let options = options(SEGMENTS);
    let mut model = Model::new(Box::new(device.clone()), options);
    model.sizes = sizes;
    put_range(&mut model, 0, names);
    model.store.seal_and_drain();
    device.heal();
    let mut refused = model.map.clone();
    refused.retain(|&name, _| model.check(name) != Some(Seen::Right));
    assert!(!refused.is_empty() && refused.len() < names as usize);
    for name in (0..names).filter(|name| name % 3 != 0 && !refused.contains_key(name)) {
        model.remove(name);
    }
    (model, refused)
}

fn put_range(model: &mut Model, from: u64, count: u64) {
    let names: Vec<u64> = (from..from + count).collect();
    for names in names.chunks(50) {
        model.put_all(names).expect("room");
    }
}

/// Rewrites other objects, so many that no segment of theirs is as empty as an old one, until
/// collection has passed by everything.
fn churn(model: &mut Model, seed: u64) {
    let mut random = Random::new(seed);
    let is_full = |stats: StoreStats| stats.live_blocks * 10 > stats.reservable_blocks * 9;
    let mut others = 0;
    while !is_full(model.store.stats()) {
        put_range(model, 100_000 + others, 50);
        others += 50;
    }
    let collected = model.store.stats().segments_collected;
    while model.store.stats().segments_collected < collected + 60 {
        let some: BTreeSet<u64> = (0..20).map(|_| 100_000 + random.below(others)).collect();
        model.put_all(&some.into_iter().collect::<Vec<_>>()).expect("room");
    }
}

/// Every object of the damaged ones is refused, every other one is right.
fn assert_same(model: &Model, refused: &BTreeMap<u64, Held>) {
    for &name in model.map.keys() {
        let seen = model.check(name).expect("it is held");
        match refused.contains_key(&name) {
            true => assert!(matches!(seen, Seen::Refused(StoreError::Corrupt(_))), "{seen:?}"),
            false => assert_eq!(seen, Seen::Right, "object {name}"),
        }
    }
}

#[test]
fn an_object_that_collection_finds_damaged_moves_and_stays_unreadable() {
    let seed = model::seed(51);
    for fault in [Fault::WriteFlipped, Fault::WriteTorn] {
        let (mut model, refused) = damaged(fault, Sizes::Whole, 500, seed);
        churn(&mut model, seed);
        assert_same(&model, &refused);
        let moved = refused.iter().filter(|(name, old)| model.map[name].block != old.block);
        assert!(moved.count() > 0, "collection came by: {:?}", model.store.stats());
        model.store.check_invariants();
    }
}

#[test]
fn a_damaged_packed_block_stays_where_it_is_until_its_objects_are_gone() {
    let seed = model::seed(52);
    for fault in [Fault::WriteFlipped, Fault::WriteTorn] {
        let (mut model, refused) = damaged(fault, Sizes::Mixed, 900, seed);
        let known = model.store.stats().blocks_corrupt;
        churn(&mut model, seed);
        assert!(model.store.stats().blocks_corrupt > known, "collection came by");
        assert_same(&model, &refused);
        let in_place = refused.iter().filter(|(_, old)| old.is_packed());
        assert!(in_place.clone().count() > 0);
        for (name, old) in in_place {
            assert_eq!(model.map[name].block, old.block, "it cannot be moved");
        }
        // Once they are gone nothing is in the way, except segments whose very directory is
        // damaged: their objects can be read, and removed.
        (0..900).for_each(|name| model.remove(name));
        churn(&mut model, seed + 1);
        let stats = model.store.stats();
        assert_eq!((stats.segments_damaged, stats.live_bytes), (0, model.live_bytes()));
        assert_eq!(model.check_everything(), 0);
        model.store.check_invariants();
    }
}

#[test]
fn a_block_that_the_device_refuses_for_now_is_not_given_up() {
    let seed = model::seed(53);
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    let options = options(SEGMENTS);
    let mut model = Model::new(Box::new(device.clone()), options);
    model.sizes = Sizes::Mixed;
    put_range(&mut model, 0, 900);
    model.store.seal_and_drain();
    // Segments arrive with a wrong bit, single blocks are refused.
    device.set_chance(Fault::ReadFlipped, 1);
    device.set_chance(Fault::ReadRefused, 2);
    for name in 0..3000 {
        let _ = model.put(100_000 + name % 1000);
    }
    device.heal();
    assert_eq!(model.check_everything(), 0);
    churn(&mut model, seed);
    assert_eq!(model.check_everything(), 0);
    model.store.check_invariants();
}
