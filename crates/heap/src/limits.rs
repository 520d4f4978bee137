//! Limits: how many pages may be committed, and which spans are there to allocate from.
//!
//! Guarantees: never fewer pages are granted than are committed.
//! Never: touches the pages.
//! Threads: any. Changes take the lock of `Coalescing`; the counts are snapshots.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::heap::Heap;
use crate::outcome::SpanRange;
use crate::page::PAGES_PER_SPAN;

impl Heap {
    /// From now on the limit falls to `committed_pages` when pages leave use, so that what is
    /// allocated next has to be granted anew.
    pub fn grant_follows(&self) {
        self.map.runs.grant.follows.store(true, Relaxed);
    }

    /// Raises the number of pages that may be committed by `pages`.
    pub fn grant(&self, pages: usize) {
        let _lock = self.map.runs.lock.lock();
        let granted = &self.map.runs.grant.granted;
        granted.store(granted.load(Relaxed).saturating_add(pages), Relaxed);
    }

    /// Takes back up to `pages` of the grant that nothing uses; returns how many.
    pub fn revoke(&self, pages: usize) -> usize {
        let _lock = self.map.runs.lock.lock();
        let revoked = pages.min(self.map.runs.grant.unused());
        self.map.runs.grant.granted.fetch_sub(revoked, Relaxed);
        revoked
    }

    /// Lowers the limits to `pages` above `committed_pages` and `blocks` above what objects use,
    /// and returns by how many pages and blocks of the store. It never waits, since others may wait
    /// for the caller: a limit whose lock another thread has stays as it is.
    pub fn try_revoke_but(&self, pages: usize, blocks: u64) -> (usize, u64) {
        let revoked = self.map.runs.lock.try_lock().map_or(0, |_lock| {
            let revoked = self.map.runs.grant.unused().saturating_sub(pages);
            self.map.runs.grant.granted.fetch_sub(revoked, Relaxed);
            revoked
        });
        let revoked_blocks = self.objects.space.lock.try_lock().map_or(0, |mut space| {
            let revoked = (space.granted - space.promised).saturating_sub(blocks);
            space.granted -= revoked;
            revoked
        });
        (revoked, revoked_blocks)
    }

    /// Pages that may hold bytes: handed out and not recycled as clean since. Object pages are not
    /// among them.
    pub fn committed_pages(&self) -> usize {
        self.map.runs.grant.committed()
    }

    /// The limit on `committed_pages`.
    pub fn granted_pages(&self) -> usize {
        self.map.runs.grant.granted.load(Relaxed)
    }

    /// Reserves `count` consecutive spans, not usable yet; None if the region has no more.
    pub fn begin_spans(&self, count: usize) -> Option<SpanRange> {
        let mut lock = self.map.runs.lock.lock();
        let first = lock.next;
        let end = first.checked_add(count).filter(|&end| end <= self.map.runs.huge.len())?;
        lock.next = end;
        Some(SpanRange { first, count })
    }

    /// Makes them usable; their pages read as zeros.
    pub fn publish_spans(&self, range: SpanRange) {
        let lock = self.map.runs.lock.lock();
        let end = range.first + range.count;
        assert!(end <= lock.next, "publish_spans without begin_spans");
        for span in range.first..end {
            self.map.runs.insert_free(span * PAGES_PER_SPAN, PAGES_PER_SPAN);
        }
        self.map.runs.end.fetch_max(end, Release);
    }

    /// Gives back spans that could not be made usable. They are lost if others were begun since.
    pub fn abandon_spans(&self, range: SpanRange) {
        let mut lock = self.map.runs.lock.lock();
        if range.first + range.count == lock.next {
            lock.next = range.first;
        }
    }

    /// All spans ever published have an index below this.
    pub fn spans_end(&self) -> usize {
        self.map.runs.spans_end()
    }
}
