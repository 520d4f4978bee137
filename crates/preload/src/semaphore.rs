//! Semaphore: `sem_t` on the heap.
//!
//! Guarantees: see `waiting`.
//!
//! Threads: any.

use core::ffi::c_int;

use deepheap::Hold;
use libc::{clockid_t, sem_t, timespec};

use crate::guarded::held;
use crate::real::real;
use crate::waiting::{hold, hold_known, is_at_risk, is_on_heap, release_known};

type Plain = unsafe extern "C" fn(*mut sem_t) -> c_int;

unsafe extern "C" {
    fn pthread_testcancel();
}

/// Where glibc's semaphore says that it is shared between processes (the word behind its value).
const SHARED_OFFSET: usize = 8;

fn is_shared(semaphore: *const sem_t) -> bool {
    // SAFETY: an initialised semaphore of the program, whose layout is part of glibc's ABI.
    unsafe { *semaphore.byte_add(SHARED_OFFSET).cast::<c_int>() != 0 }
}

/// Pins a semaphore that is shared between processes.
fn settle(semaphore: *const sem_t) {
    if is_at_risk(semaphore) && is_shared(semaphore) {
        hold_known(semaphore);
    }
}

/// Pins a semaphore that is shared between processes, and holds any.
fn settle_and_hold(semaphore: *const sem_t) -> Hold {
    settle(semaphore);
    hold(semaphore)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_destroy(semaphore: *mut sem_t) -> c_int {
    release_known(semaphore);
    // SAFETY: the program's own semaphore.
    unsafe { real!(sem_destroy: Plain)(semaphore) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_post(semaphore: *mut sem_t) -> c_int {
    settle(semaphore);
    // SAFETY: the program's own semaphore.
    unsafe { real!(sem_post: Plain)(semaphore) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_wait(semaphore: *mut sem_t) -> c_int {
    let real = real!(sem_wait: Plain);
    if !is_on_heap(semaphore) {
        // SAFETY: the program's own semaphore.
        return unsafe { real(semaphore) };
    }
    settle(semaphore);
    // SAFETY: `sem_wait` is a place where threads end that were cancelled, `sem_trywait` is none.
    unsafe { pthread_testcancel() };
    // SAFETY: as above.
    if unsafe { real!(sem_trywait: Plain)(semaphore) } == 0 {
        return 0;
    }
    let _hold = hold(semaphore);
    // SAFETY: as above.
    unsafe { real(semaphore) }
}

held! {
    fn sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int
        = (settle_and_hold(semaphore), hold(until));
    fn sem_clockwait(semaphore: *mut sem_t, clock: clockid_t, until: *const timespec) -> c_int
        = (settle_and_hold(semaphore), hold(until));
}
