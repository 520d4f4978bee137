//! Mutex: `pthread_mutex_t`, `pthread_once_t` and C11's `mtx_t` on the heap.
//!
//! Guarantees: see `waiting`. Error-checking, recursive and robust mutexes answer as libc's do.
//!
//! Threads: any.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{Ordering, fence};

use deepheap::Hold;
use libc::{clockid_t, pthread_mutex_t, pthread_once_t, timespec};

use crate::guarded::held;
use crate::real::real;
use crate::waiting::{hold, hold_known, is_at_risk, is_on_heap, release_known};

type Plain = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;

/// Where glibc's mutex keeps its kind, and the bits of kinds the kernel looks at (robust, priority
/// inheriting, shared between processes).
const KIND_OFFSET: usize = 16;
const KERNEL_KINDS: c_int = 16 | 32 | 128;

fn is_known_to_kernel(mutex: *const pthread_mutex_t) -> bool {
    // SAFETY: an initialised mutex of the program, whose layout is part of glibc's ABI.
    let kind = unsafe { *mutex.byte_add(KIND_OFFSET).cast::<c_int>() };
    kind & KERNEL_KINDS != 0
}

/// Pins a mutex that the kernel knows.
fn settle(mutex: *const pthread_mutex_t) {
    if is_at_risk(mutex) && is_known_to_kernel(mutex) {
        hold_known(mutex);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    let real = real!(pthread_mutex_lock: Plain);
    if !is_on_heap(mutex) {
        // SAFETY: the program's own mutex.
        return unsafe { real(mutex) };
    }
    settle(mutex);
    // SAFETY: as above.
    let outcome = unsafe { real!(pthread_mutex_trylock: Plain)(mutex) };
    if outcome != libc::EBUSY {
        return outcome;
    }
    let _hold = hold(mutex);
    // SAFETY: as above.
    unsafe { real(mutex) }
}

/// Pins a mutex that the kernel knows, and holds any.
fn settle_and_hold(mutex: *const pthread_mutex_t) -> Hold {
    settle(mutex);
    hold(mutex)
}

macro_rules! settled {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(mutex: *mut pthread_mutex_t) -> c_int {
            settle(mutex);
            // SAFETY: the program's own mutex.
            unsafe { real!($name: Plain)(mutex) }
        }
    )*};
}

settled! {
    pthread_mutex_trylock;
    pthread_mutex_unlock;
    pthread_mutex_consistent;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut pthread_mutex_t) -> c_int {
    let is_held = is_at_risk(mutex) && is_known_to_kernel(mutex);
    // SAFETY: the program's own mutex.
    let outcome = unsafe { real!(pthread_mutex_destroy: Plain)(mutex) };
    if outcome == 0 && is_held {
        release_known(mutex);
    }
    outcome
}

held! {
    fn pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int
        = (settle_and_hold(mutex), hold(until));
    fn pthread_mutex_clocklock(
        mutex: *mut pthread_mutex_t, clock: clockid_t, until: *const timespec,
    ) -> c_int = (settle_and_hold(mutex), hold(until));
    fn mtx_lock(mutex: *mut pthread_mutex_t) -> c_int = hold(mutex);
    fn mtx_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int
        = (hold(mutex), hold(until));
}

/// glibc's mark of a finished `pthread_once`.
const ONCE_DONE: c_int = 2;

macro_rules! onces {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            once: *mut pthread_once_t,
            body: Option<unsafe extern "C" fn()>,
        ) -> c_int {
            type Once = unsafe extern "C" fn(*mut c_void, Option<unsafe extern "C" fn()>) -> c_int;
            let real = real!($name: Once);
            if !is_on_heap(once) {
                // SAFETY: the program's own arguments.
                return unsafe { real(once.cast(), body) };
            }
            // SAFETY: the program's own word, which libc's threads change atomically.
            if unsafe { core::ptr::read_volatile(once) } == ONCE_DONE {
                fence(Ordering::Acquire);
                return 0;
            }
            let _hold = hold(once);
            // SAFETY: the program's own arguments.
            unsafe { real(once.cast(), body) }
        }
    )*};
}

onces! {
    pthread_once;
    call_once;
}
