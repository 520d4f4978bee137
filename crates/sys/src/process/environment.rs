//! Environment: the variables of this process, as far as they may be believed.
//!
//! Guarantees: a process with more rights than the user who started it (setuid, setgid, file
//! capabilities) has none.
//! Never: runs in a signal handler.
//! Threads: any.

use std::ffi::OsString;

/// The value of a variable, if it is set.
pub fn variable(name: &str) -> Option<OsString> {
    // SAFETY: no memory arguments.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_more_rights { None } else { std::env::var_os(name) }
}
