//! Format: every byte that is kept on the device. Drawn in `docs/internals/on-disk-format.md`.
//!
//! | bytes | file |
//! |---|---|
//! | how the device divides into segments, and segments into blocks | `geometry` |
//! | the directory of a segment | `directory` |
//! | several objects in a block, with a directory of their own | `packed` |
//! | what a durable heap begins with | `superblock` |
//! | what is known of each page of its tables | `index` |
//! | the store's own tables, as such pages | `saved` |
//! | the secrets of an encrypted heap | `sealed_secrets` |
//! | the log and the superblocks of a map that writes out of place | `map_log` |
//!
//! Every size, offset and constant of the format is in these files.
//!
//! Guarantees: a directory that verifies is the one that was written; reading any bytes neither
//! panics nor leaves them.
//! Never: allocates, blocks, does I/O.
//! Threads: plain functions over bytes.

pub(crate) mod directory;
pub(crate) mod geometry;
pub(crate) mod index;
pub mod map_log;
pub mod packed;
pub(crate) mod saved;
pub(crate) mod sealed_secrets;
pub(crate) mod superblock;
#[cfg(test)]
mod tests;

/// Bytes of a block: what the store reads, checks and counts.
pub const BLOCK_BYTES: usize = 4096;

/// A page that begins with these bytes; zeros follow.
pub(crate) fn page_of(bytes: &[u8]) -> [u8; BLOCK_BYTES] {
    let mut page = [0; BLOCK_BYTES];
    page[..bytes.len()].copy_from_slice(bytes);
    page
}
