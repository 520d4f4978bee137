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
pub use crate::threads::schedules::{Access, Scheduler, Word, current, point, set};
