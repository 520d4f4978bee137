//! History: what a process did in each of the last intervals, for sparklines and time series.
//!
//! Guarantees: bounded; a process that began anew (a fork, an exec) begins a new history.
//! Never: reads anything itself.
//! Threads: plain data.

use std::collections::VecDeque;

use deepheap::internal::stats_page::{HeapMapCopy, StatsPage};
use deepheap::stats::{FaultKind, Latency, Stats};
use deepheap_tools::drive::life_years;
use deepheap_tools::sample::{Rates, Sample};

use crate::live::sites::Sites;

/// Intervals that are kept.
const MOMENTS_MAX: usize = 300;

/// One interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// When it ended: nanoseconds since deepheap started in the process.
    pub uptime_ns: u64,
    /// Its length.
    pub seconds: f64,
    /// Faults a second, by kind.
    pub faults: [f64; FaultKind::ALL.len()],
    /// How long they took; zeros without faults.
    pub took: [Latency; FaultKind::ALL.len()],
    /// Pages a second that came before they were touched.
    pub prefetched: f64,
    /// Pages evicted a second.
    pub evicted: f64,
    /// Bytes read from the device a second.
    pub read_bytes: f64,
    /// Bytes written to the device a second.
    pub written_bytes: f64,
    /// Bytes written to the second tier a second.
    pub tier_written_bytes: f64,
    /// CPUs that the process kept busy.
    pub cpus: f64,
    /// The part of the run time that it waited for want of RAM, at the end of the interval.
    pub waited: f64,
    /// RAM at the end of the interval.
    pub ram: Ram,
}

impl Moment {
    /// Faults of all kinds a second.
    pub fn all_faults(&self) -> f64 {
        self.faults.iter().sum()
    }

    /// Bytes a second between RAM and device.
    pub fn device_bytes(&self) -> f64 {
        self.read_bytes + self.written_bytes
    }

    /// The part of the faults on pages with content that found it compressed in RAM; none without
    /// such faults.
    pub fn hit_rate(&self) -> Option<f64> {
        let [cached, stored] =
            [FaultKind::Cached, FaultKind::Stored].map(|kind| self.faults[kind as usize]);
        (cached + stored > 0.0).then(|| cached / (cached + stored))
    }
}

/// How a process uses its budget, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ram {
    /// Pages that the program touches without a fault.
    pub in_ram: u64,
    /// Objects in the cache, at their compressed size.
    pub compressed: u64,
    /// Page tables, tables, buffers: everything else that counts.
    pub tables: u64,
    /// The budget.
    pub budget: u64,
}

impl Ram {
    fn of(stats: &Stats) -> Ram {
        let (in_ram, compressed) = (stats.page_buffer_bytes, stats.cache_bytes);
        let tables = stats.used_bytes().saturating_sub(in_ram + compressed);
        Ram { in_ram, compressed, tables, budget: stats.budget_bytes }
    }

    /// All that is used.
    pub fn used(&self) -> u64 {
        self.in_ram + self.compressed + self.tables
    }
}

/// The last intervals of a process.
pub struct History {
    moments: VecDeque<Moment>,
    last: Sample,
    /// Where its pages were, the last time that it was asked.
    pub map: Option<HeapMapCopy>,
    /// What its process was started as.
    pub command: String,
    /// Where its faults came from.
    pub sites: Sites,
}

impl History {
    /// Begins with the page as it is now.
    pub fn new(page: &StatsPage, pid: u32) -> History {
        let last = Sample::of(page, pid);
        let map = page.heap_map().read();
        let (command, sites) = (page.name(), Sites::new(page));
        History { moments: VecDeque::new(), last, map, command, sites }
    }

    /// Adds the interval that ends now.
    pub fn add(&mut self, page: &StatsPage, pid: u32) {
        let now = Sample::of(page, pid);
        let (now_stats, earlier) = (&now.stats, &self.last.stats);
        if now_stats.uptime_ns <= earlier.uptime_ns || now_stats.faults() < earlier.faults() {
            *self = History::new(page, pid);
            return;
        }
        self.sites.add(page);
        self.map = page.heap_map().read().or_else(|| self.map.take());
        if self.moments.len() == MOMENTS_MAX {
            self.moments.pop_front();
        }
        self.moments.push_back(between(&self.last, &now));
        self.last = now;
    }

    /// The newest sample.
    pub fn sample(&self) -> &Sample {
        &self.last
    }

    /// The numbers of now.
    pub fn stats(&self) -> &Stats {
        &self.last.stats
    }

    /// How RAM is used now.
    pub fn ram(&self) -> Ram {
        Ram::of(&self.last.stats)
    }

    /// What the program has allocated, and mapped itself, of the heap.
    pub fn heap_bytes(&self) -> u64 {
        self.stats().allocated_bytes + self.stats().mapped_bytes
    }

    /// All intervals that are kept, oldest first.
    pub fn moments(&self) -> impl DoubleEndedIterator<Item = &Moment> + ExactSizeIterator {
        self.moments.iter()
    }

    /// The newest interval; zeros before the first.
    pub fn newest(&self) -> Moment {
        self.moments.back().copied().unwrap_or_default()
    }

    /// Bytes written a second, over all intervals that are kept.
    pub fn mean_written_bytes(&self) -> f64 {
        self.mean(|moment| moment.written_bytes)
    }

    /// Years until a common SSD is worn out at the rate of the kept intervals; none if nothing is
    /// written.
    pub fn years_of_device(&self) -> Option<f64> {
        life_years(self.mean_written_bytes())
    }

    /// The same if it had been written what went to the second tier, too; none if nothing went
    /// there.
    pub fn years_without_tier(&self) -> Option<f64> {
        let tier = self.mean(|moment| moment.tier_written_bytes);
        life_years(self.mean_written_bytes() + tier).filter(|_| tier > 0.0)
    }

    /// The mean of a rate over all intervals that are kept.
    fn mean(&self, rate: impl Fn(&Moment) -> f64) -> f64 {
        let seconds: f64 = self.moments().map(|moment| moment.seconds).sum();
        let sum: f64 = self.moments().map(|moment| rate(moment) * moment.seconds).sum();
        if seconds > 0.0 { sum / seconds } else { 0.0 }
    }
}

fn between(earlier: &Sample, now: &Sample) -> Moment {
    let rates = Rates { now: &now.stats, earlier: Some(&earlier.stats) };
    let rate = |of: fn(&Stats) -> u64| rates.rate(of).unwrap_or(0.0);
    let latencies = FaultKind::ALL.map(|kind| {
        let kind = kind as usize;
        Latency::of(&now.latencies[kind].since(&earlier.latencies[kind]))
    });
    let seconds = (now.stats.uptime_ns - earlier.stats.uptime_ns) as f64 / 1e9;
    Moment {
        uptime_ns: now.stats.uptime_ns,
        seconds,
        faults: latencies.map(|latency| latency.count as f64 / seconds.max(1e-3)),
        took: latencies,
        prefetched: rate(|stats| stats.prefetched),
        evicted: rate(Stats::evictions),
        read_bytes: rate(|stats| stats.device_read_bytes),
        written_bytes: rate(|stats| stats.device_write_bytes),
        tier_written_bytes: rate(|stats| stats.tier_write_bytes),
        waited: now.stats.stall_share_now_ppm as f64 / 1e6,
        cpus: now.cpu_ns.saturating_sub(earlier.cpu_ns) as f64 / 1e9 / seconds.max(1e-3),
        ram: Ram::of(&now.stats),
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use deepheap::number;

    use super::*;

    #[test]
    fn a_second_tier_prolongs_the_life_of_the_device_by_what_it_is_written() {
        let page = StatsPage::create().expect("page");
        let pid = std::process::id();
        let mut history = History::new(page, pid);
        let mut write = |counter, bytes| {
            page.add(0, counter, bytes);
            // Rates are of a millisecond at least.
            std::thread::sleep(Duration::from_millis(2));
            history.add(page, pid);
            (history.years_of_device(), history.years_without_tier())
        };
        assert!(matches!(write(number!(device_read_bytes), 1 << 30), (None, None)));
        assert!(matches!(write(number!(device_write_bytes), 1 << 30), (Some(_), None)));
        let (with, without) = write(number!(tier_write_bytes), 3 << 30);
        let longer = with.expect("years") / without.expect("years");
        assert!((3.99..4.01).contains(&longer), "{longer}");
    }
}
