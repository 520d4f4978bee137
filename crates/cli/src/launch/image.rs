//! Image: replaces this process by a program, leaving no trace of having been here.
//!
//! Rust's start-up ignores SIGPIPE, and an ignored signal stays ignored across execve; so the
//! disposition found at load time is put back first thing in `main`. Rust's `exec` clears it and
//! the signal mask, and both are put back behind that. Everything else is as the caller of deepheap
//! left it.
//!
//! Guarantees: the program sees the environment asked for and the signals of deepheap's caller.
//! Never: forks.
//! Threads: none but main.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::env;
use std::ffi::OsString;
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::launch::library::{self, PRELOAD_VARIABLE};

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

/// A command that was started inside of `deepheap run` goes on without the library: it would look
/// at the machine from within a budget, and count its own memory. Returns if there is nothing to
/// leave, or if that fails.
pub fn leave_deepheap() {
    let Some(preload) = env::var_os(PRELOAD_VARIABLE) else { return };
    let Some(others) = library::without(&preload) else { return };
    if let Ok(path) = env::current_exe() {
        let arguments: Vec<OsString> = env::args_os().collect();
        replace(&path, &arguments, &[(PRELOAD_VARIABLE, others)]);
    }
}

/// Becomes the program, which finds `variables` over this process's environment; a file that the
/// kernel does not know is a script of the shell. Returns only if that fails, with the reason.
pub fn replace(path: &Path, arguments: &[OsString], variables: &[(&str, OsString)]) -> Error {
    let mut command = Command::new(path);
    command.arg0(&arguments[0]).args(&arguments[1..]);
    variables.iter().for_each(|(name, value)| _ = command.env(name, value));
    // SAFETY: an all-zero mask is a valid one to be written over; with a null pointer for the
    // change nothing changes.
    let mask = unsafe {
        let mut mask: libc::sigset_t = core::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &mut mask);
        mask
    };
    let restore = move || {
        // SAFETY: sets the mask that was read above, and a standard disposition.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &mask, core::ptr::null_mut());
            if PIPE_SIGNAL_WAS_IGNORED.load(Relaxed) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
        }
        Ok(())
    };
    // SAFETY: nothing forks: it runs here, after Rust has set both as it wants them.
    unsafe { command.pre_exec(restore) };
    command.exec()
}
