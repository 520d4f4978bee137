//! Options: how a store is laid out.
//!
//! Guarantees: plain values; `Store::open` says which of them cannot work.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

/// Segment buffers at most.
pub const BUFFERS_MAX: usize = 64;

/// Segment buffers at least.
pub const BUFFERS_MIN: usize = 4;

/// How a store is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of a segment: a power of two from 128 KiB to 8 MiB.
    pub segment_bytes: u64,
    /// Bytes of the device that the store may use.
    pub capacity_bytes: u64,
    /// Segment buffers in memory, from `BUFFERS_MIN` to `BUFFERS_MAX`; two of them belong to the
    /// survivor head.
    pub buffers: usize,
    /// Segments that only the survivor head may take, at least 2.
    pub reserve_segments: u32,
}

impl Options {
    /// Segments of 1 MiB, 8 buffers.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { segment_bytes: 1 << 20, capacity_bytes, buffers: 8, reserve_segments: 3 }
    }
}
