//! Checkpoints: what checkpoints of a durable heap cost the threads that write meanwhile and the
//! device, and how long a heap takes to open after its process was killed.
//!
//! One heap after the other: all pages are in RAM while threads write words at random, first alone,
//! then with checkpoints; one page or object in a hundred is changed and a checkpoint made; a
//! process that has written much to the log since its last checkpoint is killed, and the heap
//! opened.
//!
//! Guarantees: a wrong word ends it with an error. Its files are removed.
//! Threads: those that write, and the one that makes checkpoints.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use deepheap::{Checkpoint, DurableHeap, DurableOptions};
use deepheap_load::random::Random;
use serde::Serialize;

use super::new_folder;
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::signals::{self, Watched};
use crate::sizes::parse_bytes;
use crate::{gauges, output};

const PAGE: usize = 4096;
/// Bytes of a small object.
const SMALL: usize = 128;
/// Words that a thread writes between two looks at the clock.
const LOOK_EVERY: u64 = 64;
/// From the begin of one checkpoint to that of the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// Bits of a word that tell its place; the others are another time other ones.
const PLACE_BITS: u32 = 40;
/// The part that is changed: one of so many.
const PART: u64 = 100;

/// What `deepheap-bench checkpoints` takes.
#[derive(Clone, Debug, Args)]
pub struct Checkpoints {
    /// Bytes of data
    #[arg(long, value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    data: u64,
    /// RAM of the heap where its data is to be in RAM
    #[arg(long, value_parser = parse_bytes, default_value = "400M", value_name = "SIZE")]
    ram: u64,
    /// Threads that write
    #[arg(long, default_value_t = 8)]
    threads: usize,
    /// Seconds of writes alone, and with checkpoints
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// What they write is new each time, not what is there: all pages change
    #[arg(long)]
    changing: bool,
    /// Bytes that are written to the log before the process is killed
    #[arg(long, value_parser = parse_bytes, default_value = "2G", value_name = "SIZE")]
    log: u64,
    /// More settings of the heap
    #[arg(long, default_value = "compress:off", value_name = "SETTINGS")]
    settings: String,
    /// Folder for the files
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Writes to the log of this heap until it is killed
    #[arg(long, hide = true)]
    until_killed: Option<PathBuf>,
}

#[derive(Default, Serialize)]
struct Report {
    writes_per_s_alone: f64,
    writes_per_s_in_all: f64,
    writes_per_s_while_one_is_made: f64,
    checkpoints: usize,
    pause_ms_median: f64,
    pause_ms_most: f64,
    cut_ms_median: f64,
    cut_ms_most: f64,
    time_ms_median: f64,
    changes: Vec<Change>,
    log_bytes_since_checkpoint: u64,
    open_after_kill_ms: f64,
    first_access_after_kill_ms: f64,
}

/// What a checkpoint wrote after a part was changed.
#[derive(Serialize)]
struct Change {
    what: &'static str,
    changed_bytes: u64,
    written_bytes: u64,
    table_bytes: u64,
    ratio: f64,
    pause_ms: f64,
}

impl Checkpoints {
    /// Measures all and prints a JSON line.
    pub fn main(&self) -> Result<(), Failure> {
        if let Some(path) = &self.until_killed {
            return self.write_until_killed(path);
        }
        signals::install();
        let mut ledger = Ledger::open()?;
        let folder = new_folder(&mut ledger, &self.dir, "checkpoints")?;
        let mut report = Report::default();
        self.write_beside(&folder.join("beside"), &mut report)?;
        for what in ["pages at random", "pages side by side", "objects at random"] {
            report.changes.push(self.change(&folder.join("changes"), what)?);
        }
        self.kill(&folder.join("killed"), &mut report)?;
        output::json(&report)
    }

    fn open(&self, path: &Path, ram_bytes: u64, more: &str) -> Result<DurableHeap, Failure> {
        let text = format!("ram:{ram_bytes},{}{more}", self.settings);
        let options = DurableOptions::parse(&text).map_err(|error| failed(&error))?;
        DurableHeap::open(path, &options).map_err(|error| failed(&error))
    }

    /// A new heap with the data: each word has its place in it.
    fn make(&self, path: &Path, ram_bytes: u64) -> Result<(DurableHeap, usize), Failure> {
        let heap = self.open(path, ram_bytes, ",size:64G,store_size:16G")?;
        let start = heap.malloc(self.data as usize).expose_provenance();
        if start == 0 {
            return Err(Failure::Failed("no room for the data".into()));
        }
        for at in 0..self.data as usize / 8 {
            // SAFETY: memory of ours.
            unsafe { word(start, at).write_volatile(at as u64) };
        }
        heap.set_root("data", core::ptr::with_exposed_provenance(start))
            .map_err(|error| failed(&error))?;
        make_checkpoint(&heap)?;
        Ok((heap, start))
    }

    fn write_beside(&self, path: &Path, report: &mut Report) -> Result<(), Failure> {
        let (heap, start) = self.make(path, self.ram)?;
        let words = self.data / 8;
        let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let limit = Duration::from_secs(self.seconds);
        std::thread::scope(|scope| {
            for thread in 0..self.threads as u64 {
                let (is_over, done) = (&is_over, &done);
                scope.spawn(move || {
                    let mut random = Random::new(7, thread);
                    let mut version = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        version += u64::from(self.changing);
                        for _ in 0..LOOK_EVERY {
                            let at = random.below(words) as usize;
                            let value = at as u64 | version << PLACE_BITS;
                            // SAFETY: memory of ours; whichever of two threads writes, it is right.
                            unsafe { word(start, at).write_volatile(value) };
                        }
                        done.fetch_add(LOOK_EVERY, Ordering::Relaxed);
                    }
                });
            }
            let measured = (|| {
                signals::sleep(Duration::from_secs(1))?;
                let (begun, before) = (Instant::now(), done.load(Ordering::Relaxed));
                signals::sleep(limit)?;
                let rate = |since: u64, time: Duration| {
                    (done.load(Ordering::Relaxed) - since) as f64 / time.as_secs_f64()
                };
                report.writes_per_s_alone = rate(before, begun.elapsed());
                let (begun, before) = (Instant::now(), done.load(Ordering::Relaxed));
                let (mut making, mut beside) = (Duration::ZERO, 0);
                let mut made: Vec<Checkpoint> = Vec::new();
                while begun.elapsed() < limit {
                    let (began, then) = (Instant::now(), done.load(Ordering::Relaxed));
                    made.push(make_checkpoint(&heap)?);
                    making += began.elapsed();
                    beside += done.load(Ordering::Relaxed) - then;
                    signals::sleep(INTERVAL.saturating_sub(began.elapsed()))?;
                }
                report.writes_per_s_in_all = rate(before, begun.elapsed());
                report.writes_per_s_while_one_is_made = beside as f64 / making.as_secs_f64();
                report.checkpoints = made.len();
                let sorted = |of: fn(&Checkpoint) -> Duration| {
                    let mut all: Vec<f64> =
                        made.iter().map(|made| milliseconds(of(made))).collect();
                    all.sort_by(f64::total_cmp);
                    all
                };
                let (pauses, times) = (sorted(|made| made.pause), sorted(|made| made.time));
                let cuts = sorted(|made| made.cut);
                report.cut_ms_median = cuts[cuts.len() / 2];
                report.cut_ms_most = cuts[cuts.len() - 1];
                report.pause_ms_median = pauses[pauses.len() / 2];
                report.pause_ms_most = pauses[pauses.len() - 1];
                report.time_ms_median = times[times.len() / 2];
                Ok(())
            })();
            is_over.store(true, Ordering::Relaxed);
            measured
        })?;
        for at in 0..words as usize {
            check(start, at, (1 << PLACE_BITS) - 1)?;
        }
        close_and_remove(heap, path)
    }

    fn change(&self, path: &Path, what: &'static str) -> Result<Change, Failure> {
        let (heap, start) = self.make(path, self.ram)?;
        let mut random = Random::new(9, 0);
        let is_small = what == "objects at random";
        let size = if is_small { SMALL } else { PAGE };
        let count = self.data / size as u64;
        let objects = match is_small {
            true => heap.allocate_objects(count as usize, SMALL).expose_provenance(),
            false => start,
        };
        if objects == 0 {
            return Err(Failure::Failed("no room for the objects".into()));
        }
        let stride = if is_small { deepheap::objects::stride(SMALL) } else { PAGE };
        // SAFETY: a word of an object of ours.
        let write = |number: u64, value: u64| unsafe {
            word(objects + number as usize * stride, 1).write_volatile(value);
        };
        (0..count).for_each(|number| write(number, number));
        // What the first one leaves to do is done by the second.
        make_checkpoint(&heap)?;
        make_checkpoint(&heap)?;
        let before = written_bytes();
        for number in 0..count / PART {
            let at = if what == "pages side by side" { number } else { random.below(count) };
            write(at, number + (1 << 40));
        }
        let made = make_checkpoint(&heap)?;
        let written_bytes = written_bytes() - before;
        let changed_bytes = count / PART * size as u64;
        close_and_remove(heap, path)?;
        Ok(Change {
            what,
            changed_bytes,
            written_bytes,
            table_bytes: made.table_bytes,
            ratio: written_bytes as f64 / changed_bytes as f64,
            pause_ms: milliseconds(made.pause),
        })
    }

    /// Writes pages at random to a heap with a quarter of the RAM that its data takes, and says
    /// when that made so many bytes.
    fn write_until_killed(&self, path: &Path) -> Result<(), Failure> {
        let (_heap, start) = self.make(path, self.data / 4)?;
        let (mut random, before) = (Random::new(11, 0), written_bytes());
        let mut is_told = false;
        loop {
            for _ in 0..4096 {
                let at = random.below(self.data / 8) as usize;
                // SAFETY: memory of ours.
                unsafe { word(start, at).write_volatile(at as u64 + (1 << 40)) };
            }
            let written = written_bytes() - before;
            if written >= self.log && !is_told {
                is_told = true;
                output::line(written)?;
            }
        }
    }

    fn kill(&self, path: &Path, report: &mut Report) -> Result<(), Failure> {
        let program = std::env::current_exe();
        let mut command =
            Command::new(program.map_err(|error| Failure::os("this program", &error))?);
        command.arg("checkpoints").args(["--data", &self.data.to_string()]);
        command.args(["--log", &self.log.to_string(), "--settings", &self.settings]);
        command.arg("--until-killed").arg(path).stdout(Stdio::piped());
        signals::die_with_parent(&mut command);
        let os = |error: std::io::Error| Failure::os("the process that is killed", &error);
        let mut child = command.spawn().map_err(os)?;
        let watched = Watched::new(child.id())?;
        let mut line = String::new();
        if let Some(pipe) = child.stdout.take() {
            BufReader::new(pipe).read_line(&mut line).map_err(os)?;
        }
        watched.kill();
        child.wait().map_err(os)?;
        drop(watched);
        signals::interrupted()?;
        let written = line.trim().parse();
        report.log_bytes_since_checkpoint =
            written.map_err(|_| Failure::Failed("it ended by itself".into()))?;
        let begun = Instant::now();
        let heap = self.open(path, self.data / 4, "")?;
        report.open_after_kill_ms = milliseconds(begun.elapsed());
        let start = heap.root("data").expose_provenance();
        check(start, self.data as usize / 16, u64::MAX)?;
        report.first_access_after_kill_ms = milliseconds(begun.elapsed());
        for at in 0..self.data as usize / 8 {
            check(start, at, u64::MAX)?;
        }
        close_and_remove(heap, path)
    }
}

pub(super) fn failed(error: &dyn core::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// Bytes that this process has written to devices.
fn written_bytes() -> u64 {
    gauges::process_io().map_or(0, |transfer| transfer.written_bytes)
}

pub(super) fn make_checkpoint(heap: &DurableHeap) -> Result<Checkpoint, Failure> {
    heap.checkpoint().map_err(|error| failed(&error))
}

pub(super) fn close(heap: DurableHeap) -> Result<(), Failure> {
    // SAFETY: nothing uses it any more.
    unsafe { heap.close() }.map(drop).map_err(|error| failed(&error))
}

fn close_and_remove(heap: DurableHeap, path: &Path) -> Result<(), Failure> {
    close(heap)?;
    std::fs::remove_file(path).map_err(|error| Failure::os(path.display(), &error))
}

pub(super) fn word(start: usize, at: usize) -> *mut u64 {
    core::ptr::with_exposed_provenance_mut(start + 8 * at)
}

/// That a word, as far as these bits, is the one of its place.
pub(super) fn check(start: usize, at: usize, bits: u64) -> Result<(), Failure> {
    // SAFETY: memory of ours.
    match unsafe { word(start, at).read_volatile() } {
        found if found & bits == at as u64 => Ok(()),
        found => Err(Failure::Failed(format!("word {at} holds {found}"))),
    }
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
