//! Table: a big zeroed array of pinned memory that knows how much of itself is in use.
//!
//! Guarantees: cells never marked by [`Table::mark`] cost no memory as long as they are only
//! read; the pages that were marked are counted, together with those of the heap's other tables.
//! Never: moves, shrinks, allocates after `new`.
//! Threads: shared; cells are atomics and `mark` is lock-free. [`Pages`] is for tables that do not
//! change meanwhile.

use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use std::sync::Arc;

use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::{PinnedArray, Zeroed};
use deepheap_sys::narrow::Narrow;

use crate::page::PAGE;

/// A lazily populated array of `T`.
pub(crate) struct Table<T: Zeroed> {
    cells: PinnedArray<T>,
    /// One bit per page of `cells`.
    marked: PinnedArray<AtomicU64>,
    populated: Populated,
}

/// How many pages of a heap's tables have marked cells.
pub(crate) type Populated = Arc<AtomicUsize>;

impl<T: Zeroed> Table<T> {
    /// A table of `len` zero cells.
    pub(crate) fn new(len: usize, populated: &Populated) -> Result<Self> {
        let pages = (len * size_of::<T>()).div_ceil(PAGE);
        Ok(Self {
            cells: PinnedArray::new(len.max(1))?,
            marked: PinnedArray::new(pages.div_ceil(64).max(1))?,
            populated: populated.clone(),
        })
    }

    /// Notes that the cells of `range` are about to be written. Called before the first write to a
    /// cell; more calls do no harm.
    #[inline]
    pub(crate) fn mark(&self, range: Range<usize>) {
        let first = range.start * size_of::<T>() / PAGE;
        let last = (range.end * size_of::<T>() - 1) / PAGE;
        for page in first..=last {
            let word = &self.marked[page / 64];
            let bit = 1u64 << (page % 64);
            if word.load(Ordering::Relaxed) & bit == 0
                && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
            {
                self.populated.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A cell that is about to be written.
    #[inline]
    pub(crate) fn cell(&self, at: usize) -> &T {
        self.mark(at..at + 1);
        &self.cells[at]
    }

    /// Whether a cell of the page of this one was marked.
    #[inline]
    pub(crate) fn is_marked(&self, cell: usize) -> bool {
        let page = cell * size_of::<T>() / PAGE;
        self.marked[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 1
    }
}

impl Table<AtomicU64> {
    /// Whether a bit is set; false beyond the end.
    #[inline]
    pub(crate) fn bit(&self, at: usize) -> bool {
        self.get(at / 64).is_some_and(|word| word.load(Ordering::Acquire) >> (at % 64) & 1 == 1)
    }

    /// Sets a bit.
    pub(crate) fn set_bit(&self, at: usize) {
        self.cell(at / 64).fetch_or(1 << (at % 64), Ordering::Release);
    }
}

/// A cell that is saved as it is in memory.
///
/// # Safety
/// It consists of atomic integers and nothing else: it has no padding, and every bit pattern is a
/// value. Its size divides a page.
pub(crate) unsafe trait Saved: Zeroed {}

// SAFETY: atomic integers.
unsafe impl Saved for AtomicU8 {}
// SAFETY: atomic integers.
unsafe impl Saved for AtomicU16 {}
// SAFETY: atomic integers.
unsafe impl Saved for AtomicU32 {}
// SAFETY: atomic integers.
unsafe impl Saved for AtomicU64 {}

/// A table as pages, whatever its cells are.
pub(crate) trait Pages {
    /// Hands out number and bytes of every page with marked cells.
    fn save(&self, each: &mut dyn FnMut(u32, &[u8]));
    /// Marks and fills a page; false if there is none with that number.
    fn load(&self, page: u32, bytes: &[u8; PAGE]) -> bool;
}

impl<T: Saved> Table<T> {
    /// The words of a page; None beyond the end.
    fn page(&self, page: usize) -> Option<&[AtomicU64; PAGE / 8]> {
        const { assert!(PAGE.is_multiple_of(size_of::<T>())) };
        if page >= (self.cells.len() * size_of::<T>()).div_ceil(PAGE) {
            return None;
        }
        // SAFETY: a pinned array is mapped in whole pages, so this one is there as long as `self`
        // is. Its bytes are those of atomic integers (`Saved`), or zero behind the last cell.
        Some(unsafe { &*self.cells.as_ptr().cast::<[AtomicU64; PAGE / 8]>().add(page) })
    }
}

impl<T: Saved> Pages for Table<T> {
    fn save(&self, each: &mut dyn FnMut(u32, &[u8])) {
        for (at, word) in self.marked.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let number = at * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(words) = self.page(number) else { return };
                let mut bytes = [0; PAGE];
                for (copy, word) in bytes.chunks_exact_mut(8).zip(words) {
                    copy.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
                }
                each(number.to_u32(), &bytes);
            }
        }
    }

    fn load(&self, page: u32, bytes: &[u8; PAGE]) -> bool {
        let number = page as usize;
        let Some(words) = self.page(number) else { return false };
        let first = number * (PAGE / size_of::<T>());
        self.mark(first..first + 1);
        for (word, copy) in words.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*copy), Ordering::Relaxed);
        }
        true
    }
}

impl<T: Zeroed> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.cells
    }
}
