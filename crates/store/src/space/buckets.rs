//! Buckets: the segments on the device, sorted by how much of each lives. Victims come from them.
//!
//! Guarantees: the cost of a choice depends on the number of buckets, not on the size of the log. A
//! segment that could not be emptied lately is not chosen. Nor is one that a pin would withhold,
//! unless pins end with the next checkpoint and nothing else can be won. A segment of a snapshot is
//! never chosen.
//! Never: allocates, blocks, does I/O.
//! Threads: under the lock of the space.

use deepheap_sys::narrow::Narrow;

use super::{BUCKETS, Collection, Goal, LEVELS, PINNED_BUCKETS, SHELVED, SNAPSHOT_BUCKETS, Space};
use crate::block::Segment;
use crate::format::geometry::Geometry;
use crate::space::list::List;
use crate::space::policy::{self, Occupancy};
use crate::space::segment::{SegmentTable, State};

/// Fillings that have to pass before a segment that could not be emptied is tried again.
const SHELVED_FILLINGS: u64 = 32;

/// The bucket of a segment with so many live units.
pub(crate) fn level_of(geometry: &Geometry, live: u32) -> u8 {
    let level = u64::from(live) * u64::from(LEVELS) / u64::from(geometry.data_units());
    level.min(LEVELS.into()).to_u8()
}

impl Space {
    /// Puts a segment that is Written, on no list, into its bucket, or frees it.
    pub(crate) fn put_in_bucket(&mut self, table: &SegmentTable, segment: Segment) {
        self.collection.is_exhausted = false;
        let live = table.live(segment);
        if live == 0 {
            self.free(table, segment);
            return;
        }
        let level = level_of(&self.geometry, live);
        table.set_level(segment, level);
        let first = self.buckets_of(table.sequence(segment));
        self.lists.push_back(List(first + u32::from(level)), segment);
    }

    /// The first of the buckets of segments with this filling.
    fn buckets_of(&self, sequence: u64) -> u32 {
        match sequence {
            _ if sequence > self.pins.newest() => BUCKETS,
            _ if sequence > self.pins.newest_named() => PINNED_BUCKETS,
            _ => SNAPSHOT_BUCKETS,
        }
    }

    /// Puts the segments of these buckets into those that are theirs by the pins of now.
    pub(super) fn sort_buckets(&self, table: &SegmentTable, firsts: &[u32]) {
        for &first in firsts {
            for level in 0..=LEVELS {
                let mut next = self.lists.front(List(first + level));
                while let Some(segment) = next {
                    next = self.lists.after(segment);
                    let right = self.buckets_of(table.sequence(segment));
                    if right != first {
                        self.lists.unlink(segment);
                        self.lists.push_back(List(right + level), segment);
                    }
                }
            }
        }
    }

    /// The live count of a segment has crossed a bucket's border.
    pub(crate) fn update_bucket(&mut self, table: &SegmentTable, segment: Segment) {
        let live = table.live(segment);
        match table.state(segment) {
            State::Written
                if live == 0 || level_of(&self.geometry, live) != table.level(segment) =>
            {
                self.lists.unlink(segment);
                self.put_in_bucket(table, segment);
            }
            State::Shelved => {
                self.lists.unlink(segment);
                self.change(table, segment, State::Written);
                self.put_in_bucket(table, segment);
            }
            _ => {}
        }
    }

    /// The best segment to empty, if segments should be emptied now; it is Collecting.
    pub(crate) fn choose_victim(
        &mut self,
        table: &SegmentTable,
        live_units: u64,
    ) -> Option<Segment> {
        if !self.collect_needed(live_units) {
            return None;
        }
        while let Some(segment) = self.lists.front(SHELVED) {
            if table.stamp(segment) + SHELVED_FILLINGS > self.fillings.last {
                break;
            }
            self.lists.unlink(segment);
            self.change(table, segment, State::Written);
            self.put_in_bucket(table, segment);
        }
        let capacity = self.geometry.data_units();
        let best_of = |first: u32, capacity: u32| {
            let fronts = (0..LEVELS).filter_map(|level| self.lists.front(List(first + level)));
            let candidates = fronts.map(|segment| (segment, table.live(segment)));
            policy::victim(candidates, capacity)
        };
        // The last checkpoint may keep most of the space: to move what is nearly all alive would
        // win nothing, again and again.
        let worth = capacity / 8 * 7;
        let mut chosen = best_of(BUCKETS, if self.kept.is_some() { worth } else { capacity });
        let occupancy = self.occupancy(live_units);
        let has_goal = self.may_reach_goal(&occupancy);
        if chosen.is_none() && (has_goal || self.may_empty_kept(&occupancy)) {
            chosen = best_of(PINNED_BUCKETS, worth);
            match (chosen, &mut self.kept) {
                (Some(segment), _) if has_goal => {
                    let live = u64::from(table.live(segment));
                    self.collection.copies = self.collection.copies.saturating_sub(live);
                }
                (Some(_), Some(kept)) => kept.may_empty -= 1,
                _ => {}
            }
        }
        let Some(segment) = chosen else {
            self.collection.is_exhausted = true;
            return None;
        };
        self.lists.unlink(segment);
        self.change(table, segment, State::Collecting);
        Some(segment)
    }

    /// A victim is done with: free if nothing lives in it, else shelved for a while.
    pub(crate) fn end_collection(&mut self, table: &SegmentTable, segment: Segment) -> bool {
        if table.live(segment) == 0 {
            self.free(table, segment);
            return true;
        }
        self.change(table, segment, State::Shelved);
        table.set_stamp(segment, self.fillings.last);
        table.set_level(segment, level_of(&self.geometry, table.live(segment)));
        self.lists.push_back(SHELVED, segment);
        false
    }

    /// Whether a collector that has no victim should take one.
    pub(crate) fn collect_needed(&self, live_units: u64) -> bool {
        // Each victim may fill one segment before it frees one.
        let may_take = self.count(State::Collecting) < self.promises.reserve;
        may_take && !self.collection.is_exhausted && {
            let occupancy = self.occupancy(live_units);
            occupancy.must_collect()
                || self.may_empty_kept(&occupancy)
                || self.may_reach_goal(&occupancy)
        }
    }

    /// What segments are emptied for, from now on.
    pub(crate) fn set_goal(&mut self, goal: Goal, live_units: u64) {
        self.collection = Collection { goal, ..Collection::default() };
        if goal == Goal::Room {
            let occupancy = self.occupancy(live_units);
            self.collection.wanted = occupancy.wanted_after_checkpoint();
            // What was changed since it was written, is written again.
            let left = (occupancy.for_checkpoint / 5).min(occupancy.spare() / 2);
            let data_units = u64::from(self.geometry.data_units());
            self.collection.copies = (occupancy.spare() - left) * data_units;
        }
    }

    /// Whether there is nothing left to do for the goal, or to win.
    pub(crate) fn has_reached_goal(&self, live_units: u64) -> bool {
        let is_at_work = self.count(State::Collecting) > 0;
        let may_go_on = || self.may_reach_goal(&self.occupancy(live_units));
        !is_at_work && (self.collection.is_exhausted || !may_go_on())
    }

    /// Whether a segment may be emptied for the goal: there is room for what lives in it.
    fn may_reach_goal(&self, occupancy: &Occupancy) -> bool {
        let Collection { goal, wanted, copies, .. } = self.collection;
        match goal {
            Goal::Needed => false,
            Goal::Room => occupancy.free_after_checkpoint() < wanted && copies > 0,
            Goal::Compact => occupancy.spare() > occupancy.for_checkpoint,
        }
    }

    /// Whether segments that the last checkpoint keeps should be emptied, so that the next one lets
    /// go of them. Each takes space until then.
    fn may_empty_kept(&self, occupancy: &Occupancy) -> bool {
        let is_wanted = self.kept.is_some_and(|kept| kept.may_empty > 0);
        is_wanted && occupancy.spare() > 2 * occupancy.for_checkpoint
    }

    /// Whether nothing that is under way, and nothing that could be begun, will free a segment.
    pub(crate) fn is_stuck(&self) -> bool {
        let retried = if self.unwritten.retries.is_dead() { 0 } else { self.count(State::Failed) };
        self.collection.is_exhausted
            && !self.growth.is_under_way
            && retried == 0
            && [State::Sealed, State::Writing, State::Collecting, State::Discarding]
                .into_iter()
                .all(|state| self.count(state) == 0)
    }
}
