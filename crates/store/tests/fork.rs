//! Parent and child of a fork both keep every block, whatever the other does.

mod model;

use deepheap_child as child;
use deepheap_sim::{Operation, Random, Script, SimDevice};
use deepheap_store::device::Errno;
use deepheap_store::{Device, Store, StoreError};
use model::{Model, SEGMENT_BYTES, Sizes, file, fork, options};

const SEGMENTS: u64 = 80;
const NAMES: u64 = 1000;

fn work(model: &mut Model, seed: u64, steps: u32) {
    let mut random = Random::new(seed);
    for _ in 0..steps {
        model.step(&mut random, NAMES).expect("room");
    }
    assert_eq!(model.check_everything(), 0);
    model.store.check_invariants();
}

#[test]
fn parent_and_child_keep_every_block_while_both_rewrite_everything() {
    let seed = model::seed(41);
    for (drained, sizes) in
        [(true, Sizes::Whole), (false, Sizes::Whole), (true, Sizes::Mixed), (false, Sizes::Mixed)]
    {
        // Operations on packed objects are batches.
        let steps = if sizes == Sizes::Mixed { 600 } else { 4000 };
        let store = Store::open(file(), options(SEGMENTS), None);
        let mut model = Model::over(store.expect("a store"));
        model.sizes = sizes;
        work(&mut model, seed, steps * 3 / 4);
        if drained {
            model.store.seal_and_drain();
        }
        let pin = model.store.pin_all().expect("a pin");
        let pid = fork(&mut model, |model| {
            assert_eq!(model.check_everything(), 0, "all is inherited");
            work(model, seed + 1, steps);
        });
        work(&mut model, seed + 2, steps);
        child::must_succeed(pid);
        assert!(model.store.stats().segments_withheld > 0, "the pin had an effect");
        model.store.unpin(pin);
        assert_eq!(model.store.stats().segments_withheld, 0);
        work(&mut model, seed + 3, steps);
    }
}

#[test]
fn children_of_children_keep_every_block() {
    let seed = model::seed(42);
    let store = Store::open(file(), options(SEGMENTS), None);
    let mut model = Model::over(store.expect("a store"));
    work(&mut model, seed, 2500);
    let pin = model.store.pin_all().expect("a pin");
    let pid = fork(&mut model, |model| {
        work(model, seed + 1, 800);
        let pin = model.store.pin_all().expect("a pin");
        let pid = fork(model, |model| {
            work(model, seed + 2, 800);
            let pid = fork(model, |model| work(model, seed + 3, 3000));
            // No pin: we only read until it has gone.
            assert_eq!(model.check_everything(), 0);
            child::must_succeed(pid);
            work(model, seed + 4, 2000);
        });
        work(model, seed + 5, 2000);
        child::must_succeed(pid);
        model.store.unpin(pin);
        work(model, seed + 6, 2000);
    });
    work(&mut model, seed + 7, 2500);
    child::must_succeed(pid);
    model.store.unpin(pin);
    work(&mut model, seed + 8, 2000);
}

#[test]
fn a_child_reads_what_went_elsewhere_and_writes_what_its_parent_could_not() {
    let seed = model::seed(43);
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    device.break_place(5 * SEGMENT_BYTES..7 * SEGMENT_BYTES);
    let store = Store::open(Box::new(device.clone()), options(SEGMENTS), None);
    let mut model = Model::over(store.expect("a store"));
    work(&mut model, seed, 2500);
    for _ in 0..5 {
        model.store.retry_failed();
    }
    assert_eq!(model.store.stats().segments_relocated, 2);
    let (operation, errno) = (Operation::Write, Errno::EIO);
    device.add_script(Script { operation, nth: 0, for_ever: true, errno });
    (0..100).for_each(|name| model.put(name).expect("room in memory"));
    model.store.seal_and_drain();
    assert!(model.store.stats().segments_failed > 0);
    let pin = model.store.pin_all().expect("a pin");
    let pid = fork(&mut model, |model| {
        assert_eq!(model.store.stats().segments_failed, 0, "nothing failed on the child's device");
        assert_eq!(model.check_everything(), 0);
        work(model, seed + 1, 3000);
    });
    child::must_succeed(pid);
    device.heal();
    model.store.unpin(pin);
    work(&mut model, seed + 2, 3000);
    assert_eq!(model.store.stats().segments_failed, 0);
}

#[test]
fn an_inherited_pin_means_nothing_in_the_child() {
    let store = Store::open(file(), options(SEGMENTS), None);
    let mut model = Model::over(store.expect("a store"));
    work(&mut model, 1, 500);
    let pin = model.store.pin_all().expect("a pin");
    let mut pin = Some(pin);
    let inherited = &mut pin;
    let pid = fork(&mut model, |model| {
        work(model, 2, 2000);
        let own = model.store.pin_all().expect("a pin of the child's own");
        model.store.unpin(inherited.take().expect("inherited"));
        work(model, 3, 2000);
        assert!(model.store.stats().segments_withheld > 0, "the child's own pin still holds");
        model.store.unpin(own);
    });
    child::must_succeed(pid);
    model.store.unpin(pin.expect("still ours"));
}

#[test]
fn generations_are_bounded_and_the_last_refusal_is_an_error() {
    let store = Store::open(file(), options(SEGMENTS), None).expect("a store");
    let mut model = Model::over(store);
    for name in 0..50 {
        model.put(name).expect("room");
    }
    // Becoming one's own child is possible as long as nobody else uses the old device.
    for generation in 1..deepheap_store::device::generations::GENERATIONS_MAX as u64 {
        model.store.become_child(sim()).expect("a generation");
        model.put(generation % 50).expect("room");
        model.store.seal_and_drain();
        assert_eq!(model.check_everything(), 0);
    }
    assert_eq!(model.store.become_child(sim()), Err(StoreError::TooManyForks));
    assert_eq!(model.check_everything(), 0);
}

fn sim() -> Box<dyn Device> {
    Box::new(deepheap_sim::SimDevice::new(SEGMENTS * SEGMENT_BYTES, 1))
}
