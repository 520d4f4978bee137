//! Invariants: one walk over everything, comparing every structure with its neighbours.
//!
//! Guarantees: if `check_invariants` returns, runs tile every span, bits, counts, bins and
//! lists agree with them, and committed pages are exactly the dirty ones.
//! Never: changes anything.
//! Threads: takes every lock in order, so it may run at any time; the counts of runs are
//! compared only if no thread frees a run meanwhile, so the heap should be idle.

use core::sync::atomic::Ordering;

use deepheap_sys::threads::lock::Guard;

use crate::heap::Heap;
use crate::page::{PAGES_PER_SPAN, pages_of};
use crate::runs::coalescing::HUGE_BODY;
use crate::runs::tags::RunState;
use crate::slabs::central_list::Available;
use crate::slabs::size_class::{PAGES_PER_SLAB, SIZE_CLASSES, SMALL_CLASSES};

/// The sums of the walk.
struct Sums {
    dirty: usize,
    dirty_free: usize,
    run_pages: usize,
    objects: [usize; SMALL_CLASSES + 1],
    empty: [usize; SMALL_CLASSES + 1],
}

impl Heap {
    /// Panics if a structure contradicts itself. The heap must be otherwise idle.
    pub fn check_invariants(&self) {
        let lists: [Guard<'_, Available>; SMALL_CLASSES] =
            core::array::from_fn(|list| self.lists[list].lock.lock());
        let _spans = self.map.runs.lock.lock();
        let mut sums = Sums {
            dirty: 0,
            dirty_free: 0,
            run_pages: 0,
            objects: [0; SMALL_CLASSES + 1],
            empty: [0; SMALL_CLASSES + 1],
        };
        let mut span = 0;
        while span < self.map.runs.huge.len() {
            span += self.check_span(span, &lists, &mut sums);
        }
        let runs = &self.map.runs;
        assert_eq!(sums.dirty, runs.grant.committed(), "committed pages are the dirty ones");
        assert!(runs.grant.committed() <= self.granted_pages(), "committed within the grant");
        assert_eq!(sums.dirty_free, runs.dirty_free.all(), "dirty free pages");
        assert_eq!(
            sums.run_pages,
            runs.run_pages.load(Ordering::Relaxed),
            "pages of allocated runs"
        );
        for (class, available) in (1..).zip(&lists) {
            assert_eq!(
                sums.objects[class],
                self.lists[class - 1].allocated.load(Ordering::Relaxed),
                "class {class}"
            );
            assert_eq!(sums.empty[class], available.empty, "empty slabs of class {class}");
        }
        self.check_objects();
    }

    /// Checks a span, or a huge run's spans; returns how many.
    fn check_span(&self, span: usize, lists: &[Guard<'_, Available>], sums: &mut Sums) -> usize {
        let runs = &self.map.runs;
        let start = span * PAGES_PER_SPAN;
        if runs.free_runs.whole_spans_at(span, 1) == 1 {
            let dirty = runs.dirty.count(pages_of(span));
            let counted = runs.dirty_free.of(span);
            assert_eq!(counted, dirty, "dirty pages of a free span");
            assert_eq!(runs.live_pages.count(pages_of(span)), 0);
            let (state, _) = runs.tags.get(start);
            assert!(matches!(state, RunState::Inside | RunState::Free), "the tag of a free span");
            sums.dirty += dirty;
            sums.dirty_free += dirty;
            return 1;
        }
        let (state, pages) = runs.tags.get(start);
        if state == RunState::Inside {
            let dirty = runs.dirty.count(pages_of(span));
            assert!(dirty == 0 || runs.is_area_span(span), "unpublished, clean");
            sums.dirty += dirty;
            return 1;
        }
        let huge = runs.huge[span].load(Ordering::Relaxed);
        assert_ne!(huge, HUGE_BODY, "a huge run's body without its head");
        if huge > 0 {
            let end = start + huge as usize * PAGES_PER_SPAN;
            assert!(start + pages <= end && start + pages > end - PAGES_PER_SPAN);
            self.check_run(start, state, pages, lists, sums);
            for body in span + 1..span + huge as usize {
                assert_eq!(runs.huge[body].load(Ordering::Relaxed), HUGE_BODY);
            }
            sums.dirty += runs.dirty.count(start + pages..end);
            sums.dirty_free += runs.dirty.count(start + pages..end);
            return huge as usize;
        }
        let free_before = sums.dirty_free;
        let mut free_in_span = 0;
        let mut at = start;
        let mut last = RunState::Inside;
        while at < start + PAGES_PER_SPAN {
            let (state, pages) = runs.tags.get(at);
            assert!(pages > 0 && at + pages <= start + PAGES_PER_SPAN, "runs tile the span");
            assert!(
                !(state == RunState::Free && last == RunState::Free),
                "free neighbours are merged"
            );
            free_in_span += usize::from(state == RunState::Free);
            self.check_run(at, state, pages, lists, sums);
            last = state;
            at += pages;
        }
        assert_eq!(at, start + PAGES_PER_SPAN);
        let binned = runs.free_runs.of_span(&runs.tags, span);
        assert_eq!(binned.count(), free_in_span, "every free run is in a bin");
        let dirty_free = runs.dirty_free.of(span);
        assert_eq!(sums.dirty_free - free_before, dirty_free, "dirty free pages of span {span}");
        assert!(runs.dirty_free.all() >= dirty_free);
        1
    }

    fn check_run(
        &self,
        first: usize,
        state: RunState,
        pages: usize,
        lists: &[Guard<'_, Available>],
        sums: &mut Sums,
    ) {
        let runs = &self.map.runs;
        let dirty = runs.dirty.count(first..first + pages);
        let marked = runs.live_pages.count(first..first + pages);
        sums.dirty += dirty;
        match state {
            RunState::Inside => panic!("page {first} is no run's first"),
            RunState::Free => {
                sums.dirty_free += dirty;
                assert_eq!(marked, 0);
                assert_eq!(runs.tags.get(first + pages - 1), (RunState::Free, pages));
            }
            RunState::Held => assert_eq!(marked, 0),
            RunState::Allocated | RunState::Cached => {
                sums.run_pages += pages;
                assert_eq!((marked, dirty), (pages, pages), "a run is marked and committed");
            }
            RunState::Area => assert_eq!(marked, pages, "an area is marked"),
            RunState::Slab => {
                assert_eq!((marked, pages), (0, PAGES_PER_SLAB));
                self.check_slab(first / PAGES_PER_SLAB, lists, sums);
            }
        }
        if state != RunState::Slab {
            let slabs = first.div_ceil(PAGES_PER_SLAB)..(first + pages) / PAGES_PER_SLAB;
            let class_of = |slab| self.map.slabs.class_of(slab);
            assert!(slabs.into_iter().all(|slab| class_of(slab) == 0), "no slab in a run");
        }
    }

    fn check_slab(&self, slab: usize, lists: &[Guard<'_, Available>], sums: &mut Sums) {
        let number = self.map.slabs.class_of(slab) as usize;
        assert!((1..=SMALL_CLASSES).contains(&number), "an open slab has a class");
        let class = &SIZE_CLASSES[number];
        let used = self.map.slabs.used(slab);
        let is_allocated = |index: &usize| self.map.slabs.is_allocated(slab, class, *index);
        let allocated = (0..class.objects()).filter(is_allocated).count();
        assert_eq!(used, allocated, "bits of slab {slab}");
        let available = lists[number - 1].slabs.contains(slab);
        assert_eq!(available, used < class.objects(), "slab {slab} is available or full");
        sums.objects[number] += used;
        sums.empty[number] += usize::from(used == 0);
    }
}
