//! Sealed secrets: what the superblocks of an encrypted heap have in place of its secrets.
//!
//! The heap has a key of its own, random; the user's key encrypts that, and the secret of its
//! hashes.
//!
//! Guarantees: without the user's key nobody learns the secrets, nor puts others in their place.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::checksum::{SECRET_BYTES, Secret};
use crate::block::cipher::{Cipher, KEY_BYTES, Key, Piece, TAG_BYTES, Tag};

/// See the file's header.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct SealedSecrets {
    /// Where the secret of a heap without a key is.
    pub(crate) secret: [u8; SECRET_BYTES],
    pub(crate) key: [u8; KEY_BYTES],
    pub(crate) tag: Tag,
}

const SECRETS_BYTES: usize = SECRET_BYTES + KEY_BYTES;

const _: () = assert!(size_of::<SealedSecrets>() == SECRETS_BYTES + TAG_BYTES);

impl SealedSecrets {
    /// Encrypts the secrets of the heap with this id under the user's key.
    pub(crate) fn new(user: &Key, id: u64, secret: &Secret, key: &Key) -> Self {
        let (secret, key) = (*secret.bytes(), *key.bytes());
        let mut this = Self { secret, key, tag: [0; TAG_BYTES] };
        let secrets = &mut this.as_mut_bytes()[..SECRETS_BYTES];
        this.tag = Cipher::new(user).seal(Piece::Secrets { id }, secrets);
        this
    }

    /// The secrets; none if this is not the user's key.
    pub(crate) fn open(&self, user: &Key, id: u64) -> Option<(Secret, Key)> {
        let mut plain = *self;
        let secrets = &mut plain.as_mut_bytes()[..SECRETS_BYTES];
        let is_right = Cipher::new(user).open(Piece::Secrets { id }, secrets, &self.tag);
        is_right.then(|| (Secret::from_bytes(plain.secret), Key::from_bytes(plain.key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_opened_by_their_key_alone() {
        let key = |byte| Key::from_bytes([byte; KEY_BYTES]);
        let secret = Secret::from_bytes([7; SECRET_BYTES]);
        let sealed = SealedSecrets::new(&key(1), 5, &secret, &key(9));
        assert_ne!(sealed.secret, *secret.bytes());
        assert_eq!(sealed.open(&key(1), 5), Some((secret, key(9))));
        assert_eq!(sealed.open(&key(2), 5), None);
        assert_eq!(sealed.open(&key(1), 6), None, "another heap");
    }
}
