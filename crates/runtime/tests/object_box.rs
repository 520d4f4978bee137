//! What an `ObjectBox` promises: values come back, whoever reads them how, and go when dropped.

mod scene;

use deepheap::ObjectBox;
use deepheap::objects::{Advice, ObjectError};
use scene::play;

/// A budget that the boxes outgrow.
const CONF: &str = "ram:24M,store_size:512M";
const BOXES: u64 = 60_000;

/// Padding between its fields, on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Record {
    tag: u8,
    key: u64,
    payload: [u64; 120],
}

fn record(key: u64) -> Record {
    Record { tag: key as u8, key, payload: [key ^ 0x5EED; 120] }
}

fn boxes() -> Vec<ObjectBox<Record>> {
    (0..BOXES).map(|key| ObjectBox::new(record(key)).expect("room")).collect()
}

#[test]
fn values_come_back_by_copy_by_reference_and_by_the_batch() {
    play("values_come_back_by_copy_by_reference_and_by_the_batch", CONF, || {
        let mut boxes = boxes();
        for (key, object) in (0..).zip(&mut boxes).step_by(7) {
            assert_eq!(object.get(), Ok(record(key)));
            assert_eq!(object.key, key);
            object.set(record(key + 1)).expect("room");
            assert_eq!(object.payload[119], (key + 1) ^ 0x5EED);
            object.tag = 77;
            assert_eq!(object.get().map(|value| value.tag), Ok(77));
            object.set(record(key)).expect("room");
        }
        for (batch, part) in boxes.chunks(1000).enumerate() {
            ObjectBox::prefetch(part).expect("live objects");
            let values = ObjectBox::gather(part).expect("readable");
            let first = batch as u64 * 1000;
            assert!((first..).zip(&values).all(|(key, value)| *value == record(key)));
        }
        let values: Vec<Record> = (0..BOXES).map(|key| record(BOXES - key)).collect();
        ObjectBox::scatter(&mut boxes, &values).expect("room");
        assert_eq!(ObjectBox::gather(&boxes).as_deref(), Ok(&values[..]));
        assert_eq!(ObjectBox::scatter(&mut boxes, &values[1..]), Err(ObjectError::OutOfBounds));
    });
}

#[test]
fn what_is_pinned_is_used_without_a_fault_until_the_guard_ends() {
    play("what_is_pinned_is_used_without_a_fault_until_the_guard_ends", CONF, || {
        let boxes = boxes();
        let pins: Vec<_> =
            boxes.iter().step_by(600).map(|object| object.pin().expect("room")).collect();
        boxes.iter().for_each(|object| object.advise(Advice::Cold).expect("a live object"));
        assert!((0..).zip(&boxes).all(|(key, object)| object.key == key));
        let faults = || deepheap::stats().expect("running").faults();
        let before = faults();
        assert!((0..).step_by(600).zip(&pins).all(|(key, pinned)| **pinned == record(key)));
        assert_eq!(faults(), before, "what is pinned had left");
        drop(pins);
        assert!((0..).zip(&boxes).all(|(key, object)| object.key == key));
        let before = faults();
        assert!((0..).zip(&boxes).step_by(600).all(|(key, object)| object.key == key));
        assert!(faults() > before, "what is pinned no more never left");
        // More than half of what the page buffer holds.
        let pins: Vec<_> = boxes.iter().map_while(|object| object.pin().ok()).collect();
        assert!(pins.len() < BOXES as usize / 8, "{} of 24 MiB", pins.len());
        assert_eq!(boxes[pins.len()].pin().err(), Some(ObjectError::Resources));
    });
}

#[test]
fn what_is_dropped_is_free_and_what_is_given_up_is_not() {
    play("what_is_dropped_is_free_and_what_is_given_up_is_not", CONF, || {
        let kept = ObjectBox::new(record(5)).expect("room").into_raw();
        let full = boxes();
        let before = deepheap::stats().expect("running");
        drop(full);
        let after = deepheap::stats().expect("running");
        assert_eq!(before.faults(), after.faults(), "dropping reads in");
        assert!(after.allocated_bytes < before.allocated_bytes / 8);
        // SAFETY: from `into_raw`, and nobody else's.
        let kept = unsafe { ObjectBox::from_raw(kept) };
        assert_eq!(*kept, record(5));
        let nothing = ObjectBox::new(()).expect("room");
        assert_eq!(nothing.get(), Ok(()));
    });
}
