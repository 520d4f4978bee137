//! Schedule: where tests decide which thread goes on.
//!
//! With the feature `schedules`, which only tests switch on, the atomics of `atomic` are points at
//! which a scheduler that a test has set may let another of its threads go on, and whoever waits by
//! `futex` waits by that scheduler. Without it all of this is nothing.
//!
//! Never: part of a product.
//! Threads: a scheduler is that of the thread that has set it; those it runs are its own.

/// A point at which another thread may go on.
#[cfg(not(feature = "schedules"))]
#[inline(always)]
pub fn point() {}

#[cfg(feature = "schedules")]
pub use switched_on::{Scheduler, current, point, set};

#[cfg(feature = "schedules")]
mod switched_on {
    use core::cell::Cell;

    /// Who decides.
    pub trait Scheduler {
        /// Another thread may go on; `must_yield`: this one waits for what others do.
        fn point(&self, must_yield: bool);
        /// The thread sleeps until it is woken by this word. Nobody has run since the word was
        /// looked at.
        fn sleep(&self, word: usize);
        /// Wakes up to `most` of those that sleep by this word; answers how many.
        fn wake(&self, word: usize, most: usize) -> usize;
    }

    thread_local! {
        static SCHEDULER: Cell<Option<&'static dyn Scheduler>> = const { Cell::new(None) };
    }

    /// Sets the scheduler of this thread, or takes it away.
    pub fn set(scheduler: Option<&'static dyn Scheduler>) {
        SCHEDULER.set(scheduler);
    }

    /// The scheduler of this thread.
    pub fn current() -> Option<&'static dyn Scheduler> {
        SCHEDULER.get()
    }

    /// A point at which another thread may go on.
    #[inline]
    pub fn point() {
        if let Some(scheduler) = current() {
            scheduler.point(false);
        }
    }
}
