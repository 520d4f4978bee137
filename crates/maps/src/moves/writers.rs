//! Writers: what changed pages are written with, several at a time, of the whole process.
//!
//! A write that its process does not live to see ended must not read from a slot that is another's
//! by then, nor reach the file after what that one writes. So they are joint writes: while one is
//! under way, the lock that tells that the process lives is held (by the open file of the
//! rendezvous, which is mapped), and nobody takes the shard over before.
//!
//! Guarantees: a writer has one user.
//! Never: allocates | waits for a writer.
//! Threads: any, also in a signal handler, with all signals blocked.

use deepheap_sys::files::joint_writes::JointWriter;
use deepheap_sys::threads::lock::Lock;

use crate::tables::control::PIPES;

/// One for each pipe: evictions at a time of one map.
static WRITERS: [Lock<Option<JointWriter>>; PIPES] = [const { Lock::new(None) }; PIPES];

/// Uses a free writer. None: there is none, or this process may have none.
pub(crate) fn with_writer<T>(act: impl FnOnce(&mut JointWriter) -> T) -> Option<T> {
    let mut free = WRITERS.iter().find_map(Lock::try_lock)?;
    if free.is_none() {
        *free = JointWriter::new().ok();
    }
    free.as_mut().map(act)
}

/// In the child of a fork: the parent's writers are not here.
///
/// # Safety
/// The child has one thread, which is here.
pub(crate) unsafe fn forget_writers() {
    for place in &WRITERS {
        // SAFETY: the thread that held it is not in this process.
        unsafe { place.force_unlock() };
        if let Some(writer) = place.lock().take() {
            writer.forget();
        }
    }
}
