//! Least RAM: gives a program no more RAM than holds its bound on stalls, and counts what that
//! saves.
//!
//! The evictor looks every `LOOK` while the program runs, and lowers or raises what may be used of
//! the budget as `policy/stall_bound` decides. In between what may be used follows what the program
//! touches and frees, whenever the evictor wakes, so that a program that grows is not held up.
//!
//! Guarantees: what may be used is never more than the budget, and no less than tables, buffers and
//! `LEAST_BYTES`. The use follows at the pace of eviction: a fault never waits for more than a
//! step of the border. A program that does not run keeps what it has.
//! Never: allocates, waits.
//! Threads: the evictor's own.

use core::time::Duration;

use deepheap_heap::PAGE;
use deepheap_pager::Pager;
use deepheap_policy::budget_split::STEP;
use deepheap_policy::stall_bound::{Observed, StallBound};
use deepheap_sys::process::clock;

use crate::control::stall_share::Mark;
use crate::number;
use crate::runtime::Runtime;
use crate::stats::FaultKind;
use crate::stats::observe::stall_mark;
use crate::stats::page::StatsPage;

/// Time between two looks while the program runs, ...
const LOOK: Duration = Duration::from_millis(20);
/// ... and the most while it does not.
const LOOK_AT_REST: Duration = Duration::from_secs(1);
/// A program that runs for less than this part of the time is at rest.
const REST_PART: u64 = 16;
/// Page buffer and cache have so much together, however little is touched.
const LEAST_BYTES: u64 = 8 << 20;

/// The observations of the program's need.
pub(crate) struct LeastRam {
    bound: StallBound,
    pause: Duration,
    clock_ns: u64,
    mark: Mark,
    faults: u64,
    left: u64,
    /// Bytes that pages were given last.
    given: u64,
    saved: Saved,
}

/// Bytes, each times the nanoseconds of run time that they were there.
#[derive(Default)]
struct Saved {
    run_ns: f64,
    touched: f64,
    used: f64,
}

impl LeastRam {
    /// None without a bound on stalls.
    pub(crate) fn of(runtime: &Runtime) -> Option<LeastRam> {
        let bound = StallBound::new(runtime.config.stall_of_ram()?.ppm());
        Some(LeastRam {
            bound,
            pause: LOOK,
            clock_ns: clock::monotonic_ns(),
            mark: stall_mark(runtime).unwrap_or_default(),
            faults: faults_for_want(runtime.stats),
            left: pages_left(runtime.stats),
            given: 0,
            saved: Saved::default(),
        })
    }

    /// How long to wait for the next look.
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    /// Sets what may be used of the budget. `rebalance` comes next.
    pub(crate) fn hold(&mut self, runtime: &Runtime, pager: &Pager) {
        let stats = runtime.stats;
        let touched = (pager.touched_pages() + runtime.heap.used_object_blocks() as usize) as u64;
        let usage = pager.usage();
        let now_ns = clock::monotonic_ns();
        let since_ns = now_ns - self.clock_ns;
        let mut floor = self.given;
        if since_ns >= LOOK.as_nanos() as u64
            && let Some(mark) = stall_mark(runtime)
        {
            let (faults, left) = (faults_for_want(stats), pages_left(stats));
            let idle = pager.idle_pages();
            // What leaves at a time is as much as when the border between the sides moves.
            floor = floor.saturating_sub(((idle + STEP) * PAGE) as u64);
            let stalled = mark.since(&self.mark);
            self.bound.observe(&Observed {
                run_ns: stalled.run_ns,
                stall_ns: stalled.stall_ns,
                faults: faults - self.faults,
                left: left - self.left,
                touched,
                idle: idle as u64,
            });
            (self.clock_ns, self.mark) = (now_ns, mark);
            (self.faults, self.left) = (faults, left);
            let is_at_rest = stalled.run_ns < since_ns / REST_PART;
            self.pause = if is_at_rest { (2 * self.pause).min(LOOK_AT_REST) } else { LOOK };
            let used = usage.page_buffer + usage.object_cache + usage.overhead();
            self.saved.add(stalled.run_ns, touched * PAGE as u64, used as u64);
            stats.set(number!(touched_mean_bytes), self.saved.mean(self.saved.touched));
            stats.set(number!(used_mean_bytes), self.saved.mean(self.saved.used));
        }
        self.given = self.bound.bytes(touched).max(floor).max(LEAST_BYTES);
        let given = usize::try_from(self.given).unwrap_or(usize::MAX);
        pager.set_target(usage.overhead().saturating_add(given));
    }
}

/// Faults so far that more RAM might have spared.
fn faults_for_want(stats: &StatsPage) -> u64 {
    let kinds = [FaultKind::Cached, FaultKind::Stored, FaultKind::Waited];
    kinds.into_iter().map(|kind| stats.histogram(kind).count()).sum()
}

/// Pages that held something and were evicted so far, or left RAM.
fn pages_left(stats: &StatsPage) -> u64 {
    let left = [
        number!(evicted_clean),
        number!(evicted_dirty),
        number!(cache_reclaimed_clean),
        number!(cache_reclaimed_dirty),
    ];
    left.into_iter().map(|counter| stats.value(counter)).sum()
}

impl Saved {
    fn add(&mut self, run_ns: u64, touched: u64, used: u64) {
        let run_ns = run_ns as f64;
        self.run_ns += run_ns;
        self.touched += touched as f64 * run_ns;
        self.used += used as f64 * run_ns;
    }

    fn mean(&self, sum: f64) -> u64 {
        (sum / self.run_ns.max(1.0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_of_the_time_that_the_program_ran() {
        let mut saved = Saved::default();
        assert_eq!(saved.mean(saved.used), 0);
        saved.add(3_000, 100, 100);
        saved.add(0, 1 << 40, 1 << 40);
        saved.add(1_000, 200, 20);
        assert_eq!((saved.mean(saved.touched), saved.mean(saved.used)), (125, 80));
    }
}
