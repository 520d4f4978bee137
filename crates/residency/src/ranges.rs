//! Ranges: for every 2 MiB of the region, how many of its pages are in the page buffer, and
//! whether the kernel keeps a page table for it.
//!
//! A page table costs 4 KiB however few pages it maps, and with an object on every page a range
//! often holds only one resident page. When the last page leaves, eviction zaps the whole range,
//! which makes the kernel free the table. Meanwhile the range is closed: a thread that wants to
//! install a page there waits.
//!
//! Guarantees: while a range is closed its only pages are those of the thread that closed it.
//! Never: allocates. `enter` waits for one eviction at most, whose thread waits for no other
//! meanwhile.
//! Threads: any, also in a signal handler.

use deepheap_heap::PageNo;
use deepheap_sys::errno::Result;
use deepheap_sys::memory::page_extractor::RANGE;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU16, AtomicUsize, Ordering};
use deepheap_sys::threads::parking::Parking;

use crate::PAGE;

/// Pages of a range.
const PAGES: usize = RANGE / PAGE;
/// A thread is about to zap the range.
const CLOSED: u16 = 1 << 15;
/// The kernel has a page table for it.
const TABLE: u16 = 1 << 14;
const COUNT: u16 = TABLE - 1;

const _: () = assert!(PAGES <= COUNT as usize);

/// See the file's header. Two bytes of DRAM for every 2 MiB once touched.
pub struct Ranges {
    words: PinnedArray<AtomicU16>,
    tables: AtomicUsize,
    /// Where threads sleep that found a range closed.
    opened: Parking,
}

/// The number of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeNo(usize);

impl RangeNo {
    /// The range of a page.
    pub fn of(page: PageNo) -> RangeNo {
        RangeNo(page.0 as usize / PAGES)
    }

    /// Its place in a table of all ranges.
    pub fn index(self) -> usize {
        self.0
    }
}

impl Ranges {
    /// Ranges of a region of `pages` pages, all empty.
    pub fn new(pages: usize) -> Result<Ranges> {
        let words = PinnedArray::new(pages.div_ceil(PAGES))?;
        Ok(Ranges { words, tables: AtomicUsize::new(0), opened: Parking::new() })
    }

    /// Counts a page before it is installed; waits while its range is closed.
    pub fn enter(&self, page: PageNo) {
        let word = &self.words[RangeNo::of(page).0];
        let mut old = word.load(Ordering::Relaxed);
        loop {
            if old & CLOSED != 0 {
                self.opened.wait_unless(|| word.load(Ordering::SeqCst) & CLOSED == 0);
                old = word.load(Ordering::Relaxed);
                continue;
            }
            let new = (old | TABLE) + 1;
            // Acquire: the thread that opened the range again has ended its zap.
            match word.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        if old & TABLE == 0 {
            self.tables.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that the kernel has a page table for the range of a page that does not count here: one
    /// of a window (`lanes`). Such a range is closed by a forked child only, which is alone.
    pub(crate) fn note_table(&self, page: PageNo) {
        let word = &self.words[RangeNo::of(page).0];
        if word.load(Ordering::Relaxed) & TABLE == 0
            && word.fetch_or(TABLE, Ordering::Relaxed) & TABLE == 0
        {
            self.tables.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A page has left, or was not installed after all.
    pub fn leave(&self, page: PageNo) {
        self.leave_many(RangeNo::of(page), 1);
    }

    /// So many pages of an open range have left.
    pub fn leave_many(&self, range: RangeNo, pages: usize) {
        let before = self.words[range.0].fetch_sub(pages as u16, Ordering::Release);
        debug_assert!((before & COUNT) as usize >= pages, "a page left that had never entered");
    }

    /// Closes the range if the `owned` pages that the caller takes out are its last ones.
    #[must_use]
    pub fn close(&self, range: RangeNo, owned: usize) -> bool {
        let open = owned as u16 | TABLE;
        let word = &self.words[range.0];
        word.compare_exchange(open, open | CLOSED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Opens a closed range again, in which `left` pages could not be taken out and stay.
    pub fn open(&self, range: RangeNo, left: usize) {
        let word = if left == 0 { 0 } else { left as u16 | TABLE };
        if left == 0 {
            self.tables.fetch_sub(1, Ordering::Relaxed);
        }
        self.words[range.0].store(word, Ordering::SeqCst);
        self.opened.notify(u32::MAX);
    }

    /// Pages in the range or arriving; none while it is closed.
    #[cfg(any(test, debug_assertions))]
    pub fn pages(&self, range: RangeNo) -> Option<usize> {
        let word = self.words[range.0].load(Ordering::Relaxed);
        (word & CLOSED == 0).then_some((word & COUNT) as usize)
    }

    /// Bytes of page tables of the lowest level that the kernel keeps for the region.
    pub fn page_table_bytes(&self) -> usize {
        self.tables.load(Ordering::Relaxed) * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_pages_close_a_range_and_nobody_enters_a_closed_one() {
        let ranges = Ranges::new(4 * PAGES).expect("memory");
        let inside = core::sync::atomic::AtomicU32::new(0);
        let (page, closed) = (PageNo(PAGES as u32 + 3), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        ranges.enter(page);
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        // The last one in closes; the others just leave.
                        if ranges.close(RangeNo::of(page), 1) {
                            closed.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(inside.load(Ordering::SeqCst), 0, "entered while closed");
                            ranges.open(RangeNo::of(page), 0);
                        } else {
                            ranges.leave(page);
                        }
                    }
                });
            }
        });
        assert!(closed.load(Ordering::Relaxed) > 0);
        assert!(ranges.page_table_bytes() <= PAGE);
    }
}
