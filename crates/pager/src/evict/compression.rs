//! Compression: which pages are compressed, and which of them once more (`reclaim/dense`).
//!
//! Where pages did not compress, few are tried: after each page in a row that did not, so many more
//! of its 2 MiB range are passed over: 1, 2, 4, ... 128. One that compresses ends that. The second
//! step counts for itself.
//!
//! Never: allocates after `new`, waits.
//! Threads: any; a race tries a page too many, or too few.

use deepheap_heap::PageNo;
use deepheap_policy::balance::{self, DenseCosts};
use deepheap_residency::ranges::RangeNo;
use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use crate::PAGE;

/// Which pages are compressed when they leave the page buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compress {
    /// Those that become a sixth smaller at least; where pages do not, few are tried. What would
    /// leave RAM is compressed once more.
    #[default]
    Auto,
    /// None.
    Off,
    /// Each that becomes an eighth smaller at least; every one is tried.
    Lz4,
}

/// Misses in a row that count: then 128 pages are passed over for each that is tried.
const MISSES_MAX: u16 = 7;
/// The lower half is how many pages are still passed over, the upper half the misses in a row.
const PASSED: u16 = 0xff;

/// See the file's header. Four bytes for each range, where ranges are used.
pub(crate) struct Compression {
    compress: Compress,
    /// By LZ4, when a page leaves the page buffer.
    pub(crate) first: Trials,
    /// By zstd, when a compressed page would leave the cache.
    pub(crate) second: SecondStep,
}

/// Where the second step was of use, and whether it pays at all (`reclaim/dense`).
pub(crate) struct SecondStep {
    pub(crate) trials: Trials,
    /// Dense objects that had come back, and that had left, at the last decision. Only the deciding
    /// thread changes them.
    outcomes: [AtomicU64; 2],
    pays: AtomicBool,
}

/// Where one step was of use.
pub(crate) struct Trials(PinnedArray<AtomicU16>);

impl Compression {
    /// For a region of so many pages.
    pub(crate) fn new(compress: Compress, pages: usize) -> Result<Compression> {
        Ok(Compression { compress, first: Trials::new(pages)?, second: SecondStep::new(pages)? })
    }

    /// Whether anything is compressed.
    pub(crate) fn is_on(&self) -> bool {
        self.compress != Compress::Off
    }

    /// The most bytes of a compressed page that are worth it.
    pub(crate) fn most_bytes(&self) -> usize {
        match self.compress {
            Compress::Auto => PAGE * 5 / 6,
            Compress::Off => 0,
            Compress::Lz4 => PAGE * 7 / 8,
        }
    }

    /// Whether to try this page when it leaves the page buffer.
    pub(crate) fn is_tried(&self, page: PageNo) -> bool {
        match self.compress {
            Compress::Auto => self.first.is_next(page),
            Compress::Off => false,
            Compress::Lz4 => true,
        }
    }
}

impl SecondStep {
    fn new(pages: usize) -> Result<SecondStep> {
        let (trials, pays) = (Trials::new(pages)?, AtomicBool::new(true));
        Ok(SecondStep { trials, outcomes: Default::default(), pays })
    }

    /// Whether objects become dense instead of leaving the cache.
    pub(crate) fn pays(&self) -> bool {
        self.pays.load(Ordering::Relaxed)
    }

    /// Decides that anew once enough dense objects came back or left, of so many in all. One thread
    /// at a time.
    pub(crate) fn judge(&self, back: u64, left: u64, costs: &DenseCosts) {
        let before = self.outcomes.each_ref().map(|count| count.load(Ordering::Relaxed));
        let [more_back, more_left] = [back - before[0], left - before[1]];
        if more_back + more_left >= balance::DENSE_OUTCOMES {
            self.outcomes[0].store(back, Ordering::Relaxed);
            self.outcomes[1].store(left, Ordering::Relaxed);
            let pays = balance::dense_pays(self.pays(), more_back, more_left, costs);
            self.pays.store(pays, Ordering::Relaxed);
        }
    }
}

impl Trials {
    fn new(pages: usize) -> Result<Trials> {
        let last = RangeNo::of(PageNo(pages.saturating_sub(1) as u32));
        Ok(Trials(PinnedArray::new(last.index() + 1)?))
    }

    /// Whether to try this page.
    pub(crate) fn is_next(&self, page: PageNo) -> bool {
        let range = self.range(page);
        let state = range.load(Ordering::Relaxed);
        if state & PASSED == 0 {
            return true;
        }
        range.store(state - 1, Ordering::Relaxed);
        false
    }

    /// The page was tried.
    pub(crate) fn note(&self, page: PageNo, compressed: bool) {
        let range = self.range(page);
        let state = range.load(Ordering::Relaxed);
        let next = match (state >> 8, compressed) {
            (_, true) => 0,
            (misses, false) => {
                let misses = (misses + 1).min(MISSES_MAX);
                misses << 8 | 1 << misses
            }
        };
        if next != state {
            range.store(next, Ordering::Relaxed);
        }
    }

    fn range(&self, page: PageNo) -> &AtomicU16 {
        &self.0[RangeNo::of(page).index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_compress_is_tried_less_and_less_until_it_does() {
        let compression = Compression::new(Compress::Auto, 4096).expect("memory");
        let tried = |count: u32| (0..count).filter(|_| compression.is_tried(PageNo(7))).count();
        assert_eq!(tried(100), 100);
        let mut trials = 0;
        for _ in 0..10_000 {
            if compression.is_tried(PageNo(7)) {
                trials += 1;
                compression.first.note(PageNo(7), false);
            }
        }
        assert!((70..100).contains(&trials), "{trials}: under one in a hundred");
        assert!(compression.is_tried(PageNo(4095)), "another range");
        while !compression.is_tried(PageNo(7)) {}
        compression.first.note(PageNo(7), true);
        assert_eq!(tried(100), 100);
    }

    #[test]
    fn whether_objects_become_dense_follows_what_became_of_the_last_ones() {
        let costs = DenseCosts { bytes_before: 4, bytes: 2, press_ns: 12_000, read_ns: 70_000 };
        let second = SecondStep::new(4096).expect("memory");
        assert!(second.pays(), "at first");
        second.judge(0, balance::DENSE_OUTCOMES - 1, &costs);
        assert!(second.pays(), "little evidence");
        second.judge(0, balance::DENSE_OUTCOMES, &costs);
        assert!(!second.pays(), "none came back");
        second.judge(balance::DENSE_OUTCOMES, balance::DENSE_OUTCOMES, &costs);
        assert!(second.pays(), "all came back");
    }
}
