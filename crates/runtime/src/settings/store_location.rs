//! Store location: where the store of a process goes, found and found fit before it is opened.
//!
//! Guarantees: memory file systems, read-only, foreign or full locations are refused with what to
//! do; what begins with foreign data is never overwritten without `force`.
//! Never: writes.
//! Threads: plain functions, for start-up.

use core::fmt;
use std::env;
use std::ffi::CString;
use std::fs;
use std::io::{self, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use deepheap_sys::errno::Errno;
use deepheap_sys::files::direct_file::{DirectFile, Existing, OpenError, file_system_is_memory};
use deepheap_sys::process::environment;

use crate::settings::config::{Config, STORE_MIN_BYTES, Share};
use crate::settings::limits::{self, Limit};
use crate::stats::report::bytes;

/// Bits of a mode that let others than the owner in.
const OTHERS: u32 = 0o077;

/// A location for a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// An unlinked file in this folder.
    Folder(PathBuf),
    /// This regular file.
    File(PathBuf),
    /// This block device.
    Device(PathBuf),
}

/// The block device under a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's name for it.
    pub name: String,
    /// Whether it is a hard disk, by the kernel's word.
    pub rotates: bool,
}

/// Why a location cannot be used. Its text says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLocationError {
    /// The location.
    pub path: PathBuf,
    /// The problem with it.
    pub problem: String,
    /// The fix for it.
    pub fix: String,
}

impl fmt::Display for StoreLocationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "store '{}' {}: {}", self.path.display(), self.problem, self.fix)
    }
}

impl core::error::Error for StoreLocationError {}

/// The advice if a location does not fit.
const NAME_ANOTHER: &str = "name a folder on an SSD with --store (or store: in DEEPHEAP_CONF)";

impl StoreLocation {
    /// The location that a config means, checked.
    ///
    /// # Errors
    /// Why it cannot be used; without a path in the config, why the first one tried cannot.
    pub fn find(config: &Config) -> Result<StoreLocation, StoreLocationError> {
        if let Some(path) = &config.store {
            return StoreLocation::check(path, config);
        }
        let here = env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        match environment::variable("TMPDIR").filter(|folder| !folder.is_empty()) {
            Some(folder) => StoreLocation::check(Path::new(&folder), config)
                .or_else(|first| StoreLocation::check(&here, config).map_err(|_| first)),
            None => StoreLocation::check(&here, config),
        }
    }

    /// The folder, file or device.
    pub fn path(&self) -> &Path {
        match self {
            StoreLocation::Folder(path)
            | StoreLocation::File(path)
            | StoreLocation::Device(path) => path,
        }
    }

    /// The block device that it is, or is on; `None` if the system does not say.
    pub fn disk(&self) -> Option<Disk> {
        let status = fs::metadata(self.path()).ok()?;
        let number = match self {
            StoreLocation::Device(_) => status.rdev(),
            StoreLocation::Folder(_) | StoreLocation::File(_) => status.dev(),
        };
        let (major, minor) = (libc::major(number), libc::minor(number));
        let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // A partition has no queue: its disk has.
        let disk = folder.ancestors().take(2).find(|folder| folder.join("queue").is_dir())?;
        let rotational = fs::read_to_string(disk.join("queue/rotational")).ok()?;
        let name = disk.file_name()?.to_string_lossy().into_owned();
        Some(Disk { name, rotates: rotational.trim() == "1" })
    }

    /// Bytes that are free there; `None` if the system does not say.
    pub fn available_bytes(&self) -> Option<u64> {
        match self {
            StoreLocation::Folder(path) => free_bytes(path),
            StoreLocation::File(path) => {
                let own = fs::metadata(path).ok()?.blocks() * 512;
                Some(free_bytes(path)?.saturating_add(own))
            }
            StoreLocation::Device(path) => fs::File::open(path).ok()?.seek(SeekFrom::End(0)).ok(),
        }
    }

    /// Bytes that stay free there for others: of a folder's file system. A file or device that the
    /// user names is given to deepheap whole.
    pub fn floor_bytes(&self, config: &Config) -> u64 {
        match self {
            StoreLocation::Folder(path) => {
                let status = status_of_file_system(path);
                let bytes = status.map(|status| status.f_blocks.saturating_mul(status.f_frsize));
                bytes.map_or(0, |bytes| config.floor_of(bytes))
            }
            StoreLocation::File(_) | StoreLocation::Device(_) => 0,
        }
    }

    /// Bytes that a store may take there now; `None` if the system does not say.
    pub fn usable_bytes(&self, config: &Config) -> Option<u64> {
        Some(self.available_bytes()?.saturating_sub(self.floor_bytes(config)))
    }

    /// How large a file may become there by `ulimit -f`; `None`: as large as there is room.
    pub fn file_size_limit(&self) -> Option<Limit> {
        match self {
            StoreLocation::Folder(_) | StoreLocation::File(_) => limits::file_size(),
            StoreLocation::Device(_) => None,
        }
    }

    /// Opens the store of a process: its own, nobody else's.
    ///
    /// # Errors
    /// What the kernel says, or what the file or device holds, unless `force` overwrites it.
    pub fn open(&self, force: bool) -> Result<DirectFile, OpenError> {
        let existing = if force { Existing::Overwrite } else { Existing::Refuse };
        match self {
            StoreLocation::Folder(path) => Ok(DirectFile::open_unlinked(path)?),
            StoreLocation::File(path) | StoreLocation::Device(path) => {
                DirectFile::open_path(path, existing)
            }
        }
    }

    fn check(path: &Path, config: &Config) -> Result<StoreLocation, StoreLocationError> {
        let refuse = |problem: &str, fix: &str| Err(refusal(path, problem, fix));
        let status = fs::metadata(path).map_err(|error| match error.kind() {
            _ if path.as_os_str().is_empty() => refusal(path, "is no name", NAME_ANOTHER),
            io::ErrorKind::NotFound => {
                refusal(path, "does not exist", "create the folder, or name another")
            }
            io::ErrorKind::PermissionDenied => {
                refusal(path, "cannot be reached by this user", NAME_ANOTHER)
            }
            _ => refusal(path, format!("cannot be used ({error})"), NAME_ANOTHER),
        })?;
        let kind = status.file_type();
        if kind.is_block_device() {
            if !is_accessible(path, libc::R_OK | libc::W_OK) {
                let fix = "give this user the right to read and write it, or name a folder";
                return refuse("is a device that this user may not write", fix);
            }
            try_to_open(path, config)?;
            return StoreLocation::Device(path.to_path_buf()).with_room(config);
        }
        if !kind.is_dir() && !kind.is_file() {
            return refuse("is no folder, file or block device", NAME_ANOTHER);
        }
        if file_system_is_memory(path).unwrap_or(false) {
            return refuse("is on tmpfs or the like, which is memory itself", NAME_ANOTHER);
        }
        let status_there = status_of_file_system(path);
        if status_there.is_some_and(|status| status.f_flag & libc::ST_RDONLY != 0) {
            return refuse("is on a file system mounted read-only", NAME_ANOTHER);
        }
        if kind.is_dir() {
            if !is_accessible(path, libc::W_OK | libc::X_OK) {
                return refuse("is a folder that this user may not write to", NAME_ANOTHER);
            }
            return StoreLocation::Folder(path.to_path_buf()).with_room(config);
        }
        if !is_accessible(path, libc::R_OK | libc::W_OK) {
            return refuse("is a file that this user may not read and write", NAME_ANOTHER);
        }
        // Before its mode: the force that lets others open it would overwrite it, too.
        try_to_open(path, config)?;
        if !config.force && status.mode() & OTHERS != 0 {
            let fix = format!("chmod 600 '{}', or add --force (force:yes)", path.display());
            return refuse("is a file that other users may open, and read your memory in", &fix);
        }
        StoreLocation::File(path.to_path_buf()).with_room(config)
    }

    /// Bytes that settings and limits let a store take there; `None` if the system does not say.
    pub fn capacity_bytes(&self, config: &Config) -> Option<u64> {
        let limit = self.file_size_limit().map(|limit| limit.soft);
        self.wanted_bytes(config).into_iter().chain(limit).min()
    }

    /// What `ulimit -f` takes from the store that the settings mean, in words; `None`: nothing.
    pub fn shortened_by_limit(&self, config: &Config) -> Option<(String, String)> {
        let limit = self.file_size_limit()?;
        let wanted = self.wanted_bytes(config).unwrap_or(u64::MAX);
        (limit.soft < wanted).then(|| {
            let problem = format!("is limited to {} by ulimit -f", bytes(limit.soft));
            (problem, limit.fix("-f", "unlimited", wanted))
        })
    }

    fn wanted_bytes(&self, config: &Config) -> Option<u64> {
        match config.store_size {
            Share::Bytes(bytes) => Some(bytes),
            share => Some(share.bytes_of(self.usable_bytes(config)?)),
        }
    }

    fn with_room(self, config: &Config) -> Result<StoreLocation, StoreLocationError> {
        let limit = self.file_size_limit().map_or(u64::MAX, |limit| limit.soft);
        let is_asked_for = matches!(config.store_size, Share::Bytes(_));
        if (is_asked_for || limit < STORE_MIN_BYTES)
            && let Some((problem, fix)) = self.shortened_by_limit(config)
        {
            return Err(refusal(self.path(), problem, fix));
        }
        let Some(available) = self.usable_bytes(config) else { return Ok(self) };
        let floor = match self.floor_bytes(config) {
            0 => String::new(),
            floor => format!(" (beside {} that stay free, see --store-floor)", bytes(floor)),
        };
        let free = bytes(available);
        let (fits, problem, other_size) = match config.store_size {
            Share::Bytes(wanted) => {
                let problem = format!("has only {free} free{floor}, not {}", bytes(wanted));
                (available >= wanted, problem, "smaller")
            }
            share => {
                let (part, least) = (share.bytes_of(available), bytes(STORE_MIN_BYTES));
                let problem =
                    format!("has only {free} free{floor}, of which {share} is less than {least}");
                (part >= STORE_MIN_BYTES, problem, "larger")
            }
        };
        if fits {
            return Ok(self);
        }
        let fix = match available {
            STORE_MIN_BYTES.. => {
                format!("free some space, or give a {other_size} --store-size (store_size:)")
            }
            _ => format!("free some space, or {NAME_ANOTHER}"),
        };
        Err(refusal(self.path(), problem, fix))
    }
}

/// Where the settings want the store of a forked child: beside the parent's, or in $TMPDIR.
pub(crate) fn folders_of_children(config: &Config) -> Vec<PathBuf> {
    let beside = config.store.as_deref().and_then(|store| match store.is_dir() {
        true => Some(store.to_path_buf()),
        false => store.parent().map(Path::to_path_buf),
    });
    let temporary = environment::variable("TMPDIR").map(PathBuf::from);
    [beside, temporary].into_iter().flatten().collect()
}

/// An unlinked file in one of the folders, or where there is a disk: the store of a forked child,
/// or pages of the object table. The checks of a start do not fit: the parent's file is in use, and
/// its space is taken.
pub(crate) fn open_unnamed(folders: &[PathBuf]) -> Result<DirectFile, Errno> {
    let others = [env::current_dir().ok(), Some("/var/tmp".into())];
    let mut failure = Errno::ENOENT;
    for folder in folders.iter().cloned().chain(others.into_iter().flatten()) {
        // Memory is what is short.
        if file_system_is_memory(&folder).unwrap_or(true) {
            continue;
        }
        match DirectFile::open_unlinked(&folder) {
            Ok(file) => return Ok(file),
            Err(errno) => failure = errno,
        }
    }
    Err(failure)
}

/// Opens and closes it, which tells whether somebody else uses it and what it holds.
fn try_to_open(path: &Path, config: &Config) -> Result<(), StoreLocationError> {
    let existing = if config.force { Existing::Overwrite } else { Existing::Refuse };
    let (problem, fix) = match DirectFile::open_path(path, existing) {
        Ok(_) => return Ok(()),
        Err(OpenError::Holds(what)) => (
            format!("holds {what}, which would be overwritten"),
            "name another, or add --force (force:yes) to overwrite it",
        ),
        Err(OpenError::InUse) => (
            "is mounted or used by another process".to_owned(),
            "unmount it or end that process, or name another",
        ),
        Err(error) => (format!("cannot be opened ({error})"), "name another"),
    };
    Err(refusal(path, problem, fix))
}

fn refusal(path: &Path, problem: impl Into<String>, fix: impl Into<String>) -> StoreLocationError {
    StoreLocationError { path: path.to_path_buf(), problem: problem.into(), fix: fix.into() }
}

fn free_bytes(path: &Path) -> Option<u64> {
    let status = status_of_file_system(path)?;
    Some(status.f_bavail.saturating_mul(status.f_frsize))
}

fn status_of_file_system(path: &Path) -> Option<libc::statvfs> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut status = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends in a zero byte; the kernel writes at most one statvfs.
    let failed = unsafe { libc::statvfs(path.as_ptr(), status.as_mut_ptr()) } != 0;
    // SAFETY: filled, for the call succeeded.
    (!failed).then(|| unsafe { status.assume_init() })
}

/// Whether this process, as it is, may do that to a file.
pub fn is_accessible(path: &Path, how: libc::c_int) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path ends in a zero byte; nothing is written.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), how, libc::AT_EACCESS) == 0 }
}
