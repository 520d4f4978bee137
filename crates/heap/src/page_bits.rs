//! Page bits: one bit per page of the region.
//!
//! Guarantees: a change to a range never disturbs a page outside of it, whatever other threads
//! do there at the same time; a change is visible to whoever acquires what was published after.
//! Never: locks.
//! Threads: any; who may change a range is the owner of its pages.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_sys::errno::Result;

use crate::table::Table;

/// A bit for each page.
pub(crate) struct PageBits {
    words: Table<AtomicU64>,
}

impl PageBits {
    /// All bits clear, for `pages` pages.
    pub fn new(pages: usize) -> Result<Self> {
        Ok(Self { words: Table::new(pages.div_ceil(64))? })
    }

    /// Whether the bit of `page` is set; false beyond the region.
    #[inline]
    pub fn get(&self, page: usize) -> bool {
        let word = self.words.get(page / 64).map_or(0, |word| word.load(Ordering::Acquire));
        word >> (page % 64) & 1 == 1
    }

    /// How many bits of `range` are set.
    pub fn count(&self, range: Range<usize>) -> usize {
        pieces(range).map(|(at, mask)| self.masked(at, mask).count_ones() as usize).sum()
    }

    /// Sets all bits of `range`.
    pub fn set(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.words.mark(range.start / 64..range.end.div_ceil(64));
        for (at, mask) in pieces(range) {
            match mask {
                // All 64 pages are the caller's: nobody else changes this word.
                u64::MAX => self.words[at].store(u64::MAX, Ordering::Release),
                _ => drop(self.words[at].fetch_or(mask, Ordering::Release)),
            }
        }
    }

    /// Clears all bits of `range`.
    pub fn clear(&self, range: Range<usize>) {
        for (at, mask) in pieces(range) {
            match mask {
                u64::MAX => self.words[at].store(0, Ordering::Release),
                _ => drop(self.words[at].fetch_and(!mask, Ordering::Release)),
            }
        }
    }

    /// Clears the bit of `page`; whether it was set. Of several threads, one is told so.
    #[inline]
    pub fn take(&self, page: usize) -> bool {
        let bit = 1 << (page % 64);
        self.words[page / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// The first set bit of `range`.
    pub fn first(&self, range: Range<usize>) -> Option<usize> {
        pieces(range).find_map(|(at, mask)| {
            let word = self.masked(at, mask);
            (word != 0).then(|| at * 64 + word.trailing_zeros() as usize)
        })
    }

    /// The last set bit of `range`.
    pub fn last(&self, range: Range<usize>) -> Option<usize> {
        let mut found = None;
        for (at, mask) in pieces(range) {
            let word = self.masked(at, mask);
            if word != 0 {
                found = Some(at * 64 + 63 - word.leading_zeros() as usize);
            }
        }
        found
    }

    /// Bytes of memory it takes up.
    pub fn populated_bytes(&self) -> usize {
        self.words.populated_bytes()
    }

    #[inline]
    fn masked(&self, at: usize, mask: u64) -> u64 {
        self.words[at].load(Ordering::Acquire) & mask
    }
}

/// The words that `range` covers, each with the mask of its bits in the range.
fn pieces(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = range;
    let words = if start < end { start / 64..end.div_ceil(64) } else { 0..0 };
    words.map(move |at| {
        let low = start.saturating_sub(at * 64);
        let high = (end - at * 64).min(64);
        (at, (u64::MAX << low) & (u64::MAX >> (64 - high)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_change_exactly_their_own_bits() {
        let bits = PageBits::new(400).expect("pinned memory");
        for (start, end) in [(0, 1), (0, 64), (3, 61), (63, 65), (60, 300), (5, 5), (128, 400)] {
            bits.set(start..end);
            assert_eq!(bits.count(0..400), end - start);
            assert_eq!(bits.first(0..400), (start < end).then_some(start));
            assert_eq!(bits.last(0..400), (start < end).then(|| end - 1));
            assert!((0..400).all(|page| bits.get(page) == (start..end).contains(&page)));
            bits.clear(start..end);
            assert_eq!(bits.count(0..400), 0);
        }
        assert!(!bits.get(1 << 20));
    }
}
