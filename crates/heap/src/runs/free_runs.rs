//! Free runs: the free runs of every published span, binned by length.
//!
//! Each span has 97 bins: lengths 1 to 15 exactly, then 8 bins a doubling up to the whole span.
//! A bin is a doubly linked list whose links live in a per-page table; an entirely free span is
//! just a bit. The highest bin in use is kept per span and per group of 64 spans, so that the
//! lowest span with room is found quickly.
//!
//! Guarantees: `search` finds a fit if one exists, in the lowest span of those it must look at, and
//! the lowest among the first entries of a bin. It may overlook a fit that is aligned only by
//! chance, in a run shorter than size and alignment together.
//! Never: merges, splits or counts: `coalescing` does that.
//! Threads: used under the lock of `Coalescing` only.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use deepheap_sys::errno::Result;
use deepheap_sys::narrow::Narrow;

use crate::page::PAGES_PER_SPAN;
use crate::runs::tags::{RunState, RunTags};
use crate::table::{Populated, Table};

const BINS: usize = WHOLE as usize + 1;
/// The bin of an entirely free span.
const WHOLE: u8 = 96;
/// The heads of spans are stored so many bytes apart, so that those of one span never straddle a
/// page.
const HEADS_STRIDE: usize = 128;
const SPANS_PER_GROUP: usize = 64;
/// In a bin of which only some lengths fit, so many entries are tried.
const TRIES_PER_BIN: usize = 4;
/// So many spans are tried in which only a lucky entry would fit.
const LUCKY_SPANS: usize = 4;

/// Index of the free runs.
pub(crate) struct FreeRuns {
    /// Per page: next in the bin (low half) and previous (high half), as page in span + 1. Of a run
    /// that is not free: what `link_of_no_free_run` keeps there.
    links: Table<AtomicU32>,
    /// Per span and bin: first entry, as page in span + 1.
    heads: Table<AtomicU16>,
    /// Per span two words: which bins are in use.
    in_use: Table<AtomicU64>,
    /// Per span: highest bin in use, 0 if none.
    top: Table<AtomicU8>,
    /// Per group of spans: at least its highest `top`; a search in vain lowers it.
    group_top: Table<AtomicU8>,
}

/// A fit that `search` found: `[at, at + pages)` inside the free run `[first, first + len)`.
pub(crate) struct Fit {
    pub first: usize,
    pub len: usize,
    pub at: usize,
}

fn bin_of(pages: usize) -> u8 {
    debug_assert!((1..=PAGES_PER_SPAN).contains(&pages));
    if pages < 16 {
        return pages.to_u8();
    }
    let doubling = pages.ilog2();
    let eighth = (pages >> (doubling - 3)) & 7;
    (16 + (doubling as usize - 4) * 8 + eighth).to_u8()
}

/// The lowest bin whose every entry has at least `pages` pages.
fn ample_bin(pages: usize) -> u8 {
    if pages < 16 {
        return pages.to_u8();
    }
    bin_of((pages + (1 << (pages.ilog2() - 3)) - 1).min(PAGES_PER_SPAN))
}

impl FreeRuns {
    /// No free runs, for a region of `spans` spans.
    pub(crate) fn new(spans: usize, populated: &Populated) -> Result<Self> {
        Ok(Self {
            links: Table::new(spans * PAGES_PER_SPAN, populated)?,
            heads: Table::new(spans * HEADS_STRIDE, populated)?,
            in_use: Table::new(spans * 2, populated)?,
            top: Table::new(spans, populated)?,
            group_top: Table::new(spans.div_ceil(SPANS_PER_GROUP), populated)?,
        })
    }

    /// Adds a free run; it lies within one span.
    pub(crate) fn insert(&self, first: usize, pages: usize) {
        let span = first / PAGES_PER_SPAN;
        let bin = bin_of(pages);
        if bin == WHOLE {
            return self.set_in_use(span, WHOLE);
        }
        let head_at = span * HEADS_STRIDE + bin as usize;
        let name = (first % PAGES_PER_SPAN + 1).to_u16();
        let head = self.heads.cell(head_at);
        let next = head.load(Relaxed);
        self.set_links(first, next, 0);
        if next != 0 {
            let page = span * PAGES_PER_SPAN + next as usize - 1;
            let (after, _) = self.links(page);
            self.set_links(page, after, name);
        }
        head.store(name, Relaxed);
        self.set_in_use(span, bin);
    }

    fn set_in_use(&self, span: usize, bin: u8) {
        let at = span * 2 + bin as usize / 64;
        let word = self.in_use.cell(at);
        word.store(word.load(Relaxed) | 1 << (bin % 64), Relaxed);
        if bin > self.top[span].load(Relaxed) {
            self.set_top(span, bin);
        }
    }

    /// Takes a free run out.
    pub(crate) fn remove(&self, first: usize, pages: usize) {
        let span = first / PAGES_PER_SPAN;
        let bin = bin_of(pages);
        let (next, previous) = if bin == WHOLE { (0, 0) } else { self.links(first) };
        if next != 0 {
            let page = span * PAGES_PER_SPAN + next as usize - 1;
            let (after, _) = self.links(page);
            self.set_links(page, after, previous);
        }
        if previous != 0 {
            let page = span * PAGES_PER_SPAN + previous as usize - 1;
            let (_, before) = self.links(page);
            self.set_links(page, next, before);
            return;
        }
        if bin != WHOLE {
            self.heads[span * HEADS_STRIDE + bin as usize].store(next, Relaxed);
        }
        if next != 0 {
            return;
        }
        let word = &self.in_use[span * 2 + bin as usize / 64];
        word.store(word.load(Relaxed) & !(1 << (bin % 64)), Relaxed);
        if bin == self.top[span].load(Relaxed) {
            let used = self.bins_in_use(span);
            self.set_top(span, if used == 0 { 0 } else { 127 - used.leading_zeros().to_u8() });
        }
    }

    /// A place for `pages` pages at a multiple of `align` pages, within one span.
    pub(crate) fn search(&self, tags: &RunTags, pages: usize, align: usize) -> Option<Fit> {
        let lucky = bin_of(pages);
        // Spans are as aligned as any run in them may ask to be, so an entirely free one fits.
        let ample = ample_bin((pages + align - 1).min(PAGES_PER_SPAN));
        let mut from = 0;
        for _ in 0..LUCKY_SPANS {
            let span = self.lowest_span(from, lucky)?;
            let place = self.search_span(tags, span, lucky, ample, pages, align);
            if place.is_some() {
                return place;
            }
            from = span + 1;
        }
        let span = self.lowest_span(from, ample)?;
        self.search_span(tags, span, lucky, ample, pages, align)
    }

    /// The lowest run of `count` entirely free spans.
    pub(crate) fn search_whole(&self, count: usize) -> Option<usize> {
        let mut start = 0;
        loop {
            start = self.lowest_span(start, WHOLE)?;
            let length = self.whole_spans_at(start, count);
            if length == count {
                return Some(start);
            }
            start += length;
        }
    }

    /// How many spans from `start` on are entirely free, up to `most`.
    pub(crate) fn whole_spans_at(&self, start: usize, most: usize) -> usize {
        let rest = self.top.get(start..).unwrap_or(&[]);
        rest.iter().take(most).take_while(|top| top.load(Relaxed) == WHOLE).count()
    }

    /// The free runs of a span, longest bins first.
    pub(crate) fn of_span<'a>(
        &'a self,
        tags: &'a RunTags,
        span: usize,
    ) -> impl Iterator<Item = (usize, usize)> + 'a {
        let used = self.bins_in_use(span);
        let bins = (0..BINS).rev().filter(move |bin| used >> bin & 1 == 1);
        bins.flat_map(move |bin| self.entries(tags, span, bin))
    }

    fn search_span(
        &self,
        tags: &RunTags,
        span: usize,
        lucky: u8,
        ample: u8,
        pages: usize,
        align: usize,
    ) -> Option<Fit> {
        let mut bins = self.bins_in_use(span) >> lucky << lucky;
        while bins != 0 {
            let bin = bins.trailing_zeros() as usize;
            let fits =
                self.entries(tags, span, bin).take(TRIES_PER_BIN).filter_map(|(first, len)| {
                    let at = first.next_multiple_of(align);
                    (at + pages <= first + len).then_some(Fit { first, len, at })
                });
            let lowest = fits.min_by_key(|place| place.first);
            debug_assert!(bin < ample as usize || lowest.is_some());
            if lowest.is_some() {
                return lowest;
            }
            bins &= bins - 1;
        }
        None
    }

    fn entries<'a>(
        &'a self,
        tags: &'a RunTags,
        span: usize,
        bin: usize,
    ) -> impl Iterator<Item = (usize, usize)> + 'a {
        let mut is_whole = bin == usize::from(WHOLE);
        let mut name =
            if is_whole { 0 } else { self.heads[span * HEADS_STRIDE + bin].load(Relaxed) };
        core::iter::from_fn(move || {
            if core::mem::take(&mut is_whole) {
                return Some((span * PAGES_PER_SPAN, PAGES_PER_SPAN));
            }
            let first = span * PAGES_PER_SPAN + usize::from(name).checked_sub(1)?;
            let (state, pages) = tags.get(first);
            debug_assert_eq!(state, RunState::Free);
            name = self.links(first).0;
            Some((first, pages))
        })
    }

    fn bins_in_use(&self, span: usize) -> u128 {
        let low = self.in_use[span * 2].load(Relaxed);
        let high = self.in_use[span * 2 + 1].load(Relaxed);
        u128::from(high) << 64 | u128::from(low)
    }

    /// The lowest span at or after `from` whose highest bin is at least `bin`.
    fn lowest_span(&self, from: usize, bin: u8) -> Option<usize> {
        for group in from / SPANS_PER_GROUP..self.group_top.len() {
            if self.group_top[group].load(Relaxed) < bin {
                continue;
            }
            let start = group * SPANS_PER_GROUP;
            let end = (start + SPANS_PER_GROUP).min(self.top.len());
            let found = (start.max(from)..end).find(|&span| self.top[span].load(Relaxed) >= bin);
            if found.is_some() {
                return found;
            }
            let highest = self.top[start..end].iter().map(|top| top.load(Relaxed)).max();
            self.group_top[group].store(highest.unwrap_or(0), Relaxed);
        }
        None
    }

    fn set_top(&self, span: usize, bin: u8) {
        self.top.cell(span).store(bin, Relaxed);
        let group = span / SPANS_PER_GROUP;
        if bin > self.group_top[group].load(Relaxed) {
            self.group_top.cell(group).store(bin, Relaxed);
        }
    }

    /// A word for the first page of a run that is not free: the next parked run.
    pub(crate) fn link_of_no_free_run(&self, page: usize) -> &AtomicU32 {
        self.links.cell(page)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    fn links(&self, page: usize) -> (u16, u16) {
        let links = self.links[page].load(Relaxed);
        (links as u16, (links >> 16) as u16)
    }

    fn set_links(&self, page: usize, next: u16, previous: u16) {
        self.links.cell(page).store(u32::from(previous) << 16 | u32::from(next), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_ordered_and_ample_ones_always_fit() {
        let mut floor = [usize::MAX; BINS];
        for pages in 1..=PAGES_PER_SPAN {
            let bin = bin_of(pages) as usize;
            floor[bin] = floor[bin].min(pages);
            assert!(pages == 1 || bin_of(pages - 1) as usize <= bin);
        }
        assert_eq!(bin_of(PAGES_PER_SPAN), WHOLE);
        for pages in 1..=PAGES_PER_SPAN {
            assert!(floor[ample_bin(pages) as usize] >= pages, "{pages}");
        }
    }
}
