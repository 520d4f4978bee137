//! Ranges: when the 2 MiB around an address left the page tables of this process as a whole.
//!
//! Time is counted in pages that have left RAM, as far as 32 bits tell.
//!
//! Never: allocates, but for `new` | locks.
//! Threads: any, also in a signal handler.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};

/// Bytes that a page table of the kernel's maps.
pub(crate) const RANGE: usize = 2 << 20;
/// Pages in RAM for each range that is remembered: where a range has fewer, little is gained.
const PAGES_OF_RANGE: u64 = 8;

/// See the file's header.
pub(crate) struct Ranges {
    /// Ranges that share a place are unmapped page by page now and then.
    places: Box<[AtomicU32]>,
    /// Whether the last eviction found pages that were changed.
    pub had_changes: AtomicBool,
}

impl Ranges {
    /// For so many pages of RAM.
    pub(crate) fn new(budget_pages: u64) -> Ranges {
        let places = (budget_pages / PAGES_OF_RANGE).next_power_of_two();
        let places = (0..places).map(|_| AtomicU32::new(0)).collect();
        Ranges { places, had_changes: AtomicBool::new(false) }
    }

    /// Whether the range of an address is to be unmapped as a whole at this time; then the next
    /// time for it is a while later.
    pub(crate) fn is_due(&self, address: usize, now: u32, interval: u32) -> bool {
        let last = &self.places[(address / RANGE) & (self.places.len() - 1)];
        let is_due = now.wrapping_sub(last.load(Relaxed)) >= interval;
        if is_due {
            last.store(now, Relaxed);
        }
        is_due
    }
}
