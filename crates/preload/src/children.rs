//! Children: whether programs that this one starts have this library preloaded.
//!
//! Guarantees: with `children:no` this library, and nothing else, leaves LD_PRELOAD in the
//! environment that children inherit.
//! Never: allocates; the variable is shortened in place.
//!
//! Threads: once, from the constructor.

use core::ffi::CStr;

use crate::exec::environment;
use crate::seam;

/// The name libraries of ours end with.
const OWN_NAME: &[u8] = b"libdeepheap_preload.so";
const VARIABLE: &[u8] = b"LD_PRELOAD=";

/// Takes this library out of LD_PRELOAD if children are to run without it.
pub fn apply_setting() {
    if seam::children_inherit() {
        return;
    }
    let list = environment();
    if list.is_null() {
        return;
    }
    let mut index = 0;
    loop {
        // SAFETY: the environment is a null-terminated array of C strings.
        let entry = unsafe { *list.add(index) };
        if entry.is_null() {
            return;
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if text.starts_with(VARIABLE) {
            // SAFETY: the environment's strings are writable and this is the constructor's thread.
            let value = unsafe {
                let start = entry.cast_mut().cast::<u8>().add(VARIABLE.len());
                core::slice::from_raw_parts_mut(start, text.len() - VARIABLE.len() + 1)
            };
            strip(value);
        }
        index += 1;
    }
}

/// Removes our own entries from a NUL-terminated list separated by colons or spaces.
fn strip(value: &mut [u8]) {
    let len = value.len() - 1;
    let (mut read, mut kept) = (0, 0);
    while read < len {
        let is_separator = |byte: &u8| *byte == b':' || *byte == b' ';
        let item = value[read..len].iter().position(is_separator).unwrap_or(len - read);
        let end = read + item;
        if item > 0 && !value[read..end].ends_with(OWN_NAME) {
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
}
