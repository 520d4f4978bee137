//! What is reserved can be stored; what cannot be promised is refused; what is idle goes back.

mod model;

use std::collections::BTreeSet;
use std::time::Duration;

use deepheap_sim::{Fault, Operation, Random, Script, SimDevice};
use deepheap_store::device::Errno;
use deepheap_store::{BLOCK_BYTES, Device, Head, Options, Read, Store, StoreError, Write};
use model::{Model, SEGMENT_BYTES, Sizes, options};

fn open(segments: u64) -> (SimDevice, Store) {
    let device = SimDevice::new(segments * SEGMENT_BYTES, 1);
    let store = Store::open(Box::new(device.clone()), options(segments), None);
    (device, store.expect("a store"))
}

#[test]
fn every_reserved_block_can_be_stored_and_rewritten_for_ever() {
    let seed = model::seed(21);
    let (_, store) = open(48);
    let blocks = store.stats().reservable_blocks;
    store.reserve(blocks).expect("all that is reservable");
    assert_eq!(store.reserve(1), Err(StoreError::Full));
    drop(store);
    let device = SimDevice::new(48 * SEGMENT_BYTES, seed);
    let mut model = Model::new(Box::new(device), options(48));
    model.store.reserve(blocks).expect("all that is reservable");
    let mut random = Random::new(seed);
    for name in 0..blocks {
        model.put(name).expect("reserved");
    }
    for _ in 0..blocks * 5 {
        model.put(random.below(blocks)).expect("reserved");
    }
    assert_eq!(model.check_everything(), 0);
    model.store.check_invariants();
}

#[test]
fn what_objects_of_all_sizes_cost_can_be_stored_and_rewritten_for_ever() {
    let seed = model::seed(22);
    let device = SimDevice::new(48 * SEGMENT_BYTES, seed);
    let mut model = Model::new(Box::new(device), options(48));
    model.sizes = Sizes::Mixed;
    let blocks = model.store.stats().reservable_blocks;
    model.store.reserve(blocks).expect("all that is reservable");
    let mut left = blocks * BLOCK_BYTES as u64;
    let mut names = 0;
    loop {
        let cost = deepheap_store::cost(model.sizes.of(names)) as u64;
        let Some(rest) = left.checked_sub(cost) else { break };
        (left, names) = (rest, names + 1);
    }
    let all: Vec<u64> = (0..names).collect();
    for names in all.chunks(64) {
        model.put_all(names).expect("reserved");
    }
    let mut random = Random::new(seed);
    for round in 0..names / 10 {
        // Packed well, and badly.
        let some: BTreeSet<u64> = (0..1 + round % 64).map(|_| random.below(names)).collect();
        model.put_all(&some.into_iter().collect::<Vec<_>>()).expect("reserved");
    }
    assert_eq!(model.check_everything(), 0);
    model.store.check_invariants();
    let stats = model.store.stats();
    assert_eq!(stats.live_bytes, model.live_bytes());
    assert!(stats.segments_collected > 20, "{stats:?}");
}

#[test]
fn a_segment_is_free_when_the_last_object_of_its_last_block_is_retired() {
    let device = SimDevice::new(48 * SEGMENT_BYTES, 1);
    let mut model = Model::new(Box::new(device), options(48));
    model.sizes = Sizes::Mixed;
    let all: Vec<u64> = (0..2000).collect();
    model.put_all(&all).expect("room");
    model.store.seal_and_drain();
    let used = model.store.stats().segments_on_device;
    assert!(used > 10);
    let last = *model.map.iter().find(|(_, held)| held.bytes < 100).expect("some are small").0;
    for name in all.into_iter().filter(|&name| name != last) {
        model.remove(name);
    }
    let stats = model.store.stats();
    assert_eq!((stats.segments_on_device, stats.live_blocks), (1, 1));
    assert_eq!(stats.live_bytes, model.map[&last].cost() as u64);
    model.remove(last);
    let stats = model.store.stats();
    assert_eq!((stats.segments_on_device, stats.live_blocks, stats.live_bytes), (0, 0, 0));
    model.store.check_invariants();
}

#[test]
fn reservations_are_counted_exactly() {
    let (_, store) = open(48);
    let all = store.stats().reservable_blocks;
    for part in [1, 7, all / 3] {
        store.reserve(part).expect("room");
    }
    let left = all - 8 - all / 3;
    assert_eq!(store.reserve(left + 1), Err(StoreError::Full));
    assert_eq!(store.stats().reserved_blocks, all - left, "a refusal reserves nothing");
    store.reserve(left).expect("exactly the rest");
    store.unreserve(all);
    assert_eq!(store.stats().reserved_blocks, 0);
    assert_eq!(store.reserve(u64::MAX), Err(StoreError::Full));
    store.check_invariants();
}

#[test]
fn a_device_without_space_refuses_the_reservation_and_keeps_what_it_has() {
    let (device, store) = open(600);
    store.reserve(1000).expect("room");
    device.set_chance(Fault::ReserveNoSpace, 1);
    assert_eq!(store.reserve(store.stats().reservable_blocks - 1000), Err(StoreError::Full));
    assert_eq!(store.stats().reserved_blocks, 1000);
    device.heal();
    store.reserve(store.stats().reservable_blocks - 1000).expect("there is space again");
    store.check_invariants();

    let (device, store) = open(600);
    let (operation, errno) = (Operation::Reserve, Errno::EIO);
    device.add_script(Script { operation, nth: 0, for_ever: true, errno });
    assert_eq!(store.reserve(1000), Err(StoreError::Io(Errno::EIO)));
}

#[test]
fn a_full_store_says_so_and_goes_on_when_something_is_freed() {
    let device = SimDevice::new(24 * SEGMENT_BYTES, 3);
    let mut model = Model::new(Box::new(device), options(24));
    let mut names = 0;
    let error = loop {
        match model.put(names) {
            Ok(()) => names += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, StoreError::Full);
    assert!(names >= model.store.stats().reservable_blocks, "{names}");
    assert_eq!(model.check_everything(), 0);
    for name in (0..names).step_by(3) {
        model.remove(name);
    }
    for name in 0..names / 6 {
        model.put(1_000_000 + name).expect("space was freed");
    }
    assert_eq!(model.check_everything(), 0);
    model.store.check_invariants();
}

#[test]
fn idle_space_goes_back_to_the_device_and_promised_space_does_not() {
    let device = SimDevice::new(600 * SEGMENT_BYTES, 3);
    let mut model = Model::new(Box::new(device.clone()), options(600));
    model.store.reserve(20_000).expect("room");
    for name in 0..20_000 {
        model.put(name).expect("reserved");
    }
    for name in 0..20_000 {
        model.remove(name);
    }
    model.store.seal_and_drain();
    for _ in 0..20 {
        model.look();
    }
    let promised = device.pages();
    assert!(promised > 15_000, "what is reserved keeps its space: {promised}");
    model.store.unreserve(20_000);
    let discards = device.count(Operation::Discard);
    for _ in 0..20 {
        model.look();
    }
    assert!(device.pages() < 6_000, "{} pages are left", device.pages());
    let stats = model.store.stats();
    let calls = device.count(Operation::Discard) - discards;
    assert!(stats.discards >= calls);
    let bytes_a_call = stats.bytes_discarded / calls.max(1);
    assert!(bytes_a_call > 4 * SEGMENT_BYTES, "merged: {bytes_a_call} bytes a discard");
    model.store.check_invariants();
    model.store.reserve(20_000).expect("it can be had again");
}

/// A device of which discards take as long as is said, or that knows of none.
struct Slow {
    inner: SimDevice,
    discard_takes: Duration,
    knows_discards: bool,
}

impl Device for Slow {
    fn read(&self, batch: &mut [Read<'_>]) {
        self.inner.read(batch);
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        self.inner.write(batch);
    }

    fn sync(&self) -> Result<(), Errno> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.inner.discard(offset, len)?;
        std::thread::sleep(self.discard_takes);
        if self.knows_discards { Ok(()) } else { Err(Errno::ENOTSUP) }
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

/// A model of which 300 segments were freed, over such a device.
fn freed(device: &SimDevice, discard_takes: Duration, knows_discards: bool) -> Model {
    let slow = Slow { inner: device.clone(), discard_takes, knows_discards };
    let mut model = Model::new(Box::new(slow), options(600));
    for name in 0..20_000 {
        model.put(name).expect("room");
    }
    for name in 1..20_000 {
        model.remove(name);
    }
    model.store.seal_and_drain();
    model
}

#[test]
fn beside_reads_few_and_small_requests_give_space_back() {
    let device = SimDevice::new(600 * SEGMENT_BYTES, 5);
    let mut model = freed(&device, Duration::from_millis(3), true);
    for _ in 0..3 {
        model.look();
    }
    for _ in 0..5 {
        model.check(0);
        let before = model.store.stats();
        assert_eq!(model.look(), SEGMENT_BYTES, "what takes long is asked for once, and little");
        assert_eq!(model.store.stats().discards, before.discards + 1);
    }
    // A request may take long because the thread has no processor; not each of them.
    let has_time = (0..20).any(|_| model.look() > 2 * SEGMENT_BYTES);
    assert!(has_time, "when nobody reads there is time");
    model.store.check_invariants();
}

#[test]
fn a_device_that_knows_no_discard_is_asked_once_and_who_wants_none_never_asks() {
    let device = SimDevice::new(600 * SEGMENT_BYTES, 6);
    let mut model = freed(&device, Duration::ZERO, false);
    for _ in 0..20 {
        model.look();
    }
    assert_eq!(device.count(Operation::Discard), 1);
    assert_eq!(model.store.stats().discards, 0);
    let device = SimDevice::new(600 * SEGMENT_BYTES, 7);
    let mut model = freed(&device, Duration::ZERO, true);
    model.store.stop_discards();
    for _ in 0..20 {
        model.look();
    }
    assert_eq!(device.count(Operation::Discard), 0);
    let unspared = model.store.stats().bytes_not_discarded;
    (0..20_000).for_each(|name| model.put(name).expect("room"));
    assert!(model.store.stats().bytes_not_discarded > unspared, "written again instead");
    model.store.check_invariants();
}

#[test]
fn options_that_cannot_work_are_refused() {
    let good = Options::new(64 << 20);
    let open = |options| Store::open(Box::new(SimDevice::new(64 << 20, 1)), options, None).err();
    assert_eq!(open(good), None);
    for bad in [
        Options { segment_bytes: 100_000, ..good },
        Options { buffers: 3, ..good },
        Options { buffers: 65, ..good },
        Options { reserve_segments: 1, ..good },
        Options { capacity_bytes: 4 << 20, ..good },
    ] {
        assert!(matches!(open(bad), Some(StoreError::Options(_))), "{bad:?}");
    }
}

#[test]
fn memory_is_bounded_and_reported() {
    let device = SimDevice::new(1 << 40, 1);
    let store = Store::open(Box::new(device), Options::new(1 << 40), None).expect("a store");
    let before = store.memory_bytes();
    assert!(before < 9 << 20, "eight buffers of 1 MiB and little else: {before}");
    store.reserve(20 << 20).expect("80 GiB of a TiB");
    let assured = store.memory_bytes();
    assert!(assured - before < 8 << 20, "some 40 bytes a segment");
    drop(store.writer(Head::Fresh).expect("room"));
    let bytes = store.memory_bytes() - assured;
    assert_eq!(bytes, 5 * 256, "a checksum and a count for each block that was ever filled");
}
