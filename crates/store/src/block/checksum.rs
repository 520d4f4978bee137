//! Checksum: the hash of an object's bytes, and the checksum of a block.
//!
//! Hashes decide whether an object has changed, and whether a block is the right one. A program may
//! keep bytes that others sent it, and they could send bytes of equal hash on purpose. So the hash
//! has a secret. Each store has its own; forked children inherit it. That of a durable heap is kept
//! with it, since its blocks outlive the process.
//!
//! Guarantees: nobody can prepare bytes of equal hash without the secret. The bytes are hashed
//! once; the checksum only mixes the hash with the name.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

use core::fmt;
use std::hash::{BuildHasher, RandomState};

use twox_hash::xxhash3_128::Hasher as LongHasher;
use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Up to here xxh3 treats short objects in its own manner, in which `xxhash-rust` is quicker.
/// Beyond, `twox-hash` uses AVX2 where the CPU has it
/// (docs/decisions/0010-checksums-and-rings.md).
const SHORT_BYTES: usize = 240;

/// As many bytes as xxh3's own secret has.
pub const SECRET_BYTES: usize = 192;

/// The secret that xxh3 mixes with the bytes, in place of the constants that everybody knows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// A secret that nobody had before: the bytes are random and tell nothing of other secrets.
    pub fn random() -> Self {
        // Each word is a SipHash under random keys of its own.
        let mut secret = [0; SECRET_BYTES];
        for word in secret.chunks_mut(8) {
            word.copy_from_slice(&RandomState::new().hash_one(0u64).to_le_bytes());
        }
        Self(secret)
    }

    /// The secret of which these are the bytes.
    pub(crate) fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the secret, to be kept with what they protect.
    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// Hashes the bytes.
    #[inline]
    pub(crate) fn hash(&self, data: &[u8]) -> ContentHash {
        if data.len() <= SHORT_BYTES {
            return ContentHash(xxh3_128_with_secret(data, &self.0));
        }
        match LongHasher::oneshot_with_secret(&self.0, data) {
            Ok(hash) => ContentHash(hash),
            Err(_) => unreachable!("the secret is as long as xxh3's own"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

/// xxh3_128 of the bytes of an object, with the secret of its store (`Store::hash`): equal bytes
/// have equal hashes, wherever in the store they live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentHash(pub u128);

impl ContentHash {
    /// The checksum kept beside the block: it binds the bytes to the object `name`, so that a
    /// misdirected or stale block of another object does not verify.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    pub fn checksum(self, name: u64) -> u32 {
        self.bound_to(name) as u32
    }

    /// As `checksum`, with twice the bits: for what has room for them.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low half, beside the high one")]
    pub(crate) fn bound_to(self, name: u64) -> u64 {
        let folded = (self.0 as u64) ^ ((self.0 >> 64) as u64).rotate_left(32);
        // Multiplying by an odd constant keeps distinct names distinct; the finaliser of
        // splitmix64 spreads every bit of both over the 32 that stay.
        let mut mixed = folded ^ name.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_secret_changes_both_halves_of_every_hash_and_the_checksum() {
        let secrets = [1, 2].map(|_| Secret::random());
        for length in [1, 8, 16, 17, 100, 128, 129, 240, 241, 1024, 4096] {
            for byte in [0, 0xa5] {
                let data = vec![byte; length];
                let [one, other] = secrets.each_ref().map(|secret| secret.hash(&data));
                assert_ne!(one.0 as u64, other.0 as u64, "{length}");
                assert_ne!((one.0 >> 64) as u64, (other.0 >> 64) as u64, "{length}");
                assert_ne!(one.checksum(7), other.checksum(7), "{length}");
            }
        }
    }

    #[test]
    fn objects_of_all_sizes_have_the_hashes_of_xxh3() {
        let secret = Secret::random();
        let data: Vec<u8> = (0..4096u32).map(|at| ((at * at) >> 3) as u8).collect();
        for length in 0..=data.len() {
            let (bytes, right) =
                (&data[..length], xxh3_128_with_secret(&data[..length], &secret.0));
            assert_eq!(secret.hash(bytes).0, right, "{length}");
        }
    }

    #[test]
    fn one_flipped_bit_or_another_name_changes_the_checksum() {
        let (mut data, secret) = ([0x5au8; 4096], Secret::random());
        let sum = secret.hash(&data).checksum(7);
        for bit in [0, 1, 9, 4095 * 8 + 7] {
            data[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(secret.hash(&data).checksum(7), sum);
            data[bit / 8] ^= 1 << (bit % 8);
        }
        for name in (0..4096u64).filter(|&name| name != 7) {
            assert_ne!(secret.hash(&data).checksum(name), sum);
        }
        assert_eq!(secret.hash(&data).checksum(7), sum);
    }
}
