//! Cgroup: a memory cgroup, version 1 or 2, made for one worker and removed after it.
//!
//! Version 1: a child of the cgroup this process is in, so that limits around us still hold.
//! Version 2: a child of the root, because a cgroup with processes cannot hand out controllers.
//!
//! Guarantees: the folder is in the ledger before it exists.
//! Never: changes or moves a cgroup or process that is not ours.
//! Threads: the supervising process makes it; the worker joins it and sets its limit.

use core::sync::atomic::{AtomicU32, Ordering};
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::ledger::{Entry, Ledger};
use crate::report::CgroupUse;
use crate::undo;

/// What the kernel does with swap for the processes inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapping {
    /// As eagerly as it can.
    Eager,
    /// Not at all.
    Off,
}

/// A memory cgroup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cgroup {
    folder: PathBuf,
    version: u32,
}

impl Cgroup {
    /// Makes an empty cgroup, not limited yet.
    pub fn create(ledger: &mut Ledger) -> Result<Self, Failure> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Failure::Refused(
                "this needs root: it makes a memory cgroup (and, for swap, a swap file). Run it \
                 with sudo, or measure --on deepheap or glibc as an ordinary user"
                    .into(),
            ));
        }
        let (parent, version) = find()?;
        // A run may have several.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(Ledger::name(&format!("cgroup{number}")));
        ledger.note(Entry::Cgroup(folder.clone()))?;
        fs::create_dir(&folder).map_err(|error| Failure::os(folder.display(), &error))?;
        Ok(Self { folder, version })
    }

    /// Moves the calling process inside.
    pub fn join(&self) -> Result<(), Failure> {
        self.write("cgroup.procs", "0")
    }

    /// Makes a command that is not started yet run inside.
    pub fn enclose(&self, command: &mut Command) -> Result<(), Failure> {
        use std::os::unix::process::CommandExt;
        let path = self.folder.join("cgroup.procs");
        let opened = OpenOptions::new().write(true).open(&path);
        let file = opened.map_err(|error| Failure::os(path.display(), &error))?;
        // SAFETY: between fork and exec only write is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(move || match libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) {
                1 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        Ok(())
    }

    /// Bytes in use now, kernel memory included.
    pub fn usage_bytes(&self) -> Result<u64, Failure> {
        let file = if self.version == 1 { "memory.usage_in_bytes" } else { "memory.current" };
        self.read(file).ok_or_else(|| Failure::last_os(self.folder.join(file).display()))
    }

    /// The same without the page cache of files, which the kernel takes back whenever it wants to.
    pub fn needed_bytes(&self) -> Result<u64, Failure> {
        let path = self.folder.join("memory.stat");
        let stat =
            fs::read_to_string(&path).map_err(|error| Failure::os(path.display(), &error))?;
        Ok(self.usage_bytes()?.saturating_sub(file_cache_bytes(&stat)))
    }

    /// Sets the limit, and how the processes inside swap.
    pub fn limit(&self, bytes: u64, swapping: Swapping) -> Result<(), Failure> {
        let value = bytes.to_string();
        match (self.version, swapping) {
            (1, Swapping::Eager) => {
                self.write("memory.limit_in_bytes", &value)?;
                self.write("memory.swappiness", "100")
            }
            (1, Swapping::Off) => {
                self.write("memory.limit_in_bytes", &value)?;
                self.write("memory.swappiness", "0")?;
                // Absent when the kernel does not account swap; swappiness 0 then has to do.
                let _ = self.write("memory.memsw.limit_in_bytes", &value);
                Ok(())
            }
            (_, Swapping::Eager) => {
                self.write_high(bytes)?;
                // Compressed RAM in front of a swap device would be measured instead of it.
                let _ = self.write("memory.zswap.max", "0");
                self.write("memory.swap.max", "max")
            }
            (_, Swapping::Off) => {
                self.write("memory.max", &value)?;
                let _ = self.write("memory.swap.max", "0");
                Ok(())
            }
        }
    }

    /// Lets processes inside wait for memory instead of being killed. Version 1 only; true if so.
    pub fn spare(&self) -> bool {
        self.version == 1 && self.write("memory.oom_control", "1").is_ok()
    }

    /// Whether processes inside wait for memory that nobody gives.
    pub fn is_stuck(&self) -> bool {
        let text = fs::read_to_string(self.folder.join("memory.oom_control")).unwrap_or_default();
        text.lines().any(|line| line == "under_oom 1")
    }

    /// Changes the limit that was set; false if more than that cannot be given up now.
    pub fn set_limit(&self, bytes: u64) -> bool {
        if self.version != 1 && self.read("memory.high").is_some() {
            return self.write_high(bytes).is_ok();
        }
        let file = if self.version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
        self.write(file, &bytes.to_string()).is_ok()
    }

    /// Version 2: threads beyond the limit reclaim, and wait if that frees nothing. At `memory.max`
    /// the kernel would kill them although there is swap; it does so a tenth above, which is what
    /// `Lender` lends with version 1.
    fn write_high(&self, bytes: u64) -> Result<(), Failure> {
        // First: what is above `memory.max` when that is set is a reason to kill.
        self.write("memory.high", &bytes.to_string())?;
        self.write("memory.max", &(bytes + bytes / 10).to_string())
    }

    /// Ends what runs inside, which was started by us.
    pub fn end_all(&self) {
        undo::end_all(&self.folder);
    }

    /// What happened inside so far.
    pub fn usage(&self, own_bytes: u64, limit_bytes: u64) -> CgroupUse {
        let v1 = self.version == 1;
        let peak = if v1 { "memory.max_usage_in_bytes" } else { "memory.peak" };
        CgroupUse {
            version: self.version,
            own_bytes,
            limit_bytes,
            peak_bytes: self.read(peak),
            kernel_peak_bytes: self.read("memory.kmem.max_usage_in_bytes"),
            oom_kills: self.oom_kills(),
        }
    }

    /// Processes killed for memory inside.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    fn read(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    fn write(&self, file: &str, value: &str) -> Result<(), Failure> {
        let path = self.folder.join(file);
        fs::write(&path, value).map_err(|error| Failure::os(path.display(), &error))
    }
}

/// Pages of files, of a memory.stat of either version. Shared memory is not among them.
fn file_cache_bytes(stat: &str) -> u64 {
    let of = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|bytes| bytes.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    of("active_file") + of("inactive_file")
}

/// The folder to make cgroups in, and the version of the memory controller.
fn find() -> Result<(PathBuf, u32), Failure> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (mounts, own) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
    let mut unified = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(mount_point) = left.split(' ').nth(4) else { continue };
        let mut fields = right.split(' ');
        let (kind, options) = (fields.next().unwrap_or(""), fields.next_back().unwrap_or(""));
        if kind == "cgroup" && options.split(',').any(|option| option == "memory") {
            let inside = own.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let controllers = parts.next()?;
                controllers.split(',').any(|name| name == "memory").then(|| parts.next())?
            });
            let root = PathBuf::from(mount_point);
            let mine = root.join(inside.unwrap_or("/").trim_start_matches('/'));
            return Ok((if mine.is_dir() { mine } else { root }, 1));
        }
        if kind == "cgroup2" {
            unified = Some(PathBuf::from(mount_point));
        }
    }
    if let Some(root) = unified {
        // Harmless when it is on already; the check below tells.
        let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        let on = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
        if on.split_whitespace().any(|controller| controller == "memory") {
            return Ok((root, 2));
        }
    }
    Err(Failure::Refused(
        "no memory cgroup: mount one (version 1: mount -t cgroup -o memory none \
         /sys/fs/cgroup/memory) or boot with cgroup_enable=memory; in a container with version 2, \
         move the processes of its root cgroup into a child first"
            .into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_cache_of_files_is_told_from_memory_that_is_needed() {
        let stat = "cache 900\nrss 500\nmapped_file 30\ninactive_anon 100\nactive_anon 400\n\
                    inactive_file 70\nactive_file 8\nunevictable 0\ntotal_inactive_file 1000\n";
        assert_eq!(file_cache_bytes(stat), 78);
        assert_eq!(file_cache_bytes(""), 0);
    }
}
