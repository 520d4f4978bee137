//! Each single operation of a workload on the device fails, once or for ever: nothing that was
//! appended is lost, nothing wrong is served, nothing hangs.

mod model;

use deepheap_sim::{Operation, Random, Script, SimDevice};
use deepheap_store::StoreError;
use deepheap_store::device::Errno;
use model::{Model, SEGMENT_BYTES, Sizes, options};

/// Segments and objects: so that collection has to work.
fn extent(sizes: Sizes) -> (u64, u64) {
    match sizes {
        Sizes::Whole => (24, 500),
        Sizes::Mixed | Sizes::Encrypted => (14, 700),
    }
}

/// So many random operations on objects of these sizes.
#[derive(Clone, Copy)]
struct Work {
    seed: u64,
    sizes: Sizes,
    steps: u32,
}

/// The workload, over a device that fails as told; how often the device was asked, and
/// how many segments were collected.
fn workload(work: Work, script: Option<Script>) -> ([u64; 5], u64) {
    let Work { seed, sizes, steps } = work;
    let (segments, names) = extent(sizes);
    let device = SimDevice::new(segments * SEGMENT_BYTES, seed);
    if let Some(script) = script {
        device.add_script(script);
    }
    let options = options(segments);
    let mut model = Model::new(Box::new(device.clone()), options);
    model.sizes = sizes;
    let mut random = Random::new(seed);
    for _ in 0..steps {
        if let Err(error) = model.step(&mut random, names) {
            assert!(script.is_some(), "nothing fails by itself: {error}");
            assert!(matches!(error, StoreError::Full | StoreError::Io(_)), "{error}");
            // What is stored can still be read, and freed.
            let name = random.below(names);
            model.remove(name);
        }
    }
    let counts = Operation::ALL.map(|operation| device.count(operation));
    let wrote_in_vain = script.is_some_and(|script| script.operation == Operation::Write);
    let failure = model.store.failure();
    assert_eq!(failure.is_some(), wrote_in_vain && device.faults() > 0);
    device.heal();
    model.store.retry_failed();
    assert_eq!(model.store.stats().segments_failed, 0, "a healthy device takes everything");
    assert_eq!(model.check_everything(), 0, "a failing device takes nothing with it: {script:?}");
    model.store.check_invariants();
    (counts, model.store.stats().segments_collected)
}

#[test]
fn nothing_is_lost_whichever_operation_fails() {
    let seed = model::seed(11);
    every_write_fails(Work { seed, sizes: Sizes::Whole, steps: 2600 });
}

#[test]
fn nothing_packed_is_lost_whichever_operation_fails() {
    let seed = model::seed(13);
    every_write_fails(Work { seed, sizes: Sizes::Mixed, steps: 300 });
}

/// Writes, reservations and discards, each once and for ever.
fn every_write_fails(work: Work) {
    let (counts, collected) = workload(work, None);
    assert!(collected > 0, "collection has to work");
    assert!(counts[Operation::Write as usize] > 20, "{counts:?}");
    assert!(counts[Operation::Read as usize] > 100, "{counts:?}");
    for operation in [Operation::Write, Operation::Reserve, Operation::Discard] {
        for nth in 0..counts[operation as usize] {
            for for_ever in [false, true] {
                for errno in [Errno::EIO, Errno::ENOSPC] {
                    workload(work, Some(Script { operation, nth, for_ever, errno }));
                }
            }
        }
    }
}

#[test]
fn nothing_is_lost_whichever_read_fails() {
    let seed = model::seed(12);
    let operation = Operation::Read;
    for (sizes, steps) in [(Sizes::Whole, 900), (Sizes::Mixed, 120)] {
        let work = Work { seed, sizes, steps };
        let reads = workload(work, None).0[operation as usize];
        // Every fifth for ever, every one once: reads are many, and their failures alike.
        for nth in 0..reads {
            let for_ever = nth % 5 == 0;
            workload(work, Some(Script { operation, nth, for_ever, errno: Errno::EIO }));
        }
    }
}
