//! Kept stderr: the summary reaches the user though the program closes its stderr before it ends,
//! as the GNU core utilities do.
//!
//! Guarantees: a forked child keeps none, so a reader of a program's stderr through a pipe waits
//! only for the process that `keep` was called in.
//! Never: is a cancellation point.
//! Threads: the one that starts the runtime, the one that forks, and the one that ends the process.

use core::sync::atomic::{AtomicI32, Ordering};

use crate::files::own_descriptor::{OwnDescriptor, is_open};
use crate::raw_call;

const NONE: i32 = -1;
static KEPT: AtomicI32 = AtomicI32::new(NONE);

/// Keeps what is stderr now.
pub fn keep() {
    if let Some(kept) = OwnDescriptor::duplicate(libc::STDERR_FILENO) {
        KEPT.store(kept.keep(), Ordering::Relaxed);
    }
}

/// In the child of a fork: closes it.
pub fn forget() {
    let kept = KEPT.swap(NONE, Ordering::Relaxed);
    if kept != NONE {
        // SAFETY: `keep` put it there, in this process or its parent, and it is taken once.
        drop(unsafe { OwnDescriptor::take_back(kept) });
    }
}

/// Writes to stderr, or to what was kept if that is closed. Bytes that cannot be written are left
/// out: nobody is there to read them.
pub fn write_all(bytes: &[u8]) {
    let kept = KEPT.load(Ordering::Relaxed);
    let closed = kept != NONE && !is_open(libc::STDERR_FILENO);
    let _ = raw_call::write_all(if closed { kept } else { libc::STDERR_FILENO }, bytes);
}
