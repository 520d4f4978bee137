//! Log: the two heads that blocks are appended to, and the segments on their way to the device.
//!
//! A head has at most one Open segment, in a buffer. Appending copies the block into the buffer
//! and notes it in the directory, which the head stages. The append that fills the segment seals
//! it: the directory goes in front, the segment joins the queue, a worker writes it. The
//! survivor head has buffers and segments of its own, so that collection goes on while writers of
//! the fresh head wait for what it frees.
//!
//! Guarantees: an appended block is readable at once, from the buffer, and without a gap from
//! the device once the buffer is reused; a segment whose write failed stays in its buffer.
//! Never: does I/O under a lock; `append` never blocks, fails or allocates.
//! Threads: any; a `Writer` has its head's lock, under which the space's lock is taken briefly.

use core::time::Duration;

use deepheap_sys::aligned_buffer::{Filler, Held};
use deepheap_sys::errno::{Errno, Result as DeviceResult};
use deepheap_sys::lock::Guard;

use crate::block::{BLOCK_BYTES, BLOCK_UNITS, Block, Segment};
use crate::checksum::ContentHash;
use crate::device::Write;
use crate::error::StoreError;
use crate::event::Ticket;
use crate::format::{self, Filling};
use crate::packed::PACKED_NAME;
use crate::segment::State;
use crate::space::Space;
use crate::store::{BUFFERS_MAX, Growth, Store};

/// One of the two ends of the log that blocks are appended to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Head {
    /// What the pager evicts.
    Fresh,
    /// What collection moves.
    Survivor,
}

/// Bytes of one write while the device keeps up with the pager.
const GENTLE_BYTES: usize = 256 << 10;

/// It keeps up while that many buffers of the fresh head are free.
const BUFFERS_TO_SPARE: u32 = 3;

/// Sealed segments that one call hands to the device together.
const WRITE_BATCH_SEGMENTS: usize = 4;

/// How long a writer waits for readers of a buffer, which only copy a block.
const READERS_WAIT: Duration = Duration::from_micros(50);

/// How long a writer sleeps at most before it looks again by itself.
const WRITER_WAIT: Duration = Duration::from_millis(100);

/// The segment that a head appends to.
#[derive(Clone, Copy)]
pub(crate) struct OpenSegment {
    pub(crate) segment: Segment,
    pub(crate) buffer: usize,
    pub(crate) count: u32,
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

    fn pop(&mut self) -> Option<Segment> {
        self.len = self.len.checked_sub(1)?;
        let segment = self.segments[self.first];
        self.first = (self.first + 1) % BUFFERS_MAX;
        Some(segment)
    }
}

/// What a head lacks to open a segment.
enum Lack {
    /// A buffer: all are sealed or being written.
    Buffer,
    /// A buffer without readers.
    Quiet,
    /// A free segment, which collection will bring.
    Segment,
    /// A free segment, which the device may still give. `last`: else there is none.
    Growth { last: bool },
    /// Nothing that will come.
    Hopeless(StoreError),
}

/// The right to append to a head, and room to do so. Drop it soon: it holds the head.
pub struct Writer<'a> {
    store: &'a Store,
    head: Head,
    /// None once the segment is full. Before the guard, so that it is dropped first: whoever has
    /// the head's lock finds the buffer without a filler.
    filler: Option<Filler<'a>>,
    state: Guard<'a, HeadState>,
}

impl<'a> Writer<'a> {
    /// A writer on the head's open segment, if there is one that is not empty.
    pub(crate) fn of_open_segment(store: &'a Store, head: Head) -> Option<Self> {
        let state = store.heads[head as usize].lock();
        let open = state.open.filter(|open| open.count > 0)?;
        let filler = store.buffers[open.buffer].fill()?;
        Some(Self { store, head, state, filler: Some(filler) })
    }

    /// Blocks that can be appended: at least one when the store hands the writer out.
    pub fn room(&self) -> usize {
        match (&self.filler, self.state.open) {
            (Some(_), Some(open)) => (self.store.geometry.data_blocks() - open.count) as usize,
            _ => 0,
        }
    }

    /// Appends the 4096 bytes of the object `name`, which hash to `hash`, and returns where they
    /// are from now on. The block is live, and readable at once.
    ///
    /// # Panics
    /// If there is no `room`, or the data is not one block.
    pub fn append(&mut self, name: u64, data: &[u8], hash: ContentHash) -> Block {
        self.append_as(name, data, hash.checksum(name))
    }

    /// As `append`, but reads are held against `checksum`, whatever the bytes are: an object that
    /// collection finds damaged moves with the checksum it ought to have, and stays unreadable.
    pub fn append_as(&mut self, name: u64, data: &[u8], checksum: u32) -> Block {
        debug_assert!(name != PACKED_NAME, "the name of packed blocks");
        self.place(name, data, checksum, BLOCK_UNITS)
    }

    /// Appends a packed block whose objects cost `cost_sum` together (each of them `packed::cost`
    /// of its bytes), and returns where they are from now on. Each is live until it is retired.
    ///
    /// # Panics
    /// As `append`.
    pub fn append_packed(&mut self, block: &[u8], cost_sum: u32) -> Block {
        let checksum = ContentHash::of(block).checksum(PACKED_NAME);
        self.place(PACKED_NAME, block, checksum, cost_sum)
    }

    fn place(&mut self, name: u64, data: &[u8], checksum: u32, units: u32) -> Block {
        assert_eq!(data.len(), BLOCK_BYTES, "the store keeps blocks of 4 KiB");
        let state = &mut *self.state;
        let (Some(filler), Some(open)) = (&mut self.filler, &mut state.open) else {
            panic!("append needs a writer with room");
        };
        let store = self.store;
        let block = store.geometry.block(open.segment, open.count);
        let at = filler.append(data);
        debug_assert_eq!(at, store.geometry.offset_in_segment(block));
        let index = open.count as usize;
        format::set_entry(&mut state.directory, index, name, checksum);
        store.checksums.set(block, checksum);
        store.segments.add_live(open.segment, units);
        store.counters.appended(self.head, units);
        open.count += 1;
        if open.count == store.geometry.data_blocks() {
            self.seal();
        }
        block
    }

    /// Hands the open segment, full or not, to the writer threads.
    pub(crate) fn seal(&mut self) {
        let (Some(mut filler), Some(open)) = (self.filler.take(), self.state.open.take()) else {
            return;
        };
        let store = self.store;
        let filling = Filling {
            segment: open.segment,
            sequence: store.segments.sequence(open.segment),
            store: store.id,
            count: open.count,
        };
        format::finish(&mut self.state.directory, filling, self.head);
        filler.finish(&self.state.directory);
        drop(filler);
        store.segments.set_count(open.segment, open.count);
        {
            let mut space = store.space.lock();
            space.change(&store.segments, open.segment, State::Sealed);
            space.sealed.push(open.segment);
        }
        store.sealed.notify();
    }
}

impl Store {
    /// The right to append to the head; waits until there is room for at least one block. A
    /// waiting writer of the fresh head wakes the collector and, if buffers are lacking, writes
    /// sealed segments itself.
    ///
    /// Errors: `Full` if neither collection nor the device can free a segment; `Io` if the writes
    /// of all buffers of the head have failed.
    pub fn writer(&self, head: Head) -> Result<Writer<'_>, StoreError> {
        loop {
            let ticket = self.progress.ticket();
            match self.open_writer(head) {
                Ok(writer) => return Ok(writer),
                Err(lack) => self.supply(lack, ticket)?,
            }
        }
    }

    /// As `writer`, but without waiting: `Ok(None)` if it would have to. It may ask the device
    /// for space.
    pub fn try_writer(&self, head: Head) -> Result<Option<Writer<'_>>, StoreError> {
        loop {
            match self.open_writer(head) {
                Ok(writer) => return Ok(Some(writer)),
                Err(Lack::Hopeless(error)) => return Err(error),
                Err(Lack::Growth { last }) => match self.grow() {
                    Growth::Assured | Growth::Smaller => {}
                    Growth::Refused(_) if last => return Err(StoreError::Full),
                    Growth::Refused(_) => {}
                    Growth::Busy => return Ok(None),
                },
                Err(Lack::Segment) => {
                    self.work.notify();
                    return Ok(None);
                }
                Err(_) => return Ok(None),
            }
        }
    }

    /// Gets or waits for what a writer lacks.
    fn supply(&self, lack: Lack, ticket: Ticket) -> Result<(), StoreError> {
        let wait = match lack {
            Lack::Hopeless(error) => return Err(error),
            Lack::Growth { last } => match self.grow() {
                Growth::Assured | Growth::Smaller => return Ok(()),
                Growth::Refused(_) if last => return Err(StoreError::Full),
                Growth::Refused(_) => return Ok(()),
                Growth::Busy => WRITER_WAIT,
            },
            Lack::Buffer if self.write_sealed(false) => return Ok(()),
            Lack::Buffer => WRITER_WAIT,
            Lack::Quiet => READERS_WAIT,
            Lack::Segment => {
                self.work.notify();
                WRITER_WAIT
            }
        };
        self.progress.wait(ticket, Some(wait));
        Ok(())
    }

    /// A writer on the head's open segment, opened if need be.
    fn open_writer(&self, head: Head) -> Result<Writer<'_>, Lack> {
        let mut state = self.heads[head as usize].lock();
        let buffer = match state.open {
            Some(open) => open.buffer,
            None => {
                let open = self.open_segment(head)?;
                state.open = Some(open);
                open.buffer
            }
        };
        let filler = self.buffers[buffer].fill().ok_or(Lack::Quiet)?;
        Ok(Writer { store: self, head, state, filler: Some(filler) })
    }

    /// Begins a segment in a buffer.
    fn open_segment(&self, head: Head) -> Result<OpenSegment, Lack> {
        let mut space = self.space.lock();
        let free = space.free_buffers[head as usize];
        if free == 0 {
            return Err(match self.failure() {
                Some(failure) if self.is_blocked(head) => Lack::Hopeless(failure),
                _ => Lack::Buffer,
            });
        }
        let quiet = (0..self.buffers.len()).filter(|buffer| free & (1 << buffer) != 0);
        let mut closed = quiet.filter_map(|buffer| Some((buffer, self.buffers[buffer].close()?)));
        let (buffer, mut closed) = closed.next().ok_or(Lack::Quiet)?;
        let live_units = self.counters.live_units();
        let occupancy = space.occupancy(live_units);
        let Some(segment) = space.take_ready(&self.segments, head, &occupancy) else {
            let bare = space.count(State::Bare) > 0;
            return Err(match head {
                _ if occupancy.may_grow() => Lack::Growth { last: false },
                Head::Fresh if !space.is_stuck() => Lack::Segment,
                _ if bare => Lack::Growth { last: true },
                _ => Lack::Hopeless(StoreError::Full),
            });
        };
        closed.clear();
        drop(closed);
        space.free_buffers[head as usize] &= !(1 << buffer);
        self.segments.set_home(segment, Some(buffer));
        let collect = space.collect_needed(live_units);
        drop(space);
        if collect {
            self.work.notify();
        }
        Ok(OpenSegment { segment, buffer, count: 0 })
    }

    /// Writes sealed segments to the device: a batch of them if there are any (then true). Else,
    /// if `wait`, parks until there are, or until `stop_waiting` (then false).
    pub fn write_sealed(&self, wait: bool) -> bool {
        loop {
            let ticket = self.sealed.ticket();
            if self.write_batch() {
                return true;
            }
            if !wait || self.is_stopping() {
                return false;
            }
            self.sealed.wait(ticket, None);
        }
    }

    /// Writes up to `WRITE_BATCH_SEGMENTS` sealed segments; false if there was none.
    fn write_batch(&self) -> bool {
        let (batch, count, skipped) = self.take_sealed();
        if count > 0 {
            let results = self.write_segments(&batch[..count]);
            let mut space = self.space.lock();
            for (&segment, result) in batch.iter().zip(results).take(count) {
                self.written(&mut space, segment, result);
            }
        }
        if count > 0 || skipped {
            self.progress.notify();
        }
        count > 0 || skipped
    }

    /// Takes segments off the queue, to be written; those that are dead already are freed.
    fn take_sealed(&self) -> ([Segment; WRITE_BATCH_SEGMENTS], usize, bool) {
        let mut batch = [Segment(0); WRITE_BATCH_SEGMENTS];
        let (mut count, mut skipped) = (0, false);
        let mut space = self.space.lock();
        while count < WRITE_BATCH_SEGMENTS {
            let Some(segment) = space.sealed.pop() else {
                break;
            };
            if self.segments.live(segment) == 0 {
                self.leave_buffer(&mut space, segment);
                space.free(&self.segments, segment);
                skipped = true;
            } else {
                space.change(&self.segments, segment, State::Writing);
                batch[count] = segment;
                count += 1;
            }
        }
        // Buffers are held in the order of their numbers, in which `freeze` closes them.
        batch[..count].sort_unstable_by_key(|&segment| self.segments.home(segment));
        (batch, count, skipped)
    }

    /// Hands the segments' buffers to the device.
    fn write_segments(&self, batch: &[Segment]) -> [DeviceResult<()>; WRITE_BATCH_SEGMENTS] {
        let mut held: [Option<Held<'_>>; WRITE_BATCH_SEGMENTS] = [const { None }; _];
        for (held, &segment) in held.iter_mut().zip(batch) {
            *held = self.segments.home(segment).map(|buffer| self.hold(buffer));
        }
        let mut writes = core::array::from_fn(|at| {
            let bytes = batch.get(at).and_then(|&segment| {
                let blocks = self.geometry.directory_blocks + self.segments.count(segment);
                held[at].as_ref()?.bytes(0, blocks as usize * BLOCK_BYTES)
            });
            let offset = batch.get(at).map_or(0, |&at| self.geometry.segment_offset(at));
            Write::new(offset, bytes.unwrap_or(&[]))
        });
        let writes: &mut [Write<'_>; WRITE_BATCH_SEGMENTS] = &mut writes;
        match &mut writes[..batch.len()] {
            [alone] => self.write_gently(alone),
            together => self.device_now().write(together),
        }
        core::array::from_fn(|at| {
            self.counters.wrote(writes[at].data.len());
            // A sealed buffer always shows its bytes; if it did not, nothing was written.
            if writes[at].data.is_empty() { Err(Errno::EIO) } else { writes[at].result }
        })
    }

    /// Writes a segment in pieces, one after the other, so that reads which the program waits for
    /// are queued behind one piece at most. When buffers grow scarce, the rest goes at once.
    fn write_gently(&self, write: &mut Write<'_>) {
        let device = self.device_now();
        let mut done = 0;
        while done < write.data.len() {
            let rest = write.data.len() - done;
            let length = if self.are_buffers_scarce() { rest } else { rest.min(GENTLE_BYTES) };
            let piece = &write.data[done..done + length];
            let mut pieces = [Write::new(write.offset + done as u64, piece)];
            device.write(&mut pieces);
            write.result = pieces[0].result;
            if write.result.is_err() {
                return;
            }
            done += length;
        }
    }

    /// Whether the fresh head may soon lack a buffer. Asked by threads that hold buffers, which
    /// must not wait for the space: who freezes the store has it, and waits for the buffers.
    fn are_buffers_scarce(&self) -> bool {
        self.space.try_lock().is_some_and(|space| {
            space.free_buffers[Head::Fresh as usize].count_ones() < BUFFERS_TO_SPARE
        })
    }

    /// The device answered for a segment.
    fn written(&self, space: &mut Space, segment: Segment, result: DeviceResult<()>) {
        match result {
            Ok(()) => {
                space.change(&self.segments, segment, State::Written);
                self.leave_buffer(space, segment);
                space.file(&self.segments, segment);
                self.counters.segment_written();
            }
            Err(errno) => {
                self.fail(errno);
                space.change(&self.segments, segment, State::Failed);
                if let Some(buffer) = self.segments.home(segment) {
                    self.mark_buffer(buffer, true);
                }
                self.lose_if_dead(space, segment);
            }
        }
    }

    /// Gives up a segment whose write failed once nothing in it lives: its buffer is free again,
    /// its place on the device is never used again.
    pub(crate) fn lose_if_dead(&self, space: &mut Space, segment: Segment) {
        let failed = self.segments.state(segment) == State::Failed;
        if !failed || self.segments.live(segment) > 0 {
            return;
        }
        space.change(&self.segments, segment, State::Lost);
        if let Some(buffer) = self.segments.home(segment) {
            self.mark_buffer(buffer, false);
        }
        self.leave_buffer(space, segment);
        self.progress.notify();
    }

    /// Readers look on the device from now on; the buffer is free once the last one left.
    fn leave_buffer(&self, space: &mut Space, segment: Segment) {
        let Some(buffer) = self.segments.home(segment) else {
            return;
        };
        self.segments.set_home(segment, None);
        space.free_buffers[self.head_of(buffer) as usize] |= 1 << buffer;
    }
}
