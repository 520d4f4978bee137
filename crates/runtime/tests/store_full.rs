//! P5: out of store space, `malloc` answers NULL; nothing stored is lost, and room comes back.

mod scene;

use scene::memory::{Collection, Object, PAGE, Random, seed};
use scene::{play, watch};

const SMALL: &str = "ram:16M,store_size:64M";
const STRICT: &str = "ram:16M,store_size:64M,overcommit:strict";

fn stats() -> deepheap::Stats {
    deepheap::stats().expect("the runtime runs")
}

#[test]
fn a_full_store_loses_nothing_and_freeing_makes_room_again() {
    fill_and_free("a_full_store_loses_nothing_and_freeing_makes_room_again", SMALL);
}

#[test]
fn a_full_store_loses_nothing_if_all_is_promised_at_allocation() {
    fill_and_free("a_full_store_loses_nothing_if_all_is_promised_at_allocation", STRICT);
}

fn fill_and_free(test: &str, conf: &str) {
    play(test, conf, || {
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

/// Sets `ulimit -f`.
fn limit_file_size(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads one rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

#[test]
fn a_limit_on_the_size_of_files_limits_the_store() {
    play("a_limit_on_the_size_of_files_limits_the_store", "ram:16M", || {
        limit_file_size(48 << 20);
        let full = Collection::until_full(seed(), 3 * PAGE);
        assert!(full.bytes() > 16 << 20, "a store of 48 MiB holds {}", full.bytes());
        assert!(stats().store_capacity_bytes <= 48 << 20);
        full.check();
    });
}

#[test]
fn a_limit_on_the_size_of_files_that_comes_later_does_not_end_the_program() {
    let test = "a_limit_on_the_size_of_files_that_comes_later_does_not_end_the_program";
    play(test, "ram:16M,store_size:1G", || {
        let seed = seed();
        let before = Collection::filled(seed, 10_000, PAGE);
        limit_file_size(stats().store_used_bytes + (4 << 20));
        let after = Collection::until_full(!seed >> 1, 3 * PAGE);
        before.check();
        after.check();
    });
}

#[test]
fn most_of_a_small_store_can_be_used_and_its_end_is_told_once() {
    let name = "most_of_a_small_store_can_be_used_and_its_end_is_told_once";
    use_most(name, "ram:16M,store_size:45M");
}

#[test]
fn most_of_a_small_strict_store_can_be_used_and_its_end_is_told_once() {
    let name = "most_of_a_small_strict_store_can_be_used_and_its_end_is_told_once";
    use_most(name, "ram:16M,store_size:45M,overcommit:strict");
}

fn use_most(name: &str, conf: &str) {
    let ending = watch(name, conf, || {
        let full = Collection::until_full(seed(), PAGE);
        eprintln!("{} pages until full", full.objects.len());
        assert!(full.bytes() >= (45 << 20) / 100 * 85, "{} bytes", full.bytes());
        assert!(Object::new(1 << 20).is_none());
        full.check();
        full.free();
        Collection::until_full(seed(), 3 * PAGE).check();
    });
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
    let lines: Vec<_> = ending.said.lines().filter(|line| line.contains("store is full")).collect();
    assert_eq!(lines.len(), 1, "{}", ending.said);
    for words in ["of its 45.0 MiB", "for collection", "--store-size"] {
        assert!(lines[0].contains(words), "no '{words}' in {}", lines[0]);
    }
}

#[test]
fn an_allocation_that_no_store_of_this_size_holds_is_refused_with_what_to_change() {
    let name = "an_allocation_that_no_store_of_this_size_holds_is_refused_with_what_to_change";
    let words = "an allocation of more than 192 MiB is refused, neither RAM nor the store holds";
    is_refused(name, "ram:16M,store_size:45M", 200 << 20, &[words, "--store-size"]);
}

#[test]
fn an_allocation_whose_tables_fill_the_budget_is_refused_with_what_to_change() {
    let name = "an_allocation_whose_tables_fill_the_budget_is_refused_with_what_to_change";
    let words = "the RAM budget of 16.0 MiB has no room for their tables";
    is_refused(name, "ram:16M,store_size:5G", 9 << 29, &[words, "--ram"]);
}

fn is_refused(name: &str, conf: &str, size: usize, words: &[&str]) {
    let ending = watch(name, conf, || {
        for _ in 0..3 {
            assert!(Object::new(size).is_none());
        }
        Collection::filled(seed(), 100, PAGE).check();
    });
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
    let lines: Vec<_> = ending.said.lines().filter(|line| line.contains("refused")).collect();
    assert_eq!(lines.len(), 1, "{}", ending.said);
    assert!(words.iter().all(|word| lines[0].contains(word)), "{}", lines[0]);
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
    answer_many_threads("many_threads_at_the_end_of_the_store_all_get_an_answer", SMALL);
}

#[test]
fn many_threads_at_the_end_of_a_strict_store_all_get_an_answer() {
    answer_many_threads("many_threads_at_the_end_of_a_strict_store_all_get_an_answer", STRICT);
}

fn answer_many_threads(test: &str, conf: &str) {
    play(test, conf, || {
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
        for (index, object) in objects.iter().enumerate() {
            assert_eq!(object.get(0), index as u64 + 1);
            assert_eq!(object.get(object.size() / 8 - 1), !(index as u64));
        }
        let cost = scene::process::cost() - before;
        eprintln!("{} MiB under a budget of 16 MiB, which took {cost} bytes", objects.len());
        assert!(cost < (16 << 20) * 105 / 100, "{cost} bytes under a budget of 16 MiB");
    });
}
