//! Parking: where threads sleep until another thread makes a condition true.
//!
//! Guarantees: a thread that makes the condition true and then calls `notify` wakes a thread that
//! did not see it. If no thread sleeps, `notify` is one load.
//! Never: allocates | spins.
//! Threads: any, also in a signal handler.

use crate::threads::atomic::{AtomicU32, Ordering::SeqCst};
use crate::threads::futex;

/// See the file's header.
#[derive(Debug, Default)]
pub struct Parking {
    /// Threads that sleep, or are about to.
    waiting: AtomicU32,
    /// Changes with each `notify` while a thread waits.
    changed: AtomicU32,
}

impl Parking {
    /// Nobody sleeps.
    pub const fn new() -> Self {
        Parking { waiting: AtomicU32::new(0), changed: AtomicU32::new(0) }
    }

    /// Sleeps unless the condition holds; may return although it does not. The condition reads with
    /// `SeqCst` what others change with `SeqCst`: either we see the change, or the thread that made
    /// it sees us.
    pub fn wait_unless(&self, holds: impl Fn() -> bool) {
        self.waiting.fetch_add(1, SeqCst);
        let seen = self.changed.load(SeqCst);
        if !holds() {
            futex::wait(&self.changed, seen, None);
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// Wakes up to so many threads, after the change that they wait for.
    pub fn notify(&self, threads: u32) {
        if self.waiting.load(SeqCst) > 0 {
            self.changed.fetch_add(1, SeqCst);
            futex::wake(&self.changed, threads);
        }
    }

    /// Threads that sleep, or are about to.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(SeqCst)
    }

    /// In a forked child: forgets the parent's threads that slept.
    pub fn forget_others(&self) {
        self.waiting.store(0, SeqCst);
    }
}
