//! Plain spans: the spans that were born plain and are not under management yet.
//!
//! Never: allocates.
//! Threads: any may ask whether there are some; a thread takes them over under the lock.

use deepheap_sys::threads::atomic::{AtomicUsize, Ordering};
use deepheap_sys::threads::lock::{Guard, Lock};

/// Pieces of plain spans still to be taken over: `next..end`.
pub(crate) struct TakeOver {
    pub(crate) next: usize,
    pub(crate) end: usize,
    /// How many of their pages count as resident until they have been scanned.
    pub(crate) assumed: usize,
    /// Pages that stay in RAM until they are unpinned: first page number, number of pages.
    pub(crate) held: Vec<(usize, usize)>,
}

/// The plain spans of a region.
pub(crate) struct PlainSpans {
    /// How many pieces of plain spans are left.
    count: AtomicUsize,
    take_over: Lock<TakeOver>,
}

impl PlainSpans {
    pub(crate) fn none() -> PlainSpans {
        let none = TakeOver { next: 0, end: 0, assumed: 0, held: Vec::new() };
        PlainSpans { count: AtomicUsize::new(0), take_over: Lock::new(none) }
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether nobody has the lock now.
    #[cfg(test)]
    pub(crate) fn is_unlocked(&self) -> bool {
        self.take_over.try_lock().is_some()
    }

    pub(crate) fn lock(&self) -> Guard<'_, TakeOver> {
        self.take_over.lock()
    }

    /// Sets how many pieces are left. Under the lock.
    pub(crate) fn set_count(&self, count: usize) {
        self.count.store(count, Ordering::Release);
    }
}
