//! Page bits: one bit per page of the region; runs of whole spans have one bit a span.
//!
//! A span whose pages were all set by `set_run` is marked as a whole, and its words are zero. So a
//! huge run costs next to nothing. Changing a part of such a span writes its words out first.
//!
//! Guarantees: a change to a range never disturbs a page outside of it, whatever other threads do
//! there at the same time; a thread that acquires what was published after a change sees the
//! change.
//! Never: locks.
//! Threads: any; only the owner of pages changes their bits, and only the owner of all pages of a
//! span, or the holder of a lock that all owners take for it, uses `set_run` there.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_sys::errno::Result;

use crate::page::PAGES_PER_SPAN;
use crate::table::{Populated, Table};

const WORDS_PER_SPAN: usize = PAGES_PER_SPAN / 64;

/// A bit for each page.
pub(crate) struct PageBits {
    pub(crate) words: Table<AtomicU64>,
    /// A bit for each span all of whose pages are set.
    pub(crate) whole: Table<AtomicU64>,
}

impl PageBits {
    /// All bits clear, for `pages` pages.
    pub(crate) fn new(pages: usize, populated: &Populated) -> Result<Self> {
        let whole = pages.div_ceil(PAGES_PER_SPAN).div_ceil(64);
        Ok(Self {
            words: Table::new(pages.div_ceil(64), populated)?,
            whole: Table::new(whole, populated)?,
        })
    }

    /// Whether the bit of `page` is set; false beyond the region.
    #[inline]
    pub(crate) fn get(&self, page: usize) -> bool {
        // The word last: a thread that takes a span's mark away has written its words before.
        self.is_whole(page / PAGES_PER_SPAN) || self.words.bit(page)
    }

    /// How many bits of `range` are set.
    pub(crate) fn count(&self, range: Range<usize>) -> usize {
        let in_words =
            |range| pieces(range).map(|(at, mask)| self.masked(at, mask).count_ones() as usize);
        spans(range)
            .map(|(span, inside)| match self.is_whole(span) {
                true => inside.len(),
                false if self.is_untouched(span) => 0,
                false => in_words(inside).sum(),
            })
            .sum()
    }

    /// Sets all bits of `range`.
    pub(crate) fn set(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.words.mark(range.start / 64..range.end.div_ceil(64));
        for (at, mask) in pieces(range) {
            match mask {
                // The caller owns all 64 pages: no other thread changes this word.
                u64::MAX => self.words[at].store(u64::MAX, Ordering::Release),
                _ => drop(self.words[at].fetch_or(mask, Ordering::Release)),
            }
        }
    }

    /// As `set`, for pages of runs: of spans that lie in `range` whole it sets one bit.
    pub(crate) fn set_run(&self, range: Range<usize>) {
        for (span, inside) in spans(range) {
            if self.is_whole(span) {
                continue;
            }
            if inside.len() < PAGES_PER_SPAN {
                self.set(inside);
                continue;
            }
            self.whole.set_bit(span);
            if !self.is_untouched(span) {
                self.clear_words(inside);
            }
        }
    }

    /// Clears all bits of `range`.
    pub(crate) fn clear(&self, range: Range<usize>) {
        for (span, inside) in spans(range) {
            let is_all = inside.len() == PAGES_PER_SPAN;
            if self.is_whole(span) {
                if !is_all {
                    self.set(span * PAGES_PER_SPAN..(span + 1) * PAGES_PER_SPAN);
                }
                self.whole[span / 64].fetch_and(!(1 << (span % 64)), Ordering::Release);
                if is_all {
                    continue;
                }
            }
            if !self.is_untouched(span) {
                self.clear_words(inside);
            }
        }
    }

    fn clear_words(&self, range: Range<usize>) {
        for (at, mask) in pieces(range) {
            match mask {
                u64::MAX => self.words[at].store(0, Ordering::Release),
                _ => drop(self.words[at].fetch_and(!mask, Ordering::Release)),
            }
        }
    }

    #[inline]
    fn is_whole(&self, span: usize) -> bool {
        self.whole.bit(span)
    }

    /// Whether no word of the span was ever written.
    fn is_untouched(&self, span: usize) -> bool {
        !self.words.is_marked(span * WORDS_PER_SPAN)
    }

    /// Clears the bit of `page`; returns whether it was set. Of several threads only one gets true.
    #[inline]
    pub(crate) fn take(&self, page: usize) -> bool {
        let bit = 1 << (page % 64);
        self.words[page / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Sets the bits of `range` that are clear in `other`.
    pub(crate) fn set_unless(&self, other: &PageBits, range: Range<usize>) {
        for (span, inside) in spans(range) {
            if other.is_whole(span) {
                continue;
            }
            for (at, mask) in pieces(inside) {
                let bits = mask & !other.words[at].load(Ordering::Relaxed);
                if bits != 0 {
                    self.words.cell(at).fetch_or(bits, Ordering::Release);
                }
            }
        }
    }

    /// Whether the two ways to say what is set in `span` agree: if it is marked as a whole, its
    /// words are zero.
    pub(crate) fn agrees(&self, span: usize) -> bool {
        let words = span * WORDS_PER_SPAN..(span + 1) * WORDS_PER_SPAN;
        !self.is_whole(span)
            || self.is_untouched(span)
            || self.words[words].iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// The first set bit of `range`, which lies in one span.
    pub(crate) fn first(&self, range: Range<usize>) -> Option<usize> {
        if self.is_whole(range.start / PAGES_PER_SPAN) {
            return Some(range.start).filter(|_| !range.is_empty());
        }
        pieces(range).find_map(|(at, mask)| {
            let word = self.masked(at, mask);
            (word != 0).then(|| at * 64 + word.trailing_zeros() as usize)
        })
    }

    /// The last set bit of `range`, which lies in one span.
    pub(crate) fn last(&self, range: Range<usize>) -> Option<usize> {
        if self.is_whole(range.start / PAGES_PER_SPAN) {
            return range.end.checked_sub(1).filter(|_| !range.is_empty());
        }
        pieces(range).rev().find_map(|(at, mask)| {
            let word = self.masked(at, mask);
            (word != 0).then(|| at * 64 + 63 - word.leading_zeros() as usize)
        })
    }

    #[inline]
    fn masked(&self, at: usize, mask: u64) -> u64 {
        self.words[at].load(Ordering::Acquire) & mask
    }
}

/// The words that `range` covers, each with the mask of its bits in the range.
fn pieces(range: Range<usize>) -> impl DoubleEndedIterator<Item = (usize, u64)> {
    let Range { start, end } = range;
    let words = if start < end { start / 64..end.div_ceil(64) } else { 0..0 };
    words.map(move |at| {
        let low = start.saturating_sub(at * 64);
        let high = (end - at * 64).min(64);
        (at, (u64::MAX << low) & (u64::MAX >> (64 - high)))
    })
}

/// The spans that `range` touches, each with its part of the range.
fn spans(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let Range { start, end } = range;
    let spans =
        if start < end { start / PAGES_PER_SPAN..end.div_ceil(PAGES_PER_SPAN) } else { 0..0 };
    spans.map(move |span| {
        let first = span * PAGES_PER_SPAN;
        (span, start.max(first)..end.min(first + PAGES_PER_SPAN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_spans_cost_a_bit_each_and_can_be_taken_apart() {
        const SPAN: usize = PAGES_PER_SPAN;
        let populated = Populated::default();
        let bits = PageBits::new(4096 * SPAN, &populated).expect("address space");
        bits.set_run(0..4000 * SPAN + 100);
        assert_eq!(bits.count(0..4096 * SPAN), 4000 * SPAN + 100);
        assert!(populated.load(Ordering::Relaxed) <= 2, "{populated:?}");
        assert!(bits.get(0) && bits.get(4000 * SPAN + 99) && !bits.get(4000 * SPAN + 100));
        bits.clear(10 * SPAN + 5..10 * SPAN + 70);
        assert!(bits.get(10 * SPAN + 4) && !bits.get(10 * SPAN + 5));
        assert!(!bits.get(10 * SPAN + 69) && bits.get(10 * SPAN + 70));
        assert_eq!(bits.count(10 * SPAN..11 * SPAN), SPAN - 65);
        assert_eq!(bits.first(10 * SPAN + 5..11 * SPAN), Some(10 * SPAN + 70));
        assert_eq!(bits.last(12 * SPAN + 5..12 * SPAN + 9), Some(12 * SPAN + 8));
        bits.set_run(10 * SPAN..11 * SPAN);
        assert_eq!(bits.count(0..4096 * SPAN), 4000 * SPAN + 100);
        bits.clear(0..4096 * SPAN);
        assert_eq!(bits.count(0..4096 * SPAN), 0);
        bits.set_run(5..2 * SPAN);
        bits.clear(0..2 * SPAN);
        assert_eq!(bits.count(0..2 * SPAN), 0);
    }

    #[test]
    fn ranges_change_exactly_their_own_bits() {
        let bits = PageBits::new(400, &Populated::default()).expect("pinned memory");
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
