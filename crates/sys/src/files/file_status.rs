//! File status: what the kernel says of a file, by its name or a descriptor.
//!
//! Never: allocates.
//! Threads: any, also in a signal handler.

use core::ffi::CStr;
use std::os::fd::RawFd;

use crate::errno::Result;
use crate::raw_call::raw_call;

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FileId {
    /// The device that it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl FileId {
    /// That of an open file.
    pub fn of(descriptor: RawFd) -> Result<FileId> {
        Ok(of(descriptor)?.into())
    }
}

impl From<libc::stat> for FileId {
    fn from(stat: libc::stat) -> FileId {
        FileId { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// The status of an open file.
pub(crate) fn of(descriptor: RawFd) -> Result<libc::stat> {
    // SAFETY: zeros are a stat, and the kernel writes one.
    unsafe { filled(|stat: *mut libc::stat| raw_call!(SYS_fstat, descriptor, stat)) }
}

/// The status of the file of a name.
pub(crate) fn at(path: &CStr) -> Result<libc::stat> {
    // SAFETY: as above; the path ends with NUL.
    unsafe { filled(|stat: *mut libc::stat| raw_call!(SYS_stat, path.as_ptr(), stat)) }
}

/// The struct that a call fills in.
///
/// # Safety
/// All zeros are a value of the type, and the call writes no more than one.
pub(crate) unsafe fn filled<T>(call: impl FnOnce(*mut T) -> Result<usize>) -> Result<T> {
    // SAFETY: the caller's promise.
    let mut value = unsafe { core::mem::zeroed() };
    call(&raw mut value)?;
    Ok(value)
}
