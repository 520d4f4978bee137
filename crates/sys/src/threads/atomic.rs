//! Atomic: the atomics of data that threads race for.
//!
//! They are those of the core library. With the feature `schedules` each operation on one is a
//! point of `schedule`, and takes place whole and in order, as if it were sequentially consistent.

#[cfg(not(feature = "schedules"))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};

pub use core::sync::atomic::{Ordering, fence};

#[cfg(feature = "schedules")]
pub use crate::threads::schedules::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};
