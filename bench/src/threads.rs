//! Threads: what a fault costs when many threads fault at once.
//!
//! Threads touch random pages, first of as many as fit deepheap's object cache, then of four times
//! as many as fit the RAM. The page buffer is small, so that nearly every touch is a fault: on a
//! cached page, or on a stored one.
//!
//! Guarantees: every page is checked when it is touched; what is divided by the faults is measured
//! over the same time as they are counted. CPU time is that of the process, eviction included.
//! Threads: so many as are asked for, with the small alternate signal stacks of Rust's library.

use core::sync::atomic::{AtomicBool, Ordering};
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use clap::Args;
use deepheap_load::random::Random;
use serde::Serialize;

use crate::backend::deepheap;
use crate::failure::Failure;
use crate::sizes::parse_bytes;
use crate::{gauges, output};

const PAGE: usize = 4096;
const STACK_BYTES: usize = 64 << 10;

/// What `deepheap-bench threads` takes.
#[derive(Clone, Debug, Args)]
pub struct Threads {
    /// How many threads fault at once, one measurement after the other
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,256", value_name = "COUNTS",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Vec<u32>,
    /// deepheap's RAM budget
    #[arg(long = "ram", value_parser = parse_bytes, default_value = "128M", value_name = "SIZE")]
    pub ram_bytes: u64,
    /// deepheap's other settings, as DEEPHEAP_CONF takes them
    #[arg(long, default_value = "page_buffer:8M", value_name = "SETTINGS")]
    pub conf: String,
    /// Where the store lies
    #[arg(long, default_value = ".", value_name = "PATH")]
    pub dir: PathBuf,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Prints one JSON line instead of the table
    #[arg(long)]
    pub json: bool,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    stored: bool,
    threads: u32,
    faults: u64,
    /// Of them, faults of the kind that is measured.
    part_of_kind: f64,
    faults_per_s: f64,
    cpu_us_per_fault: f64,
    /// As long as a thread waits for a fault, on average.
    wall_us_per_fault: f64,
    /// Times that a thread slept, for each fault.
    sleeps_per_fault: f64,
}

/// What is counted of this process.
#[derive(Clone, Copy)]
struct Counts {
    cached: u64,
    stored: u64,
    others: u64,
    waited_ns: u64,
    cpu_ns: u64,
    sleeps: u64,
}

impl Threads {
    /// Measures and prints.
    pub fn main(&self) -> Result<(), Failure> {
        deepheap::start(self.ram_bytes, &self.dir, &self.conf)?;
        let pages = (self.ram_bytes / PAGE as u64) as usize;
        let mut measured = Vec::new();
        // A quarter of the RAM fits the cache; the pages that fill the rest are not touched again.
        let mut field = Field { pages: Vec::new() };
        field.grow(pages / 4)?;
        let rest = Field { pages: Vec::new() }.grown(pages)?;
        for &threads in &self.threads {
            measured.push(field.measure(threads, self.seconds, false)?);
        }
        field.pages.extend(rest.pages);
        field.grow(4 * pages)?;
        for &threads in &self.threads {
            measured.push(field.measure(threads, self.seconds, true)?);
        }
        match self.json {
            true => output::json(&measured),
            false => output::line(markdown(&measured)),
        }
    }
}

/// Pages that hold their own number.
struct Field {
    pages: Vec<u64>,
}

impl Field {
    fn grown(mut self, pages: usize) -> Result<Field, Failure> {
        self.grow(pages)?;
        Ok(self)
    }

    fn grow(&mut self, pages: usize) -> Result<(), Failure> {
        while self.pages.len() < pages {
            let page = ::deepheap::malloc(PAGE);
            if page.is_null() {
                return Err(Failure::Failed("deepheap gave no memory for the pages".into()));
            }
            // SAFETY: a fresh allocation of a page.
            unsafe { page.cast::<u64>().write_volatile(page as u64) };
            self.pages.push(page as u64);
        }
        Ok(())
    }

    /// Touches pages with so many threads for so long, after they have all begun.
    fn measure(&self, threads: u32, seconds: f64, stored: bool) -> Result<Measured, Failure> {
        let (stop, is_wrong) = (AtomicBool::new(false), AtomicBool::new(false));
        let begin = Barrier::new(threads as usize + 1);
        let (mut before, mut after) = (Counts::read(), Counts::read());
        let mut elapsed = Duration::ZERO;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (stop, is_wrong, begin) = (&stop, &is_wrong, &begin);
                let touch = move || {
                    let mut random = Random::new(u64::from(thread) + 1, u64::from(stored));
                    begin.wait();
                    while !stop.load(Ordering::Relaxed) {
                        let at = random.below(self.pages.len() as u64) as usize;
                        let page = self.pages[at];
                        // SAFETY: a live page that holds its own address.
                        if unsafe { (page as *const u64).read_volatile() } != page {
                            is_wrong.store(true, Ordering::Relaxed);
                        }
                    }
                };
                let spawned =
                    std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, touch);
                if let Err(error) = spawned {
                    // The others wait for all of them to begin.
                    eprintln!("deepheap-bench: thread {thread}: {error}");
                    std::process::exit(1);
                }
            }
            begin.wait();
            std::thread::sleep(Duration::from_secs_f64(seconds / 4.0));
            let started = Instant::now();
            before = Counts::read();
            std::thread::sleep(Duration::from_secs_f64(seconds));
            after = Counts::read();
            elapsed = started.elapsed();
            stop.store(true, Ordering::Relaxed);
        });
        if is_wrong.into_inner() {
            return Err(Failure::Failed("WRONG DATA: a page does not hold its address".into()));
        }
        Ok(Measured::between(&before, &after, stored, threads, elapsed))
    }
}

impl Counts {
    fn read() -> Counts {
        let stats = ::deepheap::stats().unwrap_or_default();
        let kinds = [stats.fault_zero, stats.fault_cached, stats.fault_stored, stats.fault_waited];
        // SAFETY: a rusage of zeros is valid, and the call fills it.
        let sleeps = unsafe {
            let mut usage: libc::rusage = core::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
            usage.ru_nvcsw as u64
        };
        Counts {
            cached: stats.fault_cached.count,
            stored: stats.fault_stored.count,
            others: stats.fault_zero.count + stats.fault_waited.count,
            waited_ns: kinds.iter().map(|kind| kind.total_ns).sum(),
            cpu_ns: gauges::process_cpu_ns(),
            sleeps,
        }
    }
}

impl Measured {
    fn between(
        before: &Counts,
        after: &Counts,
        stored: bool,
        threads: u32,
        elapsed: Duration,
    ) -> Self {
        let cached_faults = after.cached - before.cached;
        let stored_faults = after.stored - before.stored;
        let faults = cached_faults + stored_faults + after.others - before.others;
        let of_kind = if stored { stored_faults } else { cached_faults };
        let per_fault = |sum: u64| sum as f64 / faults.max(1) as f64;
        Measured {
            stored,
            threads,
            faults,
            part_of_kind: per_fault(of_kind),
            faults_per_s: faults as f64 / elapsed.as_secs_f64(),
            cpu_us_per_fault: per_fault(after.cpu_ns - before.cpu_ns) / 1e3,
            wall_us_per_fault: per_fault(after.waited_ns - before.waited_ns) / 1e3,
            sleeps_per_fault: per_fault(after.sleeps - before.sleeps),
        }
    }
}

fn markdown(measured: &[Measured]) -> String {
    let mut text = String::from(
        "| fault | threads | faults/s | CPU us | wall us | sleeps | of this kind |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for one in measured {
        text.push_str(&format!(
            "| {} | {} | {:.0} | {:.2} | {:.1} | {:.2} | {:.0} % |\n",
            if one.stored { "stored" } else { "cached" },
            one.threads,
            one.faults_per_s,
            one.cpu_us_per_fault,
            one.wall_us_per_fault,
            one.sleeps_per_fault,
            100.0 * one.part_of_kind,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_faults_in_between() {
        let counts = |times: u64| Counts {
            cached: 90 * times,
            stored: 5 * times,
            others: 5 * times,
            waited_ns: 1_000_000 * times,
            cpu_ns: 700_000 * times,
            sleeps: 50 * times,
        };
        let elapsed = Duration::from_millis(100);
        let one = Measured::between(&counts(1), &counts(2), false, 8, elapsed);
        assert_eq!((one.faults, one.part_of_kind, one.faults_per_s), (100, 0.9, 1000.0));
        assert_eq!((one.cpu_us_per_fault, one.wall_us_per_fault), (7.0, 10.0));
        assert_eq!(one.sleeps_per_fault, 0.5);
        assert!(markdown(&[one]).contains("| cached | 8 | 1000 | 7.00 | 10.0 | 0.50 | 90 % |"));
    }
}
