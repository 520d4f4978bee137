//! Store: the log, its segments, its buffers and its devices, together.
//!
//! Guarantees: memory is bounded by the options and by the segments ever used (`memory_bytes`);
//! after `open` nothing is allocated.
//! Never: touches managed memory; holds a lock across device I/O.
//! Threads: any. They take locks in this order: a head, the space, buffers by number. A thread that
//! holds a buffer takes no lock, and waits for buffers of higher numbers only.

use std::sync::Arc;

use deepheap_sys::errno::Errno;
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use deepheap_sys::narrow::Narrow;
use deepheap_sys::process::clock;
use deepheap_sys::threads::atomic::{AtomicBool, AtomicU64, Ordering};
use deepheap_sys::threads::lock::Lock;

use crate::block::Block;
use crate::block::checksum::ContentHash;
use crate::block::cipher::Key;
use crate::block::table::BlockTable;
use crate::device::Device;
use crate::device::busy::Busy;
use crate::device::generations::Generations;
use crate::device::table_file::TableFile;
use crate::error::StoreError;
use crate::format::geometry::Geometry;
use crate::log::blocks::{Blocks, SURVIVOR_BUFFERS};
use crate::log::event::Event;
use crate::log::head::{Head, HeadState};
use crate::log::identity::Identity;
use crate::log::options::{BUFFERS_MAX, BUFFERS_MIN, Options};
use crate::log::recent::Recent;
use crate::log::stats::{Count, Counters, StoreStats};
use crate::space::discards::BYTES_MAX;
use crate::space::segment::{SegmentTable, State, TABLE_BYTES_PER_SEGMENT};
use crate::space::{Space, level_of};

/// Packed blocks that are kept after they were read, for each segment buffer; no more than a
/// segment in all. Threads want further objects of a block within one or two reads of each thread
/// (docs/decisions/0009-recent-blocks.md).
const RECENT_PER_BUFFER: usize = 8;

/// A log of checked blocks on a device.
pub struct Store {
    pub(crate) blocks: Blocks,
    pub(crate) heads: [Lock<HeadState>; 2],
    pub(crate) space: Lock<Space>,
    /// Blocks that were ever appended, at both heads.
    pub(crate) appended: AtomicU64,
    /// A segment or a buffer became free, or will not.
    pub(crate) progress: Event,
    /// A segment was sealed.
    pub(crate) sealed: Event,
    /// Collection is needed.
    pub(crate) work: Event,
    pub(crate) stopping: AtomicBool,
    pub(crate) busy: Busy,
    /// The slower store behind this one (`tiers`).
    pub(crate) second: Option<Box<Store>>,
}

impl Store {
    /// A store without blocks; whatever the device holds is of no interest. Its writes are
    /// encrypted, if there is a key. Nobody else need have the key.
    ///
    /// Errors: `Options` for those that cannot work, `Io` if memory is lacking.
    pub fn open(
        device: Box<dyn Device>,
        options: Options,
        key: Option<Key>,
    ) -> Result<Self, StoreError> {
        let identity = Identity { key, ..Identity::random() };
        Self::open_behind(None, (device.into(), 0), options, identity)
    }

    /// As `open`, with an identity that is known to others; the log begins `start` bytes behind the
    /// beginning of the device, and its blocks are numbered after those of `first`.
    pub(crate) fn open_behind(
        first: Option<&Geometry>,
        (device, start): (Arc<dyn Device>, u64),
        options: Options,
        identity: Identity,
    ) -> Result<Self, StoreError> {
        if !(BUFFERS_MIN..=BUFFERS_MAX).contains(&options.buffers) {
            return Err(StoreError::Options("buffers must be from 4 to 64"));
        }
        if options.reserve_segments < 2 {
            return Err(StoreError::Options("reserve_segments must be at least 2"));
        }
        let capacity_bytes = options.capacity_bytes.min(device.len().saturating_sub(start));
        let geometry = Geometry::new(options.segment_bytes, capacity_bytes)?.at(start);
        let geometry = first.map_or(geometry, |first| geometry.behind(first));
        let survivors = (1 << SURVIVOR_BUFFERS) - 1;
        let all = u64::MAX >> (BUFFERS_MAX - options.buffers);
        let free_buffers = [all & !survivors, survivors];
        let space = Space::new(geometry, options.reserve_segments, free_buffers)?;
        if space.reservable() == 0 {
            return Err(StoreError::Options("the capacity is too small for the segments"));
        }
        let mut buffers = Vec::with_capacity(options.buffers);
        for _ in 0..options.buffers {
            let (len, header) = (geometry.segment_bytes(), geometry.directory_bytes());
            buffers.push(AlignedBuffer::new(len, header)?);
        }
        let head = || {
            let directory = vec![0; geometry.directory_bytes()].into_boxed_slice();
            Lock::new(HeadState { open: None, directory })
        };
        let recent = (RECENT_PER_BUFFER * options.buffers).min(geometry.blocks() as usize);
        Ok(Self {
            blocks: Blocks {
                geometry,
                id: identity.id,
                table: BlockTable::new(&geometry, identity)?,
                segments: SegmentTable::new(geometry.segments)?,
                devices: Generations::new(device),
                buffers: buffers.into_boxed_slice(),
                recent: Recent::new(recent)?,
                counters: Counters::default(),
            },
            heads: [head(), head()],
            space: Lock::new(space),
            appended: AtomicU64::new(0),
            progress: Event::new(),
            sealed: Event::new(),
            work: Event::new(),
            stopping: AtomicBool::new(false),
            busy: Busy::default(),
            second: None,
        })
    }

    /// Bytes of RAM that a block of the log costs, once its segment was ever filled.
    pub fn table_bytes_per_block(&self) -> usize {
        self.blocks.table.bytes_per_block()
    }

    /// Whether what is on the device is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.blocks.table.is_encrypted()
    }

    /// The hash of an object's bytes, for `Writer::append` and to be compared with that of a read.
    #[inline]
    pub fn hash(&self, data: &[u8]) -> ContentHash {
        self.blocks.table.secret.hash(data)
    }

    /// A file for pages that another room keeps out of RAM, with this store's secret.
    pub fn table_file(&self, device: Box<dyn Device>) -> TableFile {
        TableFile::new(device, self.blocks.table.secret.clone())
    }

    /// Promises space for so many more blocks that may one day be appended and live at the same
    /// time; the device's space for them is assured before this returns.
    ///
    /// Errors: `Full`, or `Io` if the device failed otherwise; then nothing is reserved.
    pub fn reserve(&self, blocks: u64) -> Result<(), StoreError> {
        loop {
            let ticket = self.progress.ticket();
            let missing = self.space.lock().try_reserve(blocks)?;
            if missing == 0 {
                return Ok(());
            }
            if !self.grow(missing)? {
                self.progress.wait(ticket, None);
            }
        }
    }

    /// Gives back what `reserve` promised.
    pub fn unreserve(&self, blocks: u64) {
        self.space.lock().unreserve(blocks);
    }

    /// Blocks that may still be reserved. A snapshot; it asks the device.
    pub fn room(&self) -> u64 {
        let free = self.blocks.devices.device_now().free_bytes();
        let segments = free.map(|free| free / self.blocks.geometry.segment_bytes() as u64);
        self.space.lock().room(segments)
    }

    /// Asks the device for the space of more segments, of which so many are lacking. True: more are
    /// free, or less may be had, so try again; false: another thread is asking.
    ///
    /// Errors: `Full`, or `Io` if the device failed otherwise.
    pub(crate) fn grow(&self, missing: u64) -> Result<bool, StoreError> {
        let run = {
            let mut space = self.space.lock();
            if space.growth.is_under_way {
                return Ok(false);
            }
            match space.begin_growth(&self.blocks.segments, missing) {
                Some(run) => run,
                // Soon there is something to grow by.
                None if space.count(State::Discarding) > 0 => return Ok(false),
                None => return Err(StoreError::Full),
            }
        };
        let bytes = u64::from(run.segments) * self.blocks.geometry.segment_bytes() as u64;
        let answer =
            self.blocks.devices.device_now().reserve(self.blocks.segment_offset(run.first), bytes);
        let more = self.space.lock().end_growth(&self.blocks.segments, run, answer.is_ok());
        self.progress.notify();
        match answer {
            Ok(()) => Ok(true),
            Err(_) if more => Ok(true),
            Err(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => Err(StoreError::Full),
            Err(errno) => Err(StoreError::Io(errno)),
        }
    }

    /// The cost of a compressed page in this block; none if the block is not one of compressed
    /// pages. The caller holds the block, or only takes a hint.
    pub fn share_in(&self, block: Block) -> Option<u32> {
        if let Some(second) = self.second_with(block) {
            return second.share_in(block);
        }
        self.blocks.table.share(block)
    }

    /// An object that costs `units` (`share_in`, or else `packed::cost` of its bytes) is not in the
    /// block any more; it must not be read there from here on. A segment on the device without live
    /// objects is free at once.
    ///
    /// Callable in a signal handler; takes the lock of the space about once for every 32nd part
    /// of a segment.
    pub fn retire(&self, block: Block, units: u32) {
        if let Some(second) = self.second_with(block) {
            return second.retire(block, units);
        }
        if !self.blocks.geometry.holds(block) {
            debug_assert!(false, "a block was retired that no store can hold");
            return;
        }
        let segment = self.blocks.geometry.segment_of(block);
        let left = self.blocks.segments.take_live(segment, units);
        self.blocks.counters.retired(units);
        let level = |live: u32| level_of(&self.blocks.geometry, live);
        if left > 0 && level(left) == level(left + units) {
            return;
        }
        let mut space = self.space.lock();
        let was = space.count(State::Ready);
        space.update_bucket(&self.blocks.segments, segment);
        let freed = space.free_if_failed(&self.blocks.segments, segment)
            || space.count(State::Ready) != was;
        let collect = space.collect_needed(self.blocks.counters.live_units());
        drop(space);
        if freed {
            self.progress.notify();
        }
        if collect {
            self.work.notify();
        }
    }

    /// Gives space that has been free for some calls, will not be taken soon, and is not promised
    /// back to the device: a bounded amount, in requests that do not keep reads waiting. Returns
    /// the bytes. To be called now and then, `now_ns` nanoseconds after some fixed instant, by a
    /// thread that may wait for the device; the interval is the caller's.
    pub fn discard_idle(&self, now_ns: u64) -> u64 {
        let reads = self.blocks.counters.get(Count::DeviceReads);
        let Some(look) = self.space.lock().discards.look(now_ns, reads) else { return 0 };
        let (mut given_bytes, mut spent_ns) = (0, 0);
        while given_bytes < BYTES_MAX && spent_ns < look.time_ns {
            let live_units = self.blocks.counters.live_units();
            let run = {
                let mut space = self.space.lock();
                let portion = space.discards.portion;
                space.begin_discard(&self.blocks.segments, portion, look.kept, live_units)
            };
            let Some(run) = run else { break };
            let bytes = u64::from(run.segments) * self.blocks.geometry.segment_bytes() as u64;
            let begun_ns = clock::monotonic_ns();
            let answer = self
                .blocks
                .devices
                .device_now()
                .discard(self.blocks.segment_offset(run.first), bytes);
            let took_ns = clock::monotonic_ns() - begun_ns;
            // The device has no such call.
            let is_refused = [Errno::ENOTSUP, Errno::ENOTTY, Errno::ENOSYS, Errno::EPERM]
                .map(Err)
                .contains(&answer);
            let mut space = self.space.lock();
            space.end_discard(&self.blocks.segments, run);
            if answer.is_ok() {
                space.discards.told(run.segments, took_ns);
                self.blocks.counters.discarded(bytes);
            }
            space.discards.is_refused |= is_refused;
            drop(space);
            self.progress.notify();
            if is_refused {
                break;
            }
            given_bytes += bytes;
            spent_ns += took_ns;
        }
        given_bytes
    }

    /// From here on `discard_idle` gives nothing back, of the second tier neither.
    pub fn stop_discards(&self) {
        self.space.lock().discards.is_wanted = false;
        if let Some(second) = &self.second {
            second.stop_discards();
        }
    }

    /// Why the last failed write failed, if one ever did. Blocks of failed writes are still served,
    /// from memory; each failed segment costs a buffer until it is written after all (`retry`) or
    /// its blocks are retired.
    pub fn failure(&self) -> Option<StoreError> {
        self.blocks.devices.failure()
    }

    /// Whether segments are being written.
    pub fn is_writing(&self) -> bool {
        self.space.lock().count(State::Writing) > 0
    }

    /// All numbers of blocks are below this, those of the second tier, too.
    pub fn blocks(&self) -> u32 {
        self.second
            .as_ref()
            .map_or(self.blocks.geometry.end_block().to_u32(), |second| second.blocks())
    }

    /// Whether something that the device refused is still not on it.
    pub fn has_failed_writes(&self) -> bool {
        self.space.lock().count(State::Failed) > 0
    }

    /// Threads in `write_sealed(true)` and `wait_for_work` return, and do not wait again before
    /// `resume_waiting`.
    pub fn stop_waiting(&self) {
        self.stopping.store(true, Ordering::Release);
        self.sealed.notify();
        self.work.notify();
        if let Some(second) = &self.second {
            second.stop_waiting();
        }
    }

    /// Undoes `stop_waiting`.
    pub fn resume_waiting(&self) {
        self.stopping.store(false, Ordering::Release);
        if let Some(second) = &self.second {
            second.resume_waiting();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Bytes of a segment: what a victim's buffer must hold.
    pub fn segment_bytes(&self) -> usize {
        self.blocks.geometry.segment_bytes()
    }

    /// Bytes of memory that the store uses: its buffers, the tables for the segments that were ever
    /// assured, the checksums of the blocks of those that were ever filled, and what its devices
    /// need; the same for its second tier.
    pub fn memory_bytes(&self) -> u64 {
        let buffers =
            self.blocks.buffers.len() as u64 * self.blocks.geometry.segment_bytes() as u64;
        let heads = self.heads.len() as u64 * self.blocks.geometry.directory_bytes() as u64;
        let (assured, filled) = {
            let space = self.space.lock();
            (u64::from(space.frontier), u64::from(space.fillings.segments))
        };
        let tables = assured * TABLE_BYTES_PER_SEGMENT;
        let blocks = filled * u64::from(self.blocks.geometry.blocks());
        let checksums = blocks * self.table_bytes_per_block() as u64;
        let recent = self.blocks.recent.bytes() as u64;
        let devices = self.blocks.devices.memory_bytes();
        let second = self.second.as_ref().map_or(0, |second| second.memory_bytes());
        let own = buffers + heads + tables + checksums + recent + devices;
        own + size_of::<Self>() as u64 + second
    }

    /// The counts of the store, and the state of its segments.
    pub fn stats(&self) -> StoreStats {
        let space = self.space.lock();
        let count =
            |states: &[State]| states.iter().map(|&it| u64::from(space.count(it))).sum::<u64>();
        StoreStats {
            reserved_blocks: space.reserved(),
            reservable_blocks: space.reservable(),
            segments: self.blocks.geometry.segments.into(),
            segments_free: count(&[State::Ready]),
            segments_bare: count(&[State::Bare, State::Growing, State::Discarding]),
            segments_on_device: count(&[State::Written, State::Collecting, State::Shelved]),
            segments_failed: count(&[State::Failed]),
            segments_lost: count(&[State::Lost]),
            segments_withheld: count(&[State::Withheld]),
            segments_damaged: count(&[State::Shelved]),
            bytes_not_discarded: space.discards.spared
                * self.blocks.geometry.segment_bytes() as u64,
            ..self.blocks.counters.stats()
        }
    }

    /// Panics if the store's tables contradict each other. Takes all locks, walks all segments.
    pub fn check_invariants(&self) {
        if let Some(second) = &self.second {
            second.check_invariants();
        }
        let _heads = [Head::Fresh, Head::Survivor].map(|head| self.heads[head as usize].lock());
        self.space.lock().check_invariants(&self.blocks.segments);
    }
}
