//! Pinned array: a table of fixed capacity in memory of our own, which takes RAM only where it is
//! touched.
//!
//! Guarantees: starts all zero, page-aligned, never moves; safe to share as `[T]` is.
//! Never: uses the global allocator | grows | drops its elements (they need no dropping).
//! Threads: one makes and drops it, any may read it, also in a signal handler.

use crate::errno::{Errno, Result};
use crate::memory::mapping;
use core::mem::size_of;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic;

/// A type for which all bytes zero is a valid value, and which needs no drop.
///
/// # Safety
/// All-zero bytes are a valid value of the type, and forgetting one is harmless.
pub unsafe trait Zeroed {}

macro_rules! zeroed {
    ($($type:ty),*) => {$(
        // SAFETY: an integer, a float or an atomic integer: every bit pattern is a value.
        unsafe impl Zeroed for $type {}
    )*};
}
zeroed!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);
zeroed!(atomic::AtomicU8, atomic::AtomicU16, atomic::AtomicU32, atomic::AtomicU64);
zeroed!(atomic::AtomicI32, atomic::AtomicI64, atomic::AtomicUsize, atomic::AtomicBool, bool);
// SAFETY: null is a valid value.
unsafe impl<T> Zeroed for atomic::AtomicPtr<T> {}
// SAFETY: every element is valid.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}

/// `capacity` zeroed values in pinned memory.
#[derive(Debug)]
pub struct PinnedArray<T: Zeroed> {
    start: NonNull<T>,
    capacity: usize,
}

// SAFETY: the array owns its memory: sending it sends the values.
unsafe impl<T: Zeroed + Send> Send for PinnedArray<T> {}
// SAFETY: sharing it lends `&[T]` only.
unsafe impl<T: Zeroed + Sync> Sync for PinnedArray<T> {}

impl<T: Zeroed> PinnedArray<T> {
    /// Maps the array; memory is used only where it is touched. ENOMEM if there is no room.
    pub fn new(capacity: usize) -> Result<Self> {
        const { assert!(align_of::<T>() <= crate::PAGE && size_of::<T>() > 0) };
        let bytes = capacity.checked_mul(size_of::<T>()).ok_or(Errno::ENOMEM)?;
        let start = NonNull::new(mapping::map_pinned(bytes)?.cast::<T>()).ok_or(Errno::ENOMEM)?;
        Ok(PinnedArray { start, capacity })
    }

    /// Bytes of address space it takes.
    pub fn mapped_bytes(&self) -> usize {
        (self.capacity * size_of::<T>()).next_multiple_of(crate::PAGE).max(crate::PAGE)
    }

    /// Bytes of it that are in RAM now; walks its page tables.
    pub fn resident_bytes(&self) -> Result<usize> {
        mapping::resident_bytes(self.start.as_ptr().cast(), self.mapped_bytes())
    }

    /// Its first element, as a pointer that is valid while the array lives.
    pub fn as_ptr(&self) -> *mut T {
        self.start.as_ptr()
    }
}

impl<T: Zeroed> Deref for PinnedArray<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` mapped capacity * size_of::<T>() bytes, zeroed, and Zeroed makes them
        // values.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.capacity) }
    }
}

impl<T: Zeroed> DerefMut for PinnedArray<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref; `&mut self` makes it exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }
}

impl<T: Zeroed> Drop for PinnedArray<T> {
    fn drop(&mut self) {
        // SAFETY: start and length are those of `new`'s map_pinned; no borrow outlives self.
        let unmapped = unsafe { mapping::unmap(self.start.as_ptr().cast(), self.mapped_bytes()) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_is_zeroed_and_as_long_as_asked() {
        let mut array = PinnedArray::<u32>::new(3000).unwrap();
        assert_eq!(array.len(), 3000);
        assert!(array.iter().all(|value| *value == 0));
        array[2999] = 5;
        assert_eq!(array[2999], 5);
    }

    #[test]
    fn huge_array_costs_only_what_is_touched() {
        let array = PinnedArray::<atomic::AtomicU32>::new(1 << 30).unwrap();
        array[1 << 29].store(1, atomic::Ordering::Relaxed);
        assert_eq!(array.resident_bytes().unwrap(), crate::PAGE);
    }
}
