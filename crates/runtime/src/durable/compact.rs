//! Compact: makes the file of a durable heap smaller.
//!
//! 1. The heap is opened as by a program, and collection moves what lives out of segments of which
//!    much is dead. A checkpoint lets go of them; so does the one that closes the heap.
//! 2. Segments at the end of the file are copied to free places before them (`store`'s `places`).
//! 3. Space that nothing needs goes back to the file system, and the file is cut off.
//!
//! Guarantees: every step ends with a checkpoint of the same content, or changes nothing that any
//! checkpoint needs. Snapshots stay, and keep what they have.
//! Never: writes where a reader reads. A reader keeps the heap from being compacted, but for
//! snapshots; one that begins meanwhile, from being cut off.
//! Threads: one; no process has the heap open for writing.

use std::os::fd::RawFd;

use deepheap_durable::offline::open_existing;
use deepheap_durable::pins::has_readers_before;
use deepheap_durable::{HeapFile, OpenError, location};
use deepheap_store::{DurableFile, Goal, give_back_free, move_down};

use crate::durable::DurableHeap;
use crate::durable::checkpoint::collect_for;
use crate::durable::error::CheckpointError;
use crate::durable::open::open_once;
use crate::durable::options::DurableOptions;
use crate::runtime::Inside;

/// Segments that were emptied in one pass are free in the next one, and may be filled from others.
const PASSES: usize = 3;

/// The outcome of compacting.
#[derive(Debug)]
pub struct Compacted {
    /// Bytes of the disk that the file took.
    pub disk_bytes_before: u64,
    /// Bytes of the disk that it takes.
    pub disk_bytes: u64,
    /// Why collection did not move what lives together, or not all of it: the heap cannot be opened
    /// in this process, or there was no room for copies.
    pub uncollected: Option<String>,
}

impl DurableHeap {
    /// Makes the file of a heap smaller that no process has open for writing.
    ///
    /// # Errors
    /// `OpenError`; the heap holds what it held in any case.
    pub fn compact<'a>(of: impl Into<HeapFile<'a>>) -> Result<Compacted, OpenError> {
        let of = of.into();
        let disk_bytes_before = location::disk_bytes(of.path)?;
        {
            let _inside = Inside::enter();
            let (file, descriptor) = open_existing(&of)?;
            // A checkpoint that is read keeps all that collection would empty.
            refuse_readers_before(&file, descriptor, file.checkpoint() + 1)?;
        }
        let uncollected = collect(&of)?;
        let _inside = Inside::enter();
        let (mut file, descriptor) = open_existing(&of)?;
        // A reader of an earlier checkpoint needs places that are free now, and would lose them.
        // Places of the last one stay where they are, too, until the file is cut off.
        refuse_readers_before(&file, descriptor, file.checkpoint())?;
        move_down(&mut file)?;
        refuse_readers_before(&file, descriptor, file.checkpoint())?;
        location::cut_off(of.path, give_back_free(&file)?)?;
        let disk_bytes = location::disk_bytes(of.path)?;
        Ok(Compacted { disk_bytes_before, disk_bytes, uncollected })
    }
}

fn refuse_readers_before(file: &DurableFile, descriptor: RawFd, end: u64) -> Result<(), OpenError> {
    if has_readers_before(file, descriptor, end) { Err(OpenError::Read) } else { Ok(()) }
}

/// Moves what lives together; why not, where the file can be cut off all the same.
fn collect(of: &HeapFile<'_>) -> Result<Option<String>, OpenError> {
    let options = DurableOptions::parse("")?;
    let opened = {
        let _inside = Inside::enter();
        open_once(of, &options)
    };
    let heap = match opened {
        Ok(heap) => heap,
        Err(error @ (OpenError::Process(..) | OpenError::System(_))) => {
            return Ok(Some(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    let done = collect_in(heap);
    // SAFETY: the handle is this function's alone.
    let closed = unsafe { heap.close() };
    if closed.is_err() {
        // SAFETY: as above.
        unsafe { heap.abandon() };
    }
    match done.and(closed.map(drop)) {
        Ok(()) => Ok(None),
        Err(CheckpointError::File(error)) => Err(error.into()),
        Err(error) => Ok(Some(error.to_string())),
    }
}

fn collect_in(heap: DurableHeap) -> Result<(), CheckpointError> {
    let pager = heap.pager()?;
    for _ in 0..PASSES {
        let won = collect_for(pager.store(), Goal::Compact);
        if won == 0 {
            break;
        }
        heap.checkpoint()?;
    }
    Ok(())
}
