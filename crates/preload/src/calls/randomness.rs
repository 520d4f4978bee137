//! Randomness: bytes from the kernel.
//!
//! Guarantees: `arc4random_buf` fills every byte, or the process ends; it asks the kernel, as
//! glibc's does, in pieces of `PINNED_MAX` bytes, and no cancelled thread ends there.
//! Threads: any.

use core::ffi::{c_int, c_long, c_uint, c_void};

use libc::{size_t, ssize_t};

use crate::buffers::guarded::guard;
use crate::buffers::pins::PINNED_MAX;
use crate::calls::calls;
use crate::real::real;
use crate::seam;

calls! {
    fn getrandom(bytes: *mut c_void [len], len: size_t, flags: c_uint) -> ssize_t = pin;
    fn getentropy(bytes: *mut c_void [len], len: size_t) -> c_int = pin;
}

// Not libc's own, which ends the process on EFAULT and is missing before glibc 2.36: a program that
// looks for it finds this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn arc4random_buf(start: *mut c_void, len: size_t) {
    let ask = real!(syscall: fn(c_long, *mut c_void, size_t, c_uint) -> c_long);
    let errno = seam::errno();
    let mut done = 0;
    while done < len {
        let at = start.wrapping_byte_add(done);
        let piece = (len - done).min(PINNED_MAX);
        let moved = guard(
            |pins| pins.bytes(at.cast_const(), piece),
            // SAFETY: a part of the program's own buffer.
            || unsafe { ask(libc::SYS_getrandom, at, piece, 0) },
        );
        if moved > 0 {
            done += moved as usize;
        } else if seam::errno() != libc::EINTR {
            // SAFETY: nothing is random that was asked for; glibc ends the process too.
            unsafe { libc::abort() };
        }
    }
    seam::set_errno(errno);
}
