//! Objects: each on its own page for the program, at its own size everywhere else.

mod scene;

use deepheap::objects;
use scene::memory::{Random, seed};
use scene::process::soon;
use scene::{play, watch};
use std::time::Duration;

const CONF: &str = "ram:24M,store_size:400M";
const PAGE: usize = 4096;
/// How long an event is waited for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// An object of this many bytes, filled with what `check` expects for the number.
fn filled(number: usize, size: usize) -> *mut u8 {
    let at = objects::allocate(1, size);
    assert!(!at.is_null(), "object {number} of {size} bytes");
    // SAFETY: a fresh object of that size.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at, size) };
    let mut random = Random::new(number as u64);
    bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
    at
}

fn check(number: usize, at: *const u8, size: usize) {
    // SAFETY: a live object of that size.
    let bytes = unsafe { std::slice::from_raw_parts(at, size) };
    let mut random = Random::new(number as u64);
    assert!(bytes.iter().all(|&byte| byte == random.next() as u8), "object {number} of {size}");
}

fn stats() -> deepheap::Stats {
    deepheap::stats().expect("it runs")
}

/// `count` objects of random sizes up to `most`, with their sizes.
fn many(random: &mut Random, count: usize, most: usize) -> Vec<(*mut u8, usize)> {
    (0..count)
        .map(|number| {
            let size = 1 + random.below(most);
            (filled(number, size), size)
        })
        .collect()
}

#[test]
fn objects_of_any_size_keep_their_bytes() {
    play("objects_of_any_size_keep_their_bytes", CONF, || {
        let mut random = Random::new(seed());
        for (count, most) in [(200_000, 200), (40_000, PAGE), (4000, 20_000), (30, 1 << 20)] {
            let list = many(&mut random, count, most);
            for (number, &(at, size)) in list.iter().enumerate() {
                check(number, at, size);
                if size >= 128 {
                    assert_eq!(at as usize % PAGE, 0);
                }
                let usable = deepheap::usable_size(at).expect("live");
                assert!((size..size + 8).contains(&usable), "{usable} for {size}");
            }
            let stored = stats();
            assert!(stored.evictions() > 0 && stored.device_write_bytes > 0, "{stored:?}");
            for &(at, _) in &list {
                // SAFETY: live until now.
                unsafe { deepheap::free(at) };
            }
            assert!(soon(PATIENCE, || stats().stored_bytes < 4 << 20));
        }
    });
}

#[test]
fn a_thousand_sizes_at_once_are_packed_well() {
    play("a_thousand_sizes_at_once_are_packed_well", CONF, || {
        let mut bytes = 0;
        let list: Vec<_> = (0..60_000)
            .map(|number| {
                let size = 4 * (number % 1000) + 4;
                bytes += size;
                (filled(number, size), size)
            })
            .collect();
        // Objects of more than half a block have it to themselves and to what small ones there are.
        let written = stats().device_write_bytes;
        assert!(written < bytes as u64 * 5 / 4, "{written} for {bytes}");
        list.iter().enumerate().for_each(|(number, &(at, size))| check(number, at, size));
    });
}

#[test]
fn arrays_have_a_page_for_each_element_and_are_freed_whole() {
    play("arrays_have_a_page_for_each_element_and_are_freed_whole", CONF, || {
        for (count, size) in [(50_000, 128), (20_000, 1000), (10_000, 5000), (1_000_000, 24)] {
            let array = objects::allocate(count, size);
            assert!(!array.is_null());
            let stride = objects::stride(size);
            // SAFETY: element `index` of a live array.
            let element = |index: usize| unsafe { array.add(index * stride) };
            for index in 0..count {
                // SAFETY: a live element of that size.
                unsafe { element(index).write_bytes(index as u8 | 1, size) };
            }
            for index in (0..count).step_by(7) {
                let mut last = 0u8;
                // SAFETY: as above.
                unsafe {
                    assert_eq!(*element(index), index as u8 | 1);
                    assert_eq!(objects::read(element(index), size - 1, &mut last, 1), Ok(()));
                }
                assert_eq!(last, index as u8 | 1);
            }
            // SAFETY: live until now.
            unsafe { deepheap::free(array) };
            assert!(soon(PATIENCE, || stats().stored_bytes < 4 << 20), "{size}");
        }
    });
}

#[test]
fn objects_freed_while_cold_cost_no_read_and_no_byte() {
    play("objects_freed_while_cold_cost_no_read_and_no_byte", CONF, || {
        let list = many(&mut Random::new(seed()), 100_000, 1000);
        let before = stats();
        for &(at, _) in &list {
            // SAFETY: live until now.
            unsafe { deepheap::free(at) };
        }
        let after = stats();
        assert_eq!(after.device_reads, before.device_reads);
        assert_eq!(after.faults(), before.faults());
        assert!(after.stored_bytes < before.stored_bytes / 8, "{} left", after.stored_bytes);
    });
}

#[test]
fn realloc_keeps_the_bytes_and_the_object_is_still_one() {
    play("realloc_keeps_the_bytes_and_the_object_is_still_one", CONF, || {
        for size in [1, 100, 128, 1000, 4000, 9000] {
            let at = filled(size, size);
            // SAFETY: live; dead if it moves.
            let moved = unsafe { deepheap::realloc(at, 3 * size + 500) };
            assert!(!moved.is_null());
            check(size, moved, size);
            assert_eq!(moved as usize % PAGE, 0, "no object any more");
            // SAFETY: live until now.
            unsafe { deepheap::free(moved) };
        }
    });
}

#[test]
fn realloc_of_an_array_keeps_its_elements() {
    play("realloc_of_an_array_keeps_its_elements", CONF, || {
        let stride = objects::stride(300);
        let mut array = objects::allocate(100, 300);
        for count in [100, 30_000, 50] {
            // SAFETY: live elements of 300 bytes; dead if the array moves.
            unsafe {
                array = deepheap::realloc(array, count * stride);
                assert!(!array.is_null());
                for index in 0..count.min(50) {
                    let element = array.add(index * stride);
                    if count == 100 {
                        element.write_bytes(index as u8, 300);
                    }
                    assert_eq!(*element.add(299), index as u8, "element {index} of {count}");
                }
            }
        }
        // SAFETY: live until now.
        unsafe { deepheap::free(array) };
    });
}

#[test]
fn a_double_free_of_an_object_is_told() {
    let ending = watch("a_double_free_of_an_object_is_told", CONF, || {
        let at = filled(1, 500);
        // SAFETY: none: that is what is tested.
        unsafe {
            deepheap::free(at);
            deepheap::free(at);
        }
    });
    assert!(!ending.status.success());
    assert!(ending.said.contains("not a live allocation"), "{}", ending.said);
}

#[test]
fn what_cannot_be_is_answered_with_null() {
    play("what_cannot_be_is_answered_with_null", CONF, || {
        assert!(objects::allocate(usize::MAX, 8).is_null());
        assert!(objects::allocate(usize::MAX / 4096, 4096).is_null());
        assert!(objects::allocate(1, usize::MAX).is_null());
        assert!(objects::allocate(1 << 20, 4096).is_null(), "more than the store can hold");
        assert!(!objects::allocate(0, 0).is_null());
        assert!(!filled(3, 300).is_null());
    });
}

#[test]
fn a_store_full_of_objects_answers_with_null_and_serves_again() {
    play("a_store_full_of_objects_answers_with_null_and_serves_again", CONF, || {
        let mut lists = Vec::new();
        for size in [PAGE, 2 * PAGE, 700] {
            let mut list = Vec::new();
            loop {
                let at = objects::allocate(1, size);
                if at.is_null() {
                    break;
                }
                list.push(at);
            }
            lists.push(list);
        }
        // What is missing is compared with what was won, not with what was there before.
        for at in lists[0].drain(..3) {
            // SAFETY: live until now.
            unsafe { deepheap::free(at) };
        }
        assert!(objects::allocate(1000, PAGE).is_null());
        let all: usize = lists.iter().map(Vec::len).sum();
        assert!(all > 50_000, "{all} objects in 400 MB");
        for at in lists.into_iter().flatten() {
            // SAFETY: live until now.
            unsafe { deepheap::free(at) };
        }
        // Nobody allocates objects any more: their promises go to memory pages.
        let memory = deepheap::malloc(250 << 20);
        assert!(!memory.is_null());
        // SAFETY: live until now.
        unsafe { deepheap::free(memory) };
        assert!(!objects::allocate(30_000, PAGE).is_null(), "and back to objects");
    });
}

#[test]
fn what_realloc_makes_smaller_is_aligned_as_ever() {
    play("what_realloc_makes_smaller_is_aligned_as_ever", CONF, || {
        for size in 1..100 {
            let at = filled(1, 1000);
            // SAFETY: live; dead if it moves.
            let moved = unsafe { deepheap::realloc(at, size) };
            assert_eq!(moved as usize % 16, 0, "{size} bytes");
        }
    });
}
