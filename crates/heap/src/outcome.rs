//! Outcome: what the heap answers to an allocation or a free.
//!
//! Guarantees: every answer says what the caller can do next: commit more, discard a run, or
//! pass a pointer on.
//! Never: owns memory; a run that is dropped without `recycle` stays out of use, nothing worse.
//! Threads: plain values.

use crate::page::PageNo;

/// A successful allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Address of the first byte, a multiple of the alignment asked for and of 16.
    pub ptr: usize,
    /// The memory is known to read as zeros; `calloc` need not clear it.
    pub zeroed: bool,
}

/// Why an allocation could not be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The commit limit is in the way: `grant` at least this many pages and try again.
    Pages(usize),
    /// Address space is in the way: publish this many more consecutive spans and try again.
    Spans(usize),
    /// No heap of this region can ever hold it.
    TooLarge,
}

/// What became of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a FreedRun stays in quarantine until it is recycled"]
pub enum Freed {
    /// Nothing for the caller to do.
    Done,
    /// A run of pages left use (perhaps an older one than was freed just now): discard them, then
    /// call `Heap::recycle`.
    Run(FreedRun),
    /// These pages hold no live object any more, though their slab is in use. Ask
    /// `Heap::page_is_free` again before dropping one. Reported only after
    /// `Heap::report_free_pages(true)`.
    Pages(FreedPages),
    /// Not a live allocation of this heap; nothing was changed.
    NotAllocated,
}

/// A run of pages in quarantine: no allocation uses it and none will until it is recycled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a FreedRun stays in quarantine until it is recycled"]
pub struct FreedRun {
    /// First page.
    pub first: PageNo,
    /// Length in pages.
    pub pages: usize,
}

/// Up to [`FreedPages::MAX`] pages that looked free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedPages {
    pages: [PageNo; FreedPages::MAX],
    len: usize,
}

impl FreedPages {
    /// Most pages one free can report.
    pub const MAX: usize = 8;

    pub(crate) const fn new() -> Self {
        Self { pages: [PageNo(0); Self::MAX], len: 0 }
    }

    /// Adds `page` unless it is noted already or there is no more room.
    pub(crate) fn note(&mut self, page: PageNo) {
        let known = self.pages[..self.len].contains(&page);
        if !known && self.len < Self::MAX {
            self.pages[self.len] = page;
            self.len += 1;
        }
    }

    /// The pages, in no particular order.
    pub fn as_slice(&self) -> &[PageNo] {
        &self.pages[..self.len]
    }
}

/// What became of a request to shrink in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a FreedRun stays in quarantine until it is recycled"]
pub enum Shrunk {
    /// The allocation stays where it is and serves the new size; nothing left use.
    Done,
    /// The allocation stays where it is; its tail left use: discard, then `Heap::recycle`.
    Run(FreedRun),
    /// Keeping it in place would waste too much: allocate anew, copy, free.
    Wasteful,
    /// Not a live allocation of this heap.
    NotAllocated,
}

/// Consecutive spans that the caller is about to make usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "spans begun are lost unless they are published or abandoned"]
pub struct SpanRange {
    /// Index of the first span in the region.
    pub first: usize,
    /// How many.
    pub count: usize,
}
