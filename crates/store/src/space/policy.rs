//! Policy: when to collect, what to collect, when to let the log grow. Numbers go in, decisions
//! come out; nothing is changed (the cleaner of SSDAlloc, section 3.5).
//!
//! Guarantees: the cost of a decision depends on the number of candidates only.
//! Never: allocates, blocks, does I/O, reads a clock.
//! Threads: plain functions.

/// Which segment to collect, of their live units: the one of which the least lives, as it is the
/// least to move. None if none would win anything. Live units may be more than the capacity.
pub(crate) fn victim<S>(segments: impl Iterator<Item = (S, u32)>, capacity: u32) -> Option<S> {
    let least = segments.filter(|(_, live)| *live < capacity).min_by_key(|(_, live)| *live);
    least.map(|(segment, _)| segment)
}

/// How the log fills its space; all in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Occupancy {
    /// Free, their space assured.
    pub(crate) ready: u64,
    /// Not free.
    pub(crate) used: u64,
    /// Whose space is not assured yet, and may be tried.
    pub(crate) growable: u64,
    /// That the live units would fill.
    pub(crate) live: u64,
    /// That must be assured for what is reserved.
    pub(crate) needed: u64,
    /// That only the survivor head may take.
    pub(crate) reserve: u64,
    /// That the last checkpoint may need: those that were used when it was made.
    pub(crate) kept: u64,
    /// That are left to the next checkpoint.
    pub(crate) for_checkpoint: u64,
    /// That are left for copies of what the last checkpoint keeps.
    pub(crate) for_copies: u64,
}

/// Segments more than twice the live ones that the log may use before collection starts, so that
/// small heaps do not collect all the time.
const SPARSE_SLACK_SEGMENTS: u64 = 64;

/// Free segments beyond the reserve below which collection starts: enough to be ahead of writers.
const LOW_SEGMENTS: u64 = 4;

/// Free segments that stay assured when the rest is discarded, beyond the reserve, at least.
const KEPT_SEGMENTS: u64 = 32;

impl Occupancy {
    /// Whether the log should take more space from the device rather than collect: while it
    /// holds less than it was promised, or uses less than twice what lives.
    pub(crate) fn may_grow(&self) -> bool {
        self.growable > 0
            && (self.used + self.ready < self.needed
                || self.used.saturating_sub(self.kept) < 2 * self.live + SPARSE_SLACK_SEGMENTS)
    }

    /// Whether the fresh head may take a segment: the last ones are the survivors'.
    pub(crate) fn fresh_may_open(&self) -> bool {
        self.has_free(0)
    }

    /// Whether segments should be emptied now.
    pub(crate) fn must_collect(&self) -> bool {
        !self.has_free(LOW_SEGMENTS) && !self.may_grow()
    }

    /// Whether more than so many segments are free beyond those that are left to others.
    fn has_free(&self, segments: u64) -> bool {
        let least = self.reserve + self.for_checkpoint + segments;
        self.ready > least && self.ready + self.growable > least + self.for_copies
    }

    /// Free segments whose space may be given back, if so many are kept to be taken soon.
    pub(crate) fn discardable(&self, kept: u64) -> u64 {
        let kept = self.reserve + LOW_SEGMENTS + kept.max(KEPT_SEGMENTS);
        let idle = self.ready.saturating_sub(kept);
        idle.min((self.used + self.ready).saturating_sub(self.needed))
    }
}

/// How many of the segments that a checkpoint keeps should be emptied before the next one, which
/// then lets go of them: as many as a log of so many `segments` uses beyond twice what lives.
pub(crate) fn to_empty(segments: u64, used: u64, live: u64) -> u64 {
    used.saturating_sub(2 * live + SPARSE_SLACK_SEGMENTS.min(segments / COPIES))
}

/// Parts of a durable log of which one is left for copies: a checkpoint frees only segments in which
/// nothing lives. Where writes at random leave something alive in each, as many must be emptied
/// before it as are filled. The copies take space until it is durable.
const COPIES: u64 = 8;
/// Parts of it of which one at least is free for writes after a checkpoint that has made room.
const WRITES: u64 = 16;

/// Segments of a durable log that are left for copies, if it can have so many, and `live` of them
/// would hold all that lives, as two checkpoints may. `dead` would hold the rest: no more can be
/// won.
pub(crate) fn for_copies(segments: u64, live: u64, dead: u64, reserve: u64) -> u64 {
    let most = segments.saturating_sub(2 * live + reserve + HEADS);
    (segments / COPIES).max(2).min(dead).min(most)
}

/// Segments that are to be free for writes after a checkpoint that has made room, the same way.
pub(crate) fn for_writes(segments: u64) -> u64 {
    (segments / WRITES).max(2)
}

/// Segments that are free at most after a checkpoint that has made room, while `live` of them would
/// hold all that lives: to fill segments to more than three quarters would cost too many copies.
pub(crate) fn most_free(segments: u64, live: u64) -> u64 {
    segments.saturating_sub(live * 4 / 3)
}

/// Segments that the next checkpoint may fill, of so many bytes that can have changed in RAM, while
/// so many blocks are reserved. It writes some objects a second time.
pub(crate) fn for_checkpoint(segments: u64, reserved: u64, data_blocks: u64) -> u64 {
    segments.min((reserved * 5 / 4).div_ceil(data_blocks))
}

/// Blocks that may be reserved out of ten: the tenth one is what collection works with.
const RESERVABLE_OF_TEN: u64 = 9;

/// Each head fills a segment.
const HEADS: u64 = 2;

/// Segments beside those of reserved blocks: the survivors' reserve, and the one that each of the
/// two heads is filling.
///
/// That is enough for collection to go on always. It ends only when no segment on the device has a
/// dead unit left, none is on its way there, and no more than the reserve is free. Then all others
/// but the two open ones are full of what lives; but what is reserved does not fill them.
fn fixed_segments(reserve: u32) -> u64 {
    u64::from(reserve) + HEADS
}

/// Segments that must be assured so that `blocks` reserved blocks can always be stored:
/// `fixed_segments`, and ten ninths of what the blocks fill.
pub(crate) fn needed_segments(blocks: u64, data_blocks: u64, reserve: u32) -> u64 {
    match blocks {
        0 => 0,
        _ => (blocks * 10).div_ceil(data_blocks * RESERVABLE_OF_TEN) + fixed_segments(reserve),
    }
}

/// Blocks that can be reserved in `segments` segments: the inverse of `needed_segments`.
pub(crate) fn reservable_blocks(segments: u64, data_blocks: u64, reserve: u32) -> u64 {
    segments.saturating_sub(fixed_segments(reserve)) * data_blocks * RESERVABLE_OF_TEN / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_is_collected_unless_nothing_is_won() {
        let chosen = |live: &[u32]| victim(live.iter().copied().enumerate(), 255);
        assert_eq!(chosen(&[200, 3, 100]), Some(1));
        assert_eq!(chosen(&[255]), None);
        assert_eq!(chosen(&[300]), None, "mixed packing");
        assert_eq!(chosen(&[]), None);
    }

    const NONE: Occupancy = Occupancy {
        ready: 0,
        used: 0,
        growable: 0,
        live: 0,
        needed: 0,
        reserve: 0,
        kept: 0,
        for_checkpoint: 0,
        for_copies: 0,
    };

    #[test]
    fn collection_starts_only_when_free_segments_run_low_and_growth_is_spent() {
        let calm = Occupancy {
            ready: 100,
            used: 500,
            growable: 1000,
            live: 100,
            needed: 200,
            reserve: 2,
            ..NONE
        };
        assert!(!calm.must_collect(), "free segments are plenty");
        let low = Occupancy { ready: 2, ..calm };
        assert!(low.must_collect() && !low.may_grow(), "five times the live: collect");
        let young = Occupancy { used: 263, ..low };
        assert!(young.may_grow() && !young.must_collect(), "below twice the live: grow");
        let full = Occupancy { growable: 0, ..young };
        assert!(full.must_collect(), "nowhere to grow to");
        let promised = Occupancy { needed: 600, ..low };
        assert!(promised.may_grow(), "promised space is taken first");
    }

    #[test]
    fn what_is_left_for_copies_is_an_eighth_and_never_of_use_to_nobody() {
        assert_eq!(for_copies(1000, 300, 400, 8), 125);
        assert_eq!(for_copies(1000, 300, 20, 8), 20, "little can be won");
        assert_eq!(for_copies(1000, 450, 400, 8), 90, "two times what lives has room");
        assert_eq!(for_copies(16, 2, 9, 2), 2);
        let full = Occupancy { ready: 100, used: 900, reserve: 8, for_copies: 90, ..NONE };
        assert!(full.fresh_may_open() && full.must_collect(), "writers learn of it in time");
        let fuller = Occupancy { ready: 98, ..full };
        assert!(!fuller.fresh_may_open() && fuller.must_collect());
        assert!(Occupancy { growable: 50, ..fuller }.fresh_may_open(), "it can grow");
    }

    #[test]
    fn a_checkpoint_leaves_segments_a_quarter_empty_and_needs_no_more_than_all_that_is_there() {
        assert_eq!((most_free(1000, 300), most_free(100, 90)), (600, 0));
        assert_eq!(for_checkpoint(400, 64 * 63, 63), 80);
        assert_eq!(for_checkpoint(40, 64 * 63, 63), 40);
        assert_eq!((to_empty(4096, 900, 300), to_empty(16, 10, 1)), (236, 6));
    }

    #[test]
    fn what_is_promised_or_soon_needed_is_not_discarded() {
        let idle =
            Occupancy { ready: 100, used: 10, growable: 0, live: 5, needed: 0, reserve: 2, ..NONE };
        assert_eq!(idle.discardable(0), 62);
        assert_eq!(idle.discardable(50), 44);
        assert_eq!(idle.discardable(1000), 0);
        assert_eq!(Occupancy { needed: 100, ..idle }.discardable(0), 10);
        assert_eq!(Occupancy { needed: 200, ..idle }.discardable(0), 0);
        assert_eq!(Occupancy { ready: 20, ..idle }.discardable(0), 0);
    }

    #[test]
    fn a_log_full_of_what_is_reserved_has_always_something_to_collect() {
        for (segments, reserve) in [(8, 2), (64, 3), (180, 3), (4096, 8)] {
            let blocks = reservable_blocks(segments, 63, reserve);
            let full = blocks / 63;
            assert!(u64::from(reserve) + 2 + full < segments, "of {segments} all could be live");
        }
    }

    #[test]
    fn what_is_reservable_is_what_the_segments_can_be_needed_for() {
        for segments in [10, 100, 1000, 4_000_000] {
            let blocks = reservable_blocks(segments, 255, 7);
            assert!(needed_segments(blocks, 255, 7) <= segments);
            assert!(needed_segments(blocks + 255, 255, 7) > segments || blocks == 0);
        }
        assert_eq!(needed_segments(0, 255, 7), 0);
    }
}
