//! Seam: the few things this library needs from the runtime beyond memory and residency.
//!
//! Guarantees: only this file depends on the runtime's settings and fault signal (but `signals` on
//! where signals go that come in a fault).
//! Threads: any; `children_inherit`, `is_quiet` and `objects` before the program has threads.

use core::ffi::{CStr, c_int};
use core::ops::RangeInclusive;

pub use deepheap::internal::fault_signal::{
    begin_previous as begin_fault_action, is_installed as has_fault_handler, keep_all_signals_out,
    previous as fault_action,
};
pub use deepheap_capi::{keep_errno, set_errno};
use libc::sigaction as Action;

/// The name of the settings.
const SETTINGS: &CStr = c"DEEPHEAP_CONF";

/// Whether children are to run with us preloaded. Settings that make no sense are reported by the
/// first allocation.
pub fn children_inherit() -> bool {
    settings_on(c"children").is_none_or(|settings| settings.children)
}

/// Whether the settings want nothing said that is no error.
pub fn is_quiet() -> bool {
    settings_on(c"quiet").is_some_and(|settings| settings.quiet)
}

/// Sizes of the program's allocations that are to be objects.
pub fn objects() -> Option<RangeInclusive<usize>> {
    settings_on(c"objects")?.objects
}

/// The settings, if they may say something of a key: few do, and reading them takes time.
fn settings_on(key: &CStr) -> Option<deepheap::Config> {
    // SAFETY: C strings; the environment is not changed in the constructor.
    let is_mentioned = unsafe {
        let settings = libc::getenv(SETTINGS.as_ptr());
        !settings.is_null() && !libc::strstr(settings, key.as_ptr()).is_null()
    };
    is_mentioned.then(deepheap::Config::from_environment)?.ok()
}

/// Changes the program's action for SIGBUS. Until the runtime has its own handler for it, `real`
/// does so in the kernel. From then on the runtime keeps the program's action.
///
/// # Safety
/// The pointers are null, or the program's own.
pub unsafe fn change_fault_action(
    new: *const Action,
    old: *mut Action,
    real: impl FnOnce() -> c_int,
) -> c_int {
    if let Some(outcome) = deepheap::internal::fault_signal::unless_installed(real) {
        return outcome;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let before = match new.as_ref() {
            Some(new) => deepheap::internal::fault_signal::set_previous(*new),
            None => deepheap::internal::fault_signal::previous(),
        };
        if let Some(old) = old.as_mut() {
            *old = before;
        }
    }
    0
}

/// The calling thread's errno.
#[inline]
pub fn errno() -> c_int {
    // SAFETY: libc's pointer to the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}
