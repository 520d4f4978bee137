//! Head: one of the two ends of the log, and what it has open.
//!
//! Guarantees: plain values.
//! Never: allocates, blocks, does I/O.
//! Threads: a `HeadState` under the lock of its head.

use crate::block::Segment;

/// One of the two ends of the log that blocks are appended to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Head {
    /// Objects that the pager evicts.
    Fresh,
    /// Objects that collection moves.
    Survivor,
}

/// The segment that a head appends to.
#[derive(Clone, Copy)]
pub(crate) struct OpenSegment {
    pub(crate) segment: Segment,
    pub(crate) buffer: usize,
    pub(crate) count: u32,
    /// Blocks that had been appended to the log when it was opened.
    pub(crate) first_order: u64,
}

/// The state under the lock of a head.
pub(crate) struct HeadState {
    pub(crate) open: Option<OpenSegment>,
    /// The directory of the open segment, being filled.
    pub(crate) directory: Box<[u8]>,
}
