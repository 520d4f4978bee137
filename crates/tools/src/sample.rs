//! Sample: the statistics of a process at one moment, and what grew between two of them.
//!
//! Never: prints.
//! Threads: plain data.

use std::fs;

use deepheap::internal::stats_page::{Histogram, StatsPage};
use deepheap::internal::stats_report::count;
use deepheap::stats::{FaultKind, Stats};

use crate::process::fields_of;

/// Statistics at one moment.
pub struct Sample {
    /// The numbers.
    pub stats: Stats,
    /// Latencies of the faults, by kind.
    pub latencies: [Histogram; FaultKind::ALL.len()],
    /// CPU time of the process, nanoseconds.
    pub cpu_ns: u64,
}

impl Sample {
    /// Takes it from the page of a process.
    pub fn of(page: &StatsPage, pid: u32) -> Sample {
        let mut stats = page.snapshot();
        // The process looks for itself only now and then.
        stats.unmanaged_bytes = unmanaged_bytes(pid, &stats).unwrap_or(stats.unmanaged_bytes);
        let latencies = FaultKind::ALL.map(|kind| page.histogram(kind));
        Sample { stats, latencies, cpu_ns: cpu_ns(pid).unwrap_or(0) }
    }
}

/// The counts, in all and in the last interval.
pub struct Rates<'a> {
    /// In all.
    pub now: &'a Stats,
    /// Before the interval, if there is one.
    pub earlier: Option<&'a Stats>,
}

impl Rates<'_> {
    /// Growth a second of a counter, if there is an interval.
    pub fn rate(&self, of: impl Fn(&Stats) -> u64) -> Option<f64> {
        let earlier = self.earlier?;
        let seconds = self.now.uptime_ns.checked_sub(earlier.uptime_ns)? as f64 / 1e9;
        Some(of(self.now).saturating_sub(of(earlier)) as f64 / seconds.max(1e-3))
    }

    /// The part of what was written in the interval that went to the second tier, in millionths.
    pub fn tier_mix_ppm(&self) -> Option<u64> {
        let tier = self.rate(|s| s.tier_write_bytes)?;
        let all = tier + self.rate(|s| s.device_write_bytes)?;
        (all > 0.0).then_some((tier / all * 1e6) as u64)
    }

    /// "12k/s", or nothing.
    pub fn counts(&self, of: impl Fn(&Stats) -> u64) -> String {
        self.rate(of).map_or(String::new(), |rate| format!("{}/s", count(rate as u64)))
    }

    /// " (12 MiB/s)", or nothing.
    pub fn in_brackets(&self, of: impl Fn(&Stats) -> u64, shown: fn(u64) -> String) -> String {
        self.rate(of).map_or(String::new(), |rate| format!(" ({}/s)", shown(rate as u64)))
    }
}

/// The time that all threads of a process were on a CPU, in the program and in the kernel: fields
/// 14 and 15 of /proc/PID/stat.
fn cpu_ns(pid: u32) -> Option<u64> {
    /// What the kernel counts for user space on x86-64 (USER_HZ): 100 a second.
    const TICK_NS: u64 = 10_000_000;
    let fields = fields_of(pid)?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    ticks.sum::<Result<u64, _>>().ok().map(|ticks| ticks * TICK_NS)
}

/// Bytes of RAM that a process has outside of deepheap: anonymous and shared memory that is not
/// in its statistics. None if there is no such process. A snapshot of moving things: it may be
/// some pages off.
fn unmanaged_bytes(pid: u32, stats: &Stats) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = |name| -> Option<u64> {
        let line = status.lines().find_map(|line: &str| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    let all = (kib("RssAnon:")? + kib("RssShmem:").unwrap_or(0)) * 1024;
    // The kernel does not count its page tables there.
    Some(all.saturating_sub(stats.used_bytes() - stats.page_table_bytes))
}
