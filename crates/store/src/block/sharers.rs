//! Sharers: how many pages were packed into each block, and so what each of them costs.
//!
//! A page is promised a block of its own. Compressed pages that share a block share its cost: a
//! block divided by their number, rounded up, for as long as the block lives. So what lives never
//! counts more than what is promised, and a block whose pages are all alive counts as full.
//!
//! Guarantees: a thread that holds a block sees its number (as with checksums: `checksum`).
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: any.

use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU8, Ordering};

use crate::block::{BLOCK_UNITS, Block};
use crate::error::StoreError;
use crate::format::geometry::Geometry;

/// Bytes of RAM for each block, once its segment was ever filled.
pub(crate) const SHARERS_BYTES_PER_BLOCK: usize = 1;

/// See the file's header.
pub(crate) struct SharerTable {
    of: PinnedArray<AtomicU8>,
    geometry: Geometry,
}

/// What each of `pages` pages costs that share a block, units.
pub const fn share(pages: usize) -> u32 {
    BLOCK_UNITS.div_ceil(pages as u32)
}

impl SharerTable {
    /// For all blocks of the log; populated where blocks are appended.
    pub(crate) fn new(geometry: &Geometry) -> Result<Self, StoreError> {
        Ok(Self { of: PinnedArray::new(geometry.all_blocks())?, geometry: *geometry })
    }

    /// What each page of the block costs; none if the block is not one of compressed pages.
    pub(crate) fn share(&self, block: Block) -> Option<u32> {
        let pages = self.of.get(self.geometry.index(block))?.load(Ordering::Relaxed);
        (pages > 0).then(|| share(pages.into()))
    }

    /// How many pages the block has; 0 if it is not one of compressed pages.
    pub(crate) fn pages(&self, block: Block) -> u8 {
        self.of[self.geometry.index(block)].load(Ordering::Relaxed)
    }

    /// Notes how many pages the block has; 0 if it is not one of compressed pages.
    pub(crate) fn set(&self, block: Block, pages: u8) {
        self.of[self.geometry.index(block)].store(pages, Ordering::Relaxed);
    }
}
