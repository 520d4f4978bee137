//! Workers: how the threads that evict and collect are woken and ended, and which of them run.
//!
//! A forked child has no workers at first, and threads of the program do their work (`stand_in`).
//!
//! Never: allocates.
//! Threads: any wakes; a worker waits.

use core::time::Duration;

use deepheap_sys::threads::atomic::{AtomicBool, AtomicU32, Ordering};
use deepheap_sys::threads::futex;
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::parking::Parking;

/// See the file's header.
pub struct Workers {
    /// Counts up whenever the evictor should look; the evictor sleeps on it.
    eviction_signal: AtomicU32,
    evictor_sleeps: AtomicU32,
    /// Set when the first evictor does not keep up; the others sleep until it is set.
    wants_help: AtomicBool,
    helpers: Parking,
    has_ended: AtomicBool,
    pub(crate) has_evictor: AtomicBool,
    pub(crate) has_collector: AtomicBool,
    /// Held by a thread of the program that collects.
    pub(crate) collecting_here: Lock<()>,
}

impl Workers {
    pub(crate) fn new() -> Workers {
        Workers {
            eviction_signal: AtomicU32::new(0),
            evictor_sleeps: AtomicU32::new(0),
            wants_help: AtomicBool::new(false),
            helpers: Parking::new(),
            has_ended: AtomicBool::new(false),
            has_evictor: AtomicBool::new(true),
            has_collector: AtomicBool::new(true),
            collecting_here: Lock::new(()),
        }
    }

    /// Wakes the evictor.
    pub fn wake_evictor(&self) {
        self.eviction_signal.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.eviction_signal, 1);
    }

    /// Wakes the evictor if it sleeps. Of many threads that see it sleeping only one wakes it.
    pub(crate) fn wake_sleeping_evictor(&self) {
        if self.evictor_sleeps.load(Ordering::Relaxed) != 0
            && self.evictor_sleeps.swap(0, Ordering::SeqCst) != 0
        {
            self.wake_evictor();
        }
    }

    /// The first evictor: sleeps until it is woken, or for at most `limit`.
    pub(crate) fn wait_unless(&self, has_work: impl Fn() -> bool, limit: Option<Duration>) {
        let seen = self.eviction_signal.load(Ordering::SeqCst);
        self.evictor_sleeps.store(1, Ordering::SeqCst);
        if !has_work() {
            futex::wait(&self.eviction_signal, seen, limit);
        }
        self.evictor_sleeps.store(0, Ordering::SeqCst);
    }

    /// Wakes one of the other evictors.
    pub(crate) fn wake_helper(&self) {
        self.wants_help.store(true, Ordering::SeqCst);
        self.helpers.notify(1);
    }

    /// Another evictor: sleeps until it is asked for help, then evicts while that is of use.
    pub(crate) fn help(&self, mut evict: impl FnMut() -> bool) {
        self.helpers.wait_unless(|| self.wants_help.load(Ordering::SeqCst));
        while self.wants_help.load(Ordering::Relaxed) {
            if !evict() {
                self.wants_help.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Has their loops return.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.wake_evictor();
        self.wake_helper();
    }

    /// Whether `Pager::end_work` was called.
    pub fn have_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// There are none: threads do without until they come.
    pub fn begin_without(&self) {
        self.has_evictor.store(false, Ordering::SeqCst);
        self.has_collector.store(false, Ordering::SeqCst);
    }

    /// The evictor runs.
    pub fn note_evictor(&self) {
        self.has_evictor.store(true, Ordering::SeqCst);
    }

    /// The collector runs.
    pub fn note_collector(&self) {
        self.has_collector.store(true, Ordering::SeqCst);
    }
}
