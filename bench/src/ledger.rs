//! Ledger: what a run has made on the machine and must take back, written down before it is made.
//!
//! A file `deepheap-bench.PID.ledger` in /run (for others than root, the temporary folder), locked
//! for as long as its process lives. One line for each thing: swap file, zram device, cgroup, file,
//! mount, folder, old vm.page-cluster. The run undoes its own lines last to first, on success, on
//! error and after SIGINT or SIGTERM; what a killed run left is undone by the next one, which finds
//! the ledger without a lock.
//!
//! Guarantees: a thing is in the ledger before it exists; undoing what does not exist is no error.
//! Never: removes anything that is not in a ledger of ours.
//! Threads: the supervising thread only.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::Failure;
use crate::undo;

const PREFIX: &str = "deepheap-bench.";
const SUFFIX: &str = ".ledger";

/// A thing to take back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Remove this folder below the cgroup mount.
    Cgroup(PathBuf),
    /// swapoff and remove this file.
    SwapFile(PathBuf),
    /// Remove this file.
    File(PathBuf),
    /// Set vm.page-cluster to this.
    PageCluster(u32),
    /// swapoff and remove the zram device of this number.
    Zram(u32),
    /// Unmount and remove this folder.
    Mount(PathBuf),
    /// Remove this folder, and all that is in it.
    Folder(PathBuf),
}

impl Entry {
    fn to_line(&self) -> String {
        match self {
            Self::Cgroup(path) => format!("cgroup {}\n", path.display()),
            Self::SwapFile(path) => format!("swap {}\n", path.display()),
            Self::File(path) => format!("file {}\n", path.display()),
            Self::PageCluster(value) => format!("page-cluster {value}\n"),
            Self::Zram(number) => format!("zram {number}\n"),
            Self::Mount(path) => format!("mount {}\n", path.display()),
            Self::Folder(path) => format!("folder {}\n", path.display()),
        }
    }

    fn from_line(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "cgroup" => Some(Self::Cgroup(rest.into())),
            "swap" => Some(Self::SwapFile(rest.into())),
            "file" => Some(Self::File(rest.into())),
            "page-cluster" => rest.parse().ok().map(Self::PageCluster),
            "zram" => rest.parse().ok().map(Self::Zram),
            "mount" => Some(Self::Mount(rest.into())),
            "folder" => Some(Self::Folder(rest.into())),
            _ => None,
        }
    }

    fn undo(&self) -> std::io::Result<()> {
        match self {
            Self::Cgroup(path) => undo::cgroup(path),
            Self::SwapFile(path) => undo::swap_file(path),
            Self::File(path) => undo::file(path),
            Self::PageCluster(value) => undo::set_page_cluster(*value),
            Self::Zram(number) => undo::zram(*number),
            Self::Mount(path) => undo::mount(path),
            Self::Folder(path) => undo::folder(path),
        }
    }
}

/// The ledger of this run. Dropping it undoes everything.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    entries: Vec<Entry>,
}

impl Ledger {
    /// Undoes what killed runs left, then opens a ledger for this run.
    pub fn open() -> Result<Self, Failure> {
        let folder = folder();
        undo_stale(&folder);
        static OPENED: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
        let number = OPENED.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let path = folder.join(format!("{PREFIX}{}-{number}{SUFFIX}", std::process::id()));
        loop {
            let options = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
            let file = options.map_err(|error| Failure::os(path.display(), &error))?;
            // Another run may take the new file for a stale one, before we lock it, and remove it.
            if lock(&file, libc::LOCK_EX) && is_at(&file, &path) {
                return Ok(Self { path, file, entries: Vec::new() });
            }
        }
    }

    /// Writes down a thing that is about to be made.
    pub fn note(&mut self, entry: Entry) -> Result<(), Failure> {
        self.file
            .write_all(entry.to_line().as_bytes())
            .map_err(|error| Failure::os(self.path.display(), &error))?;
        self.entries.push(entry);
        Ok(())
    }

    /// A name for a thing of this run: `deepheap-bench.PID.what`.
    pub fn name(what: &str) -> String {
        format!("{PREFIX}{}.{what}", std::process::id())
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if undo_all(&self.entries) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Undoes what killed runs left.
pub fn clean() {
    undo_stale(&folder());
}

fn folder() -> PathBuf {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if root && Path::new("/run").is_dir() { "/run".into() } else { std::env::temp_dir() }
}

/// Whether the lock, held until the file is closed, could be taken.
fn lock(file: &File, flags: i32) -> bool {
    // SAFETY: an open descriptor.
    unsafe { libc::flock(file.as_raw_fd(), flags) == 0 }
}

/// Whether the path still leads to the file.
fn is_at(file: &File, path: &Path) -> bool {
    let metadata = file.metadata().ok().zip(fs::metadata(path).ok());
    metadata.is_some_and(|(file, path)| file.dev() == path.dev() && file.ino() == path.ino())
}

/// Last to first; false when something could not be undone.
fn undo_all(entries: &[Entry]) -> bool {
    let mut all = true;
    for entry in entries.iter().rev() {
        // A cgroup or swap file is busy for a moment after its last process is gone.
        let undone = (0..50).any(|attempt| {
            if attempt > 0 {
                std::thread::sleep(Duration::from_millis(100));
            }
            entry.undo().is_ok()
        });
        if !undone {
            all = false;
            let why = entry.undo().err().map_or_else(String::new, |error| format!(": {error}"));
            eprintln!("deepheap-bench: could not undo '{}'{why}", entry.to_line().trim_end());
        }
    }
    all
}

fn undo_stale(folder: &Path) {
    let Ok(listing) = fs::read_dir(folder) else { return };
    for found in listing.flatten() {
        let name = found.file_name();
        let Some(name) = name.to_str() else { continue };
        if !(name.starts_with(PREFIX) && name.ends_with(SUFFIX)) {
            continue;
        }
        let path = found.path();
        // Others' files in a shared temporary folder are none of our business.
        let options = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let Ok(mut file) = options else { continue };
        if !owned_by_us(&file) || !lock(&file, libc::LOCK_EX | libc::LOCK_NB) {
            continue;
        }
        let mut text = String::new();
        if file.read_to_string(&mut text).is_err() {
            continue;
        }
        let entries: Vec<Entry> = text.lines().filter_map(Entry::from_line).collect();
        eprintln!("deepheap-bench: removing what a killed run left ({name})");
        if undo_all(&entries) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn owned_by_us(file: &File) -> bool {
    // SAFETY: geteuid has no preconditions.
    let me = unsafe { libc::geteuid() };
    file.metadata().is_ok_and(|metadata| metadata.uid() == me)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back_as_written() {
        for entry in [
            Entry::Cgroup("/sys/fs/cgroup/memory/a b".into()),
            Entry::SwapFile("/x/y.swap".into()),
            Entry::File("/x".into()),
            Entry::PageCluster(3),
            Entry::Zram(1),
            Entry::Mount("/x/y.mount".into()),
            Entry::Folder("/x/y".into()),
        ] {
            assert_eq!(Entry::from_line(entry.to_line().trim_end()), Some(entry));
        }
        assert_eq!(Entry::from_line("nonsense"), None);
    }

    #[test]
    fn a_stale_ledger_is_undone_and_a_live_one_is_not() {
        let folder = std::env::temp_dir().join(format!("ledger-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let victim = folder.join("victim");
        let ledger = folder.join(format!("{PREFIX}1-0{SUFFIX}"));
        fs::write(&victim, "x").unwrap();
        fs::write(&ledger, Entry::File(victim.clone()).to_line()).unwrap();
        let held = File::open(&ledger).unwrap();
        assert!(lock(&held, libc::LOCK_EX));
        undo_stale(&folder);
        assert!(victim.exists() && ledger.exists());
        drop(held);
        undo_stale(&folder);
        assert!(!victim.exists() && !ledger.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
