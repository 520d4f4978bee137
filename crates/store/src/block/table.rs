//! Block table: what is known in RAM of every block of a log: its checksum, how many pages share it
//! and, if the log is encrypted, its tag.
//!
//! A device that returns an older version of the right block is caught, too; a checksum inside the
//! block would not catch that.
//!
//! A page is promised a block of its own. Compressed pages that share a block share its cost: a
//! block divided by their number, rounded up, for as long as the block lives. So what lives never
//! counts more than what is promised, and a block whose pages are all alive counts as full.
//!
//! Guarantees: a thread that holds a block sees what is known of it: `append` notes it before it
//! returns the number, and others get the number from the appender by a release and an acquire of
//! the object's entry. The next filling notes it again, after the segment was freed. Every `retire`
//! of its blocks comes before that (`SegmentTable::take_live` and the lock of the space order
//! them), and no block is retired while a thread holds it.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: any.

use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::block::checksum::{ContentHash, Secret};
use crate::block::cipher::{Cipher, Piece, TAG_BYTES, Tag};
use crate::block::{BLOCK_UNITS, Block};
use crate::error::StoreError;
use crate::format::BLOCK_BYTES;
use crate::format::geometry::Geometry;
use crate::format::saved::{CHECKSUMS, OF_BLOCKS, SHARERS, TAGS};
use crate::log::identity::Identity;

/// Bytes of RAM that a block of the log costs, once its segment was ever filled.
pub const TABLE_BYTES_PER_BLOCK: usize = size_of::<AtomicU32>() + size_of::<AtomicU8>();

/// The cost of each of `pages` pages that share a block, units.
#[expect(clippy::cast_possible_truncation, reason = "at most 255 pages share a block")]
pub const fn share(pages: usize) -> u32 {
    BLOCK_UNITS.div_ceil(pages as u32)
}

/// See the file's header.
pub(crate) struct BlockTable {
    geometry: Geometry,
    /// The secret for hashes of blocks.
    pub(crate) secret: Secret,
    /// The hash that the bytes of every block, with the name, must have.
    checksums: PinnedArray<AtomicU32>,
    /// 0 if it is not a block of compressed pages.
    sharers: PinnedArray<AtomicU8>,
    seal: Option<Seal>,
}

/// What blocks are encrypted with, and their tags.
struct Seal {
    cipher: Cipher,
    tags: PinnedArray<[AtomicU64; 2]>,
}

impl BlockTable {
    /// For all blocks of the log; populated where blocks are appended.
    pub(crate) fn new(geometry: &Geometry, identity: Identity) -> Result<Self, StoreError> {
        let blocks = geometry.all_blocks();
        let seal = identity.key.map(|key| -> Result<Seal, StoreError> {
            Ok(Seal { cipher: Cipher::new(&key), tags: PinnedArray::new(blocks)? })
        });
        Ok(Self {
            geometry: *geometry,
            secret: identity.secret,
            checksums: PinnedArray::new(blocks)?,
            sharers: PinnedArray::new(blocks)?,
            seal: seal.transpose()?,
        })
    }

    pub(crate) fn bytes_per_block(&self) -> usize {
        TABLE_BYTES_PER_BLOCK + if self.is_encrypted() { TAG_BYTES } else { 0 }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.seal.is_some()
    }

    /// The checksum of a block that the caller holds, or that a victim has.
    #[inline]
    pub(crate) fn checksum(&self, block: Block) -> u32 {
        // Relaxed: the file's header says what orders it.
        self.checksums[self.geometry.index(block)].load(Ordering::Relaxed)
    }

    /// Sets the checksum of a block that is being appended.
    pub(crate) fn set_checksum(&self, block: Block, checksum: u32) {
        self.checksums[self.geometry.index(block)].store(checksum, Ordering::Relaxed);
    }

    /// The cost of each page of the block; none if the block is not one of compressed pages.
    pub(crate) fn share(&self, block: Block) -> Option<u32> {
        let pages = self.sharers.get(self.geometry.index(block))?.load(Ordering::Relaxed);
        (pages > 0).then(|| share(pages.into()))
    }

    /// Notes how many pages the block has; 0 if it is not one of compressed pages.
    pub(crate) fn set_sharers(&self, block: Block, pages: u8) {
        self.sharers[self.geometry.index(block)].store(pages, Ordering::Relaxed);
    }

    /// Encrypts a block of this filling that is being appended, in place, and keeps its tag, if the
    /// log is encrypted.
    pub(crate) fn seal(&self, filling: u64, block: Block, name: u64, bytes: &mut [u8]) {
        if let Some(seal) = &self.seal {
            let tag = seal.cipher.seal(piece(filling, block, name), bytes);
            self.set_tag(seal, block, &tag);
        }
    }

    /// Decrypts a block of the filling that `filling` tells, in place; false, and the bytes stay,
    /// if it is not what was appended.
    #[must_use]
    pub(crate) fn open(
        &self,
        filling: impl FnOnce() -> u64,
        block: Block,
        name: u64,
        bytes: &mut [u8],
    ) -> bool {
        self.seal.as_ref().is_none_or(|seal| {
            seal.cipher.open(piece(filling(), block, name), bytes, &self.tag(seal, block))
        })
    }

    /// The hash of the bytes, which are decrypted in place, if they are those that were appended as
    /// this block for this name. Else they stay.
    pub(crate) fn verify(
        &self,
        filling: impl FnOnce() -> u64,
        block: Block,
        name: u64,
        bytes: &mut [u8],
    ) -> Result<ContentHash, StoreError> {
        match self.open(filling, block, name, bytes) {
            true => self.verify_plain(block, name, bytes),
            false => Err(StoreError::Corrupt(block)),
        }
    }

    /// As `verify`, of bytes that were decrypted.
    pub(crate) fn verify_plain(
        &self,
        block: Block,
        name: u64,
        bytes: &[u8],
    ) -> Result<ContentHash, StoreError> {
        let hash = self.secret.hash(bytes);
        let is_right = hash.checksum(name) == self.checksum(block);
        if is_right { Ok(hash) } else { Err(StoreError::Corrupt(block)) }
    }

    fn tag(&self, seal: &Seal, block: Block) -> Tag {
        let words = &seal.tags[self.geometry.index(block)];
        zerocopy::transmute!(words.each_ref().map(|word| word.load(Ordering::Relaxed).to_le()))
    }

    fn set_tag(&self, seal: &Seal, block: Block, tag: &Tag) {
        let words: [u64; 2] = zerocopy::transmute!(*tag);
        for (kept, word) in seal.tags[self.geometry.index(block)].iter().zip(words) {
            kept.store(u64::from_le(word), Ordering::Relaxed);
        }
    }

    /// The tables of a durable heap that tell something of each block, and in how many bytes.
    pub(crate) fn saved_tables(&self) -> impl Iterator<Item = (u32, usize)> {
        let is_there = |table: &(u32, usize)| table.0 != TAGS || self.is_encrypted();
        OF_BLOCKS.into_iter().filter(is_there)
    }

    /// What one of these tables tells of a block.
    pub(crate) fn save(&self, table: u32, block: Block, bytes: &mut [u8]) {
        match (table, &self.seal) {
            (CHECKSUMS, _) => bytes.copy_from_slice(&self.checksum(block).to_le_bytes()),
            (SHARERS, _) => {
                bytes[0] = self.sharers[self.geometry.index(block)].load(Ordering::Relaxed);
            }
            (_, Some(seal)) => bytes.copy_from_slice(&self.tag(seal, block)),
            (_, None) => {}
        }
    }

    /// Takes a page of one of these tables, which tells of blocks from `first` on, below `end`.
    pub(crate) fn load(&self, table: u32, first: u32, end: u32, page: &[u8]) {
        let size = OF_BLOCKS.into_iter().find(|it| it.0 == table).map_or(BLOCK_BYTES, |it| it.1);
        for (block, bytes) in (first..end).map(Block).zip(page.chunks_exact(size)) {
            match (table, &self.seal) {
                (CHECKSUMS, _) => {
                    self.set_checksum(block, U32::read_from_bytes(bytes).map_or(0, U32::get));
                }
                (SHARERS, _) => self.set_sharers(block, bytes[0]),
                (_, Some(seal)) => {
                    self.set_tag(seal, block, bytes.as_array().unwrap_or(&[0; TAG_BYTES]));
                }
                (_, None) => {}
            }
        }
    }
}

/// The block, as it is encrypted.
fn piece(filling: u64, block: Block, name: u64) -> Piece {
    Piece::Block { filling, block: block.0, name }
}
