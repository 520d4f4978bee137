//! Seal: what a store encrypts its blocks with, and the tags of all blocks.
//!
//! Guarantees: a thread that holds a block sees its tag (as with checksums: `checksum`).
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: any.

use deepheap_sys::atomic::{AtomicU64, Ordering};
use deepheap_sys::pinned_array::PinnedArray;

use crate::block::Block;
use crate::cipher::{Cipher, Key, Piece, TAG_BYTES, Tag};
use crate::error::StoreError;
use crate::format::geometry::Geometry;

/// Bytes of RAM for each block of an encrypted store, once its segment was ever filled.
pub const TAG_BYTES_PER_BLOCK: usize = TAG_BYTES;

/// See the file's header.
pub(crate) struct Seal {
    cipher: Cipher,
    /// Two words of each block.
    tags: PinnedArray<AtomicU64>,
    geometry: Geometry,
}

impl Seal {
    /// For all blocks of the log; populated where blocks are appended.
    pub(crate) fn new(key: &Key, geometry: &Geometry) -> Result<Self, StoreError> {
        let tags = PinnedArray::new(2 * geometry.all_blocks())?;
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
        let mut tag = [0; TAG_BYTES];
        let at = 2 * self.geometry.index(block);
        for (bytes, word) in tag.chunks_exact_mut(8).zip(&self.tags[at..at + 2]) {
            // Relaxed: as for checksums.
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        tag
    }

    /// Sets the tag of a block that is being appended, or was loaded.
    pub(crate) fn set_tag(&self, block: Block, tag: &Tag) {
        let at = 2 * self.geometry.index(block);
        for (bytes, word) in tag.as_chunks::<8>().0.iter().zip(&self.tags[at..at + 2]) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }
}

/// The block, as it is encrypted.
pub(crate) fn piece(filling: u64, block: Block, name: u64) -> Piece {
    Piece::Block { filling, block: block.0, name }
}
