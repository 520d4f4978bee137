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
pub use switched_on::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};

#[cfg(feature = "schedules")]
mod switched_on {
    // As documented for those of the core library.
    #![allow(missing_docs)]

    use core::sync::atomic::{self, Ordering};

    use crate::pinned_array::Zeroed;
    use crate::schedule::point;

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
}
