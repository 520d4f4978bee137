//! Durable snapshots: checkpoints of a durable heap that are kept under a name; and what is done to
//! the file of a heap that nobody has open for writing: going back to a snapshot, removing one.
//!
//! Guarantees: a snapshot is taken, removed or gone back to, or nothing has changed. What a reader
//! has open stays.
//! Never: changes the heap's memory while a process has it.
//! Threads: any, outside the fault path.

use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use deepheap_store::{DurableError, DurableFile, FileDevice, Stamp, WORDS};

use crate::durable::{DurableHeap, now};
use crate::durable_error::{CheckpointError, OpenError};
use crate::durable_load::{expect_tables, load_heap, open_store};
use crate::durable_location::{self, Found};
use crate::heap_file::HeapFile;
use crate::roots::Roots;
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

    /// Keeps a snapshot no longer. Who reads it can go on.
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

    /// Makes a heap that no process has open for writing what it is in a snapshot. What was changed
    /// since is lost, but for other snapshots; all of them stay. Returns the number of the new
    /// checkpoint.
    ///
    /// # Errors
    /// `OpenError`; the heap is what it was then.
    pub fn roll_back<'a>(of: impl Into<HeapFile<'a>>, name: &str) -> Result<u64, OpenError> {
        let _inside = Inside::enter();
        let (mut file, _) = open_existing(&of.into())?;
        check_room(&file, name)?;
        let stamp = Stamp { time: now(), is_clean: true, words: [0; WORDS] };
        Ok(file.go_back(name, stamp)?)
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
        let (mut file, _) = open_existing(&of.into())?;
        file.forget(name)?;
        Ok(())
    }
}

/// Opens a file that is there, as its only writer.
pub(crate) fn open_existing(of: &HeapFile<'_>) -> Result<(DurableFile, RawFd), OpenError> {
    let device = device_of(of.path)?;
    let descriptor = device.file().as_raw_fd();
    let file = DurableFile::open(device, of.key.as_ref())?;
    expect_tables(&file)?;
    Ok((file, descriptor))
}

/// The device of a file that is there, as its only writer.
pub(crate) fn device_of(path: &Path) -> Result<Arc<FileDevice>, OpenError> {
    if !path.exists() {
        return Err(OpenError::File(std::io::ErrorKind::NotFound.into()));
    }
    let (file, found) = durable_location::open(path)?;
    if found != Found::Filled {
        return Err(OpenError::Damaged("the file is empty".into()));
    }
    Ok(Arc::new(FileDevice::new(file).map_err(OpenError::System)?))
}

/// Whether what a snapshot holds has room beside all snapshots, as it must when it is opened to be
/// written to.
fn check_room(file: &DurableFile, name: &str) -> Result<(), OpenError> {
    let then = file.open_snapshot(name)?;
    let shape = then.shape();
    let heap = deepheap_heap::Heap::new(shape.region_base as usize, shape.region_len as usize);
    let heap = heap.map_err(OpenError::System)?;
    load_heap(&then, &heap, &Roots::default())?;
    let blocks = heap.committed_pages() as u64 + heap.used_object_blocks();
    let (store, _) = open_store(file, 4, 3)?;
    let _pins = store.hold_snapshots(file)?;
    if blocks > store.stats().reservable_blocks {
        return Err(DurableError::NoRoomForSnapshot.into());
    }
    Ok(())
}
