//! Scans: who goes through memory in order seldom waits, and finds every byte.

mod scene;

use scene::memory::{Object, PAGE, Random, seed};
use scene::play;

const CONF: &str = "ram:64M,store_size:1G";
const MIB: usize = 1 << 20;

#[test]
fn a_scan_waits_for_few_of_its_pages() {
    play("a_scan_waits_for_few_of_its_pages", CONF, || {
        let seed = seed();
        let array = Object::new(256 * MIB).expect("room");
        array.fill(seed);
        let before = deepheap::stats().expect("it runs");
        array.check(seed);
        let after = deepheap::stats().expect("it runs");
        let pages = (array.size() / PAGE) as u64;
        // Part of the array is still in RAM.
        let ahead = after.prefetched - before.prefetched;
        assert!(ahead > pages / 2, "{ahead} of {pages} pages were read ahead");
        let faults = after.faults() - before.faults();
        assert!(faults < pages / 8, "{faults} faults on {pages} pages");
    });
}

#[test]
fn scans_that_take_turns_up_and_down_wait_for_few_of_their_pages() {
    play("scans_that_take_turns_up_and_down_wait_for_few_of_their_pages", CONF, || {
        const COUNT: usize = 5;
        let seed = seed();
        let arrays: [Object; COUNT] = core::array::from_fn(|_| {
            let array = Object::new(64 * MIB).expect("room");
            array.fill(seed);
            array
        });
        let pages = arrays[0].size() / PAGE;
        let before = deepheap::stats().expect("it runs");
        for step in 0..pages {
            for (index, array) in arrays.iter().enumerate() {
                let page = if index % 2 == 0 { step } else { pages - 1 - step };
                let word = page * PAGE / 8;
                array.set(word, array.get(word) ^ index as u64);
                array.set(word, array.get(word) ^ index as u64);
            }
        }
        let after = deepheap::stats().expect("it runs");
        let (pages, faults) = ((COUNT * pages) as u64, after.faults() - before.faults());
        assert!(faults < pages / 8, "{faults} faults on {pages} pages");
        for array in &arrays {
            array.check(seed);
        }
    });
}

#[test]
fn a_walk_in_equal_steps_waits_for_few_of_its_pages() {
    play("a_walk_in_equal_steps_waits_for_few_of_its_pages", CONF, || {
        const STEP: usize = 16;
        let seed = seed();
        let array = Object::new(192 * MIB).expect("room");
        array.fill(seed);
        let pages = array.size() / PAGE;
        let before = deepheap::stats().expect("it runs");
        for column in 0..STEP {
            for page in (column..pages).step_by(STEP) {
                let word = page * PAGE / 8;
                array.set(word, array.get(word) ^ 1);
                array.set(word, array.get(word) ^ 1);
            }
        }
        let after = deepheap::stats().expect("it runs");
        let asked = after.strides_asked - before.strides_asked;
        assert!(asked > pages as u64 / 2, "{asked} of {pages} pages were asked for");
        let waited = after.fault_stored.count - before.fault_stored.count;
        assert!(waited < pages as u64 / 2, "{waited} of {pages} pages were waited for");
        array.check(seed);
    });
}

#[test]
fn scans_of_many_threads_that_others_interrupt_find_every_byte() {
    play("scans_of_many_threads_that_others_interrupt_find_every_byte", CONF, || {
        let seed = seed();
        let arrays: Vec<Object> = (0..6u64)
            .map(|index| {
                let array = Object::new(40 * MIB).expect("room");
                array.fill(seed + index);
                array
            })
            .collect();
        std::thread::scope(|scope| {
            for (index, array) in arrays.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..3 {
                        array.check(seed + index as u64 + round);
                        array.fill(seed + index as u64 + round + 1);
                        for page in (0..array.size() / PAGE).rev() {
                            let word = page * PAGE / 8;
                            array.set(word, array.get(word));
                        }
                    }
                });
                // Somebody else touches the pages that a scan is about to come to.
                scope.spawn(move || {
                    let mut random = Random::new(seed + 100 + index as u64);
                    for _ in 0..20_000 {
                        let _ = array.get(random.below(array.size() / 8));
                    }
                });
            }
        });
        for (index, array) in arrays.iter().enumerate() {
            array.check(seed + index as u64 + 3);
        }
    });
}
