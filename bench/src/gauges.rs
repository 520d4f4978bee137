//! Gauges: what the kernel counts about this process, this machine and one block device.
//!
//! Guarantees: a gauge that this kernel does not have reads None.
//! Never: writes anything.
//! Threads: any; the worker's main thread reads them between phases.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use deepheap_tools::drive::{ENDURANCE_BYTES, life_years};

use crate::report::Transfer;

const SECTOR_BYTES: u64 = 512;

/// The block device below a folder.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    name: String,
    stat: PathBuf,
}

impl BlockDevice {
    /// The device that holds `dir`: its own number, or that of its mount's source (overlay, btrfs).
    pub fn below(dir: &Path) -> Option<Self> {
        let device = fs::metadata(dir).ok()?.dev();
        Self::by_number(device).or_else(|| {
            use std::os::unix::fs::FileTypeExt;
            let source = fs::metadata(mount_source(device)?).ok()?;
            source.file_type().is_block_device().then(|| Self::by_number(source.rdev())).flatten()
        })
    }

    fn by_number(device: u64) -> Option<Self> {
        let folder = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
        let name = fs::canonicalize(&folder).ok()?.file_name()?.to_str()?.to_string();
        Some(Self { name, stat: Path::new(&folder).join("stat") })
    }

    /// Its name in /sys/block or /proc/partitions.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    pub fn bytes(&self) -> Option<u64> {
        let sectors = fs::read_to_string(self.stat.with_file_name("size")).ok()?;
        sectors.trim().parse::<u64>().ok().map(|sectors| sectors * SECTOR_BYTES)
    }

    /// Bytes read and written since boot.
    pub fn read(&self) -> Option<Transfer> {
        let text = fs::read_to_string(&self.stat).ok()?;
        let fields: Vec<u64> = text.split_whitespace().map_while(|f| f.parse().ok()).collect();
        Some(Transfer {
            of: self.name.clone(),
            read_bytes: fields.get(2)? * SECTOR_BYTES,
            written_bytes: fields.get(6)? * SECTOR_BYTES,
        })
    }
}

/// The source field of the mount with this device number.
fn mount_source(device: u64) -> Option<String> {
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (left.split(' ').nth(2)? == wanted).then(|| right.split(' ').nth(1).map(str::to_string))?
    })
}

/// Bytes the kernel booked to this process on its devices.
pub fn process_io() -> Option<Transfer> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    let field = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    Some(Transfer {
        of: "process".into(),
        read_bytes: field("read_bytes:")?,
        written_bytes: field("write_bytes:")?,
    })
}

/// What was transferred between two readings.
pub fn transferred(before: Option<Transfer>, after: Option<Transfer>) -> Option<Transfer> {
    let (before, after) = (before?, after?);
    Some(Transfer {
        of: after.of,
        read_bytes: after.read_bytes.saturating_sub(before.read_bytes),
        written_bytes: after.written_bytes.saturating_sub(before.written_bytes),
    })
}

/// A size of /proc/self/status (`VmHWM`, `VmPTE`), in bytes.
pub fn status_bytes(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// User and system time of this process, all threads, in microseconds.
pub fn process_cpu_us() -> u64 {
    // SAFETY: rusage is plain data; all zero is a valid value.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: a valid pointer to a rusage; RUSAGE_SELF cannot fail otherwise.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// User and system time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    cpu_time_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// User and system time of this process, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    cpu_time_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu_time_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Time all CPUs of the machine were busy since boot (not idle, waiting or stolen), microseconds.
pub fn machine_cpu_us() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|f| f.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is part of user.
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|&i| ticks.get(i)).sum::<u64>();
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    (per_second > 0).then(|| busy * 1_000_000 / per_second as u64)
}

/// Bytes free to us on the file system of `dir`, and its type's magic number.
pub fn file_system(dir: &Path) -> std::io::Result<(u64, i64)> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: statfs is plain data; all zero is a valid value.
    let mut answer: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: a terminated path and a valid pointer to the answer.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut answer) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok((answer.f_bavail * answer.f_bsize as u64, answer.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauges_of_this_process_read() {
        assert!(status_bytes("VmHWM").is_some_and(|bytes| bytes > 100_000));
        assert!(status_bytes("VmPTE").is_some_and(|bytes| bytes > 4_000));
        assert!(machine_cpu_us().is_some_and(|us| us > 0));
        assert!(file_system(Path::new("/")).is_ok_and(|(free, _)| free > 0));
    }
}
