//! Condition: `pthread_cond_t` and C11's `cnd_t` on the heap.
//!
//! Guarantees: see `waiting`. Condition, mutex and time limit are held while a thread waits; a
//! signal holds the condition, since libc may wait there for the last waiters of the group before.
//!
//! Threads: any.

use core::ffi::c_int;

use deepheap::Hold;
use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, timespec};

use crate::guarded::held;
use crate::real::real;
use crate::waiting::{hold, hold_known, is_at_risk, release_known};

/// Where glibc's condition keeps its waiter count, and its bit of conditions shared between
/// processes.
const WAITERS_OFFSET: usize = 36;
const SHARED: u32 = 1;

fn is_shared(condition: *const pthread_cond_t) -> bool {
    // SAFETY: an initialised condition of the program, whose layout is part of glibc's ABI.
    let waiters = unsafe { *condition.byte_add(WAITERS_OFFSET).cast::<u32>() };
    waiters & SHARED != 0
}

/// Holds a condition for one call; one that is shared between processes is pinned until it is
/// destroyed.
fn settle_and_hold(condition: *const pthread_cond_t) -> Hold {
    if is_at_risk(condition) && is_shared(condition) {
        hold_known(condition);
    }
    hold(condition)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_destroy(condition: *mut pthread_cond_t) -> c_int {
    let real = real!(
        pthread_cond_destroy @ c"GLIBC_2.3.2": unsafe extern "C" fn(*mut pthread_cond_t) -> c_int
    );
    // Destruction waits for threads that are still waking up.
    let _held = hold(condition);
    release_known(condition);
    // SAFETY: the program's own condition.
    unsafe { real(condition) }
}

held! {
    fn pthread_cond_wait @ c"GLIBC_2.3.2"(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t,
    ) -> c_int = (settle_and_hold(condition), hold(mutex));
    fn pthread_cond_timedwait @ c"GLIBC_2.3.2"(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, until: *const timespec,
    ) -> c_int = (settle_and_hold(condition), hold(mutex), hold(until));
    fn pthread_cond_clockwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: clockid_t,
        until: *const timespec,
    ) -> c_int = (settle_and_hold(condition), hold(mutex), hold(until));
    fn pthread_cond_signal @ c"GLIBC_2.3.2"(condition: *mut pthread_cond_t) -> c_int
        = settle_and_hold(condition);
    fn pthread_cond_broadcast @ c"GLIBC_2.3.2"(condition: *mut pthread_cond_t) -> c_int
        = settle_and_hold(condition);
    fn cnd_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int
        = (settle_and_hold(condition), hold(mutex));
    fn cnd_timedwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, until: *const timespec,
    ) -> c_int = (settle_and_hold(condition), hold(mutex), hold(until));
    fn cnd_signal(condition: *mut pthread_cond_t) -> c_int = settle_and_hold(condition);
    fn cnd_broadcast(condition: *mut pthread_cond_t) -> c_int = settle_and_hold(condition);
}
