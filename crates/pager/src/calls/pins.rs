//! Pins: how many there are, and of which pages some could not be made and have not ended yet.
//!
//! A caller that pins a range ends the pins of the whole range later, and does not know which of
//! its pages could not be pinned. So such a pin is counted here. An unpin of a page first ends a
//! pin that is counted here, of any caller: the counts here and at the descriptor together are the
//! pins that have not ended, and so the descriptor never counts too few.
//!
//! Guarantees: `end` answers true once for each `note` of the page.
//! Never: allocates, blocks. Its table takes RAM only where a pin was refused.
//! Threads: any. A pin happens before its unpin.

use deepheap_heap::PageNo;
use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How many pins there are.
pub(crate) struct Pins {
    /// Pages that the program has pinned by calls, each counted once for every call.
    pub(crate) long: AtomicUsize,
    /// As `long`, for calls that have not returned.
    pub(crate) calls: AtomicUsize,
    pub(crate) refused: RefusedPins,
}

impl Pins {
    /// None so far, for a region of `pages` pages.
    pub(crate) fn new(pages: usize) -> Result<Pins> {
        let [long, calls] = [const { AtomicUsize::new(0) }; 2];
        Ok(Pins { long, calls, refused: RefusedPins::new(pages)? })
    }

    /// Whether so much is pinned, by a page buffer of so many pages, that evictions would often
    /// meet it.
    pub(crate) fn are_many(&self, limit: usize) -> bool {
        let calls = (self.calls.load(Ordering::Relaxed) as isize).max(0) as usize;
        self.long.load(Ordering::Relaxed) + calls > limit / 8
    }
}

/// The refused pins of a region, by page.
pub(crate) struct RefusedPins {
    counts: PinnedArray<AtomicU32>,
    /// The sum of the counts. Mostly 0: then nobody looks at the table.
    sum: AtomicUsize,
}

impl RefusedPins {
    /// None so far, for a region of `pages` pages.
    pub(crate) fn new(pages: usize) -> Result<RefusedPins> {
        Ok(RefusedPins { counts: PinnedArray::new(pages)?, sum: AtomicUsize::new(0) })
    }

    /// Pages of the region.
    pub(crate) fn pages(&self) -> usize {
        self.counts.len()
    }

    /// Counts a pin that could not be made.
    pub(crate) fn note(&self, page: PageNo) {
        // The sum first: it is never too small.
        self.sum.fetch_add(1, Ordering::Relaxed);
        self.counts[page.0 as usize].fetch_add(1, Ordering::Release);
    }

    /// Ends a refused pin of the page; false if it has none.
    pub(crate) fn end(&self, page: PageNo) -> bool {
        if self.sum.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let less = |count: u32| count.checked_sub(1);
        let count = &self.counts[page.0 as usize];
        let ended = count.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok();
        if ended {
            self.sum.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }
}
