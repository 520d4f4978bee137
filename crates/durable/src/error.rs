//! Error: why a durable heap cannot be opened. The texts say what to do.

use core::fmt;
use std::io::ErrorKind;

use deepheap_store::{DurableError, StoreError};
use deepheap_sys::errno::Errno;

/// Why a durable heap cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// This process cannot have it: the errno that comes nearest, and what to do.
    Process(i32, String),
    /// The settings make no sense.
    Options(String),
    /// There is no key in the file that is to have it.
    Key(String),
    /// The file cannot be opened, or made.
    File(std::io::Error),
    /// Another process has it open for writing.
    Locked,
    /// The file system has no locks, which readers need.
    Locks(Errno),
    /// Its last checkpoint was another one at each look.
    Restless,
    /// Somebody reads the heap.
    Read,
    /// It is neither a regular file nor new.
    WrongKind,
    /// The file is no heap, is damaged, or of another version.
    Format(DurableError),
    /// Its tables contradict each other, though their checksums are right.
    Damaged(String),
    /// The log cannot be used.
    Store(StoreError),
    /// The system refuses memory, address space or descriptors.
    System(Errno),
}

impl OpenError {
    /// The errno that comes nearest.
    pub fn errno(&self) -> i32 {
        match self {
            OpenError::File(error) => error.raw_os_error().unwrap_or(libc::EIO),
            OpenError::System(errno)
            | OpenError::Locks(errno)
            | OpenError::Store(StoreError::Io(errno)) => errno.raw(),
            OpenError::Process(errno, _) => *errno,
            OpenError::Format(DurableError::NoSnapshot) => libc::ENOENT,
            OpenError::Options(_) | OpenError::WrongKind => libc::EINVAL,
            OpenError::Key(_) => libc::ENOKEY,
            OpenError::Format(DurableError::NeedsKey) => libc::ENOKEY,
            OpenError::Format(DurableError::WrongKey | DurableError::NotEncrypted) => {
                libc::EKEYREJECTED
            }
            OpenError::Locked | OpenError::Restless | OpenError::Read => libc::EBUSY,
            OpenError::Format(_) | OpenError::Damaged(_) => libc::EILSEQ,
            OpenError::Store(_) => libc::ENOSPC,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Process(_, text) | OpenError::Options(text) | OpenError::Key(text) => {
                out.write_str(text)
            }
            OpenError::File(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => write!(
                out,
                "the file system takes no writes: open the heap with `readonly`, or put it on \
                 another one"
            ),
            OpenError::File(error) => write!(out, "the file cannot be opened: {error}"),
            OpenError::Locked => {
                out.write_str("another process has the heap open; wait until it has closed it")
            }
            OpenError::Locks(errno) => write!(
                out,
                "the file cannot be locked ({errno}), so nothing would keep what is read: copy \
                 it to another file system"
            ),
            OpenError::Restless => out.write_str(
                "the process that writes the heap makes checkpoints faster than they can be \
                 opened; let it make fewer, or open a snapshot",
            ),
            OpenError::Read => out.write_str(
                "a process reads the heap, as it is or as it was; wait until it has closed it",
            ),
            OpenError::WrongKind => out.write_str("it is no regular file: name one"),
            OpenError::Format(error) => error.fmt(out),
            OpenError::Damaged(what) => {
                write!(out, "the heap's tables are damaged ({what}); see `deepheap fsck`")
            }
            OpenError::Store(error) => write!(out, "the heap's log cannot be used: {error}"),
            OpenError::System(errno) => write!(
                out,
                "no memory, address space or descriptors for the heap ({errno}): raise `ulimit \
                 -v` and `ulimit -n`"
            ),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<DurableError> for OpenError {
    fn from(error: DurableError) -> Self {
        OpenError::Format(error)
    }
}
