//! Cipher: what is on the device is encrypted, if the store has a key: AES-256-GCM-SIV (RFC 8452).
//!
//! Each piece is encrypted by itself, in place. It is as long as before; its tag is kept elsewhere:
//! that of a block in RAM beside its checksum, that of a page of tables in the index.
//!
//! A piece has a number that is hardly ever used twice, its nonce (`Piece`). Twice happens: after a
//! crash the next process counts fillings from the last checkpoint, and a forked child counts as
//! its parent does. GCM-SIV is made for that: two pieces of one number show only whether they
//! are equal, name and all.
//!
//! Guarantees: `open` succeeds only with the bytes, the tag, the name and the number of one `seal`
//! under this key. If it fails the bytes are what they were.
//! Never: allocates, blocks, does I/O.
//! Threads: any, also in a signal handler: some kilobytes of stack.

use core::fmt;

use aes_gcm_siv::aead::inout::InOutBuf;
use aes_gcm_siv::{AeadInOut, Aes256GcmSiv, KeyInit};
use deepheap_sys::errno::Errno;
use deepheap_sys::random;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

/// Part of what is bound to each piece, so that no other version takes it for its own.
const VERSION: u8 = 1;

/// A key: 32 random bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// A key that nobody knows.
    ///
    /// Errors: those of getrandom(2).
    pub fn random() -> Result<Self, Errno> {
        let mut bytes = [0; KEY_BYTES];
        random::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The key of these bytes, which nobody can guess.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key")
    }
}

/// The proof that a piece is as it was encrypted.
pub(crate) type Tag = [u8; TAG_BYTES];

/// Which piece it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// A block of the log: its segment's filling, the block's number, and its object.
    Block { filling: u64, block: u32, name: u64 },
    /// A page of the tables of a durable heap, as this checkpoint wrote it.
    Page { checkpoint: u64, node: u32 },
    /// The secrets in the superblock of the heap with this id.
    Secrets { id: u64 },
}

impl Piece {
    /// Its number among all pieces, and what is bound to it: the version, its kind, and its name.
    fn nonce_and_bound(self) -> ([u8; 12], [u8; 16]) {
        let (high, low, kind, name) = match self {
            Self::Block { filling, block, name } => (filling, block, 0, name),
            Self::Page { checkpoint, node } => (checkpoint, node, 1, 0),
            Self::Secrets { id } => (id, 0, 2, 0),
        };
        let (mut nonce, mut bound) = ([0; 12], [0; 16]);
        nonce[..8].copy_from_slice(&high.to_le_bytes());
        nonce[8..].copy_from_slice(&low.to_le_bytes());
        (bound[0], bound[1]) = (VERSION, kind);
        bound[8..].copy_from_slice(&name.to_le_bytes());
        (nonce, bound)
    }
}

/// Encrypts and decrypts under one key.
pub(crate) struct Cipher(Aes256GcmSiv);

impl Cipher {
    pub(crate) fn new(key: &Key) -> Self {
        Self(Aes256GcmSiv::new(key.bytes().into()))
    }

    /// Encrypts the bytes in place.
    pub(crate) fn seal(&self, piece: Piece, bytes: &mut [u8]) -> Tag {
        let (nonce, bound) = piece.nonce_and_bound();
        match self.0.encrypt_inout_detached(&nonce.into(), &bound, InOutBuf::from(bytes)) {
            Ok(tag) => tag.into(),
            Err(_) => unreachable!("a piece is shorter than 2^36 bytes"),
        }
    }

    /// Decrypts the bytes in place; false, and they stay, if they are not what was sealed.
    #[must_use]
    pub(crate) fn open(&self, piece: Piece, bytes: &mut [u8], tag: &Tag) -> bool {
        let (nonce, bound) = piece.nonce_and_bound();
        let bytes = InOutBuf::from(bytes);
        self.0.decrypt_inout_detached(&nonce.into(), &bound, bytes, &(*tag).into()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Piece = Piece::Block { filling: 7, block: 5, name: 3 };

    fn cipher(byte: u8) -> Cipher {
        Cipher::new(&Key::from_bytes([byte; KEY_BYTES]))
    }

    #[test]
    fn what_was_sealed_is_opened_and_nothing_else() {
        let plain: Vec<u8> = (0..4096).map(|at| (at * 7) as u8).collect();
        let mut bytes = plain.clone();
        let tag = cipher(1).seal(PIECE, &mut bytes);
        let sealed = bytes.clone();
        assert_ne!(sealed, plain);
        for other in [
            Piece::Block { filling: 8, block: 5, name: 3 },
            Piece::Block { filling: 7, block: 6, name: 3 },
            Piece::Block { filling: 7, block: 5, name: 4 },
            Piece::Page { checkpoint: 7, node: 5 },
            Piece::Secrets { id: 7 },
        ] {
            assert!(!cipher(1).open(other, &mut bytes, &tag), "{other:?}");
        }
        assert!(!cipher(2).open(PIECE, &mut bytes, &tag), "another key");
        assert_eq!(bytes, sealed, "a refused piece stays");
        for at in [0, 2000, 4095] {
            bytes[at] ^= 1;
            assert!(!cipher(1).open(PIECE, &mut bytes, &tag), "byte {at}");
            bytes[at] ^= 1;
        }
        for bit in 0..128 {
            let mut other = tag;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!cipher(1).open(PIECE, &mut bytes, &other), "bit {bit} of the tag");
        }
        assert!(cipher(1).open(PIECE, &mut bytes, &tag));
        assert_eq!(bytes, plain);
    }

    /// What a heap holds that is encrypted was written so.
    #[test]
    fn a_piece_is_sealed_as_ever() {
        let mut bytes: Vec<u8> = (0..4096).map(|at| (at * 7) as u8).collect();
        let tag = u128::from_le_bytes(cipher(1).seal(PIECE, &mut bytes));
        assert_eq!(tag, 33_146_996_025_941_164_892_240_539_822_041_382_275);
        assert_eq!(xxhash_rust::xxh3::xxh3_64(&bytes), 9_427_189_541_765_300_824);
    }

    #[test]
    fn a_number_that_is_used_twice_shows_nothing_of_what_differs() {
        let seal = |byte: u8| {
            let mut bytes = vec![byte; 4096];
            cipher(1).seal(PIECE, &mut bytes);
            bytes
        };
        let (one, other) = (seal(1), seal(2));
        // A cipher whose numbers must not repeat would show 1 ^ 2 everywhere.
        let alike = one.iter().zip(&other).filter(|(a, b)| **a ^ **b == 3).count();
        assert!(alike < 100, "{alike} of 4096");
    }

    #[test]
    fn keys_are_not_shown_and_differ() {
        let keys = [Key::random().expect("random"), Key::random().expect("random")];
        assert_ne!(keys[0], keys[1]);
        assert_eq!(format!("{:?}", keys[0]), "Key");
    }
}
