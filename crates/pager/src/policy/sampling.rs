//! Sampling: which changed objects stay in the cache for one more round, so that unchanged ones,
//! which cost no write, leave before them (FlashVM, section 4.2.1).
//!
//! As in the paper the probability follows the write rate: of the changed objects that come to the
//! head of a queue the more stay, the fewer of those that left lately were changed. If nearly all
//! were, there is nothing that could leave in their place, and none stays.
//!
//! Never: keeps more than two numbers.

/// The part of those that left lately, in 65536ths, that the average forgets with each one.
const FORGOTTEN_PART: u32 = 256;
const WHOLE: u32 = 1 << 16;
/// So many of 256 changed objects stay if all others that left were unchanged.
const MOST: u32 = 230;

/// What left a cache lately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sampling {
    /// How many of those that left were changed, in 65536ths.
    changed: u32,
    /// Parts of an object, in 256ths, that may stay.
    credit: u32,
}

impl Sampling {
    /// Nothing has left: half of what leaves is taken to be changed.
    pub const fn new() -> Sampling {
        Sampling { changed: WHOLE / 2, credit: 0 }
    }

    /// Whether the next changed object stays.
    pub fn keeps(&mut self) -> bool {
        self.credit += (WHOLE - self.changed) * MOST / WHOLE;
        let keeps = self.credit >= 256;
        self.credit %= 256;
        keeps
    }

    /// An object has left.
    pub fn note(&mut self, is_changed: bool) {
        let more = if is_changed { WHOLE / FORGOTTEN_PART } else { 0 };
        self.changed = (self.changed - self.changed.div_ceil(FORGOTTEN_PART) + more).min(WHOLE);
    }
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::{Counts, Leaves, Replay, Terms, Touch};
    use super::*;

    #[test]
    fn the_more_is_written_the_fewer_stay() {
        let kept = |percent: u32| {
            let mut sampling = Sampling::new();
            (0..10_000).for_each(|index| sampling.note(index * 37 % 100 < percent));
            (0..1000).filter(|_| sampling.keeps()).count()
        };
        let kept = [0, 25, 50, 75, 100].map(kept);
        assert!(kept.is_sorted_by(|one, other| one > other), "{kept:?}");
        assert!(kept[0] > 850 && kept[4] < 20, "{kept:?}");
    }

    /// Three of four touches are of a fifth of the objects. Some of those are changed at each
    /// touch, or as many of all.
    fn play(samples: bool, changed_percent: u32, all: bool) -> Counts {
        const OBJECTS: u32 = 20_000;
        let terms = Terms { samples, scans: false, strides: false, ..Terms::new(5000) };
        let mut replay = Replay::new(terms).unwrap();
        let mut state = 7u64;
        let mut draw = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            ((state >> 33) % u64::from(below)) as u32
        };
        for index in 0..400_000 {
            if index == 100_000 {
                replay.forget_counts();
            }
            let object = match draw(4) {
                0 => draw(OBJECTS),
                _ => draw(OBJECTS / 5),
            };
            let is_changed = object * 37 % 100 < changed_percent && (all || object < OBJECTS / 5);
            replay.touch(&Touch {
                object,
                page: object,
                bytes: 4096,
                leaves: if is_changed { Leaves::Dirty } else { Leaves::Clean },
                is_new: false,
                is_led: false,
                lane: 0,
            });
        }
        replay.counts()
    }

    #[test]
    fn less_is_written_and_hardly_more_is_read() {
        // What is used often is changed; as much of all; all.
        let cases = [(50, false, 50, 101), (100, false, 50, 101), (10, true, 95, 104)];
        for (percent, all, written_most, missed_most) in
            [&cases[..], &[(100, true, 101, 101)]].concat()
        {
            let [usual, sampled] = [false, true].map(|samples| play(samples, percent, all));
            println!("{percent} % changed: {usual:?}, sampled {sampled:?}");
            assert!(sampled.written * 100 <= usual.written * written_most, "{percent}, {all}");
            assert!(sampled.missed * 100 <= usual.missed * missed_most, "{percent}, {all}");
        }
    }
}
