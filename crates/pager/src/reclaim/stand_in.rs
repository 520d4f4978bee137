//! Stand-in: threads of the program do the work of workers that are not there.
//!
//! A forked child has no workers at first, and a limit on processes may leave it without them. A
//! thread at the ceiling evicts by itself (`room`), and one that finds no buffer in the log writes
//! the sealed ones (`Store::writer`). The rest is here: a thread that finds no room in the log
//! collects, and one that has evicted moves the limits, as the evictor does.
//!
//! Guarantees: with nobody but itself a thread finds the room that it finds with all workers.
//! Never: allocates; memory and stack of a collector are mapped for one step.
//! Threads: any, also in a signal handler. `fresh_writer` inside the mover's gate, by a thread that
//! owns nothing and has no head of the log: then it may wait for owners and heads as the collector
//! does, which takes neither eviction contexts nor packers. It passes the collector's gate, which a
//! fork closes only when all movers have left; so a fork finds the lock here free, too. The lock is
//! only tried: the thread that has it collects for all.

use core::ffi::c_void;
use core::time::Duration;

use deepheap_store::{Head, Store, StoreError, Writer};
use deepheap_sys::memory::large_stack;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::Ordering;
use deepheap_sys::threads::signals::Blocked;
use deepheap_sys::threads::thread;
use deepheap_sys::threads::waits::{Cause, Wait};

use crate::pager::Pager;

/// As that of a worker.
const STACK_BYTES: usize = 256 << 10;
/// How long a thread waits for another one that collects, or for the device.
const PAUSE: Duration = Duration::from_millis(1);

/// One step of a collector.
struct Step<'a> {
    pager: &'a Pager,
    has_collected: bool,
}

extern "C" fn collect(argument: *mut c_void) {
    // SAFETY: `collect_here` passes its own step, and waits for us.
    let step = unsafe { &mut *argument.cast::<Step<'_>>() };
    let Ok(mut segment) = PinnedArray::<u8>::new(step.pager.residency.store.segment_bytes()) else {
        return;
    };
    // A segment that cannot be collected now is tried again; the store knows when nothing can be
    // won.
    step.has_collected =
        matches!(step.pager.collect(&step.pager.residency.store, &mut segment), Ok(true));
}

impl Pager {
    /// As `Store::writer` of fresh objects; but where nobody else makes the room that it waits for,
    /// it does.
    pub(crate) fn fresh_writer<'a>(&'a self, tier: &'a Store) -> Result<Writer<'a>, StoreError> {
        Wait::during(Cause::Log, || {
            while !self.workers.has_collector.load(Ordering::SeqCst) {
                if let Some(writer) = tier.try_writer(Head::Fresh)? {
                    return Ok(writer);
                }
                if !tier.write_sealed(false) && !self.collect_here() {
                    thread::sleep(PAUSE);
                }
            }
            tier.writer(Head::Fresh)
        })
    }

    /// A step of the collector. False if another thread makes one, or nothing was won.
    fn collect_here(&self) -> bool {
        let Some(_alone) = self.workers.collecting_here.try_lock() else { return false };
        let mut step = Step { pager: self, has_collected: false };
        // A handler of the program would run on that stack.
        let _blocked = Blocked::all();
        // Without memory for the stack another thread, or a later look, has more luck.
        let _ = large_stack::call(STACK_BYTES, collect, (&raw mut step).cast());
        step.has_collected
    }

    /// For a thread that has evicted: moves the limits of page buffer and cache, if there is no
    /// evictor that does.
    pub fn rebalance_here(&self) {
        if !self.workers.has_evictor.load(Ordering::Relaxed) {
            self.rebalance();
        }
    }
}
