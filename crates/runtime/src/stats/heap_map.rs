//! Heap map: where the pages of the heap are, in the statistics page, made when a viewer asks.
//!
//! A viewer asks by a store and a wake in the shared page; a worker that sleeps on it (`viewer`)
//! brings the gauges up to date and fills in the map. Nothing of this runs while nobody asks.
//!
//! Guarantees: what `read` answers is of one map; whatever a viewer writes into the page, the
//! process makes a map too many at most.
//! Never: allocates or blocks in the process, but in `wait_for_request`.
//! Threads: one worker writes; viewers of any process ask and read.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};
use core::time::Duration;

use deepheap_pager::Survey;
use deepheap_sys::threads::atomic::AtomicU32;
use deepheap_sys::threads::futex::{self, Woken};

/// Cells of a map.
pub(crate) const CELLS: usize = 4096;

/// The map in the shared page.
#[repr(C)]
pub struct HeapMap {
    /// Counts requests; the worker sleeps on it.
    requests: AtomicU32,
    /// Not zero: not only the gauges are wanted.
    is_wanted: AtomicU32,
    /// Odd while the map is written; 0 before the first.
    edition: AtomicU64,
    /// Address of the first page.
    address: AtomicU64,
    /// Pages of a cell, and of all.
    cell_pages: AtomicU64,
    pages: AtomicU64,
    cells: [AtomicU64; CELLS],
}

/// A copy of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapMapCopy {
    /// Tells this map from those before and after.
    pub edition: u64,
    /// Address of the first page.
    pub address: u64,
    /// Pages of a cell.
    pub cell_pages: u64,
    /// Pages of the heap's address space.
    pub pages: u64,
    /// Of some pages of each cell, evenly spread, how many were where.
    pub cells: Vec<Survey>,
}

impl HeapMap {
    /// The worker: sleeps until a viewer has asked since `answered`, or so long; answers the number
    /// to give next time.
    pub(crate) fn wait_for_request(&self, answered: u32, longest: Option<Duration>) -> u32 {
        loop {
            let requests = self.requests.load(Acquire);
            if requests != answered {
                return requests;
            }
            if futex::wait_shared(&self.requests, answered, longest) == Woken::TimedOut {
                return answered;
            }
        }
    }

    /// Whether the map was asked for since this was last asked.
    pub(crate) fn take_wish(&self) -> bool {
        self.is_wanted.swap(0, Acquire) != 0
    }

    /// Has the worker look: it was asked for the map, or for the gauges only.
    pub(crate) fn ask(&self, for_map: bool) {
        if for_map {
            self.is_wanted.store(1, Relaxed);
        }
        self.requests.fetch_add(1, Release);
        futex::wake_shared(&self.requests, 1);
    }

    /// The worker: writes a map of so many pages, each cell as `survey` answers for its first page
    /// and the one behind its last.
    pub(crate) fn write(
        &self,
        address: u64,
        pages: usize,
        survey: impl Fn(core::ops::Range<usize>) -> Survey,
    ) {
        let cell_pages = pages.div_ceil(CELLS).max(1);
        let edition = self.edition.load(Relaxed) | 1;
        self.edition.store(edition, Relaxed);
        // Readers that see a store below see the odd number, too.
        fence(Release);
        self.address.store(address, Relaxed);
        self.cell_pages.store(cell_pages as u64, Relaxed);
        self.pages.store(pages as u64, Relaxed);
        for (cell, first) in self.cells.iter().zip((0..pages).step_by(cell_pages)) {
            let counts = survey(first..(first + cell_pages).min(pages));
            cell.store(pack(counts), Relaxed);
        }
        self.edition.store(edition + 1, Release);
    }

    /// Where `edition` is in it.
    pub(crate) const EDITION_OFFSET: usize = core::mem::offset_of!(HeapMap, edition);

    /// In a copy of the page: forgets the map unless it has this edition, which the page itself had
    /// when all was copied.
    pub(crate) fn keep_if(&self, edition: u64) {
        if self.edition.load(Relaxed) != edition {
            self.edition.store(0, Relaxed);
        }
    }

    /// The content of a copy of the page; none before the first map, and while one was written.
    pub fn read(&self) -> Option<HeapMapCopy> {
        let edition = self.edition.load(Acquire);
        if edition == 0 || !edition.is_multiple_of(2) {
            return None;
        }
        let (cell_pages, pages) = (self.cell_pages.load(Relaxed), self.pages.load(Relaxed));
        let used = pages.div_ceil(cell_pages.max(1)).min(CELLS as u64) as usize;
        let cells = self.cells[..used].iter().map(|cell| unpack(cell.load(Relaxed))).collect();
        let address = self.address.load(Relaxed);
        fence(Acquire);
        let is_same = self.edition.load(Relaxed) == edition;
        is_same.then_some(HeapMapCopy { edition, address, cell_pages, pages, cells })
    }
}

/// Four counts in a word. A cell's pages that are looked at are fewer than 2^16.
fn pack(counts: Survey) -> u64 {
    let counts = [counts.resident, counts.cached, counts.stored, counts.nowhere];
    counts.iter().rev().fold(0, |word, count| word << 16 | u64::from(*count & 0xffff))
}

fn unpack(word: u64) -> Survey {
    let count = |at: u32| (word >> (16 * at)) as u32 & 0xffff;
    Survey { resident: count(0), cached: count(1), stored: count(2), nowhere: count(3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_read_as_it_was_written_and_its_cells_cover_all_pages() {
        for pages in [1, 4095, 4096, 4097, 100_000] {
            // SAFETY: zero bytes are valid atomics.
            let map: Box<HeapMap> = unsafe { Box::<HeapMap>::new_zeroed().assume_init() };
            assert_eq!(map.read(), None, "before the first");
            let covered = std::cell::Cell::new(0);
            map.write(0x1000, pages, |range| {
                assert_eq!(range.start, covered.replace(range.end), "of {pages}");
                let n = range.len() as u32;
                Survey { resident: n, cached: 1, stored: 65_535, nowhere: range.start as u32 % 99 }
            });
            assert_eq!(covered.get(), pages);
            let copy = map.read().expect("a map");
            assert_eq!((copy.address, copy.pages), (0x1000, pages as u64));
            let resident: u32 = copy.cells.iter().map(|cell| cell.resident).sum();
            assert_eq!(resident as usize, pages);
            assert!(copy.cells.iter().all(|cell| (cell.cached, cell.stored) == (1, 65_535)));
            map.edition.store(7, Relaxed);
            assert_eq!(map.read(), None, "half written");
        }
    }
}
