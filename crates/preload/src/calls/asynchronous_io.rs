//! Asynchronous I/O: refused, since the kernel would keep physical pages across eviction.
//!
//! Guarantees: `libaio`, `liburing` and POSIX aio on managed memory fail with ENOSYS and a logged
//! reason; programs that can do without do. `getaddrinfo_a` likewise, whose threads are as those of
//! POSIX aio. A program that makes the system calls with its own instructions is not seen.
//! Threads: any.

use core::ffi::{c_char, c_int};

use libc::{aiocb, sigevent};

use crate::calls::calls;
use crate::refusal::{ASYNCHRONOUS_IO, ASYNCHRONOUS_NAMES, refuse};

calls! {
    // Whatever their arguments are.
    fn io_setup, io_queue_init, io_uring_setup, io_uring_queue_init, io_uring_queue_init_params,
        io_uring_queue_init_mem() -> c_int = same(negative_refusal());

    fn aio_read, aio_read64, aio_write, aio_write64(request: *mut aiocb)
        -> c_int = refuse(POSIX_AIO, ENOSYS if is_managed(request));
    fn lio_listio, lio_listio64(
        mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent,
    ) -> c_int = refuse(POSIX_AIO, ENOSYS if is_any_managed(list, count));
    fn aio_fsync, aio_fsync64(operation: c_int, request: *mut aiocb)
        -> c_int = refuse(POSIX_AIO, ENOSYS if deepheap::internal::may_leave(request as usize));

    fn getaddrinfo_a(mode: c_int, list: *const *mut Question, count: c_int, event: *mut sigevent)
        -> c_int = by(|real| {
            if is_any_question_managed(list, count) {
                refuse(&ASYNCHRONOUS_NAMES, libc::ENOSYS);
                return libc::EAI_SYSTEM;
            }
            real(mode, list, count, event)
        });
}

/// `struct gaicb`, as far as the program fills it.
#[repr(C)]
pub struct Question {
    name: *const c_char,
    service: *const c_char,
    hints: *const libc::addrinfo,
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
    deepheap::internal::may_leave(request as usize)
        || deepheap::internal::may_leave(unsafe { (*request).aio_buf } as usize)
}

/// Whether one of a list of requests is.
fn is_any_managed(list: *const *mut aiocb, count: c_int) -> bool {
    is_any(list, count, |request| is_managed(request))
}

/// Whether one of a list of questions, or what it asks with, is.
fn is_any_question_managed(list: *const *mut Question, count: c_int) -> bool {
    is_any(list, count, |question| {
        // SAFETY: the program's own question.
        let Question { name, service, hints } = unsafe { &*question };
        [question as usize, *name as usize, *service as usize, *hints as usize]
            .into_iter()
            .any(deepheap::internal::may_leave)
    })
}

fn is_any<T>(list: *const *mut T, count: c_int, is_managed: impl Fn(*mut T) -> bool) -> bool {
    (0..usize::try_from(count).unwrap_or(0)).any(|index| {
        // SAFETY: the program passes `count` pointers, some of them null.
        let one = unsafe { *list.add(index) };
        !one.is_null() && is_managed(one)
    })
}
