//! Locks: mutexes, conditions, semaphores, read-write locks, barriers and `pthread_once` on the
//! heap, under their POSIX and C11 names.
//!
//! Guarantees: as `waiting`. Error-checking, recursive and robust mutexes answer as libc's do.
//! Threads: any.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use libc::{
    clockid_t, pthread_barrier_t, pthread_cond_t, pthread_mutex_t, pthread_once_t,
    pthread_rwlock_t, sem_t, timespec,
};

use crate::calls::{Opaque, calls};
use crate::real::real;
use crate::threads::waiting::{hold, is_on_heap, pin_known};

calls! {
    fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int = try_first(pthread_mutex_trylock);
    fn pthread_mutex_trylock, pthread_mutex_unlock, pthread_mutex_consistent(
        mutex: *mut pthread_mutex_t,
    ) -> c_int = pin_known;
    fn pthread_mutex_destroy(mutex: *mut pthread_mutex_t) -> c_int = destroy;
    fn pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int = wait;
    fn pthread_mutex_clocklock(
        mutex: *mut pthread_mutex_t, clock: clockid_t, until: *const timespec,
    ) -> c_int = wait;
    fn pthread_mutex_setprioceiling(
        mutex: *mut pthread_mutex_t, ceiling: c_int, old: *mut c_int,
    ) -> c_int = wait;
    fn mtx_lock(mutex: *mut pthread_mutex_t) -> c_int = hold;
    fn mtx_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int = hold;

    fn pthread_cond_wait @ c"GLIBC_2.3.2", cnd_wait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t,
    ) -> c_int = wait;
    fn pthread_cond_timedwait @ c"GLIBC_2.3.2", cnd_timedwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, until: *const timespec,
    ) -> c_int = wait;
    fn pthread_cond_clockwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: clockid_t,
        until: *const timespec,
    ) -> c_int = wait;
    // A signal may wait, too: for the last waiters of the group before.
    fn pthread_cond_signal @ c"GLIBC_2.3.2", pthread_cond_broadcast @ c"GLIBC_2.3.2", cnd_signal,
        cnd_broadcast(condition: *mut pthread_cond_t) -> c_int = wait;
    fn cnd_destroy(condition: *mut pthread_cond_t) -> () = hold;
    fn pthread_cond_destroy @ c"GLIBC_2.3.2"(condition: *mut pthread_cond_t) -> c_int = destroy;

    fn sem_wait(semaphore: *mut sem_t) -> c_int = by(|real| wait_for(semaphore, real));
    fn sem_post(semaphore: *mut sem_t) -> c_int = pin_known;
    fn sem_destroy(semaphore: *mut sem_t) -> c_int = destroy;
    fn sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int = wait;
    fn sem_clockwait(semaphore: *mut sem_t, clock: clockid_t, until: *const timespec)
        -> c_int = wait;

    fn pthread_rwlock_rdlock(lock: *mut pthread_rwlock_t) -> c_int
        = try_first(pthread_rwlock_tryrdlock);
    fn pthread_rwlock_wrlock(lock: *mut pthread_rwlock_t) -> c_int
        = try_first(pthread_rwlock_trywrlock);
    fn pthread_rwlock_unlock(lock: *mut pthread_rwlock_t) -> c_int = pin_known;
    fn pthread_rwlock_destroy(lock: *mut pthread_rwlock_t) -> c_int = destroy;
    fn pthread_rwlock_timedrdlock, pthread_rwlock_timedwrlock(
        lock: *mut pthread_rwlock_t, until: *const timespec,
    ) -> c_int = wait;
    fn pthread_rwlock_clockrdlock, pthread_rwlock_clockwrlock(
        lock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec,
    ) -> c_int = wait;

    fn pthread_barrier_wait(barrier: *mut pthread_barrier_t) -> c_int = wait;
    fn pthread_barrier_destroy(barrier: *mut pthread_barrier_t) -> c_int = destroy;

    fn pthread_once, call_once(word: *mut pthread_once_t, body: Opaque)
        -> c_int = by(|real| once(word, || real(word, body)));
}

unsafe extern "C" {
    fn pthread_testcancel();
}

/// `sem_wait`, where `real` is libc's.
fn wait_for(semaphore: *mut sem_t, real: impl Fn(*mut sem_t) -> c_int) -> c_int {
    if !is_on_heap(semaphore) {
        return real(semaphore);
    }
    pin_known(semaphore);
    // SAFETY: `sem_wait` is a place where threads end that were cancelled, `sem_trywait` is none.
    unsafe { pthread_testcancel() };
    // SAFETY: the program's own semaphore.
    if unsafe { real!(sem_trywait: fn(*mut sem_t) -> c_int)(semaphore) } == 0 {
        return 0;
    }
    let _held = hold(semaphore);
    real(semaphore)
}

/// glibc's mark of a finished `pthread_once`.
const ONCE_DONE: c_int = 2;

/// `pthread_once`, where `call` is libc's.
fn once(word: *mut pthread_once_t, call: impl Fn() -> c_int) -> c_int {
    if !is_on_heap(word) {
        return call();
    }
    // SAFETY: the program's own word, which libc's threads change atomically.
    if unsafe { core::ptr::read_volatile(word) } == ONCE_DONE {
        fence(Ordering::Acquire);
        return 0;
    }
    let _held = hold(word);
    call()
}
