//! Pins: which checkpoints of a durable heap keep their space in its file.
//!
//! The last checkpoint does, those that are snapshots, and those that somebody reads. Each pin of
//! the store stands for some checkpoints that follow each other and name the same blocks.
//!
//! # Readers
//!
//! A reader of checkpoint `g` holds the number `g` of the file's locks (`generation_lock`). The
//! writer asks for the numbers of a pin before it lets go of it; if one is held, it keeps the pin
//! until after a later checkpoint. It asks after the superblock of a later checkpoint is durable.
//!
//! A reader reads both superblocks, finds `g` to be the last checkpoint, takes the lock, and reads
//! both again. Only if both are as before it goes on. Claim: the writer has not asked for `g`
//! before the lock was there. A place of a superblock never has the same bytes twice, as
//! checkpoints are counted. So both places were the same all the time from the end of the first
//! reading of each to the beginning of its second one; in between the lock was taken. At that time
//! the superblock of `g + 1` was not there, as it would lie in one of the two places; and the
//! writer asks for `g` only once it is.
//!
//! Pages that a reader loads beside a writer may be written over meanwhile: tables of the
//! checkpoint before the last. They are held against their checksums, and the reader begins anew.
//!
//! When a writer opens a file, its own predecessor may have left readers of earlier checkpoints. Of
//! those nothing is known but that they exist: all that was ever written is kept until they end.
//!
//! Guarantees: a pin that a snapshot or a reader needs stays.
//! Never: waits.
//! Threads: any, under the lock of the pins; the file is held meanwhile.

use core::ops::RangeInclusive;
use std::os::fd::RawFd;

use deepheap_store::{DurableError, DurableFile, PinToken, Store};
use deepheap_sys::errno::Errno;
use deepheap_sys::threads::generation_lock;

/// The pins of a heap, the oldest first. Of those of the last checkpoint the last one counts;
/// behind it may be some of checkpoints that could not be committed, or that may have been.
#[derive(Default)]
pub struct DurablePins(Vec<CheckpointPin>);

struct CheckpointPin {
    pin: PinToken,
    checkpoints: RangeInclusive<u64>,
    is_named: bool,
}

impl DurablePins {
    /// The pins of a heap that was just opened.
    pub fn of_opened(
        store: &Store,
        file: &DurableFile,
        descriptor: RawFd,
    ) -> Result<DurablePins, DurableError> {
        let mut pins = DurablePins::default();
        for (checkpoint, pin) in store.hold_snapshots(file)? {
            let checkpoints = checkpoint..=checkpoint;
            pins.0.push(CheckpointPin { pin, checkpoints, is_named: true });
        }
        let last = file.checkpoint();
        if has_readers_before(file, descriptor, last) {
            let pin = store.hold_everything()?;
            pins.0.push(CheckpointPin { pin, checkpoints: 1..=last - 1, is_named: false });
        }
        pins.add(store.pin_all()?, last);
        Ok(pins)
    }

    /// The pin of a checkpoint that is about to be the last.
    pub fn add(&mut self, pin: PinToken, checkpoint: u64) {
        let checkpoints = checkpoint..=checkpoint;
        self.0.push(CheckpointPin { pin, checkpoints, is_named: false });
    }

    /// The pin of the last checkpoint.
    fn last(&self, file: &DurableFile) -> Option<usize> {
        self.0.iter().rposition(|of| of.checkpoints.contains(&file.checkpoint()))
    }

    /// Lets go of what nobody needs any more.
    pub fn let_go(&mut self, store: &Store, file: &DurableFile, descriptor: RawFd) {
        let Some(last) = self.last(file) else { return };
        for at in (0..=last).rev() {
            let of = &mut self.0[at];
            let is_snapshot = |checkpoint| of.checkpoints.contains(&checkpoint);
            if file.snapshots().iter().any(|snapshot| is_snapshot(snapshot.checkpoint)) {
                continue;
            }
            if of.is_named {
                of.is_named = false;
                store.unname_pin(&of.pin);
            }
            if at < last && !has_readers(descriptor, of.checkpoints.clone()) {
                store.unpin(self.0.remove(at).pin);
            }
        }
    }

    /// The last checkpoint becomes a snapshot, if there is room for that.
    pub fn name_last(&mut self, store: &Store, file: &DurableFile) -> bool {
        let Some(last) = self.last(file).map(|at| &mut self.0[at]) else { return false };
        if !last.is_named && store.name_pin(&last.pin).is_err() {
            return false;
        }
        last.is_named = true;
        true
    }

    /// The last checkpoint was made, and names the same blocks as the one before it.
    pub fn prolong(&mut self, file: &DurableFile) {
        let made = file.checkpoint();
        let before = self.0.iter().rposition(|of| of.checkpoints.contains(&(made - 1)));
        if let Some(at) = before {
            // It is found as the last one with this number.
            let mut of = self.0.remove(at);
            of.checkpoints = *of.checkpoints.start()..=made;
            self.0.push(of);
        }
    }
}

/// Whether somebody reads a checkpoint before that one that is no snapshot.
pub fn has_readers_before(file: &DurableFile, descriptor: RawFd, end: u64) -> bool {
    let snapshots = file.snapshots().iter().map(|snapshot| snapshot.checkpoint);
    let mut first = 1;
    for known in snapshots.chain([end]) {
        if first < known && has_readers(descriptor, first..=known - 1) {
            return true;
        }
        first = known + 1;
    }
    false
}

fn has_readers(descriptor: RawFd, checkpoints: RangeInclusive<u64>) -> bool {
    match generation_lock::holder_among(descriptor, checkpoints) {
        Ok(holder) => holder.is_some(),
        // A file system without locks: readers are refused there.
        Err(Errno::ENOLCK | Errno::ENOTSUP | Errno::EINVAL | Errno::ENOSYS) => false,
        Err(_) => true,
    }
}
