//! Coalescing: page runs in published spans: finds, splits, commits, quarantines and merges them.
//!
//! This is the coalescing allocator of SSDAlloc, section 3.4, with its headers out of band.
//!
//! Guarantees: runs tile every published span; free neighbours are merged; the pages in
//! `dirty` are exactly the committed ones, never more than granted.
//! Never: touches the pages; calls out while it holds its lock.
//! Threads: any. One lock, held for tens of nanoseconds (more only for runs of many MiB) and taken
//! after a central list's. Freeing a run takes no lock until its `recycle`.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use deepheap_sys::errno;
use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::lock::Lock;

use crate::outcome::{FreedRun, Shortage};
use crate::page::{PAGES_PER_SPAN, PageNo};
use crate::page_bits::PageBits;
use crate::runs::free_runs::FreeRuns;
use crate::runs::grant::Grant;
use crate::runs::tags::{RUN_PAGES_MAX, RunState, RunTags};
use crate::slabs::size_class::{PAGES_PER_SLAB, SizeClass};
use crate::table::{Populated, Table};

/// Most pages that one `take_purgeable` takes out of use (4 MiB).
const PURGE_PAGES_MAX: usize = 1024;

/// All page runs of a region.
pub(crate) struct Coalescing {
    pub(crate) tags: RunTags,
    pub(crate) free_runs: FreeRuns,
    /// Pages of allocated runs (not slabs), those in thread caches included; in object spans,
    /// pages of live objects.
    pub(crate) live_pages: PageBits,
    /// Committed pages: those handed out since they were last recycled as clean.
    pub(crate) dirty: PageBits,
    pub(crate) dirty_free: DirtyFree,
    /// Per span: at the first span of a huge run the number of its spans, at its others
    /// [`HUGE_BODY`]; in a span that is all area [`AREA_SPAN`]; else 0.
    pub(crate) huge: Table<AtomicU32>,
    /// The first parked run, as page + 1; changed under the lock.
    parked: AtomicU32,
    pub(crate) lock: Lock<Spans>,
    /// All published spans are below.
    pub(crate) end: AtomicUsize,
    /// Set by the first area.
    pub(crate) had_areas: AtomicBool,
    pub(crate) grant: Grant,
    /// Pages of allocated runs.
    pub(crate) run_pages: AtomicUsize,
}

/// Marks the second and later spans of a huge run.
pub(crate) const HUGE_BODY: u32 = u32::MAX;
/// Marks the spans of an area.
pub(crate) const AREA_SPAN: u32 = u32::MAX - 1;

/// The state under the lock, beside the tables above.
#[derive(Default)]
pub(crate) struct Spans {
    /// The first span never begun.
    pub next: usize,
}

/// Dirty pages of free runs, and of the unused ends of huge runs: per span and of all. They change
/// under the lock.
pub(crate) struct DirtyFree {
    spans: Table<AtomicU32>,
    all: AtomicUsize,
}

impl DirtyFree {
    fn new(spans: usize, populated: &Populated) -> errno::Result<Self> {
        Ok(Self { spans: Table::new(spans, populated)?, all: AtomicUsize::new(0) })
    }

    pub(crate) fn of(&self, span: usize) -> usize {
        self.spans[span].load(Ordering::Relaxed) as usize
    }

    pub(crate) fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Adds `dirty` pages in the span of `page`.
    pub(crate) fn add(&self, page: usize, dirty: usize) {
        if dirty > 0 {
            self.spans.cell(page / PAGES_PER_SPAN).fetch_add(dirty.to_u32(), Ordering::Relaxed);
            self.all.fetch_add(dirty, Ordering::Relaxed);
        }
    }

    pub(crate) fn sub(&self, page: usize, dirty: usize) {
        if dirty > 0 {
            self.spans[page / PAGES_PER_SPAN].fetch_sub(dirty.to_u32(), Ordering::Relaxed);
            self.all.fetch_sub(dirty, Ordering::Relaxed);
        }
    }
}

impl Coalescing {
    /// An empty region of `spans` spans.
    pub(crate) fn new(spans: usize, populated: &Populated) -> errno::Result<Self> {
        let pages = spans * PAGES_PER_SPAN;
        Ok(Self {
            tags: RunTags::new(pages, populated)?,
            free_runs: FreeRuns::new(spans, populated)?,
            live_pages: PageBits::new(pages, populated)?,
            dirty: PageBits::new(pages, populated)?,
            dirty_free: DirtyFree::new(spans, populated)?,
            huge: Table::new(spans, populated)?,
            parked: AtomicU32::new(0),
            lock: Lock::new(Spans::default()),
            end: AtomicUsize::new(0),
            had_areas: AtomicBool::new(false),
            grant: Grant::default(),
            run_pages: AtomicUsize::new(0),
        })
    }

    /// A run of `pages` pages at a multiple of `align` pages (a power of two up to a span), and
    /// whether it reads as zeros.
    pub(crate) fn allocate(&self, pages: usize, align: usize) -> Result<(usize, bool), Shortage> {
        let spans = self.huge.len();
        if pages > RUN_PAGES_MAX || pages.div_ceil(PAGES_PER_SPAN) > spans || align > PAGES_PER_SPAN
        {
            return Err(Shortage::TooLarge);
        }
        let lock = self.lock.lock();
        let (at, zeroed) = if pages > PAGES_PER_SPAN {
            self.carve_huge(pages)?
        } else {
            self.carve(pages, align, pages)?
        };
        self.tags.set(at, pages, RunState::Allocated);
        self.live_pages.set_run(at..at + pages);
        self.run_pages.fetch_add(pages, Ordering::Relaxed);
        drop(lock);
        // page_is_free counts on the bits being stored before the program's first store to the
        // run; see `address_map.rs`.
        fence(Ordering::Release);
        Ok((at, zeroed))
    }

    /// The pages of a slab for objects of `class`; returns its number.
    pub(crate) fn allocate_slab(&self, class: &SizeClass) -> Result<usize, Shortage> {
        let _lock = self.lock.lock();
        let covered = class.covered_pages();
        let (at, _) = self.carve(PAGES_PER_SLAB, PAGES_PER_SLAB, covered)?;
        self.tags.set(at, PAGES_PER_SLAB, RunState::Slab);
        Ok(at / PAGES_PER_SLAB)
    }

    /// Puts the allocated or cached run at `first` in quarantine. None if there is none.
    pub(crate) fn hold(&self, first: usize) -> Option<FreedRun> {
        let (state, pages) = self.tags.get(first);
        if !matches!(state, RunState::Allocated | RunState::Cached)
            || !self.tags.change(first, (state, pages), (RunState::Held, pages))
        {
            return None;
        }
        self.live_pages.clear(first..first + pages);
        self.run_pages.fetch_sub(pages, Ordering::Relaxed);
        Some(FreedRun { first: PageNo::from(first), pages })
    }

    /// Puts a slab that was closed in quarantine.
    pub(crate) fn hold_slab(&self, slab: usize) -> FreedRun {
        let first = slab * PAGES_PER_SLAB;
        let pages = PAGES_PER_SLAB;
        let held = self.tags.change(first, (RunState::Slab, pages), (RunState::Held, pages));
        debug_assert!(held);
        FreedRun { first: PageNo::from(first), pages }
    }

    /// Parks a run in quarantine for the next `take_parked`.
    pub(crate) fn park(&self, run: FreedRun) {
        let _lock = self.lock.lock();
        let next = self.parked.swap(run.first.0 + 1, Ordering::Relaxed);
        self.free_runs.link_of_no_free_run(run.first.index()).store(next, Ordering::Relaxed);
    }

    /// A parked run, if there is one; costs one load if there is none.
    #[inline]
    pub(crate) fn take_parked(&self) -> Option<FreedRun> {
        if self.parked.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let _lock = self.lock.lock();
        let first = self.parked.load(Ordering::Relaxed).checked_sub(1)? as usize;
        let next = self.free_runs.link_of_no_free_run(first).load(Ordering::Relaxed);
        self.parked.store(next, Ordering::Relaxed);
        let (state, pages) = self.tags.get(first);
        debug_assert_eq!(state, RunState::Held);
        Some(FreedRun { first: PageNo::from(first), pages })
    }

    /// Ends a quarantine; `clean` if the pages read as zeros now. A run that is not in quarantine
    /// is left alone.
    pub(crate) fn recycle(&self, run: FreedRun, clean: bool) {
        let (first, pages) = (run.first.index(), run.pages);
        let _lock = self.lock.lock();
        if self.tags.get(first) != (RunState::Held, pages) {
            debug_assert!(false, "recycle of a run that is not in quarantine");
            return;
        }
        let dirty = self.dirty.count(first..first + pages);
        if clean {
            self.dirty.clear(first..first + pages);
            self.grant.give_back(dirty);
        }
        let span = first / PAGES_PER_SPAN;
        let huge_spans = self.huge[span].load(Ordering::Relaxed) as usize;
        if huge_spans == 0 {
            if !clean {
                self.dirty_free.add(first, dirty);
            }
            self.insert_merged(first, pages);
            return;
        }
        for span in span..span + huge_spans {
            let start = span * PAGES_PER_SPAN;
            let inside = start..(start + PAGES_PER_SPAN).min(first + pages);
            if !clean && !inside.is_empty() {
                self.dirty_free.add(start, self.dirty.count(inside));
            }
            self.huge[span].store(0, Ordering::Relaxed);
            self.insert_free(start, PAGES_PER_SPAN);
        }
    }

    /// If more than `max` free pages are dirty: a run of free pages, put in quarantine, that
    /// starts and ends with a dirty one, from the highest span that has any.
    pub(crate) fn take_purgeable(&self, max: usize) -> Option<FreedRun> {
        if self.dirty_free.all() <= max {
            return None;
        }
        let _lock = self.lock.lock();
        let has_dirty = |&span: &usize| {
            self.dirty_free.of(span) > 0 && self.huge[span].load(Ordering::Relaxed) == 0
        };
        for span in (0..self.spans_end()).rev().filter(has_dirty) {
            let mut candidates = self.free_runs.of_span(&self.tags, span);
            let found = candidates.find_map(|(first, len)| {
                let start = self.dirty.first(first..first + len)?;
                let end = (start + PURGE_PAGES_MAX).min(first + len);
                let last = self.dirty.last(start..end)?;
                Some((first, len, start, last + 1 - start))
            });
            if let Some((first, len, at, pages)) = found {
                drop(candidates);
                self.split(first, len, at, pages);
                self.tags.set(at, pages, RunState::Held);
                let dirty = self.dirty.count(at..at + pages);
                self.dirty_free.sub(at, dirty);
                return Some(FreedRun { first: PageNo::from(at), pages });
            }
        }
        None
    }

    /// Takes `[at, at + pages)` out of a free run and commits the first `touched` pages. Changes
    /// nothing if it fails.
    pub(crate) fn carve(
        &self,
        pages: usize,
        align: usize,
        touched: usize,
    ) -> Result<(usize, bool), Shortage> {
        let place = self.free_runs.search(&self.tags, pages, align).ok_or(Shortage::Spans(1))?;
        let at = place.at;
        let dirty = self.dirty.count(at..at + touched);
        self.grant.commit(touched - dirty)?;
        self.split(place.first, place.len, at, pages);
        // Beyond `touched` a slab's pages may be dirty from an earlier use. They stay committed,
        // and come back with the slab.
        let all_dirty = dirty + self.dirty.count(at + touched..at + pages);
        self.dirty_free.sub(at, all_dirty);
        if dirty < touched {
            self.dirty.set_run(at..at + touched);
        }
        Ok((at, all_dirty == 0))
    }

    /// Like `carve`, for a run of more than a span.
    fn carve_huge(&self, pages: usize) -> Result<(usize, bool), Shortage> {
        let count = pages.div_ceil(PAGES_PER_SPAN);
        let span = self.free_runs.search_whole(count).ok_or(Shortage::Spans(count))?;
        let at = span * PAGES_PER_SPAN;
        let dirty = self.dirty.count(at..at + pages);
        self.grant.commit(pages - dirty)?;
        self.take_whole(span, count, at + pages);
        self.dirty.set_run(at..at + pages);
        self.huge[span].store(count.to_u32(), Ordering::Relaxed);
        Ok((at, dirty == 0))
    }

    /// Takes free spans for a huge run whose pages end at `end`: they become its body.
    pub(crate) fn take_whole(&self, first_span: usize, count: usize, end: usize) {
        for span in first_span..first_span + count {
            let start = span * PAGES_PER_SPAN;
            let inside = start..(start + PAGES_PER_SPAN).min(end);
            self.free_runs.remove(start, PAGES_PER_SPAN);
            self.dirty_free.sub(start, self.dirty.count(inside));
            self.huge.cell(span).store(HUGE_BODY, Ordering::Relaxed);
        }
    }

    /// Replaces the free run `[first, first + len)` by what is left of it around
    /// `[at, at + pages)`.
    pub(crate) fn split(&self, first: usize, len: usize, at: usize, pages: usize) {
        self.free_runs.remove(first, len);
        if at > first {
            self.insert_free(first, at - first);
        }
        let (end, free_end) = (at + pages, first + len);
        if end < free_end {
            self.insert_free(end, free_end - end);
        }
    }

    /// Makes `[first, first + pages)` free, one run with its free neighbours in the span.
    pub(crate) fn insert_merged(&self, mut first: usize, mut pages: usize) {
        let span_start = first / PAGES_PER_SPAN * PAGES_PER_SPAN;
        let above = first + pages;
        if above < span_start + PAGES_PER_SPAN
            && let (RunState::Free, length) = self.tags.get(above)
        {
            self.free_runs.remove(above, length);
            pages += length;
        }
        if first > span_start
            && let (RunState::Free, length) = self.tags.get(first - 1)
        {
            first -= length;
            pages += length;
            self.free_runs.remove(first, length);
        }
        self.insert_free(first, pages);
    }

    pub(crate) fn insert_free(&self, first: usize, pages: usize) {
        match pages {
            PAGES_PER_SPAN => self.tags.forget(first),
            _ => self.tags.set(first, pages, RunState::Free),
        }
        self.free_runs.insert(first, pages);
    }

    /// Whether a page lies in a span that is all area.
    #[inline]
    pub(crate) fn is_area_span(&self, span: usize) -> bool {
        self.huge.get(span).is_some_and(|huge| huge.load(Ordering::Acquire) == AREA_SPAN)
    }

    /// Whether the page may be in use: committed, or part of an area.
    #[inline]
    pub(crate) fn is_handed_out(&self, page: usize) -> bool {
        self.dirty.get(page)
            || self.live_pages.get(page)
            || self.is_area_span(page / PAGES_PER_SPAN)
    }

    /// All published spans are below this one. Takes no lock: a handler asks too.
    pub(crate) fn spans_end(&self) -> usize {
        self.end.load(Ordering::Acquire)
    }
}
