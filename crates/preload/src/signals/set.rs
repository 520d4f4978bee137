//! Set: sets of one word, with SIGBUS or without, and actions with such a mask.
//!
//! Guarantees: the program's own set is never changed.
//! Never: allocates; safe in signal handlers.
//! Threads: any.

use core::ffi::c_int;
use core::ptr::null;

use libc::{sigaction as Action, sighandler_t, sigset_t};

/// SIGBUS's bit in the first word of a set.
pub const FAULT_BIT: u64 = 1 << (libc::SIGBUS - 1);

/// The first word of a set: signals 1 to 64.
pub fn word(set: &sigset_t) -> u64 {
    // SAFETY: a sigset_t is an array of 64-bit words.
    unsafe { (&raw const *set).cast::<u64>().read() }
}

/// The set with that first word.
pub fn of_word(word: u64) -> sigset_t {
    // SAFETY: as `word`; zeroed is a valid set.
    unsafe {
        let mut set: sigset_t = core::mem::zeroed();
        *(&raw mut set).cast::<u64>() = word;
        set
    }
}

/// A copy of the set without SIGBUS.
pub fn without_fault(set: &sigset_t) -> sigset_t {
    let mut open = *set;
    // SAFETY: as `word`.
    unsafe { *(&raw mut open).cast::<u64>() &= !FAULT_BIT };
    open
}

/// An action with a mask of that first word.
pub fn action(handler: sighandler_t, flags: c_int, mask: u64) -> Action {
    let sa_mask = of_word(mask);
    Action { sa_sigaction: handler, sa_mask, sa_flags: flags, sa_restorer: None }
}

/// Where a value is; null if there is none.
pub fn pointer<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(null(), core::ptr::from_ref)
}
