//! Whatever the device does, the store serves the bytes that were appended, or refuses.

mod model;

use std::collections::BTreeMap;

use deepheap_sim::{Fault, Operation, Random, Script, SimDevice};
use deepheap_store::device::Errno;
use deepheap_store::{Block, StoreError};
use model::{Held, Model, SEGMENT_BYTES, Seen, Sizes, options};

const SEGMENTS: u64 = 40;

/// What to do to a store.
#[derive(Clone, Copy)]
struct Work {
    seed: u64,
    sizes: Sizes,
    steps: u32,
}

impl Work {
    fn of(seed: u64, sizes: Sizes, steps: u32) -> Self {
        Self { seed, sizes, steps }
    }
}

/// A number of operations on a store over a device with the given faults, one in so many.
fn run(work: Work, faults: &[Fault], one_in: u64) -> SimDevice {
    let Work { seed, sizes, steps } = work;
    // As many bytes live of either sizes.
    let names = if sizes == Sizes::Whole { 1200 } else { 2600 };
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    for &fault in faults {
        device.set_chance(fault, one_in);
    }
    let mut model = Model::new(Box::new(device.clone()), options(SEGMENTS));
    model.sizes = sizes;
    let mut random = Random::new(seed ^ 0xabcd);
    let mut refused = 0;
    for step in 0..steps {
        if let Err(error) = model.step(&mut random, names) {
            refused += 1;
            assert!(!faults.is_empty(), "without faults nothing fails: {error}, step {step}");
            assert!(matches!(error, StoreError::Full | StoreError::Io(_)), "{error}");
            // Somebody frees something: the program goes on.
            let name = random.below(names);
            model.remove(name);
        }
        if step % 1000 == 0 {
            model.store.check_invariants();
        }
    }
    device.heal();
    let gone = model.check_everything();
    let may_lose = faults.iter().any(|fault| fault.destroys());
    assert!(gone == 0 || may_lose, "{gone} objects lost, {refused} refusals");
    model.store.check_invariants();
    let stats = model.store.stats();
    assert_eq!(stats.live_bytes, model.live_bytes());
    assert_eq!(stats.live_blocks, model.live_bytes().div_ceil(4096));
    if faults.is_empty() {
        assert!(stats.segments_collected > 10, "the collector had work: {stats:?}");
        // Bytes written for each byte that was evicted.
        assert!(stats.bytes_written < 6 * stats.blocks_appended_fresh * 4096, "{stats:?}");
    }
    device
}

#[test]
fn a_correct_device_returns_everything() {
    let seed = model::seed(1);
    run(Work::of(seed, Sizes::Whole, 20_000), &[], 0);
    run(Work::of(seed, Sizes::Mixed, 4_000), &[], 0);
}

#[test]
fn every_single_kind_of_fault_is_survived() {
    let seed = model::seed(2);
    for fault in Fault::ALL {
        let one_in = match fault {
            Fault::WriteRefused | Fault::WriteNoSpace => 12,
            Fault::ReserveNoSpace => 2,
            fault if fault.destroys() => 10,
            _ => 30,
        };
        for (round, (sizes, steps)) in
            (0..).zip([(Sizes::Whole, 3000), (Sizes::Whole, 3000), (Sizes::Mixed, 2000)])
        {
            println!("{fault:?}, {sizes:?}, round {round}");
            let device = run(Work::of(seed + round, sizes, steps), &[fault], one_in);
            assert!(device.faults() > 0 || fault == Fault::ReserveNoSpace);
        }
    }
}

#[test]
fn all_kinds_of_faults_together_are_survived() {
    let seed = model::seed(3);
    for round in 0..6 {
        println!("round {round}");
        for (sizes, steps) in [(Sizes::Whole, 4000), (Sizes::Mixed, 2500)] {
            run(Work::of(seed + round, sizes, steps), &Fault::ALL, 100);
        }
    }
}

#[test]
fn the_canary_a_store_over_a_device_that_forgets_everything_refuses_everything() {
    for sizes in [Sizes::Whole, Sizes::Mixed] {
        let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 7);
        device.set_chance(Fault::WriteLost, 1);
        let mut model = Model::new(Box::new(device), options(SEGMENTS));
        model.sizes = sizes;
        for name in 0..200 {
            model.put(name).expect("room");
        }
        model.store.seal_and_drain();
        assert_eq!(model.check_everything(), 200);
        assert_eq!(model.store.stats().blocks_corrupt, 200);
    }
}

#[test]
fn a_read_that_fails_once_is_made_again_and_told_and_one_that_fails_twice_is_refused() {
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 7);
    let options = options(SEGMENTS);
    let mut model = Model::new(Box::new(device.clone()), options);
    for name in 0..200 {
        model.put(name).expect("room");
    }
    model.store.seal_and_drain();
    let objects: Vec<(u64, Held)> = model.map.iter().map(|(&name, &held)| (name, held)).collect();
    for few in [&objects[..1], &objects[..4]] {
        for for_ever in [false, true] {
            let (begun, before) = (device.count(Operation::Read), model.store.stats());
            let (operation, errno) = (Operation::Read, Errno::EIO);
            device.add_script(Script { operation, nth: begun, for_ever, errno });
            let seen = model.check_all(few);
            device.heal();
            let (reads, after) = (device.count(Operation::Read) - begun, model.store.stats());
            let (again, refused) = (
                after.blocks_reread - before.blocks_reread,
                after.reads_failed - before.reads_failed,
            );
            let count = few.len() as u64;
            if for_ever {
                assert!(seen.iter().all(|seen| *seen != Seen::Right));
                assert_eq!((reads, again, refused), (2 * count, 0, count));
            } else {
                assert!(seen.iter().all(|seen| *seen == Seen::Right));
                assert_eq!((reads, again, refused), (count + 1, 1, 0));
            }
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        cases: 24, failure_persistence: None, ..Default::default()
    })]

    /// Random seeds, random mixtures of faults.
    #[test]
    fn any_sequence_over_any_mixture_of_faults(
        seed: u64,
        mixture in 0u32..1 << 12,
        one_in in 20u64..500,
        mixed: bool,
    ) {
        let chosen = |at: &usize| mixture & (1 << at) != 0;
        let faults: Vec<_> = (0..12).filter(chosen).map(|at| Fault::ALL[at]).collect();
        let steps = 1200 * (1 + faults.is_empty() as u32 * 12);
        let sizes = if mixed { Sizes::Mixed } else { Sizes::Whole };
        run(Work::of(seed, sizes, steps / (1 + 3 * mixed as u32)), &faults, one_in);
    }
}

#[test]
fn objects_of_one_block_are_read_once_if_they_are_wanted_one_after_the_other() {
    let seed = model::seed(17);
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    let options = options(SEGMENTS);
    let mut model = Model::new(Box::new(device.clone()), options);
    model.sizes = Sizes::Mixed;
    for names in (0..1000).collect::<Vec<_>>().chunks(50) {
        model.put_all(names).expect("room");
    }
    model.store.seal_and_drain();
    let mut blocks: BTreeMap<Block, Vec<(u64, Held)>> = BTreeMap::new();
    for (&name, &held) in model.map.iter().filter(|(_, held)| held.is_packed()) {
        blocks.entry(held.block).or_default().push((name, held));
    }
    let objects: usize = blocks.values().map(Vec::len).sum();
    assert!(objects > 2 * blocks.len(), "{objects} objects in {} blocks", blocks.len());
    let reads = || model.store.stats().device_reads;
    let before = reads();
    for (name, held) in blocks.values().flatten() {
        assert_eq!(model.check_all(&[(*name, *held)]), [Seen::Right]);
    }
    assert_eq!(reads() - before, blocks.len() as u64);
    // Of a few that are read together as well.
    let apart: Vec<(u64, Held)> = blocks.values().step_by(3).map(|all| all[0]).collect();
    for few in apart.chunks(4) {
        model.check_all(few);
        let before = reads();
        for &one in few {
            assert_eq!(model.check_all(&[one]), [Seen::Right]);
        }
        assert_eq!(reads(), before);
    }
}
