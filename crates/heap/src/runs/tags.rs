//! Run tags: what each run of pages is (free, allocated, a slab, in quarantine).
//!
//! A run's first page carries its state and length; the last page of a free run repeats it, so
//! that its neighbour above can find it, and the last page of any other run carries `Inside`.
//! Runs tile every published span without gaps; only huge ones reach beyond a span. Entirely free
//! spans have no tags: `free_runs` knows them, so that untouched address space costs no tables.
//!
//! ```text
//! Free      -> Allocated [Coalescing::allocate]   Free      -> Slab [Coalescing::allocate_slab]
//! Allocated -> Cached    [cache]                  Cached    -> Allocated [uncache]
//! Allocated -> Held      [hold]                   Cached    -> Held [hold]
//! Slab      -> Held      [hold]                   Free      -> Held [Coalescing::take_purgeable]
//! Held      -> Free      [Coalescing::recycle, rebuild]
//! Free      -> Area      [allocate_area]
//! Area      -> Held      [free_area]
//! ```
//!
//! Guarantees: only the first page of such a run is tagged `Allocated` or `Cached`, and no stale
//! tag says so: these states are left by overwriting them, and only free runs are merged.
//! Never: locks.
//! Threads: leaving `Allocated` is a compare-exchange, from any thread; all else under the lock
//! of `Coalescing`, or by the thread whose cache holds the run.

use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_sys::errno::Result;
use deepheap_sys::narrow::Narrow;

use crate::page::PAGE;
use crate::table::{Populated, Table};

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RunState {
    /// Not the first page of anything.
    Inside = 0,
    Free = 1,
    Allocated = 2,
    /// In a thread cache: allocated for everyone but that thread.
    Cached = 3,
    /// In quarantine or parked.
    Held = 4,
    Slab = 5,
    /// Mapped by the program itself.
    Area = 6,
}

const LENGTH_BITS: u32 = 29;
/// Longest run, in pages (2 TiB).
pub(crate) const RUN_PAGES_MAX: usize = (1 << LENGTH_BITS) - 1;

/// The tags of all pages.
pub(crate) struct RunTags {
    pub(crate) tags: Table<AtomicU32>,
}

impl RunTags {
    /// All pages `Inside`.
    pub(crate) fn new(pages: usize, populated: &Populated) -> Result<Self> {
        Ok(Self { tags: Table::new(pages, populated)? })
    }

    /// RunState and length on the tag of `page`; `Inside` beyond the region.
    #[inline]
    pub(crate) fn get(&self, page: usize) -> (RunState, usize) {
        unpack(self.tags.get(page).map_or(0, |tag| tag.load(Ordering::Acquire)))
    }

    /// Tags the run `[first, first + pages)`, both ends. Its pages are the caller's.
    pub(crate) fn set(&self, first: usize, pages: usize, state: RunState) {
        let last = first + pages - 1;
        let end = if state == RunState::Free { pack(state, pages) } else { 0 };
        self.tags.cell(last).store(end, Ordering::Relaxed);
        self.tags.cell(first).store(pack(state, pages), Ordering::Release);
    }

    /// The page is the first of an entirely free span, of which the tags say nothing.
    pub(crate) fn forget(&self, page: usize) {
        if self.tags.is_marked(page) {
            self.tags[page].store(0, Ordering::Release);
        }
    }

    /// Tags `page` as the last one of a run that is neither free nor one page long.
    pub(crate) fn set_inside(&self, page: usize) {
        self.tags.cell(page).store(0, Ordering::Relaxed);
    }

    /// Changes the run's tag if it is exactly `from` now; of two threads one succeeds.
    pub(crate) fn change(
        &self,
        first: usize,
        from: (RunState, usize),
        to: (RunState, usize),
    ) -> bool {
        let (from, to) = (pack(from.0, from.1), pack(to.0, to.1));
        let tag = &self.tags[first];
        tag.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Allocated -> Cached. Not atomic against a second free of the same run at the same time,
    /// which is the program's error; the tag stays well-formed even then.
    #[inline]
    pub(crate) fn cache(&self, first: usize, pages: usize) {
        self.tags[first].store(pack(RunState::Cached, pages), Ordering::Relaxed);
    }

    /// Cached -> Allocated.
    #[inline]
    pub(crate) fn uncache(&self, first: usize, pages: usize) {
        self.tags[first].store(pack(RunState::Allocated, pages), Ordering::Relaxed);
    }

    /// Whether a tag of `[first, first + pages)` may ever have been written.
    pub(crate) fn any_marked(&self, first: usize, pages: usize) -> bool {
        let cells = (first..first + pages).step_by(PAGE / size_of::<AtomicU32>());
        cells.into_iter().any(|cell| self.tags.is_marked(cell))
    }
}

fn pack(state: RunState, pages: usize) -> u32 {
    debug_assert!(pages <= RUN_PAGES_MAX);
    (state as u32) << LENGTH_BITS | pages.to_u32()
}

fn unpack(tag: u32) -> (RunState, usize) {
    let state = match tag >> LENGTH_BITS {
        1 => RunState::Free,
        2 => RunState::Allocated,
        3 => RunState::Cached,
        4 => RunState::Held,
        5 => RunState::Slab,
        6 => RunState::Area,
        _ => RunState::Inside,
    };
    (state, tag as usize & RUN_PAGES_MAX)
}
