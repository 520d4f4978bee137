//! Shape: how objects of one size lie on pages, and what they cost in the store.
//!
//! An object starts on a page of its own and takes as many pages as it needs; objects below 128
//! bytes are batched, several on one page, one behind the other (SSDAlloc, sections 3.1 and 3.3).
//! The pager moves each page by itself, and only its kept bytes (`kept_bytes`).
//!
//! Of objects in *lanes* (SSDRAM, 3.2) up to 512 bytes of each page are kept, and the page's number
//! says where on the page they begin: so eight such pages can have one frame of RAM together.
//!
//! Guarantees: a page has at least 128 kept bytes, so that its 4 bytes of table are at most 1/32 of
//! them.
//! Never: allocates, blocks.
//! Threads: plain values.

use deepheap_sys::narrow::Narrow;

use crate::page::{PAGE, PAGE_SHIFT};

/// Objects of fewer bytes share a page.
pub(crate) const BATCH_BELOW: usize = 128;
/// Bytes of a lane: so much of each page is kept at most where objects lie in lanes.
pub const LANE_BYTES: usize = 512;
/// Lanes of a frame.
pub const LANES: usize = PAGE / LANE_BYTES;
/// Pages that share a lane, at most. The kernel's page tables of all windows take 8 bytes a page,
/// which 16 pages make a quarter of what lanes take.
pub(crate) const PAGES_PER_LANE: usize = 16;
/// Most objects on a page: the smallest have 8 bytes.
pub(crate) const BATCH_MAX: usize = BATCH_BELOW / OBJECT_GRAIN;
/// Object sizes are rounded up to a multiple of this.
pub(crate) const OBJECT_GRAIN: usize = 8;

/// Blocks are promised with a slack of one in that many.
const BLOCKS_PER_SLACK: u64 = 16;

/// How objects of one size lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Pages from one object to the next; where `batch` > 1, it is 1.
    pub stride: u32,
    /// Bytes of the last page of an object, or of the page of a batch: a multiple of 8.
    pub tail: u32,
    /// Objects on a page.
    pub batch: u32,
}

impl Shape {
    /// The shape of single objects of `size` bytes; 0 counts as 1. None beyond 2^32 pages.
    pub(crate) fn of_object(size: usize) -> Option<Shape> {
        let alone = Shape::of_element(size)?;
        let bytes = alone.tail as usize;
        if alone.stride > 1 || bytes >= BATCH_BELOW {
            return Some(alone);
        }
        let batch = BATCH_BELOW.div_ceil(bytes).to_u32();
        Some(Shape { batch, tail: batch * alone.tail, ..alone })
    }

    /// The shape of single objects of `size` bytes in lanes: as many on a page as fill a lane. None
    /// if they do not fit.
    pub(crate) fn in_lane(size: usize) -> Option<Shape> {
        let alone = Shape::of_element(size)?;
        if alone.stride > 1 || alone.tail as usize > LANE_BYTES {
            return None;
        }
        let batch = (LANE_BYTES / alone.tail as usize).min(BATCH_MAX).to_u32();
        Some(Shape { batch, tail: batch * alone.tail, ..alone })
    }

    /// The shape of array elements of `size` bytes, which are never batched.
    pub(crate) fn of_element(size: usize) -> Option<Shape> {
        let bytes = rounded(size)?;
        let stride = u32::try_from(bytes.div_ceil(PAGE)).ok()?;
        let before = (stride as usize - 1) << PAGE_SHIFT;
        Some(Shape { stride, tail: (bytes - before).to_u32(), batch: 1 })
    }

    /// Bytes of an object: the size asked for, rounded up to 8.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        let before = (self.stride as usize).saturating_sub(1) << PAGE_SHIFT;
        before + (self.tail / self.batch.max(1)) as usize
    }

    /// Kept bytes of page `page` of a chunk.
    #[inline]
    pub(crate) fn kept_bytes(&self, page: usize) -> usize {
        let stride = self.stride as usize;
        if stride <= 1 || page % stride == stride - 1 { self.tail as usize } else { PAGE }
    }

    /// Blocks of the store to promise for `slots` strides.
    pub(crate) fn blocks(&self, slots: usize) -> u64 {
        let whole = (u64::from(self.stride) - 1) * slots as u64;
        let tails = slots.div_ceil(objects_per_block(self.tail as usize));
        let blocks = whole + tails as u64;
        blocks + blocks.div_ceil(BLOCKS_PER_SLACK)
    }
}

/// Objects of `bytes` bytes, a multiple of 8, that share a block of the store. The layout of a
/// block is the store's, which the heap does not know: the crate that brings the two together
/// asserts that they agree.
pub const fn objects_per_block(bytes: usize) -> usize {
    const SHARED_BYTES: usize = 4080;
    const ENTRY_BYTES: usize = 8;
    if bytes + ENTRY_BYTES > SHARED_BYTES { 1 } else { SHARED_BYTES / (bytes + ENTRY_BYTES) }
}

/// An object's size rounded up to 8 bytes; 0 counts as 1.
fn rounded(size: usize) -> Option<usize> {
    size.max(1).checked_next_multiple_of(OBJECT_GRAIN)
}

/// Bytes from element to element of an array of objects of `size` bytes: whole pages from 128 bytes
/// on; below, `size` rounded up to 8 (such arrays are memory pages, not objects).
pub fn stride(size: usize) -> usize {
    let bytes = rounded(size).unwrap_or(usize::MAX);
    if bytes < BATCH_BELOW {
        return bytes;
    }
    bytes.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_whole_objects_and_at_least_128_bytes() {
        for size in 0..20_000 {
            let shape = Shape::of_object(size).expect("a sane size");
            assert_eq!(shape.size(), size.max(1).next_multiple_of(8));
            assert!((128..=4096).contains(&shape.tail) || shape.stride > 1, "{size}");
            assert!(shape.tail <= 4096 && (1..=BATCH_MAX as u32).contains(&shape.batch));
            assert!(shape.batch == 1 || shape.size() < 128 && shape.tail < 256, "{size}");
            let pages = 0..shape.stride as usize;
            let kept: usize = pages.map(|page| shape.kept_bytes(page)).sum();
            assert_eq!(kept, shape.size() * shape.batch as usize);
            let element = Shape::of_element(size).expect("a sane size");
            assert_eq!((element.size(), element.batch), (shape.size(), 1));
            if size >= 128 {
                assert_eq!(stride(size), shape.stride as usize * PAGE);
            }
        }
        assert_eq!([0, 1, 8, 9, 120].map(stride), [8, 8, 8, 16, 120]);
        assert_eq!([121, 128, 4096, 4097].map(stride), [4096, 4096, 4096, 8192]);
        assert_eq!((Shape::of_object(usize::MAX), stride(usize::MAX)), (None, usize::MAX));
    }

    #[test]
    fn a_lane_is_filled_with_whole_objects() {
        for size in 0..=LANE_BYTES {
            let shape = Shape::in_lane(size).expect("it fits");
            assert_eq!((shape.size(), shape.stride), (size.max(1).next_multiple_of(8), 1));
            assert!((128..=LANE_BYTES as u32).contains(&shape.tail), "{size}");
            assert!((1..=BATCH_MAX as u32).contains(&shape.batch), "{size}");
        }
        assert_eq!(
            [64, 128, 256, 257].map(|size| Shape::in_lane(size).map(|it| it.batch)),
            [Some(8), Some(4), Some(2), Some(1)]
        );
        assert_eq!([513, 4097, usize::MAX].map(Shape::in_lane), [None; 3]);
    }

    #[test]
    fn blocks_are_what_packed_objects_take_and_a_sixteenth() {
        let blocks = |size, slots| Shape::of_object(size).expect("a sane size").blocks(slots);
        // 30 objects of 128 bytes fit a block.
        assert_eq!(blocks(128, 3000), 100 + 7);
        assert_eq!(blocks(128, 1), 2);
        assert_eq!(blocks(4072, 160), 160 + 10);
        assert_eq!(blocks(4096, 160), 160 + 10);
        assert_eq!(blocks(3 * 4096, 16), 48 + 3);
        assert_eq!(blocks(4096 + 128, 30), 30 + 1 + 2);
    }
}
