//! Each single operation of a workload on the device fails, once or for ever: nothing that was
//! appended is lost, nothing wrong is served, nothing hangs.

mod model;

use deepheap_sim::{Operation, Random, Script, SimDevice};
use deepheap_store::device::Errno;
use deepheap_store::{StoreError, VictimPolicy};
use model::{Model, SEGMENT_BYTES, options};

const SEGMENTS: u64 = 24;
const NAMES: u64 = 500;

/// The workload, over a device that fails as told; how often the device was asked.
fn workload(seed: u64, steps: u32, script: Option<Script>) -> [u64; 5] {
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    if let Some(script) = script {
        device.add_script(script);
    }
    let options = options(SEGMENTS, VictimPolicy::Greedy);
    let mut model = Model::new(Box::new(device.clone()), options);
    let mut random = Random::new(seed);
    for _ in 0..steps {
        if let Err(error) = model.step(&mut random, NAMES) {
            assert!(script.is_some(), "nothing fails by itself: {error}");
            assert!(matches!(error, StoreError::Full | StoreError::Io(_)), "{error}");
            // What is stored can still be read, and freed.
            let name = random.below(NAMES);
            model.remove(name);
        }
    }
    let counts = Operation::ALL.map(|operation| device.count(operation));
    let wrote_in_vain = script.is_some_and(|script| script.operation == Operation::Write);
    let failure = model.store.failure();
    assert_eq!(failure.is_some(), wrote_in_vain && device.faults() > 0);
    device.heal();
    assert_eq!(model.check_everything(), 0, "a failing device takes nothing with it: {script:?}");
    model.store.check_invariants();
    counts
}

#[test]
fn nothing_is_lost_whichever_operation_fails() {
    let seed = model::seed(11);
    let counts = workload(seed, 2600, None);
    assert!(counts[Operation::Write as usize] > 30, "{counts:?}");
    assert!(counts[Operation::Read as usize] > 300, "{counts:?}");
    for operation in [Operation::Write, Operation::Reserve, Operation::Discard] {
        for nth in 0..counts[operation as usize] {
            for for_ever in [false, true] {
                for errno in [Errno::EIO, Errno::ENOSPC] {
                    workload(seed, 2600, Some(Script { operation, nth, for_ever, errno }));
                }
            }
        }
    }
}

#[test]
fn nothing_is_lost_whichever_read_fails() {
    let seed = model::seed(12);
    let operation = Operation::Read;
    let reads = workload(seed, 900, None)[operation as usize];
    // Every fifth for ever, every one once: reads are many, and their failures alike.
    for nth in 0..reads {
        let for_ever = nth % 5 == 0;
        workload(seed, 900, Some(Script { operation, nth, for_ever, errno: Errno::EIO }));
    }
}
