//! Device control: `ioctl`, `fcntl`, and the copies inside the kernel (`sendfile`, `splice`).
//!
//! Guarantees: as `guarded`. The size of an ioctl's argument is what its number says, or one page
//! where it says nothing; an array behind it is pinned for FIEMAP, FIDEDUPERANGE and GETFSMAP, a
//! second buffer named inside the argument for SIOCGIFCONF, elsewhere EFAULT is the answer.
//! `vmsplice` of managed memory is refused: the pipe would keep physical pages that eviction gives
//! away.
//!
//! Threads: any.

use core::ffi::{c_int, c_uint, c_ulong};

use libc::{iovec, off_t, off64_t, size_t, ssize_t};

use crate::guarded::guarded;
use crate::pins::{PAGE, Pins};
use crate::program_call::for_program;
use crate::real::real;
use crate::refusal;
use crate::vectors::Vector;

/// The size field of an ioctl number.
const SIZE_SHIFT: u32 = 16;
const SIZE_MASK: c_ulong = 0x3fff;
/// SIOCGIFCONF, missing from the libc crate.
const INTERFACE_LIST: c_ulong = 0x8912;

/// `struct ifconf`.
#[repr(C)]
struct InterfaceList {
    bytes: c_int,
    buffer: *const u8,
}

/// `FS_IOC_FIEMAP`, `FIDEDUPERANGE` and `FS_IOC_GETFSMAP`.
const EXTENT_MAP: c_ulong = 0xc020_660b;
const DEDUPE_RANGE: c_ulong = 0xc018_9436;
const SYSTEM_MAP: c_ulong = 0xc0c0_583b;

/// The bytes of the array behind an argument: its header counts the elements.
fn array_bytes(request: c_ulong, argument: usize) -> usize {
    if !deepheap::owns(argument) {
        return 0;
    }
    // SAFETY: these requests' argument; the program's own memory, read in user mode.
    unsafe {
        match request {
            EXTENT_MAP => *((argument + 24) as *const u32) as usize * 56,
            DEDUPE_RANGE => usize::from(*((argument + 16) as *const u16)) * 32,
            SYSTEM_MAP => *((argument + 8) as *const u32) as usize * 64,
            _ => 0,
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: usize) -> c_int {
    let real = real!(ioctl: unsafe extern "C" fn(c_int, c_ulong, usize) -> c_int);
    let buffers = |pins: &mut Pins| {
        let stated = (request >> SIZE_SHIFT & SIZE_MASK) as usize;
        let bytes = if stated == 0 { PAGE } else { stated + array_bytes(request, argument) };
        pins.bytes(argument as *const u8, bytes);
        if request == INTERFACE_LIST && argument != 0 {
            // SAFETY: this request's argument; the program's own memory, read in user mode.
            let list = unsafe { &*(argument as *const InterfaceList) };
            pins.bytes(list.buffer, usize::try_from(list.bytes).unwrap_or(0));
        }
    };
    // SAFETY: the program's own arguments.
    crate::guarded::guard(buffers, || unsafe { real(descriptor, request, argument) })
}

guarded! {
    // Variadic in C; the third argument is a pointer for the locks, else a number.
    fn fcntl(descriptor: c_int, command: c_int, argument: usize) -> c_int
        = |pins| pins.value(argument as *const libc::flock64);
    fn fcntl64(descriptor: c_int, command: c_int, argument: usize) -> c_int
        = |pins| pins.value(argument as *const libc::flock64);
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t
        = |pins| pins.value(offset);
    fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, len: size_t) -> ssize_t
        = |pins| pins.value(offset);
    fn splice(
        from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: size_t,
        flags: c_uint,
    ) -> ssize_t = |pins| { pins.value(from_offset); pins.value(to_offset) };
    fn copy_file_range(
        from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: size_t,
        flags: c_uint,
    ) -> ssize_t = |pins| { pins.value(from_offset); pins.value(to_offset) };
}

for_program! {
    fn vmsplice(descriptor: c_int, first: *const iovec, count: size_t, flags: c_uint) -> ssize_t
        => vmsplice_of_program;
}

unsafe extern "C" fn vmsplice_of_program(
    descriptor: c_int,
    first: *const iovec,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    let vector = Vector::new(first, c_int::try_from(count).unwrap_or(0));
    if !first.is_null() && vector.is_managed() {
        return refusal::refuse(&refusal::VMSPLICE, libc::EINVAL) as ssize_t;
    }
    let real =
        real!(vmsplice: unsafe extern "C" fn(c_int, *const iovec, size_t, c_uint) -> ssize_t);
    // SAFETY: the program's own arguments.
    unsafe { real(descriptor, first, count, flags) }
}
