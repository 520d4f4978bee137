//! Spent: what a run takes besides time: memory at its peak, CPU, major faults, and what the kernel
//! swapped.
//!
//! Memory is what the run's memory cgroup holds less the page cache of files: the kernel takes that
//! back whenever it wants to, so nobody needs it. A program's peak alone is counted like this, and
//! the total of all contenders is a part of that; what deepheap needs outside of its budget is
//! counted like this, too. With a limit page cache comes out of the total on all sides, and gives
//! way first.
//!
//! Guarantees: between two looks (10 ms) a higher peak can be missed; nothing else is left out.
//! Threads: the one that waits for the program.

use std::fs;

use crate::papers::numbers::Numbers;
use deepheap_bench::cgroup::Cgroup;
use deepheap_bench::swap_file::PAGE;

/// What the kernel counted so far, by the names of the numbers.
type Counts = [(&'static str, f64); 5];

/// What a run that goes on took so far.
#[derive(Debug)]
pub struct Spent<'c> {
    cgroup: Option<&'c Cgroup>,
    peak_bytes: u64,
    before: Counts,
}

impl<'c> Spent<'c> {
    /// Nothing yet. Memory is counted only in a memory cgroup.
    pub fn new(cgroup: Option<&'c Cgroup>) -> Self {
        Self { cgroup, peak_bytes: 0, before: counts() }
    }

    /// Looks at its memory. To be called again and again.
    pub fn look(&mut self) {
        let now = self.cgroup.and_then(|cgroup| cgroup.needed_bytes().ok());
        self.peak_bytes = self.peak_bytes.max(now.unwrap_or(0));
    }

    /// All of it, when the program has ended and was waited for.
    pub fn numbers(&self) -> Numbers {
        let mut numbers = Numbers::default();
        if self.cgroup.is_some() {
            numbers.set("peak_bytes", self.peak_bytes as f64);
        }
        for ((name, now), (_, before)) in counts().into_iter().zip(self.before) {
            numbers.set(name, now - before);
        }
        numbers
    }
}

fn counts() -> Counts {
    // SAFETY: rusage is plain data; all zero is a valid value.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: a valid pointer to a rusage; RUSAGE_CHILDREN cannot fail otherwise.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let events = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    [
        ("user_seconds", seconds(usage.ru_utime)),
        ("system_seconds", seconds(usage.ru_stime)),
        ("major_faults", usage.ru_majflt as f64),
        ("swapped_in_bytes", (event(&events, "pswpin") * PAGE) as f64),
        ("swapped_out_bytes", (event(&events, "pswpout") * PAGE) as f64),
    ]
}

/// How often something happened, by the text of /proc/vmstat.
fn event(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_by_their_whole_name() {
        let text = "pswpin_x 5\npswpin 7\npswpout 9\n";
        assert_eq!([event(text, "pswpin"), event(text, "pswpout")], [7, 9]);
        assert_eq!(event(text, "pgfault"), 0);
    }

    #[test]
    fn the_cpu_time_of_a_child_is_counted_and_no_memory_without_a_cgroup() {
        let spent = Spent::new(None);
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        assert!(std::process::Command::new("sh").args(["-c", busy]).status().unwrap().success());
        let numbers = spent.numbers();
        assert!(
            numbers.get("user_seconds").unwrap() + numbers.get("system_seconds").unwrap() > 0.0
        );
        assert_eq!(numbers.get("peak_bytes"), None);
    }
}
