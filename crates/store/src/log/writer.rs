//! Log: writers append blocks at the two heads; sealed segments are written to the device.
//!
//! A head has at most one open segment, in a buffer. `append` copies the block into the buffer and
//! notes it in the directory. The append that fills the segment seals it: the directory goes to the
//! front of the buffer, and the segment joins the queue, from which a worker writes it. The
//! survivor head has buffers and segments of its own. So collection goes on while writers of the
//! fresh head wait for what it frees.
//!
//! Guarantees: an appended block can be read at once, from the buffer; later, without a gap, from
//! the device. A segment whose write failed stays in its buffer until the device takes it
//! (`retry`).
//! Never: does I/O under a lock; `append` never blocks, fails or allocates.
//! Threads: any. A `Writer` has its head's lock, and takes the space's lock briefly under it.

use core::time::Duration;

use deepheap_sys::errno::{Errno, Result as DeviceResult};
use deepheap_sys::memory::aligned_buffer::{Filler, Held};
use deepheap_sys::narrow::Narrow;
use deepheap_sys::process::clock;
use deepheap_sys::threads::atomic::Ordering;
use deepheap_sys::threads::lock::Guard;

use crate::block::checksum::ContentHash;
use crate::block::table::share;
use crate::block::{BLOCK_UNITS, Block, Segment};
use crate::device::Write;
use crate::error::StoreError;
use crate::format::BLOCK_BYTES;
use crate::format::directory;
use crate::format::packed::PACKED_NAME;
use crate::log::head::{Head, HeadState, OpenSegment};
use crate::log::stats::Count;
use crate::log::store::Store;
use crate::space::Space;
use crate::space::segment::State;

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

/// The thing that a head lacks to open a segment, and where it comes from.
enum Missing {
    /// A buffer: all are sealed or being written.
    Buffer,
    /// A buffer that nobody reads.
    UnreadBuffer,
    /// A free segment: collection will free one.
    FreeSegment,
    /// A free segment: the device may still have space for more. If nothing else is left (`last`),
    /// a refusal means that the store is full.
    DeviceSpace { last: bool },
    /// Something that will not come.
    Unavailable(StoreError),
}

/// The right to append to a head, and room to do so. Drop it soon: it holds the head.
pub struct Writer<'a> {
    store: &'a Store,
    head: Head,
    /// None once the segment is full. Before the guard, so that it is dropped first: a thread
    /// that has the head's lock finds the buffer without a filler.
    filler: Option<Filler<'a>>,
    state: Guard<'a, HeadState>,
}

impl<'a> Writer<'a> {
    /// A writer on the head's open segment, if there is one that is not empty.
    pub(crate) fn of_open_segment(store: &'a Store, head: Head) -> Option<Self> {
        let state = store.heads[head as usize].lock();
        let open = state.open.filter(|open| open.count > 0)?;
        let filler = store.blocks.buffers[open.buffer].fill()?;
        Some(Self { store, head, state, filler: Some(filler) })
    }

    /// As `Store::try_writer`, but it waits for neither another thread's turn at the head nor the
    /// device: `Ok(None)` if it would have to.
    pub fn at_once(store: &'a Store, head: Head) -> Result<Option<Self>, StoreError> {
        let Some(state) = store.heads[head as usize].try_lock() else { return Ok(None) };
        match Self::with(store, head, state) {
            Ok(writer) => Ok(Some(writer)),
            Err(Missing::Unavailable(error)) => Err(error),
            Err(missing) => {
                if matches!(missing, Missing::FreeSegment) {
                    store.work.notify();
                }
                Ok(None)
            }
        }
    }

    /// A writer on the open segment of a head that the caller has locked; opened if need be.
    fn with(
        store: &'a Store,
        head: Head,
        mut state: Guard<'a, HeadState>,
    ) -> Result<Self, Missing> {
        let buffer = match state.open {
            Some(open) => open.buffer,
            None => {
                let open = store.open_segment(head)?;
                state.open = Some(open);
                open.buffer
            }
        };
        let filler = store.blocks.buffers[buffer].fill().ok_or(Missing::UnreadBuffer)?;
        Ok(Self { store, head, state, filler: Some(filler) })
    }

    /// Blocks that can be appended: at least one when the store hands the writer out.
    pub fn room(&self) -> usize {
        match (&self.filler, self.state.open) {
            (Some(_), Some(open)) => {
                (self.store.blocks.geometry.data_blocks() - open.count) as usize
            }
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
        debug_assert!(name < u64::from(u32::MAX), "the name of packed blocks, or of no page");
        self.append_block(name, data, checksum, BLOCK_UNITS, 0)
    }

    /// Appends a packed block whose objects cost `cost_sum` together (each of them `packed::cost`
    /// of its bytes), and returns where they are from now on. Each is live until it is retired.
    ///
    /// # Panics
    /// As `append`.
    pub fn append_packed(&mut self, block: &[u8], cost_sum: u32) -> Block {
        let checksum = self.store.hash(block).checksum(PACKED_NAME);
        self.append_block(PACKED_NAME, block, checksum, cost_sum, 0)
    }

    /// Appends a packed block of so many compressed pages, and returns where they are from now on.
    /// Each costs its `share` of the block, and is live until it is retired.
    ///
    /// # Panics
    /// As `append`; or if there is no page, or more than a block can have.
    pub fn append_pages(&mut self, block: &[u8], pages: usize) -> Block {
        assert!((1..=255).contains(&pages), "a block of no pages, or of too many");
        let checksum = self.store.hash(block).checksum(PACKED_NAME);
        let units = share(pages) * pages.to_u32();
        self.append_block(PACKED_NAME, block, checksum, units, pages.to_u8())
    }

    fn append_block(
        &mut self,
        name: u64,
        data: &[u8],
        checksum: u32,
        units: u32,
        pages: u8,
    ) -> Block {
        assert_eq!(data.len(), BLOCK_BYTES, "the store keeps blocks of 4 KiB");
        let state = &mut *self.state;
        let (Some(filler), Some(open)) = (&mut self.filler, &mut state.open) else {
            panic!("append needs a writer with room");
        };
        let store = self.store;
        let block = store.blocks.geometry.block(open.segment, open.count);
        let filling = store.blocks.segments.sequence(open.segment);
        let at = filler.append_changed(data, |bytes| {
            store.blocks.table.seal(filling, block, name, bytes);
        });
        debug_assert_eq!(at, store.blocks.geometry.offset_in_segment(block));
        let index = open.count as usize;
        // The owner of an object appends its copies one after the other: each sees the count of the
        // one before it.
        let order = store.appended.fetch_add(1, Ordering::Relaxed) - open.first_order;
        directory::set_entry(&mut state.directory, index, name, order, checksum);
        store.blocks.table.set_checksum(block, checksum);
        store.blocks.table.set_sharers(block, pages);
        store.blocks.segments.add_live(open.segment, units);
        store.blocks.counters.appended(self.head, units);
        open.count += 1;
        if open.count == store.blocks.geometry.data_blocks() {
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
        store.blocks.segments.set_count(open.segment, open.count);
        let filling = store.blocks.filling(open.segment);
        directory::finish(&mut self.state.directory, filling, self.head, open.first_order);
        filler.finish(&self.state.directory);
        drop(filler);
        {
            let mut space = store.space.lock();
            space.change(&store.blocks.segments, open.segment, State::Sealed);
            space.unwritten.sealed.push_back(open.segment);
        }
        store.sealed.notify();
    }
}

impl Store {
    /// The right to append to the head; waits until there is room for at least one block. A
    /// waiting writer of the fresh head wakes the collector and, if buffers are lacking, writes
    /// sealed segments itself.
    ///
    /// Errors: `Full` if neither collection nor the device can free a segment; `Io` if all buffers
    /// of the head hold what a dead device refused.
    pub fn writer(&self, head: Head) -> Result<Writer<'_>, StoreError> {
        loop {
            let ticket = self.progress.ticket();
            let wait = match self.open_writer(head) {
                Ok(writer) => return Ok(writer),
                Err(Missing::Buffer) if self.write_sealed(false) => None,
                Err(missing) => self.supply(missing)?,
            };
            if wait.is_some() {
                self.progress.wait(ticket, wait);
            }
        }
    }

    /// As `writer`, but without waiting: `Ok(None)` if it would have to. It may ask the device
    /// for space.
    pub fn try_writer(&self, head: Head) -> Result<Option<Writer<'_>>, StoreError> {
        loop {
            match self.open_writer(head) {
                Ok(writer) => return Ok(Some(writer)),
                Err(missing) => {
                    if self.supply(missing)?.is_some() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Gets what a writer is missing; how long to wait for it, if it has to be waited for.
    fn supply(&self, missing: Missing) -> Result<Option<Duration>, StoreError> {
        match missing {
            Missing::Unavailable(error) => Err(error),
            Missing::DeviceSpace { last } => match self.grow(1) {
                Err(_) if last => Err(StoreError::Full),
                Ok(true) | Err(_) => Ok(None),
                Ok(false) => Ok(Some(WRITER_WAIT)),
            },
            Missing::Buffer => Ok(Some(WRITER_WAIT)),
            Missing::UnreadBuffer => Ok(Some(READERS_WAIT)),
            Missing::FreeSegment => {
                self.work.notify();
                Ok(Some(WRITER_WAIT))
            }
        }
    }

    /// A writer on the head's open segment, opened if need be.
    fn open_writer(&self, head: Head) -> Result<Writer<'_>, Missing> {
        Writer::with(self, head, self.heads[head as usize].lock())
    }

    /// Begins a segment in a buffer.
    fn open_segment(&self, head: Head) -> Result<OpenSegment, Missing> {
        let mut space = self.space.lock();
        let free = space.unwritten.free_buffers[head as usize];
        if free == 0 {
            return Err(match self.failure() {
                Some(failure)
                    if space.unwritten.retries.are_stuck(self.blocks.all_buffers(head)) =>
                {
                    Missing::Unavailable(failure)
                }
                _ => Missing::Buffer,
            });
        }
        let free_ones = (0..self.blocks.buffers.len()).filter(|buffer| free & (1 << buffer) != 0);
        let mut closed =
            free_ones.filter_map(|buffer| Some((buffer, self.blocks.buffers[buffer].close()?)));
        let (buffer, mut closed) = closed.next().ok_or(Missing::UnreadBuffer)?;
        let live_units = self.blocks.counters.live_units();
        let occupancy = space.occupancy(live_units);
        let Some(segment) = space.take_ready(&self.blocks.segments, head, &occupancy) else {
            let bare = space.count(State::Bare) > 0;
            return Err(match head {
                _ if occupancy.may_grow() => Missing::DeviceSpace { last: false },
                Head::Fresh if !space.is_stuck() => Missing::FreeSegment,
                _ if bare => Missing::DeviceSpace { last: true },
                _ => Missing::Unavailable(StoreError::Full),
            });
        };
        closed.clear();
        drop(closed);
        space.unwritten.free_buffers[head as usize] &= !(1 << buffer);
        space.unwritten.in_buffer[buffer] = segment;
        self.blocks.segments.set_buffer(segment, Some(buffer));
        let collect = space.collect_needed(live_units);
        drop(space);
        if collect {
            self.work.notify();
        }
        let first_order = self.appended.load(Ordering::Relaxed);
        Ok(OpenSegment { segment, buffer, count: 0, first_order })
    }

    /// Writes sealed segments to the device: a batch of them if there are any (then true). Else,
    /// if `wait`, parks until there are, or until `stop_waiting` (then false). A caller that may
    /// `wait` also writes what the device refused, when it is time.
    pub fn write_sealed(&self, wait: bool) -> bool {
        loop {
            let ticket = self.sealed.ticket();
            let wrote = self.write_batch();
            if (wait && self.retry_due()) || wrote {
                return true;
            }
            if !wait || self.is_stopping() {
                return false;
            }
            self.sealed.wait(ticket, self.until_retry());
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
            let Some(segment) = space.unwritten.sealed.pop_front() else {
                break;
            };
            if self.blocks.segments.live(segment) == 0 {
                space.leave_buffer(&self.blocks.segments, segment);
                space.free(&self.blocks.segments, segment);
                skipped = true;
            } else {
                space.change(&self.blocks.segments, segment, State::Writing);
                batch[count] = segment;
                count += 1;
            }
        }
        // Buffers are held in the order of their numbers, in which `freeze` closes them.
        batch[..count].sort_unstable_by_key(|&segment| self.blocks.segments.buffer(segment));
        (batch, count, skipped)
    }

    /// Hands the segments' buffers to the device.
    fn write_segments(&self, batch: &[Segment]) -> [DeviceResult<()>; WRITE_BATCH_SEGMENTS] {
        let mut held: [Option<Held<'_>>; WRITE_BATCH_SEGMENTS] = [const { None }; _];
        for (held, &segment) in held.iter_mut().zip(batch) {
            *held = self.blocks.segments.buffer(segment).map(|buffer| self.blocks.hold(buffer));
        }
        let mut writes = core::array::from_fn(|at| {
            let bytes = batch.get(at).and_then(|&segment| {
                let blocks =
                    self.blocks.geometry.directory_blocks + self.blocks.segments.count(segment);
                held[at].as_ref()?.bytes(0, blocks as usize * BLOCK_BYTES)
            });
            let offset = batch.get(at).map_or(0, |&at| self.blocks.segment_offset(at));
            Write::new(offset, bytes.unwrap_or(&[]))
        });
        let writes: &mut [Write<'_>; WRITE_BATCH_SEGMENTS] = &mut writes;
        match &mut writes[..batch.len()] {
            [alone] => self.write_gently(alone),
            together => self.write_together(together),
        }
        core::array::from_fn(|at| {
            // A sealed buffer always shows its bytes; if it did not, nothing was written.
            if writes[at].data.is_empty() { Err(Errno::EIO) } else { writes[at].result }
        })
    }

    fn write_together(&self, writes: &mut [Write<'_>]) {
        self.busy.during(|| self.blocks.devices.device_now().write(writes));
        for write in writes {
            self.blocks.counters.wrote(if write.result.is_ok() { write.data.len() } else { 0 });
        }
    }

    /// Writes a segment in pieces, one after the other, so that reads which the program waits for
    /// are queued behind one piece at most. When buffers grow scarce, the rest goes at once.
    pub(crate) fn write_gently(&self, write: &mut Write<'_>) {
        let mut done = 0;
        while done < write.data.len() {
            let rest = write.data.len() - done;
            let length = if self.are_buffers_scarce() { rest } else { rest.min(GENTLE_BYTES) };
            let piece = &write.data[done..done + length];
            let mut pieces = [Write::new(write.offset + done as u64, piece)];
            self.write_together(&mut pieces);
            write.result = pieces[0].result;
            if write.result.is_err() {
                return;
            }
            done += length;
        }
    }

    /// Whether the fresh head may soon lack a buffer. Threads that hold buffers ask. They
    /// must not wait for the space: a thread that freezes the store has it, and waits for buffers.
    fn are_buffers_scarce(&self) -> bool {
        self.space.try_lock().is_some_and(|space| {
            space.unwritten.free_buffers[Head::Fresh as usize].count_ones() < BUFFERS_TO_SPARE
        })
    }

    /// The device answered for a segment.
    pub(crate) fn written(&self, space: &mut Space, segment: Segment, result: DeviceResult<()>) {
        let Some(buffer) = self.blocks.segments.buffer(segment) else {
            unreachable!("a segment leaves its buffer when it was written, or is freed");
        };
        match result {
            Ok(()) => {
                space.change(&self.blocks.segments, segment, State::Written);
                space.unwritten.retries.taken(buffer);
                space.leave_buffer(&self.blocks.segments, segment);
                space.put_in_bucket(&self.blocks.segments, segment);
                self.blocks.counters.add(Count::SegmentsWritten, 1);
            }
            Err(errno) => {
                self.blocks.devices.fail(errno);
                space.change(&self.blocks.segments, segment, State::Failed);
                space.unwritten.retries.refused(buffer, clock::monotonic_ns());
                if space.free_if_failed(&self.blocks.segments, segment) {
                    self.progress.notify();
                }
                // The writer may sleep without an end.
                self.sealed.notify();
            }
        }
    }
}
