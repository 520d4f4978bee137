//! Outcome: what the heap answers to an allocation, a free or a question about an address.
//!
//! Guarantees: every answer says what the caller can do next: commit more, discard a run, or
//! pass a pointer on.
//! Never: owns memory; a run that is dropped without `recycle` stays out of use, nothing worse.
//! Threads: plain values.

use crate::page::PageNo;

/// A successful allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Address of the first byte: a multiple of the alignment asked for and of 16, but for an
    /// object of less than 128 bytes only of what `Heap::allocate_object` says.
    pub ptr: usize,
    /// The memory is known to read as zeros; `calloc` need not clear it.
    pub zeroed: bool,
}

/// Why an allocation, of memory or of objects, could not be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The commit limit is in the way: `grant` at least this many pages and try again.
    Pages(usize),
    /// Address space is in the way: publish this many more consecutive spans and try again.
    Spans(usize),
    /// Space of the store for objects is in the way: `grant_object_blocks` at least this many and
    /// try again. Pools grow by larger steps if more is granted.
    ObjectBlocks(usize),
    /// Address space for objects is in the way: `begin_spans` this many, make them usable, then
    /// `Heap::add_object_spans`, and try again.
    ObjectSpans(usize),
    /// The same for objects in lanes: then `Heap::add_lane_spans`.
    LaneSpans(usize),
    /// No heap of this region can ever hold it.
    TooLarge,
}

/// The result of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a FreedRun stays in quarantine until it is recycled"]
pub enum Freed {
    /// Nothing for the caller to do.
    Done,
    /// A run of pages left use, perhaps an older one than was freed just now: discard it, then call
    /// `Heap::recycle`.
    Run(FreedRun),
    /// These pages hold no live object any more, though their slab is in use. Ask
    /// `Heap::page_is_free` again before dropping one. Reported only after
    /// `Heap::report_free_pages(true)`.
    Pages(FreedPages),
    /// The pages of an object left use (of the last live object on its page), or those of an array:
    /// end the objects on them, then call `Heap::recycle_objects`.
    Objects(FreedObjects),
    /// Not a live allocation of this heap; nothing was changed.
    NotAllocated,
}

/// Pages of objects in quarantine: no live object is on them, and none will be until
/// `Heap::recycle_objects`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "FreedObjects stay in quarantine until they are recycled"]
pub struct FreedObjects {
    /// First page.
    pub first: PageNo,
    /// How many pages.
    pub pages: usize,
    /// The pages will hold objects of another size next: end them as above, and take them out of
    /// the page buffer before they are recycled. (An eviction that still uses the old size would
    /// lose what the next owner writes beyond it.) Otherwise they may stay resident.
    pub reshaped: bool,
}

impl FreedObjects {
    /// The same pages as a run, for code that ends runs and objects alike.
    pub fn run(self) -> FreedRun {
        FreedRun { first: self.first, pages: self.pages }
    }
}

/// An object, as `Heap::object_at` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectShape {
    /// Bytes of the object: what was asked for, rounded up to 8.
    pub size: usize,
    /// Elements of the array it is in; 1 for a single object.
    pub count: usize,
    /// Its index in the array.
    pub index: usize,
    /// Bytes from element to element.
    pub stride: usize,
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

/// The result of a request to shrink in place.
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
