//! Inspect: what is in the file of a durable heap, for `deepheap inspect` and `deepheap
//! fsck`, without opening the heap: none of its memory is mapped.
//!
//! A process may have the heap open, and make checkpoints. As for a reader, a lock on the number of
//! the checkpoint keeps its blocks, and that of each snapshot likewise. Tables that were written
//! over meanwhile look damaged; then all is begun anew at the checkpoint that is the last one now.
//!
//! Guarantees: changes nothing in the file. `fsck` verifies every page of the tables, the tables
//! against each other, and every block that holds something.
//! Threads: any.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use deepheap_heap::{Heap, PAGE};
use deepheap_store::durable::verify::{Report, verify_blocks, verify_tables};
use deepheap_store::{DurableFile, FileDevice, Key, Snapshot, Store, SuperblockId};
use deepheap_sys::threads::generation_lock;

use crate::error::OpenError;
use crate::heap_file::HeapFile;
use crate::load::{expect_tables, heap_of, load_heap, open_store};
use crate::roots::Roots;
use crate::{location, readers};

/// What is in a file.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Checkpoints are counted from 1, the creation.
    pub checkpoint: u64,
    /// When the last one was made, seconds since 1970.
    pub time: u64,
    /// Whether it was made to close the heap.
    pub is_clean: bool,
    /// Where the heap lives.
    pub region_base: u64,
    /// Bytes of address space.
    pub region_len: u64,
    /// Live bytes, those of objects among them.
    pub allocated_bytes: u64,
    /// Live objects.
    pub objects: u64,
    /// Bytes of live objects.
    pub object_bytes: u64,
    /// Names, and the addresses that they stand for.
    pub roots: Vec<(String, u64)>,
    /// Bytes that the log may take.
    pub log_bytes_most: u64,
    /// Bytes of the log's segments that hold something.
    pub log_bytes: u64,
    /// Bytes of it that live.
    pub live_bytes: u64,
    /// Bytes of the disk that the file takes.
    pub disk_bytes: u64,
    /// Checkpoints that are kept under a name, the oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Bytes of the log that nothing but snapshots needs.
    pub snapshot_bytes: u64,
    /// A superblock that is not whole.
    pub damaged_superblock: Option<SuperblockId>,
}

/// Where a file is not what it should be.
#[derive(Clone, Debug)]
pub struct Fsck {
    /// What was read, and what is damaged.
    pub report: Report,
    /// Why the tables, each of them right by itself, are not those of a heap.
    pub contradiction: Option<String>,
}

/// The heap's tables, without memory behind them.
struct Opened {
    file: DurableFile,
    heap: Heap,
    roots: Roots,
    store: Store,
}

impl Opened {
    fn new(file: DurableFile) -> Result<Opened, OpenError> {
        expect_tables(&file)?;
        let (heap, roots) = (heap_of(&file)?, Roots::default());
        load_heap(&file, &heap, &roots)?;
        let (store, _) = open_store(&file, 4, 3)?;
        Ok(Opened { file, heap, roots, store })
    }
}

/// Looks into a file.
///
/// # Errors
/// As when it is opened to be read.
pub fn inspect<'a>(of: impl Into<HeapFile<'a>>) -> Result<Inspection, OpenError> {
    let of = of.into();
    readers::until_steady(of.path, || inspect_once(&of))
}

fn inspect_once(of: &HeapFile<'_>) -> Result<Inspection, OpenError> {
    let (file, _) = readers::open(of, None)?;
    let Opened { file, heap, roots, store } = Opened::new(file)?;
    store.hold_snapshots(&file)?;
    let (shape, stamp, stats) = (file.shape(), file.stamp(), store.stats());
    let used = (stats.segments_on_device + stats.segments_withheld) * shape.segment_bytes;
    Ok(Inspection {
        checkpoint: file.checkpoint(),
        time: stamp.time,
        is_clean: stamp.is_clean,
        region_base: shape.region_base,
        region_len: shape.region_len,
        allocated_bytes: heap.allocated_bytes() as u64,
        objects: heap.objects_live() as u64,
        object_bytes: heap.object_bytes() as u64,
        roots: roots.all(shape.region_base),
        log_bytes_most: shape.capacity_bytes,
        log_bytes: used,
        live_bytes: stats.live_blocks * PAGE as u64,
        disk_bytes: location::disk_bytes(of.path)?,
        snapshots: file.snapshots().to_vec(),
        snapshot_bytes: stats.segments_withheld * shape.segment_bytes,
        damaged_superblock: file.damaged_superblock(),
    })
}

/// The last checkpoint, and all snapshots; the blocks of all of them stay.
fn open_all(device: Arc<FileDevice>, key: Option<&Key>) -> Result<Vec<Opened>, OpenError> {
    let descriptor = device.file().as_raw_fd();
    let hold = |checkpoint| generation_lock::hold(descriptor, checkpoint).map_err(OpenError::Locks);
    let file = DurableFile::open_to_read(device, key)?;
    hold(file.checkpoint())?;
    let last = Opened::new(file)?;
    last.store.hold_snapshots(&last.file)?;
    let mut all = Vec::with_capacity(1 + last.file.snapshots().len());
    for snapshot in last.file.snapshots() {
        hold(snapshot.checkpoint)?;
        all.push(Opened::new(last.file.open_snapshot(&snapshot.name)?)?);
    }
    all.push(last);
    Ok(all)
}

/// Verifies a file.
///
/// # Errors
/// That there is no heap to look at; `Restless` if each look found other tables.
pub fn fsck<'a>(of: impl Into<HeapFile<'a>>) -> Result<Fsck, OpenError> {
    fsck_of(&of.into())
}

pub(crate) fn fsck_of(of: &HeapFile<'_>) -> Result<Fsck, OpenError> {
    let is_clean = |fsck: &Fsck| fsck.report.is_clean() && fsck.contradiction.is_none();
    readers::until_right(of.path, || fsck_once(of), |answer| answer.as_ref().is_ok_and(is_clean))
}

fn fsck_once(of: &HeapFile<'_>) -> Result<Fsck, OpenError> {
    let (file, key) = (location::open_to_read(of.path)?, of.key.as_ref());
    let device = Arc::new(FileDevice::new(file).map_err(OpenError::System)?);
    let mut report = verify_tables(device.clone(), key)?;
    let contradiction = match open_all(device, key) {
        Ok(all) => {
            for opened in all {
                verify_blocks(&opened.store, &mut report).map_err(OpenError::Store)?;
            }
            None
        }
        // The report names what is damaged.
        Err(OpenError::Format(_)) if !report.is_clean() => None,
        Err(error @ (OpenError::Format(_) | OpenError::Damaged(_))) => Some(error.to_string()),
        Err(error) => return Err(error),
    };
    Ok(Fsck { report, contradiction })
}
