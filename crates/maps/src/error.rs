//! Error: why a file cannot be mapped, with what to do.
//!
//! Threads: plain data.

use core::fmt;

use deepheap_store::MapLogError;
use deepheap_sys::errno::Errno;
use deepheap_sys::files::direct_file::OpenError;

use crate::tables::control::{BUDGET_MIN, PARTICIPANTS_MAX};

/// Why changed pages are not in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// This process cannot write to it.
    ReadOnly,
    /// A page cannot be written.
    Write(Errno),
    /// The device did not make durable what was written, now or before.
    Sync(Errno),
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The file cannot be opened.
    Open(OpenError),
    /// It is in RAM already.
    InMemory,
    /// It has no bytes.
    Empty,
    /// Nothing so long can be mapped.
    TooLong,
    /// A device, and a map with a log, is as long as it is.
    FixedLength,
    /// The file cannot be made so long.
    Length(Errno),
    /// The budget is too small.
    Budget(u64),
    /// The kernel gives no userfaultfd for shared memory.
    Kernel(Errno),
    /// The kernel copies pages on their way into a pipe.
    CopiesPages,
    /// Processes cannot meet: the folder in RAM cannot be used.
    Folder(Errno),
    /// Another version of deepheap has the file mapped.
    Version,
    /// Other processes have it mapped, and none of them can be reached.
    Unreachable(Errno),
    /// As many processes as can be have it mapped.
    TooMany,
    /// This process has as many maps as it can have.
    TooManyMaps,
    /// No memory, address space or descriptors.
    Resources(Errno),
    /// No map of this process is there.
    NotAMap,
    /// The changes cannot be written.
    Sync(SyncError),
    /// It is to have a log, and cannot be used as one that has.
    Log(MapLogError),
    /// It has a log, and is to be mapped in place.
    HasLog,
    /// It ends before it should.
    Cut {
        /// Bytes that it should have.
        needed: u64,
        /// Bytes that it has.
        bytes: u64,
    },
    /// Its log has commits that the pages lack, and this process may not write.
    NotRecovered,
}

impl MapError {
    /// The errno for C programs.
    pub fn errno(self) -> i32 {
        match self {
            MapError::Open(OpenError::System(errno))
            | MapError::Kernel(errno)
            | MapError::Length(errno)
            | MapError::Folder(errno)
            | MapError::Unreachable(errno)
            | MapError::Resources(errno) => errno.raw(),
            MapError::Open(OpenError::InUse) => libc::EBUSY,
            MapError::Open(_) | MapError::InMemory => libc::ENODEV,
            MapError::Empty | MapError::NotAMap | MapError::Budget(_) | MapError::FixedLength => {
                libc::EINVAL
            }
            MapError::TooLong => libc::EFBIG,
            MapError::CopiesPages => libc::ENOSYS,
            MapError::Version | MapError::Log(MapLogError::OtherVersion(_)) => libc::EPROTO,
            MapError::Log(MapLogError::Io(errno)) => errno.raw(),
            MapError::Log(_) | MapError::Cut { .. } => libc::EUCLEAN,
            MapError::HasLog => libc::EINVAL,
            MapError::NotRecovered => libc::EROFS,
            MapError::TooMany | MapError::TooManyMaps => libc::EMFILE,
            MapError::Sync(SyncError::ReadOnly) => libc::EBADF,
            MapError::Sync(SyncError::Write(errno) | SyncError::Sync(errno)) => errno.raw(),
        }
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::Open(OpenError::InUse) => {
                out.write_str("another process has the file for itself: a store or a durable heap")
            }
            MapError::Open(OpenError::System(Errno::EACCES)) => {
                out.write_str("the file may not be read or written so: see its permissions")
            }
            MapError::Open(error) => write!(out, "the file cannot be opened: {error}"),
            MapError::InMemory => {
                out.write_str("the file is in RAM (tmpfs): map it with mmap, it has no other place")
            }
            MapError::Empty => {
                out.write_str("the file has no bytes: make it as long as it shall be, then map it")
            }
            MapError::TooLong => out.write_str("the length is more than 16 TiB less a page"),
            MapError::FixedLength => {
                out.write_str("a block device, or a map with a log, cannot be longer or shorter")
            }
            MapError::Length(errno) => {
                write!(out, "the file cannot be made so long ({errno})")
            }
            MapError::Budget(bytes) => write!(
                out,
                "{bytes} bytes of RAM are too few for a map: give it {BUDGET_MIN} or more",
            ),
            MapError::CopiesPages => out.write_str(
                "this kernel copies pages of shared memory that go into a pipe: changes could be \
                 lost; use a newer one",
            ),
            MapError::Folder(Errno::EPERM) => out.write_str(
                "the folders where processes may meet, /dev/shm/deepheap-UID and \
                 /run/user/UID/deepheap-UID, are not this user's alone: remove the first one, or \
                 make it so (chmod 700)",
            ),
            MapError::Folder(Errno::ENOSPC) => {
                out.write_str("/dev/shm is full: the tables of a map do not fit")
            }
            MapError::Folder(errno) => write!(
                out,
                "processes meet in /dev/shm or /run/user/UID, and neither can be used ({errno})",
            ),
            MapError::Version => out.write_str(
                "processes with another version of deepheap have the file mapped: end them first",
            ),
            MapError::Unreachable(errno) => write!(
                out,
                "other processes have the file mapped and cannot be reached ({errno}): they run in \
                 another container, or do not let themselves be looked at",
            ),
            MapError::TooMany => {
                write!(out, "{PARTICIPANTS_MAX} processes have the file mapped, and no more can")
            }
            MapError::TooManyMaps => {
                write!(out, "the process has {} maps, and no more can be", crate::MAPS_MAX)
            }
            MapError::Kernel(Errno::EMFILE) | MapError::Resources(Errno::EMFILE) => {
                out.write_str("too many open files: raise `ulimit -n`; a map needs a dozen")
            }
            MapError::Resources(Errno::ENFILE) => out.write_str(
                "no pipes: this user's take all the pages they may (fs.pipe-user-pages-soft)",
            ),
            MapError::Kernel(errno) => write!(
                out,
                "userfaultfd for shared memory is not to be had ({errno}): give the container the \
                 device (docker run --device /dev/userfaultfd); `deepheap doctor` tells more",
            ),
            MapError::Resources(errno) => {
                write!(out, "no memory or address space for the map ({errno})")
            }
            MapError::NotAMap => out.write_str("no map of dh_map begins or is there"),
            MapError::Log(error) => error.fmt(out),
            MapError::HasLog => out.write_str(
                "the file is a map with a log, and may not be written in place: map it with \
                 DH_MAP_LOG",
            ),
            MapError::Cut { needed, bytes } => write!(
                out,
                "the file has been cut: it has {bytes} of {needed} bytes; take it from a copy",
            ),
            MapError::NotRecovered => out.write_str(
                "the log has commits that are not in the pages yet, and this process may not write \
                 the file: map it once in one that may",
            ),
            MapError::Sync(SyncError::Write(Errno::ENOSPC)) => out.write_str(
                "no space: what was changed fits neither the log nor the file system; it stays in \
                 RAM, and nothing of it is committed",
            ),
            MapError::Sync(SyncError::ReadOnly) => {
                out.write_str("this process may not write to the file")
            }
            MapError::Sync(SyncError::Write(errno)) => {
                write!(out, "changed pages cannot be written: {errno}; they stay in RAM")
            }
            MapError::Sync(SyncError::Sync(errno)) => write!(
                out,
                "the device did not make durable what was written ({errno}): what was written \
                 since the last sync may be lost, and no later one can mend that",
            ),
        }
    }
}

impl core::error::Error for MapError {}
