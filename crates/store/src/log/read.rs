//! Read: blocks come from memory or from the device, and are verified.
//!
//! Guarantees: `Ok` means that the buffer holds the bytes that were appended for this name. A block
//! that fails its checksum twice, or that the device refuses twice, is an error.
//! Never: allocates, waits for a lock, touches other memory than the store's, which is pinned, and
//! the caller's buffers.
//! Threads: any, also in a signal handler. The caller holds the blocks: nobody retires them
//! before `read` has returned.

use deepheap_sys::errno::Result as DeviceResult;

use crate::block::Block;
use crate::block::checksum::ContentHash;
use crate::device::Read;
use crate::error::StoreError;
use crate::format::BLOCK_BYTES;
use crate::format::packed::PACKED_NAME;
use crate::log::blocks::Blocks;
use crate::log::stats::Count;
use crate::log::store::Store;

/// Blocks that are asked of the device together; more are asked in turn.
pub const READ_BATCH_BLOCKS: usize = 64;

/// Blocks of a batch, by position.
type Mask = u64;

const _: () = assert!(READ_BATCH_BLOCKS == Mask::BITS as usize);

/// One block to read, and what became of it.
#[derive(Debug)]
pub struct BlockRead<'a> {
    /// The block; the caller holds it (it is not retired until `read` has returned).
    pub block: Block,
    /// The object it must hold, or `PACKED_NAME`.
    pub name: u64,
    /// 4096 bytes, aligned to 4096, for the block. Not to be used unless `result` is `Ok`.
    pub buf: &'a mut [u8],
    /// The hash of what was read, which matched the checksum; or why there is nothing.
    pub result: Result<ContentHash, StoreError>,
}

impl<'a> BlockRead<'a> {
    /// A read that has not been tried yet: its result is an error until it has.
    pub fn new(block: Block, name: u64, buf: &'a mut [u8]) -> Self {
        Self { block, name, buf, result: Err(StoreError::Corrupt(block)) }
    }

    /// A read of a packed block: `packed::find` gives its objects once the result is `Ok`.
    pub fn packed(block: Block, buf: &'a mut [u8]) -> Self {
        Self::new(block, PACKED_NAME, buf)
    }
}

impl Store {
    /// Reads the blocks; each request's `result` says what became of it. Blocks in segments that
    /// are still in memory are copied, and so are packed ones that were read a moment ago; the
    /// others are read from the device, as many at a time as it can.
    ///
    /// # Panics
    /// If a buffer is not 4096 bytes long.
    pub fn read(&self, requests: &mut [BlockRead<'_>]) {
        match self.second_tier() {
            Some(second) => self.read_tiers(second, requests),
            None => self.blocks.read(requests),
        }
    }
}

impl Blocks {
    /// As `Store::read`, of blocks of one tier.
    pub(crate) fn read(&self, requests: &mut [BlockRead<'_>]) {
        if let [request] = requests {
            if !self.read_one(request) {
                self.read_batch(requests, true);
            }
            return;
        }
        for batch in requests.chunks_mut(READ_BATCH_BLOCKS) {
            self.read_batch(batch, false);
        }
    }

    /// Whether the buffer holds the bytes that were appended for this name; decrypts them.
    fn verify(&self, request: &mut BlockRead<'_>) {
        let filling = || self.segments.sequence(self.geometry.segment_of(request.block));
        request.result = self.table.verify(filling, request.block, request.name, request.buf);
    }

    /// The usual case, one block: without the lists. False if it has to be looked at again.
    fn read_one(&self, request: &mut BlockRead<'_>) -> bool {
        if request.buf.len() != BLOCK_BYTES || !self.geometry.holds(request.block) {
            return false;
        }
        if !self.read_from_memory(request) {
            let offset = self.block_offset(request.block);
            let read =
                self.devices.device(self.device_of(request.block)).read_at(offset, request.buf);
            self.counters.read_from_device(1, BLOCK_BYTES);
            if read.is_err() {
                return false;
            }
            self.verify(request);
            self.keep_recent(request);
        }
        request.result.is_ok()
    }

    /// Those that are on the device were read once already if the batch `was_tried`.
    fn read_batch(&self, batch: &mut [BlockRead<'_>], was_tried: bool) {
        let mut on_device: Mask = 0;
        for (at, request) in batch.iter_mut().enumerate() {
            assert_eq!(request.buf.len(), BLOCK_BYTES, "the store keeps blocks of 4 KiB");
            request.result = Err(StoreError::Corrupt(request.block));
            if !self.geometry.holds(request.block) {
                continue;
            }
            if !self.read_from_memory(request) {
                on_device |= 1 << at;
            }
        }
        if on_device == 0 {
            return;
        }
        let failed = if was_tried { on_device } else { self.read_from_device(batch, on_device) };
        if failed != 0 {
            // Once more: what went wrong may have gone wrong on the way only.
            let again = self.read_from_device(batch, failed);
            self.counters.add(Count::Reread, (failed.count_ones() - again.count_ones()).into());
        }
        for request in batch.iter() {
            match request.result {
                Ok(_) => {}
                Err(StoreError::Corrupt(_)) => self.counters.add(Count::Corrupt, 1),
                Err(_) => self.counters.add(Count::ReadsFailed, 1),
            }
        }
    }

    /// Copies and verifies the block if it is in memory.
    fn read_from_memory(&self, request: &mut BlockRead<'_>) -> bool {
        let in_buffer = self.copy_from_buffer(request);
        if in_buffer {
            self.verify(request);
        } else if self.copy_recent(request) {
            // It is kept as it was when it had been verified.
            request.result = self.table.verify_plain(request.block, request.name, request.buf);
        } else {
            return false;
        }
        // A recent one that is not right in memory is so on the device.
        let served = in_buffer || request.result.is_ok();
        if served {
            self.counters.add(Count::ReadFromMemory, 1);
        }
        served
    }

    /// Copies a packed block that was read a moment ago.
    fn copy_recent(&self, request: &mut BlockRead<'_>) -> bool {
        request.name == PACKED_NAME && self.recent.copy(self.unique_of(request.block), request.buf)
    }

    /// Keeps a packed block that was read, for the other objects in it.
    fn keep_recent(&self, request: &BlockRead<'_>) {
        if request.name == PACKED_NAME && request.result.is_ok() {
            self.recent.keep(self.unique_of(request.block), request.buf);
        }
    }

    /// A number that is the block's as long as it is held, and was never another's.
    fn unique_of(&self, block: Block) -> u64 {
        let segment = self.geometry.segment_of(block);
        let at = self.geometry.offset_in_segment(block) / BLOCK_BYTES;
        self.segments.sequence(segment) * u64::from(self.geometry.blocks()) + at as u64
    }

    /// Copies the block if its segment is in a buffer.
    fn copy_from_buffer(&self, request: &mut BlockRead<'_>) -> bool {
        let segment = self.geometry.segment_of(request.block);
        let at = self.geometry.offset_in_segment(request.block);
        // The caller holds the block, so its segment is not refilled meanwhile; but its buffer
        // may be, once the segment is on the device. Holding the buffer prevents that from then
        // on; looking again shows whether it came too late.
        while let Some(buffer) = self.segments.buffer(segment) {
            let held = self.hold(buffer);
            if self.segments.buffer(segment) != Some(buffer) {
                continue;
            }
            let Some(bytes) = held.bytes(at, at + BLOCK_BYTES) else {
                // Nothing was ever appended there: let verification fail.
                request.buf.fill(0);
                return true;
            };
            request.buf.copy_from_slice(bytes);
            return true;
        }
        false
    }

    /// Reads and verifies the blocks in `mask`; returns those that failed.
    fn read_from_device(&self, batch: &mut [BlockRead<'_>], mask: Mask) -> Mask {
        let mut left = mask;
        while left != 0 {
            // Segments of before a fork are on other devices than those of after.
            let device = self.device_of(batch[left.trailing_zeros() as usize].block);
            let mut together: Mask = 0;
            for (at, request) in batch.iter().enumerate() {
                let same = self.device_of(request.block) == device;
                together |= Mask::from(same && left & (1 << at) != 0) << at;
            }
            self.read_together(batch, together, device);
            left &= !together;
        }
        let failed = |request: &BlockRead<'_>| request.result.is_err();
        let marks = batch.iter().enumerate().map(|(at, request)| Mask::from(failed(request)) << at);
        marks.fold(0, |failed, mark| failed | mark) & mask
    }

    /// Reads and verifies the blocks in `mask`, all on one device.
    fn read_together(&self, batch: &mut [BlockRead<'_>], mask: Mask, device: usize) {
        let mut reads: [Read<'_>; READ_BATCH_BLOCKS] =
            core::array::from_fn(|_| Read::new(0, &mut []));
        let mut count = 0;
        for (at, request) in batch.iter_mut().enumerate() {
            if mask & (1 << at) != 0 {
                let offset = self.block_offset(request.block);
                reads[count] = Read::new(offset, request.buf);
                count += 1;
            }
        }
        let runs = reads[..count].chunk_by(|one, next| next.follows(one)).count();
        self.devices.device(device).read(&mut reads[..count]);
        let results: [DeviceResult<()>; READ_BATCH_BLOCKS] =
            core::array::from_fn(|at| reads[at].result);
        self.counters.read_from_device(runs, count * BLOCK_BYTES);
        let mut results = results.into_iter();
        for (at, request) in batch.iter_mut().enumerate() {
            if mask & (1 << at) != 0 {
                match results.next() {
                    Some(Ok(())) => self.verify(request),
                    Some(Err(errno)) => request.result = Err(StoreError::Io(errno)),
                    None => {}
                }
                // More would drive each other out.
                if count <= self.recent.slots() / 2 {
                    self.keep_recent(request);
                }
            }
        }
    }

    /// The generation whose device holds the block, 0 for numbers beyond the store.
    fn device_of(&self, block: Block) -> usize {
        if !self.geometry.holds(block) {
            return 0;
        }
        self.segments.device(self.geometry.segment_of(block))
    }
}
