//! Sharing: whether this process has its memory to itself.
//! Threads: any; `note` from the constructor, and in a child that was forked off.

use core::sync::atomic::{AtomicI32, Ordering};

/// The process whose memory this is; 0 before the constructor has run.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Notes which process this is.
pub fn note() {
    // SAFETY: no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Whether this is a child that uses the memory of its parent (`vfork`, `CLONE_VM`).
pub fn shares_memory() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    // SAFETY: no arguments.
    process != 0 && process != unsafe { libc::getpid() }
}
