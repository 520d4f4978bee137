//! Identity: what tells a store from all others.
//!
//! Guarantees: `random` gives one that nobody had before.
//! Never: blocks, does I/O.
//! Threads: plain values.

use std::hash::{BuildHasher, RandomState};

use crate::block::checksum::Secret;
use crate::block::cipher::Key;

/// The identity of a store, as long as its blocks are to be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Is in the directory of every segment.
    pub id: u64,
    /// The secret for hashes of blocks.
    pub secret: Secret,
    /// The key of blocks; none: they are not encrypted.
    pub key: Option<Key>,
}

impl Identity {
    /// One that nobody had before, without a key.
    pub fn random() -> Self {
        Self { id: RandomState::new().hash_one(0u64), secret: Secret::random(), key: None }
    }
}
