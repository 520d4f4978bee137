//! Descriptor list: `/proc/self/fd` as the program reads it, without ours.
//!
//! Guarantees: `readdir` and its kin leave our descriptors out of the folders that list those of
//! this process; every other folder is told as it is.
//! Never: allocates, changes errno by itself. Another entry costs a look at its first letter.
//! `getdents64` tells all: its callers close what they find, and ours are not closed.
//! Threads: any; a folder is read by one at a time, as libc demands.

use core::ffi::{CStr, c_char, c_int};

use libc::{DIR, dirent, dirent64};

use crate::calls::calls;
use crate::real::real;
use crate::seam;

/// Bytes of the longest link that is looked at: `/proc/PID/task/TID/fdinfo`.
const LINK_BYTES: usize = 64;
/// Digits of the largest descriptor.
const DIGITS: usize = 10;

// The two kinds of entries are the same.
const _: () = assert!(size_of::<dirent>() == size_of::<dirent64>());

calls! {
    fn readdir, readdir64(folder: *mut DIR) -> *mut dirent64 = by(|real| loop {
        let entry = real(folder);
        if !is_hidden(folder, entry) {
            return entry;
        }
    });
    fn readdir_r, readdir64_r(
        folder: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64,
    ) -> c_int = by(|real| loop {
        let outcome = real(folder, entry, result);
        // SAFETY: the program passes a place for the answer, which libc has filled.
        if outcome != 0 || !is_hidden(folder, unsafe { *result }) {
            return outcome;
        }
    });
}

/// Whether an entry of that folder, if there is one, is one of our descriptors.
fn is_hidden(folder: *mut DIR, entry: *const dirent64) -> bool {
    if entry.is_null() {
        return false;
    }
    // SAFETY: the program's own folder; libc has filled the entry, valid until the next call.
    let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) }.to_bytes();
    let Some(descriptor) = number(name) else { return false };
    if !deepheap::internal::is_own_descriptor(descriptor) {
        return false;
    }
    // SAFETY: the program's own folder.
    seam::keep_errno(|| lists_ours(unsafe { libc::dirfd(folder) }))
}

fn number(name: &[u8]) -> Option<c_int> {
    if name.is_empty() || name.len() > DIGITS || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = name.iter().fold(0, |sum: u64, digit| sum * 10 + u64::from(digit - b'0'));
    c_int::try_from(value).ok()
}

/// Whether an open folder lists the descriptors of this process: `/proc/PID/fd`, `fdinfo`, or that
/// of a thread.
fn lists_ours(folder: c_int) -> bool {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    write_number(&mut path[14..], folder);
    let mut link = [0u8; LINK_BYTES];
    // SAFETY: a path that ends with NUL, and room for the answer.
    let bytes = unsafe {
        let real = real!(readlink: fn(*const c_char, *mut c_char, usize) -> isize);
        real(path.as_ptr().cast(), link.as_mut_ptr().cast(), LINK_BYTES)
    };
    let Some(link) = usize::try_from(bytes).ok().and_then(|bytes| link.get(..bytes)) else {
        return false;
    };
    let mut parts = link.split(|byte| *byte == b'/');
    // SAFETY: no arguments.
    let process = unsafe { libc::getpid() };
    parts.next() == Some(b"")
        && parts.next() == Some(b"proc")
        && parts.next().and_then(number) == Some(process)
        && matches!(parts.next_back(), Some(b"fd" | b"fdinfo"))
}

/// Writes a number that is not negative, in decimal.
fn write_number(into: &mut [u8], number: c_int) {
    let mut digits = [0u8; DIGITS];
    let (mut at, mut rest) = (DIGITS, number.max(0));
    while at == DIGITS || rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    into[..DIGITS - at].copy_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_written() {
        assert_eq!(number(b"900"), Some(900));
        for name in [&b""[..], b".", b"9x", b"99999999999"] {
            assert_eq!(number(name), None);
        }
        let mut text = [b'.'; 12];
        write_number(&mut text, 0);
        assert_eq!(&text[..2], b"0.");
        write_number(&mut text, c_int::MAX);
        assert_eq!(&text, b"2147483647..");
    }
}
