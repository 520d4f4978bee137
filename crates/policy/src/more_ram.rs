//! More RAM: with which budget a program would wait clearly less, by what it was seen to wait for.
//!
//! The ghost knows how many objects have left RAM since the one that a fault reads left it. With
//! room for as many more objects it would still have been there: that is the stack distance of the
//! touch (Mattson and others, 1970), as far as the queues behave like a list that the least
//! recently used object leaves. So each wait for the store is counted by how much larger the budget
//! would have to be, in steps of a part of it. Waits for objects that the ghost has forgotten stay,
//! and so do those for objects that were compressed in RAM. So the answer promises less than there
//! is.
//!
//! Pure: observations in, a decision out.

use crate::whole;

/// How many steps are told apart.
pub const STEPS: usize = 16;
/// A step is the budget divided by this.
const STEP_PART: u64 = 8;
/// With no more of its run time than this, in millionths, nothing needs to be better.
pub const GOOD_PPM: u64 = 50_000;
/// A millionth of all, so many times.
const WHOLE_PPM: u64 = 1_000_000;
/// Budgets are told in whole ones of this.
const MIB: u64 = 1 << 20;

/// Which step would have kept an object for which the budget lacked so many bytes; none if even the
/// largest is too small.
pub fn step(lacking_bytes: u64, budget_bytes: u64) -> Option<u8> {
    let step = lacking_bytes.saturating_mul(STEP_PART) / budget_bytes.max(1);
    u8::try_from(step).ok().filter(|&step| usize::from(step) < STEPS)
}

/// The waits of a program for want of RAM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    /// The share of its run time, in millionths; of the thread that waited most.
    pub share_ppm: u64,
    /// The waits of all threads together, in nanoseconds.
    pub stall_ns: u64,
    /// Of them those that a budget larger by so many steps, and no fewer, would have spared.
    pub spared_ns: [u64; STEPS],
}

impl Waited {
    /// The waits since an earlier moment, which were this share of the run time since.
    pub fn since(&self, earlier: &Waited, share_ppm: u64) -> Waited {
        let spared_ns = core::array::from_fn(|step| {
            self.spared_ns[step].saturating_sub(earlier.spared_ns[step])
        });
        Waited { share_ppm, stall_ns: self.stall_ns.saturating_sub(earlier.stall_ns), spared_ns }
    }
}

/// A budget, and the share of its run time that a program would wait with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Better {
    /// The budget, in bytes.
    pub budget_bytes: u64,
    /// The share, in millionths.
    pub share_ppm: u64,
}

/// The least budget that makes the waits good; `all_bytes` keeps everything in RAM, if that is
/// known. None if they are good, or nothing is known to make them so.
pub fn better(budget_bytes: u64, all_bytes: Option<u64>, waited: &Waited) -> Option<Better> {
    if waited.share_ppm <= GOOD_PPM {
        return None;
    }
    let all = all_bytes.filter(|&all| all > budget_bytes);
    let all = all.map(|budget_bytes| Better { budget_bytes, share_ppm: 0 });
    let mut spared_ns = 0;
    let steps = waited.spared_ns.iter().zip(1..).map(|(step_ns, steps)| {
        spared_ns += step_ns;
        let budget_bytes = budget_bytes + steps * budget_bytes / STEP_PART;
        let budget_bytes = budget_bytes.next_multiple_of(MIB);
        Better { budget_bytes, share_ppm: share_without(waited, spared_ns) }
    });
    let first = steps.into_iter().find(|step| step.share_ppm <= GOOD_PPM);
    first.into_iter().chain(all).min_by_key(|better| better.budget_bytes)
}

/// The share if so many nanoseconds of the waits were not there. The run time is shorter by them,
/// too.
fn share_without(waited: &Waited, spared_ns: u64) -> u64 {
    let share = waited.share_ppm.min(WHOLE_PPM) as f64 / WHOLE_PPM as f64;
    let rest = 1.0 - spared_ns.min(waited.stall_ns) as f64 / waited.stall_ns.max(1) as f64;
    let waits = share * rest;
    let run = (1.0 - share + waits).max(1e-9);
    whole(waits / run * WHOLE_PPM as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 64 * MIB;

    fn waited(share_ppm: u64, spared_ns: &[u64]) -> Waited {
        let mut all = Waited { share_ppm, stall_ns: 1000, spared_ns: [0; STEPS] };
        all.spared_ns[..spared_ns.len()].copy_from_slice(spared_ns);
        all
    }

    #[test]
    fn the_least_budget_that_makes_the_waits_good_is_found() {
        // 45 of 100 wait, and 55 compute: with a twentieth of the waits 2.25 of 57.25 do.
        let found = better(BUDGET, Some(130 * MIB), &waited(450_000, &[0, 950]));
        let share_ppm = (2.25 / 57.25 * 1e6) as u64;
        assert_eq!(found, Some(Better { budget_bytes: 80 * MIB, share_ppm }));
        let late = waited(450_000, &[100, 100, 100, 100]);
        let all = better(BUDGET, Some(130 * MIB), &late);
        assert_eq!(all, Some(Better { budget_bytes: 130 * MIB, share_ppm: 0 }));
    }

    #[test]
    fn what_keeps_everything_is_enough() {
        let mut seen = waited(900_000, &[]);
        seen.spared_ns[15] = 1000;
        assert_eq!(
            better(BUDGET, Some(100 * MIB), &seen).map(|it| it.budget_bytes),
            Some(100 * MIB)
        );
        assert_eq!(better(BUDGET, None, &seen).map(|it| it.budget_bytes), Some(3 * BUDGET));
    }

    #[test]
    fn where_nothing_is_known_nothing_is_promised() {
        assert_eq!(better(BUDGET, None, &waited(900_000, &[500])), None);
        assert_eq!(better(BUDGET, Some(BUDGET / 2), &waited(900_000, &[])), None, "less RAM");
        assert_eq!(better(BUDGET, Some(2 * BUDGET), &waited(GOOD_PPM, &[])), None, "it is good");
    }

    #[test]
    fn a_step_is_an_eighth_of_the_budget() {
        assert_eq!(
            [0, 1, 8, 9, 16].map(|eighths| step(eighths * BUDGET / 8, BUDGET)),
            [Some(0), Some(1), Some(8), Some(9), None]
        );
        assert_eq!(step(u64::MAX, 1), None);
    }
}
