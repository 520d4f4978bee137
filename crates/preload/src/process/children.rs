//! Children: whether programs that this one starts have this library preloaded.
//!
//! Guarantees: with `children:no` this library, and nothing else, leaves LD_PRELOAD in the
//! environment that children inherit. A program with AddressSanitizer runs without it.
//! Never: allocates; the variable is shortened in place.
//! Threads: once, from the constructor or before.

use core::ffi::{CStr, c_char, c_int};

use crate::process::lists::{List, environment, strings};
use crate::real::real;
use crate::seam;

/// The name libraries of ours end with.
const OWN_NAME: &[u8] = b"libdeepheap_preload.so";
const VARIABLE: &[u8] = b"LD_PRELOAD=";

/// Takes this library out of LD_PRELOAD if children are to run without it.
pub fn apply_setting() {
    if !seam::children_inherit() {
        leave(environment());
    }
}

/// AddressSanitizer asks for its options as soon as it begins, before any constructor. Its heap and
/// ours cannot both be the program's, and it wants to be the first library: so the program starts
/// again without us.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    unsafe extern "C" {
        /// Where the kernel has put the number of arguments, them and the environment.
        static __libc_stack_end: *const usize;
    }
    // SAFETY: the dynamic linker's own variable, and what the kernel has laid there: a number, so
    // many strings and a null, and the environment, which ends with a null.
    unsafe {
        let arguments = __libc_stack_end.add(1).cast();
        let environment = __libc_stack_end.add(*__libc_stack_end + 2).cast();
        if leave(environment) {
            let exec = real!(execve: fn(*const c_char, List, List) -> c_int);
            exec(c"/proc/self/exe".as_ptr(), arguments, environment);
        }
    }
    c"".as_ptr()
}

/// Whether LD_PRELOAD in an environment names this library.
pub fn has_us(list: List) -> bool {
    strings(list).any(|entry| {
        // SAFETY: a C string of the environment.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let is_separator = |byte: &u8| *byte == b':' || *byte == b' ';
        text.strip_prefix(VARIABLE)
            .is_some_and(|value| value.split(is_separator).any(|item| item.ends_with(OWN_NAME)))
    })
}

/// Takes this library out of LD_PRELOAD in an environment; false if it was not there.
fn leave(list: List) -> bool {
    let mut was_there = false;
    for entry in strings(list) {
        // SAFETY: a C string of the environment.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if text.starts_with(VARIABLE) {
            // SAFETY: the environment's strings are writable and the process has one thread.
            let value = unsafe {
                let start = entry.cast_mut().cast::<u8>().add(VARIABLE.len());
                core::slice::from_raw_parts_mut(start, text.len() - VARIABLE.len() + 1)
            };
            was_there |= strip(value);
        }
    }
    was_there
}

/// Removes our own entries from a NUL-terminated list separated by colons or spaces; false if there
/// was none.
fn strip(value: &mut [u8]) -> bool {
    let len = value.len() - 1;
    let (mut read, mut kept, mut was_there) = (0, 0, false);
    while read < len {
        let is_separator = |byte: &u8| *byte == b':' || *byte == b' ';
        let item = value[read..len].iter().position(is_separator).unwrap_or(len - read);
        let end = read + item;
        let is_own = value[read..end].ends_with(OWN_NAME);
        was_there |= is_own;
        if item > 0 && !is_own {
            if kept > 0 {
                value[kept] = b':';
                kept += 1;
            }
            value.copy_within(read..end, kept);
            kept += item;
        }
        read = end + 1;
    }
    value[kept..].fill(0);
    was_there
}
