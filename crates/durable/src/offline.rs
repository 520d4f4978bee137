//! Offline: what is done to the file of a heap that nobody has open for writing: going back to a
//! snapshot, removing one.
//!
//! Guarantees: it is done, or nothing has changed. A checkpoint that a reader has open stays.
//! Threads: one.

use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use deepheap_store::{DurableError, DurableFile, FileDevice, Stamp, WORDS};

use crate::error::OpenError;
use crate::heap_file::HeapFile;
use crate::load::{expect_tables, heap_of, load_heap, open_store};
use crate::location::{self, Found};
use crate::roots::Roots;

/// The stamp of a checkpoint that is made now.
pub fn stamp(is_clean: bool) -> Stamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp { time: now.as_secs(), is_clean, words: [0; WORDS] }
}

/// Makes the heap what it was in a snapshot; the number of the new checkpoint.
///
/// # Errors
/// `OpenError`; the heap is what it was then.
pub fn roll_back(of: &HeapFile<'_>, name: &str) -> Result<u64, OpenError> {
    let (mut file, _) = open_existing(of)?;
    check_room(&file, name)?;
    Ok(file.go_back(name, stamp(true))?)
}

/// Removes a snapshot.
///
/// # Errors
/// `OpenError`; the heap is what it was then.
pub fn remove_snapshot(of: &HeapFile<'_>, name: &str) -> Result<(), OpenError> {
    let (mut file, _) = open_existing(of)?;
    file.forget(name)?;
    Ok(())
}

/// Opens a file that is there, as its only writer.
pub fn open_existing(of: &HeapFile<'_>) -> Result<(DurableFile, RawFd), OpenError> {
    let device = device_of(of.path)?;
    let descriptor = device.file().as_raw_fd();
    let file = DurableFile::open(device, of.key.as_ref())?;
    expect_tables(&file)?;
    Ok((file, descriptor))
}

/// The device of a file that is there, as its only writer.
pub fn device_of(path: &Path) -> Result<Arc<FileDevice>, OpenError> {
    if !path.exists() {
        return Err(OpenError::File(std::io::ErrorKind::NotFound.into()));
    }
    let (file, found) = location::open(path)?;
    if found != Found::Filled {
        return Err(OpenError::Damaged("the file is empty".into()));
    }
    Ok(Arc::new(FileDevice::new(file).map_err(OpenError::System)?))
}

/// Whether what a snapshot holds has room beside all snapshots, as it must when it is opened to be
/// written to.
fn check_room(file: &DurableFile, name: &str) -> Result<(), OpenError> {
    let then = file.open_snapshot(name)?;
    let heap = heap_of(&then)?;
    load_heap(&then, &heap, &Roots::default())?;
    let blocks = heap.committed_pages() as u64 + heap.used_object_blocks();
    let (store, _) = open_store(file, 4, 3)?;
    let _pins = store.hold_snapshots(file)?;
    if blocks > store.stats().reservable_blocks {
        return Err(DurableError::NoRoomForSnapshot.into());
    }
    Ok(())
}
