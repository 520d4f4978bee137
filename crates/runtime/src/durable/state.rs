//! Durable state: what a runtime has beside if its heap outlives the process.
//!
//! Threads: any. Lock order: the file, then the cache, then as in a fork.

use core::sync::atomic::AtomicU64;
use core::time::Duration;
use std::os::fd::RawFd;
use std::path::PathBuf;

use deepheap_durable::pins::DurablePins;
use deepheap_durable::roots::Roots;
use deepheap_heap::ThreadCache;
use deepheap_store::{DurableFile, SavedUpTo, Store};
use deepheap_sys::threads::lock::Lock;

use crate::durable::full_wait::{FullWait, Turn};
use crate::durable::worker::Requests;

/// What a runtime has beside if its heap is durable.
pub(crate) struct Durable {
    pub(crate) path: PathBuf,
    /// The thread that has it makes a checkpoint.
    pub(crate) file: Lock<(DurableFile, SavedUpTo)>,
    /// The descriptor of the file.
    pub(crate) descriptor: RawFd,
    /// The one cache of all threads.
    pub(crate) cache: Lock<Option<ThreadCache>>,
    pub(crate) roots: Roots,
    /// The pins of checkpoints that are needed; locked after the file.
    pub(crate) pins: Lock<DurablePins>,
    /// It was opened for reading alone.
    pub(crate) is_read_only: bool,
    /// Bytes of the budget of `malloc`'s heap that this one has.
    pub(crate) borrowed: usize,
    /// What was asked of its checkpoints.
    pub(crate) requests: Requests,
    /// How often a root was set.
    pub(crate) roots_set: AtomicU64,
    /// The interval of the checkpoints that nobody asks for.
    pub(crate) every: Option<Duration>,
    /// Accesses that wait for the next checkpoint.
    pub(crate) full_wait: FullWait,
}

impl Durable {
    /// Lets go of what readers needed that have ended, unless a checkpoint is being made, which
    /// does so itself.
    pub(crate) fn forget_ended_readers(&self, store: &Store) {
        if let Some(file) = self.file.try_lock()
            && let Some(mut pins) = self.pins.try_lock()
        {
            pins.let_go(store, &file.0, self.descriptor);
        }
    }

    /// An access finds the file full of what the last checkpoint needs; whether it is to wait for
    /// the next one. Where checkpoints are made by themselves, one is made now.
    pub(crate) fn waits_for_checkpoint(&self, now_ns: u64) -> bool {
        if self.file.try_lock().is_none() {
            self.full_wait.begin_anew();
            return true;
        }
        let turn = self.full_wait.note(now_ns);
        if turn == Turn::Begins && self.every.is_some() {
            self.requests.ask();
        }
        turn != Turn::Ends
    }
}
