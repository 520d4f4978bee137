//! Checksum: what the bytes of a block hash to, with and without the name of their object, and
//! the table of what every block of the log ought to hash to.
//!
//! The table stays in DRAM, so that it also catches a device that answers with an older version
//! of the right block, which a checksum inside the block would not.
//!
//! Guarantees: the bytes are hashed once, by whoever first has them; everything else is mixing.
//! Who holds a block sees its checksum: it is set once in a filling, before `append` returns the
//! number, so before whoever learns the number from the appender, by any means that hands memory
//! over (release and acquire of an object's entry). It is set again only after the segment was
//! freed, which the `retire` of each of its blocks came before (`SegmentTable::take_live` and the
//! lock of the space), and no block is retired while somebody holds it.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: any.

use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_sys::pinned_array::PinnedArray;
use xxhash_rust::xxh3::xxh3_128;

use crate::block::{Block, Geometry};
use crate::error::StoreError;

/// Bytes of DRAM that the checksum of a block takes, once its segment was ever filled.
pub const CHECKSUM_BYTES_PER_BLOCK: usize = 4;

/// xxh3_128 of the bytes of an object: equal bytes have equal hashes, wherever they live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentHash(pub u128);

impl ContentHash {
    /// Hashes the bytes.
    #[inline]
    pub fn of(data: &[u8]) -> Self {
        Self(xxh3_128(data))
    }

    /// The checksum kept beside the block: it binds the bytes to the object `name`, so that a
    /// misdirected or stale block of another object does not verify.
    #[inline]
    pub fn checksum(self, name: u64) -> u32 {
        let folded = (self.0 as u64) ^ ((self.0 >> 64) as u64).rotate_left(32);
        // Multiplying by an odd constant keeps distinct names distinct; the finaliser of
        // splitmix64 spreads every bit of both over the 32 that stay.
        let mut mixed = folded ^ name.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as u32
    }
}

/// What the bytes of every block, with the name, must hash to.
pub(crate) struct ChecksumTable {
    of: PinnedArray<AtomicU32>,
}

impl ChecksumTable {
    /// For all blocks of the log; populated where blocks are appended.
    pub(crate) fn new(geometry: &Geometry) -> Result<Self, StoreError> {
        const { assert!(size_of::<AtomicU32>() == CHECKSUM_BYTES_PER_BLOCK) };
        let blocks = geometry.segments as usize * geometry.blocks() as usize;
        Ok(Self { of: PinnedArray::new(blocks)? })
    }

    /// The checksum of a block that the caller holds, or that a victim has.
    #[inline]
    pub(crate) fn get(&self, block: Block) -> u32 {
        // Relaxed: the file's header says what orders it.
        self.of[block.0 as usize].load(Ordering::Relaxed)
    }

    /// Sets the checksum of a block that is being appended.
    pub(crate) fn set(&self, block: Block, checksum: u32) {
        self.of[block.0 as usize].store(checksum, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_or_another_name_changes_the_checksum() {
        let mut data = [0x5au8; 4096];
        let sum = ContentHash::of(&data).checksum(7);
        for bit in [0, 1, 9, 4095 * 8 + 7] {
            data[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(ContentHash::of(&data).checksum(7), sum);
            data[bit / 8] ^= 1 << (bit % 8);
        }
        for name in (0..4096u64).filter(|&name| name != 7) {
            assert_ne!(ContentHash::of(&data).checksum(name), sum);
        }
        assert_eq!(ContentHash::of(&data).checksum(7), sum);
    }
}
