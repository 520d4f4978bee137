//! Thread cache: each thread's stock of free memory, from its first allocation to its end.
//!
//! Guarantees: when a thread ends, after the program's own destructors, the heap gets back all that
//! the cache holds, and the thread's holds end.
//! Never: shares a cache: the word in a thread's area is used by that thread alone. While
//! allocations are sampled the word has a mark, with which `malloc` and `free` take their slow
//! paths: otherwise they need not ask.
//! Threads: the owner of the cache.

use core::ffi::c_void;
use core::hint::cold_path;
use core::mem::ManuallyDrop;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_heap::ThreadCache;
use deepheap_sys::threads::tls;

use crate::memory::holds;
use crate::runtime::{Inside, Runtime, running};
use crate::stats::allocations;

/// Destructors of other keys may free memory: ours comes back, in the third of libc's four rounds.
const ROUNDS: usize = 3;
const NO_KEY: u32 = u32::MAX;
/// The mark of a thread whose allocations are sampled; no address has this bit, the sign.
const SAMPLED: usize = 1 << 63;

static END_KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// Has every thread that gets a cache from now on give it back at its end.
pub(crate) fn watch_thread_ends() {
    let mut key = NO_KEY;
    // SAFETY: a function of this library, which is never unloaded, and room for the key. Without a
    // key caches stay with threads that have ended: nothing worse.
    if unsafe { libc::pthread_key_create(&mut key, Some(at_thread_end)) } == 0 {
        END_KEY.store(key, Ordering::Release);
    }
}

/// The thread's cache, if it has one and its allocations are not sampled.
///
/// # Safety
/// No other handle of it is in use in this thread.
#[inline]
pub(crate) unsafe fn this_threads_cache() -> Option<ManuallyDrop<ThreadCache>> {
    // SAFETY: the area is this thread's; the word came from `into_raw` in this thread.
    unsafe {
        let raw = (*tls::area()).cache;
        if raw as isize <= 0 {
            cold_path();
            return None;
        }
        Some(ManuallyDrop::new(ThreadCache::from_raw(raw)))
    }
}

/// The thread's cache, if it has one.
///
/// # Safety
/// As of `this_threads_cache`.
#[inline]
pub(crate) unsafe fn any_cache() -> Option<ManuallyDrop<ThreadCache>> {
    // SAFETY: as in `this_threads_cache`, without the mark.
    unsafe {
        let raw = (*tls::area()).cache.map_addr(|word| word & !SAMPLED);
        (!raw.is_null()).then(|| ManuallyDrop::new(ThreadCache::from_raw(raw)))
    }
}

/// The thread's cache, made now if it has none; none without memory for it.
///
/// # Safety
/// As of `this_threads_cache`.
#[inline]
pub(crate) unsafe fn some_cache(runtime: &'static Runtime) -> Option<ManuallyDrop<ThreadCache>> {
    // SAFETY: the caller's promise.
    unsafe { any_cache() }.or_else(|| new_cache(runtime))
}

#[cold]
fn new_cache(runtime: &'static Runtime) -> Option<ManuallyDrop<ThreadCache>> {
    let _inside = Inside::enter();
    expect_thread_end(ROUNDS);
    let raw = ThreadCache::new_in(&runtime.heap).ok()?.into_raw();
    // SAFETY: the area is this thread's, and had no cache.
    unsafe {
        let mark = if allocations::is_on() { SAMPLED } else { 0 };
        (*tls::area()).cache = raw.map_addr(|word| word | mark);
        Some(ManuallyDrop::new(ThreadCache::from_raw(raw)))
    }
}

/// Gives the calling thread's stock of free objects back, and ends the holds that it never
/// dropped; called when it ends.
pub fn thread_exit() {
    let Some(runtime) = running() else { return };
    holds::thread_exit();
    // SAFETY: the area belongs to this thread, which uses the cache no more: the word is cleared.
    let cache = unsafe {
        let cache = any_cache();
        (*tls::area()).cache = ptr::null_mut();
        cache
    };
    if let Some(cache) = cache {
        runtime.heap.thread_exit(ManuallyDrop::into_inner(cache));
        runtime.end_parked_runs();
    }
}

/// The calling thread has a cache: its end is to come, after so many rounds of destructors.
fn expect_thread_end(rounds: usize) {
    let key = END_KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        // SAFETY: our own key. Without memory for it the cache is not given back, nothing worse.
        unsafe { libc::pthread_setspecific(key, rounds as *const c_void) };
    }
}

unsafe extern "C" fn at_thread_end(rounds: *mut c_void) {
    match rounds as usize {
        0 | 1 => thread_exit(),
        rounds => expect_thread_end(rounds - 1),
    }
}
