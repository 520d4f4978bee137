//! Block: the numbers of the blocks of the log and of its segments.
//!
//! Guarantees: a block number fits in 30 bits, so that it fits beside the state in a table entry.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

pub mod checksum;
pub mod cipher;
pub mod pack;
pub mod table;

use crate::format::BLOCK_BYTES;

/// Units of a block: a unit is a 4096th of it. Live space is counted in units, so that the objects
/// of a packed block are retired one by one.
pub const BLOCK_UNITS: u32 = 4096;
const _: () = assert!(BLOCK_UNITS as usize == BLOCK_BYTES);

/// A block of the log: `segment * blocks_per_segment + index`, below `2^30`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block(pub u32);

/// A segment of the log, by position on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Segment(pub u32);

impl Segment {
    /// The index of the segment in the tables.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
