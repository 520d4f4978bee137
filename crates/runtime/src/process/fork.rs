//! Fork: one process becomes two, and both keep every byte of the heap.
//!
//! | when | what |
//! |---|---|
//! | before | growth stops; the heap is locked; the pager's gate closes; the log is drained |
//! | parent | all is released; a child that reads our store is remembered (`children`) |
//! | child | an own userfaultfd before anything else; an own store for its writes; an own evictor |
//! | child | then it joins each map as a process of its own |
//!
//! Guarantees: at the instant of `fork` nobody moves an object, and no other thread holds a lock of
//! ours, which the child could never get.
//! Threads: the forking one, from `pthread_atfork` handlers; nothing of the program runs in
//! between.

use core::cell::UnsafeCell;

use deepheap_heap::PAGE;
use deepheap_pager::Pager;
use deepheap_store::{Device, FileDevice, Frozen, PinToken};
use deepheap_sys::faults::fault_signal;
use deepheap_sys::files::pipe::{Lifeline, Lifelink};
use deepheap_sys::memory::pinned_allocator::PinnedAllocator;
use deepheap_sys::process::kept_stderr;
use deepheap_sys::process::log::Piece;
use deepheap_sys::say;
use deepheap_sys::threads::lock::{Guard, Lock};
use deepheap_sys::threads::signals::{Blocked, open_fault_signal};

use crate::control::stall_share::StallShare;
use crate::control::{pool, workers};
use crate::maps::private_table;
use crate::memory::area_table::Areas;
use crate::memory::holds;
use crate::memory::thread_cache::any_cache;
use crate::number;
use crate::process::children;
use crate::process::switch::table_device;
use crate::runtime::{Growth, Inside, Runtime, forget_durable, hold_start, running};
use crate::settings::limits;
use crate::settings::store_location::open_unnamed;
use crate::stats::observe::forget_unmanaged;
use crate::stats::{allocations, profile};

/// The locks that are held from before the fork until after it. Dropped in this order.
struct Held {
    running: Option<RunningHeld>,
    _private: Guard<'static, private_table::Table>,
    _start: Guard<'static, ()>,
    _forking: Guard<'static, ()>,
    /// A handler of the program that faulted now would pass the gate as its owner.
    _blocked: Blocked,
}

/// Before a fork so many batches of segments are written at most: others seal more meanwhile.
const SEALED_MOST: usize = 16;

struct RunningHeld {
    runtime: &'static Runtime,
    managing: Option<ManagingHeld>,
    /// Whether this thread is not in the heap: not in a handler that interrupted it there.
    may_use_heap: bool,
    growth: Guard<'static, Growth>,
    areas: Guard<'static, Areas>,
    _inside: Inside,
}

struct ManagingHeld {
    pager: &'static Pager,
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
    // Not below: the mask of now comes back in the end.
    open_fault_signal();
    let blocked = Blocked::all();
    let forking = FORKING.lock();
    let start = hold_start();
    deepheap_maps::fork_prepare();
    let private = private_table::lock();
    let running = running().map(RunningHeld::prepare);
    let held =
        Held { running, _private: private, _start: start, _forking: forking, _blocked: blocked };
    // SAFETY: we hold FORKING.
    unsafe { *HELD.0.get() = Some(held) };
}

/// After `fork`, in the parent.
pub fn fork_parent() {
    // SAFETY: this thread holds FORKING since `fork_prepare`.
    let Some(mut held) = (unsafe { (*HELD.0.get()).take() }) else { return };
    if let Some(running) = held.running.take() {
        running.release_in_parent();
    }
    // SAFETY: this thread has prepared.
    unsafe { deepheap_maps::fork_parent() };
}

/// After `fork`, in the child, before anything of the program runs.
pub fn fork_child() {
    // SAFETY: this thread, the only one here, holds FORKING since `fork_prepare`.
    let Some(mut held) = (unsafe { (*HELD.0.get()).take() }) else { return };
    fault_signal::after_fork();
    // SAFETY: `fork` copies the calling thread only.
    unsafe { forget_durable() };
    // SAFETY: as above. Its evictor joins anew.
    unsafe { pool::leave_in_child() };
    let usable = held.running.as_ref().filter(|running| running.may_use_heap);
    let usable = usable.map(|running| running.runtime);
    if let Some(running) = held.running.take() {
        running.release_in_child();
    }
    // Now that memory can be had again; nothing has touched a map so far.
    join_maps();
    drop(held);
    holds::end_those_of_others();
    if let Some(runtime) = usable {
        runtime.end_parked_runs();
    }
}

/// In the child: it becomes a process of its own in each map that the parent has.
fn join_maps() {
    let _inside = Inside::enter();
    // SAFETY: this thread, the only one here, has prepared.
    if let Err(errno) = unsafe { deepheap_maps::fork_child() } {
        // Pages that are not in RAM would read as zeros: rather no child than a wrong one.
        end_child("a forked child cannot have its parent's maps: ", Piece::Error(errno));
    }
}

impl RunningHeld {
    fn prepare(runtime: &'static Runtime) -> RunningHeld {
        let inside = Inside::enter();
        // What waits to be written now is written before threads have to wait for the fork.
        if let Some(pager) = runtime.pager() {
            let _ = (0..SEALED_MOST).all(|_| pager.store().write_sealed(false));
        }
        let areas = runtime.process.areas.lock();
        let growth = runtime.growth.lock();
        // Before the gate is closed: a thread that has a lock of the heap may be in a handler of
        // the program that faults, and passes the gate. Nobody inside the gate wants one.
        let may_use_heap = runtime.heap.fork_prepare();
        let managing = runtime.pager().map(ManagingHeld::prepare);
        PinnedAllocator::fork_prepare();
        RunningHeld { runtime, managing, may_use_heap, growth, areas, _inside: inside }
    }

    fn release_in_parent(self) {
        // SAFETY: this thread called `fork_prepare`.
        unsafe { PinnedAllocator::fork_parent() };
        self.runtime.heap.after_fork();
        if let Some(ManagingHeld { pager, frozen, pin, line }) = self.managing {
            drop(frozen);
            if let (Some(pin), Some((line, link))) = (pin, line) {
                drop(link);
                children::remember(line, pin);
            }
            pager.fork_parent(|| table_device(self.runtime));
        }
    }

    fn release_in_child(mut self) {
        let runtime = self.runtime;
        // SAFETY: this thread called `fork_prepare`.
        unsafe { PinnedAllocator::fork_child() };
        runtime.heap.after_fork();
        if self.may_use_heap {
            // SAFETY: the area and the cache in it belong to this thread.
            let own = unsafe { any_cache() };
            runtime.heap.reclaim_orphans(own.as_deref());
        }
        forget_unmanaged();
        profile::become_child();
        // SAFETY: `fork` copies the calling thread only, which is here.
        unsafe { allocations::become_child() };
        runtime.process.parent.forget();
        kept_stderr::forget();
        // Before there are workers, which count. After `ulimit -v` in a shell nothing can be
        // mapped, and what it starts tells so.
        if runtime.stats.become_child().is_err() && limits::address_space().is_none() {
            say!("a forked child has no statistics of its own");
        }
        let mapped = self.areas.table.mapped_pages() * PAGE;
        runtime.stats.set(number!(mapped_bytes), mapped as u64);
        // SAFETY: `fork` copies the calling thread only: whoever held the lock is not here.
        unsafe { runtime.stalls.force_unlock() };
        *runtime.stalls.lock() = StallShare::default();
        if let Some(provision) = &mut self.growth.provision {
            provision.after_fork();
        }
        // The token of the pin is the parent's to give back.
        if let Some(ManagingHeld { pager, frozen, line, .. }) = self.managing {
            drop(frozen);
            if let Some((line, link)) = line {
                drop(line);
                link.keep();
            }
            manage_in_child(runtime, pager);
        }
    }
}

impl ManagingHeld {
    fn prepare(pager: &'static Pager) -> ManagingHeld {
        // The gate last of the movers' locks: from here on nobody moves an object.
        pager.fork_prepare();
        let store = pager.store();
        // The collector does so only when space is short: a parent at rest that forks and forks
        // must not run out of slots for children.
        children::forget_the_dead(store);
        store.seal_and_drain();
        let pin = store.pin_all();
        let line = deepheap_sys::files::pipe::lifeline();
        if pin.is_err() {
            // Checksums stand between the child and bytes that are not its own.
            say!(
                "too many forked children live: memory that the next one has not in RAM may become \
                 unreadable for it; end some of them first"
            );
        }
        if line.is_err() {
            say!(
                "no file descriptor to watch a forked child with: the space that it may read is \
                 never used again; raise the limit on open files (ulimit -n)"
            );
        }
        ManagingHeld { pager, frozen: store.freeze(), pin: pin.ok(), line: line.ok() }
    }
}

fn manage_in_child(runtime: &'static Runtime, pager: &'static Pager) {
    // SAFETY: `fork` copies the calling thread only.
    unsafe { children::disown_all() };
    // SAFETY: as above.
    if let Err(errno) = unsafe { pager.fork_child() } {
        // Evicted memory would read as zeros: rather no child than a wrong one.
        end_child("a forked child cannot manage its memory: ", Piece::Error(errno));
    }
    let own = open_unnamed(&runtime.process.child_folders).and_then(|file| {
        let (_, all) = file.file_system_bytes()?;
        Ok(FileDevice::new(file)?.with_floor(runtime.config.floor_of(all)))
    });
    let own: Box<dyn Device> = Box::new(own.unwrap_or_else(|errno| {
        end_child("a forked child has no store of its own: ", Piece::Error(errno))
    }));
    if let Err(error) = pager.store().become_child(own) {
        let error = error.to_string();
        end_child("a forked child cannot use the store: ", Piece::Text(&error));
    }
    // No worker of the parent is here.
    pager.workers.begin_without();
    pager.open_after_fork(table_device(runtime));
    workers::start_in_child(runtime);
}

fn end_child(problem: &str, reason: Piece<'_>) -> ! {
    say!(problem, reason, "; it ends here");
    std::process::abort()
}
