//! Rwlock: `pthread_rwlock_t` on the heap.
//!
//! Guarantees: see `waiting`.
//!
//! Threads: any.

use core::ffi::c_int;

use deepheap::Hold;
use libc::{clockid_t, pthread_rwlock_t, timespec};

use crate::guarded::held;
use crate::real::real;
use crate::waiting::{hold, hold_known, is_at_risk, is_on_heap, release_known};

type Plain = unsafe extern "C" fn(*mut pthread_rwlock_t) -> c_int;

/// Where glibc's lock says that it is shared between processes.
const SHARED_OFFSET: usize = 28;

fn is_shared(lock: *const pthread_rwlock_t) -> bool {
    // SAFETY: an initialised lock of the program, whose layout is part of glibc's ABI.
    unsafe { *lock.byte_add(SHARED_OFFSET).cast::<c_int>() != 0 }
}

/// Pins a lock that is shared between processes.
fn settle(lock: *const pthread_rwlock_t) {
    if is_at_risk(lock) && is_shared(lock) {
        hold_known(lock);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_destroy(lock: *mut pthread_rwlock_t) -> c_int {
    release_known(lock);
    // SAFETY: the program's own lock.
    unsafe { real!(pthread_rwlock_destroy: Plain)(lock) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_unlock(lock: *mut pthread_rwlock_t) -> c_int {
    settle(lock);
    // SAFETY: the program's own lock.
    unsafe { real!(pthread_rwlock_unlock: Plain)(lock) }
}

/// Pins a lock that is shared between processes, and holds any.
fn settle_and_hold(lock: *const pthread_rwlock_t) -> Hold {
    settle(lock);
    hold(lock)
}

macro_rules! locks {
    ($($name:ident, $attempt:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(lock: *mut pthread_rwlock_t) -> c_int {
            let real = real!($name: Plain);
            if !is_on_heap(lock) {
                // SAFETY: the program's own lock.
                return unsafe { real(lock) };
            }
            settle(lock);
            // SAFETY: as above.
            if unsafe { real!($attempt: Plain)(lock) } == 0 {
                return 0;
            }
            let _hold = hold(lock);
            // SAFETY: as above.
            unsafe { real(lock) }
        }
    )*};
}

locks! {
    pthread_rwlock_rdlock, pthread_rwlock_tryrdlock;
    pthread_rwlock_wrlock, pthread_rwlock_trywrlock;
}

held! {
    fn pthread_rwlock_timedrdlock(lock: *mut pthread_rwlock_t, until: *const timespec) -> c_int
        = (settle_and_hold(lock), hold(until));
    fn pthread_rwlock_timedwrlock(lock: *mut pthread_rwlock_t, until: *const timespec) -> c_int
        = (settle_and_hold(lock), hold(until));
    fn pthread_rwlock_clockrdlock(
        lock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec,
    ) -> c_int = (settle_and_hold(lock), hold(until));
    fn pthread_rwlock_clockwrlock(
        lock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec,
    ) -> c_int = (settle_and_hold(lock), hold(until));
}
