//! Saved: a store's tables as pages of a durable heap, and the store that they make again.
//!
//! To save: nothing else uses the store meanwhile, and `seal_and_drain` was called. `save` hands
//! out the pages; `pin_all` before anyone goes on keeps the blocks that they tell of. When the
//! checkpoint is committed, `unpin` lets go of what only the one before needed.
//!
//! A reopened store can do all of that at once: what was loaded has fillings that a pin covers.
//!
//! Everything that the last checkpoint knows is pinned always. Where that is much more than what
//! lives, collection empties pinned segments as well; the next checkpoint lets go of them. Some
//! free segments are left to that checkpoint (`keep_for_checkpoint`).
//!
//! Snapshots are pins, too, which have a name in the file. A reopened store takes them again
//! (`hold_snapshots`), before anything else is done with it.
//!
//! Guarantees: what was live when it was saved is live again, at the same blocks. Tables that
//! cannot be are refused.
//! Never: writes to the device; so a store whose device refuses writes can be opened and read.
//! Threads: one; see above.

use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::atomic::Ordering;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::block::{Block, Segment};
use crate::durable::checkpoint::{Checkpoint, VisitPage};
use crate::durable::error::DurableError;
use crate::durable::file::DurableFile;
use crate::error::StoreError;
use crate::format::geometry::Geometry;
use crate::format::saved::{self, RECORDS_PER_PAGE, SCALARS, SEGMENTS, Scalars, SegmentRecord};
use crate::format::superblock::TableShape;
use crate::format::{BLOCK_BYTES, page_of};
use crate::log::blocks::Blocks;
use crate::log::fork::PinToken;
use crate::log::options::Options;
use crate::log::store::Store;
use crate::space::segment::State;

/// Up to which filling the checksums of a store were saved. The default: none were.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SavedUpTo(u64);

/// More fillings than a device lives to see; less than the numbers made of them can be.
const SEQUENCE_MAX: u64 = 1 << 48;

/// More blocks than any process appends from one checkpoint to the next.
const APPENDED_UNSAVED: u64 = 1 << 32;

/// A function that hands on the saved pages of a table, by its id: `DurableFile::load_table`.
pub type Load<'a> = dyn FnMut(u32, &mut VisitPage<'_>) -> Result<(), DurableError> + 'a;

/// A function that takes the pages of the store's tables: table, page, and its 4096 bytes.
pub type VisitSaved<'a> = dyn FnMut(u32, u32, &[u8]) -> Result<(), DurableError> + 'a;

/// A page of a table, being made.
type Page = [u8; BLOCK_BYTES];

impl Store {
    /// The tables that a store with these options saves.
    ///
    /// Errors: `Options`.
    pub fn table_shapes(options: &Options) -> Result<[TableShape; 5], StoreError> {
        Ok(saved::table_shapes(&Geometry::new(options.segment_bytes, options.capacity_bytes)?))
    }

    /// The table that an encrypted store with these options saves beside those.
    ///
    /// Errors: `Options`.
    pub fn tags_shape(options: &Options) -> Result<TableShape, StoreError> {
        Ok(saved::tags_shape(&Geometry::new(options.segment_bytes, options.capacity_bytes)?))
    }

    /// Leaves so much free space to the next checkpoint: what it may have to append.
    pub fn keep_for_checkpoint(&self, bytes: u64) {
        let segments = bytes.div_ceil(self.blocks.geometry.data_units().into());
        if let Some(kept) = &mut self.space.lock().kept {
            kept.for_next = segments;
        }
    }

    /// A checkpoint is being made, which may use the space that is kept for it, or is not any more.
    pub fn make_checkpoint(&self, is_in_making: bool) {
        if let Some(kept) = &mut self.space.lock().kept {
            kept.is_in_making = is_in_making;
        }
        self.progress.notify();
    }

    /// Hands out the pages of the store's tables: table, page, and its 4096 bytes. Pages that hold
    /// only what was saved before (`since`) may be left out. Returns what to give as `since` the
    /// next time, if these pages are committed.
    ///
    /// Errors: `Store(Unwritten)`, and then no page was handed out; those of `visit`, which end it.
    pub fn save(
        &self,
        since: SavedUpTo,
        visit: &mut VisitSaved<'_>,
    ) -> Result<SavedUpTo, DurableError> {
        let (frontier, sequence) = {
            let space = self.space.lock();
            (space.frontier, space.fillings.last)
        };
        let mut up_to = sequence;
        for segment in (0..frontier).map(Segment) {
            match self.blocks.segments.state(segment) {
                // Nothing was appended to it, or only what is dead; more may be.
                State::Open if self.blocks.segments.live(segment) == 0 => {
                    up_to = up_to.min(self.blocks.segments.sequence(segment) - 1);
                }
                State::Open | State::Sealed | State::Writing | State::Failed
                    if self.blocks.segments.live(segment) > 0 =>
                {
                    return Err(StoreError::Unwritten.into());
                }
                _ if self.blocks.segments.device(segment) != 0 => {
                    return Err(StoreError::Unwritten.into());
                }
                _ => {}
            }
        }
        let live = (0..frontier).map(|at| u64::from(self.blocks.segments.live(Segment(at))));
        let scalars = Scalars {
            sequence: U64::new(sequence),
            live_units: U64::new(live.sum()),
            frontier: U32::new(frontier),
            segments: U32::new(self.blocks.geometry.segments),
            segment_blocks: U32::new(self.blocks.geometry.blocks()),
            reserved: [0; 4],
            appended: U64::new(self.appended.load(Ordering::Relaxed)),
        };
        visit(SCALARS, 0, &page_of(scalars.as_bytes()))?;
        self.blocks.save_segments(frontier, visit)?;
        let blocks = frontier * self.blocks.geometry.blocks();
        for (table, size) in self.blocks.table.saved_tables() {
            let per_page = (BLOCK_BYTES / size).to_u32();
            for page in 0..blocks.div_ceil(per_page) {
                if self.blocks.is_newer(page, per_page, frontier, since) {
                    let mut bytes: Page = [0; BLOCK_BYTES];
                    let of_page = (page * per_page..blocks).map(Block);
                    for (block, out) in of_page.zip(bytes.chunks_exact_mut(size)) {
                        self.blocks.table.save(table, block, out);
                    }
                    visit(table, page, &bytes)?;
                }
            }
        }
        Ok(SavedUpTo(up_to))
    }

    /// A store over the log of the file, which knows of nothing in it.
    pub(crate) fn open_empty(file: &Checkpoint, options: Options) -> Result<Self, StoreError> {
        let log = (file.device.clone(), file.log_start());
        Self::open_behind(None, log, options, file.identity().clone())
    }

    /// The store that was saved in the file, over its log. Its live objects live; `load` hands on
    /// the saved pages. Reservations have to be made again.
    ///
    /// Errors: `Inconsistent`; `Store` for options that cannot work or if memory is lacking; those
    /// of `load`.
    pub fn open_saved(
        file: &Checkpoint,
        options: Options,
        load: &mut Load<'_>,
    ) -> Result<(Self, SavedUpTo), DurableError> {
        let store = Self::open_empty(file, options)?;
        let mut scalars = None;
        load(SCALARS, &mut |_, page| {
            let (read, rest) = Scalars::read_from_prefix(page)
                .map_err(|_| DurableError::Inconsistent("a page is too short"))?;
            check(rest.iter().all(|&byte| byte == 0), "bytes that mean nothing")?;
            scalars = Some(read);
            Ok(())
        })?;
        // A heap that was never saved has no pages: then the others must have none, either.
        let frontier = match scalars {
            Some(scalars) => store.blocks.check_scalars(&scalars)?,
            None => 0,
        };
        load(SEGMENTS, &mut |page, bytes| store.blocks.load_segments(page, frontier, bytes))?;
        let blocks = frontier * store.blocks.geometry.blocks();
        for (table, size) in store.blocks.table.saved_tables() {
            load(table, &mut |page, bytes| {
                let first = page.checked_mul((BLOCK_BYTES / size).to_u32());
                let first = first.filter(|&first| first < blocks);
                let what = "what is told of blocks that never were";
                let first = first.ok_or(DurableError::Inconsistent(what))?;
                store.blocks.table.load(table, first, blocks, bytes);
                Ok(())
            })?;
        }
        let (sequence, live_units) = match scalars {
            Some(scalars) => (scalars.sequence.get(), store.blocks.check_segments(&scalars)?),
            None => (0, 0),
        };
        store.space.lock().reopen(&store.blocks.segments, frontier, sequence);
        if let Some(scalars) = scalars {
            // Beyond what a process may have appended that ended before its next checkpoint.
            let appended = scalars.appended.get().saturating_add(APPENDED_UNSAVED);
            store.appended.store(appended, Ordering::Relaxed);
        }
        store.blocks.counters.reopened(live_units);
        Ok((store, SavedUpTo(sequence)))
    }

    /// Keeps what the snapshots of the file need. For a store that was just opened. Returns the
    /// checkpoint of each, and its pin.
    ///
    /// Errors: `Inconsistent` if something of a snapshot was written over; those of reading its
    /// tables; `Store` for too many pins.
    pub fn hold_snapshots(&self, file: &DurableFile) -> Result<Vec<(u64, PinToken)>, DurableError> {
        let mut pins = Vec::with_capacity(file.snapshots().len());
        for snapshot in file.snapshots() {
            let then = file.then(&snapshot.name)?;
            let sequence = then.scalars()?.map_or(0, |scalars| scalars.sequence.get());
            let records = then.segments()?;
            let mut space = self.space.lock();
            for (number, record) in (0..).zip(&records).filter(|(_, it)| it.holds_blocks()) {
                let is_there = number < space.frontier
                    && record.is_same_filling(&self.blocks.record(Segment(number)))
                    && record.sequence.get() <= sequence;
                check(is_there, "a segment of a snapshot")?;
            }
            let is_needed =
                |it: Segment| records.get(it.index()).is_some_and(|it| it.holds_blocks());
            let slot = space.hold(&self.blocks.segments, sequence, true, is_needed);
            pins.push((snapshot.checkpoint, pin_of(slot)?));
        }
        Ok(pins)
    }

    /// Keeps all that was ever written: somebody reads an earlier checkpoint, of which nothing is
    /// known. For a store that was just opened, after `hold_snapshots`.
    ///
    /// Errors: too many pins.
    pub fn hold_everything(&self) -> Result<PinToken, StoreError> {
        let mut space = self.space.lock();
        let sequence = space.fillings.last;
        let was_filled = |segment| self.blocks.segments.sequence(segment) > 0;
        pin_of(space.hold(&self.blocks.segments, sequence, false, was_filled))
    }

    /// The pin is that of a snapshot from now on: what it covers is not moved.
    ///
    /// Errors: `Full` if the log would not have room enough beside it.
    pub fn name_pin(&self, pin: &PinToken) -> Result<(), StoreError> {
        self.space.lock().name_pin(&self.blocks.segments, pin.slot)
    }

    /// The pin is not that of a snapshot any more.
    pub fn unname_pin(&self, pin: &PinToken) {
        self.space.lock().unname_pin(&self.blocks.segments, pin.slot);
        self.progress.notify();
        self.work.notify();
    }

    /// Bytes of segments that snapshots keep.
    pub fn snapshot_bytes(&self) -> u64 {
        self.space.lock().kept.map_or(0, |kept| kept.held) * self.segment_bytes() as u64
    }
}

impl Blocks {
    /// Whether a page that tells of so many blocks tells of one that was appended later.
    fn is_newer(&self, page: u32, blocks: u32, frontier: u32, since: SavedUpTo) -> bool {
        let first = page * blocks / self.geometry.blocks();
        let last = ((page + 1) * blocks).div_ceil(self.geometry.blocks()).min(frontier);
        (first..last).any(|segment| self.segments.sequence(Segment(segment)) > since.0)
    }

    fn save_segments(&self, frontier: u32, visit: &mut VisitSaved<'_>) -> Result<(), DurableError> {
        for page in 0..frontier.div_ceil(RECORDS_PER_PAGE) {
            let mut bytes: Page = [0; BLOCK_BYTES];
            let records = bytes.chunks_exact_mut(size_of::<SegmentRecord>());
            for (segment, out) in (page * RECORDS_PER_PAGE..frontier).map(Segment).zip(records) {
                out.copy_from_slice(self.record(segment).as_bytes());
            }
            visit(SEGMENTS, page, &bytes)?;
        }
        Ok(())
    }

    fn record(&self, segment: Segment) -> SegmentRecord {
        let live = self.segments.live(segment);
        let kind = match self.segments.state(segment) {
            State::Lost => SegmentRecord::LOST,
            _ if live > 0 => SegmentRecord::HOLDS_BLOCKS,
            _ => SegmentRecord::FREE,
        };
        SegmentRecord {
            live: U32::new(live),
            place: U32::new(self.segments.place(segment).0 ^ segment.0),
            sequence: U64::new(self.segments.sequence(segment)),
            count: U16::new(self.segments.count(segment).to_u16()),
            kind,
            reserved: [0; 13],
        }
    }

    /// Whether the numbers can be those of this log; its frontier.
    fn check_scalars(&self, scalars: &Scalars) -> Result<u32, DurableError> {
        let is_ours = scalars.segments.get() == self.geometry.segments
            && scalars.segment_blocks.get() == self.geometry.blocks();
        check(is_ours, "the tables of a log of another shape")?;
        check(scalars.frontier.get() <= self.geometry.segments, "more segments than there are")?;
        check(scalars.sequence.get() < SEQUENCE_MAX, "the number of the last filling")?;
        Ok(scalars.frontier.get())
    }

    /// Takes a page of records.
    fn load_segments(&self, page: u32, frontier: u32, bytes: &[u8]) -> Result<(), DurableError> {
        let first = u64::from(page) * u64::from(RECORDS_PER_PAGE);
        for (number, record) in (first..).zip(SegmentRecord::all_of(bytes)) {
            let number = u32::try_from(number).ok().filter(|&number| number < frontier);
            let Some(segment) = number.map(Segment) else {
                check(*record == SegmentRecord::NONE, "a segment that was never used")?;
                continue;
            };
            let (live, count) = (record.live.get(), u32::from(record.count.get()));
            let state = match record.kind {
                SegmentRecord::FREE if live == 0 => State::Bare,
                SegmentRecord::LOST if live == 0 => State::Lost,
                SegmentRecord::HOLDS_BLOCKS if live > 0 && count > 0 => State::Written,
                _ => return Err(DurableError::Inconsistent("what a segment holds")),
            };
            // No object costs twice what it takes.
            check(live <= 2 * self.geometry.data_units(), "how much of a segment lives")?;
            check(count <= self.geometry.data_blocks(), "how many blocks a segment has")?;
            check(
                state != State::Written || record.sequence.get() > 0,
                "a filling without a number",
            )?;
            let place = segment.0 ^ record.place.get();
            check(place < frontier, "the place of a segment")?;
            self.set_record(segment, record, state);
        }
        Ok(())
    }

    /// The segment, which nobody uses yet, is what the record tells, in this state.
    pub(crate) fn set_record(&self, segment: Segment, record: &SegmentRecord, state: State) {
        self.segments.set_live(segment, record.live.get());
        self.segments.set_count(segment, record.count.get().into());
        self.segments.set_sequence(segment, record.sequence.get());
        self.segments.set_place(segment, Segment(segment.0 ^ record.place.get()));
        self.segments.set_state(segment, state);
    }

    /// Whether all records together can be; the units that live.
    fn check_segments(&self, scalars: &Scalars) -> Result<u64, DurableError> {
        let segments = || (0..scalars.frontier.get()).map(Segment);
        let live: u64 = segments().map(|segment| u64::from(self.segments.live(segment))).sum();
        check(live == scalars.live_units.get(), "how much lives")?;
        let last = segments().map(|segment| self.segments.sequence(segment)).max();
        check(last.unwrap_or(0) <= scalars.sequence.get(), "the number of the last filling")?;
        let mut taken = vec![false; scalars.frontier.get() as usize];
        for segment in segments() {
            let place = self.segments.place(segment).index();
            check(!taken[place], "two segments at one place")?;
            taken[place] = true;
        }
        Ok(live)
    }
}

fn pin_of(slot: Option<u32>) -> Result<PinToken, StoreError> {
    let slot = slot.ok_or(StoreError::TooManyForks)?;
    Ok(PinToken { slot, generation: 0, second_slot: None })
}

/// Errors: `Inconsistent` if it is not.
fn check(is_right: bool, what: &'static str) -> Result<(), DurableError> {
    if is_right { Ok(()) } else { Err(DurableError::Inconsistent(what)) }
}
