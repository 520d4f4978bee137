//! Page: the 4 KiB in which the heap commits, frees and names memory.
//!
//! Guarantees: a `PageNo` is the page's index in the region, and pager and store use the same
//! number.
//! Never: touches the page.
//! Threads: plain values.

use deepheap_sys::narrow::Narrow;

/// log2 of [`PAGE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page.
pub const PAGE: usize = 1 << PAGE_SHIFT;
/// log2 of [`SPAN`].
pub const SPAN_SHIFT: u32 = 26;
/// Bytes in a span, and its alignment.
pub const SPAN: usize = 1 << SPAN_SHIFT;
/// Pages in a span.
pub const PAGES_PER_SPAN: usize = SPAN / PAGE;

/// The pages of a span.
pub(crate) fn pages_of(span: usize) -> core::ops::Range<usize> {
    span * PAGES_PER_SPAN..(span + 1) * PAGES_PER_SPAN
}

/// A page's number in the region: `(address - region_base) / PAGE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u32);

impl PageNo {
    /// The number as an index into per-page tables.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<usize> for PageNo {
    /// The page at `index`; regions have at most 2^30 pages, so the number always fits.
    #[inline]
    fn from(index: usize) -> Self {
        Self(index.to_u32())
    }
}
