//! Tier: how much of a sequence goes to a slow second tier (HybridSwap, III.C and III.D).
//!
//! A sequence is a run of pages that came in order and leave together. Its head stays on the SSD,
//! as many pages as the program works through while the second tier finds the next ones; so a head
//! is not needed where the sequence goes on from pages that are in the second tier already. What is
//! shorter than its head stays on the SSD as a whole.
//!
//! Under a bound on stalls a page that goes to the second tier is paid for when it goes: with what
//! pages cost the program that came from there of late, beyond what the SSD alone costs it. It pays
//! from an *allowance* that grows with the run time, by the bound less 3 points. And no more go
//! than the second tier can take and give back in the time, so that the program seldom waits at
//! all. (The paper's shift ratio is that of now by the bound. It comes too late here: what went
//! there is waited for in the next round of a program, a long time after. So it only ends the
//! allowance.)

use core::time::Duration;

use crate::whole;

/// Pages of a head before anything is measured.
const HEAD_UNKNOWN: u64 = 64;
/// Pages that go to the second tier together at least: 64 KiB, of which the way there is a small
/// part on a disk that writes a log.
pub const RUN_LEAST: usize = 16;

/// The facts when a sequence leaves.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// How long a read of the second tier takes; 0 if none was made.
    pub disk_ns: u64,
    /// How long the program works on a page of a sequence; 0 if that is not known.
    pub page_ns: u64,
}

impl Seen {
    /// How many of the first of `pages` pages stay on the SSD: all of them if the rest would be
    /// too short, or more than what is allowed. The sequence may go on from pages that are in the
    /// second tier already.
    pub fn on_ssd(&self, pages: usize, goes_on: bool, allowed: u64) -> usize {
        let head = match (goes_on, self.disk_ns, self.page_ns) {
            (true, _, _) => 0,
            (_, 0, _) | (_, _, 0) => HEAD_UNKNOWN,
            (_, disk_ns, page_ns) => disk_ns.div_ceil(page_ns),
        };
        let head = usize::try_from(head).unwrap_or(usize::MAX);
        let is_short = pages < head.saturating_add(RUN_LEAST);
        if is_short || (pages - head) as u64 > allowed { pages } else { head }
    }
}

/// The assumed cost of a page of the second tier before some have come from there, ...
const UNKNOWN_NS: f64 = 250_000.0;
/// ... which counts as much as so many pages.
const UNKNOWN_PAGES: f64 = 128.0;
/// Run time after which what pages cost counts half. The higher of both means is believed: what
/// goes now is paid for later, perhaps at a price that has just risen.
const HALVES_OF_COST: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(3)];
/// The same of what the SSD alone costs, ...
const HALF_OF_ALONE: Duration = Duration::from_secs(5);
/// ... and of the share of now. While that is above the bound, nothing goes.
const HALF_OF_NOW: Duration = Duration::from_secs(2);
/// So far below the bound is aimed at, ...
const BELOW: f64 = 0.03;
/// ... or at this part of a small bound.
const AIM_LEAST: f64 = 0.7;
/// So much run time is saved up for at most, ...
const SAVED: Duration = Duration::from_millis(300);
/// ... or for so many pages: a sequence goes as a whole, or not at all.
const SAVED_PAGES: f64 = 256.0;

/// The second tier is busy for this part of the run time at most, and for the bound besides; ...
const BUSY: f64 = 0.7;
/// ... so long with a page that comes or goes, before any have, ...
const BUSY_UNKNOWN_NS: f64 = 150_000.0;
/// ... which counts as much as so many pages.
const BUSY_UNKNOWN_PAGES: f64 = 64.0;

/// Counts since the last look.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// How long the program ran.
    pub run_ns: u64,
    /// Of that it waited in faults.
    pub stall_ns: u64,
    /// Pages that came from the second tier.
    pub pages: u64,
    /// Pages that came from there or went there.
    pub moved: u64,
    /// How long the second tier was busy with them.
    pub busy_ns: u64,
}

/// Time for each of something, of late.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    ns: f64,
    count: f64,
}

impl Rate {
    /// So much more, of what counts half after `half` of run time, when `run_ns` have passed.
    fn add(&mut self, half: Duration, run_ns: f64, ns: f64, count: f64) {
        let kept = 0.5f64.powf(run_ns / half.as_nanos() as f64);
        self.ns = (kept * self.ns + ns).max(0.0);
        self.count = kept * self.count + count;
    }

    fn of_one(self) -> f64 {
        self.ns / self.count.max(1.0)
    }
}

/// Pages that may go to the second tier under a bound on stalls.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    bound: f64,
    /// Stalls by run time: of late, and while nothing comes from the second tier.
    now: Rate,
    alone: Rate,
    has_come: bool,
    /// The cost of pages of the second tier beyond that.
    costs: [Rate; 2],
    /// How long the second tier is busy with a page.
    busy: Rate,
    /// A part of a page that is left.
    rest: f64,
}

impl Allowance {
    /// Of a bound in millionths.
    pub fn new(bound_ppm: u32) -> Allowance {
        let unknown = Rate { ns: UNKNOWN_NS * UNKNOWN_PAGES, count: UNKNOWN_PAGES };
        Allowance {
            bound: f64::from(bound_ppm) / 1e6,
            now: Rate::default(),
            alone: Rate::default(),
            has_come: false,
            costs: [unknown; 2],
            busy: Rate { ns: BUSY_UNKNOWN_NS * BUSY_UNKNOWN_PAGES, count: BUSY_UNKNOWN_PAGES },
            rest: 0.0,
        }
    }

    /// How many pages more may go, and how many may be left to go at most.
    pub fn look(&mut self, ran: Ran) -> (u64, u64) {
        let (run_ns, stall_ns) = (ran.run_ns as f64, ran.stall_ns as f64);
        self.now.add(HALF_OF_NOW, run_ns, stall_ns, run_ns);
        // The program may still wait in this look for pages that came in the last one.
        if ran.pages == 0 && !self.has_come {
            self.alone.add(HALF_OF_ALONE, run_ns, stall_ns, run_ns);
        }
        self.has_come = ran.pages > 0;
        let aim = (self.bound - BELOW).max(self.bound * AIM_LEAST);
        let alone = self.alone.of_one().min(aim);
        for (cost, half) in self.costs.iter_mut().zip(HALVES_OF_COST) {
            cost.add(half, run_ns, stall_ns - alone * run_ns, ran.pages as f64);
        }
        let known =
            |cost: &Rate| (cost.ns + UNKNOWN_NS * UNKNOWN_PAGES) / (cost.count + UNKNOWN_PAGES);
        let page_ns = self.costs.iter().map(known).fold(1.0, f64::max);
        self.busy.add(HALVES_OF_COST[0], run_ns, ran.busy_ns as f64, ran.moved as f64);
        // A page that goes comes back.
        let most_busy = (BUSY + self.bound) / (2.0 * self.busy.of_one().max(1.0));
        let pages_in = |ns: f64| ns * most_busy.min((aim - alone) / page_ns);
        if self.now.of_one() > self.bound {
            return (0, 0);
        }
        let more = pages_in(run_ns) + self.rest;
        self.rest = more.fract();
        let most = pages_in(SAVED.as_nanos() as f64).max(SAVED_PAGES);
        (whole(more), whole(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen = Seen { disk_ns: 8_000_000, page_ns: 100_000 };
    const ALL: u64 = u64::MAX;

    #[test]
    fn the_head_is_as_long_as_the_disk_takes() {
        assert_eq!(SEEN.on_ssd(256, false, ALL), 80);
        assert_eq!(SEEN.on_ssd(256, true, ALL), 0, "the second tier is at work already");
        assert_eq!(SEEN.on_ssd(80, false, ALL), 80);
        assert_eq!(SEEN.on_ssd(80 + RUN_LEAST - 1, false, ALL), 80 + RUN_LEAST - 1);
        assert_eq!(SEEN.on_ssd(80 + RUN_LEAST, false, ALL), 80);
        assert_eq!(SEEN.on_ssd(RUN_LEAST - 1, true, ALL), RUN_LEAST - 1, "too few");
        let fast = Seen { page_ns: 1, ..SEEN };
        assert_eq!(fast.on_ssd(256, false, ALL), 256, "the disk would be waited for");
        let unknown = Seen { disk_ns: 0, page_ns: 0 };
        assert_eq!(unknown.on_ssd(256, false, ALL), 64);
    }

    #[test]
    fn a_sequence_goes_if_all_of_it_is_allowed() {
        assert_eq!(SEEN.on_ssd(256, false, 176), 80);
        assert_eq!(SEEN.on_ssd(256, false, 175), 256);
    }

    /// A program goes through 40,000 pages again and again, works on each for 100 us, and waits for
    /// one of the second tier by the round, and for others. Returns its share of stalls in the
    /// second half, and the part of that time in which the share of two seconds was more than 3
    /// points above the bound.
    fn share(bound_ppm: u32, slow_ns: impl Fn(usize) -> u64, other_ns: u64) -> (f64, f64) {
        const PAGES: usize = 40_000;
        let mut allowance = Allowance::new(bound_ppm);
        let (mut is_slow, mut left) = (vec![false; PAGES], 0);
        let (mut all, mut now, mut above_ns) = (Rate::default(), Rate::default(), 0.0);
        for round in 0..40 {
            for pages in is_slow.chunks_mut(256) {
                let slow = pages.iter().filter(|is_slow| **is_slow).count() as u64;
                let stalled = slow * slow_ns(round) + (pages.len() as u64 - slow) * other_ns;
                let ran = stalled + 100_000 * pages.len() as u64;
                let seen =
                    Ran { run_ns: ran, stall_ns: stalled, pages: slow, moved: 0, busy_ns: 0 };
                let (more, most) = allowance.look(seen);
                left = most.min(left + more);
                let goes = pages.len() as u64 <= left;
                left -= if goes { pages.len() as u64 } else { 0 };
                pages.fill(goes);
                let (ran, stalled) = (ran as f64, stalled as f64);
                now.add(Duration::from_secs(2), ran, stalled, ran);
                if round >= 20 {
                    all.add(Duration::MAX, ran, stalled, ran);
                    let is_above = now.of_one() > f64::from(bound_ppm) / 1e6 + 0.03;
                    above_ns += if is_above { ran } else { 0.0 };
                }
            }
        }
        (all.of_one(), above_ns / all.count)
    }

    #[test]
    fn the_share_of_stalls_comes_to_its_bound_whatever_a_page_costs() {
        for bound in [0.02, 0.1, 0.2, 0.3, 0.5] {
            for slow_ns in [150_000, 300_000, 1_000_000] {
                for other_ns in [0, 1000] {
                    let (share, above) = share((bound * 1e6) as u32, |_| slow_ns, other_ns);
                    let told = format!("{share} of {bound}, {slow_ns} and {other_ns} ns");
                    assert!((0.5 * bound - 0.01..bound + 0.01).contains(&share), "{told}");
                    assert!(above < 0.05, "{told}: above it for {above}");
                }
            }
        }
        let (share, _) = share(100_000, |_| 300_000, 20_000);
        assert!(share < 0.18, "{share}: the SSD alone takes more than its bound");
    }

    #[test]
    fn while_what_a_page_costs_rises_and_falls_the_share_is_seldom_far_above_the_bound() {
        for bound in [0.1, 0.2, 0.3, 0.5] {
            let slow_ns = |round: usize| [200_000, 350_000, 600_000][round / 3 % 3];
            let (share, above) = share((bound * 1e6) as u32, slow_ns, 1000);
            assert!(share < bound && above < 0.25, "{share} of {bound}, above it for {above}");
        }
    }
}
