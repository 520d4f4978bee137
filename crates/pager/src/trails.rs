//! Trails: the history of faults, and what came of pages that were brought because they followed
//! before (`policy/history`, `policy/trail`).
//!
//! Never: allocates after `new`, waits.
//! Threads: any; faulting threads note and ask (`fetch`), the fetchers bring (`fetcher`).

use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_sys::errno::Result;
use deepheap_sys::padded::Padded;

use crate::policy::history::{self, History};

/// What came of pages that trails have asked for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Followed {
    /// Pages that were read from the store.
    pub brought: u64,
    /// Of them those that a fault found in the cache.
    pub used: u64,
    /// And those that left the cache before.
    pub dropped: u64,
}

/// See the head of the file.
pub(crate) struct Trails {
    history: Option<History>,
    brought: Padded<AtomicU64>,
    used: Padded<AtomicU64>,
    dropped: Padded<AtomicU64>,
}

impl Trails {
    /// With a history for this budget, if it is wanted.
    pub(crate) fn new(is_wanted: bool, budget: usize) -> Result<Trails> {
        let [brought, used, dropped] = [0; 3].map(|count| Padded(AtomicU64::new(count)));
        let history = is_wanted.then(|| History::new(history::bytes(budget))).transpose()?;
        Ok(Trails { history, brought, used, dropped })
    }

    /// The history, if one is kept.
    pub(crate) fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.history.as_ref().map_or(0, History::bytes)
    }

    /// Counts a page that was read because it follows.
    pub(crate) fn bring(&self) {
        self.brought.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one that a fault found in the cache.
    pub(crate) fn use_one(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one that left the cache before.
    pub(crate) fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// What came of pages that trails have asked for.
    pub(crate) fn followed(&self) -> Followed {
        let [brought, used, dropped] = [&self.brought, &self.used, &self.dropped]
            .map(|counter| counter.load(Ordering::Relaxed));
        Followed { brought, used, dropped }
    }
}
