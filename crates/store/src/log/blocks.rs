//! Blocks: all blocks of a log, as the threads that read them find them: without a lock.
//!
//! Guarantees: a block is in the buffer that its segment names, or else on its device.
//! Never: has a lock, but for those that `recent` only tries; allocates after it was made.
//! Threads: any, also in a signal handler.

use core::time::Duration;

use deepheap_sys::memory::aligned_buffer::{AlignedBuffer, Held};
use deepheap_sys::threads::atomic::AtomicU32;
use deepheap_sys::threads::futex;

use crate::block::table::BlockTable;
use crate::block::{Block, Segment};
use crate::device::generations::Generations;
use crate::format::directory::Filling;
use crate::format::geometry::Geometry;
use crate::log::head::Head;
use crate::log::recent::Recent;
use crate::log::stats::Counters;
use crate::space::segment::SegmentTable;

/// Segment buffers of the survivor head: one to fill, one being written.
pub(crate) const SURVIVOR_BUFFERS: usize = 2;

/// How long a thread sleeps before it looks again at a buffer that is closed for a moment.
const NAP: Duration = Duration::from_micros(20);

/// See the file's header.
pub(crate) struct Blocks {
    pub(crate) geometry: Geometry,
    /// Tells this log's directories from those of others on the same device.
    pub(crate) id: u64,
    pub(crate) table: BlockTable,
    pub(crate) segments: SegmentTable,
    pub(crate) devices: Generations,
    /// The survivors' first.
    pub(crate) buffers: Box<[AlignedBuffer]>,
    pub(crate) recent: Recent,
    pub(crate) counters: Counters,
}

impl Blocks {
    /// The right to read the buffer; waits while it is closed. For threads without a lock that
    /// hold no buffer of a higher number: `freeze` closes them in order, with all locks.
    pub(crate) fn hold(&self, buffer: usize) -> Held<'_> {
        loop {
            match self.buffers[buffer].hold() {
                Some(held) => return held,
                None => nap(),
            }
        }
    }

    /// The head's buffers, as bits.
    pub(crate) fn all_buffers(&self, head: Head) -> u64 {
        let own = (0..self.buffers.len()).filter(|&buffer| head_of(buffer) == head);
        own.fold(0, |bits, buffer| bits | 1 << buffer)
    }

    /// What the segment's directory says of its filling, once it is sealed.
    pub(crate) fn filling(&self, segment: Segment) -> Filling {
        let (sequence, count) = (self.segments.sequence(segment), self.segments.count(segment));
        Filling { segment, sequence, store: self.id, count }
    }

    /// Where the segment starts on its device, bytes.
    pub(crate) fn segment_offset(&self, segment: Segment) -> u64 {
        self.geometry.segment_offset(self.segments.place(segment))
    }

    /// Where the block starts on its device, bytes. The caller holds it, and its segment is in no
    /// buffer.
    pub(crate) fn block_offset(&self, block: Block) -> u64 {
        let segment = self.geometry.segment_of(block);
        self.segment_offset(segment) + self.geometry.offset_in_segment(block) as u64
    }
}

/// Which head the buffer belongs to.
pub(crate) fn head_of(buffer: usize) -> Head {
    if buffer < SURVIVOR_BUFFERS { Head::Survivor } else { Head::Fresh }
}

/// Sleeps for a moment.
pub(crate) fn nap() {
    let nobody_wakes = AtomicU32::new(0);
    futex::wait(&nobody_wakes, 0, Some(NAP));
}
