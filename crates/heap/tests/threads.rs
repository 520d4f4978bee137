//! Threads: frees across threads, and the evictor's question asked while threads allocate.

#![allow(clippy::unwrap_used)]

mod region;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use deepheap_heap::{Freed, PAGE, PageNo};
use region::{Random, Recycling, Region, stamp, stamp_holds};

#[test]
fn allocations_freed_by_other_threads_are_never_shared_by_two() {
    pass_around(false);
}

#[test]
fn objects_freed_by_other_threads_are_never_shared_by_two() {
    pass_around(true);
}

/// Threads free what others allocated; with `objects`, objects.
fn pass_around(objects: bool) {
    const THREADS: usize = 4;
    const ROUNDS: usize = 60_000;
    for recycling in [Recycling::Keep, Recycling::Discard] {
        let region = Region::new(16, recycling);
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| mpsc::sync_channel::<(usize, usize, u8)>(500)).unzip();
        std::thread::scope(|scope| {
            for (thread, inbox) in receivers.into_iter().enumerate() {
                let (region, next) = (&region, senders[(thread + 1) % THREADS].clone());
                scope.spawn(move || {
                    let mut random = Random::new(thread as u64 + 7);
                    let mut cache = region.cache();
                    let mut own = Vec::new();
                    for round in 0..ROUNDS {
                        let size = random.size().min(300_000);
                        let tag = (round % 251) as u8 + 1;
                        let allocated = match objects {
                            true => region.allocate_objects(1, size),
                            false => region.allocate(&mut cache, size, 1),
                        };
                        let ptr = allocated.unwrap().ptr;
                        stamp(ptr, size, tag);
                        if let Err(full) = next.try_send((ptr, size, tag)) {
                            let (mpsc::TrySendError::Full(kept)
                            | mpsc::TrySendError::Disconnected(kept)) = full;
                            own.push(kept);
                        }
                        while own.len() > 100 {
                            let (ptr, size, tag) = own.swap_remove(random.below(own.len()));
                            assert!(stamp_holds(ptr, size, tag), "seed {}", thread + 7);
                            region.free(&mut cache, ptr);
                        }
                        for (ptr, size, tag) in inbox.try_iter().take(3) {
                            assert!(stamp_holds(ptr, size, tag), "seed {}", thread + 7);
                            region.free(&mut cache, ptr);
                        }
                    }
                    drop(next);
                    for (ptr, size, tag) in own.into_iter().chain(inbox.try_iter()) {
                        assert!(stamp_holds(ptr, size, tag));
                        region.free(&mut cache, ptr);
                    }
                    // What arrives now was sent to nobody: free it from here too.
                    while let Ok((ptr, ..)) = inbox.try_recv() {
                        region.free(&mut cache, ptr);
                    }
                    region.heap.thread_exit(cache);
                    inbox
                });
            }
            drop(senders);
        });
        region.drain_freed();
        region.check();
    }
}

#[test]
fn a_producer_and_a_consumer_do_not_grow_the_heap() {
    const OBJECTS: usize = 400_000;
    let region = Region::new(16, Recycling::Keep);
    let (sender, receiver) = mpsc::sync_channel::<usize>(2000);
    std::thread::scope(|scope| {
        let region = &region;
        scope.spawn(move || {
            let mut cache = region.cache();
            for object in 0..OBJECTS {
                let size = 16 + object % 200;
                sender.send(region.allocate(&mut cache, size, 1).unwrap().ptr).unwrap();
            }
            region.heap.thread_exit(cache);
        });
        scope.spawn(move || {
            let mut cache = region.cache();
            for ptr in receiver {
                region.free(&mut cache, ptr);
            }
            region.heap.thread_exit(cache);
        });
    });
    region.drain_freed();
    assert_eq!(region.heap.allocated_bytes(), 0);
    assert!(region.heap.committed_pages() * PAGE < 8 << 20, "{}", region.heap.committed_pages());
    region.check();
}

/// A place where an owner publishes a live object: address and size while it lives, 0 otherwise,
/// and a count of changes.
#[derive(Default)]
struct Slot {
    changes: AtomicU64,
    ptr: AtomicUsize,
    size: AtomicUsize,
}

#[test]
fn page_is_free_never_says_so_of_a_page_with_a_live_object() {
    ask_about_pages(false);
}

#[test]
fn page_is_free_never_says_so_of_a_live_objects_page() {
    ask_about_pages(true);
}

/// Tells the others to end, also when an assertion fails: the scope waits for them.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads allocate and free, objects or memory, while another asks about their pages.
fn ask_about_pages(objects: bool) {
    const OWNERS: usize = 3;
    const SLOTS: usize = 64;
    const ASKED: usize = 100_000;
    let region = Region::new(16, Recycling::Keep);
    region.heap.report_free_pages(true);
    let slots: Vec<Slot> = (0..OWNERS * SLOTS).map(|_| Slot::default()).collect();
    let done = AtomicBool::new(false);
    let (mut live, mut free) = (0, 0);
    std::thread::scope(|scope| {
        for (owner, slots) in slots.chunks(SLOTS).enumerate() {
            let (region, done) = (&region, &done);
            scope.spawn(move || {
                let mut random = Random::new(owner as u64 + 70);
                let mut cache = region.cache();
                let mut held = [0; SLOTS];
                // Phases of one size each make slabs run empty and change their class.
                let mut size = 100;
                while !done.load(Ordering::Relaxed) {
                    if random.below(200) == 0 {
                        size = random.size().min(200_000);
                    }
                    let at = random.below(SLOTS);
                    let slot = &slots[at];
                    slot.changes.fetch_add(1, Ordering::SeqCst);
                    slot.ptr.store(0, Ordering::SeqCst);
                    if held[at] != 0 {
                        match region.heap.free(&mut cache, held[at]) {
                            Freed::Run(run) => region.recycle(run),
                            Freed::Pages(pages) => assert!(!pages.as_slice().is_empty()),
                            Freed::Objects(freed) => region.end_objects(freed),
                            Freed::Done => {}
                            Freed::NotAllocated => panic!("{:#x} is live", held[at]),
                        }
                    }
                    let allocated = match objects {
                        true => region.allocate_objects(1, size),
                        false => region.allocate(&mut cache, size, 1),
                    };
                    held[at] = allocated.unwrap().ptr;
                    slot.size.store(size, Ordering::SeqCst);
                    slot.ptr.store(held[at], Ordering::SeqCst);
                    slot.changes.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let _ended = Ended(&done);
        let mut random = Random::new(99);
        let start = Instant::now();
        // Twenty seconds, or longer on a machine so slow that too little was asked by then.
        let is_enough = |live: usize, free: usize| {
            live >= ASKED
                || start.elapsed() > Duration::from_secs(20) && live > ASKED / 100 && free > 0
        };
        while !is_enough(live, free) && start.elapsed() < Duration::from_secs(240) {
            let slot = &slots[random.below(slots.len())];
            let before = slot.changes.load(Ordering::SeqCst);
            let ptr = slot.ptr.load(Ordering::SeqCst);
            let size = slot.size.load(Ordering::SeqCst);
            // Odd: its owner is about to free what the pointer still names.
            if ptr == 0 || before % 2 == 1 || before != slot.changes.load(Ordering::SeqCst) {
                continue;
            }
            let page = region.page_of(ptr + random.below(size));
            let said_free = region.heap.page_is_free(PageNo::from(page));
            let kept_bytes = region.heap.kept_bytes(PageNo::from(page));
            if slot.changes.load(Ordering::SeqCst) == before {
                assert!(!said_free, "page {page} of a live object of {size} bytes at {ptr:#x}");
                let kept = (ptr + size - (region.base + page * PAGE)).min(PAGE);
                assert!(kept <= kept_bytes, "{kept} bytes of page {page} are kept");
                live += 1;
            }
            free += usize::from(region.heap.page_is_free(PageNo::from(random.below(4096))));
        }
    });
    println!("{live} questions about live objects, {free} free pages seen");
    assert!(live > ASKED / 100 && free > 0);
}
