//! Tier: how much of a sequence goes to a slow second tier (HybridSwap, III.C and III.D).
//!
//! A sequence is a run of pages that came in order and leave together. Its head stays on the SSD,
//! as many pages as the program works through while the second tier finds the next ones; so a head
//! is not needed where the sequence goes on from pages that are in the second tier already. What is
//! shorter than its head stays on the SSD as a whole.
//!
//! Under a bound on stalls a page that goes to the second tier is paid for when it goes: with what
//! pages cost the program that came from there of late. It pays from an *allowance* that grows with
//! the run time, by the bound. (The paper's shift ratio is that of now by the bound. It comes too
//! late here: what went there is waited for in the next round of a program, a long time after.)

use core::time::Duration;

/// Pages of a head before anything is measured.
const HEAD_UNKNOWN: u64 = 64;
/// Pages that go to the second tier together at least: 64 KiB, of which the way there is a small
/// part on a disk that writes a log.
pub const RUN_LEAST: usize = 16;

/// What is known when a sequence leaves.
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

/// What a page of the second tier is taken to cost before some have come from there, ...
const UNKNOWN_NS: f64 = 500_000.0;
/// ... which counts as much as so many pages.
const UNKNOWN_PAGES: f64 = 256.0;
/// Run time after which what was observed counts half.
const HALF: Duration = Duration::from_secs(20);
/// So much run time is saved up for at most, ...
const SAVED: Duration = Duration::from_secs(1);
/// ... or for so many pages: a sequence goes as a whole, or not at all.
const SAVED_PAGES: f64 = 256.0;

/// What happened since the last look.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// How long the program ran.
    pub run_ns: u64,
    /// Of that it stood in faults.
    pub stall_ns: u64,
    /// Pages that came from the second tier.
    pub pages: u64,
}

/// Pages that may go to the second tier under a bound on stalls.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    bound: f64,
    /// Stalls of late, and pages that came of late.
    stall_ns: f64,
    pages: f64,
    /// A part of a page that is left.
    rest: f64,
}

impl Allowance {
    /// Of a bound in millionths.
    pub fn new(bound_ppm: u32) -> Allowance {
        Allowance { bound: f64::from(bound_ppm) / 1e6, stall_ns: 0.0, pages: 0.0, rest: 0.0 }
    }

    /// How many pages more may go, and how many may be left to go at most.
    pub fn look(&mut self, ran: Ran) -> (u64, u64) {
        let kept = 0.5f64.powf(ran.run_ns as f64 / HALF.as_nanos() as f64);
        // All stalls count: if the SSD alone uses the bound up, nothing goes.
        self.stall_ns = kept * self.stall_ns + ran.stall_ns as f64;
        self.pages = kept * self.pages + ran.pages as f64;
        let page_ns = (self.stall_ns + UNKNOWN_NS * UNKNOWN_PAGES) / (self.pages + UNKNOWN_PAGES);
        let pages_in = |ns: f64| ns * self.bound / page_ns;
        let more = pages_in(ran.run_ns as f64) + self.rest;
        self.rest = more.fract();
        let most = pages_in(SAVED.as_nanos() as f64).max(SAVED_PAGES);
        (more as u64, most as u64)
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
    /// one of the second tier, and for others. Returns its share of stalls in the second half.
    fn share(bound_ppm: u32, slow_ns: u64, other_ns: u64) -> f64 {
        const PAGES: usize = 40_000;
        let mut allowance = Allowance::new(bound_ppm);
        let (mut is_slow, mut left) = (vec![false; PAGES], 0);
        let (mut run_ns, mut stall_ns) = (0, 0);
        for round in 0..40 {
            for pages in is_slow.chunks_mut(256) {
                let slow = pages.iter().filter(|is_slow| **is_slow).count() as u64;
                let stalled = slow * slow_ns + (pages.len() as u64 - slow) * other_ns;
                let ran = stalled + 100_000 * pages.len() as u64;
                let seen = Ran { run_ns: ran, stall_ns: stalled, pages: slow };
                let (more, most) = allowance.look(seen);
                left = most.min(left + more);
                let goes = pages.len() as u64 <= left;
                left -= if goes { pages.len() as u64 } else { 0 };
                pages.fill(goes);
                if round >= 20 {
                    (run_ns, stall_ns) = (run_ns + ran, stall_ns + stalled);
                }
            }
        }
        stall_ns as f64 / run_ns as f64
    }

    #[test]
    fn the_share_of_stalls_comes_to_its_bound_whatever_a_page_costs() {
        for bound in [0.02, 0.1, 0.2, 0.3, 0.5] {
            for slow_ns in [150_000, 300_000, 1_000_000] {
                for other_ns in [0, 1000] {
                    let share = share((bound * 1e6) as u32, slow_ns, other_ns);
                    let told = format!("{share} of {bound}, {slow_ns} and {other_ns} ns");
                    assert!((0.75 * bound - 0.01..bound + 0.02).contains(&share), "{told}");
                }
            }
        }
        assert!(share(100_000, 300_000, 20_000) < 0.19, "the SSD alone takes more than its bound");
    }
}
