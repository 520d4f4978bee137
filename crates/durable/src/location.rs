//! Location: opens the file of a durable heap, or makes it.
//!
//! Guarantees: one process has it open for writing, any number for reading alone; a file that
//! somebody else made is never taken for a new one. The name of one that is open for writing is
//! durable, whichever process made it.
//! Threads: any.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use deepheap_sys::files::direct_file::{self, DirectFile, Existing};
use deepheap_sys::process::clock;
use deepheap_sys::threads::thread;

use crate::error::OpenError;

/// How long a file that is locked is waited for: the kernel ends the writes of a process that was
/// killed after the process itself, and the lock with them.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// The kind of file at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A file with something in it.
    Filled,
    /// An empty file.
    Empty,
    /// Nothing: an empty file was made.
    Nothing,
}

/// Opens the file, which is made if there is none.
pub fn open(path: &Path) -> Result<(DirectFile, Found), OpenError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let was_made = match made {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
        Err(error) => return Err(OpenError::File(error)),
    };
    let end_ns = clock::monotonic_ns() + PATIENCE.as_nanos() as u64;
    let opened = loop {
        match DirectFile::open_path(path, Existing::Overwrite) {
            Err(direct_file::OpenError::InUse) if clock::monotonic_ns() < end_ns => {
                thread::sleep(PAUSE);
            }
            opened => break opened,
        }
    };
    let file = opened.map_err(refusal)?;
    if file.is_device() {
        return Err(OpenError::WrongKind);
    }
    let found = match file.len().map_err(OpenError::System)? {
        0 if was_made => Found::Nothing,
        0 => Found::Empty,
        _ => Found::Filled,
    };
    direct_file::sync_name(path).map_err(|errno| {
        restore(path, found);
        OpenError::System(errno)
    })?;
    Ok((file, found))
}

/// Opens a file that is there, for reading alone.
pub fn open_to_read(path: &Path) -> Result<DirectFile, OpenError> {
    DirectFile::open_to_read(path).map_err(refusal)
}

/// Leaves what was found where no heap could be made.
pub fn restore(path: &Path, found: Found) {
    // A process that has opened the file meanwhile finds an empty one.
    let _ = match found {
        Found::Nothing => std::fs::remove_file(path).map_err(OpenError::File),
        Found::Empty => cut_off(path, 0),
        Found::Filled => Ok(()),
    };
}

/// Bytes of the disk that the file takes.
pub fn disk_bytes(path: &Path) -> Result<u64, OpenError> {
    Ok(std::fs::metadata(path).map_err(OpenError::File)?.blocks() * 512)
}

/// Takes off what lies behind the `end`, if the file is longer.
pub fn cut_off(path: &Path, end: u64) -> Result<(), OpenError> {
    let cut = || {
        let file = OpenOptions::new().write(true).open(path)?;
        if file.metadata()?.len() > end {
            file.set_len(end)?;
        }
        file.sync_all()
    };
    cut().map_err(OpenError::File)
}

fn refusal(error: direct_file::OpenError) -> OpenError {
    match error {
        direct_file::OpenError::InUse => OpenError::Locked,
        direct_file::OpenError::WrongKind | direct_file::OpenError::Holds(_) => {
            OpenError::WrongKind
        }
        direct_file::OpenError::System(errno) => {
            OpenError::File(std::io::Error::from_raw_os_error(errno.raw()))
        }
    }
}
