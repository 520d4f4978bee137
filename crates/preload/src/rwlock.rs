//! Rwlock: `pthread_rwlock_t` on the heap.
//!
//! Guarantees: see `waiting`.
//!
//! Threads: any.

use core::ffi::c_int;

use libc::{clockid_t, pthread_rwlock_t, timespec};

use crate::guarded::guarded_code;
use crate::real::real;
use crate::waiting::{Hold, hold_known, is_at_risk, release_known};

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

macro_rules! locks {
    ($($name:ident, $attempt:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(lock: *mut pthread_rwlock_t) -> c_int {
            let real = real!($name: Plain);
            if !is_at_risk(lock) {
                // SAFETY: the program's own lock.
                return unsafe { real(lock) };
            }
            settle(lock);
            // SAFETY: as above.
            if unsafe { real!($attempt: Plain)(lock) } == 0 {
                return 0;
            }
            let _hold = Hold::on(lock);
            // SAFETY: as above.
            unsafe { real(lock) }
        }
    )*};
}

locks! {
    pthread_rwlock_rdlock, pthread_rwlock_tryrdlock;
    pthread_rwlock_wrlock, pthread_rwlock_trywrlock;
}

guarded_code! {
    fn pthread_rwlock_timedrdlock(lock: *mut pthread_rwlock_t, until: *const timespec)
        = |pins| { pins.value(lock); settle(lock) };
    fn pthread_rwlock_timedwrlock(lock: *mut pthread_rwlock_t, until: *const timespec)
        = |pins| { pins.value(lock); settle(lock) };
    fn pthread_rwlock_clockrdlock(
        lock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec,
    ) = |pins| { pins.value(lock); settle(lock) };
    fn pthread_rwlock_clockwrlock(
        lock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec,
    ) = |pins| { pins.value(lock); settle(lock) };
}
