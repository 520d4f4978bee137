//! Maps: loads on the pages of a file, mapped by deepheap or by the kernel, with the same RAM.
//!
//! Each page of the file begins with its number, which every touch compares. The kernel's mapping
//! runs in a memory cgroup; deepheap's has its budget, and runs outside. With `--commit` one thread
//! stores scattered records and has them made durable, over and over. The loads are in `loads`.
//!
//! Guarantees: the file is written past the page cache's memory before anything is measured, and
//! removed at the end.
//! Threads: as many as asked, in as many processes; a further process for the kernel's mapping.

mod case;
mod device;
mod loads;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;
use deepheap::maps::{Advice, Map, MapError, MapOptions};

pub use self::case::{Load, Mapper, Maps, MapsReport};
use self::case::{Measured, PAGE};
use self::loads::Mapping;
use crate::cgroup::{Cgroup, Swapping};
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::{output, signals, supervisor};

const WRITE_BYTES: usize = 4 << 20;

/// A file that is removed with it.
pub struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Mapper {
    fn is_kernel(self) -> bool {
        matches!(self, Mapper::Mmap | Mapper::MmapPlain)
    }
}

/// Measures and prints a JSON line for each number of threads.
pub fn main(maps: &Maps) -> Result<(), Failure> {
    signals::install();
    if let Some(file) = &maps.inside {
        return measure(maps, file);
    }
    let file = Scratch(supervisor::folder(&maps.dir)?.join(Ledger::name("map")));
    make_file(&file.0, maps.on, maps.data)?;
    if !maps.on.is_kernel() {
        return measure(maps, &file.0);
    }
    let mut ledger = Ledger::open()?;
    let mut command = again(&file.0)?;
    let _cgroup = enclose(&mut command, maps.ram, &mut ledger)?;
    let status = command.status().map_err(|error| Failure::os("this program", &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("the run in the memory cgroup ended with {status}"))),
    }
}

/// This program with the same arguments, on a file that is written already.
fn again(file: &Path) -> Result<Command, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::os("this program", &error))?;
    let mut command = Command::new(own);
    command.args(std::env::args_os().skip(1)).arg("--inside").arg(file).stdin(Stdio::null());
    Ok(command)
}

fn enclose(command: &mut Command, ram: u64, ledger: &mut Ledger) -> Result<Cgroup, Failure> {
    let cgroup = Cgroup::create(ledger)?;
    cgroup.limit(ram, Swapping::Off)?;
    cgroup.enclose(command)?;
    Ok(cgroup)
}

/// Runs `maps` with these words in a process of its own, on a file that is written already and that
/// the page cache has forgotten; in a memory cgroup if the kernel maps it.
pub fn run_on(file: &Path, on: Mapper, ram: u64, words: &[String]) -> Result<MapsReport, Failure> {
    forget(&File::open(file).map_err(|error| Failure::os(file.display(), &error))?);
    let failed = |error: std::io::Error| Failure::os("this program", &error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    let name = on.to_possible_value().map_or(String::new(), |value| value.get_name().into());
    command.args(["maps", "--on", &name, "--ram", &ram.to_string(), "--inside"]).arg(file);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut ledger = Ledger::open()?;
    let _cgroup = match on.is_kernel() {
        true => Some(enclose(&mut command, ram, &mut ledger)?),
        false => None,
    };
    let child = command.spawn().map_err(failed)?;
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(Failure::Failed(format!("{name}: the run ended with {}", output.status)));
    }
    let reports = parse(&output.stdout)?;
    reports.into_iter().next().ok_or(Failure::Failed(format!("{name}: the run told nothing")))
}

fn parse(lines: &[u8]) -> Result<Vec<MapsReport>, Failure> {
    let report = |line| {
        serde_json::from_str(line).map_err(|error| Failure::Failed(format!("{line}: {error}")))
    };
    String::from_utf8_lossy(lines).lines().map(report).collect()
}

/// Writes the file that a mapper maps.
pub fn make_file(path: &Path, on: Mapper, data: u64) -> Result<(), Failure> {
    if on != Mapper::Log {
        return write_file(path, 0, data);
    }
    // The pages of a file with a log are its end.
    let options = MapOptions { writes: true, has_log: true, length: data, ..MapOptions::default() };
    drop(open(path, options)?);
    let bytes = std::fs::metadata(path).map_err(|error| Failure::os("the file", &error))?;
    write_file(path, bytes.len() - data, data)
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
    forget(&file);
    Ok(())
}

/// Has the page cache forget a file: what stays there would help one of the contenders.
fn forget(file: &File) {
    // SAFETY: no memory arguments.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

fn open(file: &Path, options: MapOptions) -> Result<Map, Failure> {
    Map::open(file, options)
        .map_err(|failure| Failure::Failed(format!("{}: {failure}", file.display())))
}

fn measure(maps: &Maps, file: &Path) -> Result<(), Failure> {
    let failed = |error: MapError| Failure::Failed(error.to_string());
    if maps.processes > 1 && !maps.alone {
        return measure_together(maps, file);
    }
    match maps.on {
        Mapper::Map | Mapper::Log => {
            let writes = maps.write > 0 || maps.commit.is_some();
            let has_log = maps.on == Mapper::Log;
            let options = MapOptions { writes, ram: maps.ram, has_log, ..Default::default() };
            let map = open(file, options)?;
            if maps.load != Load::Scan {
                map.advise(Advice::Random).map_err(failed)?;
            }
            let sync = || map.sync().map_err(failed);
            let mapping = Mapping { base: map.as_ptr() as usize, sync: &sync };
            rounds(maps, file, |threads| loads::run(maps, &mapping, threads))
        }
        Mapper::Mmap | Mapper::MmapPlain => {
            let at = mmap(file, maps.data as usize, maps.on)?;
            let sync = || {
                // SAFETY: the mapping, which stays.
                match unsafe { libc::msync(at.cast(), maps.data as usize, libc::MS_SYNC) } {
                    0 => Ok(()),
                    _ => Err(Failure::last_os("msync")),
                }
            };
            let mapping = Mapping { base: at as usize, sync: &sync };
            rounds(maps, file, |threads| loads::run(maps, &mapping, threads))
        }
        Mapper::Device => rounds(maps, file, |threads| device::run(maps, file, threads)),
    }
}

/// In several processes, whose operations are added up; the slowest one tells the latencies.
fn measure_together(maps: &Maps, file: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::os("this program", &error);
    let before = device_bytes(file);
    let children = (0..maps.processes).map(|_| {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(std::env::args_os().skip(1))
            .arg("--alone")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if maps.inside.is_none() {
            command.arg("--inside").arg(file);
        }
        command.spawn()
    });
    let children: Vec<_> = children.collect::<Result<_, _>>().map_err(failed)?;
    let mut sums: Vec<MapsReport> = Vec::new();
    for child in children {
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            return Err(Failure::Failed(format!("one of the processes ended: {}", output.status)));
        }
        let reports = parse(&output.stdout)?;
        if sums.is_empty() {
            sums = reports;
            continue;
        }
        for (sum, one) in sums.iter_mut().zip(reports) {
            sum.ops_per_second += one.ops_per_second;
            sum.p50_ns = sum.p50_ns.max(one.p50_ns);
            sum.p99_ns = sum.p99_ns.max(one.p99_ns);
        }
    }
    let written = device_bytes(file).zip(before).map(|(after, before)| after - before);
    for mut sum in sums {
        (sum.processes, sum.device_bytes_written) = (maps.processes, written);
        output::json(&sum)?;
    }
    Ok(())
}

/// Bytes that the device of this file has written since the machine runs, if it tells.
fn device_bytes(file: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(file).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let told = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    Some(told.split_whitespace().nth(6)?.parse::<u64>().ok()? * 512)
}

fn mmap(path: &Path, bytes: usize, on: Mapper) -> Result<*mut u8, Failure> {
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| Failure::os(path.display(), &error))?;
    let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    let advice = if on == Mapper::Mmap { libc::MADV_RANDOM } else { libc::MADV_NORMAL };
    // SAFETY: a new mapping wherever the kernel likes; it stays.
    unsafe {
        let at = libc::mmap(core::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0);
        if at == libc::MAP_FAILED || libc::madvise(at, bytes, advice) != 0 {
            return Err(Failure::last_os("mmap"));
        }
        Ok(at.cast())
    }
}

fn rounds(
    maps: &Maps,
    file: &Path,
    load: impl Fn(u64) -> Result<Measured, Failure>,
) -> Result<(), Failure> {
    let one = maps.commit.is_some() || maps.load != Load::Touch;
    for &threads in if one { &[1][..] } else { &maps.threads[..] } {
        let before = device_bytes(file);
        let (times, measured_seconds) = load(threads)?;
        let after = device_bytes(file);
        output::json(&MapsReport {
            on: maps.on,
            load: maps.load,
            data_bytes: maps.data,
            ram_bytes: maps.ram,
            processes: 1,
            threads,
            write_percent: maps.write,
            seed: maps.seed,
            ops_per_second: times.total() as f64 / measured_seconds,
            p50_ns: times.percentile(0.5),
            p99_ns: times.percentile(0.99),
            record_bytes: maps.record,
            commit: maps.commit,
            measured_seconds,
            device_bytes_written: after.zip(before).map(|(after, before)| after - before),
        })?;
    }
    Ok(())
}
