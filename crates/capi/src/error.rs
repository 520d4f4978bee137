//! Error: the `DH_E...` codes, their texts, and errno.
//!
//! Guarantees: `dh_strerror` never returns NULL and its texts live for ever; the particulars of a
//! failed `dh_init` stay readable under its code.
//! Never: touches managed memory. A failed `dh_init` leaks its text, so that no reader can hold a
//! pointer to a text that is gone; nobody fails to start often.
//! Threads: any thread.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;

/// The configuration is not understood, or impossible.
pub const DH_ECONF: c_int = -1;
/// deepheap has started already.
pub const DH_ESTARTED: c_int = -2;
/// The store cannot be used.
pub const DH_ESTORE: c_int = -3;
/// The kernel lacks or forbids something.
pub const DH_EKERNEL: c_int = -4;
/// Not enough memory, address space or descriptors.
pub const DH_EMEMORY: c_int = -5;
/// An argument of the call is wrong.
pub const DH_EINVAL: c_int = -6;
/// The pointer is not a live allocation of deepheap.
pub const DH_EOBJECT: c_int = -7;
/// Offset and length reach beyond the object.
pub const DH_EBOUNDS: c_int = -8;
/// The device failed, or the bytes do not match their checksum.
pub const DH_EREAD: c_int = -9;
/// RAM is full and the store takes no more.
pub const DH_ENOROOM: c_int = -10;

/// The file of a durable heap cannot be used; `dh_last_error` tells why.
pub const DH_EFILE: c_int = -11;

/// The meaning of each code, at the index of its negation.
const TEXTS: [&CStr; 12] = [
    c"no error",
    c"the configuration is not understood or impossible; see deepheap(1) for its keys",
    c"deepheap has started already; call dh_init before the first allocation, and once",
    c"the store cannot be used; name a folder or block device on an SSD with store:PATH",
    c"the kernel lacks or forbids something deepheap needs; `deepheap doctor` tells the fix",
    c"not enough memory or address space; see `ulimit -v` and the memory cgroup",
    c"an argument is wrong: a null pointer or an impossible size",
    c"the pointer is not a live object: freed already, or never one of deepheap",
    c"offset and length reach beyond the object",
    c"the object cannot be read: the device failed, or returned other bytes than were written",
    c"RAM is full and the store takes no more writes; give it space, or free something",
    c"the file of a durable heap cannot be used, or written; dh_last_error tells why",
];
const UNKNOWN: &CStr = c"not an error of deepheap";

/// Texts of the last failed `dh_init` by code; null while there was none.
static PARTICULARS: [AtomicPtr<c_char>; TEXTS.len()] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; TEXTS.len()];

/// The index of a code in the tables, if it is one of ours.
fn index_of(code: c_int) -> Option<usize> {
    usize::try_from(code.checked_neg()?).ok().filter(|&index| index < TEXTS.len())
}

/// Remembers why a call failed with `code`, for `dh_strerror`; returns the code.
pub(crate) fn remember(code: c_int, particulars: String) -> c_int {
    let text = CString::new(particulars.replace('\0', "?"));
    if let (Some(index), Ok(text)) = (index_of(code), text) {
        PARTICULARS[index].store(text.into_raw(), Ordering::Release);
    }
    code
}

/// A text for a code; never NULL, valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn dh_strerror(error: c_int) -> *const c_char {
    let Some(index) = index_of(error) else { return UNKNOWN.as_ptr() };
    let particulars = PARTICULARS[index].load(Ordering::Acquire);
    if particulars.is_null() { TEXTS[index].as_ptr() } else { particulars }
}

/// Sets the calling thread's errno.
pub fn set_errno(value: c_int) {
    // SAFETY: glibc's errno of this thread is always there to write.
    unsafe { *libc::__errno_location() = value };
}

/// Runs `call` and puts errno back to what it was before.
pub fn keep_errno<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: glibc's errno of this thread is always there to read.
    let before = unsafe { *libc::__errno_location() };
    let result = call();
    set_errno(before);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(code: c_int) -> &'static str {
        // SAFETY: dh_strerror returns a zero-terminated text that lives for ever.
        unsafe { CStr::from_ptr(dh_strerror(code)) }.to_str().unwrap()
    }

    #[test]
    fn every_code_has_a_text_and_strangers_are_named_so() {
        assert_eq!(text_of(0), "no error");
        for code in DH_EFILE..=DH_ECONF {
            assert!(text_of(code).len() > 20, "{code}");
        }
        for stranger in [1, DH_EFILE - 1, c_int::MIN, c_int::MAX] {
            assert_eq!(text_of(stranger), "not an error of deepheap");
        }
    }

    #[test]
    fn particulars_of_the_last_failure_are_told() {
        // As long as any text: the test above may look meanwhile.
        assert_eq!(remember(DH_ESTORE, "/tmp: no room\0 for a store".into()), DH_ESTORE);
        assert_eq!(text_of(DH_ESTORE), "/tmp: no room? for a store");
        remember(DH_ESTORE, "/tmp: read-only file system".into());
        assert_eq!(text_of(DH_ESTORE), "/tmp: read-only file system");
    }

    #[test]
    fn errno_is_kept_around_a_call() {
        set_errno(7);
        keep_errno(|| set_errno(9));
        // SAFETY: as in keep_errno.
        assert_eq!(unsafe { *libc::__errno_location() }, 7);
    }
}
