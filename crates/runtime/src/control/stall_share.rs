//! Stall share: the part of its run time that a program waits in faults for want of RAM.
//!
//! *Run time* is the time in which the program computes or waits in faults: that of its CPUs and
//! its stalls together, and no more than the clock's. A program that sleeps does not run.
//! The share is that of the thread that waits in faults most, so with many threads each of them is
//! slower by it at most. (HybridSwap, III.D, bounds the same ratio of a process; the kernel's
//! PSI counts by the clock, so there a program at rest waits less.)
//!
//! Threads are told apart by the shards of the statistics: of more than `SHARDS` threads some count
//! together, and the share is too high rather than too low.
//!
//! Guarantees: every stall is in the whole share; the share of now is of one to two `WINDOW`s of
//! run time, or of the time since the last look if that was longer ago.
//! Never: reads a clock, allocates.
//! Threads: plain data; the runtime has it under a lock.

use core::time::Duration;

use crate::stats::page::SHARDS;

/// Run time after which what came before is no longer *now*.
const WINDOW: Duration = Duration::from_secs(2);

/// A million parts.
pub(crate) const WHOLE_PPM: u64 = 1_000_000;

/// Times since some beginning, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// Of the clock.
    pub clock_ns: u64,
    /// That all threads of the process have spent on CPUs.
    pub cpu_ns: u64,
    /// That threads waited in faults for want of RAM, by shard.
    pub stalls_ns: [u64; SHARDS],
}

/// Run time, and the stalls until then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    run_ns: u64,
    stalls_ns: [u64; SHARDS],
}

impl Mark {
    /// The counts since an earlier one.
    pub(crate) fn since(&self, earlier: &Mark) -> Stalled {
        let run_ns = self.run_ns.saturating_sub(earlier.run_ns);
        Stalled { run_ns, stall_ns: longest(&self.stalls_ns, &earlier.stalls_ns).min(run_ns) }
    }
}

/// How long the program ran, and how long of that the thread waited that waited most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalled {
    pub run_ns: u64,
    pub stall_ns: u64,
}

impl Stalled {
    /// The share, in millionths.
    pub(crate) fn ppm(self) -> u64 {
        let ppm =
            u128::from(self.stall_ns) * u128::from(WHOLE_PPM) / u128::from(self.run_ns.max(1));
        ppm.min(WHOLE_PPM.into()) as u64
    }
}

/// The observations so far.
#[derive(Debug, Default)]
pub(crate) struct StallShare {
    last: Option<Times>,
    now: Mark,
    /// One window ago or more, and two or more.
    newer: Mark,
    older: Mark,
}

impl StallShare {
    /// Takes the times of this moment into account.
    pub(crate) fn observe(&mut self, times: &Times) {
        let last = *self.last.get_or_insert(*times);
        let stall_ns = longest(&times.stalls_ns, &last.stalls_ns);
        let busy_ns = times.cpu_ns.saturating_sub(last.cpu_ns) + stall_ns;
        self.now.run_ns += busy_ns.min(times.clock_ns.saturating_sub(last.clock_ns));
        self.now.stalls_ns = times.stalls_ns;
        self.last = Some(*times);
        if self.now.since(&self.newer).run_ns >= WINDOW.as_nanos() as u64 {
            self.older = core::mem::replace(&mut self.newer, self.now);
        }
    }

    /// The moment of the last observation.
    pub(crate) fn mark(&self) -> Mark {
        self.now
    }

    /// Run time so far, in nanoseconds.
    pub(crate) fn run_ns(&self) -> u64 {
        self.now.run_ns
    }

    /// The share of the last run time, in millionths.
    pub(crate) fn now_ppm(&self) -> u64 {
        self.now.since(&self.older).ppm()
    }

    /// The share of all run time, in millionths.
    pub(crate) fn whole_ppm(&self) -> u64 {
        self.now.since(&Mark::default()).ppm()
    }
}

/// The wait of the thread that waited longest between two moments.
fn longest(now: &[u64; SHARDS], earlier: &[u64; SHARDS]) -> u64 {
    let stalls = now.iter().zip(earlier).map(|(now, earlier)| now.saturating_sub(*earlier));
    stalls.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Seconds of the clock, of CPUs, and milliseconds that two threads waited.
    fn at(clock: u64, cpu: u64, stalls_ms: [u64; 2]) -> Times {
        let mut stalls_ns = [0; SHARDS];
        stalls_ns[..2].copy_from_slice(&stalls_ms.map(|ms| ms * SECOND / 1000));
        Times { clock_ns: clock * SECOND, cpu_ns: cpu * SECOND, stalls_ns }
    }

    #[test]
    fn the_share_is_that_of_the_thread_that_stands_most() {
        let mut share = StallShare::default();
        assert_eq!((share.now_ppm(), share.whole_ppm()), (0, 0));
        share.observe(&at(100, 7, [0, 0]));
        share.observe(&at(110, 27, [100, 300]));
        assert_eq!((share.run_ns(), share.whole_ppm()), (10 * SECOND, 30_000));
    }

    #[test]
    fn a_program_that_sleeps_does_not_run() {
        let mut share = StallShare::default();
        share.observe(&at(0, 0, [0, 0]));
        share.observe(&at(1000, 1, [1000, 0]));
        assert_eq!((share.run_ns(), share.whole_ppm()), (2 * SECOND, 500_000));
        share.observe(&at(5000, 1, [1000, 0]));
        assert_eq!(share.run_ns(), 2 * SECOND);
    }

    #[test]
    fn what_is_long_ago_counts_in_the_whole_alone() {
        let mut share = StallShare::default();
        share.observe(&at(0, 0, [0, 0]));
        share.observe(&at(1, 1, [500, 0]));
        assert_eq!(share.now_ppm(), 500_000);
        for second in 2..=10 {
            share.observe(&at(second, second, [500, 0]));
        }
        assert_eq!((share.now_ppm(), share.whole_ppm()), (0, 50_000));
    }

    #[test]
    fn a_share_is_never_more_than_the_whole() {
        let mut share = StallShare::default();
        share.observe(&at(0, 0, [0, 0]));
        // Seventeen threads and more count together in some shard.
        share.observe(&at(1, 0, [5000, 0]));
        assert_eq!(share.whole_ppm(), WHOLE_PPM);
    }
}
