//! Descriptors: the program cannot close or replace the runtime's descriptors.
//!
//! Daemons close all descriptors that they might have inherited, and shells move theirs about. The
//! store's file and the userfaultfd are descriptors of this process too; without them memory is
//! lost.
//!
//! Guarantees: for the program a descriptor of ours is not open (`close`, `dup`, `fcntl` and
//! `fstat` answer EBADF), and its number is taken (`dup2` onto it answers EBUSY). Ranges are closed
//! around ours. The same holds in a child of `vfork`, which needs them for its own faults.
//! Never: allocates; safe in signal handlers.
//!
//! Threads: any.

use core::ffi::{c_int, c_uint};

use crate::calls::calls;
use crate::real::real;
use crate::refusal::{refused, refused_if_own};

calls! {
    fn close(descriptor: c_int) -> c_int = program(close_of_program);
    fn __close(descriptor: c_int) -> c_int = program(close_of_program);
    fn dup(descriptor: c_int) -> c_int = program(dup_of_program);
    fn dup2(old: c_int, new: c_int) -> c_int = program(dup2_of_program);
    fn __dup2(old: c_int, new: c_int) -> c_int = program(dup2_of_program);
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int = program(dup3_of_program);
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int
        = program(close_range_of_program);
    fn closefrom(first: c_int) -> () = program(closefrom_of_program);
}

/// `dup` as the program means it.
pub unsafe extern "C" fn dup_of_program(descriptor: c_int) -> c_int {
    if let Some(refused) = refused_if_own(descriptor) {
        return refused;
    }
    // SAFETY: a number.
    unsafe { real!(dup: unsafe extern "C" fn(c_int) -> c_int)(descriptor) }
}

/// `close` as the program means it.
pub unsafe extern "C" fn close_of_program(descriptor: c_int) -> c_int {
    if let Some(refused) = refused_if_own(descriptor) {
        return refused;
    }
    // SAFETY: a number.
    unsafe { real!(close: unsafe extern "C" fn(c_int) -> c_int)(descriptor) }
}

/// `dup2` as the program means it.
pub unsafe extern "C" fn dup2_of_program(old: c_int, new: c_int) -> c_int {
    if let Some(refused) = refused_if_own(old) {
        return refused;
    }
    if deepheap::is_own_descriptor(new) {
        return refused(libc::EBUSY);
    }
    // SAFETY: numbers.
    unsafe { real!(dup2: unsafe extern "C" fn(c_int, c_int) -> c_int)(old, new) }
}

/// `dup3` as the program means it.
pub unsafe extern "C" fn dup3_of_program(old: c_int, new: c_int, flags: c_int) -> c_int {
    if let Some(refused) = refused_if_own(old) {
        return refused;
    }
    if deepheap::is_own_descriptor(new) {
        return refused(libc::EBUSY);
    }
    // SAFETY: numbers.
    unsafe { real!(dup3: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int)(old, new, flags) }
}

/// Where our descriptors can be; above that none is known.
const KNOWN_MAX: c_uint = 65_536;

/// `close_range` as the program means it: the stretches between ours.
pub unsafe extern "C" fn close_range_of_program(
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_int {
    type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    let real = real!(close_range: CloseRange);
    if first > last {
        // SAFETY: numbers; libc says what is wrong with them.
        return unsafe { real(first, last, flags) };
    }
    let mut start = first;
    for descriptor in first..=last.min(KNOWN_MAX) {
        if !deepheap::is_own_descriptor(descriptor as c_int) {
            continue;
        }
        // SAFETY: numbers.
        if descriptor > start && unsafe { real(start, descriptor - 1, flags) } != 0 {
            return -1;
        }
        start = descriptor + 1;
    }
    if start > last {
        return 0;
    }
    // SAFETY: numbers.
    unsafe { real(start, last, flags) }
}

unsafe extern "C" fn closefrom_of_program(first: c_int) {
    let first = first.max(0) as c_uint;
    // SAFETY: numbers.
    if unsafe { close_range_of_program(first, c_uint::MAX, 0) } == 0 {
        return;
    }
    // A kernel without close_range.
    // SAFETY: a number that no limit exceeds.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.max(0) as c_uint;
    for descriptor in first..limit {
        // SAFETY: a number; closing what is not open is no harm.
        unsafe { close_of_program(descriptor as c_int) };
    }
}
