//! Reopening: the space of a log that was saved and is opened again.
//!
//! Guarantees: what lives is in the buckets, to be read and collected. All else is Bare: whether
//! the device still has the space of a free segment is not known, so it is assured again before it
//! is used.
//! Never: allocates, blocks, does I/O.
//! Threads: under the lock of the space, before anyone else has the store.

use super::{BARE, Kept, Space};
use crate::block::Segment;
use crate::segment::{STATES, SegmentTable, State};

impl Space {
    /// The segments below `frontier` are what the table says: Written, Lost, or Bare. The last
    /// filling was `sequence`. From here on pins are those of checkpoints.
    pub(crate) fn reopen(&mut self, table: &SegmentTable, frontier: u32, sequence: u64) {
        self.frontier = frontier;
        self.sequence = sequence;
        self.kept = Some(Kept::default());
        self.counts = [0; STATES];
        self.counts[State::Bare as usize] = self.geometry.segments - frontier;
        for segment in (0..frontier).map(Segment) {
            let state = table.state(segment);
            self.counts[state as usize] += 1;
            self.ever_filled += u32::from(table.sequence(segment) > 0);
            match state {
                State::Written => self.put_in_bucket(table, segment),
                State::Bare => self.lists.push_back(BARE, segment),
                _ => {}
            }
        }
    }
}
