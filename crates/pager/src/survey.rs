//! Survey: where the objects of a stretch of pages are, counted to draw a map of the heap.
//!
//! Guarantees: exact for a page that nobody moves meanwhile and whose table page is in RAM; of one
//! that is not, all objects count as stored. Parts of the object table that nothing uses are not
//! touched.
//! Never: waits, claims, allocates.
//! Threads: any.

use core::ops::Range;

use deepheap_heap::PageNo;
use deepheap_residency::ownership::Place;

use crate::pager::Pager;

/// Counts of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// In the page buffer, or on their way.
    pub resident: u32,
    /// In the object cache.
    pub cached: u32,
    /// On the store only.
    pub stored: u32,
    /// Nowhere: free, never written, or all zero.
    pub nowhere: u32,
}

impl Pager {
    /// Counts every `stride`th of these pages, from the first on. Pages of plain spans, which are
    /// in RAM, count as nowhere.
    pub fn survey(&self, pages: Range<usize>, stride: usize) -> Survey {
        let mut counts = Survey::default();
        let mut page = pages.start;
        while page < pages.end {
            let Some(used) = self.residency.ownership.table.next_known(page, pages.end) else {
                break;
            };
            // The next one in step.
            let skipped = (used - page).div_ceil(stride);
            counts.nowhere += skipped as u32;
            page += skipped * stride;
            if page >= pages.end {
                return counts;
            }
            match self.residency.ownership.peek(PageNo(page as u32)) {
                Some(Place::Busy(_)) => counts.resident += 1,
                Some(Place::Cached(_)) => counts.cached += 1,
                None | Some(Place::Stored(_) | Place::Lost) => counts.stored += 1,
                Some(Place::Zero) => counts.nowhere += 1,
            }
            page += stride;
        }
        counts.nowhere += (pages.end.saturating_sub(page)).div_ceil(stride) as u32;
        counts
    }
}
