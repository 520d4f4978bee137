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
//! Threads: any.

use core::ffi::{c_int, c_uint};

use crate::calls::calls;
use crate::refusal::{refused, refused_if_own};

calls! {
    fn close, __close, dup(descriptor: c_int) -> c_int
        = program(|real| refused_if_own(descriptor).unwrap_or_else(|| real(descriptor)));
    fn dup2, __dup2(old: c_int, new: c_int) -> c_int
        = program(|real| refused_to_replace(old, new).unwrap_or_else(|| real(old, new)));
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int
        = program(|real| refused_to_replace(old, new).unwrap_or_else(|| real(old, new, flags)));
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int
        = program(|real| close_around_ours(first, last, |first, last| real(first, last, flags)));
    fn closefrom(first: c_int) -> () = program(closefrom_of_program);
}

/// The error for a program that copies a descriptor to another number, if one of them is ours.
fn refused_to_replace(old: c_int, new: c_int) -> Option<c_int> {
    let is_taken = || deepheap::internal::is_own_descriptor(new).then(|| refused(libc::EBUSY));
    refused_if_own(old).or_else(is_taken)
}

/// Where our descriptors can be; above that none is known.
const KNOWN_MAX: c_uint = 65_536;

/// `close_range` as the program means it: `real` closes the ranges between ours.
fn close_around_ours(first: c_uint, last: c_uint, real: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    if first > last {
        // libc says what is wrong with them.
        return real(first, last);
    }
    let mut start = first;
    for descriptor in first..=last.min(KNOWN_MAX) {
        if !deepheap::internal::is_own_descriptor(descriptor as c_int) {
            continue;
        }
        if descriptor > start && real(start, descriptor - 1) != 0 {
            return -1;
        }
        start = descriptor + 1;
    }
    if start > last { 0 } else { real(start, last) }
}

unsafe extern "C" fn closefrom_of_program(first: c_int) {
    let first = first.max(0) as c_uint;
    // SAFETY: numbers.
    if unsafe { close_range::of_program(first, c_uint::MAX, 0) } == 0 {
        return;
    }
    // A kernel without close_range.
    // SAFETY: a number that no limit exceeds.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.max(0) as c_uint;
    for descriptor in first..limit {
        // SAFETY: a number; closing what is not open is no harm.
        unsafe { close::of_program(descriptor as c_int) };
    }
}
