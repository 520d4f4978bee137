//! Process: forks, ending threads and the exit of a process that links the runtime by itself.
//!
//! Under `deepheap run` the preload library stands in these places itself, and says so with `host`.
//!
//! Guarantees: a child of fork reads every byte that its parent had; what a thread's cache holds
//! goes back when the thread ends, after the program's own destructors; the summary that the
//! settings ask for is printed at exit.
//! Never: starts the runtime.
//! Threads: `attach` from any; the rest from libc, in the thread that forks or ends.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::{stream_list, thread};

/// Destructors of other keys may free memory: ours comes back, in the third of libc's four rounds.
const ROUNDS: usize = 3;
const NO_KEY: u32 = u32::MAX;

static HOSTED: AtomicBool = AtomicBool::new(false);
static ATTACHED: AtomicBool = AtomicBool::new(false);
static END_KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// Says that the caller sees to forks, ending threads and the exit, from now on: before the first
/// allocation as a rule, but the constructor of another library may have made some.
pub fn host() {
    HOSTED.store(true, Ordering::Release);
    thread::learn_thread_local_bytes();
}

fn is_hosted() -> bool {
    HOSTED.load(Ordering::Acquire)
}

/// Stands in these places, once, unless there is a host. Before the start lock is taken, so that
/// the child of whoever forks during the start does not inherit it locked.
pub(crate) fn attach() -> Result<()> {
    if is_hosted() || ATTACHED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    thread::learn_thread_local_bytes();
    let mut key = NO_KEY;
    // SAFETY: functions of this library, which is never unloaded, and room for the key.
    unsafe {
        match libc::pthread_atfork(Some(before_fork), Some(after_in_parent), Some(after_in_child)) {
            0 => {}
            number => {
                ATTACHED.store(false, Ordering::Release);
                return Err(Errno::from_raw(number));
            }
        }
        // Without a key caches stay with threads that have ended, without room at the exit there is
        // no summary: nothing worse.
        if libc::pthread_key_create(&mut key, Some(at_thread_end)) == 0 {
            END_KEY.store(key, Ordering::Release);
        }
        libc::atexit(at_exit);
    }
    Ok(())
}

/// The calling thread has a cache from now on.
pub(crate) fn thread_has_cache() {
    let key = END_KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        // SAFETY: our own key. Without memory for it the cache is not given back, nothing worse.
        unsafe { libc::pthread_setspecific(key, ROUNDS as *const c_void) };
    }
}

extern "C" fn before_fork() {
    if !is_hosted() {
        stream_list::fork_prepare();
        crate::fork::fork_prepare();
    }
}

extern "C" fn after_in_parent() {
    if !is_hosted() {
        crate::fork::fork_parent();
        stream_list::fork_parent();
    }
}

extern "C" fn after_in_child() {
    if !is_hosted() {
        crate::fork::fork_child();
        stream_list::fork_child();
    }
}

extern "C" fn at_exit() {
    if !is_hosted() {
        crate::observe::exit_summary();
    }
}

unsafe extern "C" fn at_thread_end(rounds: *mut c_void) {
    match rounds as usize {
        0 | 1 => crate::allocate::thread_exit(),
        rounds => {
            let key = END_KEY.load(Ordering::Acquire);
            // SAFETY: our own key, which has been set in this thread.
            unsafe { libc::pthread_setspecific(key, (rounds - 1) as *const c_void) };
        }
    }
}
