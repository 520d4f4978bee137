//! P5: out of store space, `malloc` answers NULL; nothing stored is lost, and room comes back.

mod scene;

use scene::memory::{Collection, Object, PAGE, Random, seed};
use scene::play;

const SMALL: &str = "ram:16M,store_size:64M";

fn stats() -> deepheap::Stats {
    deepheap::stats().expect("the runtime runs")
}

#[test]
fn a_full_store_loses_nothing_and_freeing_makes_room_again() {
    play("a_full_store_loses_nothing_and_freeing_makes_room_again", SMALL, || {
        let seed = seed();
        let mut full = Collection::until_full(seed, 3 * PAGE);
        eprintln!("{} MiB until full", full.bytes() >> 20);
        assert!(full.bytes() > 32 << 20, "a store of 64 MiB holds {}", full.bytes());
        full.check();
        for _ in 0..3 {
            let half = full.objects.len() / 2;
            let count = full.objects.len() - half;
            full.objects.drain(half..).for_each(Object::free);
            full.check();
            let again = Collection::filled(!seed >> 1, count, 3 * PAGE);
            assert!(Object::new(4 << 20).is_none(), "there was room for more");
            again.check();
            full.check();
            again.free();
            let mut more = Collection::filled(seed + half as u64, count, 3 * PAGE);
            full.objects.append(&mut more.objects);
        }
        full.check();
        full.free();
        Collection::filled(seed, 7000, PAGE).free();
    });
}

#[test]
fn failing_allocations_cost_nothing() {
    play("failing_allocations_cost_nothing", SMALL, || {
        let full = Collection::until_full(seed(), PAGE);
        let before = (stats().committed_bytes, scene::process::cost());
        for round in 0..2000 {
            assert!(Object::new(1 << 20).is_none());
            assert!(Object::new((1 << 20) << (round % 20)).is_none());
            assert!(deepheap::calloc(1 << 20, 1 << (round % 30)).is_null());
            assert!(Object::aligned(1 << (12 + round % 14), 2 << 20).is_none());
        }
        let after = (stats().committed_bytes, scene::process::cost());
        assert!(after.0 <= before.0 + (1 << 20), "{before:?} {after:?}");
        assert!(after.1 <= before.1 + (2 << 20), "{before:?} {after:?}");
        full.check();
    });
}

#[test]
fn sizes_that_cannot_be_are_refused_and_the_heap_goes_on() {
    play(
        "sizes_that_cannot_be_are_refused_and_the_heap_goes_on",
        "ram:16M,store_size:128M",
        || {
            let keep = Collection::filled(seed(), 5000, PAGE);
            for size in
                [usize::MAX, isize::MAX as usize, 1 << 62, 1 << 47, 1 << 43, 1 << 42, 3 << 40]
            {
                assert!(deepheap::malloc(size).is_null(), "{size:#x}");
                assert!(deepheap::calloc(1, size).is_null(), "{size:#x}");
                assert!(deepheap::calloc(size, 16).is_null(), "{size:#x}");
                assert!(deepheap::aligned_alloc(4096, size).is_null(), "{size:#x}");
                let mut small = Object::new(100).expect("room");
                small.fill(size as u64);
                assert!(!small.resize(size), "{size:#x}");
                small.check(size as u64);
                small.free();
            }
            for power in 4..27 {
                let object = Object::aligned(1 << power, 10_000);
                if power > 25 {
                    assert!(object.is_none_or(|object| object.address() % (1 << power) == 0));
                    continue;
                }
                let object = object.expect("an alignment of up to 32 MiB");
                assert_eq!(object.address() % (1 << power), 0);
                object.fill(power);
                object.check(power);
                object.free();
            }
            keep.check();
        },
    );
}

#[test]
fn many_threads_at_the_end_of_the_store_all_get_an_answer() {
    play("many_threads_at_the_end_of_the_store_all_get_an_answer", SMALL, || {
        let seed = seed();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                scope.spawn(move || {
                    let mut random = Random::new(seed + thread);
                    let mut mine: Vec<(Object, u64)> = Vec::new();
                    let mut refused = 0;
                    for step in 0..6000u64 {
                        let size = if step % 3 == 0 { 40_000 } else { 64 + random.below(6000) };
                        match Object::new(size) {
                            Some(object) => {
                                let seed = random.next();
                                object.fill(seed);
                                mine.push((object, seed));
                            }
                            None => {
                                refused += 1;
                                for _ in 0..8.min(mine.len()) {
                                    let index = random.below(mine.len());
                                    let (object, seed) = mine.swap_remove(index);
                                    object.check(seed);
                                    object.free();
                                }
                            }
                        }
                    }
                    assert!(refused > 0, "the store was never full");
                    mine.iter().for_each(|(object, seed)| object.check(*seed));
                });
            }
        });
    });
}

#[test]
fn a_budget_that_tables_would_fill_refuses_more() {
    let conf = "ram:16M,store_size:6G";
    play("a_budget_that_tables_would_fill_refuses_more", conf, || {
        let before = scene::process::cost();
        let mut objects = Vec::new();
        while let Some(object) = Object::new(1 << 20) {
            object.set(0, objects.len() as u64 + 1);
            object.set(object.size() / 8 - 1, !(objects.len() as u64));
            objects.push(object);
            assert!(objects.len() < 5000, "never refused, at {} over", scene::process::cost());
        }
        eprintln!("{} MiB under a budget of 16 MiB", objects.len());
        for (index, object) in objects.iter().enumerate() {
            assert_eq!(object.get(0), index as u64 + 1);
            assert_eq!(object.get(object.size() / 8 - 1), !(index as u64));
        }
        let cost = scene::process::cost() - before;
        assert!(cost < (16 << 20) * 105 / 100, "{cost} bytes under a budget of 16 MiB");
    });
}
