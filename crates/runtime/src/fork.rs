//! Fork: one process becomes two, and both keep every byte of the heap.
//!
//! | when | what |
//! |---|---|
//! | before | growth stops; the heap is locked; the pager's gate closes; the log is drained |
//! | parent | all is released; a child that reads our store is remembered (`children`) |
//! | child | an own userfaultfd before anything else; an own store for its writes; own workers |
//!
//! Guarantees: at the instant of `fork` no object is half-way and no lock of ours is held by a
//! thread that the child does not have.
//! Threads: the forking one, from `pthread_atfork` handlers; nothing of the program runs in
//! between.

use core::cell::UnsafeCell;

use deepheap_pager::Pager;
use deepheap_store::{Device, FileDevice, Frozen, PinToken};
use deepheap_sys::fault_signal;
use deepheap_sys::lock::{Guard, Lock};
use deepheap_sys::log::{Piece, say};
use deepheap_sys::pinned_allocator::PinnedAllocator;
use deepheap_sys::pipe::{Lifeline, Lifelink};
use deepheap_sys::signals::Blocked;

use crate::allocate::this_threads_cache;
use crate::runtime::{Growth, Inside, Runtime, hold_start, open_store_of_child, running};
use crate::{children, workers};

/// What is held from before the fork until after it. Dropped in this order.
struct Held {
    running: Option<RunningHeld>,
    _start: Guard<'static, ()>,
    _forking: Guard<'static, ()>,
    /// A handler of the program that faulted now would pass the gate as its owner.
    _blocked: Blocked,
}

struct RunningHeld {
    managing: Option<ManagingHeld>,
    _growth: Guard<'static, Growth>,
    _inside: Inside,
}

struct ManagingHeld {
    frozen: Frozen<'static>,
    pin: Option<PinToken>,
    line: Option<(Lifeline, Lifelink)>,
}

/// Serialises forks of several threads; its owner is the only user of `HELD`.
static FORKING: Lock<()> = Lock::new(());

struct HeldCell(UnsafeCell<Option<Held>>);

// SAFETY: used only by the thread that holds FORKING.
unsafe impl Sync for HeldCell {}

static HELD: HeldCell = HeldCell(UnsafeCell::new(None));

/// Before `fork`.
pub fn fork_prepare() {
    let blocked = Blocked::all();
    let forking = FORKING.lock();
    let start = hold_start();
    let running = running().map(RunningHeld::prepare);
    let held = Held { running, _start: start, _forking: forking, _blocked: blocked };
    // SAFETY: we hold FORKING.
    unsafe { *HELD.0.get() = Some(held) };
}

/// After `fork`, in the parent.
pub fn fork_parent() {
    // SAFETY: this thread holds FORKING since `fork_prepare`.
    let Some(mut held) = (unsafe { (*HELD.0.get()).take() }) else { return };
    if let (Some(runtime), Some(running)) = (running(), held.running.take()) {
        running.release_in_parent(runtime);
    }
}

/// After `fork`, in the child, before anything of the program runs.
pub fn fork_child() {
    // SAFETY: this thread, the only one here, holds FORKING since `fork_prepare`.
    let Some(mut held) = (unsafe { (*HELD.0.get()).take() }) else { return };
    fault_signal::after_fork();
    let Some(runtime) = running() else { return };
    if let Some(running) = held.running.take() {
        running.release_in_child(runtime);
    }
    drop(held);
    runtime.end_parked_runs();
}

impl RunningHeld {
    fn prepare(runtime: &'static Runtime) -> RunningHeld {
        let inside = Inside::enter();
        let growth = runtime.growth.lock();
        // Before the gate is closed: who has a lock of the heap may be in a handler of the program
        // that faults, and passes the gate. Nobody inside the gate wants one.
        runtime.heap.fork_prepare();
        let managing = runtime.pager().map(ManagingHeld::prepare);
        PinnedAllocator::fork_prepare();
        RunningHeld { managing, _growth: growth, _inside: inside }
    }

    fn release_in_parent(self, runtime: &'static Runtime) {
        // SAFETY: this thread called `fork_prepare`.
        unsafe { PinnedAllocator::fork_parent() };
        runtime.heap.after_fork();
        if let Some(managing) = self.managing {
            drop(managing.frozen);
            if let (Some(pin), Some((line, link))) = (managing.pin, managing.line) {
                drop(link);
                children::remember(line, pin);
            }
            if let Some(pager) = runtime.pager() {
                pager.fork_parent();
            }
        }
    }

    fn release_in_child(self, runtime: &'static Runtime) {
        // SAFETY: this thread called `fork_prepare`.
        unsafe { PinnedAllocator::fork_child() };
        runtime.heap.after_fork();
        // SAFETY: the area and the cache in it belong to this thread.
        let own = unsafe { this_threads_cache() };
        runtime.heap.reclaim_orphans(own.as_deref());
        // Before there are workers, which count.
        if runtime.stats.become_child().is_err() {
            say(&[Piece::Text("a forked child has no statistics of its own")]);
        }
        if let Some(managing) = self.managing {
            drop(managing.frozen);
            if let Some((line, link)) = managing.line {
                drop(line);
                link.keep();
            }
            // The token of the pin is the parent's to give back.
            runtime.manage_in_child();
        }
    }
}

impl ManagingHeld {
    fn prepare(pager: &'static Pager) -> ManagingHeld {
        // The gate last of the movers' locks: from here on nobody moves an object.
        pager.fork_prepare();
        let store = pager.store();
        // The collector does so only when space is short: a parent at rest that forks and forks
        // must not run out of places for children.
        children::forget_the_dead(store);
        store.seal_and_drain();
        let pin = store.pin_all();
        let line = deepheap_sys::pipe::lifeline();
        if pin.is_err() {
            // Checksums stand between the child and bytes that are not its own.
            say(&[Piece::Text(
                "too many forked children live: memory that the next one has not in RAM may become \
                 unreadable for it; end some of them first",
            )]);
        }
        if line.is_err() {
            say(&[Piece::Text(
                "no file descriptor to watch a forked child with: the space that it may read is \
                 never used again; raise the limit on open files (ulimit -n)",
            )]);
        }
        ManagingHeld { frozen: store.freeze(), pin: pin.ok(), line: line.ok() }
    }
}

impl Runtime {
    fn manage_in_child(&'static self) {
        let Some(pager) = self.pager() else { return };
        // SAFETY: `fork` copies the calling thread only.
        unsafe { children::disown_all() };
        // SAFETY: as above.
        if let Err(errno) = unsafe { pager.fork_child() } {
            // Evicted memory would read as zeros: rather no child than a wrong one.
            say(&[
                Piece::Text("a forked child cannot manage its memory: "),
                Piece::Error(errno),
                Piece::Text("; it ends here"),
            ]);
            std::process::abort();
        }
        let own = open_store_of_child(&self.child_folders).and_then(FileDevice::new);
        let own: Box<dyn Device> = match own {
            Ok(device) => Box::new(device),
            Err(errno) => {
                say(&[
                    Piece::Text("a forked child has no store of its own: "),
                    Piece::Error(errno),
                    Piece::Text("; it ends here"),
                ]);
                std::process::abort();
            }
        };
        if let Err(error) = pager.store().become_child(own) {
            say(&[
                Piece::Text("a forked child cannot use the store: "),
                Piece::Text(&error.to_string()),
                Piece::Text("; it ends here"),
            ]);
            std::process::abort();
        }
        pager.open_after_fork();
        workers::start();
    }
}
