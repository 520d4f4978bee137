//! Head: one of the two ends of the log, and what it has open; the queue of sealed segments.
//!
//! Guarantees: the queue gives the segments back in the order in which they were sealed.
//! Never: allocates, blocks, does I/O.
//! Threads: a `HeadState` under the lock of its head, the queue under the lock of the space.

use crate::block::Segment;
use crate::options::BUFFERS_MAX;

/// One of the two ends of the log that blocks are appended to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Head {
    /// What the pager evicts.
    Fresh,
    /// What collection moves.
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

/// What the lock of a head protects.
pub(crate) struct HeadState {
    pub(crate) open: Option<OpenSegment>,
    /// The directory of the open segment, being filled.
    pub(crate) directory: Box<[u8]>,
}

/// Sealed segments, oldest first; there are never more than buffers.
pub(crate) struct SealedQueue {
    segments: [Segment; BUFFERS_MAX],
    first: usize,
    len: usize,
}

impl SealedQueue {
    pub(crate) const fn new() -> Self {
        Self { segments: [Segment(0); BUFFERS_MAX], first: 0, len: 0 }
    }

    pub(crate) fn push(&mut self, segment: Segment) {
        assert!(self.len < BUFFERS_MAX, "more segments are sealed than there are buffers");
        self.segments[(self.first + self.len) % BUFFERS_MAX] = segment;
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<Segment> {
        self.len = self.len.checked_sub(1)?;
        let segment = self.segments[self.first];
        self.first = (self.first + 1) % BUFFERS_MAX;
        Some(segment)
    }
}
