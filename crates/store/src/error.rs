//! Error: what can go wrong in the store, and what the caller can do about it.
//!
//! Guarantees: plain values; making, copying and comparing one never allocates.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

use core::fmt;

use deepheap_sys::errno::Errno;

use crate::block::Block;

/// Why the store could not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// No space is left that collection could win back. Reserve less, or fail the allocation.
    Full,
    /// The bytes that the device returned are not the ones that were appended. They were not
    /// served; stop the access.
    Corrupt(Block),
    /// The device refused. Reads may be tried again. Writes have been, for ten seconds, and are
    /// still; what they hold stays in memory meanwhile.
    Io(Errno),
    /// More generations of forked children than the store keeps devices for.
    TooManyForks,
    /// Blocks that live are not on the device: `seal_and_drain`, and see that the device takes
    /// what it refused (`retry_failed`).
    Unwritten,
    /// `open` was given options that cannot work, for the reason stated.
    Options(&'static str),
}

impl From<Errno> for StoreError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(out, "the store is full"),
            Self::Corrupt(block) => {
                write!(out, "block {} of the store failed its checksum", block.0)
            }
            Self::Io(errno) => write!(out, "the store's device failed: {errno}"),
            Self::TooManyForks => write!(out, "too many generations of forked children"),
            Self::Unwritten => write!(out, "the store's device does not have all blocks yet"),
            Self::Options(reason) => write!(out, "bad store options: {reason}"),
        }
    }
}

impl core::error::Error for StoreError {}
