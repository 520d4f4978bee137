//! Snapshots: checkpoints of a durable heap that are kept under a name.
//!
//! Guarantees: a snapshot is taken, removed or gone back to, or nothing has changed. A checkpoint
//! that a reader has open stays.
//! Threads: any, outside the fault path.

use deepheap_durable::{HeapFile, OpenError, offline};
use deepheap_store::DurableError;

use crate::durable::DurableHeap;
use crate::durable::error::CheckpointError;
use crate::runtime::Inside;

impl DurableHeap {
    /// Makes a checkpoint and keeps it under a name, until `remove_snapshot`. It can be opened for
    /// reading (`snapshot:NAME,readonly`), and gone back to (`roll_back`). Returns the number of
    /// the checkpoint that is kept.
    ///
    /// # Errors
    /// `CheckpointError`: the name is impossible or taken, there are too many, or the file has no
    /// room; there is no such snapshot then.
    pub fn snapshot(&self, name: &str) -> Result<u64, CheckpointError> {
        let pager = self.pager()?;
        {
            let _inside = Inside::enter();
            self.durable.file.lock().0.may_keep(name)?;
        }
        self.checkpoint()?;
        let _inside = Inside::enter();
        let mut file = self.durable.file.lock();
        let mut pins = self.durable.pins.lock();
        // Of two checkpoints at the same time the later one holds what was asked for, too.
        let kept = file.0.checkpoint();
        file.0.may_keep(name)?;
        if !pins.name_last(pager.store(), &file.0) {
            return Err(DurableError::NoRoomForSnapshot.into());
        }
        match file.0.keep(name) {
            Ok(_) => pins.prolong(&file.0),
            // It may be there: then what it needs is kept until the heap is closed.
            Err(error @ DurableError::Undecided(_)) => return Err(error.into()),
            Err(error) => {
                pins.let_go(pager.store(), &file.0, self.durable.descriptor);
                return Err(error.into());
            }
        }
        Ok(kept)
    }

    /// Keeps a snapshot no longer. Its readers can go on.
    ///
    /// # Errors
    /// `CheckpointError`: there is none of this name, or the file cannot be written.
    pub fn remove_snapshot(&self, name: &str) -> Result<(), CheckpointError> {
        let pager = self.pager()?;
        let _inside = Inside::enter();
        let mut file = self.durable.file.lock();
        let mut pins = self.durable.pins.lock();
        file.0.forget(name)?;
        pins.prolong(&file.0);
        pins.let_go(pager.store(), &file.0, self.durable.descriptor);
        Ok(())
    }

    /// The names of the snapshots, the oldest first.
    pub fn snapshots(&self) -> Vec<String> {
        let _inside = Inside::enter();
        let file = self.durable.file.lock();
        file.0.snapshots().iter().map(|snapshot| snapshot.name.clone()).collect()
    }

    /// Brings a heap that no process has open for writing back to a snapshot. Later changes are
    /// lost, but for other snapshots; all of them stay. Returns the number of the new
    /// checkpoint.
    ///
    /// # Errors
    /// `OpenError`; the heap is what it was then.
    pub fn roll_back<'a>(of: impl Into<HeapFile<'a>>, name: &str) -> Result<u64, OpenError> {
        let _inside = Inside::enter();
        offline::roll_back(&of.into(), name)
    }

    /// Removes a snapshot of a heap that no process has open for writing.
    ///
    /// # Errors
    /// `OpenError`; the heap is what it was then.
    pub fn remove_snapshot_of<'a>(
        of: impl Into<HeapFile<'a>>,
        name: &str,
    ) -> Result<(), OpenError> {
        let _inside = Inside::enter();
        offline::remove_snapshot(&of.into(), name)
    }
}
