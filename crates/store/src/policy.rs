//! Policy: when to collect, what to collect, when to let the log grow. Pure: numbers in,
//! decisions out; the shape is SSDAlloc 3.5's cleaner with the victim choice of LFS.
//!
//! Guarantees: the cost of a decision depends on the number of candidates only.
//! Never: allocates, blocks, does I/O, reads a clock.
//! Threads: plain functions.

/// Which segment to collect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VictimPolicy {
    /// The one of which the least lives: the least to move now.
    Greedy,
    /// The one with the best space won times age over space handled: leaves young, half-dead
    /// segments time to die further, and takes old ones that will not (LFS's cost-benefit).
    CostBenefit,
}

/// A segment that could be collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    /// Units that would have to be moved; may be more than the capacity.
    pub(crate) live: u32,
    /// Units that the segment can hold.
    pub(crate) capacity: u32,
    /// Segments begun since this one was.
    pub(crate) age: u64,
}

impl VictimPolicy {
    /// The index of the best candidate; none if no candidate would win anything.
    pub(crate) fn choose(self, candidates: impl Iterator<Item = Candidate>) -> Option<usize> {
        let worth = |candidate: Candidate| -> Option<f64> {
            let dead = candidate.capacity.saturating_sub(candidate.live);
            if dead == 0 {
                return None;
            }
            Some(match self {
                Self::Greedy => dead as f64,
                // Reading costs the whole segment, writing its live part.
                Self::CostBenefit => {
                    dead as f64 * (candidate.age + 1) as f64
                        / (2 * candidate.capacity - dead) as f64
                }
            })
        };
        candidates
            .enumerate()
            .filter_map(|(index, candidate)| worth(candidate).map(|worth| (index, worth)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(index, _)| index)
    }
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
}

/// Segments more than twice the live ones that the log may use before collection starts, so that
/// small heaps do not collect all the time.
const SPARSE_SLACK_SEGMENTS: u64 = 64;

/// Free segments beyond the reserve below which collection starts: enough to be ahead of writers.
const LOW_SEGMENTS: u64 = 4;

/// Free segments that stay assured when the rest is discarded, beyond the reserve.
const KEPT_SEGMENTS: u64 = 32;

impl Occupancy {
    /// Whether the log should take more space from the device rather than collect: while it
    /// holds less than it was promised, or uses less than twice what lives.
    pub(crate) fn may_grow(&self) -> bool {
        self.growable > 0
            && (self.used + self.ready < self.needed
                || self.used < 2 * self.live + SPARSE_SLACK_SEGMENTS)
    }

    /// Whether the fresh head may take a segment: the last ones are the survivors'.
    pub(crate) fn fresh_may_open(&self) -> bool {
        self.ready > self.reserve
    }

    /// Whether segments should be emptied now.
    pub(crate) fn must_collect(&self) -> bool {
        self.ready <= self.reserve + LOW_SEGMENTS && !self.may_grow()
    }

    /// Free segments whose space may be given back.
    pub(crate) fn discardable(&self) -> u64 {
        let idle = self.ready.saturating_sub(self.reserve + LOW_SEGMENTS + KEPT_SEGMENTS);
        idle.min((self.used + self.ready).saturating_sub(self.needed))
    }
}

/// Blocks that may be reserved out of ten: the tenth one is what collection works with.
const RESERVABLE_OF_TEN: u64 = 9;

/// Segments that must be assured so that `blocks` reserved blocks can always be stored:
/// `fixed` (heads, buffers, the survivors' reserve) and ten ninths of what the blocks fill.
pub(crate) fn needed_segments(blocks: u64, data_blocks: u64, fixed: u64) -> u64 {
    match blocks {
        0 => 0,
        _ => (blocks * 10).div_ceil(data_blocks * RESERVABLE_OF_TEN) + fixed,
    }
}

/// Blocks that can be reserved in `segments` segments: the inverse of `needed_segments`.
pub(crate) fn reservable_blocks(segments: u64, data_blocks: u64, fixed: u64) -> u64 {
    segments.saturating_sub(fixed) * data_blocks * RESERVABLE_OF_TEN / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(live: u32, age: u64) -> Candidate {
        Candidate { live, capacity: 255, age }
    }

    #[test]
    fn greedy_takes_the_emptiest() {
        let all = [candidate(200, 9), candidate(3, 0), candidate(100, 99)];
        assert_eq!(VictimPolicy::Greedy.choose(all.into_iter()), Some(1));
    }

    #[test]
    fn cost_benefit_prefers_the_old_among_the_similar_and_the_empty_among_the_old() {
        let similar = [candidate(120, 1), candidate(130, 1000)];
        assert_eq!(VictimPolicy::CostBenefit.choose(similar.into_iter()), Some(1));
        let old = [candidate(250, 1000), candidate(20, 1000)];
        assert_eq!(VictimPolicy::CostBenefit.choose(old.into_iter()), Some(1));
    }

    #[test]
    fn nothing_is_won_from_the_fully_live() {
        for policy in [VictimPolicy::Greedy, VictimPolicy::CostBenefit] {
            assert_eq!(policy.choose([candidate(255, 7)].into_iter()), None);
            assert_eq!(policy.choose([candidate(300, 7)].into_iter()), None, "mixed packing");
            assert_eq!(policy.choose(core::iter::empty()), None);
        }
    }

    #[test]
    fn collection_starts_only_when_free_segments_run_low_and_growth_is_spent() {
        let calm =
            Occupancy { ready: 100, used: 500, growable: 1000, live: 100, needed: 200, reserve: 2 };
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
    fn what_is_promised_or_soon_needed_is_not_discarded() {
        let idle = Occupancy { ready: 100, used: 10, growable: 0, live: 5, needed: 0, reserve: 2 };
        assert_eq!(idle.discardable(), 62);
        assert_eq!(Occupancy { needed: 100, ..idle }.discardable(), 10);
        assert_eq!(Occupancy { needed: 200, ..idle }.discardable(), 0);
        assert_eq!(Occupancy { ready: 20, ..idle }.discardable(), 0);
    }

    #[test]
    fn what_is_reservable_is_what_the_segments_can_be_needed_for() {
        for segments in [10, 100, 1000, 4_000_000] {
            let blocks = reservable_blocks(segments, 255, 9);
            assert!(needed_segments(blocks, 255, 9) <= segments);
            assert!(needed_segments(blocks + 255, 255, 9) > segments || blocks == 0);
        }
        assert_eq!(needed_segments(0, 255, 9), 0);
    }
}
