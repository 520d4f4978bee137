//! Store: the log, its segments, its buffers and its devices, together.
//!
//! Guarantees: memory is bounded by the options and by the segments ever used (`memory_bytes`);
//! after `open` nothing is allocated.
//! Never: touches managed memory; holds a lock across device I/O.
//! Threads: any. They take locks in this order: a head, the space, buffers by number. A thread that
//! holds a buffer takes no lock, and waits for buffers of higher numbers only.

use core::time::Duration;
use std::sync::OnceLock;

use deepheap_sys::errno::Errno;
use deepheap_sys::memory::aligned_buffer::{AlignedBuffer, Held};
use deepheap_sys::moving_mean::MovingMean;
use deepheap_sys::process::clock;
use deepheap_sys::threads::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use deepheap_sys::threads::futex;
use deepheap_sys::threads::lock::Lock;

use crate::block::checksum::{CHECKSUM_BYTES_PER_BLOCK, ChecksumTable, ContentHash, Secret};
use crate::block::cipher::{Key, TAG_BYTES};
use crate::block::seal::Seal;
use crate::block::sharers::{SHARERS_BYTES_PER_BLOCK, SharerTable};
use crate::block::{Block, Segment};
use crate::device::Device;
use crate::device::busy::Busy;
use crate::device::table_file::TableFile;
use crate::error::StoreError;
use crate::format::geometry::Geometry;
use crate::log::event::Event;
use crate::log::head::{Head, HeadState};
use crate::log::identity::Identity;
use crate::log::options::{BUFFERS_MAX, BUFFERS_MIN, Options};
use crate::log::recent::Recent;
use crate::log::stats::{Counters, StoreStats};
use crate::space::discards::BYTES_MAX;
use crate::space::segment::{SegmentTable, State, TABLE_BYTES_PER_SEGMENT};
use crate::space::{Space, level_of};

/// Packed blocks that are kept after they were read, for each segment buffer; no more than a
/// segment in all. What is wanted of a block after its first object is wanted within one or two
/// reads of each thread (docs/decisions/0009-recent-blocks.md).
const RECENT_PER_BUFFER: usize = 8;

/// Segment buffers of the survivor head: one to fill, one being written.
const SURVIVOR_BUFFERS: usize = 2;

/// Generations of forked children, each a child of the one before, that a store can serve.
pub const GENERATIONS_MAX: usize = 64;

/// How long a thread sleeps before it looks again at a buffer that is closed for a moment.
const NAP: Duration = Duration::from_micros(20);

/// Bytes of RAM that a block of the log costs, once its segment was ever filled.
pub const TABLE_BYTES_PER_BLOCK: usize = CHECKSUM_BYTES_PER_BLOCK + SHARERS_BYTES_PER_BLOCK;

/// A log of checked blocks on a device.
pub struct Store {
    pub(crate) geometry: Geometry,
    /// Tells this store's directories from those of others on the same device.
    pub(crate) id: u64,
    /// What the bytes of blocks are hashed with.
    pub(crate) secret: Secret,
    /// The device of each generation of forked children up to ours.
    pub(crate) devices: [OnceLock<Box<dyn Device>>; GENERATIONS_MAX],
    generation: AtomicUsize,
    pub(crate) segments: SegmentTable,
    pub(crate) checksums: ChecksumTable,
    pub(crate) sharers: SharerTable,
    /// What blocks are encrypted with; none: they are not.
    pub(crate) seal: Option<Seal>,
    pub(crate) recent: Recent,
    /// The survivors' first.
    pub(crate) buffers: Box<[AlignedBuffer]>,
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
    pub(crate) counters: Counters,
    /// The slower store behind this one (`tiers`).
    pub(crate) second: Option<Box<Store>>,
    /// Of a second tier: what its reads take, and for how long its device had something to do.
    pub(crate) read_latency_ns: MovingMean,
    pub(crate) busy: Busy,
    /// The errno of the last failed write; 0 if none failed.
    failure: AtomicI32,
}

impl Store {
    /// A store without blocks; whatever the device holds is of no interest. What it writes is
    /// encrypted, if there is a key. Nobody else need have the key.
    ///
    /// Errors: `Options` for those that cannot work, `Io` if memory is lacking.
    pub fn open(
        device: Box<dyn Device>,
        options: Options,
        key: Option<Key>,
    ) -> Result<Self, StoreError> {
        Self::open_as(device, options, Identity { key, ..Identity::random() })
    }

    /// As `open`, with an identity that is known to others.
    pub(crate) fn open_as(
        device: Box<dyn Device>,
        options: Options,
        identity: Identity,
    ) -> Result<Self, StoreError> {
        Self::open_behind(None, device, options, identity)
    }

    /// As `open_as`; the blocks are numbered after those of `first`.
    pub(crate) fn open_behind(
        first: Option<&Geometry>,
        device: Box<dyn Device>,
        options: Options,
        identity: Identity,
    ) -> Result<Self, StoreError> {
        if !(BUFFERS_MIN..=BUFFERS_MAX).contains(&options.buffers) {
            return Err(StoreError::Options("buffers must be from 4 to 64"));
        }
        if options.reserve_segments < 2 {
            return Err(StoreError::Options("reserve_segments must be at least 2"));
        }
        let capacity_bytes = options.capacity_bytes.min(device.len());
        let geometry = Geometry::new(options.segment_bytes, capacity_bytes)?;
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
        let devices = [const { OnceLock::new() }; GENERATIONS_MAX];
        let segment_blocks = geometry.blocks() as usize;
        let _ = devices[0].set(device);
        Ok(Self {
            geometry,
            id: identity.id,
            secret: identity.secret,
            devices,
            generation: AtomicUsize::new(0),
            segments: SegmentTable::new(geometry.segments)?,
            checksums: ChecksumTable::new(&geometry)?,
            sharers: SharerTable::new(&geometry)?,
            seal: identity.key.map(|key| Seal::new(&key, &geometry)).transpose()?,
            recent: Recent::new((RECENT_PER_BUFFER * options.buffers).min(segment_blocks))?,
            buffers: buffers.into_boxed_slice(),
            heads: [head(), head()],
            space: Lock::new(space),
            appended: AtomicU64::new(0),
            progress: Event::new(),
            sealed: Event::new(),
            work: Event::new(),
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
            second: None,
            read_latency_ns: MovingMean::new(),
            busy: Busy::default(),
            failure: AtomicI32::new(0),
        })
    }

    /// Bytes of RAM that a block of the log costs, once its segment was ever filled.
    pub fn table_bytes_per_block(&self) -> usize {
        TABLE_BYTES_PER_BLOCK + if self.seal.is_some() { TAG_BYTES } else { 0 }
    }

    /// Whether what is on the device is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.seal.is_some()
    }

    /// The hash of an object's bytes, for `Writer::append` and to be compared with that of a read.
    #[inline]
    pub fn hash(&self, data: &[u8]) -> ContentHash {
        self.secret.hash(data)
    }

    /// A file for pages that another room keeps out of RAM, with this store's secret.
    pub fn table_file(&self, device: Box<dyn Device>) -> TableFile {
        TableFile::new(device, self.secret.clone())
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
        let free = self.device_now().free_bytes();
        let segments = free.map(|free| free / self.geometry.segment_bytes() as u64);
        self.space.lock().room(segments)
    }

    /// Asks the device for the space of more segments, of which so many are lacking. True: more are
    /// free, or less may be had, so try again; false: another thread is asking.
    ///
    /// Errors: `Full`, or `Io` if the device failed otherwise.
    pub(crate) fn grow(&self, missing: u64) -> Result<bool, StoreError> {
        let run = {
            let mut space = self.space.lock();
            if space.growing {
                return Ok(false);
            }
            match space.begin_growth(&self.segments, missing) {
                Some(run) => run,
                // Soon there is something to grow by.
                None if space.count(State::Discarding) > 0 => return Ok(false),
                None => return Err(StoreError::Full),
            }
        };
        let bytes = run.segments as u64 * self.geometry.segment_bytes() as u64;
        let answer = self.device_now().reserve(self.segment_offset(run.first), bytes);
        let more = self.space.lock().end_growth(&self.segments, run, answer.is_ok());
        self.progress.notify();
        match answer {
            Ok(()) => Ok(true),
            Err(_) if more => Ok(true),
            Err(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => Err(StoreError::Full),
            Err(errno) => Err(StoreError::Io(errno)),
        }
    }

    /// What a compressed page costs in this block; none if the block is not one of compressed
    /// pages. The caller holds the block, or only takes a hint.
    pub fn share_in(&self, block: Block) -> Option<u32> {
        if let Some(second) = self.second_with(block) {
            return second.share_in(block);
        }
        self.sharers.share(block)
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
        if !self.geometry.holds(block) {
            debug_assert!(false, "a block was retired that no store can hold");
            return;
        }
        let segment = self.geometry.segment_of(block);
        let left = self.segments.take_live(segment, units);
        self.counters.retired(units);
        let level = |live: u32| level_of(&self.geometry, live);
        if left > 0 && level(left) == level(left + units) {
            return;
        }
        let mut space = self.space.lock();
        let was = space.count(State::Ready);
        space.update_bucket(&self.segments, segment);
        self.free_if_failed(&mut space, segment);
        let freed = space.count(State::Ready) != was;
        let collect = space.collect_needed(self.counters.live_units());
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
        let reads = self.counters.device_reads();
        let Some(look) = self.space.lock().look(now_ns, reads) else { return 0 };
        let (mut given_bytes, mut spent_ns) = (0, 0);
        while given_bytes < BYTES_MAX && spent_ns < look.time_ns {
            let live_units = self.counters.live_units();
            let run = {
                let mut space = self.space.lock();
                let portion = space.discards.portion();
                space.begin_discard(&self.segments, portion, look.kept, live_units)
            };
            let Some(run) = run else { break };
            let bytes = run.segments as u64 * self.geometry.segment_bytes() as u64;
            let begun_ns = clock::monotonic_ns();
            let answer = self.device_now().discard(self.segment_offset(run.first), bytes);
            let took_ns = clock::monotonic_ns() - begun_ns;
            let mut space = self.space.lock();
            space.end_discard(&self.segments, run);
            match answer {
                Ok(()) => {
                    space.discards.told(run.segments, took_ns);
                    self.counters.discarded(bytes);
                }
                // The device has no such call.
                Err(Errno::ENOTSUP | Errno::ENOTTY | Errno::ENOSYS | Errno::EPERM) => {
                    space.discards.refused();
                    drop(space);
                    self.progress.notify();
                    break;
                }
                Err(_) => {}
            }
            drop(space);
            self.progress.notify();
            given_bytes += bytes;
            spent_ns += took_ns;
        }
        given_bytes
    }

    /// From here on `discard_idle` gives nothing back, of the second tier neither.
    pub fn stop_discards(&self) {
        self.space.lock().discards.stop();
        if let Some(second) = &self.second {
            second.stop_discards();
        }
    }

    /// Why the last failed write failed, if one ever did. Blocks of failed writes are still served,
    /// from memory; each failed segment costs a buffer until it is written after all (`retry`) or
    /// its blocks are retired.
    pub fn failure(&self) -> Option<StoreError> {
        match self.failure.load(Ordering::Acquire) {
            0 => None,
            errno => Some(StoreError::Io(Errno::from_raw(errno))),
        }
    }

    /// Whether segments are being written.
    pub fn is_writing(&self) -> bool {
        self.space.lock().count(State::Writing) > 0
    }

    /// All numbers of blocks are below this, those of the second tier, too.
    pub fn blocks(&self) -> u32 {
        self.second.as_ref().map_or(self.geometry.end_block() as u32, |second| second.blocks())
    }

    /// Whether something that the device refused is still not on it.
    pub fn has_failed_writes(&self) -> bool {
        self.space.lock().count(State::Failed) > 0
    }

    pub(crate) fn fail(&self, errno: Errno) {
        self.failure.store(errno.raw(), Ordering::Release);
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
        self.geometry.segment_bytes()
    }

    /// Bytes of memory that the store uses: its buffers, the tables for the segments that were ever
    /// assured, the checksums of the blocks of those that were ever filled, and what its devices
    /// need; the same for its second tier.
    pub fn memory_bytes(&self) -> u64 {
        let buffers = self.buffers.len() as u64 * self.geometry.segment_bytes() as u64;
        let heads = self.heads.len() as u64 * self.geometry.directory_bytes() as u64;
        let (assured, filled) = {
            let space = self.space.lock();
            (space.frontier() as u64, space.ever_filled() as u64)
        };
        let tables = assured * TABLE_BYTES_PER_SEGMENT;
        let blocks = filled * self.geometry.blocks() as u64;
        let checksums = blocks * self.table_bytes_per_block() as u64;
        let recent = self.recent.bytes() as u64;
        let devices = self.devices.iter().filter_map(|device| device.get());
        let devices = devices.map(|device| device.memory_bytes()).sum::<u64>();
        let second = self.second.as_ref().map_or(0, |second| second.memory_bytes());
        let own = buffers + heads + tables + checksums + recent + devices;
        own + size_of::<Self>() as u64 + second
    }

    /// What the store counted, and the state of its segments.
    pub fn stats(&self) -> StoreStats {
        let space = self.space.lock();
        let count =
            |states: &[State]| states.iter().map(|&state| space.count(state) as u64).sum::<u64>();
        StoreStats {
            reserved_blocks: space.reserved(),
            reservable_blocks: space.reservable(),
            segments: self.geometry.segments as u64,
            segments_free: count(&[State::Ready]),
            segments_bare: count(&[State::Bare, State::Growing, State::Discarding]),
            segments_on_device: count(&[State::Written, State::Collecting, State::Shelved]),
            segments_failed: count(&[State::Failed]),
            segments_lost: count(&[State::Lost]),
            segments_withheld: count(&[State::Withheld]),
            segments_damaged: count(&[State::Shelved]),
            bytes_not_discarded: space.spared() * self.geometry.segment_bytes() as u64,
            ..self.counters.stats()
        }
    }

    /// Panics if the store's tables contradict each other. Takes all locks, walks all segments.
    pub fn check_invariants(&self) {
        if let Some(second) = &self.second {
            second.check_invariants();
        }
        let _heads = [Head::Fresh, Head::Survivor].map(|head| self.heads[head as usize].lock());
        self.space.lock().check_invariants(&self.segments);
    }

    /// The right to read the buffer; waits while it is closed. For threads without a lock that
    /// hold no buffer of a higher number: `freeze` closes them in order, with all locks.
    pub(crate) fn hold(&self, buffer: usize) -> Held<'_> {
        loop {
            match self.buffers[buffer].hold() {
                Some(held) => return held,
                None => self.nap(),
            }
        }
    }

    /// Sleeps for a moment.
    pub(crate) fn nap(&self) {
        let nobody_wakes = AtomicU32::new(0);
        futex::wait(&nobody_wakes, 0, Some(NAP));
    }

    /// Which head the buffer belongs to.
    pub(crate) fn head_of(&self, buffer: usize) -> Head {
        if buffer < SURVIVOR_BUFFERS { Head::Survivor } else { Head::Fresh }
    }

    /// The head's buffers, as bits.
    pub(crate) fn all_buffers(&self, head: Head) -> u64 {
        let buffers = 0..self.buffers.len();
        let own = buffers.filter(|&buffer| self.head_of(buffer) == head);
        own.fold(0, |bits, buffer| bits | 1 << buffer)
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

    /// Which generation of forked children this is.
    pub(crate) fn generation(&self) -> usize {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn set_generation(&self, generation: usize) {
        self.generation.store(generation, Ordering::Release);
    }

    /// The device of a generation.
    pub(crate) fn device(&self, generation: usize) -> &dyn Device {
        match self.devices[generation].get() {
            Some(device) => device.as_ref(),
            None => unreachable!("a segment names a device that was never set"),
        }
    }

    /// The device that new segments go to.
    pub(crate) fn device_now(&self) -> &dyn Device {
        self.device(self.generation())
    }
}
