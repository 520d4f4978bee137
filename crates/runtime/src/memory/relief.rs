//! Relief: what a fault does that finds no room in the store for a page that is touched for the
//! first time.
//!
//! The faulting thread may have interrupted a thread of the program that has a lock of the heap. So
//! it never takes one: it asks the evictor, which may wait for such a lock, and waits for the
//! evictor only so long.
//!
//! Guarantees: before an access ends for want of room, all was given back that can be: what dead
//! children kept, chunks without an object, and free pages.
//! Never: waits for longer than some seconds.
//! Threads: `ask` the faulting one, in its signal handler; `serve` the evictor.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use deepheap_pager::Pager;
use deepheap_sys::process::clock;
use deepheap_sys::threads::thread;

use crate::process::children::forget_dead_children;
use crate::runtime::Runtime;

/// How long a fault waits for the evictor.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);
/// How often a fault asks: once room was made, another thread may be faster.
const ASKED_MAX: u32 = 3;
/// As often, while forked children keep space that comes back when they end; and how long it waits
/// in between.
const ASKED_MAX_WITH_CHILDREN: u32 = 100;
const CHILDREN_PAUSE: Duration = Duration::from_millis(20);

/// Counts up with every thread that asks.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// The value of `ASKED` when the last relief began that has ended.
static SERVED: AtomicU32 = AtomicU32::new(0);

/// Has everything given back that nobody needs. False if that took too long, or if the fault has
/// asked often enough.
pub(crate) fn ask(pager: &Pager, asked_before: u32) -> bool {
    if asked_before >= ASKED_MAX {
        if !pager.store().is_pinned() || asked_before >= ASKED_MAX_WITH_CHILDREN {
            return false;
        }
        thread::sleep(CHILDREN_PAUSE);
    }
    let mine = ASKED.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    pager.workers.wake_evictor();
    let end_ns = clock::monotonic_ns() + PATIENCE.as_nanos() as u64;
    // Others may have asked, and been served, after us.
    while (SERVED.load(Ordering::SeqCst).wrapping_sub(mine) as i32) < 0 {
        if clock::monotonic_ns() > end_ns {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Evictor: serves the threads that ask.
pub(crate) fn serve(runtime: &Runtime, pager: &Pager) {
    let asked = ASKED.load(Ordering::SeqCst);
    if SERVED.load(Ordering::Relaxed) == asked {
        return;
    }
    forget_dead_children(runtime, pager);
    runtime.return_idle_objects(pager);
    pager.store().unreserve(runtime.heap.revoke_object_blocks(u64::MAX));
    runtime.purge(0);
    SERVED.store(asked, Ordering::SeqCst);
}
