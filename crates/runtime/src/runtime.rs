//! Runtime: the one heap of this process, and what serves it.
//!
//! This file is the parts alone. Other files work with them: `start`, `growth`,
//! `switch`, `release`, `allocate`, `fork`, `workers`.
//!
//! ```text
//!   no runtime ──first allocation──► plain ──committed pages would pass the budget──► managing
//!              [start]                     [switch]
//! ```
//!
//! Plain: ordinary anonymous memory, no store, no worker, no signal handler. Managing: a store is
//! open, spans are registered with userfaultfd, workers run. There is no way back.
//!
//! Guarantees: the runtime, once published, and its pager live as long as the process.
//! Never: starts, grows or switches anything by itself.
//! Threads: any. `growth` serialises the slow path; it is never held while managed memory is
//! touched, and signals are blocked while it is held.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::path::PathBuf;

use deepheap_heap::{Heap, PAGE, PageNo, SPAN};
use deepheap_pager::Pager;
use deepheap_sys::errno::Errno;
use deepheap_sys::files::own_descriptor::OwnDescriptor;
use deepheap_sys::memory::mapping;
use deepheap_sys::threads::lock::{Guard, Lock};
use deepheap_sys::threads::signals::open_fault_signal;
use deepheap_sys::threads::thread::ThreadId;
use deepheap_sys::threads::{cancellation, tls};

use crate::control::stall_share::StallShare;
use crate::durable::state::Durable;
use crate::memory::area_table::Areas;
use crate::process::parent::Parent;
use crate::process::provision::Provision;
use crate::settings::config::{Config, OPEN_MAX};
use crate::stats::page::StatsPage;
use crate::stats::trace_recorder::TraceRecorder;
use crate::stats::{allocations, profile};

/// Address space of the heap: the widest that 30 bits of page number can name.
pub(crate) const REGION_BYTES: usize = 1 << 42;
/// Where the region goes if nobody is there yet: below the usual mmap area, above the usual heap.
const REGION_HINT: usize = 0x2000_0000_0000;

/// Blocks granted to memory pages, or to objects, at a time; as many stay granted without a use.
pub(crate) const GRANT_BLOCKS: usize = 4096;

/// The heap of the process and what serves it.
pub(crate) struct Runtime {
    pub(crate) config: Config,
    pub(crate) heap: Heap,
    pub(crate) stats: &'static StatsPage,
    pub(crate) region_base: usize,
    pager: AtomicPtr<Pager>,
    pub(crate) growth: Lock<Growth>,
    pub(crate) returning: Returning,
    pub(crate) threads: Threads,
    /// The part of its run time that the program waits in faults.
    pub(crate) stalls: Lock<StallShare>,
    pub(crate) process: OfProcess,
    /// The further state of a heap that outlives the process.
    pub(crate) durable: Option<Durable>,
}

/// What only the heap of the process has: that of `malloc`.
#[derive(Default)]
pub(crate) struct OfProcess {
    /// Where the store of a forked child may lie: a child does not look at its environment, which
    /// may be memory of the heap, before it has one.
    pub(crate) child_folders: Vec<PathBuf>,
    /// The process that started, not a forked child of it.
    pub(crate) first: u32,
    /// The program's own mappings; locked before `growth`.
    pub(crate) areas: Lock<Areas>,
    /// Bytes of the budget that durable heaps have.
    pub(crate) lent: AtomicUsize,
    pub(crate) trace: TraceRecorder,
    pub(crate) parent: Parent,
}

/// How far what was freed is given back (`release`).
#[derive(Default)]
pub(crate) struct Returning {
    /// Looks that the collector still takes for space to give back to the device.
    pub(crate) looks_left: AtomicU32,
    /// Frees of objects until chunks with pinned pages are looked at again.
    pub(crate) idle_pause: AtomicUsize,
}

/// The workers of a heap.
#[derive(Default)]
pub(crate) struct Threads {
    /// Those that have not ended.
    pub(crate) running: AtomicUsize,
    /// How many of `workers::others` were started.
    pub(crate) others_started: AtomicUsize,
    /// Evictors that help, running or about to.
    pub(crate) helpers: AtomicUsize,
    /// A helper was started and does not run yet.
    pub(crate) helper_comes: AtomicBool,
    /// When the system had no room for one more, or 0.
    pub(crate) helper_refused_ns: AtomicU64,
    /// All that were started for a durable heap; its close waits for their end.
    pub(crate) to_join: Lock<Vec<ThreadId>>,
}

impl Threads {
    /// In a forked child, where those of the parent do not exist.
    pub(crate) fn begin_anew(&self) {
        for count in [&self.running, &self.others_started, &self.helpers] {
            count.store(0, Ordering::Relaxed);
        }
        self.helper_comes.store(false, Ordering::Relaxed);
    }
}

/// The state of the slow path of allocation.
pub(crate) struct Growth {
    /// Spans that the heap may use.
    pub(crate) spans: usize,
    /// Going beyond RAM failed once, for a reason that was logged; it is not tried again.
    pub(crate) refused: bool,
    /// The files of the switch, if they were opened before it.
    pub(crate) provision: Option<Provision>,
}

static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(core::ptr::null_mut());
static START: Lock<()> = Lock::new(());

/// The runtime, if the process has one.
#[inline]
pub(crate) fn running() -> Option<&'static Runtime> {
    // SAFETY: set once to a leaked box, never freed.
    unsafe { RUNTIME.load(Ordering::Acquire).as_ref() }
}

/// The runtime whose heap the address lies in; if none is, that of `malloc`.
#[inline]
pub(crate) fn running_at(address: usize) -> Option<&'static Runtime> {
    durable_at(address).or_else(running)
}

/// The open durable heaps. A null is free.
static DURABLE: [AtomicPtr<Runtime>; OPEN_MAX] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; OPEN_MAX];
/// How many places of `DURABLE` were ever used.
static DURABLE_USED: AtomicUsize = AtomicUsize::new(0);
/// Held while a durable heap is opened or closed.
static DURABLE_CHANGING: Lock<()> = Lock::new(());

/// Whether a durable heap was opened in this process.
#[inline]
pub(crate) fn is_durable_open() -> bool {
    DURABLE_USED.load(Ordering::Acquire) != 0
}

/// The durable heap that the address lies in.
#[inline]
pub(crate) fn durable_at(address: usize) -> Option<&'static Runtime> {
    let used = DURABLE_USED.load(Ordering::Acquire);
    if used == 0 {
        return None;
    }
    durable_heaps(used).find(|runtime| runtime.heap.contains(address))
}

/// Whether this process has the durable heap open. Does not touch it: it may have been dropped.
pub(crate) fn is_open(runtime: *const Runtime) -> bool {
    let used = DURABLE_USED.load(Ordering::Acquire);
    DURABLE[..used].iter().any(|open| open.load(Ordering::Acquire).cast_const() == runtime)
}

fn durable_heaps(used: usize) -> impl Iterator<Item = &'static Runtime> {
    // SAFETY: a heap is taken out of the list before it is dropped, when the program uses it no
    // more.
    DURABLE[..used].iter().filter_map(|open| unsafe { open.load(Ordering::Acquire).as_ref() })
}

/// The right to open and close durable heaps.
pub(crate) struct DurableHeld(#[expect(dead_code, reason = "held")] Guard<'static, ()>);

/// Waits for the right to open and close durable heaps.
pub(crate) fn hold_durable() -> DurableHeld {
    DurableHeld(DURABLE_CHANGING.lock())
}

/// The same; none while another thread has it.
pub(crate) fn try_hold_durable() -> Option<DurableHeld> {
    DURABLE_CHANGING.try_lock().map(DurableHeld)
}

impl DurableHeld {
    /// All that are open; none of them is closed meanwhile.
    pub(crate) fn heaps(&self) -> impl Iterator<Item = &'static Runtime> {
        durable_heaps(DURABLE_USED.load(Ordering::Acquire))
    }

    /// Whether as many are open as can be.
    pub(crate) fn is_full(&self) -> bool {
        self.heaps().count() == OPEN_MAX
    }

    /// Lists one that is open now.
    pub(crate) fn add(&self, runtime: &'static Runtime) {
        let is_free = |open: &AtomicPtr<Runtime>| open.load(Ordering::Relaxed).is_null();
        let Some(place) = DURABLE.iter().position(is_free) else { return };
        DURABLE[place].store(core::ptr::from_ref(runtime).cast_mut(), Ordering::Release);
        DURABLE_USED.fetch_max(place + 1, Ordering::AcqRel);
    }

    /// Takes one out of the list.
    pub(crate) fn remove(&self, runtime: &'static Runtime) {
        for open in &DURABLE {
            if open.load(Ordering::Relaxed).cast_const() == core::ptr::from_ref(runtime) {
                open.store(core::ptr::null_mut(), Ordering::Release);
            }
        }
    }
}

/// In a forked child: it has no durable heaps.
///
/// # Safety
/// The child has one thread, which is here.
pub(crate) unsafe fn forget_durable() {
    // SAFETY: the caller's promise.
    unsafe { DURABLE_CHANGING.force_unlock() };
    for runtime in hold_durable().heaps() {
        if let Some(durable) = &runtime.durable {
            // SAFETY: nothing here uses the file any more; the child's copy of the descriptor would
            // keep it locked.
            drop(unsafe { OwnDescriptor::take_back(durable.descriptor) });
        }
    }
    for open in &DURABLE {
        open.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// Keeps others from starting the runtime: during a start, and across a fork.
pub(crate) fn hold_start() -> Guard<'static, ()> {
    START.lock()
}

impl Runtime {
    /// A heap without a page, and a statistics page; nobody else sees them yet.
    pub(crate) fn new(config: Config, child_folders: Vec<PathBuf>) -> Result<Runtime, Errno> {
        let region_base = mapping::reserve(REGION_BYTES, SPAN, REGION_HINT)? as usize;
        let stats = StatsPage::create()
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        let runtime = Self::in_region(config, stats, (region_base, REGION_BYTES), None)?;
        if profile::learn_number() {
            allocations::begin();
        }
        let (first, parent) = (std::process::id(), Parent::of_environment());
        let process = OfProcess { child_folders, first, parent, ..OfProcess::default() };
        Ok(Runtime { process, ..runtime })
    }

    /// A runtime over a reserved region, without a pager so far: for a durable heap one that counts
    /// in the statistics of the process.
    pub(crate) fn in_region(
        config: Config,
        stats: &'static StatsPage,
        (region_base, region_len): (usize, usize),
        durable: Option<Durable>,
    ) -> Result<Runtime, Errno> {
        Ok(Runtime {
            heap: Heap::new(region_base, region_len)?,
            stats,
            region_base,
            pager: AtomicPtr::new(core::ptr::null_mut()),
            growth: Lock::new(Growth { spans: 0, refused: false, provision: None }),
            returning: Returning::default(),
            threads: Threads::default(),
            stalls: Lock::default(),
            process: OfProcess::default(),
            durable,
            config,
        })
    }

    /// The budget: what durable heaps have of it is not ours.
    pub(crate) fn ram(&self) -> usize {
        (self.config.ram as usize).saturating_sub(self.process.lent.load(Ordering::Relaxed))
    }

    /// The page of an address of the heap.
    pub(crate) fn page_of(&self, address: usize) -> PageNo {
        PageNo(((address - self.region_base) / PAGE) as u32)
    }

    /// Whether this is a durable heap that was opened for reading alone.
    pub(crate) fn is_read_only(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.is_read_only)
    }

    /// Makes this the runtime of the process. The caller holds the start.
    pub(crate) fn publish(&'static self, _start: &Guard<'static, ()>) {
        RUNTIME.store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// The pager, once the heap has outgrown RAM. Sequentially consistent for the sake of `holds`;
    /// on x86_64 that costs nothing.
    #[inline]
    pub(crate) fn pager(&self) -> Option<&'static Pager> {
        // SAFETY: set once to a leaked box, never freed.
        unsafe { self.pager.load(Ordering::SeqCst).as_ref() }
    }

    /// Ends plain mode for all threads that ask from now on. The caller holds `growth`.
    pub(crate) fn publish_pager(&self, pager: &'static Pager) {
        self.pager.store(core::ptr::from_ref(pager).cast_mut(), Ordering::SeqCst);
    }
}

/// Marks the thread as inside the runtime: what Rust's global allocator is asked for meanwhile
/// comes from pinned memory (`global_allocator`), and `std`'s calls of libc do not act on a pending
/// `pthread_cancel`. From its first time on the thread has SIGBUS open.
pub(crate) struct Inside(#[expect(dead_code, reason = "ends when dropped")] cancellation::Off);

impl Inside {
    pub(crate) fn enter() -> Inside {
        open_fault_signal();
        // SAFETY: the area belongs to this thread.
        unsafe { (*tls::area()).depth += 1 };
        Inside(cancellation::Off::begin())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: the area belongs to this thread, and `enter` has counted up.
        unsafe { (*tls::area()).depth -= 1 };
    }
}
