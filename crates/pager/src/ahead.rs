//! Ahead: what will be wanted soon is read before a thread faults on it.
//!
//! Faults (`ask`), and the program, put pages into queues (`prefetch`); the fetchers serve them
//! (`fetcher`). A page that nobody wanted costs time and nothing else.

pub(crate) mod ask;
pub(crate) mod companions;
pub(crate) mod fetcher;
pub(crate) mod neighbours;
pub(crate) mod prefetch;
pub(crate) mod window;

use core::sync::atomic::AtomicU32;

use deepheap_policy::history;
use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;

use neighbours::Neighbours;
use prefetch::Prefetch;

/// Which fault came after which.
pub(crate) type History = history::History<PinnedArray<AtomicU32>>;

/// What was asked for, and what that is decided by.
pub(crate) struct Ahead {
    pub(crate) queues: Prefetch,
    pub(crate) neighbours: Neighbours,
    /// If it is noted.
    pub(crate) history: Option<History>,
}

impl Ahead {
    pub(crate) fn new(
        budget: usize,
        follows_strides: bool,
        follows_sequences: bool,
    ) -> Result<Ahead> {
        let history = || -> Result<History> {
            let [ring, index, written] =
                history::lengths(history::bytes(budget)).map(PinnedArray::new);
            Ok(History::new([ring?, index?, written?]))
        };
        Ok(Ahead {
            queues: Prefetch::new(follows_strides),
            neighbours: Neighbours::default(),
            history: follows_sequences.then(history).transpose()?,
        })
    }
}
