//! Allocation: the functions of malloc(3) under their `dh_` names.
//!
//! Guarantees: NULL for a failure comes with errno ENOMEM or EINVAL; `dh_free` leaves errno alone.
//! Never: looks into the memory it hands out or takes back.
//! Threads: any thread.

use core::ffi::c_void;

use crate::error::{keep_errno, set_errno};

/// Largest alignment that `dh_aligned_alloc` grants, in bytes.
const ALIGNMENT_MAX: usize = 32 << 20;

/// Hands out `ptr`; NULL for an allocation that failed sets errno.
pub(crate) fn or_enomem(ptr: *mut u8) -> *mut c_void {
    if ptr.is_null() {
        set_errno(libc::ENOMEM);
    }
    ptr.cast()
}

/// malloc(3) on deepheap's memory.
#[unsafe(no_mangle)]
pub extern "C" fn dh_malloc(size: usize) -> *mut c_void {
    or_enomem(deepheap::malloc(size))
}

/// calloc(3) on deepheap's memory.
#[unsafe(no_mangle)]
pub extern "C" fn dh_calloc(count: usize, size: usize) -> *mut c_void {
    or_enomem(deepheap::calloc(count, size))
}

/// realloc(3) on deepheap's memory. Shrinking to 0 bytes frees and returns NULL, without error.
///
/// # Safety
/// `ptr` is NULL or came from this family and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 && !ptr.is_null() {
        // SAFETY: passed on from the caller.
        unsafe { dh_free(ptr) };
        return core::ptr::null_mut();
    }
    // SAFETY: passed on from the caller.
    or_enomem(unsafe { deepheap::realloc(ptr.cast(), size) })
}

/// free(3) on deepheap's memory; never reads it in from the store.
///
/// # Safety
/// `ptr` is NULL or came from this family and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_free(ptr: *mut c_void) {
    if !ptr.is_null() {
        // SAFETY: passed on from the caller.
        keep_errno(|| unsafe { deepheap::free(ptr.cast()) });
    }
}

/// aligned_alloc(3) on deepheap's memory; any size, a power of two up to 32 MiB of alignment.
#[unsafe(no_mangle)]
pub extern "C" fn dh_aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
        set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    }
    or_enomem(deepheap::aligned_alloc(alignment, size))
}

/// Bytes that may be used at `ptr`; 0 for NULL and for what is not an allocation of deepheap.
#[unsafe(no_mangle)]
pub extern "C" fn dh_usable_size(ptr: *const c_void) -> usize {
    deepheap::usable_size(ptr.cast()).unwrap_or(0)
}
