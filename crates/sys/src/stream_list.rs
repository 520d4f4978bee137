//! Stream list: the lock of libc's list of stdio streams, around a fork.
//!
//! libc's `fork` takes it after the handlers that run before a fork. Who has it waits for the lock
//! of each stream (`fflush(NULL)`), and who has that may wait for us, who keeps everybody from
//! moving objects until the fork is over: three threads in a ring. So it is taken before all else
//! of ours; it can be taken again by the thread that has it, which libc then does.
//!
//! Guarantees: balanced, whether libc sees to the lock itself or, with one thread, does not.
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

/// In the child: the lock is nobody's.
pub fn fork_child() {
    // SAFETY: the child has this thread only, which had the lock.
    unsafe { _IO_list_resetlock() }
}
