//! Obstacles: what deepheap cannot run without, probed one by one, with the fix for what is
//! missing.
//!
//! Guarantees: every probe does the thing itself where that is possible, instead of asking for
//! versions; nothing of the machine is changed.
//! Never: writes to a file.
//! Threads: one, at start-up; not for fault paths.

use core::fmt;
use std::fs;
use std::path::Path;

use deepheap_sys::Errno;
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::page_extractor::sees_stores;
use deepheap_sys::memory::userfaultfd::{Userfaultfd, feature};

use crate::settings::limits;
use crate::stats::report::bytes;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As it should be.
    Pass,
    /// It works, but not as well as it could.
    Warn,
    /// deepheap cannot run.
    Fail,
}

/// The finding about one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The thing.
    pub name: &'static str,
    /// The finding, in words.
    pub text: String,
    /// What to do; present unless it is a pass.
    pub fix: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn pass(name: &'static str, text: impl Into<String>) -> Finding {
        Finding { severity: Severity::Pass, name, text: text.into(), fix: None }
    }

    /// It works, but not as well as it could.
    pub fn warn(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warn, name, text: text.into(), fix: Some(fix.into()) }
    }

    /// deepheap cannot run.
    pub fn fail(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { severity: Severity::Fail, name, text: text.into(), fix: Some(fix.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.name, self.text)?;
        match &self.fix {
            Some(fix) => write!(out, ": {fix}"),
            None => Ok(()),
        }
    }
}

/// Address space that one heap reserves, in bytes: its region, and its tables at most.
const REGION_BYTES: usize = (1 << 42) + (1 << 38);
/// Alignment of it.
const REGION_ALIGN: usize = 1 << 26;
/// Descriptors that deepheap opens beside the program's: the store, io_uring, userfaultfd, the
/// pipes of eviction, the statistics.
const DESCRIPTORS: u64 = 64;
/// As many open files are usual.
const USUAL_OPEN_FILES: u64 = 1024;

/// The first probes, one by one: without descriptors nothing else can be probed.
pub const PROBES: [fn() -> Finding; 5] =
    [open_files, kernel_faults, || exclusive_pages(sees_stores()), address_space, overcommit];

/// The first thing without which a program cannot run; cheap enough for every start.
pub fn first_obstacle() -> Option<Finding> {
    PROBES.iter().map(|probe| probe()).find(|finding| finding.severity == Severity::Fail)
}

fn kernel_faults() -> Finding {
    const NAME: &str = "userfaultfd";
    match Userfaultfd::open() {
        Ok(opened) => {
            let features = [
                (feature::EXACT_ADDRESS, "exact addresses"),
                (feature::POISON, "poison"),
                (feature::MOVE, "move"),
                // Nothing uses it yet.
                (feature::TRACKS_ACCESS, "access tracking"),
            ];
            let has = |wanted: bool| {
                let of = |&(bit, name)| ((opened.features() & bit != 0) == wanted).then_some(name);
                features.iter().filter_map(of).collect::<Vec<&str>>().join(", ")
            };
            let without = match has(false).as_str() {
                "" => String::new(),
                lacking => format!(", not needed and not there: {lacking}"),
            };
            Finding::pass(NAME, format!("user mode, SIGBUS mode, {}{without}", has(true)))
        }
        Err(errno) => refused_userfaultfd(errno),
    }
}

/// The finding on a userfaultfd that could not be opened, where its device is in this file system
/// or is not.
fn no_kernel_faults(errno: Errno, has_device: bool) -> Finding {
    const NAME: &str = "userfaultfd";
    let text = match errno {
        Errno::ENOSYS => "this kernel does not have it, or a seccomp filter hides it".to_owned(),
        Errno::EPERM => "a seccomp filter forbids it, as containers do by default".to_owned(),
        error => format!("cannot be opened in user and SIGBUS mode ({error})"),
    };
    if errno != Errno::ENOSYS && errno != Errno::EPERM {
        return Finding::fail(NAME, text, "use Linux 5.19 or later");
    }
    let device = match has_device {
        true => {
            "let this user open /dev/userfaultfd, which is here (on the host: sudo chmod 666 \
             /dev/userfaultfd)"
        }
        false => "give the container the device: docker run --device /dev/userfaultfd",
    };
    let old = match errno {
        Errno::ENOSYS => "; outside of containers use Linux 5.19 or later with CONFIG_USERFAULTFD",
        _ => "",
    };
    let fix = format!(
        "{device}; or allow the system call userfaultfd in the container's seccomp profile{old}"
    );
    Finding::fail(NAME, text, fix)
}

/// The finding where a start could not open a userfaultfd.
pub(crate) fn refused_userfaultfd(errno: Errno) -> Finding {
    no_kernel_faults(errno, Path::new("/dev/userfaultfd").exists())
}

/// The finding on what `sees_stores` has answered.
pub(crate) fn exclusive_pages(seen: Result<bool, Errno>) -> Finding {
    const NAME: &str = "exclusive pages";
    match seen {
        Ok(true) => Finding::pass(NAME, "a write to a page that is being evicted is not lost"),
        Ok(false) => Finding::fail(
            NAME,
            "this kernel copies a page that is written to while it is evicted, and the write could \
             be lost",
            "use Linux 5.19 or later",
        ),
        Err(Errno::EPERM | Errno::ENOSYS) => Finding::fail(
            NAME,
            "a seccomp filter forbids vmsplice, as Podman's default profile does, and pages cannot \
             be moved in its place, as Linux 6.8 and later do",
            "allow vmsplice in the container's seccomp profile (podman run --security-opt \
             seccomp=PROFILE; docs/install.md says how to make one)",
        ),
        Err(error) => Finding::fail(
            NAME,
            format!(
                "it cannot be found out whether writes to pages on their way are kept ({error})"
            ),
            "raise the limits on open files (ulimit -n) and memory (ulimit -v)",
        ),
    }
}

fn address_space() -> Finding {
    const NAME: &str = "address space";
    match mapping::reserve(REGION_BYTES, REGION_ALIGN, 0) {
        Ok(region) => {
            // SAFETY: reserved a line above, and nobody else knows of it.
            let _ = unsafe { mapping::unmap(region, REGION_BYTES) };
            Finding::pass(NAME, format!("{} can be reserved", bytes(REGION_BYTES as u64)))
        }
        Err(error) => {
            let needed = bytes(REGION_BYTES as u64);
            match limits::address_space() {
                Some(limit) => Finding::fail(
                    NAME,
                    format!("ulimit -v is {}, deepheap reserves {needed}", bytes(limit.soft)),
                    limit.fix("-v", "unlimited", u64::MAX),
                ),
                None => Finding::fail(
                    NAME,
                    format!("{needed} cannot be reserved ({error})"),
                    "set vm.overcommit_memory to 0 or 1, and run on a machine with 47 bits of \
                     user addresses",
                ),
            }
        }
    }
}

fn open_files() -> Finding {
    const NAME: &str = "open files";
    let open = match fs::read_dir("/proc/self/fd") {
        Ok(open) => open.count() as u64,
        // One more cannot be opened to count them.
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => u64::MAX,
        Err(_) => 0,
    };
    match limits::open_files() {
        Some(limit) if limit.soft < open.saturating_add(DESCRIPTORS) => {
            let soft = limit.soft;
            let needed = match open {
                u64::MAX => DESCRIPTORS,
                open => open + DESCRIPTORS,
            };
            Finding::fail(
                NAME,
                format!("ulimit -n is {soft}, deepheap needs {DESCRIPTORS} beside the program's"),
                limit.fix("-n", &USUAL_OPEN_FILES.to_string(), needed),
            )
        }
        Some(limit) => Finding::pass(NAME, format!("ulimit -n is {}", limit.soft)),
        None => Finding::pass(NAME, "no limit"),
    }
}

fn overcommit() -> Finding {
    const NAME: &str = "overcommit";
    match number_in("/proc/sys/vm/overcommit_memory") {
        Some(2) => Finding::fail(
            NAME,
            "vm.overcommit_memory is 2: the kernel counts what is stored on SSD as memory",
            "sudo sysctl vm.overcommit_memory=0",
        ),
        Some(mode) => Finding::pass(NAME, format!("vm.overcommit_memory is {mode}")),
        None => Finding::pass(NAME, "the kernel does not tell vm.overcommit_memory"),
    }
}

/// The number that a file of the kernel holds.
pub fn number_in(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_copies_pages_on_their_way_is_refused_with_the_reason_and_the_fix() {
        let finding = exclusive_pages(Ok(false));
        assert_eq!(finding.severity, Severity::Fail);
        assert_eq!(
            finding.to_string(),
            "exclusive pages: this kernel copies a page that is written to while it is evicted, \
             and the write could be lost: use Linux 5.19 or later"
        );
        assert_eq!(exclusive_pages(Err(Errno::EMFILE)).severity, Severity::Fail);
        assert_eq!(exclusive_pages(Ok(true)).severity, Severity::Pass);
    }

    #[test]
    fn a_filter_that_forbids_vmsplice_is_named_with_its_cure() {
        for errno in [Errno::EPERM, Errno::ENOSYS] {
            let said = exclusive_pages(Err(errno)).to_string();
            assert!(said.contains("forbids vmsplice"), "{said}");
            assert!(said.contains("--security-opt seccomp="), "{said}");
        }
    }

    #[test]
    fn without_userfaultfd_the_device_is_named_first() {
        for errno in [Errno::EPERM, Errno::ENOSYS] {
            let fix = no_kernel_faults(errno, false).fix.expect("a fix");
            assert!(fix.starts_with("give the container the device: docker run --device "));
            let fix = no_kernel_faults(errno, true).fix.expect("a fix");
            assert!(fix.starts_with("let this user open /dev/userfaultfd"), "{fix}");
        }
    }
}
