//! Process image: replaces this process by a program, leaving no trace of having been here.
//!
//! Rust's start-up ignores SIGPIPE, and an ignored signal stays ignored across execve; so the
//! disposition found at load time is put back first thing in `main`. Signal mask and everything
//! else is as the caller of deepheap left it.
//!
//! Guarantees: the program sees the environment asked for and the signals of deepheap's caller.
//! Never: forks.
//! Threads: none but main.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::ffi::{CString, OsStr, OsString};
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::program::SHELL;

static PIPE_SIGNAL_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Run by the dynamic linker, before Rust's start-up.
#[used]
// SAFETY: .init_array holds pointers to functions that the C start-up calls once, each.
#[unsafe(link_section = ".init_array")]
static REMEMBER_PIPE_SIGNAL: extern "C" fn() = remember_pipe_signal;

extern "C" fn remember_pipe_signal() {
    // SAFETY: an all-zero sigaction is a valid one to be written over; with a null pointer for
    // the new action nothing changes.
    let found = unsafe {
        let mut found: libc::sigaction = core::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, core::ptr::null(), &mut found);
        found.sa_sigaction
    };
    PIPE_SIGNAL_WAS_IGNORED.store(found == libc::SIG_IGN, Relaxed);
}

/// Undoes what Rust's start-up did to SIGPIPE; a closed pipe then ends deepheap quietly, too.
pub fn restore_pipe_signal() {
    if !PIPE_SIGNAL_WAS_IGNORED.load(Relaxed) {
        // SAFETY: sets a standard disposition; no handler of ours is replaced.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}

/// Becomes the program, which finds `variables` over this process's environment. Returns only if
/// that fails, with the reason.
pub fn replace(path: &Path, arguments: &[OsString], variables: &[(&str, OsString)]) -> Error {
    let environment = environment_with(variables);
    let path_text = path.as_os_str();
    let error = execute(path_text, arguments.iter().map(OsString::as_os_str), &environment);
    if error.raw_os_error() != Some(libc::ENOEXEC) {
        return error;
    }
    // As execvp(3): a file that the kernel does not know is a script of the shell.
    let rest = arguments.iter().skip(1).map(OsString::as_os_str);
    let arguments = [OsStr::new(SHELL), path_text].into_iter().chain(rest);
    execute(OsStr::new(SHELL), arguments, &environment)
}

fn environment_with(variables: &[(&str, OsString)]) -> Vec<OsString> {
    let is_ours = |name: &OsStr| variables.iter().any(|(ours, _)| name == *ours);
    let kept = std::env::vars_os().filter(|(name, _)| !is_ours(name));
    let ours = variables.iter().map(|(name, value)| (OsString::from(name), value.clone()));
    kept.chain(ours)
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        })
        .collect()
}

fn execute<'a>(
    path: &OsStr,
    arguments: impl Iterator<Item = &'a OsStr>,
    environment: &[OsString],
) -> Error {
    let c_strings = |texts: &mut dyn Iterator<Item = &OsStr>| -> Result<Vec<CString>, Error> {
        texts.map(|text| CString::new(text.as_bytes()).map_err(Error::from)).collect()
    };
    let built = (|| {
        let path = c_strings(&mut std::iter::once(path))?;
        let arguments = c_strings(&mut { arguments })?;
        let environment = c_strings(&mut environment.iter().map(OsString::as_os_str))?;
        Ok((path, arguments, environment))
    })();
    let (path, arguments, environment) = match built {
        Ok(built) => built,
        Err(error) => return error,
    };
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([core::ptr::null()]).collect()
    };
    let (arguments_at, environment_at) = (pointers(&arguments), pointers(&environment));
    // SAFETY: zero-ended strings in null-ended arrays, all alive here.
    unsafe { libc::execve(path[0].as_ptr(), arguments_at.as_ptr(), environment_at.as_ptr()) };
    Error::last_os_error()
}
