//! Asynchronous I/O: refused, since the kernel would keep physical pages across eviction.
//!
//! Guarantees: `libaio`, `liburing` and POSIX aio on managed memory fail with ENOSYS and a logged
//! reason; programs that can do without do. A program that makes the system calls with its own
//! instructions is not seen.
//!
//! Threads: any.

use core::ffi::c_int;

use libc::{aiocb, sigevent};

use crate::calls::{Opaque, calls};
use crate::refusal::{ASYNCHRONOUS_IO, refuse};

calls! {
    fn io_setup(_requests: c_int, _context: Opaque) -> c_int = same(negative_refusal());
    fn io_queue_init(_requests: c_int, _context: Opaque) -> c_int = same(negative_refusal());
    fn io_uring_setup(_entries: c_int, _parameters: Opaque) -> c_int = same(negative_refusal());
    fn io_uring_queue_init(_entries: c_int, _ring: Opaque, _flags: c_int) -> c_int
        = same(negative_refusal());
    fn io_uring_queue_init_params(_entries: c_int, _ring: Opaque, _parameters: Opaque) -> c_int
        = same(negative_refusal());
    fn io_uring_queue_init_mem(
        _entries: c_int, _ring: Opaque, _parameters: Opaque, _memory: Opaque, _bytes: usize,
    ) -> c_int = same(negative_refusal());

    fn aio_read(request: *mut aiocb) -> c_int = refuse(POSIX_AIO, ENOSYS if is_managed(request));
    fn aio_read64(request: *mut aiocb) -> c_int = refuse(POSIX_AIO, ENOSYS if is_managed(request));
    fn aio_write(request: *mut aiocb) -> c_int = refuse(POSIX_AIO, ENOSYS if is_managed(request));
    fn aio_write64(request: *mut aiocb) -> c_int
        = refuse(POSIX_AIO, ENOSYS if is_managed(request));
    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int
        = refuse(POSIX_AIO, ENOSYS if is_any_managed(list, count));
}

/// liburing and libaio return the negative error number.
fn negative_refusal() -> c_int {
    refuse(&ASYNCHRONOUS_IO, libc::ENOSYS);
    -libc::ENOSYS
}

/// Whether the request or its buffer is. libc's threads look at the request with all signals
/// blocked, and must not fault.
fn is_managed(request: *const aiocb) -> bool {
    // SAFETY: the program's own request.
    deepheap::may_leave(request as usize)
        || deepheap::may_leave(unsafe { (*request).aio_buf } as usize)
}

/// Whether one of a list of requests is.
fn is_any_managed(list: *const *mut aiocb, count: c_int) -> bool {
    (0..usize::try_from(count).unwrap_or(0)).any(|index| {
        // SAFETY: the program passes `count` requests, some of them null.
        let request = unsafe { *list.add(index) };
        !request.is_null() && is_managed(request)
    })
}
