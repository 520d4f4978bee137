//! Schedule: lets tests decide which thread runs.
//!
//! With the feature `schedules`, which only tests switch on, each operation on the atomics of
//! `atomic` is a point: there the scheduler that a test has set may let another of its threads run.
//! Waiting by `futex` then goes through that scheduler, too. Without the feature nothing of this
//! exists.
//!
//! Never: part of a product.
//! Threads: a scheduler belongs to the thread that has set it; the threads that it runs are its
//! own.

/// A point at which another thread may go on.
#[cfg(not(feature = "schedules"))]
#[inline(always)]
pub fn point() {}

#[cfg(feature = "schedules")]
pub use switched_on::{Scheduler, current, point, set};

#[cfg(feature = "schedules")]
mod switched_on {
    use core::cell::Cell;

    /// Decides which thread runs.
    pub trait Scheduler {
        /// Another thread may run; `must_yield`: this one waits for what others do.
        fn point(&self, must_yield: bool);
        /// The thread sleeps until it is woken by this word. No other thread has run since it
        /// looked at the word.
        fn sleep(&self, word: usize);
        /// Wakes up to `most` threads that sleep by this word; answers how many.
        fn wake(&self, word: usize, most: usize) -> usize;
        /// The number of the thread that is running, never 0.
        fn thread(&self) -> usize;
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
