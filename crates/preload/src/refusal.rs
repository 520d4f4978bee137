//! Refusal: a call that cannot work on managed memory fails and says why.
//!
//! Guarantees: one line on stderr for each kind of refusal, then only the error.
//! Never: allocates; safe in signal handlers.
//! Threads: any.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::real::real;
use crate::seam;

/// One kind of refused call.
pub struct Refusal {
    line: &'static str,
    said: AtomicBool,
}

impl Refusal {
    const fn new(line: &'static str) -> Refusal {
        Refusal { line, said: AtomicBool::new(false) }
    }
}

/// Kernel asynchronous I/O keeps physical pages while a request runs.
pub static ASYNCHRONOUS_IO: Refusal = Refusal::new(
    "deepheap: io_setup and io_uring_setup answer ENOSYS: the kernel would write to pages that \
     have left memory; the program's own fallback is used\n",
);
/// POSIX asynchronous I/O on managed memory.
pub static POSIX_AIO: Refusal = Refusal::new(
    "deepheap: aio_read and aio_write answer ENOSYS for memory on the heap; use a shared mapping \
     for the buffer\n",
);
/// Names that libc's own threads would read.
pub static ASYNCHRONOUS_NAMES: Refusal = Refusal::new(
    "deepheap: getaddrinfo_a answers EAI_SYSTEM and ENOSYS for memory on the heap; use \
     getaddrinfo\n",
);
/// Sockets that read pages after the call.
pub static ZERO_COPY: Refusal = Refusal::new(
    "deepheap: SO_ZEROCOPY answers EOPNOTSUPP: the kernel would read pages that have left memory\n",
);
/// Pipes that keep pages.
pub static VMSPLICE: Refusal = Refusal::new(
    "deepheap: vmsplice answers EINVAL for memory on the heap: the pipe would keep its pages\n",
);
/// Mappings placed over memory of `malloc`, or moved to an address of the heap.
pub static REMAPPING: Refusal = Refusal::new(
    "deepheap: mmap and munmap answer EINVAL for memory of malloc, mremap for a fixed address on \
     the heap\n",
);
/// Locked memory cannot be evicted.
pub static LOCKING: Refusal = Refusal::new(
    "deepheap: mlockall answers EPERM, and mlock ENOMEM for memory on the heap: locked pages \
     cannot be moved to the store\n",
);

/// Says why, once, sets errno and returns -1.
#[cold]
pub fn refuse(refusal: &Refusal, code: c_int) -> c_int {
    if !refusal.said.swap(true, Ordering::Relaxed) {
        let write = real!(write: fn(c_int, *const u8, usize) -> isize);
        // SAFETY: a constant string. Stderr may be closed; then nobody listens.
        unsafe { write(libc::STDERR_FILENO, refusal.line.as_ptr(), refusal.line.len()) };
    }
    refused(code)
}

/// Sets errno and returns -1, without a word.
pub fn refused(code: c_int) -> c_int {
    seam::set_errno(code);
    -1
}

/// EBADF, if the descriptor is one of ours: what a call of the program answers about it.
#[inline]
pub fn refused_if_own(descriptor: c_int) -> Option<c_int> {
    deepheap::internal::is_own_descriptor(descriptor).then(|| refused(libc::EBADF))
}
