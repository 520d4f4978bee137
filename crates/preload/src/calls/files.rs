//! Files: the calls on open descriptors.
//!
//! Guarantees: as `calls` says of each row. `ioctl` finds as many bytes of its argument resident as
//! its number says, or one page where that says nothing. It also finds the array behind the
//! argument of FIEMAP, FIDEDUPERANGE and GETFSMAP resident, and the buffer that SIOCGIFCONF names;
//! other requests with a second buffer may answer EFAULT. `vmsplice` of managed memory is refused:
//! the pipe would keep physical pages that eviction gives away.
//! Threads: any.

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{flock64, iovec, off_t, pid_t, size_t, ssize_t, stat as Status};
use libc::{statfs as FileSystem, timespec};

use crate::buffers::pins::{PAGE, Pins};
use crate::buffers::transfer::Direction::{Read, Write};
use crate::buffers::vectors::{Vector, between};
use crate::calls::{Opaque, calls};

calls! {
    fn read(descriptor: c_int, buffer: *mut c_void, len: size_t) -> ssize_t = transfer(Read);
    fn pread, pread64(descriptor: c_int, buffer: *mut c_void, len: size_t, offset: off_t)
        -> ssize_t = transfer(Read, offset);
    fn __read_chk(descriptor: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t
        = transfer(Read);
    fn __pread_chk, __pread64_chk(
        descriptor: c_int, buffer: *mut c_void, len: size_t, offset: off_t, room: size_t,
    ) -> ssize_t = transfer(Read, offset);
    fn write(descriptor: c_int, buffer: *mut c_void, len: size_t) -> ssize_t = transfer(Write);
    fn pwrite, pwrite64(descriptor: c_int, buffer: *mut c_void, len: size_t, offset: off_t)
        -> ssize_t = transfer(Write, offset);

    fn readv(descriptor: c_int, first: *const iovec, count: c_int) -> ssize_t = vector(Read);
    fn preadv, preadv64(descriptor: c_int, first: *const iovec, count: c_int, offset: off_t)
        -> ssize_t = vector(Read, offset);
    fn preadv2, preadv64v2(
        descriptor: c_int, first: *const iovec, count: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t = vector(Read, offset);
    fn writev(descriptor: c_int, first: *const iovec, count: c_int) -> ssize_t = vector(Write);
    fn pwritev, pwritev64(descriptor: c_int, first: *const iovec, count: c_int, offset: off_t)
        -> ssize_t = vector(Write, offset);
    fn pwritev2, pwritev64v2(
        descriptor: c_int, first: *const iovec, count: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t = vector(Write, offset);
    fn process_vm_readv, process_vm_writev(
        process: pid_t, local: *const iovec, local_count: c_ulong, remote: *const iovec,
        remote_count: c_ulong, flags: c_ulong,
    ) -> ssize_t = by(|real| {
        let call = || real(process, local, local_count, remote, remote_count, flags);
        between(process, (local, local_count), (remote, remote_count), call)
    });

    fn sendfile, sendfile64(to: c_int, from: c_int, offset: *mut off_t, len: size_t)
        -> ssize_t = pin;
    fn splice, copy_file_range(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint,
    ) -> ssize_t = pin;
    fn vmsplice(descriptor: c_int, first: *const iovec, count: size_t, flags: c_uint) -> ssize_t
        = refuse(VMSPLICE, EINVAL if is_any_managed(first, count));

    fn fstat, fstat64(descriptor: c_int, status: *mut Status) -> c_int = pin(not own descriptor);
    fn fstatfs, fstatfs64(descriptor: c_int, status: *mut FileSystem) -> c_int = pin;
    fn futimens(descriptor: c_int, times: *const timespec [2]) -> c_int = pin;
    fn getdents64(descriptor: c_int, entries: *mut c_void [room], room: size_t) -> ssize_t = pin;
    fn getdirentries, getdirentries64(
        descriptor: c_int, entries: *mut c_char [room], room: size_t, position: Opaque,
    ) -> ssize_t = pin;
    // A count that was read is never lost.
    fn eventfd_read(descriptor: c_int, count: *mut u64) -> c_int = hold;
    fn pipe(pair: *mut [c_int; 2]) -> c_int = pin;
    fn pipe2(pair: *mut [c_int; 2], flags: c_int) -> c_int = pin;

    // Variadic in C; the third argument is a pointer for the locks, else a number.
    fn fcntl, fcntl64(descriptor: c_int, command: c_int, argument: *mut flock64)
        -> c_int = pin(not own descriptor);
    fn ioctl(descriptor: c_int, request: c_ulong, argument: usize) -> c_int
        = pin(|pins| pin_argument(pins, request, argument));
}

fn is_any_managed(first: *const iovec, count: size_t) -> bool {
    !first.is_null() && Vector::new(first, c_int::try_from(count).unwrap_or(0)).is_managed()
}

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
    if !deepheap::internal::may_leave(argument) {
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

/// The argument of `ioctl`.
fn pin_argument(pins: &mut Pins, request: c_ulong, argument: usize) {
    let stated = (request >> SIZE_SHIFT & SIZE_MASK) as usize;
    let bytes = if stated == 0 { PAGE } else { stated + array_bytes(request, argument) };
    pins.bytes(argument as *const u8, bytes);
    if request == INTERFACE_LIST && argument != 0 {
        // SAFETY: this request's argument; the program's own memory, read in user mode.
        let list = unsafe { &*(argument as *const InterfaceList) };
        pins.bytes(list.buffer, usize::try_from(list.bytes).unwrap_or(0));
    }
}
