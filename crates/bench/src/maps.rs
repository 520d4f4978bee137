//! Maps: touches at random pages of a file, mapped by deepheap or by the kernel, with the same RAM.
//!
//! Each page of the file begins with its number, which every touch compares. The kernel's mapping
//! is advised as random and runs in a memory cgroup; deepheap's has its budget, and runs outside.
//! With `--commit` one thread stores scattered records and has them made durable, over and over.
//!
//! Guarantees: the file is written past the page cache's memory before anything is measured, and
//! removed at the end.
//! Threads: as many as asked; a second process for the kernel's mapping.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use deepheap::maps::{Advice, Map, MapError, MapOptions};
use deepheap_load::histogram::Histogram;
use deepheap_load::random::Random;
use serde::Serialize;

use crate::cgroup::{Cgroup, Swapping};
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::sizes::parse_bytes;
use crate::{output, signals, supervisor};

const PAGE: usize = 4096;
const WRITE_BYTES: usize = 4 << 20;
/// Before times count: RAM is full by then.
const WARM_UP: Duration = Duration::from_secs(3);

/// Who maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mapper {
    /// deepheap, in place
    Map,
    /// deepheap, with a log
    Log,
    /// The kernel, with MADV_RANDOM, in a memory cgroup; needs root
    Mmap,
}

/// What `deepheap-bench maps` takes.
#[derive(Clone, Debug, Args)]
pub struct Maps {
    /// Who maps the file
    #[arg(long, value_enum, default_value = "map")]
    on: Mapper,
    /// Bytes of the file
    #[arg(long, value_parser = parse_bytes, default_value = "4G", value_name = "SIZE")]
    data: u64,
    /// RAM
    #[arg(long, value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    ram: u64,
    /// Threads, one run for each number
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    threads: Vec<u64>,
    /// Percent of the touches that write
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    write: u32,
    /// Bytes that a touch that writes stores
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(8..=2048))]
    record: u32,
    /// Commits instead of touches: so many records are stored, then made durable
    #[arg(long, value_name = "RECORDS")]
    commit: Option<u64>,
    /// Seconds to measure
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Where the file lies
    #[arg(long, default_value = ".", value_name = "PATH")]
    dir: PathBuf,
    /// Same seed, same pages
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The file, written already, and this process is in its cgroup
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

#[derive(Serialize)]
struct MapsReport {
    on: Mapper,
    data_bytes: u64,
    ram_bytes: u64,
    threads: u64,
    write_percent: u32,
    seed: u64,
    ops_per_second: f64,
    p50_ns: u64,
    p99_ns: u64,
    record_bytes: u32,
    /// Records of a commit; then the operations and times are those of commits.
    commit: Option<u64>,
    /// What the file's device wrote meanwhile, whoever had asked for it.
    device_bytes_written: Option<u64>,
}

/// A file that is removed with it.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Measures and prints a JSON line for each number of threads.
pub fn main(maps: &Maps) -> Result<(), Failure> {
    signals::install();
    if let Some(file) = &maps.inside {
        return measure(maps, file);
    }
    let file = Scratch(supervisor::folder(&maps.dir)?.join(Ledger::name("map")));
    if maps.on == Mapper::Log {
        // The pages of a file with a log are its end.
        let options = MapOptions { writes: true, has_log: true, ..options(maps) };
        drop(open(&file.0, MapOptions { length: maps.data, ..options })?);
        let bytes = std::fs::metadata(&file.0).map_err(|error| Failure::os("the file", &error))?;
        write_file(&file.0, bytes.len() - maps.data, maps.data)?;
    } else {
        write_file(&file.0, 0, maps.data)?;
    }
    if maps.on != Mapper::Mmap {
        return measure(maps, &file.0);
    }
    let mut ledger = Ledger::open()?;
    let cgroup = Cgroup::create(&mut ledger)?;
    cgroup.limit(maps.ram, Swapping::Off)?;
    let own = std::env::current_exe().map_err(|error| Failure::os("this program", &error))?;
    let mut command = Command::new(own);
    command.args(std::env::args_os().skip(1)).arg("--inside").arg(&file.0).stdin(Stdio::null());
    cgroup.enclose(&mut command)?;
    let status = command.status().map_err(|error| Failure::os("this program", &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("the run in the memory cgroup ended with {status}"))),
    }
}

fn write_file(path: &Path, at: u64, bytes: u64) -> Result<(), Failure> {
    let failed = |error| Failure::os(path.display(), &error);
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.map_err(failed)?;
    let mut buffer = vec![0u8; WRITE_BYTES];
    for start in (0..bytes).step_by(WRITE_BYTES) {
        for (index, page) in buffer.chunks_mut(PAGE).enumerate() {
            page[..8].copy_from_slice(&(start / PAGE as u64 + index as u64).to_le_bytes());
        }
        let length = WRITE_BYTES.min((bytes - start) as usize);
        file.write_all_at(&buffer[..length], at + start).map_err(failed)?;
        signals::interrupted()?;
    }
    file.sync_all().map_err(failed)?;
    // SAFETY: no memory arguments. What stays in the page cache would help one of the two.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

fn options(maps: &Maps) -> MapOptions {
    let writes = maps.write > 0 || maps.commit.is_some();
    MapOptions {
        writes,
        length: 0,
        ram: maps.ram,
        has_log: maps.on == Mapper::Log,
        ..Default::default()
    }
}

fn open(file: &Path, options: MapOptions) -> Result<Map, Failure> {
    Map::open(file, options)
        .map_err(|failure| Failure::Failed(format!("{}: {failure}", file.display())))
}

fn measure(maps: &Maps, file: &Path) -> Result<(), Failure> {
    let failed = |error: MapError| Failure::Failed(error.to_string());
    match maps.on {
        Mapper::Map | Mapper::Log => {
            let map = open(file, options(maps))?;
            map.advise(Advice::Random).map_err(failed)?;
            let sync = || map.sync().map_err(failed);
            rounds(maps, file, map.as_ptr() as usize, &sync)
        }
        Mapper::Mmap => {
            let at = mmap(file, maps.data as usize)?;
            let sync = || {
                // SAFETY: the mapping, which stays.
                match unsafe { libc::msync(at.cast(), maps.data as usize, libc::MS_SYNC) } {
                    0 => Ok(()),
                    _ => Err(Failure::last_os("msync")),
                }
            };
            rounds(maps, file, at as usize, &sync)
        }
    }
}

/// Bytes that the device of this file has written since the machine runs, if it tells.
fn device_bytes(file: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(file).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let told = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    Some(told.split_whitespace().nth(6)?.parse::<u64>().ok()? * 512)
}

fn mmap(path: &Path, bytes: usize) -> Result<*mut u8, Failure> {
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| Failure::os(path.display(), &error))?;
    let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: a new mapping wherever the kernel likes; it stays.
    unsafe {
        let at = libc::mmap(core::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0);
        if at == libc::MAP_FAILED || libc::madvise(at, bytes, libc::MADV_RANDOM) != 0 {
            return Err(Failure::last_os("mmap"));
        }
        Ok(at.cast())
    }
}

fn rounds(
    maps: &Maps,
    file: &Path,
    base: usize,
    sync: &dyn Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    for &threads in &maps.threads {
        let before = device_bytes(file);
        let times = match maps.commit {
            Some(records) => commit(maps, base, records, sync)?,
            None => touch(maps, base, threads)?,
        };
        let after = device_bytes(file);
        output::json(&MapsReport {
            on: maps.on,
            data_bytes: maps.data,
            ram_bytes: maps.ram,
            threads,
            write_percent: maps.write,
            seed: maps.seed,
            ops_per_second: times.total() as f64 / maps.seconds,
            p50_ns: times.percentile(0.5),
            p99_ns: times.percentile(0.99),
            record_bytes: maps.record,
            commit: maps.commit,
            device_bytes_written: after.zip(before).map(|(after, before)| after - before),
        })?;
    }
    Ok(())
}

/// Stores records at random and has them made durable, over and over; answers how long that took
/// each time, without the stores.
fn commit(
    maps: &Maps,
    base: usize,
    records: u64,
    sync: &dyn Fn() -> Result<(), Failure>,
) -> Result<Histogram, Failure> {
    let mut random = Random::new(maps.seed, 0);
    let mut times = Histogram::default();
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < maps.seconds {
        for _ in 0..records {
            let page = random.below(maps.data / PAGE as u64);
            store_record(maps, base, page, &mut random);
        }
        let before = Instant::now();
        sync()?;
        times.record(before.elapsed().as_nanos() as u64, 1);
        signals::interrupted()?;
    }
    Ok(times)
}

/// Stores a record of a page, not the first: that has the page's number.
fn store_record(maps: &Maps, base: usize, page: u64, random: &mut Random) {
    let bytes = u64::from(maps.record).next_multiple_of(8);
    let record = 1 + random.below(PAGE as u64 / bytes - 1);
    let at = base + page as usize * PAGE + (record * bytes) as usize;
    let value = random.below(u64::MAX);
    for word in 0..bytes as usize / 8 {
        // SAFETY: words of the mapping, which is as long as the data.
        let word = unsafe { AtomicU64::from_ptr((at + word * 8) as *mut u64) };
        word.store(value, Ordering::Relaxed);
    }
}

/// Touches pages in all threads; answers how long each touch took.
fn touch(maps: &Maps, base: usize, threads: u64) -> Result<Histogram, Failure> {
    let (counts, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let run = |thread: u64| {
        let mut random = Random::new(maps.seed, thread);
        let mut times = Histogram::default();
        while !ends.load(Ordering::Relaxed) {
            let page = random.below(maps.data / PAGE as u64);
            let writes = random.percent(maps.write);
            let began = Instant::now();
            let at = (base + page as usize * PAGE) as *mut u64;
            // SAFETY: a word of the mapping, which is as long as the data.
            let number = unsafe { AtomicU64::from_ptr(at) };
            let found = number.load(Ordering::Relaxed);
            if writes {
                store_record(maps, base, page, &mut random);
            }
            if found != page {
                return Err(Failure::Failed(format!("page {page} says that it is {found}")));
            }
            if counts.load(Ordering::Relaxed) {
                times.record(began.elapsed().as_nanos() as u64, 1);
            }
        }
        Ok(times)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let slept = signals::sleep(WARM_UP).and_then(|()| {
            counts.store(true, Ordering::Relaxed);
            signals::sleep(Duration::from_secs_f64(maps.seconds))
        });
        counts.store(false, Ordering::Relaxed);
        ends.store(true, Ordering::Relaxed);
        let mut times = Histogram::default();
        for thread in threads {
            let of_thread = thread.join();
            times.merge(&of_thread.map_err(|_| Failure::Failed("a thread ended".into()))??);
        }
        slept.map(|()| times)
    })
}
