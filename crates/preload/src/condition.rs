//! Condition: `pthread_cond_t` and C11's `cnd_t` on the heap.
//!
//! Guarantees: see `waiting`. Condition and mutex stay pinned while a thread waits; a signal pins
//! the condition, since libc may wait there for the last waiters of the group before.
//!
//! Threads: any.

use core::ffi::c_int;

use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, timespec};

use crate::guarded::guarded_code;
use crate::pins::Pins;
use crate::real::real;
use crate::waiting::{hold_known, is_at_risk, release_known};

/// Where glibc's condition keeps its waiter count, and its bit of conditions shared between
/// processes.
const WAITERS_OFFSET: usize = 36;
const SHARED: u32 = 1;

fn is_shared(condition: *const pthread_cond_t) -> bool {
    // SAFETY: an initialised condition of the program, whose layout is part of glibc's ABI.
    let waiters = unsafe { *condition.byte_add(WAITERS_OFFSET).cast::<u32>() };
    waiters & SHARED != 0
}

/// Pins a condition for one call, and one that is shared between processes until it is destroyed.
fn settle(pins: &mut Pins, condition: *const pthread_cond_t) {
    pins.value(condition);
    if is_at_risk(condition) && is_shared(condition) {
        hold_known(condition);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_destroy(condition: *mut pthread_cond_t) -> c_int {
    let real = real!(
        pthread_cond_destroy @ c"GLIBC_2.3.2": unsafe extern "C" fn(*mut pthread_cond_t) -> c_int
    );
    let mut pins = Pins::new();
    // Destruction waits for threads that are still waking up.
    pins.value(condition);
    release_known(condition);
    // SAFETY: the program's own condition.
    unsafe { real(condition) }
}

guarded_code! {
    fn pthread_cond_wait @ c"GLIBC_2.3.2"(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t,
    ) = |pins| { settle(pins, condition); pins.value(mutex) };
    fn pthread_cond_timedwait @ c"GLIBC_2.3.2"(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, until: *const timespec,
    ) = |pins| { settle(pins, condition); pins.value(mutex) };
    fn pthread_cond_clockwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: clockid_t,
        until: *const timespec,
    ) = |pins| { settle(pins, condition); pins.value(mutex) };
    fn pthread_cond_signal @ c"GLIBC_2.3.2"(condition: *mut pthread_cond_t)
        = |pins| settle(pins, condition);
    fn pthread_cond_broadcast @ c"GLIBC_2.3.2"(condition: *mut pthread_cond_t)
        = |pins| settle(pins, condition);
    fn cnd_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t)
        = |pins| { settle(pins, condition); pins.value(mutex) };
    fn cnd_timedwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, until: *const timespec,
    ) = |pins| { settle(pins, condition); pins.value(mutex) };
    fn cnd_signal(condition: *mut pthread_cond_t) = |pins| settle(pins, condition);
    fn cnd_broadcast(condition: *mut pthread_cond_t) = |pins| settle(pins, condition);
}
