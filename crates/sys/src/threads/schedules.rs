//! Schedules: what the feature of that name puts in the place of atomics, futexes and identities of
//! threads, for tests that decide which thread runs (`schedule`). No product has it.
//!
//! Threads: those of a scheduler run one at a time.

// As documented for those of the core library.
#![allow(missing_docs)]

use core::cell::Cell;
use core::sync::atomic::{self, Ordering};

use crate::memory::pinned_array::Zeroed;

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

/// Waits as `futex::wait` does. True: the time is over.
pub(crate) fn wait(
    scheduler: &dyn Scheduler,
    word: &AtomicU32,
    expected: u32,
    has_limit: bool,
) -> bool {
    // SAFETY: the word is borrowed; the threads of a scheduler run one at a time.
    let now = unsafe { word.as_ptr().read() };
    if now == expected && has_limit {
        // Time passes only when other threads run.
        scheduler.point(true);
        return true;
    }
    if now == expected {
        scheduler.sleep(word.as_ptr() as usize);
    }
    false
}

/// Operations that take a value and answer the previous one.
macro_rules! forward {
    ($value:ty: $($name:ident),*) => {$(
        pub fn $name(&self, value: $value, order: Ordering) -> $value {
            point();
            self.0.$name(value, order)
        }
    )*};
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        // SAFETY: an atomic and nothing else: every bit pattern of a number is one, and zero
        // is false.
        unsafe impl Zeroed for $name {}

        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            /// # Safety
            /// As for that of the core library.
            pub const unsafe fn from_ptr<'a>(word: *mut $value) -> &'a Self {
                // SAFETY: the caller's promise; nothing but the atomic is in it.
                unsafe { &*word.cast() }
            }

            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(from, to, success, failure)
            }

            pub fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, success, failure)
            }

            forward!($value: swap, fetch_or, fetch_and);

            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(next) = change(seen) {
                    match self.compare_exchange(seen, next, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(now) => seen = now,
                    }
                }
                Err(seen)
            }
        }
    };
}

macro_rules! number {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl $name {
            forward!($value: fetch_add, fetch_sub, fetch_max);
        }
    };
}

atomic!(AtomicBool, bool);
number!(AtomicU8, u8);
number!(AtomicU16, u16);
number!(AtomicU32, u32);
number!(AtomicU64, u64);
number!(AtomicI32, i32);
number!(AtomicUsize, usize);
