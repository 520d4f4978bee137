//! Padded: a value with cache lines of its own.
//!
//! Guarantees: two padded values share neither a cache line nor the pair of lines that processors
//! fetch together. So threads that change one do not slow down those that use the other.
//! Threads: as the value.

use crate::memory::pinned_array::Zeroed;
use core::ops::{Deref, DerefMut};

/// See the file's header. A multiple of 128 bytes: two lines of 64.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

// SAFETY: the value, and bytes that nobody looks at.
unsafe impl<T: Zeroed> Zeroed for Padded<T> {}

impl<T> Deref for Padded<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
