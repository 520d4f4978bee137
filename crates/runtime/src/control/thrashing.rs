//! Thrashing: notices that the program mostly waits for the store, and logs once how much RAM would
//! end that.
//!
//! The evictor looks while it evicts. A program that waits for long also evicts, so an idle program
//! is never woken for it.
//!
//! Guarantees: one line in the life of a process, and none in its first minute.
//! Never: runs in a fault handler; counts the time of faults that did not wait for the store.
//! Threads: the evictor's own; `Watch::look` is pure.

use core::time::Duration;

use deepheap_heap::PAGE;
use deepheap_measure::size;
use deepheap_sys::process::clock;
use deepheap_sys::say;

use crate::control::budget::ram_that_holds_all;
use crate::runtime::Runtime;
use crate::stats::FaultKind;
use crate::stats::report::bytes;

/// How long the program is observed at a time.
const PERIOD: Duration = Duration::from_secs(60);

/// Times since some beginning, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Observed {
    /// Of the clock.
    now_ns: u64,
    /// For which all threads together waited for the store in faults.
    waited_ns: u64,
    /// That all threads together spent on CPUs.
    cpu_ns: u64,
}

/// How long the program was observed, and how long all its threads together waited meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thrashing {
    period_ns: u64,
    waited_ns: u64,
}

/// Observes period by period, until it has found something.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    begin: Option<Observed>,
    is_over: bool,
}

impl Watch {
    /// For the evictor, now and then while it has something to do.
    pub(crate) fn watch(&mut self, runtime: &Runtime) {
        let now_ns = clock::monotonic_ns();
        if !self.is_time(now_ns) {
            return;
        }
        let waited = |kind| runtime.stats.histogram(kind).total_ns();
        let waited_ns = waited(FaultKind::Stored) + waited(FaultKind::Waited);
        let seen = Observed { now_ns, waited_ns, cpu_ns: clock::process_cpu_ns() };
        if let Some(thrashing) = self.look(seen) {
            let memory = (runtime.heap.committed_pages() * PAGE) as u64;
            let objects = runtime.heap.object_bytes() as u64;
            let enough = ram_that_holds_all(runtime);
            say!(&*line(thrashing, memory, objects, runtime.config.ram, enough));
        }
    }

    /// Whether a period is over, or none has begun: then it is time to `look`.
    fn is_time(&self, now_ns: u64) -> bool {
        let period_ns = PERIOD.as_nanos() as u64;
        !self.is_over
            && self.begin.is_none_or(|begin| now_ns.saturating_sub(begin.now_ns) >= period_ns)
    }

    /// Judges the period that ends now, and begins the next one. Most of a period was waiting if
    /// threads waited for half of it, and for longer than they computed.
    fn look(&mut self, now: Observed) -> Option<Thrashing> {
        let begin = self.begin.replace(now)?;
        let period_ns = now.now_ns.saturating_sub(begin.now_ns);
        let waited_ns = now.waited_ns.saturating_sub(begin.waited_ns);
        let cpu_ns = now.cpu_ns.saturating_sub(begin.cpu_ns);
        self.is_over = waited_ns >= period_ns / 2 && waited_ns > cpu_ns;
        self.is_over.then_some(Thrashing { period_ns, waited_ns })
    }
}

/// `enough` is the RAM that keeps `memory` in RAM. Objects are always managed, and how much RAM
/// they take depends on how many are in RAM at a time, so the line promises nothing for them.
fn line(thrashing: Thrashing, memory: u64, objects: u64, ram: u64, enough: u64) -> String {
    const SECOND_NS: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;
    let mut advice = "more makes it faster".to_owned();
    if objects == 0 {
        let enough = size::exact(enough.next_multiple_of(MIB));
        advice += &format!(", and --ram {enough} keeps all of it in RAM");
    }
    format!(
        "threads waited {} s for the store in the last {} s: {} of heap in a RAM budget of {}; \
         {advice} (said once)",
        thrashing.waited_ns / SECOND_NS,
        thrashing.period_ns / SECOND_NS,
        bytes(memory + objects),
        bytes(ram),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64, waited: u64, cpu: u64) -> Observed {
        Observed { now_ns: seconds * SECOND, waited_ns: waited * SECOND, cpu_ns: cpu * SECOND }
    }

    #[test]
    fn most_of_a_minute_spent_waiting_is_told_once() {
        let mut watch = Watch::default();
        assert!(watch.is_time(5 * SECOND), "the first period begins");
        assert_eq!(watch.look(at(5, 100, 7)), None);
        assert!(!watch.is_time(64 * SECOND) && watch.is_time(65 * SECOND));
        // A minute with some waiting, then one with much.
        assert_eq!(watch.look(at(65, 129, 8)), None);
        let found = watch.look(at(125, 170, 20));
        assert_eq!(found, Some(Thrashing { period_ns: 60 * SECOND, waited_ns: 41 * SECOND }));
        assert!(!watch.is_time(10_000 * SECOND), "said once");
    }

    #[test]
    fn a_program_that_computes_or_rests_more_than_it_waits_is_left_in_peace() {
        let mut watch = Watch::default();
        watch.look(at(0, 0, 0));
        assert_eq!(watch.look(at(60, 100, 110)), None, "many threads that compute even more");
        assert_eq!(watch.look(at(4000, 140, 115)), None, "idle for most of an hour");
        assert_eq!(watch.look(at(4060, 0, 0)), None, "counters of a forked child");
    }

    #[test]
    fn the_line_counts_objects_and_names_no_ram_that_was_never_tried_for_them() {
        let seen = Thrashing { period_ns: 60 * SECOND, waited_ns: 46 * SECOND };
        assert_eq!(
            line(seen, 1 << 20, 4 << 30, 232 << 20, 32 << 20),
            "threads waited 46 s for the store in the last 60 s: 4.00 GiB of heap in a RAM budget \
             of 232 MiB; more makes it faster (said once)"
        );
    }

    #[test]
    fn the_line_tells_what_was_seen_and_what_would_do() {
        let seen = Thrashing { period_ns: 61 * SECOND, waited_ns: 55 * SECOND };
        let told = line(seen, 277 << 20, 0, 32 << 20, (303 << 20) - 5);
        assert_eq!(
            told,
            "threads waited 55 s for the store in the last 61 s: 277 MiB of heap in a RAM budget \
             of 32.0 MiB; more makes it faster, and --ram 303M keeps all of it in RAM (said once)"
        );
    }
}
