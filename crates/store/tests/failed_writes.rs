//! A write that the device refuses is made again, later or elsewhere: only a device that stays
//! dead ends in an error, and one that comes back ends that.

mod model;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deepheap_sim::{Operation, Script, SimDevice};
use deepheap_store::device::Errno;
use deepheap_store::{BLOCK_BYTES, Head, Store, StoreError};
use model::{Model, Page, SEGMENT_BYTES, options};

const SEGMENTS: u64 = 48;

fn refuse_all(device: &SimDevice, errno: Errno) {
    let operation = Operation::Write;
    device.add_script(Script { operation, nth: 0, for_ever: true, errno });
}

/// Lets go of the writer threads in the end, also when a test fails.
struct Stop<'a>(&'a Store, &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
        self.0.stop_waiting();
    }
}

#[test]
fn the_writer_writes_by_itself_what_was_refused_once_the_device_is_well() {
    for errno in [Errno::EIO, Errno::ENOSPC] {
        let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 1);
        let store =
            Store::open(Box::new(device.clone()), options(SEGMENTS), None).expect("a store");
        refuse_all(&device, errno);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(&store, &done);
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    store.write_sealed(true);
                }
            });
            // Both buffers of the fresh head are full of what the device refuses.
            let blocks_a_segment = SEGMENT_BYTES / BLOCK_BYTES as u64 - 1;
            let blocks = 2 * blocks_a_segment;
            let mut names = 0..;
            let mut put = || {
                let name = names.next().expect("a name");
                let page = Page::of(name, 1);
                let mut writer = store.writer(Head::Fresh).expect("the device is not given up yet");
                writer.append(name, &page.0, store.hash(&page.0));
            };
            (0..blocks).for_each(|_| put());
            while device.faults() < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            device.heal();
            // Twenty segments more: nothing wakes the writer but its own patience.
            (0..10 * blocks).for_each(|_| put());
            store.seal_and_drain();
            let stats = store.stats();
            assert_eq!(stats.segments_failed, 0, "{stats:?}");
            assert_eq!(stats.segments_written, 22);
        });
        store.check_invariants();
    }
}

/// A model over a device, with objects enough to fill a few segments.
fn filled(device: &SimDevice, names: u64) -> Model {
    let options = options(SEGMENTS);
    let mut model = Model::new(Box::new(device.clone()), options);
    (0..names).for_each(|name| model.put(name).expect("room"));
    model
}

#[test]
fn a_segment_whose_place_is_bad_is_written_elsewhere_and_costs_one_place() {
    let seed = model::seed(31);
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    let bad = [2, 3, 7];
    // The directory, the last block, and all of it.
    device.break_place(2 * SEGMENT_BYTES..2 * SEGMENT_BYTES + 1);
    device.break_place(4 * SEGMENT_BYTES - 1..4 * SEGMENT_BYTES);
    device.break_place(7 * SEGMENT_BYTES..8 * SEGMENT_BYTES);
    let mut model = filled(&device, 1000);
    model.store.seal_and_drain();
    for _ in 0..5 {
        model.store.retry_failed();
    }
    let stats = model.store.stats();
    assert_eq!(stats.segments_failed, 0, "{stats:?}");
    assert_eq!(stats.segments_relocated, bad.len() as u64);
    assert_eq!(stats.segments_lost, bad.len() as u64);
    assert!(stats.writes_retried >= 3 * bad.len() as u64);
    model.store.check_invariants();
    assert_eq!(model.check_everything(), 0);
    assert_eq!(model.store.stats().blocks_read_from_memory, 0, "read where they are");
    // From now on no write meets a bad place: they change hands, and are collected and discarded.
    let faults = device.faults();
    let mut random = deepheap_sim::Random::new(seed);
    for _ in 0..20_000 {
        model.step(&mut random, 1500).expect("room");
    }
    let names: Vec<u64> = model.map.keys().copied().collect();
    names[200..].iter().for_each(|&name| model.remove(name));
    model.store.seal_and_drain();
    for _ in 0..20 {
        model.look();
    }
    (0..1500).for_each(|name| model.put(name).expect("room"));
    assert_eq!(model.check_everything(), 0);
    assert_eq!((device.faults(), model.store.stats().segments_relocated), (faults, 3));
    model.store.check_invariants();
}

#[test]
fn a_bad_place_does_not_use_up_the_last_segments() {
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 1);
    // Most of the device is bad: there is not place enough for what is promised.
    device.break_place(10 * SEGMENT_BYTES..SEGMENTS * SEGMENT_BYTES);
    let options = options(SEGMENTS);
    let mut model = Model::new(Box::new(device.clone()), options);
    let mut names = 0;
    let error = loop {
        match model.put(names) {
            Ok(()) => names += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Io(_) | StoreError::Full), "{error}");
    assert!(names >= 9 * (SEGMENT_BYTES / BLOCK_BYTES as u64 - 1), "{names}");
    assert_eq!(model.check_everything(), 0);
    model.store.check_invariants();
    device.heal();
    model.store.retry_failed();
    assert_eq!(model.store.stats().segments_failed, 0);
    (0..names).for_each(|name| model.put(name).expect("it takes writes again"));
    assert_eq!(model.check_everything(), 0);
}

#[test]
fn a_dead_device_is_an_error_that_ends_when_it_comes_back_and_costs_no_space() {
    for errno in [Errno::EIO, Errno::ENOSPC] {
        let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 1);
        let mut model = filled(&device, 100);
        refuse_all(&device, errno);
        let error = loop {
            match model.put(model.versions % 200) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error, StoreError::Io(errno));
        // It gave up after so many tries of each buffer, in two places each.
        let written = device.faults();
        assert!(written < 4 * 2 * 20, "{written}");
        assert_eq!(model.put(5), Err(error), "at once, from now on");
        assert_eq!(device.faults(), written);
        assert_eq!(model.check_everything(), 0);
        device.heal();
        assert!(model.store.retry_failed());
        assert!(!model.store.retry_failed(), "all were taken");
        (0..1000).for_each(|name| model.put(name).expect("it takes writes again"));
        assert_eq!(model.check_everything(), 0);
        let stats = model.store.stats();
        assert_eq!((stats.segments_failed, stats.segments_lost), (0, 0));
        model.store.check_invariants();
    }
}

#[test]
fn what_dies_while_it_is_refused_is_not_written_any_more() {
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 1);
    let mut model = filled(&device, 0);
    refuse_all(&device, Errno::EIO);
    (0..63).for_each(|name| model.put(name).expect("room"));
    model.store.seal_and_drain();
    assert_eq!(model.store.stats().segments_failed, 1);
    (0..63).for_each(|name| model.remove(name));
    let writes = device.count(Operation::Write);
    assert!(!model.store.retry_failed());
    assert_eq!(device.count(Operation::Write), writes);
    let stats = model.store.stats();
    assert_eq!((stats.segments_failed, stats.segments_lost, stats.live_blocks), (0, 0, 0));
    model.store.check_invariants();
}
