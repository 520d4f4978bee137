//! Fork: the child of a busy parent has a whole heap.

#![allow(clippy::unwrap_used)]

mod region;

use std::sync::atomic::{AtomicBool, Ordering};

use region::{Random, Recycling, Region, stamp, stamp_holds};

const FORKS: usize = 40;

/// Forks while threads allocate sizes up to `most`; `checked`: the child checks every invariant.
/// (A run that a thread was freeing at the fork is lost to the child, and its counts with it.)
/// With `objects`, every other allocation is an object.
fn fork_under_load(most: usize, checked: bool, objects: bool) {
    let region = Region::new(40, Recycling::Keep);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (region, done) = (&region, &done);
            scope.spawn(move || {
                let mut cache = region.cache();
                churn(region, &mut cache, thread, most, objects, || done.load(Ordering::Relaxed));
                region.heap.thread_exit(cache);
            });
        }
        let mut cache = region.cache();
        let kept = region.allocate(&mut cache, 1000, 1).unwrap().ptr;
        stamp(kept, 1000, 77);
        let mut failed = None;
        for round in 0..FORKS {
            region.heap.fork_prepare();
            // SAFETY: the child calls nothing but the heap, which is what this test is about.
            let child = unsafe { libc::fork() };
            if child == 0 {
                region.heap.after_fork();
                region.heap.reclaim_orphans(Some(&cache));
                region.drain_freed();
                let mut steps = 0;
                churn(&region, &mut cache, round as u64 + 50, most, objects, || {
                    steps += 1;
                    steps > 3000
                });
                assert!(stamp_holds(kept, 1000, 77));
                region.free(&mut cache, kept);
                region.heap.thread_exit(cache);
                if checked {
                    region.check();
                }
                // SAFETY: ends the child at once, running nothing of the test harness.
                unsafe { libc::_exit(0) };
            }
            region.heap.after_fork();
            let mut status = -1;
            // SAFETY: `child` is ours, `status` outlives the call.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            if (waited, status) != (child, 0) {
                failed = Some(round);
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(failed, None, "the child of that round failed");
    });
    region.drain_freed();
    region.check();
}

fn churn(
    region: &Region,
    cache: &mut deepheap_heap::ThreadCache,
    seed: u64,
    most: usize,
    objects: bool,
    mut done: impl FnMut() -> bool,
) {
    let mut random = Random::new(seed);
    let mut held = [(0, 0, 0); 64];
    while !done() {
        let slot = &mut held[random.below(64)];
        if slot.0 != 0 {
            assert!(stamp_holds(slot.0, slot.1, slot.2), "seed {seed}");
            region.free(cache, slot.0);
        }
        let size = random.size().min(most);
        let tag = random.below(255) as u8 + 1;
        let allocated = if objects && random.below(2) == 0 {
            region.allocate_objects(1, size)
        } else {
            region.allocate(cache, size, 1)
        };
        let ptr = allocated.unwrap().ptr;
        stamp(ptr, size, tag);
        *slot = (ptr, size, tag);
    }
    for (ptr, ..) in held.into_iter().filter(|slot| slot.0 != 0) {
        region.free(cache, ptr);
    }
}

#[test]
fn the_child_of_a_busy_parent_has_a_whole_heap() {
    fork_under_load(16 << 10, true, false);
}

#[test]
fn the_child_can_go_on_whatever_sizes_were_in_flight() {
    fork_under_load(3 << 20, false, false);
}

#[test]
fn the_child_can_go_on_with_objects() {
    fork_under_load(100 << 10, false, true);
}
