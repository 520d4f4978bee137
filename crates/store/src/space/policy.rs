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
    /// That are being emptied.
    pub(crate) collecting: u64,
    /// In which nothing lives, and that are free once the pins of now have ended.
    pub(crate) withheld: u64,
    /// That the last checkpoint may need: those that were used when it was made.
    pub(crate) kept: u64,
    /// That snapshots keep.
    pub(crate) held: u64,
    /// That the next checkpoint may fill.
    pub(crate) for_checkpoint: u64,
    /// Whether there will be one, and it is not being made yet: in a durable log.
    pub(crate) is_before_checkpoint: bool,
}

/// Segments more than twice the live ones that the log may use before collection starts, so that
/// small heaps do not collect all the time.
const SPARSE_SLACK_SEGMENTS: u64 = 64;

/// Free segments beyond the reserve below which collection starts: enough to be ahead of writers.
const LOW_SEGMENTS: u64 = 4;

/// Free segments that stay assured when the rest is discarded, beyond the reserve, at least.
const KEPT_SEGMENTS: u64 = 32;

/// Parts of a durable log of which one is left for copies. A checkpoint frees only segments in
/// which nothing lives. Where writes at random leave something alive in each, as many must be
/// emptied before it as are filled; and the copies take space until it is durable.
const COPIES: u64 = 8;

/// Parts of it of which one at least is free for writes after a checkpoint that has made room.
const WRITES: u64 = 16;

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
        let (for_checkpoint, for_copies) = match self.is_before_checkpoint {
            true => (self.for_checkpoint, self.for_copies()),
            false => (0, 0),
        };
        let least = self.reserve + for_checkpoint + segments;
        self.ready > least && self.ready + self.growable > least + for_copies
    }

    /// Free segments whose space may be given back, if so many are kept to be taken soon.
    pub(crate) fn discardable(&self, kept: u64) -> u64 {
        let kept = self.reserve + LOW_SEGMENTS + kept.max(KEPT_SEGMENTS);
        let idle = self.ready.saturating_sub(kept);
        idle.min((self.used + self.ready).saturating_sub(self.needed))
    }

    /// Free segments beside those that collection works with.
    pub(crate) fn spare(&self) -> u64 {
        (self.ready + self.growable).saturating_sub(self.collecting + self.reserve + 1)
    }

    /// Segments that no snapshot keeps.
    fn changeable(&self) -> u64 {
        (self.ready + self.used + self.growable).saturating_sub(self.held)
    }

    /// Segments that are left for copies: no more than what is dead would fill, as more cannot be
    /// won; and room stays for two times what lives, which two checkpoints may need.
    fn for_copies(&self) -> u64 {
        let dead = self.used.saturating_sub(self.withheld + self.live);
        let most = self.changeable().saturating_sub(2 * self.live + self.reserve + HEADS);
        (self.changeable() / COPIES).max(2).min(dead).min(most)
    }

    /// Segments that are free once the next checkpoint is durable, if nothing more is written.
    pub(crate) fn free_after_checkpoint(&self) -> u64 {
        self.ready + self.growable + self.collecting + self.withheld
    }

    /// How many that should be: so many that the one after it has its room, and writes before that
    /// one. 0: there are enough. Segments are not filled to more than three quarters: that would
    /// take too many copies.
    pub(crate) fn wanted_after_checkpoint(&self) -> u64 {
        let most = self.changeable().saturating_sub(self.live * 4 / 3);
        let writes = (self.changeable() / WRITES).max(2);
        let least = self.reserve + self.for_checkpoint + self.for_copies() + writes;
        let is_enough = self.free_after_checkpoint() >= least.min(most);
        if is_enough { 0 } else { most.min(least + writes) }
    }

    /// How many of the segments that a checkpoint keeps should be emptied before the next one,
    /// which then lets go of them: as many as are used beyond twice what lives. In `held_dead` of
    /// them nothing lives, but snapshots keep them.
    pub(crate) fn must_empty(&self, held_dead: u64) -> u64 {
        let slack = SPARSE_SLACK_SEGMENTS.min(self.changeable() / COPIES);
        self.used.saturating_sub(held_dead + 2 * self.live + slack)
    }
}

/// Segments that the next checkpoint may fill, if so many can have changed in RAM, and so many
/// blocks are reserved. It writes some objects a second time.
pub(crate) fn filled_by_checkpoint(segments: u64, reserved: u64, data_blocks: u64) -> u64 {
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
        collecting: 0,
        withheld: 0,
        kept: 0,
        held: 0,
        for_checkpoint: 0,
        is_before_checkpoint: false,
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
    fn an_eighth_is_left_for_copies_but_nothing_that_could_not_be_won() {
        let durable = Occupancy { ready: 200, used: 800, live: 300, reserve: 8, ..NONE };
        let full = |ready, live| Occupancy {
            ready,
            used: 1000 - ready,
            live,
            is_before_checkpoint: true,
            ..durable
        };
        assert_eq!(full(200, 300).for_copies(), 125);
        assert_eq!(full(650, 330).for_copies(), 20, "little is dead");
        assert_eq!(full(200, 450).for_copies(), 90, "two times what lives has room");
        assert!(full(134, 300).fresh_may_open() && full(134, 300).must_collect(), "in time");
        assert!(!full(133, 300).fresh_may_open());
        assert!(Occupancy { growable: 50, ..full(100, 300) }.fresh_may_open(), "it can grow");
        assert!(Occupancy { is_before_checkpoint: false, ..full(9, 300) }.fresh_may_open());
        assert!(Occupancy { withheld: 991, ..full(9, 0) }.fresh_may_open(), "all is dead");
    }

    #[test]
    fn a_checkpoint_of_a_nearly_full_log_leaves_room_for_the_next_one() {
        let log =
            Occupancy { ready: 300, used: 700, live: 300, reserve: 8, for_checkpoint: 100, ..NONE };
        assert_eq!(log.wanted_after_checkpoint(), 0, "there is enough");
        let fuller = Occupancy { ready: 200, used: 800, ..log };
        assert_eq!(fuller.wanted_after_checkpoint(), 8 + 100 + 125 + 62 + 62);
        let freed = Occupancy { withheld: 100, ..fuller };
        assert_eq!(freed.wanted_after_checkpoint(), 0, "enough will be free");
        let packed = Occupancy { live: 600, ..fuller };
        assert_eq!(packed.wanted_after_checkpoint(), 0, "they are three quarters full");
        assert_eq!((fuller.must_empty(0), fuller.must_empty(50)), (136, 86));
        let small = Occupancy { ready: 6, used: 10, live: 1, ..NONE };
        assert_eq!(small.must_empty(0), 6);
        assert_eq!(filled_by_checkpoint(400, 64 * 63, 63), 80);
        assert_eq!(filled_by_checkpoint(40, 64 * 63, 63), 40);
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
