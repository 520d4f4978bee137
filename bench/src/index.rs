//! Index: a heap of very many small objects, whose object table is larger than the RAM, and how
//! fast a durable one is opened again.
//!
//! The objects are one array. One of so many is written: it gets its number, which every look
//! compares. The others cost what allocated objects cost. `DEEPHEAP_CONF` says how much RAM there
//! is and where the store is.
//!
//! Guarantees: a wrong number ends the run with an error.
//! Threads: as many as asked.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use deepheap::{DurableHeap, DurableOptions};
use deepheap_load::random::Random;
use serde::Serialize;

use crate::failure::Failure;
use crate::{gauges, output, signals};

/// The name of the array in a durable heap.
const ROOT: &str = "index";

/// What `deepheap-bench index` takes.
#[derive(Clone, Debug, Args)]
pub struct Index {
    /// Objects
    #[arg(long, default_value_t = 32 << 20)]
    objects: usize,
    /// Bytes of each
    #[arg(long, default_value_t = 128)]
    object_size: usize,
    /// One of so many is written
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Threads that look
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Seconds of looks at random objects that were written
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// A durable heap: is made, filled and closed, or opened if it is there
    #[arg(long, value_name = "PATH")]
    heap: Option<PathBuf>,
    /// Settings of a durable heap
    #[arg(long, default_value = "ram:75%", value_name = "SETTINGS")]
    settings: String,
    /// Same seed, same objects
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Default, Serialize)]
struct IndexReport {
    objects: usize,
    object_bytes: usize,
    every: usize,
    threads: usize,
    open_ms: Option<f64>,
    first_look_ms: Option<f64>,
    allocate_seconds: Option<f64>,
    write_seconds: Option<f64>,
    checkpoint_seconds: Option<f64>,
    pause_ms: Option<f64>,
    looks: u64,
    looks_per_second: f64,
    index_bytes: usize,
    index_in_ram_bytes: Option<u64>,
    peak_ram_bytes: Option<u64>,
}

impl Index {
    /// Fills or opens, looks, and prints a JSON line.
    pub fn main(&self) -> Result<(), Failure> {
        signals::install();
        let mut report = IndexReport {
            objects: self.objects,
            object_bytes: self.object_size,
            every: self.every,
            threads: self.threads,
            index_bytes: self.objects * size_of::<u32>(),
            ..IndexReport::default()
        };
        let failed = |error: &dyn core::fmt::Display| Failure::Failed(error.to_string());
        match &self.heap {
            None => {
                let start = self.fill(&mut report, deepheap::objects::allocate)?;
                self.look(&mut report, start)?;
            }
            Some(path) => {
                let is_there = path.exists();
                let options = DurableOptions::parse(&self.settings);
                let options = options.map_err(|error| failed(&error))?;
                let begun = Instant::now();
                let heap = DurableHeap::open(path, &options).map_err(|error| failed(&error))?;
                let start = if is_there {
                    report.open_ms = Some(milliseconds(begun.elapsed()));
                    let start = heap.root(ROOT).addr();
                    if start == 0 {
                        return Err(Failure::Failed("the heap has no such objects".to_owned()));
                    }
                    self.check(start, self.objects / self.every / 2)?;
                    report.first_look_ms = Some(milliseconds(begun.elapsed()));
                    start
                } else {
                    let start =
                        self.fill(&mut report, |count, size| heap.allocate_objects(count, size))?;
                    let start_pointer = core::ptr::with_exposed_provenance(start);
                    heap.set_root(ROOT, start_pointer).map_err(|error| failed(&error))?;
                    let begun = Instant::now();
                    let made = heap.checkpoint().map_err(|error| failed(&error))?;
                    report.checkpoint_seconds = Some(begun.elapsed().as_secs_f64());
                    report.pause_ms = Some(milliseconds(made.pause));
                    start
                };
                self.look(&mut report, start)?;
                // SAFETY: nothing uses it any more.
                unsafe { heap.close() }.map_err(|error| failed(&error))?;
            }
        }
        output::json(&report)
    }

    fn fill(
        &self,
        report: &mut IndexReport,
        allocate: impl Fn(usize, usize) -> *mut u8,
    ) -> Result<usize, Failure> {
        let begun = Instant::now();
        let start = allocate(self.objects, self.object_size).expose_provenance();
        if start == 0 {
            return Err(Failure::Failed("the objects do not fit".to_owned()));
        }
        report.allocate_seconds = Some(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for number in 0..self.objects / self.every {
            let address = self.address(start, number);
            // SAFETY: a word of a live object of ours.
            unsafe { address.write_volatile(number as u64 + 1) };
            if number % 4096 == 0 {
                signals::interrupted()?;
            }
        }
        report.write_seconds = Some(begun.elapsed().as_secs_f64());
        Ok(start)
    }

    /// The object that was written as this one.
    fn address(&self, start: usize, number: usize) -> *mut u64 {
        let stride = deepheap::objects::stride(self.object_size);
        core::ptr::with_exposed_provenance_mut(start + number * self.every * stride)
    }

    fn check(&self, start: usize, number: usize) -> Result<(), Failure> {
        // SAFETY: a word of a live object of ours.
        let found = unsafe { self.address(start, number).read_volatile() };
        match found == number as u64 + 1 {
            true => Ok(()),
            false => Err(Failure::Failed(format!("object {number} holds {found}"))),
        }
    }

    fn look(&self, report: &mut IndexReport, start: usize) -> Result<(), Failure> {
        let (ended, looks) = (AtomicBool::new(false), AtomicU64::new(0));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads as u64)
                .map(|thread| {
                    let (ended, looks) = (&ended, &looks);
                    scope.spawn(move || {
                        let mut random = Random::new(self.seed, thread);
                        while !ended.load(Ordering::Relaxed) {
                            let count = (self.objects / self.every) as u64;
                            self.check(start, random.below(count) as usize)?;
                            looks.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
                .collect();
            let limit = Duration::from_secs_f64(self.seconds);
            while begun.elapsed() < limit && threads.iter().all(|thread| !thread.is_finished()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            ended.store(true, Ordering::Relaxed);
            let all = threads.into_iter().map(|thread| match thread.join() {
                Ok(outcome) => outcome,
                Err(_) => Err(Failure::Failed("a thread panicked".to_owned())),
            });
            all.collect::<Result<Vec<()>, Failure>>()
        })?;
        report.looks = looks.into_inner();
        report.looks_per_second = report.looks as f64 / begun.elapsed().as_secs_f64();
        report.index_in_ram_bytes = deepheap::stats().map(|stats| stats.object_table_bytes);
        report.peak_ram_bytes = gauges::status_bytes("VmHWM");
        Ok(())
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
