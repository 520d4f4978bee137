//! Runtime: the one heap of this process, from plain memory to memory deeper than RAM.
//!
//! ```text
//!   no runtime ──first allocation──► plain ──committed pages would pass the budget──► managing
//! ```
//!
//! Plain: ordinary anonymous memory, no store, no worker, no signal handler. Managing: a store is
//! open, spans are registered with userfaultfd, workers run. There is no way back.
//!
//! Guarantees: an allocation that could not be spilled fails with ENOMEM; the switch to managing
//! loses nothing and moves nothing.
//! Never: frees what the process may still use; the runtime lives as long as the process.
//! Threads: any. `growth` serialises the slow path; it is never held while managed memory is
//! touched, and signals are blocked while it is held.

use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::path::{Path, PathBuf};

use deepheap_heap::{
    FreedRun, Heap, ObjectShortage, PAGE, PAGES_PER_SPAN, SPAN, Shortage, SpanRange,
};
use deepheap_pager::{Options, Pager, StartError, overhead_of_managing};
use deepheap_store::{FileDevice, Options as StoreOptions, Store, StoreError, VictimPolicy};
use deepheap_sys::direct_file::{DirectFile, Existing, file_system_is_memory};
use deepheap_sys::errno::Errno;
use deepheap_sys::lock::{Guard, Lock};
use deepheap_sys::log::{Piece, say};
use deepheap_sys::mapping::{self, Advice};
use deepheap_sys::signals::Blocked;
use deepheap_sys::{fault_signal, tls};

use crate::config::{Config, ConfigError, SEGMENT_MIN_BYTES};
use crate::doctor::{self, Finding};
use crate::machine::Machine;
use crate::object_placement::SITES_OF_PROCESS;
use crate::stats_page::StatsPage;
use crate::store_place::{StorePlace, StorePlaceError};
use crate::{children, fault_handler, holds, process, workers};

/// Address space of the heap: the widest that 30 bits of page number can name.
pub(crate) const REGION_BYTES: usize = 1 << 42;
/// Where the region goes if nobody is there yet: below the usual mmap area, above the usual heap.
const REGION_HINT: usize = 0x2000_0000_0000;
/// Pages granted to the heap at a time.
const GRANT_PAGES: usize = 4096;
/// Blocks of the store granted to objects at a time.
const GRANT_BLOCKS: u64 = 4096;
/// Free pages with old bytes that plain mode keeps for reuse, at least.
const DIRTY_PAGES_LEAST: usize = 4096;
/// Fruitless looks after which there is nothing more to give back.
const RETURN_LOOKS: u32 = 8;
/// Segments in memory, open or on their way to the device.
const SEGMENT_BUFFERS: core::ops::RangeInclusive<u64> = 4..=8;
/// Segments that only collection may take.
const RESERVE_SEGMENTS: u32 = 8;

/// Parts of the budget of which a segment is one at most; up to eight are in memory, which are a
/// 32nd of the budget then (below 64 MiB, where segments do not get smaller, a 16th at most).
const BUDGET_PER_SEGMENT: u64 = 256;

/// Why deepheap could not start. The text says what to do.
#[derive(Debug)]
pub enum InitError {
    /// It has started already: with `init`, or by an allocation.
    Started,
    /// The settings make no sense.
    Config(ConfigError),
    /// There is nowhere to put the store.
    Store(StorePlaceError),
    /// The kernel lacks or forbids something without which memory cannot be managed.
    Kernel(Finding),
    /// No address space or memory for the heap's tables.
    Resources(Errno),
}

impl fmt::Display for InitError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitError::Started => out.write_str(
                "deepheap has started already: call init before the first allocation, and once",
            ),
            InitError::Config(error) => error.fmt(out),
            InitError::Store(error) => error.fmt(out),
            InitError::Kernel(finding) => finding.fmt(out),
            InitError::Resources(errno) => write!(
                out,
                "no address space for the heap ({errno}): raise `ulimit -v`, and set \
                 vm.overcommit_memory to 0 or 1",
            ),
        }
    }
}

impl core::error::Error for InitError {}

/// Why the heap cannot grow beyond RAM.
#[derive(Debug)]
enum ManageError {
    Place(StorePlaceError),
    Open(deepheap_sys::direct_file::OpenError),
    Store(StoreError),
    Start(StartError),
    Signal(Errno),
}

/// The heap of the process and what serves it.
pub(crate) struct Runtime {
    pub(crate) config: Config,
    /// Where the store of a forked child may lie: a child does not look at its environment, which
    /// may be memory of the heap, before it has one.
    pub(crate) child_folders: Vec<PathBuf>,
    /// The process that started, not a forked child of it.
    pub(crate) first_process: u32,
    pub(crate) heap: Heap,
    pub(crate) stats: &'static StatsPage,
    pub(crate) region_base: usize,
    pager: AtomicPtr<Pager>,
    pub(crate) growth: Lock<Growth>,
    /// Looks that the collector still takes for space to give back to the device.
    space_to_return: AtomicU32,
    /// Frees of objects until chunks with pinned pages are looked at again.
    idle_pause: AtomicUsize,
}

/// What the slow path of allocation keeps track of.
pub(crate) struct Growth {
    /// Spans that the heap may use.
    spans: usize,
    /// Going beyond RAM failed once, for a reason that was logged; it is not tried again.
    refused: bool,
}

static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(core::ptr::null_mut());
static START: Lock<()> = Lock::new(());
static START_FAILED: AtomicU32 = AtomicU32::new(0);

/// The runtime, if the process has one.
#[inline]
pub(crate) fn running() -> Option<&'static Runtime> {
    // SAFETY: set once to a leaked box, never freed.
    unsafe { RUNTIME.load(Ordering::Acquire).as_ref() }
}

/// Keeps others from starting the runtime, across a fork.
pub(crate) fn hold_start() -> Guard<'static, ()> {
    START.lock()
}

/// The runtime, started from the environment if need be. None if that failed, for a reason that was
/// logged; the caller answers ENOMEM.
#[cold]
pub(crate) fn start_from_environment() -> Option<&'static Runtime> {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    let attached = process::attach();
    let _start = START.lock();
    if let Some(runtime) = running() {
        return Some(runtime);
    }
    if START_FAILED.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let started = attached
        .map_err(InitError::Resources)
        .and_then(|()| Config::from_environment().map_err(InitError::Config))
        .and_then(start);
    if let Err(error) = &started {
        START_FAILED.store(1, Ordering::Relaxed);
        say(&[Piece::Text(&error.to_string())]);
    }
    started.ok()
}

/// Starts with these settings. The store and the kernel are checked at once; the store is opened
/// when it is needed.
pub fn init(config: Config) -> Result<(), InitError> {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    process::attach().map_err(InitError::Resources)?;
    let _start = START.lock();
    if running().is_some() {
        return Err(InitError::Started);
    }
    config.check(Machine::read()).map_err(InitError::Config)?;
    StorePlace::find(&config).map_err(InitError::Store)?;
    if let Some(finding) = doctor::first_obstacle() {
        return Err(InitError::Kernel(finding));
    }
    start(config).map(|_| ())
}

fn start(mut config: Config) -> Result<&'static Runtime, InitError> {
    // Segment buffers count against the budget: small budgets have small ones.
    let most = (config.ram / BUDGET_PER_SEGMENT).max(SEGMENT_MIN_BYTES);
    while config.segment_bytes > most {
        config.segment_bytes /= 2;
    }
    let parts = || -> Result<Runtime, Errno> {
        let region_base = mapping::reserve(REGION_BYTES, SPAN, REGION_HINT)? as usize;
        Ok(Runtime {
            heap: Heap::new(region_base, REGION_BYTES)?,
            stats: StatsPage::create()
                .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::ENOMEM)))?,
            region_base,
            child_folders: child_folders(&config),
            first_process: std::process::id(),
            pager: AtomicPtr::new(core::ptr::null_mut()),
            space_to_return: AtomicU32::new(0),
            idle_pause: AtomicUsize::new(0),
            growth: Lock::new(Growth { spans: 0, refused: false }),
            config,
        })
    };
    let runtime = Box::leak(Box::new(parts().map_err(InitError::Resources)?));
    runtime.heap.set_pool_step(runtime.config.pool_step as usize);
    runtime.publish_gauges();
    RUNTIME.store(runtime, Ordering::Release);
    Ok(runtime)
}

/// Marks the thread as inside the runtime: what Rust's global allocator is asked for meanwhile
/// comes from pinned memory (`global_allocator`).
pub(crate) struct Inside;

impl Inside {
    pub(crate) fn enter() -> Inside {
        // SAFETY: the area belongs to this thread.
        unsafe { (*tls::area()).depth += 1 };
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: the area belongs to this thread, and `enter` has counted up.
        unsafe { (*tls::area()).depth -= 1 };
    }
}

impl Runtime {
    /// The pager, once the heap has outgrown RAM. Sequentially consistent for the sake of `holds`;
    /// on x86_64 that costs nothing.
    #[inline]
    pub(crate) fn pager(&self) -> Option<&'static Pager> {
        // SAFETY: set once to a leaked box, never freed.
        unsafe { self.pager.load(Ordering::SeqCst).as_ref() }
    }

    /// Relieves a shortage of the heap, or answers that there is no memory (false).
    pub(crate) fn relieve(&'static self, shortage: Shortage) -> bool {
        let _inside = Inside::enter();
        let _blocked = Blocked::all();
        let mut growth = self.growth.lock();
        let relieved = match shortage {
            Shortage::TooLarge => false,
            Shortage::Pages(pages) => self.grant(&mut growth, pages),
            Shortage::Spans(spans) => self.add_spans(&mut growth, spans),
        };
        self.publish_gauges();
        relieved
    }

    /// Grants the heap `missing` more pages, and some to spare where that is free.
    fn grant(&'static self, growth: &mut Growth, missing: usize) -> bool {
        if self.pager().is_none() {
            let limit = self.plain_pages();
            let granted = self.heap.granted_pages();
            if granted + missing <= limit {
                self.heap.grant(missing.max(GRANT_PAGES).min(limit - granted));
                return true;
            }
            let before = self.heap.committed_pages();
            self.purge(0);
            if self.heap.committed_pages() + missing <= before {
                return true; // what was purged is as good as granted
            }
            if !self.manage(growth) {
                return false;
            }
        }
        let Some(pager) = self.pager() else { return false };
        if self.grant_from_store(pager, missing.max(GRANT_PAGES))
            || self.grant_from_store(pager, missing)
        {
            return true;
        }
        // What dead children withheld can be promised again.
        children::forget_the_dead(pager.store());
        if self.grant_from_store(pager, missing) {
            return true;
        }
        // What objects were granted and do not use.
        self.return_idle_objects(pager);
        pager.store().unreserve(self.heap.revoke_object_blocks(u64::MAX));
        if self.grant_from_store(pager, missing) {
            return true;
        }
        // Free pages that kept their bytes for reuse hold a part of the grant.
        let before = self.heap.committed_pages();
        self.purge(0);
        self.heap.committed_pages() + missing <= before
    }

    /// Grants `pages` if the store can promise to hold them and the budget their tables.
    fn grant_from_store(&self, pager: &Pager, pages: usize) -> bool {
        let promised =
            pager.has_room_for_tables(pages) && pager.store().reserve(pages as u64).is_ok();
        if promised {
            self.heap.grant(pages);
            pager.rebalance();
        }
        promised
    }

    /// Whether the store or, in plain mode, RAM beside it could hold as many pages if all else were
    /// free. Address space costs metadata: it is not spent on what can never be.
    fn could_hold(&self, pages: usize) -> bool {
        let most = match self.pager() {
            Some(pager) => pager.store().stats().reservable_blocks,
            None => {
                let place = StorePlace::find(&self.config).ok();
                let capacity = place.and_then(|place| place.capacity_bytes(&self.config));
                capacity.map_or(u64::MAX, |bytes| bytes / PAGE as u64)
            }
        };
        let tables_bytes = pages.saturating_mul(Pager::BYTES_PER_PAGE);
        pages as u64 <= most.max(self.plain_pages() as u64)
            && tables_bytes <= self.config.ram as usize
    }

    fn add_spans(&'static self, growth: &mut Growth, count: usize) -> bool {
        // All of them but the last are needed whole.
        if count > 1 && !self.could_hold((count - 1) * PAGES_PER_SPAN) {
            return false;
        }
        let usable = self.begin_spans(growth, count, |range| match self.pager() {
            Some(pager) => pager.manage(range.first, range.count),
            None => Ok(()),
        });
        let Some(range) = usable else { return false };
        self.heap.publish_spans(range);
        true
    }

    /// Makes `count` consecutive spans usable, as `manage` sees to; none if that is not to be had.
    fn begin_spans(
        &self,
        growth: &mut Growth,
        count: usize,
        manage: impl FnOnce(SpanRange) -> Result<(), Errno>,
    ) -> Option<SpanRange> {
        let range = self.heap.begin_spans(count)?;
        let address = self.region_base + range.first * SPAN;
        // SAFETY: our own reservation, not in use by anyone yet.
        let usable = unsafe {
            mapping::commit(address as *mut u8, range.count * SPAN).and_then(|()| {
                // Huge pages would be charged to the budget whole and could only leave it whole.
                mapping::advise(address as *mut u8, range.count * SPAN, Advice::NoHugePage)
            })
        };
        match usable.and_then(|()| manage(range)) {
            Ok(()) => {
                growth.spans = growth.spans.max(range.first + range.count);
                Some(range)
            }
            Err(errno) => {
                say(&[Piece::Text("the heap cannot grow: "), Piece::Error(errno)]);
                self.heap.abandon_spans(range);
                None
            }
        }
    }

    /// Relieves a shortage of objects, or answers that there is no memory (false). Objects are
    /// managed from birth: the first one ends plain mode.
    pub(crate) fn relieve_objects(&'static self, shortage: ObjectShortage) -> bool {
        let _inside = Inside::enter();
        let _blocked = Blocked::all();
        let mut growth = self.growth.lock();
        let hopeless = matches!(shortage, ObjectShortage::TooLarge);
        if hopeless || (self.pager().is_none() && !self.manage(&mut growth)) {
            return false;
        }
        let Some(pager) = self.pager() else { return false };
        let relieved = match shortage {
            ObjectShortage::TooLarge => false,
            ObjectShortage::Spans(count) => {
                pager.has_room_for_objects(count)
                    && self
                        .begin_spans(&mut growth, count, |range| {
                            pager.manage_objects(range.first, range.count)
                        })
                        .is_some_and(|range| {
                            self.heap.add_object_spans(range);
                            pager.rebalance();
                            true
                        })
            }
            ObjectShortage::Blocks(blocks) => self.grant_blocks(pager, blocks),
        };
        self.publish_gauges();
        relieved
    }

    /// Ends plain mode if it lasts; false if that is not to be had.
    pub(crate) fn ensure_managing(&'static self) -> bool {
        if self.pager().is_some() {
            return true;
        }
        let _inside = Inside::enter();
        let _blocked = Blocked::all();
        let mut growth = self.growth.lock();
        self.pager().is_some() || self.manage(&mut growth)
    }

    /// Grants objects `missing` more blocks of the store, and some to spare if they can be had.
    fn grant_blocks(&'static self, pager: &Pager, missing: u64) -> bool {
        let grant = |blocks: u64| {
            let promised = pager.store().reserve(blocks).is_ok();
            if promised {
                self.heap.grant_object_blocks(blocks);
            }
            promised
        };
        if grant(missing.max(GRANT_BLOCKS)) || grant(missing) {
            return true;
        }
        children::forget_the_dead(pager.store());
        if grant(missing) {
            return true;
        }
        let before = self.free_object_blocks();
        self.return_idle_objects(pager);
        if self.free_object_blocks() >= before + missing || grant(missing) {
            return true;
        }
        // What memory pages were granted and do not use.
        self.purge(0);
        pager.store().unreserve(self.heap.revoke(usize::MAX) as u64);
        grant(missing)
    }

    /// Blocks granted to objects that no chunk of them needs. A snapshot.
    fn free_object_blocks(&self) -> u64 {
        self.heap.granted_object_blocks().saturating_sub(self.heap.used_object_blocks())
    }

    /// Has pools part with the chunks without an object that they keep for the next one.
    fn return_idle_objects(&self, pager: &Pager) {
        self.heap.retire_empty_pools();
        self.end_idle_objects(pager);
    }

    /// After a free: ends chunks of objects that nobody uses any more. Those with pinned pages were
    /// looked at in vain: again after as many frees as they have pages, so that a free pays for a
    /// page of them at most.
    pub(crate) fn end_idle_objects_in_turn(&self, pager: &Pager) {
        match self.idle_pause.load(Ordering::Relaxed) {
            0 => self.end_idle_objects(pager),
            // Others count down as well: a hint.
            pause => self.idle_pause.store(pause - 1, Ordering::Relaxed),
        }
    }

    fn end_idle_objects(&self, pager: &Pager) {
        const PINNED_MAX: usize = 8;
        let mut pinned = [None; PINNED_MAX];
        let mut count = 0;
        while count < PINNED_MAX
            && let Some(idle) = self.heap.take_idle_objects()
        {
            if pager.discard_resident(idle.run()) {
                pinned[count] = Some(idle);
                count += 1;
            } else {
                self.heap.recycle_objects(idle, false);
                self.expect_space_to_return(pager);
            }
        }
        let pinned = pinned.into_iter().flatten();
        self.idle_pause.store(pinned.clone().map(|idle| idle.pages).sum(), Ordering::Relaxed);
        pinned.for_each(|idle| self.heap.recycle_objects(idle, true));
    }

    /// Pages that fit in RAM together with what managing them would add.
    fn plain_pages(&self) -> usize {
        let budget = self.config.ram as usize;
        // One more for the collector, which reads a segment at a time.
        let store = (self.segment_buffers() + 1) * self.config.segment_bytes as usize;
        let overhead = overhead_of_managing(budget) + store + self.heap.metadata_bytes();
        budget.saturating_sub(overhead) / PAGE
    }

    /// Segments in memory: a sixteenth of the budget, within limits.
    fn segment_buffers(&self) -> usize {
        let sixteenth = self.config.ram / 16 / self.config.segment_bytes;
        sixteenth.clamp(*SEGMENT_BUFFERS.start(), *SEGMENT_BUFFERS.end()) as usize
    }

    /// Gives the memory of free pages back while more than `keep` of them hold old bytes.
    fn purge(&self, keep: usize) {
        while let Some(run) = self.heap.take_purgeable(keep) {
            let stays = match self.pager() {
                Some(pager) => pager.discard_resident(run),
                None => !self.drop_plain(run),
            };
            self.heap.recycle(run, stays);
            if stays {
                return;
            }
        }
    }

    /// Notes that much was freed: the collector gives space of the store back at leisure.
    pub(crate) fn expect_space_to_return(&self, pager: &Pager) {
        if self.space_to_return.swap(RETURN_LOOKS, Ordering::Relaxed) == 0 {
            pager.store().call_collector();
        }
    }

    pub(crate) fn has_space_to_return(&self) -> bool {
        self.space_to_return.load(Ordering::Relaxed) > 0
    }

    /// Collector: takes back what was granted and is not used any more, and gives space that has
    /// been free for a while back to the device (discard later: live bytes went down at the free).
    pub(crate) fn return_space(&self, pager: &Pager) {
        if !self.has_space_to_return() {
            return;
        }
        let (pages, blocks) = self.heap.try_revoke_but(GRANT_PAGES, GRANT_BLOCKS);
        pager.store().unreserve(pages as u64 + blocks);
        if pager.store().discard_idle() == 0 {
            self.space_to_return.fetch_sub(1, Ordering::Relaxed);
        }
        self.publish_gauges();
    }

    /// Plain mode: gives the memory of a run back, which nobody needs the bytes of; false if the
    /// kernel refuses.
    fn drop_plain(&self, run: FreedRun) -> bool {
        let address = self.region_base + run.first.0 as usize * PAGE;
        // SAFETY: our own memory, in quarantine, just allocated, or given up by the program.
        unsafe { mapping::advise(address as *mut u8, run.pages * PAGE, Advice::DontNeed).is_ok() }
    }

    /// Drops what the pages of a run hold, which the program does not know yet or has given up;
    /// false if some of it may be left.
    pub(crate) fn drop_old_bytes(&self, run: FreedRun) -> bool {
        if let Some(pager) = self.pager() {
            return !pager.discard_resident(run);
        }
        // As in `purge_surplus`.
        let _blocked = Blocked::all();
        let Some(_growth) = self.growth.try_lock() else { return false };
        self.pager().is_none() && self.drop_plain(run)
    }

    /// Plain mode: keeps free memory within an eighth of what is in use.
    pub(crate) fn purge_surplus(&self) {
        let keep = DIRTY_PAGES_LEAST.max(self.heap.committed_pages() / 8);
        if self.heap.dirty_free_pages() <= keep {
            return;
        }
        // Under the growth lock, so that plain mode lasts as long as we take its word. A handler of
        // the program that forked meanwhile would want it.
        let _blocked = Blocked::all();
        let Some(_growth) = self.growth.try_lock() else { return };
        if self.pager().is_some() {
            return;
        }
        self.purge(keep);
    }

    /// From plain to managing.
    fn manage(&'static self, growth: &mut Growth) -> bool {
        if growth.refused {
            return false;
        }
        match self.try_manage(growth) {
            Ok(()) => true,
            Err(error) => {
                growth.refused = true;
                say(&[
                    Piece::Text("the heap cannot outgrow its RAM budget, allocations fail now: "),
                    Piece::Text(&error.to_string()),
                ]);
                false
            }
        }
    }

    fn try_manage(&'static self, growth: &Growth) -> Result<(), ManageError> {
        let place = StorePlace::find(&self.config).map_err(ManageError::Place)?;
        let device = FileDevice::new(open_store(&place, self.config.force)?)
            .map_err(|errno| ManageError::Open(errno.into()))?;
        let store = Store::open(Box::new(device), self.store_options(&place))
            .map_err(ManageError::Store)?;
        // What exists must be spillable, too.
        store.reserve(self.heap.granted_pages() as u64).map_err(ManageError::Store)?;
        let options = Options {
            region_base: self.region_base,
            region_pages: REGION_BYTES / PAGE,
            budget_bytes: self.config.ram as usize,
            page_buffer_bytes: self.page_buffer_bytes(),
            cache_policy: self.config.cache_policy,
            comes_alone: |address| SITES_OF_PROCESS.is_on_trial(address),
        };
        let pager = Pager::new(&options, &self.heap, store).map_err(ManageError::Start)?;
        fault_signal::install(fault_handler::on_fault).map_err(ManageError::Signal)?;
        let pager: &'static Pager = Box::leak(Box::new(pager));
        self.heap.report_free_pages(true);
        pager.begin_take_over(growth.spans, self.heap.committed_pages(), || {
            self.pager.store(core::ptr::from_ref(pager).cast_mut(), Ordering::SeqCst);
            holds::pin_early()
        });
        workers::start();
        pager.wake_evictor();
        Ok(())
    }

    fn store_options(&self, place: &StorePlace) -> StoreOptions {
        StoreOptions {
            segment_bytes: self.config.segment_bytes,
            capacity_bytes: place.capacity_bytes(&self.config).unwrap_or(u64::MAX),
            buffers: self.segment_buffers(),
            reserve_segments: RESERVE_SEGMENTS,
            policy: VictimPolicy::Greedy,
        }
    }

    fn page_buffer_bytes(&self) -> Option<usize> {
        let page_buffer = self.config.page_buffer?;
        Some(page_buffer.bytes_of(self.config.ram) as usize)
    }
}

/// Opens the store of a process: its own, nobody else's.
fn open_store(place: &StorePlace, force: bool) -> Result<DirectFile, ManageError> {
    let existing = if force { Existing::Overwrite } else { Existing::Refuse };
    match place {
        StorePlace::Folder(path) => {
            DirectFile::open_unlinked(path).map_err(|errno| ManageError::Open(errno.into()))
        }
        StorePlace::File(path) | StorePlace::Device(path) => {
            DirectFile::open_path(path, existing).map_err(ManageError::Open)
        }
    }
}

/// Where the settings want the store of a forked child: beside the parent's, or in $TMPDIR.
fn child_folders(config: &Config) -> Vec<PathBuf> {
    let beside = config.store.as_deref().and_then(|store| match store.is_dir() {
        true => Some(store.to_path_buf()),
        false => store.parent().map(Path::to_path_buf),
    });
    let temporary = std::env::var_os("TMPDIR").map(PathBuf::from);
    [beside, temporary].into_iter().flatten().collect()
}

/// A store for a forked child: an unlinked file in one of the folders, or where there is a disk.
/// The checks of a start do not fit: the parent's file is in use, and its space is taken.
pub(crate) fn open_store_of_child(folders: &[PathBuf]) -> Result<DirectFile, Errno> {
    let others = [std::env::current_dir().ok(), Some("/var/tmp".into())];
    let mut failure = Errno::ENOENT;
    for folder in folders.iter().cloned().chain(others.into_iter().flatten()) {
        // Memory is what the child is short of.
        if file_system_is_memory(&folder).unwrap_or(true) {
            continue;
        }
        match DirectFile::open_unlinked(&folder) {
            Ok(file) => return Ok(file),
            Err(errno) => failure = errno,
        }
    }
    Err(failure)
}

impl fmt::Display for ManageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManageError::Place(error) => error.fmt(out),
            ManageError::Open(error) => {
                write!(out, "the store cannot be opened ({error}): name another with --store")
            }
            ManageError::Store(error) => write!(out, "the store cannot be used: {error}"),
            ManageError::Start(StartError::Userfaultfd(errno)) => write!(
                out,
                "userfaultfd is not to be had ({errno}): allow the system call (seccomp profile \
                 of the container), or use Linux 5.14 or later; `deepheap doctor` tells more",
            ),
            ManageError::Start(StartError::Resources(errno)) => {
                write!(out, "no memory or file descriptors for the tables ({errno})")
            }
            ManageError::Signal(errno) => write!(out, "SIGBUS cannot be handled ({errno})"),
        }
    }
}
