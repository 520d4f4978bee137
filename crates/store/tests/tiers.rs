//! With a second tier every block is found where it is, and the first tier takes what the second
//! one does not.

mod model;

use deepheap_child as child;
use deepheap_sim::{Operation, Random, Script, SimDevice};
use deepheap_store::device::Errno;
use deepheap_store::{Device, Options, Store, StoreError};
use model::{Model, SEGMENT_BYTES, Sizes, file, options};

const SEGMENTS: u64 = 80;
/// Of those of the first tier; of its own, which are twice as large, half as many.
const BEHIND: u64 = 24;
const NAMES: u64 = 1000;

/// A model of two tiers, the second one of larger segments.
fn tiers(first: Box<dyn Device>, second: Box<dyn Device>, sizes: Sizes) -> Model {
    let behind = Options { segment_bytes: 512 << 10, ..options(BEHIND) };
    let mut store = Store::open(first, options(SEGMENTS), None).expect("a store");
    store.add_second_tier(second, behind, None).expect("a tier");
    let mut model = Model::over(store);
    model.sizes = sizes;
    model
}

fn work(model: &mut Model, random: &mut Random, steps: u32) {
    for _ in 0..steps {
        model.step(random, NAMES).expect("room");
    }
    assert_eq!(model.check_everything(), 0);
    model.store.check_invariants();
}

fn in_second_tier(model: &Model) -> usize {
    model.map.values().filter(|held| model.store.is_in_second_tier(held.block)).count()
}

#[test]
fn every_block_is_found_in_its_tier_while_both_are_rewritten_and_collected() {
    let seed = model::seed(61);
    for (sizes, steps) in [(Sizes::Whole, 40_000), (Sizes::Mixed, 8000)] {
        let mut random = Random::new(seed);
        let mut model = tiers(file(), file(), sizes);
        work(&mut model, &mut random, steps);
        let behind = in_second_tier(&model);
        assert!(behind > 50, "{behind} objects");
        let second = model.store.second_tier().expect("a tier");
        assert!(second.stats().segments_collected > 10, "{:?}", second.stats());
        assert!(second.read_latency().is_some() && model.store.read_latency().is_none());
        for name in 0..NAMES {
            model.remove(name);
        }
        let live = |store: &Store| store.stats().live_bytes;
        assert_eq!([live(&model.store), live(model.store.second_tier().expect("a tier"))], [0, 0]);
    }
}

#[test]
fn a_second_tier_that_refuses_all_writes_costs_nothing_that_was_stored() {
    let seed = model::seed(62);
    let mut random = Random::new(seed);
    let device = SimDevice::new(BEHIND * SEGMENT_BYTES, seed);
    let mut model = tiers(file(), Box::new(device.clone()), Sizes::Whole);
    work(&mut model, &mut random, 4000);
    let before = in_second_tier(&model);
    assert!(before > 20, "{before} objects");
    let (operation, errno) = (Operation::Write, Errno::EIO);
    device.add_script(Script { operation, nth: 0, for_ever: true, errno });
    work(&mut model, &mut random, 8000);
    let second = model.store.second_tier().expect("a tier");
    assert_eq!(second.failure(), Some(StoreError::Io(Errno::EIO)));
    assert!(model.store.failure().is_none());
    assert!(in_second_tier(&model) < before, "the first tier takes it all");
}

#[test]
fn a_full_second_tier_leaves_the_rest_to_the_first() {
    let mut random = Random::new(model::seed(63));
    let mut store = Store::open(file(), options(SEGMENTS), None).expect("a store");
    store.add_second_tier(file(), options(8), None).expect("a tier");
    let mut model = Model::over(store);
    work(&mut model, &mut random, 8000);
    let behind = in_second_tier(&model);
    assert!((1..400).contains(&behind), "{behind} objects");
}

#[test]
fn a_forked_child_reads_the_second_tier_and_writes_to_the_first() {
    let seed = model::seed(64);
    let mut random = Random::new(seed);
    let mut model = tiers(file(), file(), Sizes::Whole);
    work(&mut model, &mut random, 4000);
    model.store.seal_and_drain();
    let pin = model.store.pin_all().expect("a pin");
    let pid = model::fork(&mut model, |model| {
        assert_eq!(model.check_everything(), 0);
        let before = in_second_tier(model);
        work(model, &mut Random::new(seed + 1), 4000);
        assert!(in_second_tier(model) < before / 2, "a child has no second tier of its own");
    });
    work(&mut model, &mut random, 4000);
    child::must_succeed(pid);
    model.store.unpin(pin);
    work(&mut model, &mut random, 2000);
}

#[test]
fn a_store_with_all_block_numbers_has_none_for_a_second_tier() {
    let all = Options { capacity_bytes: 4 << 40, segment_bytes: 8 << 20, ..options(1) };
    let mut store = Store::open(file(), all, None).expect("a store");
    let refused = store.add_second_tier(file(), options(SEGMENTS), None);
    assert!(matches!(refused, Err(StoreError::Options(_))));
    assert!(store.second_tier().is_none());
}
