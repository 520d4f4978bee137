//! Barrier: `pthread_barrier_t` on the heap.
//!
//! Guarantees: see `waiting`. Destruction may wait for the last threads to leave, so it is pinned
//! too.
//!
//! Threads: any.

use core::ffi::c_int;

use deepheap::Hold;
use libc::pthread_barrier_t;

use crate::guarded::held;
use crate::real::real;
use crate::waiting::{hold, hold_known, is_at_risk, release_known};

/// Where glibc's barrier says that it is shared between processes, and how it says it is not.
const SHARED_OFFSET: usize = 12;
const PRIVATE: c_int = 0;

fn is_shared(barrier: *const pthread_barrier_t) -> bool {
    // SAFETY: an initialised barrier of the program, whose layout is part of glibc's ABI.
    unsafe { *barrier.byte_add(SHARED_OFFSET).cast::<c_int>() != PRIVATE }
}

/// Holds a barrier for one call; one that is shared between processes is pinned until it is
/// destroyed.
fn settle_and_hold(barrier: *const pthread_barrier_t) -> Hold {
    if is_at_risk(barrier) && is_shared(barrier) {
        hold_known(barrier);
    }
    hold(barrier)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_barrier_destroy(barrier: *mut pthread_barrier_t) -> c_int {
    let real =
        real!(pthread_barrier_destroy: unsafe extern "C" fn(*mut pthread_barrier_t) -> c_int);
    let _held = hold(barrier);
    release_known(barrier);
    // SAFETY: the program's own barrier.
    unsafe { real(barrier) }
}

held! {
    fn pthread_barrier_wait(barrier: *mut pthread_barrier_t) -> c_int = settle_and_hold(barrier);
}
