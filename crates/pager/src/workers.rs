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
    /// Set to call one more helper; the one that comes ends the call. Helpers call the next one
    /// themselves, so no thread has to know how many are needed.
    is_called: AtomicBool,
    helpers: Parking,
    /// Helpers that have come.
    helping: AtomicU32,
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
            is_called: AtomicBool::new(false),
            helpers: Parking::new(),
            helping: AtomicU32::new(0),
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
    /// Sequentially consistent, as the count of pages is: either we see that it sleeps, or it sees
    /// the page for which we came.
    pub(crate) fn wake_sleeping_evictor(&self) {
        if self.evictor_sleeps.load(Ordering::SeqCst) != 0
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

    /// Calls one more helper, if none is called already. True if none sleeps.
    ///
    /// A helper counts itself as asleep, then looks for a call; we call, then look who sleeps. All
    /// of it is sequentially consistent, so one of us sees the other. A call that nobody has heard
    /// stays, and the next helper that would sleep answers it. Mostly there is a call, and no
    /// thread writes.
    pub(crate) fn call_helper(&self) -> bool {
        if !self.is_called.load(Ordering::Relaxed) && !self.is_called.swap(true, Ordering::SeqCst) {
            self.helpers.notify(1);
        }
        self.helpers.waiting() == 0
    }

    /// Helpers that evict.
    pub(crate) fn helping(&self) -> usize {
        self.helping.load(Ordering::Relaxed) as usize
    }

    /// Another evictor: sleeps until it is called, then evicts while that is of use.
    pub(crate) fn help(&self, mut evict: impl FnMut() -> bool) {
        self.helpers.wait_unless(|| self.is_called.load(Ordering::SeqCst) || self.have_ended());
        if !self.is_called.swap(false, Ordering::SeqCst) {
            return;
        }
        self.helping.fetch_add(1, Ordering::Relaxed);
        while evict() && !self.have_ended() {}
        self.helping.fetch_sub(1, Ordering::Relaxed);
    }

    /// In a forked child: the helpers of the parent do not exist.
    pub(crate) fn forget_others(&self) {
        self.is_called.store(false, Ordering::Relaxed);
        self.helping.store(0, Ordering::Relaxed);
        self.helpers.forget_others();
    }

    /// Has their loops return.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.wake_evictor();
        self.helpers.notify(i32::MAX as u32);
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

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    #[test]
    fn each_call_brings_a_helper_whether_or_not_one_sleeps() {
        const HELPERS: usize = 3;
        const CALLS: u32 = 20_000;
        let (workers, came) = (Workers::new(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..HELPERS {
                scope.spawn(|| {
                    while !workers.have_ended() {
                        let mut is_first = true;
                        workers.help(|| {
                            came.fetch_add(u32::from(is_first), Ordering::SeqCst);
                            core::mem::take(&mut is_first)
                        });
                    }
                });
            }
            for call in 0..CALLS {
                workers.call_helper();
                while came.load(Ordering::SeqCst) == call {
                    std::thread::yield_now();
                }
            }
            workers.end();
        });
        assert_eq!(
            (came.into_inner(), workers.helping(), workers.helpers.waiting()),
            (CALLS, 0, 0)
        );
    }
}
