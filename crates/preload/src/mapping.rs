//! Mapping: `madvise`, `mmap` and their kin on addresses of the heap.
//!
//! Guarantees: advice on managed memory means what it says to the program and nothing to the
//! kernel, whose zap would be mistaken for an eviction. Mappings over the heap and locked memory
//! are refused.
//!
//! Threads: any.

use core::ffi::{c_int, c_uchar, c_uint, c_void};

use libc::{off_t, size_t};

use crate::guarded::guarded;
use crate::program_call::for_program;
use crate::real::real;
use crate::refusal::{LOCKING, REMAPPING, refuse};

for_program! {
    fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int => madvise_of_program;
    fn posix_madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int
        => posix_madvise_of_program;
    fn mmap(
        address: *mut c_void, len: size_t, protection: c_int, flags: c_int, file: c_int,
        offset: off_t,
    ) -> *mut c_void => mmap_of_program;
    fn mmap64(
        address: *mut c_void, len: size_t, protection: c_int, flags: c_int, file: c_int,
        offset: off_t,
    ) -> *mut c_void => mmap64_of_program;
    fn munmap(address: *mut c_void, len: size_t) -> c_int => munmap_of_program;
    fn mremap(
        address: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, place: *mut c_void,
    ) -> *mut c_void => mremap_of_program;
    fn mlock(address: *const c_void, len: size_t) -> c_int => mlock_of_program;
    fn mlock2(address: *const c_void, len: size_t, flags: c_uint) -> c_int => mlock2_of_program;
    fn mlockall(flags: c_int) -> c_int => mlockall_of_program;
}

/// Whether a call of the program names memory of the heap.
fn is_managed(address: *const c_void) -> bool {
    deepheap::owns(address as usize)
}

unsafe extern "C" fn madvise_of_program(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if is_managed(address) {
        if advice == libc::MADV_DONTNEED || advice == libc::MADV_REMOVE {
            // SAFETY: the program gives these bytes up and expects zeros.
            unsafe { deepheap::give_up(address.cast(), len) };
        }
        return 0;
    }
    let real = real!(madvise: unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int);
    // SAFETY: the program's own arguments.
    unsafe { real(address, len, advice) }
}

unsafe extern "C" fn posix_madvise_of_program(
    address: *mut c_void,
    len: size_t,
    advice: c_int,
) -> c_int {
    if is_managed(address) {
        return 0;
    }
    let real = real!(posix_madvise: unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int);
    // SAFETY: the program's own arguments.
    unsafe { real(address, len, advice) }
}

macro_rules! mapped {
    ($($name:ident => $body:ident;)*) => {$(
        unsafe extern "C" fn $body(
            address: *mut c_void, len: size_t, protection: c_int, flags: c_int, file: c_int,
            offset: off_t,
        ) -> *mut c_void {
            if flags & libc::MAP_FIXED != 0 && is_managed(address) {
                refuse(&REMAPPING, libc::EINVAL);
                return libc::MAP_FAILED;
            }
            let real = real!($name: unsafe extern "C" fn(
                *mut c_void, size_t, c_int, c_int, c_int, off_t
            ) -> *mut c_void);
            // SAFETY: the program's own arguments.
            unsafe { real(address, len, protection, flags, file, offset) }
        }
    )*};
}

mapped! {
    mmap => mmap_of_program;
    mmap64 => mmap64_of_program;
}

unsafe extern "C" fn munmap_of_program(address: *mut c_void, len: size_t) -> c_int {
    if is_managed(address) {
        return refuse(&REMAPPING, libc::EINVAL);
    }
    let real = real!(munmap: unsafe extern "C" fn(*mut c_void, size_t) -> c_int);
    // SAFETY: the program's own arguments.
    unsafe { real(address, len) }
}

unsafe extern "C" fn mremap_of_program(
    address: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    place: *mut c_void,
) -> *mut c_void {
    let over = flags & libc::MREMAP_FIXED != 0 && is_managed(place);
    if over || is_managed(address) {
        refuse(&REMAPPING, libc::EINVAL);
        return libc::MAP_FAILED;
    }
    let real = real!(
        mremap: unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void
    );
    // SAFETY: the program's own arguments.
    unsafe { real(address, old_len, new_len, flags, place) }
}

unsafe extern "C" fn mlock_of_program(address: *const c_void, len: size_t) -> c_int {
    if is_managed(address) {
        return refuse(&LOCKING, libc::ENOMEM);
    }
    let real = real!(mlock: unsafe extern "C" fn(*const c_void, size_t) -> c_int);
    // SAFETY: the program's own arguments.
    unsafe { real(address, len) }
}

unsafe extern "C" fn mlock2_of_program(
    address: *const c_void,
    len: size_t,
    flags: c_uint,
) -> c_int {
    if is_managed(address) {
        return refuse(&LOCKING, libc::ENOMEM);
    }
    let real = real!(mlock2: unsafe extern "C" fn(*const c_void, size_t, c_uint) -> c_int);
    // SAFETY: the program's own arguments.
    unsafe { real(address, len, flags) }
}

unsafe extern "C" fn mlockall_of_program(_flags: c_int) -> c_int {
    refuse(&LOCKING, libc::EPERM)
}

guarded! {
    fn mincore(address: *mut c_void, len: size_t, resident: *mut c_uchar) -> c_int
        = |pins| pins.bytes(resident, len.div_ceil(4096));
}
