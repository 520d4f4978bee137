//! Plain memory: glibc's own heap, reached past our symbols.
//!
//! Guarantees: works before any constructor ran. Memory from here is never managed, never evicted.
//! Threads: any.

use core::ffi::c_void;

use crate::real::real;

unsafe extern "C" {
    #[link_name = "__libc_malloc"]
    pub fn malloc(size: usize) -> *mut c_void;
    #[link_name = "__libc_calloc"]
    pub fn calloc(count: usize, size: usize) -> *mut c_void;
    #[link_name = "__libc_realloc"]
    pub fn realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    #[link_name = "__libc_memalign"]
    pub fn memalign(alignment: usize, size: usize) -> *mut c_void;
    #[link_name = "__libc_free"]
    pub fn free(pointer: *mut c_void);
}

/// glibc's `malloc_usable_size`, which has no name of its own.
///
/// # Safety
/// `pointer` is null or a live block of glibc's heap.
pub unsafe fn usable_size(pointer: *mut c_void) -> usize {
    // SAFETY: the caller's promise is exactly libc's.
    unsafe { real!(malloc_usable_size: fn(*mut c_void) -> usize)(pointer) }
}
