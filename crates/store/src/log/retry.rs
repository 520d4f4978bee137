//! Retry: segments whose write the device refused are written again.
//!
//! A refused segment stays in its buffer, where it is read; nobody else can use the buffer.
//! `retry_schedule` says when it is tried again. From the third refusal on, if the segment's own
//! place refuses it once more, the place of a free segment is tried. If that one takes it, the two
//! segments change places for good, and the bad place is never used again. If all buffers of a head
//! hold refused segments and the device is dead, its writers get an error; else they wait. The
//! tries go on, once a second; the first write that succeeds revives the device.
//!
//! Writing again loses nothing: the buffer is intact, and nobody was told that its bytes are on the
//! device. `sync` is another matter, and is never repeated.
//!
//! Guarantees: while nothing is refused, no thread wakes up for this, and none reads the clock.
//! Never: allocates; does I/O under a lock, or in a thread that faults.
//! Threads: the writer, and callers of `Store::retry_failed`.

use core::time::Duration;

use deepheap_sys::errno::{Errno, Result as DeviceResult};
use deepheap_sys::process::clock;

use crate::block::Segment;
use crate::device::Write;
use crate::format::BLOCK_BYTES;
use crate::log::stats::Count;
use crate::log::store::Store;
use crate::space::retry_schedule::Buffers;
use crate::space::segment::State;

/// Refusals after which a segment may go to another place.
const REFUSALS_IN_PLACE: u8 = 3;

impl Store {
    /// Writes every segment that the device refused once more, at once. Whether there were any.
    /// The writer (`write_sealed`) does so by itself when it is time.
    pub fn retry_failed(&self) -> bool {
        self.retry(Buffers::MAX)
    }

    /// As `retry_failed`, those whose time has come.
    pub(crate) fn retry_due(&self) -> bool {
        let due = {
            let space = self.space.lock();
            match space.unwritten.retries.next_due_ns() {
                Some(_) => space.unwritten.retries.due(clock::monotonic_ns()),
                None => 0,
            }
        };
        due != 0 && self.retry(due)
    }

    /// How long the writer may sleep; none if nothing is to be tried again.
    pub(crate) fn until_retry(&self) -> Option<Duration> {
        let due_ns = self.space.lock().unwritten.retries.next_due_ns()?;
        Some(Duration::from_nanos(due_ns.saturating_sub(clock::monotonic_ns())))
    }

    fn retry(&self, mut wanted: Buffers) -> bool {
        let mut tried: Buffers = 0;
        loop {
            let (segment, buffer, refusals) = {
                let mut space = self.space.lock();
                let Some((buffer, refusals)) = space.unwritten.retries.take(wanted & !tried) else {
                    break;
                };
                let segment = space.unwritten.in_buffer[buffer];
                space.change(&self.blocks.segments, segment, State::Writing);
                (segment, buffer, refusals)
            };
            tried |= 1 << buffer;
            if self.rewrite(segment, refusals) {
                // It takes writes again: no use in waiting with the others.
                wanted = Buffers::MAX;
            }
        }
        if tried != 0 {
            self.progress.notify();
        }
        tried != 0
    }

    /// Writes the segment, which is Writing, once more; whether the device took it.
    fn rewrite(&self, segment: Segment, refusals: u8) -> bool {
        self.blocks.counters.add(Count::WritesRetried, 1);
        let mut result = self.write_alone(segment, segment);
        let spare = match result {
            Err(_) if refusals >= REFUSALS_IN_PLACE => self.take_spare(),
            _ => None,
        };
        if let Some(spare) = spare {
            let elsewhere = self.write_alone(segment, spare);
            let mut space = self.space.lock();
            if elsewhere.is_ok() {
                // Nobody reads either of them on the device yet.
                self.blocks.segments.swap_places(segment, spare);
                space.change(&self.blocks.segments, spare, State::Lost);
                self.blocks.counters.add(Count::SegmentsRelocated, 1);
                result = Ok(());
            } else {
                space.return_spare(&self.blocks.segments, spare);
            }
        }
        self.written(&mut self.space.lock(), segment, result);
        result.is_ok()
    }

    /// A free segment for the sake of its place, if collection can do without.
    fn take_spare(&self) -> Option<Segment> {
        let take = || {
            let live_units = self.blocks.counters.live_units();
            self.space.lock().take_spare(&self.blocks.segments, live_units)
        };
        take().or_else(|| match self.grow(1) {
            Ok(true) => take(),
            Ok(false) | Err(_) => {
                self.work.notify();
                None
            }
        })
    }

    /// Writes what is in the segment's buffer where the other one lies.
    fn write_alone(&self, segment: Segment, place_of: Segment) -> DeviceResult<()> {
        let Some(buffer) = self.blocks.segments.buffer(segment) else { return Err(Errno::EIO) };
        let held = self.blocks.hold(buffer);
        let blocks = self.blocks.geometry.directory_blocks + self.blocks.segments.count(segment);
        let bytes = held.bytes(0, blocks as usize * BLOCK_BYTES).ok_or(Errno::EIO)?;
        let mut write = Write::new(self.blocks.segment_offset(place_of), bytes);
        self.write_gently(&mut write);
        write.result
    }
}
