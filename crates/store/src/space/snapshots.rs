//! Snapshots: the space of a durable log that checkpoints with a name keep.
//!
//! A snapshot is a pin that stays until its name goes. It keeps every segment in which something
//! lived when it was taken: as a whole, so to empty one would win nothing. Live objects may have to
//! be written anew twice beside that: for the last checkpoint, and for the next one. So the
//! blocks that can be reserved shrink by half of what snapshots keep.
//!
//! Guarantees: `held` and `held_dead` are what `count_held` counts. A snapshot that would leave
//! less room than is reserved is refused.
//! Never: allocates, blocks, does I/O. Naming walks all segments.
//! Threads: under the lock of the space.

use super::{BUCKETS, Kept, PINNED_BUCKETS, SNAPSHOT_BUCKETS, Space, WITHHELD};
use crate::block::Segment;
use crate::error::StoreError;
use crate::space::segment::{SegmentTable, State};

impl Space {
    /// The pin is that of a snapshot from now on.
    ///
    /// Errors: `Full` if there would not be room enough for what is reserved.
    pub(crate) fn name_pin(&mut self, table: &SegmentTable, slot: u32) -> Result<(), StoreError> {
        self.pins.set_named(slot, true);
        let (held, _) = self.count_held(table);
        if self.promises.reserved > self.reservable_beside(held) {
            self.pins.set_named(slot, false);
            return Err(StoreError::Full);
        }
        self.names_changed(table);
        Ok(())
    }

    /// The pin is not that of a snapshot any more.
    pub(crate) fn unname_pin(&mut self, table: &SegmentTable, slot: u32) {
        self.pins.set_named(slot, false);
        self.names_changed(table);
    }

    fn names_changed(&mut self, table: &SegmentTable) {
        self.collection.is_exhausted = false;
        let (held, held_dead) = self.count_held(table);
        self.kept = self.kept.map(|kept| Kept { held, held_dead, ..kept });
        self.sort_buckets(table, &[BUCKETS, PINNED_BUCKETS, SNAPSHOT_BUCKETS]);
    }

    /// Segments that snapshots keep, and how many of them are Withheld.
    pub(super) fn count_held(&self, table: &SegmentTable) -> (u64, u64) {
        let newest = self.pins.newest_named();
        if newest == 0 {
            return (0, 0);
        }
        let (mut held, mut dead) = (0, 0);
        for segment in (0..self.frontier).map(Segment) {
            let sequence = table.sequence(segment);
            match table.state(segment) {
                State::Withheld => {
                    dead += u64::from(sequence <= self.pins.newest_named_of(table.stamp(segment)));
                }
                state if state.holds_blocks() => held += u64::from(sequence <= newest),
                _ => {}
            }
        }
        (held + dead, dead)
    }

    /// In a log that is opened again: takes a pin that covers the fillings up to `sequence`, for a
    /// snapshot (`is_named`) or a reader, and withholds those free segments that it `needs`. The
    /// pins of older checkpoints come first. None: too many pins.
    pub(crate) fn hold(
        &mut self,
        table: &SegmentTable,
        sequence: u64,
        is_named: bool,
        needs: impl Fn(Segment) -> bool,
    ) -> Option<u32> {
        let slot = self.pins.add(sequence)?;
        self.pins.set_named(slot, is_named);
        let reopened_at = self.pins.now();
        self.kept = self.kept.map(|kept| Kept { reopened_at, ..kept });
        for segment in (0..self.frontier).map(Segment).filter(|&segment| needs(segment)) {
            match table.state(segment) {
                State::Bare => self.change(table, segment, State::Withheld),
                State::Withheld => {}
                _ => continue,
            }
            self.lists.unlink(segment);
            table.set_stamp(segment, reopened_at);
            self.lists.push_back(WITHHELD, segment);
        }
        self.names_changed(table);
        Some(slot)
    }
}
