//! State: what a runtime has beside if its heap outlives the process.
//!
//! Guarantees: an access that finds the file full of what the last checkpoint needs waits for as
//! long as a checkpoint is being made, and for `PATIENCE` beside that; then it ends. Only another
//! checkpoint lets go of that.
//! Threads: any. Lock order: the file, then the cache, then as in a fork. The fault handler asks
//! `waits_for_checkpoint`, which never blocks or allocates.

use core::time::Duration;
use std::os::fd::RawFd;
use std::path::PathBuf;

use deepheap_durable::pins::DurablePins;
use deepheap_durable::roots::Roots;
use deepheap_heap::ThreadCache;
use deepheap_store::{DurableFile, SavedUpTo, Store};
use deepheap_sys::threads::atomic::{AtomicU64, Ordering::Relaxed};
use deepheap_sys::threads::lock::Lock;

use crate::durable::worker::Requests;

/// How long accesses wait for somebody to make a checkpoint.
const PATIENCE: Duration = Duration::from_secs(10);
/// Accesses that wait look again all the time: after such a gap nobody was waiting any more.
const GAP: Duration = Duration::from_secs(1);

/// The further state of a runtime whose heap is durable.
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
    /// Requests for its checkpoints.
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

/// How long accesses have waited, all of them together.
#[derive(Default)]
pub(crate) struct FullWait {
    /// When the first of them began; 0: none waits.
    since_ns: AtomicU64,
    /// When the last of them looked.
    seen_ns: AtomicU64,
}

/// The next step of an access that finds no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// It is the first one that waits.
    Begins,
    /// It waits on.
    GoesOn,
    /// It must end.
    Ends,
}

impl FullWait {
    /// An access finds no room at this time. The words are hints: of two accesses that begin at
    /// once both may be the first, and none waits for longer than it may.
    pub(crate) fn note(&self, now_ns: u64) -> Turn {
        let seen_ns = self.seen_ns.swap(now_ns, Relaxed);
        let since_ns = self.since_ns.load(Relaxed);
        if since_ns == 0 || now_ns.saturating_sub(seen_ns) > GAP.as_nanos() as u64 {
            self.since_ns.store(now_ns, Relaxed);
            return Turn::Begins;
        }
        let waited_ns = now_ns.saturating_sub(since_ns);
        if waited_ns > PATIENCE.as_nanos() as u64 { Turn::Ends } else { Turn::GoesOn }
    }

    /// A checkpoint is being made, or was: patience begins anew.
    pub(crate) fn begin_anew(&self) {
        self.since_ns.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn who_waits_for_a_checkpoint_waits_ten_seconds_and_ends() {
        let wait = FullWait::default();
        assert_eq!(wait.note(SECOND), Turn::Begins);
        for tenth in 1..=100 {
            assert_eq!(wait.note(SECOND + tenth * SECOND / 10), Turn::GoesOn);
        }
        assert_eq!(wait.note(11 * SECOND + 1), Turn::Ends);
    }

    #[test]
    fn a_checkpoint_and_a_pause_begin_the_patience_anew() {
        let wait = FullWait::default();
        assert_eq!(wait.note(SECOND), Turn::Begins);
        wait.begin_anew();
        assert_eq!(wait.note(SECOND + 1), Turn::Begins);
        assert_eq!(wait.note(3 * SECOND), Turn::Begins);
        assert_eq!(wait.note(3 * SECOND + 1), Turn::GoesOn);
    }
}
