//! Lists: arguments and environments, as programs hand them over.
//!
//! Never: allocates, pins.
//! Threads: any; also in a child of `vfork`.

use core::ffi::c_char;

/// A null-terminated array of strings.
pub type List = *const *const c_char;

/// The strings of a list, which may be null.
pub fn strings(list: List) -> impl Iterator<Item = *const c_char> {
    let mut next = list;
    core::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: the program's own null-terminated array of C strings.
        let text = unsafe { *next };
        next = next.wrapping_add(1);
        (!text.is_null()).then_some(text)
    })
}

/// The environment of this process.
pub fn environment() -> List {
    unsafe extern "C" {
        static environ: List;
    }
    // SAFETY: libc's own variable, read once.
    unsafe { environ }
}
