//! Seal: what a store encrypts its blocks with, and the tags of all blocks.
//!
//! Guarantees: a thread that holds a block sees its tag (as with checksums: `checksum`).
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: any.

use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU64, Ordering};

use crate::block::Block;
use crate::block::cipher::{Cipher, Key, Piece, Tag};
use crate::error::StoreError;
use crate::format::geometry::Geometry;

/// See the file's header.
pub(crate) struct Seal {
    cipher: Cipher,
    tags: PinnedArray<[AtomicU64; 2]>,
    geometry: Geometry,
}

impl Seal {
    /// For all blocks of the log; populated where blocks are appended.
    pub(crate) fn new(key: &Key, geometry: &Geometry) -> Result<Self, StoreError> {
        let tags = PinnedArray::new(geometry.all_blocks())?;
        Ok(Self { cipher: Cipher::new(key), tags, geometry: *geometry })
    }

    /// Encrypts a block of this filling that is being appended, in place, and keeps its tag.
    pub(crate) fn seal(&self, filling: u64, block: Block, name: u64, bytes: &mut [u8]) {
        let tag = self.cipher.seal(piece(filling, block, name), bytes);
        self.set_tag(block, &tag);
    }

    /// Decrypts a block, in place; false, and the bytes stay, if it is not what was appended.
    #[must_use]
    pub(crate) fn open(&self, filling: u64, block: Block, name: u64, bytes: &mut [u8]) -> bool {
        self.cipher.open(piece(filling, block, name), bytes, &self.tag(block))
    }

    /// The tag of a block that the caller holds.
    pub(crate) fn tag(&self, block: Block) -> Tag {
        // Relaxed: as for checksums.
        let words = &self.tags[self.geometry.index(block)];
        zerocopy::transmute!(words.each_ref().map(|word| word.load(Ordering::Relaxed).to_le()))
    }

    /// Sets the tag of a block that is being appended, or was loaded.
    pub(crate) fn set_tag(&self, block: Block, tag: &Tag) {
        let words: [u64; 2] = zerocopy::transmute!(*tag);
        for (kept, word) in self.tags[self.geometry.index(block)].iter().zip(words) {
            kept.store(u64::from_le(word), Ordering::Relaxed);
        }
    }
}

/// The block, as it is encrypted.
fn piece(filling: u64, block: Block, name: u64) -> Piece {
    Piece::Block { filling, block: block.0, name }
}
