//! Asynchronous I/O: refused, since the kernel would keep physical pages across eviction.
//!
//! Guarantees: `libaio`, `liburing` and POSIX aio on managed memory fail with ENOSYS and a logged
//! reason; programs that can do without do. A program that makes the system calls with its own
//! instructions is not seen.
//!
//! Threads: any.

use core::ffi::{c_int, c_uint, c_void};

use libc::aiocb;

use crate::real::real;
use crate::refusal::{ASYNCHRONOUS_IO, POSIX_AIO, refuse};

/// liburing and libaio return the negative error number.
fn negative_refusal() -> c_int {
    refuse(&ASYNCHRONOUS_IO, libc::ENOSYS);
    -libc::ENOSYS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_setup(_requests: c_int, _context: *mut c_void) -> c_int {
    negative_refusal()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_queue_init(_requests: c_int, _context: *mut c_void) -> c_int {
    negative_refusal()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_queue_init(
    _entries: c_uint,
    _ring: *mut c_void,
    _flags: c_uint,
) -> c_int {
    negative_refusal()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_queue_init_params(
    _entries: c_uint,
    _ring: *mut c_void,
    _parameters: *mut c_void,
) -> c_int {
    negative_refusal()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_queue_init_mem(
    _entries: c_uint,
    _ring: *mut c_void,
    _parameters: *mut c_void,
    _memory: *mut c_void,
    _bytes: usize,
) -> c_int {
    negative_refusal()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_setup(_entries: c_uint, _parameters: *mut c_void) -> c_int {
    negative_refusal()
}

/// Whether the request or its buffer is. libc's threads look at the request with all signals
/// blocked, and must not fault.
///
/// # Safety
/// The program's own request.
unsafe fn is_managed(request: *const aiocb) -> bool {
    // SAFETY: the caller's promise.
    deepheap::owns(request as usize) || deepheap::owns(unsafe { (*request).aio_buf } as usize)
}

macro_rules! posix {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(request: *mut aiocb) -> c_int {
            let real = real!($name: unsafe extern "C" fn(*mut aiocb) -> c_int);
            // SAFETY: the program's own request.
            unsafe {
                if is_managed(request) {
                    return refuse(&POSIX_AIO, libc::ENOSYS);
                }
                real(request)
            }
        }
    )*};
}

posix! {
    aio_read;
    aio_read64;
    aio_write;
    aio_write64;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut libc::sigevent,
) -> c_int {
    let real = real!(
        lio_listio: unsafe extern "C" fn(
            c_int, *const *mut aiocb, c_int, *mut libc::sigevent,
        ) -> c_int
    );
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the program passes `count` requests, some of them null.
        let managed = unsafe {
            let request = *list.add(index);
            !request.is_null() && is_managed(request)
        };
        if managed {
            return refuse(&POSIX_AIO, libc::ENOSYS);
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { real(mode, list, count, event) }
}
