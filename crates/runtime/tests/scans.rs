//! Scans: who goes through memory in order, or in the order of the last time, seldom waits, and
//! finds every byte.

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

/// A list of a page each, in no order: each page tells which comes next.
fn walk_list(array: &Object, start: usize, read: impl Fn(usize)) {
    let mut page = start;
    loop {
        read(page);
        page = array.get(page * PAGE / 8) as usize;
        if page == start {
            return;
        }
    }
}

#[test]
fn a_list_in_no_order_is_read_ahead_when_it_is_walked_again() {
    play("a_list_in_no_order_is_read_ahead_when_it_is_walked_again", CONF, || {
        let seed = seed();
        let array = Object::new(128 * MIB).expect("room");
        array.fill(seed); // so that it cannot be compressed
        let pages = array.size() / PAGE;
        let mut order: Vec<usize> = (0..pages).collect();
        let mut random = Random::new(seed);
        for last in (1..pages).rev() {
            order.swap(last, random.below(last + 1));
        }
        for at in 0..pages {
            array.set(order[at] * PAGE / 8, order[(at + 1) % pages] as u64);
            array.set(order[at] * PAGE / 8 + 1, seed ^ order[at] as u64);
        }
        let round = || {
            let before = deepheap::stats().expect("it runs");
            let seen = std::cell::Cell::new(0);
            walk_list(&array, order[0], |page| {
                assert_eq!(array.get(page * PAGE / 8 + 1), seed ^ page as u64);
                seen.set(seen.get() + 1);
            });
            assert_eq!(seen.get(), pages);
            let after = deepheap::stats().expect("it runs");
            let brought = after.sequences_brought - before.sequences_brought;
            let used = after.sequences_used - before.sequences_used;
            (brought, used, after.fault_stored.count - before.fault_stored.count)
        };
        let (_, _, stored) = round();
        for walk in 2..4 {
            let (brought, used, now) = round();
            assert!(used > pages as u64 / 4, "walk {walk}: {used} of {pages} were read ahead");
            assert!(used > brought * 9 / 10, "walk {walk}: {used} of {brought} were of use");
            assert!(now < stored * 2 / 3, "walk {walk}: {now} were waited for, at first {stored}");
        }
    });
}

#[test]
fn random_access_has_next_to_nothing_read_because_it_followed_before() {
    play("random_access_has_next_to_nothing_read_because_it_followed_before", CONF, || {
        const TOUCHES: usize = 60_000;
        let seed = seed();
        let array = Object::new(128 * MIB).expect("room");
        array.fill(seed);
        let mut random = Random::new(seed);
        for _ in 0..TOUCHES {
            let word = random.below(array.size() / PAGE) * PAGE / 8;
            array.set(word, array.get(word));
        }
        let brought = deepheap::stats().expect("it runs").sequences_brought;
        assert!(brought < TOUCHES as u64 / 200, "{brought} brought");
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
