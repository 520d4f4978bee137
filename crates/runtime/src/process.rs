//! Process: forks, ending threads and the exit of a process that links the runtime by itself.
//!
//! Under `deepheap run` the preload library stands in these places itself, and says so with `host`.
//!
//! Guarantees: a child of fork reads every byte that its parent had; a thread gives its cache back
//! when it ends; the summary that the settings ask for is printed at exit.
//! Never: starts the runtime.
//! Threads: `attach` from any; the rest from libc, in the thread that forks or ends.

pub(crate) mod children;
pub(crate) mod fork;
pub(crate) mod parent;
pub(crate) mod provision;
pub(crate) mod rights;
pub(crate) mod start;
pub(crate) mod switch;
#[cfg(feature = "device-hook")]
pub mod tier_hook;

use core::sync::atomic::{AtomicBool, Ordering};

use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::files::stream_list;
use deepheap_sys::threads::thread;

use crate::memory::thread_cache;
use crate::stats::observe;

static HOSTED: AtomicBool = AtomicBool::new(false);
static ATTACHED: AtomicBool = AtomicBool::new(false);

/// Says that the caller sees to forks, ending threads and the exit, from now on: before the first
/// allocation as a rule, but the constructor of another library may have made some.
pub fn host() {
    HOSTED.store(true, Ordering::Release);
    thread::learn_thread_local_bytes();
}

fn is_hosted() -> bool {
    HOSTED.load(Ordering::Acquire)
}

/// Stands in these places, once, unless there is a host. Before the start lock is taken, so that a
/// child that is forked during the start does not inherit it locked.
pub(crate) fn attach() -> Result<()> {
    if is_hosted() || ATTACHED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    thread::learn_thread_local_bytes();
    // SAFETY: functions of this library, which is never unloaded.
    unsafe {
        match libc::pthread_atfork(Some(before_fork), Some(after_in_parent), Some(after_in_child)) {
            0 => {}
            number => {
                ATTACHED.store(false, Ordering::Release);
                return Err(Errno::from_raw(number));
            }
        }
        // Without room at the exit there is no summary: nothing worse.
        libc::atexit(at_exit);
    }
    thread_cache::watch_thread_ends();
    Ok(())
}

extern "C" fn before_fork() {
    if !is_hosted() {
        stream_list::fork_prepare();
        fork::fork_prepare();
    }
}

extern "C" fn after_in_parent() {
    if !is_hosted() {
        fork::fork_parent();
        stream_list::fork_parent();
    }
}

extern "C" fn after_in_child() {
    if !is_hosted() {
        fork::fork_child();
        stream_list::fork_child();
    }
}

extern "C" fn at_exit() {
    if !is_hosted() {
        observe::exit_summary();
    }
}
