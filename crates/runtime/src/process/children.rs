//! Children: forked processes that still read segments of our store.
//!
//! A forked child's tables name blocks of the parent's store. Until it exits or execs, segments
//! that die here are withheld from reuse. The child holds the write end of a close-on-exec pipe;
//! when the kernel has closed the last copy of it, the read end says so.
//!
//! Guarantees: nothing a living child may read is overwritten or discarded.
//! Never: waits for a child.
//! Threads: the forking one, and the collector.

use deepheap_pager::Pager;
use deepheap_store::{PinToken, Store};
use deepheap_sys::files::pipe::Lifeline;
use deepheap_sys::threads::lock::Lock;

use crate::runtime::Runtime;

/// Living children that are kept track of one by one; those beyond are never forgotten.
const CHILDREN_MAX: usize = 1024;

struct Child {
    line: Lifeline,
    pin: PinToken,
}

static CHILDREN: Lock<[Option<Child>; CHILDREN_MAX]> = Lock::new([const { None }; CHILDREN_MAX]);

/// Remembers a child that was just forked. If too many live, its segments stay withheld.
pub(crate) fn remember(line: Lifeline, pin: PinToken) {
    let mut children = CHILDREN.lock();
    match children.iter_mut().find(|slot| slot.is_none()) {
        Some(slot) => *slot = Some(Child { line, pin }),
        None => core::mem::forget(line),
    }
}

/// Lets go of what dead children needed.
pub(crate) fn forget_the_dead(store: &Store) {
    for slot in CHILDREN.lock().iter_mut() {
        if let Some(child) = slot.take_if(|child| child.line.is_cut()) {
            store.unpin(child.pin);
        }
    }
}

/// Lets go of what dead children needed of a heap; of a durable heap, which children do not have,
/// what ended readers needed.
pub(crate) fn forget_dead_children(runtime: &Runtime, pager: &Pager) {
    match &runtime.durable {
        None => forget_the_dead(pager.store()),
        Some(durable) => durable.forget_ended_readers(pager.store()),
    }
}

/// In a forked child: the parent's children are not ours. Closes our copies of their lines.
///
/// # Safety
/// No other thread exists in this process.
pub(crate) unsafe fn disown_all() {
    // SAFETY: the thread that held the lock is not in this process.
    unsafe { CHILDREN.force_unlock() };
    for slot in CHILDREN.lock().iter_mut() {
        *slot = None;
    }
}
