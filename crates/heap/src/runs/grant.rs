//! Grant: how many pages may hold bytes, and how many do.
//!
//! Guarantees: never more pages are committed than were granted.
//! Never: locks.
//! Threads: read by any; changed under the lock of `Coalescing`.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use crate::outcome::Shortage;

/// See the file's header.
#[derive(Default)]
pub(crate) struct Grant {
    pub committed: AtomicUsize,
    /// The limit on `committed`.
    pub granted: AtomicUsize,
    /// The limit falls to what is committed when pages leave use.
    pub follows: AtomicBool,
}

impl Grant {
    pub(crate) fn committed(&self) -> usize {
        self.committed.load(Relaxed)
    }

    /// Pages that are granted and not committed.
    pub(crate) fn unused(&self) -> usize {
        self.granted.load(Relaxed).saturating_sub(self.committed())
    }

    /// Counts `pages` more as committed, if the grant allows it.
    pub(crate) fn commit(&self, pages: usize) -> Result<(), Shortage> {
        let (granted, committed) = (self.granted.load(Relaxed), self.committed());
        // Only the holder of the lock commits, so no other thread can come between.
        if committed + pages > granted {
            return Err(Shortage::Pages(committed + pages - granted));
        }
        self.committed.fetch_add(pages, Relaxed);
        Ok(())
    }

    /// Undoes `commit` under the same lock.
    pub(crate) fn uncommit(&self, pages: usize) {
        self.committed.fetch_sub(pages, Relaxed);
    }

    /// Pages have left use.
    pub(crate) fn give_back(&self, pages: usize) {
        self.uncommit(pages);
        if self.follows.load(Relaxed) {
            self.granted.store(self.committed(), Relaxed);
        }
    }
}
