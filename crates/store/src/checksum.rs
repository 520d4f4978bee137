//! Checksum: what the bytes of a block hash to, with and without the name of their object.
//!
//! Guarantees: the bytes are hashed once, by whoever first has them; everything else is mixing.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

use xxhash_rust::xxh3::xxh3_128;

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
