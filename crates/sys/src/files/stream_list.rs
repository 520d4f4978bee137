//! Stream list: the lock of libc's list of stdio streams, around a fork.
//!
//! libc's `fork` takes this lock after the handlers that run before a fork. A thread that has it
//! (`fflush(NULL)`) waits for the lock of each stream. A thread that has one of those may wait for
//! us, since no object moves until the fork is over. The three threads would wait for each other in
//! a ring. So we take this lock before all of our own. It is reentrant: libc then takes it again.
//!
//! Guarantees: balanced, whether libc takes the lock itself or, with one thread, does not.
//! Never: allocates.
//! Threads: the forking one, from handlers of `pthread_atfork`.

unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
}

/// Before a fork, before any lock of ours.
pub fn fork_prepare() {
    // SAFETY: no arguments; until `fork_parent` or `fork_child` nobody else has the lock.
    unsafe { _IO_list_lock() }
}

/// In the parent, after all locks of ours are released.
pub fn fork_parent() {
    // SAFETY: this thread has the lock since `fork_prepare`.
    unsafe { _IO_list_unlock() }
}

/// In the child: frees the lock.
pub fn fork_child() {
    // SAFETY: the child has this thread only, which had the lock.
    unsafe { _IO_list_resetlock() }
}
