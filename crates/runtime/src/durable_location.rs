//! Durable location: opens the file of a durable heap, or makes it.
//!
//! Guarantees: one process has it open for writing, any number for reading alone; a file that
//! somebody else made is never taken for a new one.
//! Threads: any.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use deepheap_sys::direct_file::{self, DirectFile, Existing};
use deepheap_sys::{clock, thread};

use crate::durable_error::OpenError;

/// How long a file that is locked is waited for: the kernel ends the writes of a process that was
/// killed after the process itself, and the lock with them.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// Opens the file, and tells whether there is nothing in it yet.
pub(crate) fn open(path: &Path) -> Result<(DirectFile, bool), OpenError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    if let Err(error) = made
        && error.kind() != ErrorKind::AlreadyExists
    {
        return Err(OpenError::File(error));
    }
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
    let is_new = file.len().map_err(OpenError::System)? == 0;
    Ok((file, is_new))
}

/// Opens a file that is there, for reading alone.
pub(crate) fn open_to_read(path: &Path) -> Result<DirectFile, OpenError> {
    DirectFile::open_to_read(path).map_err(refusal)
}

/// Removes a file in which no heap could be made.
pub(crate) fn remove_new(path: &Path) {
    // Who opens an empty file finds a new one.
    let _ = std::fs::remove_file(path);
}

/// Bytes of the disk that the file takes.
pub(crate) fn disk_bytes(path: &Path) -> Result<u64, OpenError> {
    Ok(std::fs::metadata(path).map_err(OpenError::File)?.blocks() * 512)
}

/// Takes off what lies behind the `end`, if the file is longer.
pub(crate) fn cut_off(path: &Path, end: u64) -> Result<(), OpenError> {
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
