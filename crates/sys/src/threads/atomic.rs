//! Atomic: the atomics of data that threads race for.
//!
//! They are those of the core library. With the feature `schedules` each operation on one is a
//! point of `schedule`, and what it sees is the scheduler's to say: the newest value, as if it were
//! sequentially consistent, or any that its order allows.

#[cfg(not(feature = "schedules"))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
};

pub use core::sync::atomic::Ordering;

#[cfg(feature = "schedules")]
pub use crate::threads::schedules::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
};
