//! Space: which segments are free, which hold what, what is reserved, and what can be collected.
//!
//! Guarantees: the counts by state are those of the table. A segment is on the list of its state
//! (Ready, Bare below the frontier, Withheld, Shelved, Written by bucket) or on none. Reserved
//! blocks never need more segments than there are.
//! Never: allocates after `new`, blocks, does I/O (`Store` does it, between two calls).
//! Threads: everything under the one lock of the space, held briefly.

pub(crate) mod discards;
pub(crate) mod list;
pub(crate) mod pins;
pub(crate) mod policy;
pub(crate) mod retry_schedule;
pub(crate) mod segment;

mod assurance;
mod buckets;
mod snapshots;

use std::collections::VecDeque;

use deepheap_sys::narrow::Narrow;

pub(crate) use buckets::level_of;

use crate::block::Segment;
use crate::error::StoreError;
use crate::format::geometry::Geometry;
use crate::log::blocks::head_of;
use crate::log::head::Head;
use crate::log::options::BUFFERS_MAX;
use crate::space::discards::Discards;
use crate::space::list::{List, Lists};
use crate::space::pins::Pins;
use crate::space::policy::Occupancy;
use crate::space::retry_schedule::RetrySchedule;
use crate::space::segment::{STATES, SegmentTable, State};

/// Bytes of the device that are assured at a time.
const GROWTH_BYTES: usize = 64 << 20;
/// The same if much is lacking at once, as when a large heap is opened.
const GROWTH_MOST_BYTES: usize = 4 << 30;

/// Buckets of Written segments: bucket `l` holds those of which at least `l` and less than
/// `l + 1` parts of `LEVELS` are alive; the last one those that are wholly alive.
pub(crate) const LEVELS: u32 = 32;

/// First list of the buckets of segments that collection may take.
const BUCKETS: u32 = 0;
/// First list of the buckets of segments that a pin withholds: emptying them frees nothing yet.
const PINNED_BUCKETS: u32 = LEVELS + 1;
/// First list of the buckets of segments that a snapshot keeps: they are not emptied at all.
const SNAPSHOT_BUCKETS: u32 = 2 * (LEVELS + 1);
const READY: List = List(3 * (LEVELS + 1));
const BARE: List = List(READY.0 + 1);
const WITHHELD: List = List(READY.0 + 2);
const SHELVED: List = List(READY.0 + 3);
const LISTS: u32 = SHELVED.0 + 1;

/// See the file's header.
pub(crate) struct Space {
    geometry: Geometry,
    lists: Lists,
    /// Segments by state.
    counts: [u32; STATES],
    /// Segments from here on were never touched: Bare, and on no list.
    pub(crate) frontier: u32,
    pub(crate) fillings: Fillings,
    promises: Promises,
    pub(crate) growth: Growth,
    pub(crate) discards: Discards,
    pub(crate) collection: Collection,
    pub(crate) unwritten: Unwritten,
    pub(crate) pins: Pins,
    /// The segments that the last checkpoint keeps; only of a durable log, whose pins are its
    /// checkpoints.
    pub(crate) kept: Option<Kept>,
}

/// Segments are filled one after the other.
pub(crate) struct Fillings {
    /// The number of the last filling.
    pub(crate) last: u64,
    /// Segments that were filled at any time: what the checksums occupy.
    pub(crate) segments: u32,
    /// Which device new segments are on.
    generation: u8,
}

impl Fillings {
    fn begin(&mut self, table: &SegmentTable, segment: Segment) {
        self.segments += u32::from(table.sequence(segment) == 0);
        self.last += 1;
        table.set_sequence(segment, self.last);
        table.set_count(segment, 0);
        table.set_device(segment, self.generation);
    }
}

/// What is promised.
struct Promises {
    /// Blocks reserved.
    reserved: u64,
    /// Of those, the ones that a forked child has inherited, for which its own device assures
    /// nothing.
    inherited: u64,
    /// Segments of which only the survivor head may take the last.
    reserve: u32,
}

/// The device is asked for the space of more segments.
pub(crate) struct Growth {
    /// Segments assured the next time; less after a refusal.
    segments: u32,
    /// Not before this filling.
    paused_until: u64,
    /// Whether a thread is asking now.
    pub(crate) is_under_way: bool,
}

/// What the search for segments to empty has come to.
#[derive(Default)]
pub(crate) struct Collection {
    /// It found nothing to win, and nothing changed since.
    pub(crate) is_exhausted: bool,
    goal: Goal,
    /// For `Goal::Room`: segments that are to be free once the checkpoint is durable.
    wanted: u64,
    /// For the same: units that may still be written for it, by the collectors or, of objects in
    /// RAM, by the checkpoint.
    copies: u64,
}

/// What segments are emptied for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Goal {
    /// Free segments run low, or what lives is much scattered.
    #[default]
    Needed,
    /// So that the checkpoint that is being made leaves room for the next one.
    Room,
    /// For whatever can be won.
    Compact,
}

/// The buffers, and the segments in them that the device does not have yet.
pub(crate) struct Unwritten {
    /// Free buffers, by head.
    pub(crate) free_buffers: [u64; 2],
    /// The last segment in each buffer.
    pub(crate) in_buffer: [Segment; BUFFERS_MAX],
    pub(crate) retries: RetrySchedule,
    /// Sealed segments, oldest first. There are never more than buffers, for which it has room.
    pub(crate) sealed: VecDeque<Segment>,
}

/// The segments that the last checkpoint of a durable log keeps.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kept {
    /// Those that were used when it was made.
    used: u64,
    /// How many of these may be emptied before the next one.
    may_empty: u64,
    /// Free ones that are left to the next one.
    pub(crate) for_next: u64,
    /// The next one is being made.
    pub(crate) is_in_making: bool,
    /// Those that snapshots keep.
    pub(crate) held: u64,
    /// Of those, the ones that are Withheld.
    held_dead: u64,
    /// Whether the device has the space of what was withheld up to this moment is not known.
    reopened_at: u64,
}

impl Space {
    pub(crate) fn new(
        geometry: Geometry,
        reserve: u32,
        free_buffers: [u64; 2],
    ) -> Result<Self, StoreError> {
        let mut counts = [0; STATES];
        counts[State::Bare as usize] = geometry.segments;
        Ok(Self {
            geometry,
            lists: Lists::new(geometry.segments, LISTS)?,
            counts,
            frontier: 0,
            fillings: Fillings { last: 0, segments: 0, generation: 0 },
            promises: Promises { reserved: 0, inherited: 0, reserve },
            growth: Growth {
                segments: (GROWTH_BYTES / geometry.segment_bytes()).to_u32(),
                paused_until: 0,
                is_under_way: false,
            },
            discards: Discards::new(geometry.segment_bytes() as u64),
            collection: Collection::default(),
            unwritten: Unwritten {
                free_buffers,
                in_buffer: [Segment(0); BUFFERS_MAX],
                retries: RetrySchedule::new(),
                sealed: VecDeque::with_capacity(BUFFERS_MAX),
            },
            pins: Pins::new(),
            kept: None,
        })
    }

    /// Segments in the state.
    pub(crate) fn count(&self, state: State) -> u32 {
        self.counts[state as usize]
    }

    /// Blocks that are reserved.
    pub(crate) fn reserved(&self) -> u64 {
        self.promises.reserved
    }

    /// Moves a segment on in its life.
    pub(crate) fn change(&mut self, table: &SegmentTable, segment: Segment, to: State) {
        let from = table.state(segment);
        assert!(from.may_become(to), "a segment took a turn that its life does not have");
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        table.set_state(segment, to);
    }

    /// Segments that hold no reserved block but cannot be used either.
    fn unusable(&self) -> u64 {
        (self.count(State::Lost) + self.count(State::Withheld)).into()
    }

    /// Segments that must be assured for `blocks` reserved blocks.
    fn needed(&self, blocks: u64) -> u64 {
        let own = blocks.saturating_sub(self.promises.inherited);
        let data_blocks = self.geometry.data_blocks().into();
        match policy::needed_segments(own, data_blocks, self.promises.reserve) {
            0 => 0,
            needed => needed + self.kept.map_or_else(|| self.unusable(), |kept| kept.held_dead),
        }
    }

    /// Blocks that can be reserved in all.
    pub(crate) fn reservable(&self) -> u64 {
        self.reservable_beside(self.kept.map_or(0, |kept| kept.held))
    }

    /// Blocks that can be reserved in all, if snapshots keep so many segments.
    fn reservable_beside(&self, held: u64) -> u64 {
        let segments = u64::from(self.geometry.segments);
        // Of a durable log half: the rest is for what the last checkpoint keeps.
        self.reservable_in(match self.kept {
            Some(_) => segments.saturating_sub(held) / 2,
            None => segments.saturating_sub(self.unusable()),
        })
    }

    fn reservable_in(&self, segments: u64) -> u64 {
        let data_blocks = self.geometry.data_blocks().into();
        policy::reservable_blocks(segments, data_blocks, self.promises.reserve)
    }

    /// How full the log is, while so many units live.
    pub(crate) fn occupancy(&self, live_units: u64) -> Occupancy {
        let count = |state| u64::from(self.count(state));
        let free = count(State::Ready) + count(State::Bare);
        let passing = count(State::Growing) + count(State::Discarding);
        let is_paused = self.fillings.last < self.growth.paused_until;
        let kept = self.kept.unwrap_or_default();
        let data_blocks = self.geometry.data_blocks().into();
        Occupancy {
            ready: count(State::Ready),
            used: u64::from(self.geometry.segments) - free - passing,
            growable: if is_paused { 0 } else { count(State::Bare) },
            live: live_units / u64::from(self.geometry.data_units()),
            needed: self.needed(self.promises.reserved),
            reserve: self.promises.reserve.into(),
            collecting: count(State::Collecting),
            withheld: count(State::Withheld) - kept.held_dead,
            kept: kept.used,
            held: kept.held,
            for_checkpoint: policy::filled_by_checkpoint(
                kept.for_next,
                self.promises.reserved,
                data_blocks,
            ),
            is_before_checkpoint: self.kept.is_some() && !kept.is_in_making,
        }
    }

    /// Reserves the blocks if enough segments are assured. Otherwise it answers how many are
    /// lacking: grow, then try again.
    pub(crate) fn try_reserve(&mut self, blocks: u64) -> Result<u64, StoreError> {
        let total = self.promises.reserved.checked_add(blocks).ok_or(StoreError::Full)?;
        if total > self.reservable() {
            return Err(StoreError::Full);
        }
        let missing = self.needed(total).saturating_sub(self.assured());
        if missing == 0 {
            self.promises.reserved = total;
        }
        Ok(missing)
    }

    /// Blocks that can still be reserved, if the device has space for so many more segments;
    /// `None`: for all.
    pub(crate) fn room(&self, more_segments: Option<u64>) -> u64 {
        let left = self.reservable().saturating_sub(self.promises.reserved);
        let Some(more) = more_segments else { return left };
        let assured = self.assured() + more;
        let usable = assured.saturating_sub(self.unusable());
        let own = self.promises.reserved.saturating_sub(self.promises.inherited);
        left.min(self.reservable_in(usable).saturating_sub(own))
    }

    /// Segments whose space is assured.
    fn assured(&self) -> u64 {
        let unassured = self.count(State::Bare) + self.count(State::Growing);
        (self.geometry.segments - unassured - self.count(State::Discarding)).into()
    }

    /// Gives reserved blocks back.
    pub(crate) fn unreserve(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.promises.reserved, "more was given back than was reserved");
        self.promises.reserved = self.promises.reserved.saturating_sub(blocks);
    }

    /// A free segment for the head, begun as the next filling.
    pub(crate) fn take_ready(
        &mut self,
        table: &SegmentTable,
        head: Head,
        occupancy: &Occupancy,
    ) -> Option<Segment> {
        if head == Head::Fresh && !occupancy.fresh_may_open() {
            return None;
        }
        let segment = self.take_free(table, State::Open)?;
        self.discards.taken(table.sequence(segment) > 0, table.stamp(segment));
        self.fillings.begin(table, segment);
        Some(segment)
    }

    fn take_free(&mut self, table: &SegmentTable, to: State) -> Option<Segment> {
        let segment = self.lists.front(READY)?;
        self.lists.unlink(segment);
        self.change(table, segment, to);
        Some(segment)
    }

    /// A free segment whose place a refused one is to try; none of the last ones, which are the
    /// survivors'.
    pub(crate) fn take_spare(&mut self, table: &SegmentTable, live_units: u64) -> Option<Segment> {
        let may_take = self.occupancy(live_units).fresh_may_open();
        if may_take { self.take_free(table, State::Spare) } else { None }
    }

    /// The place of the spare one was refused, too: another one will be tried before it.
    pub(crate) fn return_spare(&mut self, table: &SegmentTable, segment: Segment) {
        self.change(table, segment, State::Ready);
        table.set_stamp(segment, self.discards.tick);
        self.lists.push_back(READY, segment);
    }

    /// A segment without live blocks, on no list, becomes free, or withheld for forked children.
    pub(crate) fn free(&mut self, table: &SegmentTable, segment: Segment) {
        self.collection.is_exhausted = false;
        if table.device(segment) != self.fillings.generation as usize {
            self.change(table, segment, State::Bare);
            self.lists.push_back(BARE, segment);
        } else if table.sequence(segment) <= self.pins.newest() {
            let is_held = table.sequence(segment) <= self.pins.newest_named();
            if let Some(kept) = &mut self.kept {
                kept.held_dead += u64::from(is_held);
            }
            self.change(table, segment, State::Withheld);
            table.set_stamp(segment, self.pins.now());
            self.lists.push_back(WITHHELD, segment);
        } else {
            self.change(table, segment, State::Ready);
            table.set_stamp(segment, self.discards.tick);
            self.lists.push_front(READY, segment);
        }
    }

    /// Everything filled so far will be withheld when it is freed. None: too many pins.
    pub(crate) fn pin(&mut self, live_units: u64) -> Option<u32> {
        let slot = self.pins.add(self.fillings.last)?;
        let occupancy = self.occupancy(live_units);
        if let Some(kept) = &mut self.kept {
            kept.used = occupancy.used;
            kept.may_empty = occupancy.must_empty(kept.held_dead);
        }
        for level in 0..=LEVELS {
            self.lists.splice(List(BUCKETS + level), List(PINNED_BUCKETS + level));
        }
        Some(slot)
    }

    /// A pin is gone: what only it withheld becomes free or collectable again.
    pub(crate) fn unpin(&mut self, table: &SegmentTable, slot: u32) {
        self.pins.remove(slot);
        self.collection.is_exhausted = false;
        if self.pins.newest() > 0 {
            self.sort_buckets(table, &[PINNED_BUCKETS]);
        } else {
            for level in 0..=LEVELS {
                self.lists.splice(List(PINNED_BUCKETS + level), List(BUCKETS + level));
            }
        }
        self.release_withheld(table);
    }

    /// Frees the withheld segments that no pin covers which was there when they died.
    fn release_withheld(&mut self, table: &SegmentTable) {
        // They lie in the order in which they died: few of them have another answer than the one
        // before.
        let (mut moment, mut covered) = (0, 0);
        let reopened_at = self.kept.map_or(0, |kept| kept.reopened_at);
        let mut next = self.lists.front(WITHHELD);
        while let Some(segment) = next {
            next = self.lists.after(segment);
            if table.stamp(segment) != moment {
                moment = table.stamp(segment);
                covered = self.pins.newest_of(moment);
            }
            if table.sequence(segment) > covered {
                let is_known = table.stamp(segment) > reopened_at;
                self.lists.unlink(segment);
                self.change(table, segment, if is_known { State::Ready } else { State::Bare });
                table.set_stamp(segment, self.discards.tick);
                self.lists.push_front(if is_known { READY } else { BARE }, segment);
            }
        }
    }

    /// Frees a segment whose write failed, and its buffer, once nothing in it lives; whether it
    /// did. If its place is bad, the next one that comes there will find out.
    pub(crate) fn free_if_failed(&mut self, table: &SegmentTable, segment: Segment) -> bool {
        if table.state(segment) != State::Failed || table.live(segment) > 0 {
            return false;
        }
        if let Some(buffer) = table.buffer(segment) {
            self.unwritten.retries.forget(buffer);
        }
        self.leave_buffer(table, segment);
        self.free(table, segment);
        true
    }

    /// Readers look on the device from now on; the buffer is free once the last one left.
    pub(crate) fn leave_buffer(&mut self, table: &SegmentTable, segment: Segment) {
        if let Some(buffer) = table.buffer(segment) {
            table.set_buffer(segment, None);
            self.unwritten.free_buffers[head_of(buffer) as usize] |= 1 << buffer;
        }
    }

    /// In a forked child: what the parent's other threads had under way is undone, free segments
    /// are free on the child's own device, which is that of `generation`.
    pub(crate) fn become_child(&mut self, table: &SegmentTable, generation: u8) {
        self.lists.clear();
        self.unwritten.sealed.clear();
        self.unwritten.retries = RetrySchedule::new();
        self.pins.clear();
        self.growth.is_under_way = false;
        self.collection.is_exhausted = false;
        self.growth.paused_until = 0;
        self.discards.change_device();
        self.fillings.generation = generation;
        self.promises.inherited = self.promises.reserved;
        self.recount(table, |state| match state {
            // Not on any device yet, but in our memory: ours to write.
            State::Writing | State::Failed => State::Sealed,
            // The collector that had it is not here.
            State::Collecting | State::Shelved => State::Written,
            state if state.holds_blocks() => state,
            _ => State::Bare,
        });
    }

    /// A log that was saved is opened again. The segments below `frontier` are what the table says:
    /// Written, Lost, or Bare; whether the device still has the space of a free one is not known,
    /// so it is assured again. The last filling was `sequence`. From here on pins are those of
    /// checkpoints.
    pub(crate) fn reopen(&mut self, table: &SegmentTable, frontier: u32, sequence: u64) {
        self.frontier = frontier;
        self.fillings.last = sequence;
        self.kept = Some(Kept::default());
        let was_filled = |segment: &u32| table.sequence(Segment(*segment)) > 0;
        self.fillings.segments = (0..frontier).filter(was_filled).count().to_u32();
        self.recount(table, |state| state);
    }

    /// All segments, which are on no list, are in these states from here on.
    fn recount(&mut self, table: &SegmentTable, state_of: impl Fn(State) -> State) {
        self.counts = [0; STATES];
        self.counts[State::Bare as usize] = self.geometry.segments - self.frontier;
        for segment in (0..self.frontier).map(Segment) {
            let state = state_of(table.state(segment));
            self.counts[state as usize] += 1;
            table.set_state(segment, state);
            match state {
                State::Open => table.set_device(segment, self.fillings.generation),
                State::Sealed => {
                    table.set_device(segment, self.fillings.generation);
                    self.unwritten.sealed.push_back(segment);
                }
                State::Written => self.put_in_bucket(table, segment),
                State::Bare => self.lists.push_back(BARE, segment),
                _ => {}
            }
        }
    }

    /// Checks what the file's header guarantees. For tests and the `strict` builds.
    pub(crate) fn check_invariants(&self, table: &SegmentTable) {
        let mut counts = [0; STATES];
        counts[State::Bare as usize] = self.geometry.segments - self.frontier;
        for segment in (0..self.frontier).map(Segment) {
            counts[table.state(segment) as usize] += 1;
            // No object costs twice what it takes, see `packed::cost`.
            assert!(table.live(segment) <= 2 * self.geometry.data_units(), "live units");
            assert!(table.live(segment) == 0 || table.state(segment).holds_blocks(), "live where");
        }
        assert_eq!(counts, self.counts, "counts by state");
        let length = |list: List, state: State| {
            let mut at = self.lists.front(list);
            let mut length = 0;
            while let Some(segment) = at {
                assert_eq!(table.state(segment), state, "on the list of another state");
                at = self.lists.after(segment);
                length += 1;
            }
            length
        };
        let untouched = self.geometry.segments - self.frontier;
        assert_eq!(length(READY, State::Ready), self.count(State::Ready));
        assert_eq!(length(BARE, State::Bare) + untouched, self.count(State::Bare));
        assert_eq!(length(WITHHELD, State::Withheld), self.count(State::Withheld));
        assert_eq!(length(SHELVED, State::Shelved), self.count(State::Shelved));
        let kept = self.kept.unwrap_or_default();
        assert_eq!((kept.held, kept.held_dead), self.count_held(table), "what snapshots keep");
        let buckets = 0..=SNAPSHOT_BUCKETS + LEVELS;
        let written: u32 = buckets.map(|list| length(List(list), State::Written)).sum();
        assert_eq!(written, self.count(State::Written));
        assert!(self.promises.reserved <= self.reservable() || self.unusable() > 0, "reserved");
    }
}
