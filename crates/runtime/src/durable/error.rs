//! Error: why a checkpoint of a durable heap cannot be made. The texts say what to do.

use core::fmt;

use deepheap_pager::CutError;
use deepheap_store::{DurableError, StoreError};

/// Why there is no new checkpoint. The last one is what it was.
#[derive(Clone, Copy, Debug)]
pub enum CheckpointError {
    /// This process does not have the heap open: it was closed, or this is a forked child.
    Closed,
    /// The cut could not be made.
    Cut(CutError),
    /// The file or a part of it could not be written.
    File(DurableError),
}

impl CheckpointError {
    /// Whether the name of a snapshot is wrong: impossible, taken, or that of none.
    pub fn is_about_name(&self) -> bool {
        use DurableError::{NoSnapshot, SnapshotExists, SnapshotName};
        matches!(self, CheckpointError::File(NoSnapshot | SnapshotExists | SnapshotName))
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointError::Closed => out.write_str(
                "this process does not have the heap open: it was closed, or this is a forked \
                 child",
            ),
            CheckpointError::Cut(CutError::Store(StoreError::Full)) => out.write_str(
                "the file is full; free some memory of the heap, or give it a larger \
                 `store_size:`, or its disk more space",
            ),
            CheckpointError::Cut(CutError::Store(error)) => error.fmt(out),
            CheckpointError::Cut(CutError::Busy) => {
                out.write_str("the file has no room before some is collected; try again")
            }
            CheckpointError::Cut(CutError::InUse) => out.write_str(
                "a system call is using memory of the heap all the time; end it, or let it use \
                 other memory, and try again",
            ),
            CheckpointError::Cut(CutError::Unreadable(address)) => write!(
                out,
                "the page at {address:#x} cannot be read: the program has protected it, or given \
                 it back by madvise; undo that, or free the memory"
            ),
            CheckpointError::Cut(CutError::Kernel(errno)) => {
                write!(out, "the kernel refuses what a checkpoint needs: {errno}")
            }
            CheckpointError::File(error) => error.fmt(out),
        }
    }
}

impl core::error::Error for CheckpointError {}

impl From<CutError> for CheckpointError {
    fn from(error: CutError) -> Self {
        CheckpointError::Cut(error)
    }
}

impl From<DurableError> for CheckpointError {
    fn from(error: DurableError) -> Self {
        CheckpointError::File(error)
    }
}
