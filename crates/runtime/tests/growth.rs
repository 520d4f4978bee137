//! Growth: arrays that grow far beyond RAM, and threads that come and go.

mod scene;

use scene::memory::{Object, PAGE, Random, seed};
use scene::play;
use scene::process::cost;

const CONF: &str = "ram:24M,store_size:1G";
const MIB: usize = 1 << 20;

#[test]
fn an_array_that_grows_from_a_page_to_300_mib_keeps_every_byte() {
    play("an_array_that_grows_from_a_page_to_300_mib_keeps_every_byte", CONF, || {
        let seed = seed();
        let mut random = Random::new(seed);
        let mut array = Object::new(PAGE).expect("room");
        array.fill(seed);
        // Something beside it, so that it can seldom grow where it is.
        let mut beside = Vec::new();
        while array.size() < 300 * MIB {
            let old = array.size();
            let more = array.size() / 4 + random.below(array.size() / 2);
            let size = (old + more) / 8 * 8;
            assert!(array.resize(size), "no room for {size}");
            // What was there is there; the rest is anybody's until written.
            array.check_bytes(seed, old);
            array.fill_from(seed, old);
            if beside.len() < 40 {
                let other = Object::new(16 + random.below(2 * MIB)).expect("room");
                other.fill(seed + beside.len() as u64);
                beside.push(other);
            }
        }
        array.check(seed);
        while array.size() > PAGE {
            let size = array.size() / 3 / 8 * 8;
            assert!(array.resize(size.max(64)));
            array.check(seed);
        }
        for (index, other) in beside.iter().enumerate() {
            other.check(seed + index as u64);
        }
    });
}

#[test]
fn two_arrays_that_grow_in_turns_keep_every_byte() {
    play("two_arrays_that_grow_in_turns_keep_every_byte", CONF, || {
        let seed = seed();
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                scope.spawn(move || {
                    let seed = seed + thread;
                    let mut array = Object::new(100 + thread as usize).expect("room");
                    array.fill(seed);
                    while array.size() < 50 * MIB {
                        let old = array.size();
                        assert!(array.resize(old * 5 / 4 + 8));
                        array.check_bytes(seed, old);
                        array.fill(seed);
                    }
                    array.check(seed);
                    array.free();
                });
            }
        });
    });
}

#[test]
fn ten_thousand_threads_that_come_and_go_leave_nothing() {
    play("ten_thousand_threads_that_come_and_go_leave_nothing", CONF, || {
        let seed = seed();
        let generation = |first: u64, count: u64| {
            for batch in 0..count / 10 {
                // Ten hold their objects at once, and have ended before the next ten begin: a scope
                // would wait for their work only. So the first batches take what any takes at most.
                let all_hold = &std::sync::Barrier::new(10);
                std::thread::scope(|scope| {
                    let begin = |thread| {
                        let seed = seed + first + batch * 10 + thread;
                        scope.spawn(move || {
                            let objects: Vec<Object> = [24, 200, 3000, PAGE, 50_000]
                                .map(|size| Object::new(size).expect("room"))
                                .into();
                            for (index, object) in objects.iter().enumerate() {
                                object.fill(seed + index as u64);
                            }
                            all_hold.wait();
                            for (index, object) in objects.into_iter().enumerate() {
                                object.check(seed + index as u64);
                                object.free();
                            }
                        })
                    };
                    let threads: Vec<_> = (0..10).map(begin).collect();
                    threads.into_iter().for_each(|thread| thread.join().expect("it ends well"));
                });
            }
        };
        let figures = || {
            let stats = deepheap::stats().expect("stats");
            (stats.allocated_bytes, stats.committed_bytes, stats.heap_metadata_bytes, cost() as u64)
        };
        generation(0, 1000);
        let before = figures();
        generation(1000, 9000);
        let after = figures();
        eprintln!("{before:?} {after:?}");
        for (before, after) in
            [(before.0, after.0), (before.1, after.1), (before.2, after.2), (before.3, after.3)]
        {
            assert!(after <= before + MIB as u64, "{before} bytes became {after}");
        }
    });
}
