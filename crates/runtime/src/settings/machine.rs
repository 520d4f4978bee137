//! Machine: how much memory there is to share, by the kernel and by the memory cgroup.
//!
//! Guarantees: cgroup v1 and v2, every ancestor counted; what cannot be read does not limit.
//! Never: caches; limits can change.
//! Threads: any; reads a few small files.

use std::fs;
use std::path::{Path, PathBuf};

use deepheap_sys::memory::mapping;

/// Memory that this process may hope for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// MemTotal, in bytes: a container may be shown less than the machine has. Without /proc, what
    /// the machine has.
    pub memory_bytes: u64,
    /// The lowest limit of the memory cgroup and its ancestors, if there is one below MemTotal.
    pub cgroup_limit_bytes: Option<u64>,
}

impl Machine {
    /// Asks the kernel.
    pub fn read() -> Machine {
        let memory_bytes = fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| mem_total_bytes(&text))
            .unwrap_or_else(mapping::memory_bytes);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let cgroup_limit_bytes = limit_files(&groups)
            .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
            .min()
            .filter(|limit| *limit < memory_bytes);
        Machine { memory_bytes, cgroup_limit_bytes }
    }

    /// The lower of both: what `50%` is half of.
    pub fn usable_bytes(&self) -> u64 {
        self.cgroup_limit_bytes.unwrap_or(self.memory_bytes).min(self.memory_bytes)
    }
}

fn mem_total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The limit files of a process's memory cgroups and all their ancestors. The mount's own root
/// is among them: inside a container the path named may lie outside the mount.
fn limit_files(groups: &str) -> impl Iterator<Item = PathBuf> {
    groups.lines().filter_map(mount_of_line).flat_map(|(mount, file, group)| {
        let group = group.trim_start_matches('/').to_owned();
        let ancestors: Vec<PathBuf> =
            Path::new(&group).ancestors().map(|part| Path::new(mount).join(part)).collect();
        ancestors.into_iter().map(move |folder| folder.join(file))
    })
}

/// `0::/path` is version 2, `N:memory:/path` version 1.
fn mount_of_line(line: &str) -> Option<(&'static str, &'static str, &str)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    if controllers.is_empty() {
        Some(("/sys/fs/cgroup", "memory.max", group))
    } else if controllers.split(',').any(|name| name == "memory") {
        Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", group))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mem_total_is_in_kib() {
        let text = "MemTotal:       49376780 kB\nMemFree: 1 kB\n";
        assert_eq!(mem_total_bytes(text), Some(49_376_780 * 1024));
        assert_eq!(mem_total_bytes("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn limits_of_every_ancestor_count() {
        let files: Vec<_> = limit_files("0::/a/b\n3:cpu:/x\n7:memory:/c\n").collect();
        let expected = [
            "/sys/fs/cgroup/a/b/memory.max",
            "/sys/fs/cgroup/a/memory.max",
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/c/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
    }

    #[test]
    fn this_machine_has_memory() {
        let machine = Machine::read();
        assert!(machine.usable_bytes() > 64 << 20);
        assert!((machine.memory_bytes..1 << 60).contains(&mapping::memory_bytes()));
    }
}
