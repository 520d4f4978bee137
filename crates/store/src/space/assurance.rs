//! Assurance: the device is asked for the space of free segments, or gets it back.
//!
//! Guarantees: `Store` asks for whole runs of neighbouring segments; space that is promised is
//! never given back.
//! Never: does the I/O itself; allocates, blocks.
//! Threads: under the lock of the space.

use deepheap_sys::narrow::Narrow;

use super::{BARE, GROWTH_BYTES, GROWTH_MOST_BYTES, READY, Space};
use crate::block::Segment;
use crate::space::segment::{SegmentTable, State};

/// Fillings that have to pass before a device that refused space is asked again.
const GROWTH_PAUSE_FILLINGS: u64 = 64;

/// A run of segments that are neighbours by their numbers and on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) first: Segment,
    pub(crate) segments: u32,
}

impl Run {
    fn iter(self) -> impl DoubleEndedIterator<Item = Segment> {
        (self.first.0..self.first.0 + self.segments).map(Segment)
    }

    /// The segment below `end` that would prolong the run.
    fn next(self, table: &SegmentTable, end: u32) -> Option<Segment> {
        let next = Segment(self.first.0 + self.segments);
        (next.0 < end && table.is_followed(Segment(next.0 - 1))).then_some(next)
    }
}

impl Space {
    /// Takes Bare segments out to have their space assured; they are Growing until `end_growth`.
    /// So many are lacking.
    pub(crate) fn begin_growth(&mut self, table: &SegmentTable, missing: u64) -> Option<Run> {
        debug_assert!(!self.growth.is_under_way);
        let of_bytes = |bytes: usize| (bytes / self.geometry.segment_bytes()).to_u32();
        let growth = match self.growth.segments < of_bytes(GROWTH_BYTES) {
            // The device has refused more.
            true => self.growth.segments,
            false => {
                let missing = u32::try_from(missing).unwrap_or(u32::MAX);
                missing.clamp(self.growth.segments, of_bytes(GROWTH_MOST_BYTES))
            }
        };
        let run = match self.lists.front(BARE) {
            Some(first) => {
                let mut run = Run { first, segments: 1 };
                while run.segments < growth
                    && let Some(next) = run.next(table, self.frontier)
                    && table.state(next) == State::Bare
                {
                    run.segments += 1;
                }
                run.iter().for_each(|segment| self.lists.unlink(segment));
                run
            }
            None => {
                let segments = growth.min(self.geometry.segments - self.frontier);
                let first = Segment(self.frontier);
                self.frontier += segments;
                Run { first, segments }
            }
        };
        if run.segments == 0 {
            return None;
        }
        run.iter().for_each(|segment| self.change(table, segment, State::Growing));
        self.growth.is_under_way = true;
        Some(run)
    }

    /// The device answered. False: it refused even one segment.
    pub(crate) fn end_growth(&mut self, table: &SegmentTable, run: Run, assured: bool) -> bool {
        self.growth.is_under_way = false;
        self.collection.is_exhausted = false;
        // Backwards and to the front, so that the lowest is taken first.
        for segment in run.iter().rev() {
            let to = if assured { State::Ready } else { State::Bare };
            self.change(table, segment, to);
            table.set_stamp(segment, self.discards.tick);
            self.lists.push_front(if assured { READY } else { BARE }, segment);
        }
        if assured {
            self.growth.segments = (GROWTH_BYTES / self.geometry.segment_bytes()).to_u32();
            self.growth.paused_until = 0;
            return true;
        }
        self.growth.segments = (self.growth.segments / 4).max(1);
        if run.segments == 1 {
            self.growth.paused_until = self.fillings.last + GROWTH_PAUSE_FILLINGS;
        }
        run.segments > 1
    }

    /// Takes out a run of segments that have been free for long, at most `max`, and not of those
    /// that are `kept`; they are Discarding until `end_discard`.
    pub(crate) fn begin_discard(
        &mut self,
        table: &SegmentTable,
        max: u32,
        kept: u64,
        live_units: u64,
    ) -> Option<Run> {
        let discardable = self.occupancy(live_units).discardable(kept).min(max.into()).to_u32();
        let oldest = self.lists.back(READY).filter(|_| discardable > 0)?;
        let idle = |segment| {
            table.state(segment) == State::Ready && self.discards.is_idle(table.stamp(segment))
        };
        if !idle(oldest) {
            return None;
        }
        let mut run = Run { first: oldest, segments: 1 };
        while run.segments < discardable
            && let Some(next) = run.next(table, self.frontier)
            && idle(next)
        {
            run.segments += 1;
        }
        while run.segments < discardable
            && let Some(before) = run.first.0.checked_sub(1).map(Segment)
            && idle(before)
            && table.is_followed(before)
        {
            run = Run { first: before, segments: run.segments + 1 };
        }
        for segment in run.iter() {
            self.lists.unlink(segment);
            self.change(table, segment, State::Discarding);
        }
        Some(run)
    }

    /// The device has been told.
    pub(crate) fn end_discard(&mut self, table: &SegmentTable, run: Run) {
        for segment in run.iter() {
            self.change(table, segment, State::Bare);
            self.lists.push_back(BARE, segment);
        }
    }
}
