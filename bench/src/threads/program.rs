//! Program: the measured process. It fills its memory, then touches it whenever it is told to.
//!
//! It says a line when it is there, then answers each line on standard input (an `Order` in JSON)
//! with one on standard output. So the programs of two contenders can take turns.
//!
//! Guarantees: every touch is timed, from the end of the one before; what is divided by the touches
//! is counted over the same time. A wrong page ends the program with an error. CPU time is that of
//! the process: the kernel's reclaim in a cgroup and deepheap's workers are in it.
//! Threads: as many as an order says, with small alternate signal stacks, and the one that waits.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use deepheap_load::histogram::Histogram;
use deepheap_load::random::Random;
use serde::{Deserialize, Serialize};

use super::pages::{Kind, OBJECT, PAGE, Pages, Wrong};
use crate::backend::{deepheap, swap};
use crate::failure::Failure;
use crate::{gauges, output};

const STACK_BYTES: usize = 64 << 10;
/// What the threads do.
const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// What gives the program more memory than RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// The library's calls.
    Deepheap,
    /// Anonymous memory of a program under `deepheap run`.
    Run,
    Zram,
    Swap,
}

impl On {
    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deepheap => "deepheap",
            Self::Run => "deepheap run",
            Self::Zram => "zram",
            Self::Swap => "swap",
        }
    }

    /// Whether the kernel moves the pages.
    pub fn is_kernels(self) -> bool {
        matches!(self, Self::Zram | Self::Swap)
    }
}

/// What a program is to fill.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub kind: Kind,
    pub data_bytes: u64,
    /// Pages that are filled first and never touched again, so that the heap outgrows the RAM.
    pub idle_bytes: u64,
    pub ram_bytes: u64,
    pub dir: PathBuf,
    pub conf: String,
}

/// What a program is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    Fill(On, Setup),
    Touch(Touches),
    Audit,
}

/// Random touches.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Touches {
    pub threads: u32,
    pub write_percent: u32,
    /// After a quarter of it to warm up.
    pub seconds: f64,
    /// Others have other pages in another order: one that comes again could be known by then.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    pub touches: u64,
    pub touches_per_s: f64,
    pub cpu_us_per_touch: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub longest_us: f64,
    pub faults_per_touch: f64,
    /// Faults that read the SSD.
    pub device_faults_per_touch: f64,
    /// What the program and zram's pool take of the RAM; the contender knows.
    pub ram_bytes: u64,
}

/// What is counted of this process.
#[derive(Clone, Copy, Default)]
struct Counts {
    faults: u64,
    device_faults: u64,
    cpu_ns: u64,
}

/// Answers orders until there are no more.
pub fn main() -> Result<(), Failure> {
    output::json(&())?;
    let mut filled: Option<Program> = None;
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| Failure::os("orders", &error))?;
        let order = serde_json::from_str(&line).map_err(|error| {
            Failure::Refused(format!("this is a program of `threads`; it read {line}: {error}"))
        })?;
        match (order, &filled) {
            (Order::Fill(on, setup), None) => {
                if on.is_kernels() {
                    // At the limit of a cgroup the kernel kills a program although there is swap,
                    // when a few rounds of reclaim have freed nothing. With nobody to kill it tries
                    // again: the thread faults once more. Where this needs a privilege that is not
                    // there, `Lender` helps with version 1.
                    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
                }
                filled = Some(Program::fill(on, &setup)?);
                output::json(&())?;
            }
            (Order::Touch(touches), Some(program)) => output::json(&program.touch(&touches)?)?,
            (Order::Audit, Some(program)) => {
                program.audit()?;
                output::json(&())?;
            }
            (order, _) => return Err(Failure::Refused(format!("{order:?}: not now"))),
        }
    }
    Ok(())
}

struct Program {
    on: On,
    pages: Pages,
    by_calls: bool,
    written: AtomicU64,
}

impl Program {
    fn fill(on: On, setup: &Setup) -> Result<Program, Failure> {
        if on == On::Deepheap {
            deepheap::start(setup.ram_bytes, &setup.dir, &setup.conf)?;
        }
        let by_calls = setup.kind == Kind::Objects;
        let pages = |bytes: u64| match on {
            On::Deepheap => Ok(::deepheap::malloc(bytes as usize)),
            On::Run | On::Zram | On::Swap => swap::map(bytes),
        };
        let given = |base: *mut u8| match base.is_null() {
            true => Err(Failure::Failed("no memory for the pages".into())),
            false => Ok(base),
        };
        if setup.idle_bytes > 0 {
            let count = setup.idle_bytes / PAGE as u64;
            // SAFETY: so many pages, which are never freed.
            unsafe {
                Pages::fill(given(pages(setup.idle_bytes)?)?, PAGE, count, Kind::RandomPages)
            };
        }
        let (base, stride, count) = if by_calls {
            let count = setup.data_bytes / OBJECT as u64;
            let base = ::deepheap::objects::allocate(count as usize, OBJECT);
            (base, ::deepheap::objects::stride(OBJECT), count)
        } else {
            (pages(setup.data_bytes)?, PAGE, setup.data_bytes / PAGE as u64)
        };
        // SAFETY: so many pages or objects of an array, which are never freed.
        let pages = unsafe { Pages::fill(given(base)?, stride, count, setup.kind) };
        Ok(Program { on, pages, by_calls, written: AtomicU64::new(0) })
    }

    fn touch(&self, touches: &Touches) -> Result<Measured, Failure> {
        let &Touches { threads, write_percent, seconds, seed } = touches;
        let (phase, is_wrong) = (AtomicU8::new(WARM_UP), AtomicBool::new(false));
        let begin = Barrier::new(threads as usize + 1);
        let run = |thread: u32| {
            let mut random = Random::new(seed, u64::from(thread));
            let (mut times, mut written) = (Histogram::default(), 0);
            begin.wait();
            let mut last = Instant::now();
            loop {
                let touched = match self.by_calls {
                    true => self.pages.call(&mut random).map(|()| false),
                    false => self.pages.touch(&mut random, write_percent),
                };
                let now = Instant::now();
                match touched {
                    Ok(wrote) => written += u64::from(wrote),
                    Err(Wrong(page)) => {
                        eprintln!("deepheap-bench: WRONG DATA in page {page}");
                        is_wrong.store(true, Ordering::Relaxed);
                        break;
                    }
                }
                match phase.load(Ordering::Relaxed) {
                    MEASURE => times.record((now - last).as_nanos() as u64, 1),
                    STOP => break,
                    _ => (),
                }
                last = now;
            }
            self.written.fetch_add(written, Ordering::Relaxed);
            times
        };
        let run = &run;
        let mut times = Histogram::default();
        let (mut before, mut after) = (Counts::default(), Counts::default());
        let mut elapsed = Duration::ZERO;
        std::thread::scope(|scope| {
            let spawn = |thread| {
                let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, move || run(thread)).unwrap_or_else(|error| {
                    // The others wait for all of them to begin.
                    eprintln!("deepheap-bench: thread {thread}: {error}");
                    std::process::exit(1);
                })
            };
            let threads: Vec<_> = (0..threads).map(spawn).collect();
            begin.wait();
            std::thread::sleep(Duration::from_secs_f64(seconds / 4.0));
            before = Counts::read(self.on);
            let started = Instant::now();
            phase.store(MEASURE, Ordering::Relaxed);
            std::thread::sleep(Duration::from_secs_f64(seconds));
            phase.store(STOP, Ordering::Relaxed);
            elapsed = started.elapsed();
            after = Counts::read(self.on);
            for thread in threads {
                match thread.join() {
                    Ok(of_thread) => times.merge(&of_thread),
                    Err(_) => is_wrong.store(true, Ordering::Relaxed),
                }
            }
        });
        match is_wrong.into_inner() {
            true => Err(Failure::Failed("a thread found wrong data, see above".into())),
            false => Ok(Measured::of(&times, before, after, elapsed)),
        }
    }

    fn audit(&self) -> Result<(), Failure> {
        let found = self.pages.audit();
        let found = found.map_err(|Wrong(page)| {
            Failure::Failed(format!("WRONG DATA in the audit: page {page}"))
        })?;
        match (found, self.written.load(Ordering::Relaxed)) {
            (found, written) if found == written => Ok(()),
            (found, written) => Err(Failure::Failed(format!(
                "LOST WRITES: {written} were done, the pages hold {found}"
            ))),
        }
    }
}

impl Counts {
    fn read(on: On) -> Counts {
        let cpu_ns = gauges::process_cpu_ns();
        if !on.is_kernels() {
            let stats = match on {
                On::Run => stats_of_run(),
                _ => ::deepheap::stats().unwrap_or_default(),
            };
            let kinds =
                [stats.fault_zero, stats.fault_cached, stats.fault_stored, stats.fault_waited];
            let faults = kinds.iter().map(|kind| kind.count).sum();
            return Counts { faults, device_faults: stats.fault_stored.count, cpu_ns };
        }
        // SAFETY: a rusage of zeros is valid, and the call fills it.
        let faults = unsafe {
            let mut usage: libc::rusage = core::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
            usage.ru_majflt as u64
        };
        Counts { faults, device_faults: if on == On::Swap { faults } else { 0 }, cpu_ns }
    }
}

/// The statistics of the runtime that `deepheap run` has loaded, which is another than the one in
/// this program.
fn stats_of_run() -> ::deepheap::Stats {
    type DhStats = unsafe extern "C" fn(*mut ::deepheap::Stats, usize) -> libc::c_int;
    let mut stats = ::deepheap::Stats::default();
    // SAFETY: the C interface of the same version: the struct is its own.
    unsafe {
        let dh_stats = libc::dlsym(libc::RTLD_DEFAULT, c"dh_stats".as_ptr());
        if !dh_stats.is_null() {
            let dh_stats: DhStats = core::mem::transmute(dh_stats);
            dh_stats(&raw mut stats, size_of_val(&stats));
        }
    }
    stats
}

impl Measured {
    fn of(times: &Histogram, before: Counts, after: Counts, elapsed: Duration) -> Measured {
        let touches = times.total();
        let per_touch = |sum: u64| sum as f64 / touches.max(1) as f64;
        Measured {
            touches,
            touches_per_s: touches as f64 / elapsed.as_secs_f64(),
            cpu_us_per_touch: per_touch(after.cpu_ns - before.cpu_ns) / 1e3,
            p50_us: times.percentile(0.5) as f64 / 1e3,
            p99_us: times.percentile(0.99) as f64 / 1e3,
            longest_us: times.max() as f64 / 1e3,
            faults_per_touch: per_touch(after.faults - before.faults),
            device_faults_per_touch: per_touch(after.device_faults - before.device_faults),
            ram_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_touches_in_between() {
        let counts = |times: u64| Counts {
            faults: 90 * times,
            device_faults: 5 * times,
            cpu_ns: 700_000 * times,
        };
        let mut touches = Histogram::default();
        touches.record(1_000, 99);
        touches.record(64_000, 1);
        let one = Measured::of(&touches, counts(1), counts(2), Duration::from_millis(100));
        assert_eq!((one.touches, one.touches_per_s, one.cpu_us_per_touch), (100, 1000.0, 7.0));
        assert_eq!((one.faults_per_touch, one.device_faults_per_touch), (0.9, 0.05));
        assert_eq!(one.longest_us, 64.0);
    }

    #[test]
    fn threads_touch_what_was_filled_and_the_audit_counts_their_writes() {
        let setup = Setup {
            kind: Kind::CompressiblePages,
            data_bytes: 1 << 20,
            idle_bytes: 0,
            ram_bytes: 0,
            dir: PathBuf::new(),
            conf: String::new(),
        };
        let program = Program::fill(On::Swap, &setup).unwrap();
        let touches = Touches { threads: 3, write_percent: 50, seconds: 0.05, seed: 1 };
        assert!(program.touch(&touches).is_ok());
        assert!(program.audit().is_ok());
        program.written.fetch_add(1, Ordering::Relaxed);
        assert!(program.audit().is_err());
    }
}
