//! Seam: the few things this library needs from the runtime beyond memory and residency.
//!
//! Guarantees: a change of the runtime's settings or of its fault signal is felt in this file only.
//!
//! Threads: any; `children_inherit` before the program has threads.

use core::ffi::c_int;

use libc::sigaction as Action;

/// The name of the settings that can say `children:no`.
const SETTINGS: &core::ffi::CStr = c"DEEPHEAP_CONF";

/// Whether children are to run with us preloaded. Settings that make no sense are reported by the
/// first allocation.
pub fn children_inherit() -> bool {
    // SAFETY: constant strings; the environment is not changed in the constructor.
    let is_mentioned = unsafe {
        let settings = libc::getenv(SETTINGS.as_ptr());
        !settings.is_null() && !libc::strstr(settings, c"children".as_ptr()).is_null()
    };
    !is_mentioned || deepheap::Config::from_environment().map_or(true, |config| config.children)
}

/// Once the runtime has a SIGBUS handler, the program's action for that signal is a word between us
/// and the runtime: shows the old one, takes the new one. None: the kernel has the program's own.
pub fn exchange_fault_action(new: Option<&Action>, old: Option<&mut Action>) -> Option<c_int> {
    if !deepheap::fault_signal::is_installed() {
        return None;
    }
    let before = match new {
        Some(new) => deepheap::fault_signal::set_previous(*new),
        None => deepheap::fault_signal::previous(),
    };
    if let Some(old) = old {
        *old = before;
    }
    Some(0)
}

/// Sets the calling thread's errno.
#[inline]
pub fn set_errno(code: c_int) {
    // SAFETY: libc's pointer to the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = code }
}

/// The calling thread's errno.
#[inline]
pub fn errno() -> c_int {
    // SAFETY: libc's pointer to the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}
