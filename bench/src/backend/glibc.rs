//! glibc: the C library's malloc, with no limit; what memory costs when there is enough of it.

/// Null when there is no memory.
pub fn malloc(size: usize) -> *mut u8 {
    // SAFETY: malloc has no preconditions.
    unsafe { libc::malloc(size) }.cast()
}
