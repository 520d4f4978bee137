//! Area table: which pages of which area the program has mapped.
//!
//! An area is what one `mmap` got; its address space goes back to the heap when the program has
//! unmapped all of it. Until then what it has unmapped is a gap.
//!
//! Guarantees: mapped pages and holes lie in areas; areas do not overlap.
//! Never: touches memory, locks, calls the kernel.
//! Threads: plain values; the owner locks.

use core::ops::Range;
use std::collections::BTreeMap;

/// One area, from its first page to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    /// The page after the last one.
    pub(crate) end: usize,
    /// Whether a part of it has ever had another protection than to read and write.
    pub(crate) is_protected: bool,
}

/// The state under the lock of the areas.
#[derive(Default)]
pub(crate) struct Areas {
    pub(crate) table: AreaTable,
    /// Whole spans that were areas, by first span: how many.
    pub(crate) free_spans: BTreeMap<usize, usize>,
}

/// All areas. Pages are numbers in the region.
#[derive(Default)]
pub(crate) struct AreaTable {
    /// By first page.
    areas: BTreeMap<usize, Area>,
    /// Mapped pages, by first page.
    mapped: BTreeMap<usize, usize>,
    /// Mappings of the kernel in place of our memory, by first page; parts of `mapped`.
    holes: BTreeMap<usize, usize>,
    /// Pages that could be touched since they last were zeros, by first page. All else is zeros.
    touchable: BTreeMap<usize, usize>,
    mapped_pages: usize,
}

impl AreaTable {
    /// Adds an area, all of it mapped.
    pub(crate) fn add(&mut self, pages: Range<usize>) {
        self.areas.insert(pages.start, Area { end: pages.end, is_protected: false });
        self.map(pages);
    }

    /// Takes an area out.
    pub(crate) fn remove(&mut self, first: usize) {
        self.areas.remove(&first);
    }

    /// The area of a page: its first page, and what is known of it.
    pub(crate) fn area_of(&self, page: usize) -> Option<(usize, Area)> {
        let (&first, &area) = self.areas.range(..=page).next_back()?;
        (page < area.end).then_some((first, area))
    }

    /// Whether every one of these pages lies in an area.
    pub(crate) fn covers(&self, pages: &Range<usize>) -> bool {
        let mut next = pages.start;
        while next < pages.end {
            match self.area_of(next) {
                Some((_, area)) => next = area.end,
                None => return false,
            }
        }
        true
    }

    /// Whether one of these pages is mapped.
    pub(crate) fn is_any_mapped(&self, pages: &Range<usize>) -> bool {
        cut_of(&self.mapped, pages).next().is_some()
    }

    /// Notes pages, which an area covers, as mapped, no hole among them.
    pub(crate) fn map(&mut self, pages: Range<usize>) {
        self.unmap(pages.clone());
        self.mapped_pages += pages.len();
        self.mapped.insert(pages.start, pages.end);
    }

    /// Notes pages as not mapped.
    pub(crate) fn unmap(&mut self, pages: Range<usize>) {
        let pieces = take_out(&mut self.mapped, &pages);
        self.mapped_pages -= pieces.iter().map(Range::len).sum::<usize>();
        take_out(&mut self.holes, &pages);
    }

    /// Notes mapped pages as a hole.
    pub(crate) fn add_hole(&mut self, pages: Range<usize>) {
        self.holes.insert(pages.start, pages.end);
    }

    /// The holes among these pages.
    pub(crate) fn holes(&self, pages: &Range<usize>) -> Vec<Range<usize>> {
        cut_of(&self.holes, pages).collect()
    }

    /// The rest of these pages without holes.
    pub(crate) fn without_holes(&self, pages: &Range<usize>) -> Vec<Range<usize>> {
        let mut next = pages.start;
        let mut left = Vec::new();
        for hole in cut_of(&self.holes, pages) {
            left.push(next..hole.start);
            next = hole.end;
        }
        left.push(next..pages.end);
        left.retain(|piece| !piece.is_empty());
        left
    }

    /// Notes that pages can be touched from now on.
    pub(crate) fn touch(&mut self, pages: Range<usize>) {
        if !pages.is_empty() {
            take_out(&mut self.touchable, &pages);
            self.touchable.insert(pages.start, pages.end);
        }
    }

    /// Notes that pages are zeros and cannot be touched; answers which of them could be.
    pub(crate) fn end_touch(&mut self, pages: &Range<usize>) -> Vec<Range<usize>> {
        take_out(&mut self.touchable, pages)
    }

    /// Which of these pages can have been touched.
    pub(crate) fn touchable(&self, pages: &Range<usize>) -> Vec<Range<usize>> {
        cut_of(&self.touchable, pages).collect()
    }

    /// Notes that the protection of pages is or was not the usual one.
    pub(crate) fn protect(&mut self, pages: &Range<usize>) {
        if let Some((first, _)) = self.area_of(pages.start) {
            for (_, area) in self.areas.range_mut(first..pages.end) {
                area.is_protected = true;
            }
        }
    }

    /// Areas that touch these pages and of which nothing is mapped any more.
    pub(crate) fn ended(&self, pages: &Range<usize>) -> Vec<(usize, Area)> {
        let first = self.area_of(pages.start).map_or(pages.start, |(first, _)| first);
        let touched = self.areas.range(first..pages.end);
        let touched = touched.map(|(&first, &area)| (first, area));
        touched.filter(|(first, area)| !self.is_any_mapped(&(*first..area.end))).collect()
    }

    /// How many pages are mapped.
    pub(crate) fn mapped_pages(&self) -> usize {
        self.mapped_pages
    }
}

/// The pieces within `pages`, cut at its ends.
fn cut_of(
    pieces: &BTreeMap<usize, usize>,
    pages: &Range<usize>,
) -> impl Iterator<Item = Range<usize>> {
    let (start, end) = (pages.start, pages.end);
    let before = pieces.range(..start).next_back().filter(|&(_, &to)| to > start);
    let from = before.map_or(start, |(&at, _)| at);
    pieces.range(from..end).map(move |(&at, &to)| at.max(start)..to.min(end))
}

/// Takes `pages` out of the pieces; answers what there was of them.
fn take_out(pieces: &mut BTreeMap<usize, usize>, pages: &Range<usize>) -> Vec<Range<usize>> {
    let cuts: Vec<_> = cut_of(pieces, pages).collect();
    for cut in &cuts {
        let at = if cut.start > pages.start {
            cut.start
        } else {
            *pieces.range(..=cut.start).next_back().expect("a cut is of a piece").0
        };
        let end = pieces.remove(&at).expect("just found");
        if at < cut.start {
            pieces.insert(at, cut.start);
        }
        if cut.end < end {
            pieces.insert(cut.end, end);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Page {
        Gap,
        Mapped,
        Hole,
    }

    /// Two areas, 10..40 and 50..60; the model knows each page by itself.
    fn step(table: &mut AreaTable, model: &mut [Page], kind: u8, pages: Range<usize>) {
        if !table.covers(&pages) || pages.is_empty() {
            return;
        }
        match kind {
            0 => {
                table.unmap(pages.clone());
                model[pages].fill(Page::Gap);
            }
            1 => {
                table.map(pages.clone());
                model[pages].fill(Page::Mapped);
            }
            _ => {
                table.map(pages.clone());
                table.add_hole(pages.clone());
                model[pages].fill(Page::Hole);
            }
        }
    }

    proptest! {
        #[test]
        fn pages_are_what_the_last_call_on_each_made_them(
            steps in proptest::collection::vec((0..3u8, 0..64usize, 0..20usize), 0..60),
        ) {
            let mut table = AreaTable::default();
            table.add(10..40);
            table.add(50..60);
            let mut model = [Page::Gap; 64];
            model[10..40].fill(Page::Mapped);
            model[50..60].fill(Page::Mapped);
            for (kind, start, len) in steps {
                step(&mut table, &mut model, kind, start..(start + len).min(64));
                let mapped = model.iter().filter(|page| **page != Page::Gap).count();
                prop_assert_eq!(table.mapped_pages(), mapped);
                for (page, state) in model.iter().enumerate() {
                    let one = page..page + 1;
                    prop_assert_eq!(table.is_any_mapped(&one), *state != Page::Gap);
                    prop_assert_eq!(table.holes(&one).len(), (*state == Page::Hole) as usize);
                    prop_assert_eq!(table.covers(&one), table.area_of(page).is_some());
                }
                let ended: Vec<_> = table.ended(&(0..64)).iter().map(|area| area.0).collect();
                let is_gap = |pages: Range<usize>| model[pages].iter().all(|p| *p == Page::Gap);
                prop_assert_eq!(ended.contains(&10), is_gap(10..40));
                prop_assert_eq!(ended.contains(&50), is_gap(50..60));
                let left: usize = table.without_holes(&(10..40)).iter().map(Range::len).sum();
                let holes = model[10..40].iter().filter(|page| **page == Page::Hole).count();
                prop_assert_eq!(left, 30 - holes);
            }
        }
    }

    #[test]
    fn to_touch_no_page_changes_nothing() {
        let mut table = AreaTable::default();
        table.add(10..40);
        table.touch(10..40);
        table.touch(10..10);
        table.touch(20..20);
        assert_eq!(table.touchable(&(10..40)).first(), Some(&(10..40)));
    }

    #[test]
    fn only_an_area_covers() {
        let mut table = AreaTable::default();
        table.add(10..20);
        table.add(20..30);
        assert!(table.covers(&(12..28)));
        assert!(!table.covers(&(5..15)) && !table.covers(&(25..31)) && !table.covers(&(40..41)));
    }
}
