//! Resize: grows and shrinks an allocated run in place.
//!
//! Guarantees: a resize either happens entirely or changes nothing; a tail that is cut off is a
//! run of its own, so that the run and its tail can be freed in any order.
//! Never: moves a run, touches its pages.
//! Threads: any, under the lock of `Coalescing`. A free of the same run at the same time (a bug
//! of the program) makes the resize fail.

use core::sync::atomic::{Ordering, fence};

use deepheap_sys::narrow::Narrow;

use crate::outcome::{FreedRun, Shortage, Shrunk};
use crate::page::{PAGES_PER_SPAN, PageNo};
use crate::runs::coalescing::{Coalescing, HUGE_BODY};
use crate::runs::tags::{RUN_PAGES_MAX, RunState};

impl Coalescing {
    /// Lengthens the allocated run at `first` to `pages` pages if the pages after it are free.
    pub(crate) fn grow(&self, first: usize, pages: usize) -> Result<bool, Shortage> {
        if pages > RUN_PAGES_MAX {
            return Ok(false);
        }
        let lock = self.lock.lock();
        let (RunState::Allocated, old) = self.tags.get(first) else {
            return Ok(false);
        };
        if pages <= old {
            return Ok(true);
        }
        let (end, new_end) = (first + old, first + pages);
        let span = first / PAGES_PER_SPAN;
        let huge_spans = self.huge[span].load(Ordering::Relaxed) as usize;
        let span_end = (span + huge_spans.max(1)) * PAGES_PER_SPAN;
        // After it come the rest of a free run, of the huge run's last span, or free spans.
        let following = if huge_spans > 0 {
            let more = new_end.saturating_sub(span_end).div_ceil(PAGES_PER_SPAN);
            if self.free_runs.whole_spans_at(span + huge_spans, more) < more {
                return Ok(false);
            }
            more
        } else {
            match self.tags.get(end) {
                (RunState::Free, length) if end < span_end && end + length >= new_end => length,
                _ => return Ok(false),
            }
        };
        let dirty = self.dirty.count(end..new_end);
        let clean = pages - old - dirty;
        self.grant.commit(clean)?;
        if !self.tags.change(first, (RunState::Allocated, old), (RunState::Allocated, pages)) {
            self.grant.uncommit(clean);
            return Ok(false);
        }
        if huge_spans > 0 {
            let rest_end = new_end.min(span_end);
            self.dirty_free.sub(span_end - 1, self.dirty.count(end..rest_end));
            self.take_whole(span + huge_spans, following, new_end);
            self.dirty.set_run(end..new_end);
            self.huge[span].store((huge_spans + following).to_u32(), Ordering::Relaxed);
        } else {
            self.split(end, following, end, pages - old);
            self.dirty_free.sub(end, dirty);
            self.dirty.set_run(end..new_end);
        }
        self.tags.set_inside(new_end - 1);
        self.live_pages.set_run(end..new_end);
        self.run_pages.fetch_add(pages - old, Ordering::Relaxed);
        drop(lock);
        // As in `Coalescing::allocate`.
        fence(Ordering::Release);
        Ok(true)
    }

    /// Shortens the allocated run at `first` to `pages` pages (at least one). A huge run gives
    /// back whole spans only.
    pub(crate) fn shrink(&self, first: usize, pages: usize) -> Shrunk {
        let lock = self.lock.lock();
        let (RunState::Allocated, old) = self.tags.get(first) else {
            return Shrunk::NotAllocated;
        };
        let span = first / PAGES_PER_SPAN;
        let huge_spans = self.huge[span].load(Ordering::Relaxed) as usize;
        let kept = if huge_spans > 0 {
            pages.next_multiple_of(PAGES_PER_SPAN).min(old)
        } else {
            pages.min(old)
        };
        if pages < kept / 2 {
            return Shrunk::Wasteful;
        }
        if kept == old {
            return Shrunk::Done;
        }
        let cut = first + kept;
        let inner_end = cut - 1;
        if inner_end > first {
            self.tags.set_inside(inner_end);
        }
        if !self.tags.change(first, (RunState::Allocated, old), (RunState::Allocated, kept)) {
            return Shrunk::NotAllocated;
        }
        self.tags.set(cut, old - kept, RunState::Held);
        if huge_spans > 0 {
            let kept_spans = kept / PAGES_PER_SPAN;
            let cut_spans = huge_spans - kept_spans;
            debug_assert_eq!(self.huge[span + kept_spans].load(Ordering::Relaxed), HUGE_BODY);
            self.huge[span].store(kept_spans.to_u32(), Ordering::Relaxed);
            self.huge[span + kept_spans].store(cut_spans.to_u32(), Ordering::Relaxed);
        }
        self.live_pages.clear(cut..first + old);
        self.run_pages.fetch_sub(old - kept, Ordering::Relaxed);
        drop(lock);
        Shrunk::Run(FreedRun { first: PageNo::from(cut), pages: old - kept })
    }
}
