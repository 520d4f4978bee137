//! Freeing: what is freed leaves RAM and store at once, without being read in again.

mod scene;

use scene::memory::{Collection, Object, PAGE, seed};
use scene::play;
use scene::process::{cost, soon};
use std::time::Duration;

const CONF: &str = "ram:24M,store_size:512M";
const MIB: usize = 1 << 20;

fn stats() -> deepheap::Stats {
    deepheap::stats().expect("the runtime runs")
}

/// `bytes` of objects of `size` bytes, almost all of them in the store.
fn cold(seed: u64, size: usize) -> Collection {
    let data = Collection::filled(seed, 100 * MIB / size, size);
    assert!(stats().stored_bytes > 60 << 20, "too little was stored: {:?}", stats());
    data
}

#[test]
fn freeing_never_reads_in_and_live_bytes_go_down_at_once() {
    play("freeing_never_reads_in_and_live_bytes_go_down_at_once", CONF, || {
        let seed = seed();
        for size in [64, 1000, PAGE, 5 * PAGE, 200_000, 2 * MIB, 25 * MIB] {
            let data = cold(seed, size);
            let before = stats();
            data.free();
            let after = stats();
            assert_eq!(after.faults(), before.faults(), "freeing objects of {size} faulted");
            assert_eq!(after.device_reads, before.device_reads, "objects of {size}");
            // The thread's stock, and pages on their way, may stay.
            let left = after.stored_bytes;
            assert!(left < before.stored_bytes / 8, "{size}: {left} of {}", before.stored_bytes);
            assert!(after.allocated_bytes < 8 << 20, "{size}: {}", after.allocated_bytes);
        }
    });
}

#[test]
fn a_large_free_returns_ram() {
    play("a_large_free_returns_ram", CONF, || {
        let seed = seed();
        let own = cost();
        let object = Object::new(100 * MIB).expect("room");
        object.fill(seed);
        object.check(seed);
        let (full, buffer) = (cost() - own, stats().page_buffer_bytes);
        object.free();
        let (left, after) = (cost() - own, stats().page_buffer_bytes);
        eprintln!("{full} before, {left} after; page buffer {buffer}, {after}");
        assert!(after < 1 << 20, "page buffer {after} of {buffer}");
        assert!(left < full * 3 / 4, "{left} of {full}");
    });
}

#[test]
fn frees_one_by_one_give_the_store_back_to_the_device() {
    play("frees_one_by_one_give_the_store_back_to_the_device", CONF, || {
        let seed = seed();
        for size in [1000, PAGE] {
            let before = stats().discarded_bytes;
            cold(seed, size).free();
            let is_back = || stats().discarded_bytes > before + (16 << 20);
            assert!(soon(Duration::from_secs(120), is_back), "{size}: {:?}", stats());
        }
    });
}

#[test]
fn the_store_of_what_was_freed_is_used_again() {
    play("the_store_of_what_was_freed_is_used_again", "ram:24M,store_size:160M", || {
        let seed = seed();
        for round in 0..6 {
            let data = Collection::filled(seed + round, 100 * 256, PAGE);
            data.check();
            data.free();
        }
        let used = stats().store_used_bytes;
        assert!(soon(Duration::from_secs(120), || stats().stored_bytes < 1 << 20));
        eprintln!("{used} bytes of the store in use");
    });
}

#[test]
fn callocs_zeros_are_zeros_after_everything_was_used() {
    play("callocs_zeros_are_zeros_after_everything_was_used", CONF, || {
        let seed = seed();
        for size in [100, 3000, PAGE, 3 * PAGE, 40 * PAGE, 300 * PAGE, 5 * MIB, 70 * MIB] {
            let count = (90 * MIB / size).clamp(1, 60_000);
            let mut data = Collection::filled(seed, count, size);
            // Every other one, so that pages are shared by the living and the dead.
            let mut kept = Vec::new();
            for (index, object) in data.objects.drain(..).enumerate() {
                if index % 2 == 0 { object.free() } else { kept.push((index, object)) }
            }
            let zeroed: Vec<Object> =
                (0..count / 2).map(|_| Object::zeroed(size).expect("room")).collect();
            zeroed.iter().for_each(Object::check_zero);
            kept.iter().for_each(|(index, object)| object.check(seed + *index as u64));
            zeroed.into_iter().for_each(Object::free);
            kept.into_iter().for_each(|(_, object)| object.free());
            let zeroed = Object::zeroed(size).expect("room");
            zeroed.check_zero();
            zeroed.free();
        }
    });
}

#[test]
fn a_large_calloc_touches_nothing() {
    play("a_large_calloc_touches_nothing", CONF, || {
        let seed = seed();
        for size in [6 * MIB, 70 * MIB] {
            // Dirty memory for it to come to, of runs that are too short to be dropped when freed.
            Collection::filled(seed, size / (40 * PAGE), 40 * PAGE).free();
            let faults = || {
                let stats = stats();
                stats.fault_zero.count + stats.fault_cached.count + stats.fault_stored.count
            };
            let before = faults();
            let zeroed = Object::zeroed(size).expect("room");
            let touched = faults() - before;
            assert!(touched < 100, "{touched} faults for {size} bytes"); // zeros come by 16 pages
            zeroed.check_zero();
            zeroed.free();
        }
    });
}
