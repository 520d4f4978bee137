//! Areas: pages for memory that the program maps itself. Shorter ones are page runs, those of a
//! span or more are whole spans that are never published.
//!
//! Nothing of an area is committed at first: a reservation of a terabyte costs a word a span.
//!
//! Guarantees: no page of an area counts as free until the area ends; `free` does not take an area
//! for an allocation.
//! Never: touches the pages, knows which of them the program has unmapped.
//! Threads: any, under the lock of `Coalescing`.

use core::sync::atomic::{Ordering, fence};

use crate::heap::Heap;
use crate::outcome::{FreedRun, Shortage, SpanRange};
use crate::page::{PAGE, PAGES_PER_SPAN, PageNo, SPAN};
use crate::runs::coalescing::AREA_SPAN;
use crate::runs::tags::RunState;

/// Areas of at least this many pages begin at a multiple of it, as the kernel places them (2 MiB).
const ALIGNED_PAGES: usize = 512;

impl Heap {
    /// Address space for an area of less than a span, and whether it reads as zeros. Ends with
    /// `free_area`.
    ///
    /// # Errors
    /// `Shortage::Spans`.
    pub fn allocate_area(&self, pages: usize) -> Result<(FreedRun, bool), Shortage> {
        debug_assert!((1..PAGES_PER_SPAN).contains(&pages));
        let runs = &self.map.runs;
        let align = if pages < ALIGNED_PAGES { 1 } else { ALIGNED_PAGES };
        runs.had_areas.store(true, Ordering::Relaxed);
        let lock = runs.lock.lock();
        let (at, _) = runs.carve(pages, align, 0)?;
        let zeroed = runs.dirty.count(at..at + pages) == 0;
        runs.tags.set(at, pages, RunState::Area);
        runs.live_pages.set(at..at + pages);
        drop(lock);
        // As in `Coalescing::allocate`.
        fence(Ordering::Release);
        Ok((FreedRun { first: PageNo::from(at), pages }, zeroed))
    }

    /// Ends an area of `allocate_area`, all of whose pages read as zeros.
    pub fn free_area(&self, run: FreedRun) {
        let (runs, first) = (&self.map.runs, run.first.index());
        let held =
            runs.tags.change(first, (RunState::Area, run.pages), (RunState::Held, run.pages));
        debug_assert!(held);
        runs.live_pages.clear(first..first + run.pages);
        runs.recycle(run, true);
    }

    /// Makes spans that were begun an area, or ends it: then they are the caller's, to be made an
    /// area again.
    pub fn mark_area_spans(&self, range: SpanRange, is_area: bool) {
        let runs = &self.map.runs;
        runs.had_areas.store(true, Ordering::Relaxed);
        let _lock = runs.lock.lock();
        let spans = range.first..range.first + range.count;
        for span in spans {
            runs.huge.cell(span).store(if is_area { AREA_SPAN } else { 0 }, Ordering::Relaxed);
        }
        fence(Ordering::Release);
    }

    /// Counts pages of an area as committed, those that were not.
    ///
    /// # Errors
    /// `Shortage::Pages`; then nothing has changed.
    pub fn commit_area(&self, run: FreedRun) -> Result<(), Shortage> {
        let (runs, pages) = (&self.map.runs, run.first.index()..run.first.index() + run.pages);
        let _lock = runs.lock.lock();
        runs.grant.commit(run.pages - runs.dirty.count(pages.clone()))?;
        runs.dirty.set_run(pages);
        Ok(())
    }

    /// Counts pages of an area as not committed. They read as zeros.
    pub fn uncommit_area(&self, run: FreedRun) {
        let (runs, pages) = (&self.map.runs, run.first.index()..run.first.index() + run.pages);
        let _lock = runs.lock.lock();
        runs.grant.give_back(runs.dirty.count(pages.clone()));
        runs.dirty.clear(pages);
    }
}

const _: () = assert!(SPAN == PAGE * PAGES_PER_SPAN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Freed;
    use crate::slabs::thread_cache::ThreadCache;

    const BASE: usize = 1 << 40;

    fn heap() -> Heap {
        let heap = Heap::new(BASE, 8 * SPAN).unwrap();
        let range = heap.begin_spans(1).unwrap();
        heap.publish_spans(range);
        heap
    }

    #[test]
    fn a_reserved_area_takes_no_promise_and_a_committed_one_what_it_commits() {
        let heap = heap();
        let (run, zeroed) = heap.allocate_area(1000).unwrap();
        assert!(zeroed);
        assert_eq!(heap.committed_pages(), 0);
        let part = FreedRun { first: PageNo(run.first.0 + 10), pages: 20 };
        assert_eq!(heap.commit_area(part), Err(Shortage::Pages(20)));
        heap.grant(20);
        assert_eq!(heap.commit_area(part), Ok(()));
        assert_eq!(heap.commit_area(part), Ok(()), "what is committed stays so");
        assert_eq!(heap.committed_pages(), 20);
        heap.uncommit_area(run);
        assert_eq!(heap.committed_pages(), 0);
        heap.free_area(run);
    }

    #[test]
    fn no_page_of_an_area_is_free_and_free_does_not_know_it() {
        let heap = heap();
        let mut cache = ThreadCache::new_in(&heap).unwrap();
        let (run, _) = heap.allocate_area(600).unwrap();
        assert_eq!(run.first.index() % 512, 0, "aligned as the kernel's");
        let address = heap.map.address_of_page(run.first.index());
        assert_eq!(heap.free(&mut cache, address), Freed::NotAllocated);
        assert!(!heap.page_is_free(run.first));
        heap.free_area(run);
        assert!(heap.page_is_free(run.first));

        let spans = heap.begin_spans(3).unwrap();
        heap.mark_area_spans(spans, true);
        let last = PageNo::from((spans.first + 3) * PAGES_PER_SPAN - 1);
        assert!(!heap.page_is_free(last));
        assert_eq!(
            heap.free(&mut cache, heap.map.address_of_page(last.index())),
            Freed::NotAllocated
        );
        heap.mark_area_spans(spans, false);
        assert!(heap.page_is_free(last));
    }
}
