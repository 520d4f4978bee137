//! Edges: absurd sizes, foreign pointers, double frees, limits, huge runs.

#![allow(clippy::unwrap_used)]

mod region;

use deepheap_heap::{
    Freed, Heap, PAGE, PAGES_PER_SPAN, PageNo, SPAN, Shortage, Shrunk, ThreadCache,
};
use region::{Recycling, Region};

#[test]
fn absurd_sizes_and_alignments_are_too_large() {
    let region = Region::new(4, Recycling::Keep);
    let mut cache = region.cache();
    let heap = region.heap;
    for size in [usize::MAX, usize::MAX - 15, usize::MAX - PAGE, isize::MAX as usize, 5 * SPAN] {
        for align in [1, 16, 64, PAGE, SPAN] {
            assert_eq!(heap.allocate(&mut cache, size, align), Err(Shortage::TooLarge));
        }
    }
    for align in [0, 3, 2 * SPAN, 1 << 63] {
        assert_eq!(heap.allocate(&mut cache, 1 << 20, align), Err(Shortage::TooLarge));
    }
    let ptr = region.allocate(&mut cache, 1 << 20, 1).unwrap().ptr;
    assert_eq!(heap.grow_in_place(ptr, usize::MAX), Ok(false));
    assert_eq!(heap.grow_in_place(ptr, 5 * SPAN), Ok(false));
    region.check();
}

#[test]
fn a_heap_over_a_bad_region_is_refused() {
    assert!(Heap::new(0, SPAN).is_err());
    assert!(Heap::new(SPAN + PAGE, SPAN).is_err());
    assert!(Heap::new(SPAN, SPAN + PAGE).is_err());
    assert!(Heap::new(SPAN, 0).is_err());
    assert!(Heap::new(SPAN, 1 << 43).is_err());
    assert!(Heap::new(usize::MAX - SPAN + 1, SPAN).is_err());
}

#[test]
fn foreign_pointers_are_refused_and_change_nothing() {
    let region = Region::new(4, Recycling::Keep);
    let mut cache = region.cache();
    let small = region.allocate(&mut cache, 100, 1).unwrap().ptr;
    let large = region.allocate(&mut cache, 3 << 20, 1).unwrap().ptr;
    let end = region.base + 4 * SPAN;
    let local = 0u8;
    let foreign = [
        0,
        1,
        usize::MAX,
        &raw const local as usize,
        region.base - 16,
        region.base - PAGE,
        end,
        end - PAGE,
        end - 16,
        small + 1,
        small + 8,
        small + 16,
        large + 1,
        large + 16,
        large + PAGE,
        large + (3 << 20) - PAGE,
        large + (3 << 20),
    ];
    for ptr in foreign {
        assert_eq!(region.heap.free(&mut cache, ptr), Freed::NotAllocated, "{ptr:#x}");
        assert_eq!(region.heap.usable_size(ptr), None, "{ptr:#x}");
        assert_eq!(region.heap.allocation_size(ptr), None, "{ptr:#x}");
        assert_eq!(region.heap.grow_in_place(ptr, 10), Ok(false), "{ptr:#x}");
        assert_eq!(region.heap.shrink_in_place(ptr, 10), Shrunk::NotAllocated, "{ptr:#x}");
    }
    assert!(region.heap.contains(small) && !region.heap.contains(end));
    assert!(!region.heap.contains(region.base - 1) && region.heap.contains(end - 1));
    assert_eq!(region.heap.usable_size(small), Some(112));
    region.free(&mut cache, small);
    region.free(&mut cache, large);
    region.check();
}

#[test]
fn never_allocated_slots_of_a_slab_cannot_be_freed() {
    let region = Region::new(4, Recycling::Keep);
    let mut cache = region.cache();
    let first = region.allocate(&mut cache, 64, 1).unwrap().ptr;
    let slots = (0..1024).map(|slot| first / 65536 * 65536 + slot * 64);
    let refused = slots.filter(|&ptr| ptr != first && region.heap.allocation_size(ptr).is_none());
    let mut count = 0;
    for ptr in refused {
        assert_eq!(region.heap.free(&mut cache, ptr), Freed::NotAllocated);
        count += 1;
    }
    assert!(count > 900);
    region.check();
}

#[test]
fn double_frees_are_refused_or_dropped_and_corrupt_nothing_structural() {
    let region = Region::new(4, Recycling::Keep);
    let mut cache = region.cache();
    for size in [24, 5000, 30_000, 600_000, 2 << 20, 70 << 20] {
        let ptr = region.allocate(&mut cache, size, 1).unwrap().ptr;
        region.free(&mut cache, ptr);
        assert_eq!(region.heap.free(&mut cache, ptr), Freed::NotAllocated, "{size}");
    }
    let a = region.allocate(&mut cache, 24, 1).unwrap().ptr;
    let b = region.allocate(&mut cache, 24, 1).unwrap().ptr;
    for ptr in [a, b, a] {
        assert_eq!(region.heap.free(&mut cache, ptr), Freed::Done);
    }
    region.heap.thread_exit(cache);
    assert_eq!(region.heap.allocated_bytes(), 0);
    region.check();
}

#[test]
fn commit_never_passes_the_grant_and_shortages_say_what_is_missing() {
    let region = Region::new(4, Recycling::Discard);
    let mut cache = region.cache();
    let heap = region.heap;
    assert_eq!(heap.allocate(&mut cache, 100, 1), Err(Shortage::Spans(1)));
    let spans = heap.begin_spans(1).unwrap();
    heap.publish_spans(spans);
    assert_eq!(heap.allocate(&mut cache, 10 * PAGE, 1), Err(Shortage::Pages(10)));
    heap.grant(4);
    assert_eq!(heap.allocate(&mut cache, 10 * PAGE, 1), Err(Shortage::Pages(6)));
    heap.grant(6);
    let ptr = heap.allocate(&mut cache, 10 * PAGE, 1).unwrap().ptr;
    assert_eq!((heap.committed_pages(), heap.granted_pages()), (10, 10));
    assert_eq!(heap.grow_in_place(ptr, 12 * PAGE), Err(Shortage::Pages(2)));
    assert_eq!(heap.allocate(&mut cache, 16, 1), Err(Shortage::Pages(16)));
    assert_eq!(heap.revoke(100), 0);
    heap.grant(50);
    assert_eq!(heap.revoke(20), 20);
    assert_eq!(heap.granted_pages(), 40);
    let spans = heap.begin_spans(3).unwrap();
    assert_eq!(heap.begin_spans(1), None);
    heap.abandon_spans(spans);
    assert_eq!(heap.begin_spans(3), Some(spans));
    heap.publish_spans(spans);
    region.check();
}

#[test]
fn a_discarded_run_is_clean_and_a_kept_one_is_not() {
    let region = Region::new(2, Recycling::Keep);
    let mut cache = region.cache();
    let heap = region.heap;
    let first = region.allocate(&mut cache, 2 << 20, 1).unwrap();
    assert!(first.zeroed);
    let Freed::Run(run) = heap.free(&mut cache, first.ptr) else { panic!("a run") };
    assert_eq!(run.pages, 512);
    let other = region.allocate(&mut cache, 2 << 20, 1).unwrap();
    assert_ne!(other.ptr, first.ptr, "a run in quarantine is not used");
    heap.recycle(run, true);
    let again = region.allocate(&mut cache, 2 << 20, 1).unwrap();
    assert_eq!((again.ptr, again.zeroed), (first.ptr, false));
    let Freed::Run(run) = heap.free(&mut cache, again.ptr) else { panic!("a run") };
    heap.recycle(run, false);
    assert_eq!(heap.committed_pages(), 512);
    let again = region.allocate(&mut cache, 2 << 20, 1).unwrap();
    assert_eq!((again.ptr, again.zeroed), (first.ptr, true));
    region.check();
}

#[test]
fn purging_gives_back_all_dirty_free_pages_above_the_bound() {
    let region = Region::new(4, Recycling::Keep);
    let mut cache = region.cache();
    let heap = region.heap;
    let runs: Vec<usize> =
        (0..20).map(|_| region.allocate(&mut cache, 3 << 20, 1).unwrap().ptr).collect();
    for ptr in runs.iter().skip(1).step_by(2) {
        region.free(&mut cache, *ptr);
    }
    assert_eq!(heap.committed_pages(), 20 * 768);
    assert_eq!(heap.take_purgeable(10 * 768), None);
    while let Some(run) = heap.take_purgeable(1000) {
        heap.recycle(run, false);
        region.check();
    }
    assert!(heap.committed_pages() <= 10 * 768 + 1000);
    while let Some(run) = heap.take_purgeable(0) {
        heap.recycle(run, false);
    }
    assert_eq!(heap.committed_pages(), 10 * 768);
    region.check();
}

#[test]
fn huge_runs_take_whole_spans_and_give_them_back() {
    let region = Region::new(12, Recycling::Keep);
    let mut cache = region.cache();
    let heap = region.heap;
    let huge = region.allocate(&mut cache, 3 * SPAN + 1, SPAN).unwrap();
    assert_eq!(huge.ptr % SPAN, 0);
    assert!(huge.zeroed);
    assert_eq!(heap.usable_size(huge.ptr), Some(3 * SPAN + PAGE));
    assert_eq!(heap.committed_pages(), 3 * PAGES_PER_SPAN + 1);
    region.check();
    let first = region.page_of(huge.ptr);
    for page in [first, first + PAGES_PER_SPAN, first + 3 * PAGES_PER_SPAN] {
        assert!(!heap.page_is_free(PageNo::from(page)));
    }
    assert!(heap.page_is_free(PageNo::from(first + 3 * PAGES_PER_SPAN + 1)));
    heap.grant(2 * PAGES_PER_SPAN);
    assert_eq!(heap.grow_in_place(huge.ptr, 4 * SPAN), Ok(true));
    region.check();
    assert_eq!(heap.grow_in_place(huge.ptr, 5 * SPAN), Ok(false), "no span follows");
    let spans = heap.begin_spans(2).unwrap();
    heap.publish_spans(spans);
    assert_eq!(heap.grow_in_place(huge.ptr, 4 * SPAN + SPAN / 2), Ok(true));
    region.check();
    let Shrunk::Run(tail) = heap.shrink_in_place(huge.ptr, SPAN + SPAN / 2) else {
        panic!("a tail");
    };
    assert_eq!(tail.pages, 2 * PAGES_PER_SPAN + PAGES_PER_SPAN / 2);
    assert_eq!(heap.usable_size(huge.ptr), Some(2 * SPAN));
    region.check();
    // The run and its tail end their quarantines in either order.
    let Freed::Run(head) = heap.free(&mut cache, huge.ptr) else { panic!("a run") };
    heap.recycle(head, false);
    region.check();
    heap.recycle(tail, true);
    region.check();
    assert_eq!(heap.committed_pages(), 2 * PAGES_PER_SPAN + PAGES_PER_SPAN / 2);
    let whole = region.allocate(&mut cache, 6 * SPAN, 1).unwrap();
    assert_eq!(region.page_of(whole.ptr), first);
    assert!(!whole.zeroed);
    region.check();
}

#[test]
fn alignment_up_to_a_span_is_honoured_for_every_size() {
    let region = Region::new(12, Recycling::Keep);
    let mut cache = region.cache();
    for shift in 0..=26 {
        for size in [1, 100, 5000, 40_000, 1 << 20, 20 << 20] {
            let ptr = region.allocate(&mut cache, size, 1 << shift).unwrap().ptr;
            assert_eq!(ptr % (1 << shift), 0);
            region.free(&mut cache, ptr);
        }
    }
    region.drain_freed();
    region.check();
}

#[test]
fn in_place_resizing_of_runs_keeps_neighbours_apart() {
    let region = Region::new(2, Recycling::Discard);
    let mut cache = region.cache();
    let heap = region.heap;
    let a = region.allocate(&mut cache, 2 << 20, 1).unwrap().ptr;
    let b = region.allocate(&mut cache, 2 << 20, 1).unwrap().ptr;
    assert_eq!(heap.grow_in_place(a, 3 << 20), Ok(false), "b is in the way");
    heap.grant(4096);
    assert_eq!(heap.grow_in_place(b, 4 << 20), Ok(true));
    assert_eq!(heap.shrink_in_place(b, (4 << 20) - PAGE), Shrunk::Done, "not worth it");
    let Shrunk::Run(tail) = heap.shrink_in_place(b, 1 << 20) else { panic!("a tail") };
    assert_eq!(heap.grow_in_place(b, 2 << 20), Ok(false), "the tail is in quarantine");
    region.recycle(tail);
    assert_eq!(heap.grow_in_place(b, 2 << 20), Ok(true));
    assert_eq!(heap.shrink_in_place(b, 100), Shrunk::Wasteful);
    region.free(&mut cache, a);
    region.free(&mut cache, b);
    region.check();
    assert_eq!(heap.committed_pages(), 0);
}

#[test]
fn fresh_heaps_and_caches_cost_little() {
    let heap = Heap::new(0x3000_0000_0000, 1 << 42).unwrap();
    assert_eq!(heap.metadata_bytes(), 0);
    let cache = ThreadCache::new_in(&heap).unwrap();
    assert!(heap.metadata_bytes() < 64 << 10);
    let before = heap.metadata_bytes();
    heap.thread_exit(cache);
    let cache = ThreadCache::new_in(&heap).unwrap();
    assert_eq!(heap.metadata_bytes(), before, "the cache came from the pool");
    heap.thread_exit(cache);
}

#[test]
fn metadata_of_a_full_heap_is_about_a_percent() {
    for (size, permille_max) in [(16, 15), (64, 15), (128, 6), (1000, 6), (16000, 6), (100_000, 8)]
    {
        let region = Region::new(4, Recycling::Keep);
        let mut cache = region.cache();
        while region.allocate(&mut cache, size, 1).is_some() {}
        let heap = region.heap;
        let permille = heap.metadata_bytes() * 1000 / heap.allocated_bytes();
        assert!(permille <= permille_max, "{permille} permille for objects of {size}");
        region.check();
    }
}

#[test]
fn a_resized_run_never_looks_free_to_the_run_above() {
    let region = Region::new(1, Recycling::Discard);
    let mut cache = region.cache();
    let heap = region.heap;
    let half = 2 << 20;
    // Page 511 ends a free run, then becomes an inner page of free space.
    let a = region.allocate(&mut cache, half, 1).unwrap().ptr;
    let b = region.allocate(&mut cache, half, 1).unwrap().ptr;
    region.free(&mut cache, a);
    region.free(&mut cache, b);
    // It is the last page of a run that shrinks...
    let shrunk = region.allocate(&mut cache, 2 * half, 1).unwrap().ptr;
    assert_eq!(shrunk, a);
    let Shrunk::Run(tail) = heap.shrink_in_place(shrunk, half) else { panic!("a tail") };
    region.recycle(tail);
    region.check();
    let above = region.allocate(&mut cache, half, 1).unwrap().ptr;
    assert_eq!(above, b, "and not the live run's pages again");
    // ... and of one that grows.
    region.free(&mut cache, shrunk);
    let grown = region.allocate(&mut cache, half / 2 + PAGE, 1).unwrap().ptr;
    assert_eq!(grown, a);
    assert_eq!(heap.grow_in_place(grown, half), Ok(true));
    region.free(&mut cache, above);
    region.check();
    assert_eq!(region.allocate(&mut cache, half, 1).unwrap().ptr, b);
}
