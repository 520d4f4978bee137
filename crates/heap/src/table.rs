//! Table: a big zeroed array of pinned memory that knows how much of itself is in use.
//!
//! Guarantees: cells never marked by [`Table::mark`] cost no memory as long as they are only
//! read; `populated_bytes` counts the pages that were marked.
//! Never: moves, shrinks, allocates after `new`.
//! Threads: shared; cells are atomics and `mark` is lock-free.

use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use deepheap_sys::errno::Result;
use deepheap_sys::pinned_array::{PinnedArray, Zeroed};

use crate::page::PAGE;

/// A lazily populated array of `T`.
pub(crate) struct Table<T: Zeroed> {
    cells: PinnedArray<T>,
    /// One bit per page of `cells`.
    marked: PinnedArray<AtomicU64>,
    marked_pages: AtomicUsize,
}

impl<T: Zeroed> Table<T> {
    /// A table of `len` zero cells.
    pub fn new(len: usize) -> Result<Self> {
        let pages = (len * size_of::<T>()).div_ceil(PAGE);
        Ok(Self {
            cells: PinnedArray::new(len.max(1))?,
            marked: PinnedArray::new(pages.div_ceil(64).max(1))?,
            marked_pages: AtomicUsize::new(0),
        })
    }

    /// Notes that the cells of `range` are about to be written. To be called before the first
    /// write to a cell; any number of times.
    #[inline]
    pub fn mark(&self, range: Range<usize>) {
        let first = range.start * size_of::<T>() / PAGE;
        let last = (range.end * size_of::<T>() - 1) / PAGE;
        for page in first..=last {
            let word = &self.marked[page / 64];
            let bit = 1u64 << (page % 64);
            if word.load(Ordering::Relaxed) & bit == 0
                && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
            {
                self.marked_pages.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Bytes of pages with marked cells.
    pub fn populated_bytes(&self) -> usize {
        self.marked_pages.load(Ordering::Relaxed) * PAGE
    }
}

impl<T: Zeroed> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.cells
    }
}
