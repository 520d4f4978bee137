//! Unit: a run of pages with one fate (free, allocated, a slab, in quarantine), and its tag.
//!
//! A unit's first page carries its state and length; the last page of a free unit repeats it, so
//! that its neighbour above can find it, and the last page of any other unit carries `Inside`.
//! Units tile every published span without gaps; only huge ones reach beyond a span.
//!
//! ```text
//! Free      -> Allocated [Coalescing::allocate]   Free      -> Slab [Coalescing::allocate_slab]
//! Allocated -> Cached    [cache]                  Cached    -> Allocated [uncache]
//! Allocated -> Held      [hold]                   Cached    -> Held [hold]
//! Slab      -> Held      [hold]                   Free      -> Held [Coalescing::take_purgeable]
//! Held      -> Free      [Coalescing::recycle]
//! ```
//!
//! Guarantees: `Allocated` and `Cached` stand only on the first page of such a unit, never on a
//! stale tag: they are left by overwriting them, and merging touches free units only.
//! Never: locks.
//! Threads: leaving `Allocated` is a compare-exchange, from any thread; all else under the lock
//! of `Coalescing`, or by the thread whose cache holds the unit.

use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_sys::errno::Result;

use crate::table::Table;

/// What a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// Not the first page of anything.
    Inside = 0,
    Free = 1,
    Allocated = 2,
    /// In a thread cache: allocated for everyone but that thread.
    Cached = 3,
    /// In quarantine or parked.
    Held = 4,
    Slab = 5,
}

const LENGTH_BITS: u32 = 29;
/// Longest unit, in pages (2 TiB).
pub(crate) const UNIT_PAGES_MAX: usize = (1 << LENGTH_BITS) - 1;

/// The tags of all pages.
pub(crate) struct Units {
    tags: Table<AtomicU32>,
}

impl Units {
    /// All pages `Inside`.
    pub fn new(pages: usize) -> Result<Self> {
        Ok(Self { tags: Table::new(pages)? })
    }

    /// State and length on the tag of `page`; `Inside` beyond the region.
    #[inline]
    pub fn get(&self, page: usize) -> (State, usize) {
        unpack(self.tags.get(page).map_or(0, |tag| tag.load(Ordering::Acquire)))
    }

    /// Tags the unit `[first, first + pages)`, both ends. Its pages are the caller's.
    pub fn set(&self, first: usize, pages: usize, state: State) {
        let last = first + pages - 1;
        self.tags.mark(first..first + 1);
        self.tags.mark(last..last + 1);
        let end = if state == State::Free { pack(state, pages) } else { 0 };
        self.tags[last].store(end, Ordering::Relaxed);
        self.tags[first].store(pack(state, pages), Ordering::Release);
    }

    /// Says that `page` is the last one of a unit that is neither free nor one page long.
    pub fn set_inside(&self, page: usize) {
        self.tags.mark(page..page + 1);
        self.tags[page].store(0, Ordering::Relaxed);
    }

    /// Changes the unit's tag if it is exactly `from` now; of two threads one succeeds.
    pub fn change(&self, first: usize, from: (State, usize), to: (State, usize)) -> bool {
        let (from, to) = (pack(from.0, from.1), pack(to.0, to.1));
        let tag = &self.tags[first];
        tag.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Allocated -> Cached. Not atomic against a second free of the same unit at the same time,
    /// which is the program's error; the tag stays well-formed even then.
    #[inline]
    pub fn cache(&self, first: usize, pages: usize) {
        self.tags[first].store(pack(State::Cached, pages), Ordering::Relaxed);
    }

    /// Cached -> Allocated.
    #[inline]
    pub fn uncache(&self, first: usize, pages: usize) {
        self.tags[first].store(pack(State::Allocated, pages), Ordering::Relaxed);
    }

    /// Bytes of memory it takes up.
    pub fn populated_bytes(&self) -> usize {
        self.tags.populated_bytes()
    }
}

fn pack(state: State, pages: usize) -> u32 {
    debug_assert!(pages <= UNIT_PAGES_MAX);
    (state as u32) << LENGTH_BITS | pages as u32
}

fn unpack(tag: u32) -> (State, usize) {
    let state = match tag >> LENGTH_BITS {
        1 => State::Free,
        2 => State::Allocated,
        3 => State::Cached,
        4 => State::Held,
        5 => State::Slab,
        _ => State::Inside,
    };
    (state, tag as usize & UNIT_PAGES_MAX)
}
