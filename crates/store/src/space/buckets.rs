//! Buckets: segments on the device, by how much of them is alive; victims are taken from them.
//!
//! Guarantees: choosing costs as much as there are buckets, however large the log is; segments
//! that a pin would withhold, or that could not be emptied lately, are not chosen.
//! Never: allocates, blocks, does I/O.
//! Threads: under the lock of the space.

use super::{BUCKETS, LEVELS, PINNED_BUCKETS, SHELVED, Space};
use crate::block::{Geometry, Segment};
use crate::list::List;
use crate::policy::{Candidate, VictimPolicy};
use crate::segment::{SegmentTable, State};

/// Fillings that have to pass before a segment that could not be emptied is tried again.
const SHELVED_FILLINGS: u64 = 32;

/// The bucket of a segment with so many live units.
pub(crate) fn level_of(geometry: &Geometry, live: u32) -> u8 {
    (live as u64 * LEVELS as u64 / geometry.data_units() as u64).min(LEVELS as u64) as u8
}

impl Space {
    /// The bucket of a segment with so many live units.
    fn level_of(&self, live: u32) -> u8 {
        level_of(&self.geometry, live)
    }

    /// Puts a segment that is Written, on no list, into its bucket, or frees it.
    pub(crate) fn file(&mut self, table: &SegmentTable, segment: Segment) {
        self.exhausted = false;
        let live = table.live(segment);
        if live == 0 {
            self.free(table, segment);
            return;
        }
        let level = self.level_of(live);
        table.set_level(segment, level);
        let pinned = table.sequence(segment) <= self.pins.newest();
        let first = if pinned { PINNED_BUCKETS } else { BUCKETS };
        self.lists.push_back(List(first + level as u32), segment);
    }

    /// The live count of a segment has crossed a bucket's border.
    pub(crate) fn refile(&mut self, table: &SegmentTable, segment: Segment) {
        let live = table.live(segment);
        match table.state(segment) {
            State::Written if live == 0 || self.level_of(live) != table.level(segment) => {
                self.lists.unlink(segment);
                self.file(table, segment);
            }
            State::Shelved => {
                self.lists.unlink(segment);
                self.change(table, segment, State::Written);
                self.file(table, segment);
            }
            _ => {}
        }
    }

    /// The best segment to empty, if segments should be emptied now; it is Collecting.
    pub(crate) fn choose_victim(
        &mut self,
        table: &SegmentTable,
        policy: VictimPolicy,
        live_units: u64,
    ) -> Option<Segment> {
        if !self.collect_needed(live_units) {
            return None;
        }
        while let Some(segment) = self.lists.front(SHELVED) {
            if table.stamp(segment) + SHELVED_FILLINGS > self.sequence {
                break;
            }
            self.lists.unlink(segment);
            self.change(table, segment, State::Written);
            self.file(table, segment);
        }
        let fronts = || (0..LEVELS).filter_map(|level| self.lists.front(List(BUCKETS + level)));
        let candidates = fronts().map(|segment| Candidate {
            live: table.live(segment),
            capacity: self.geometry.data_units(),
            age: self.sequence - table.sequence(segment),
        });
        let Some(segment) = policy.choose(candidates).and_then(|best| fronts().nth(best)) else {
            self.exhausted = true;
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
        table.set_stamp(segment, self.sequence);
        table.set_level(segment, self.level_of(table.live(segment)));
        self.lists.push_back(SHELVED, segment);
        false
    }

    /// Whether a collector that has no victim should take one.
    pub(crate) fn collect_needed(&self, live_units: u64) -> bool {
        !self.exhausted
            // Each victim may fill one segment before it frees one.
            && self.count(State::Collecting) < self.reserve
            && self.occupancy(live_units).must_collect()
    }

    /// Whether nothing that is under way, and nothing that could be begun, will free a segment.
    pub(crate) fn is_stuck(&self) -> bool {
        self.exhausted
            && !self.growing
            && [State::Sealed, State::Writing, State::Collecting, State::Discarding]
                .into_iter()
                .all(|state| self.count(state) == 0)
    }
}
