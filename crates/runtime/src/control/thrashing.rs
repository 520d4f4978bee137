//! Thrashing: notices that the program mostly waits for want of RAM, and says with how much RAM it
//! would not.
//!
//! The evictor looks while it evicts. A program that waits for long also evicts, so an idle program
//! is never woken for it.
//!
//! Guarantees: nothing is said before a whole period was so. It is said once, and again only if the
//! RAM that is needed has doubled.
//! Never: runs in a fault handler; says anything with `quiet`.
//! Threads: the evictor's own; `Watch::look` is pure.

use core::time::Duration;

use deepheap_measure::size;
use deepheap_pager::Pager;
use deepheap_policy::more_ram::{Better, Waited};
use deepheap_sys::process::clock;
use deepheap_sys::say;

use crate::control::budget;
use crate::control::stall_share::{Mark, Stalled};
use crate::runtime::Runtime;
use crate::stats::observe::{stall_mark, waited};
use crate::stats::report::share;

/// How long the program is observed at a time.
const PERIOD: Duration = Duration::from_secs(10);
const PERIOD_NS: u64 = PERIOD.as_nanos() as u64;
/// It mostly waits if a thread waited for more than this part of a period, in percent.
const MOST: u64 = 80;

/// The beginning of a period.
#[derive(Clone, Copy, Debug)]
struct Begin {
    /// Of the clock.
    now_ns: u64,
    mark: Mark,
    waited: Waited,
}

/// Observes period by period.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    begin: Option<Begin>,
    /// The RAM that was said to be needed; the budget if none was known.
    said_bytes: u64,
}

impl Watch {
    /// For the evictor, now and then while it has something to do.
    pub(crate) fn watch(&mut self, runtime: &Runtime, pager: &Pager) {
        let now_ns = clock::monotonic_ns();
        let is_time = self.begin.is_none_or(|begin| now_ns - begin.now_ns >= PERIOD_NS);
        if runtime.config.quiet || runtime.durable.is_some() || !is_time {
            return;
        }
        let Some(mark) = stall_mark(runtime) else { return };
        let waited = waited(runtime, pager);
        let Some(begin) = self.begin.replace(Begin { now_ns, mark, waited }) else { return };
        let stalled = mark.since(&begin.mark);
        let better = budget::better(runtime, &waited.since(&begin.waited, stalled.ppm()));
        let needed = better.map_or(runtime.ram() as u64, |better| better.budget_bytes);
        if self.look(now_ns - begin.now_ns, stalled, needed) {
            say!(&*line(&runtime.stats.name(), now_ns - begin.now_ns, stalled, better));
        }
    }

    /// Whether it is to be said of a period of this length that so much RAM is needed.
    fn look(&mut self, period_ns: u64, stalled: Stalled, needed: u64) -> bool {
        let waits = stalled.stall_ns > period_ns / 100 * MOST;
        let is_news = self.said_bytes == 0 || needed >= 2 * self.said_bytes;
        if waits && is_news {
            self.said_bytes = needed;
        }
        waits && is_news
    }
}

/// The words; `better` is what is known to help.
fn line(name: &str, period_ns: u64, stalled: Stalled, better: Option<Better>) -> String {
    let part = share(stalled.stall_ns.saturating_mul(1_000_000) / period_ns.max(1));
    let seconds = period_ns / 1_000_000_000;
    let advice = better.map_or("more RAM makes it faster".to_owned(), |better| {
        let (ram, rest) = (size::exact(better.budget_bytes), share(better.share_ppm));
        format!("--ram {ram} would make that {rest}")
    });
    format!("{name} waited {part} of the last {seconds} s for want of RAM; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    fn waited(seconds: u64) -> Stalled {
        Stalled { run_ns: 10 * SECOND, stall_ns: seconds * SECOND }
    }

    #[test]
    fn who_mostly_waits_is_told_once_and_again_if_the_need_doubles() {
        let mut watch = Watch::default();
        let mut look = |seconds, mib| watch.look(10 * SECOND, waited(seconds), mib * MIB);
        assert!(!look(8, 80), "no more than 80 %");
        assert!(look(9, 80));
        assert!(!look(9, 80) && !look(10, 159), "said");
        assert!(!look(3, 200), "it does not wait");
        assert!(look(9, 160));
        assert!(!look(9, 300));
    }

    #[test]
    fn a_program_that_rests_is_left_in_peace() {
        // It waited all the time that it ran, which was not long.
        let stalled = Stalled { run_ns: SECOND, stall_ns: SECOND };
        assert!(!Watch::default().look(4000 * SECOND, stalled, MIB));
    }

    #[test]
    fn the_line_says_what_was_seen_and_what_would_help() {
        let better = Better { budget_bytes: 80 * MIB, share_ppm: 50_000 };
        assert_eq!(
            line("x.py", 10 * SECOND, waited(9), Some(better)),
            "x.py waited 90 % of the last 10 s for want of RAM; --ram 80M would make that 5.0 %"
        );
        assert_eq!(
            line("x.py", 11 * SECOND, waited(9), None),
            "x.py waited 82 % of the last 11 s for want of RAM; more RAM makes it faster"
        );
    }
}
