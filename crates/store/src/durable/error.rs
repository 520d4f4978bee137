//! Error: why a durable heap cannot be made, opened or saved, and what the user can do about it.
//!
//! Guarantees: plain values; making, copying and comparing one never allocates.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

use core::fmt;

use deepheap_sys::errno::Errno;

use crate::error::StoreError;
use crate::format::saved::{SNAPSHOT_NAME_BYTES, SNAPSHOTS_MAX};
use crate::format::superblock::{OLDEST_VERSION, VERSION};

/// Why a durable heap cannot be made, opened or saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DurableError {
    /// The device failed. The last checkpoint is intact; what was asked may be asked again.
    Io(Errno),
    /// The file is something else, or nothing.
    NotAHeap,
    /// The file begins like a heap, and neither of its superblocks is whole.
    SuperblocksDamaged,
    /// The two superblocks are those of different heaps.
    SuperblocksDiffer,
    /// The heap was written by another version of deepheap, in this version of the format.
    OtherVersion(u32),
    /// It is encrypted, and there is no key.
    NeedsKey,
    /// It is encrypted under another key.
    WrongKey,
    /// There is a key, and it is not encrypted.
    NotEncrypted,
    /// The device ends before the heap does.
    Truncated {
        /// Bytes that the heap needs.
        needed: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// A page of a table is not what was saved. It was not handed out.
    PageDamaged {
        /// The table.
        table: u32,
        /// The page in it.
        page: u32,
    },
    /// An index page is not what was saved.
    IndexDamaged {
        /// How far above the tables it is, from 1.
        level: u32,
        /// The page in its level.
        page: u32,
    },
    /// The heap has other tables than it is asked for.
    OtherTables,
    /// A saved table says what cannot be, for the reason stated.
    Inconsistent(&'static str),
    /// A heap of this shape cannot be made, for the reason stated.
    Shape(&'static str),
    /// The first sync of a checkpoint failed: what it wrote may not be there. The last checkpoint
    /// is intact. This process makes no more of them.
    SyncFailed(Errno),
    /// The superblock of a checkpoint was refused, or its sync failed: the heap opens at this
    /// checkpoint or at the one before. This process makes no more of them, and must keep what
    /// either of the two needs.
    Undecided(Errno),
    /// An earlier checkpoint ended in `SyncFailed` or `Undecided`.
    Stopped,
    /// It was opened for reading alone.
    ReadOnly,
    /// The heap has no snapshot of this name.
    NoSnapshot,
    /// The heap has a snapshot of this name already.
    SnapshotExists,
    /// A snapshot cannot have such a name.
    SnapshotName,
    /// The heap has as many snapshots as it can have.
    TooManySnapshots,
    /// The file has no room for a snapshot beside what the heap may hold.
    NoRoomForSnapshot,
    /// The store could not do its part.
    Store(StoreError),
}

impl From<Errno> for DurableError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno)
    }
}

impl From<StoreError> for DurableError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for DurableError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(Errno::ENOSPC | Errno::EDQUOT) => write!(
                out,
                "the disk is full: free some of it and try again; the last checkpoint is whole"
            ),
            Self::Io(errno) => write!(out, "the heap's device failed: {errno}"),
            Self::NotAHeap => {
                write!(out, "this is not a deepheap heap, and stays as it is: give another path")
            }
            Self::SuperblocksDamaged => write!(
                out,
                "both superblocks of the heap are damaged: restore the file from a copy"
            ),
            Self::SuperblocksDiffer => write!(
                out,
                "the two superblocks are those of different heaps: restore the file from a copy"
            ),
            Self::OtherVersion(found) => write!(
                out,
                "the heap has version {found} of the format, and this deepheap reads versions \
                 {OLDEST_VERSION} to {VERSION}: open it with the deepheap that wrote it"
            ),
            Self::NeedsKey => write!(
                out,
                "the heap is encrypted: give the file of its key (`encrypt:FILE`, or --key FILE of \
                 the commands)"
            ),
            Self::WrongKey => write!(
                out,
                "the heap is encrypted under another key: give the file of the key with which it \
                 was made"
            ),
            Self::NotEncrypted => write!(
                out,
                "the heap is not encrypted: open it without a key, or make a new one with it"
            ),
            Self::Truncated { needed, found } => write!(
                out,
                "the heap needs {needed} bytes and there are {found}: the file was cut off, \
                 restore it from a copy"
            ),
            Self::PageDamaged { table, page } => write!(
                out,
                "page {page} of table {table} of the heap is damaged: run `deepheap fsck`, or \
                 restore the file from a copy"
            ),
            Self::IndexDamaged { level, page } => write!(
                out,
                "index page {page} of level {level} of the heap is damaged: run `deepheap fsck`, \
                 or restore the file from a copy"
            ),
            Self::OtherTables => write!(
                out,
                "the heap has other tables than this deepheap expects: open it with the deepheap \
                 that wrote it"
            ),
            Self::Inconsistent(what) => write!(
                out,
                "the heap contradicts itself ({what}): run `deepheap fsck`, or restore the file \
                 from a copy"
            ),
            Self::Shape(reason) => write!(out, "a heap like this cannot be made: {reason}"),
            Self::SyncFailed(errno) => write!(
                out,
                "the heap's device could not keep a checkpoint ({errno}): the one before is \
                 intact, and this process makes no more of them"
            ),
            Self::Undecided(errno) => write!(
                out,
                "the heap's device failed while a checkpoint was committed ({errno}): the heap \
                 opens at this checkpoint or at the one before, and this process makes no more \
                 of them"
            ),
            Self::Stopped => write!(
                out,
                "an earlier checkpoint could not be kept: close the heap, look at its device, \
                 and open it again"
            ),
            Self::ReadOnly => {
                write!(out, "the heap was opened for reading alone: nothing in it can be changed")
            }
            Self::NoSnapshot => write!(
                out,
                "the heap has no snapshot of this name: `deepheap inspect` lists those that it has"
            ),
            Self::SnapshotExists => write!(
                out,
                "the heap has a snapshot of this name: take another name, or remove that one by \
                 `deepheap rm-snapshot`"
            ),
            Self::SnapshotName => write!(
                out,
                "a snapshot has a name of 1 to {SNAPSHOT_NAME_BYTES} bytes without commas, \
                 blanks and control characters"
            ),
            Self::TooManySnapshots => write!(
                out,
                "the heap has {SNAPSHOTS_MAX} snapshots, and cannot have more: remove one by \
                 `deepheap rm-snapshot`"
            ),
            Self::NoRoomForSnapshot => write!(
                out,
                "the file has no room for a snapshot: everything in it may be written anew, \
                 twice, while the snapshot stays; free memory, remove other snapshots, or make \
                 the heap anew with a larger `store_size:`"
            ),
            Self::Store(error) => write!(out, "{error}"),
        }
    }
}

impl core::error::Error for DurableError {}
