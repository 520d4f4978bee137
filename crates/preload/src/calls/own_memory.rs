//! Own memory: reads and writes of this process's memory through `/proc/self/mem`.
//!
//! The kernel answers EIO where such a file meets an evicted page. The offset is the address.
//!
//! Guarantees: a call that moves nothing for that reason is made again with up to `PINNED_MAX`
//! bytes at its offset pinned. A call that moved something is short, as at the end of a mapping.
//! Never: asks the kernel about a descriptor unless a call on it failed with EIO.
//! Threads: any.

use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;

use libc::{off_t, ssize_t};

use crate::buffers::pins::Pins;
use crate::buffers::transfer::status_of;
use crate::real::real;
use crate::refusal::refused;
use crate::seam;

/// The answer of a call on a descriptor that moves up to `len` bytes at `offset`, or where the
/// descriptor is. It is made again if it met evicted memory of this process.
#[inline(always)]
pub fn reached(
    descriptor: c_int,
    offset: Option<off_t>,
    len: usize,
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    let moved = call();
    if moved != -1 || seam::errno() != libc::EIO || !deepheap::internal::is_managing() {
        return moved;
    }
    again(descriptor, offset, len, &call)
}

#[cold]
fn again(
    descriptor: c_int,
    offset: Option<off_t>,
    len: usize,
    call: &dyn Fn() -> ssize_t,
) -> ssize_t {
    let seek = real!(lseek: fn(c_int, off_t, c_int) -> off_t);
    // SAFETY: numbers. A file that cannot tell its offset has none of ours.
    let offset = offset.unwrap_or_else(|| unsafe { seek(descriptor, 0, libc::SEEK_CUR) });
    if !deepheap::internal::may_leave(offset as usize) || !is_own_memory(descriptor) {
        return refused(libc::EIO) as ssize_t;
    }
    let mut pins = Pins::new();
    pins.bytes(offset as usize as *const u8, len);
    call()
}

/// Whether the descriptor is `/proc/self/mem`, which is the same file while it is open.
fn is_own_memory(descriptor: c_int) -> bool {
    let mut own = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a place for the answer; zeroed is a valid value of it.
    let own = unsafe {
        let stat = real!(stat: fn(*const c_char, *mut libc::stat) -> c_int);
        (stat(c"/proc/self/mem".as_ptr(), own.as_mut_ptr()) == 0).then(|| own.assume_init())
    };
    let file = |status: libc::stat| (status.st_dev, status.st_ino);
    own.is_some() && own.map(file) == status_of(descriptor).map(file)
}
