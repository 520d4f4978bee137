//! Durable: heaps whose file outlives the process, each a runtime of its own beside that of
//! `malloc`.
//!
//! A durable heap is managed from birth, at the address that its file names. A *checkpoint* makes
//! what it holds at one instant durable; opening it again gives what the last checkpoint held.
//!
//! ```text
//!   open ──► tables of the last checkpoint are loaded ──► in use ──checkpoint──► in use ... close
//! ```
//!
//! Guarantees: a segment that the last durable checkpoint names is not written again before the
//! next one is durable (a pin of the store). Who is told that a checkpoint is made finds it after a
//! crash of the process or the machine. A checkpoint that fails leaves the one before.
//! Never: in a forked child: the memory is not there.
//! Threads: any, outside the fault path; one checkpoint of a heap at a time. Lock order: the file,
//! then the cache, then as in a fork: growth, the heap, the gate.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use deepheap_heap::{PAGE, PAGES_PER_SPAN, SPAN, ThreadCache};
use deepheap_pager::{CheckpointBuffer, CutError, Options, Overcommit, Pager};
use deepheap_store::{
    DurableError, DurableFile, FileDevice, HeapShape, Identity, Options as StoreOptions, PinToken,
    SavedUpTo, Saving, Stamp, Store, WORDS,
};
use deepheap_sys::errno::Errno;
use deepheap_sys::lock::Lock;
use deepheap_sys::mapping::{self, Advice};
use deepheap_sys::signals::Blocked;
use deepheap_sys::{clock, fault_signal, handler_stack, thread};

use crate::config::{Config, RAM_MIN_BYTES};
use crate::durable_error::{CheckpointError, OpenError};
use crate::durable_load::{
    OBJECT_TABLE, expect_tables, expected_tables, load_heap, open_store, right,
};
use crate::durable_location::{self, Found};
use crate::durable_options::DurableOptions;
use crate::durable_pins::DurablePins;
use crate::durable_state::Durable;
use crate::durable_worker::{Checkpoint, Marks, Requests, Why};
use crate::full_wait::FullWait;
use crate::heap_file::{HeapFile, read_key};
use crate::roots::Roots;
use crate::runtime::{Inside, Runtime, durable_at, hold_durable, is_open, running};
use crate::start::start_from_environment;
use crate::{durable_readers, fault_handler, workers};

/// Before the cut: passes over the objects that are in RAM. The second one finds what was changed
/// during the first.
const PASSES: usize = 2;
/// How often a cut is tried while the log or a system call is in the way, and the pause between.
const TRIES: u32 = 500;
const TRY_PAUSE: Duration = Duration::from_millis(2);
/// While a heap is being closed.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// A durable heap that is open.
#[derive(Clone, Copy)]
pub struct DurableHeap {
    runtime: &'static Runtime,
    durable: &'static Durable,
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn stamp(is_clean: bool) -> Stamp {
    Stamp { time: now(), is_clean, words: [0; WORDS] }
}

impl DurableHeap {
    /// Makes a durable heap in a new file, or opens that of an existing one as its last checkpoint
    /// left it. It gets a part of the RAM budget of the process.
    ///
    /// With `read_only` it opens the last checkpoint, or a snapshot, to be read, beside the process
    /// that writes the heap as well. To write to its memory is a SIGSEGV; nothing can be allocated,
    /// and what is freed stays.
    ///
    /// # Errors
    /// `OpenError` says what is wrong, and what to do.
    pub fn open(path: &Path, options: &DurableOptions) -> Result<DurableHeap, OpenError> {
        let _inside = Inside::enter();
        match options.read_only {
            true => durable_readers::until_steady(path, || Self::open_once(path, options)),
            false => Self::open_once(path, options),
        }
    }

    fn open_once(path: &Path, options: &DurableOptions) -> Result<DurableHeap, OpenError> {
        let main = running().or_else(start_from_environment).ok_or(OpenError::NotStarted)?;
        let changing = hold_durable();
        if changing.is_full() {
            return Err(OpenError::TooMany);
        }
        let whole = main.ram() as u64;
        let ram = options.ram.bytes_of(whole);
        if ram < RAM_MIN_BYTES || whole.saturating_sub(ram) < RAM_MIN_BYTES {
            return Err(OpenError::Ram { asked: ram, whole });
        }
        let config = options.config(ram);
        let (file, descriptor, made) = open_file(path, options, config.segment_bytes)?;
        let shape = file.shape();
        let (base, length) = (shape.region_base as usize, shape.region_len as usize);
        let config = Config { segment_bytes: shape.segment_bytes, ..config };
        let reserved = mapping::reserve(length, SPAN, base).map_err(OpenError::System)? as usize;
        if reserved != base {
            // SAFETY: just reserved, and nobody knows of it.
            let _ = unsafe { mapping::unmap(reserved as *mut u8, length) };
            return Err(OpenError::AddressTaken { base: base as u64, length: length as u64 });
        }
        // SAFETY: our own reservation.
        let opened = unsafe { mapping::advise(base as *mut u8, length, Advice::DontFork) }
            .map_err(OpenError::System)
            .and_then(|()| Self::load(main, path, options, config, file, descriptor));
        let runtime = match opened {
            Ok(runtime) => runtime,
            Err(error) => {
                // SAFETY: our own reservation, which nobody uses.
                let _ = unsafe { mapping::unmap(base as *mut u8, length) };
                return Err(error);
            }
        };
        made.stays();
        main.lend(runtime.ram());
        changing.add(runtime);
        workers::start(runtime);
        workers::spawn(runtime, c"deepheap-commit", make_checkpoints);
        Self::of(runtime).ok_or(OpenError::NotStarted)
    }

    /// The handle of an open heap's runtime.
    fn of(runtime: &'static Runtime) -> Option<DurableHeap> {
        Some(DurableHeap { runtime, durable: runtime.durable.as_ref()? })
    }

    /// The heap that an address lies in.
    pub fn at(address: *const u8) -> Option<DurableHeap> {
        durable_at(address as usize).and_then(Self::of)
    }

    /// What belongs to it and to no other heap.
    pub(crate) fn durable(&self) -> &'static Durable {
        self.durable
    }

    /// What serves it.
    pub(crate) fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// Whether it was opened for reading alone.
    pub fn is_read_only(&self) -> bool {
        self.durable.is_read_only
    }

    /// Makes a runtime of what a file holds.
    fn load(
        main: &'static Runtime,
        path: &Path,
        options: &DurableOptions,
        config: Config,
        file: DurableFile,
        descriptor: RawFd,
    ) -> Result<&'static Runtime, OpenError> {
        let shape = file.shape();
        let region = (shape.region_base as usize, shape.region_len as usize);
        let ram = config.ram as usize;
        let durable = Durable {
            path: path.to_owned(),
            descriptor,
            file: Lock::new((file, SavedUpTo::default())),
            cache: Lock::new(None),
            roots: Roots::default(),
            pins: Lock::default(),
            is_read_only: options.read_only,
            borrowed: ram,
            longest_pause_ns: AtomicU64::new(0),
            requests: Requests::default(),
            roots_set: AtomicU64::new(0),
            every: options.checkpoint.filter(|_| !options.read_only),
            full_wait: FullWait::default(),
        };
        let runtime = Runtime::in_region(config, main.stats, region, Some(durable));
        let runtime = Box::new(runtime.map_err(OpenError::System)?);
        // SAFETY: `Runtime::discard` takes it back if this fails, or at the close.
        let runtime: &'static Runtime = unsafe { &*Box::into_raw(runtime) };
        let loaded = runtime.load_durable();
        match loaded {
            Ok(()) => Ok(runtime),
            Err(error) => {
                // SAFETY: nobody else knows of it.
                unsafe { runtime.discard() };
                Err(error)
            }
        }
    }

    /// Allocates `size` bytes, byte-granular; null means ENOMEM.
    pub fn malloc(&self, size: usize) -> *mut u8 {
        self.runtime.malloc_durable(size, crate::allocate::ALIGN)
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two; null means ENOMEM.
    pub fn aligned_alloc(&self, align: usize, size: usize) -> *mut u8 {
        self.runtime.malloc_durable(size, align.max(crate::allocate::ALIGN))
    }

    /// Allocates `count` objects of `size` bytes, as [`crate::objects::allocate`] does; null means
    /// ENOMEM.
    pub fn allocate_objects(&self, count: usize, size: usize) -> *mut u8 {
        let (count, size) = if size == 0 { (1, 1) } else { (count.max(1), size) };
        let stride = crate::objects::stride(size);
        if count > 1 && stride < PAGE {
            return count.checked_mul(stride).map_or(core::ptr::null_mut(), |all| self.malloc(all));
        }
        if self.is_read_only() {
            return core::ptr::null_mut();
        }
        let _inside = Inside::enter();
        self.runtime.allocate_objects(count, size)
    }

    /// Gives a name to an address of the heap, for the next process; null takes the name away.
    ///
    /// # Errors
    /// EINVAL: no such name is possible, or the address is not of this heap; ENOSPC: there are too
    /// many names; EROFS: it was opened for reading alone.
    pub fn set_root(&self, name: &str, address: *const u8) -> Result<(), Errno> {
        if self.is_read_only() {
            return Err(Errno::EROFS);
        }
        let offset = match address as usize {
            0 => None,
            at if self.runtime.heap.contains(at) => Some((at - self.runtime.region_base) as u64),
            _ => return Err(Errno::EINVAL),
        };
        self.durable.roots_set.fetch_add(1, Ordering::Relaxed);
        self.durable.roots.set(name, offset)
    }

    /// The address that has this name; null if none has.
    pub fn root(&self, name: &str) -> *mut u8 {
        match self.durable.roots.get(name) {
            Some(offset) => (self.runtime.region_base + offset as usize) as *mut u8,
            None => core::ptr::null_mut(),
        }
    }

    /// Makes what the heap holds now durable. Threads that write to it are held up for a moment
    /// (`pause`); all others go on.
    ///
    /// # Errors
    /// `CheckpointError`; the last checkpoint is what it was then.
    pub fn checkpoint(&self) -> Result<Checkpoint, CheckpointError> {
        self.make_checkpoint(false)
    }

    fn make_checkpoint(&self, is_last: bool) -> Result<Checkpoint, CheckpointError> {
        self.make_checkpoint_if(is_last, None)?.ok_or(CheckpointError::Closed)
    }

    /// Makes one; none if the reason is none any more, once earlier ones were made.
    fn make_checkpoint_if(
        &self,
        is_last: bool,
        why: Option<Why>,
    ) -> Result<Option<Checkpoint>, CheckpointError> {
        if !self.is_open() {
            return Err(CheckpointError::Closed);
        }
        let _inside = Inside::enter();
        let begun_ns = clock::monotonic_ns();
        let pager = self.runtime.pager().ok_or(CheckpointError::Closed)?;
        if self.is_read_only() {
            return Err(DurableError::ReadOnly.into());
        }
        let mut file = self.durable.file.lock();
        let (file, saved_up_to) = &mut *file;
        if why == Some(Why::Asked) && self.durable.requests.are_served() {
            return Ok(None);
        }
        let buffer = pager.checkpoint_buffer();
        let mut made = Checkpoint::default();
        let _making = Making::begin(pager.store());
        for pass in 0..PASSES {
            made.objects += {
                // A handler of the program that faulted in between would wait for itself.
                let _blocked = Blocked::all();
                pager.write_changed(&buffer)?
            };
            let is_first = pass == 0 && why == Some(Why::Interval);
            if is_first && self.marks(pager) == self.durable.requests.marks() {
                return Ok(None);
            }
        }
        pager.store().seal_and_drain();
        let mut saving = file.begin()?;
        let mut tries = 0;
        let (pin, up_to, pause_ns) = loop {
            match self.cut(pager, &buffer, *saved_up_to, &mut saving, &mut made) {
                Err(CheckpointError::Cut(CutError::Busy | CutError::InUse)) if tries < TRIES => {
                    tries += 1;
                    thread::sleep(TRY_PAUSE);
                }
                cut => break cut?,
            }
        };
        made.table_bytes = saving.changed_bytes();
        // The checkpoint may become durable even if we are not told so: both stay.
        self.durable.pins.lock().add(pin, saving.checkpoint());
        made.number = saving.commit(stamp(is_last))?;
        *saved_up_to = up_to;
        self.durable.pins.lock().let_go(pager.store(), file, self.durable.descriptor);
        self.durable.longest_pause_ns.fetch_max(pause_ns, Ordering::Relaxed);
        made.pause = Duration::from_nanos(pause_ns);
        made.time = Duration::from_nanos(clock::monotonic_ns() - begun_ns);
        self.durable.full_wait.begin_anew();
        self.durable.requests.made(&made);
        Ok(Some(made))
    }

    fn marks(&self, pager: &Pager) -> Marks {
        let (heap, store) = (&self.runtime.heap, pager.store().stats());
        Marks {
            allocated_bytes: heap.allocated_bytes(),
            objects: heap.objects_live(),
            roots_set: self.durable.roots_set.load(Ordering::Relaxed),
            blocks_appended: store.blocks_appended_fresh,
            live_bytes: store.live_bytes,
        }
    }

    /// Whether this process has the heap open. A forked child does not.
    pub(crate) fn is_open(&self) -> bool {
        is_open(self.runtime)
    }

    /// What was asked of its checkpoints.
    pub(crate) fn requests(&self) -> &'static Requests {
        &self.durable.requests
    }

    /// Where its memory begins: the same in every process.
    pub fn base(&self) -> *mut u8 {
        self.runtime.region_base as *mut u8
    }

    /// The instant of a checkpoint. Answers the pin of what belongs to it, and how long it took.
    fn cut(
        &self,
        pager: &'static Pager,
        buffer: &CheckpointBuffer<'_>,
        since: SavedUpTo,
        saving: &mut Saving<'_>,
        made: &mut Checkpoint,
    ) -> Result<(PinToken, SavedUpTo, u64), CheckpointError> {
        let runtime = self.runtime;
        let _blocked = Blocked::all();
        let mut cache = self.durable.cache.lock();
        if let Some(cache) = cache.as_mut() {
            runtime.heap.flush(cache);
        }
        runtime.end_parked_runs();
        let _growth = runtime.growth.lock();
        let roots = self.durable.roots.hold();
        runtime.heap.fork_prepare();
        let begun_ns = clock::monotonic_ns();
        let done = (|| {
            let cut = pager.begin_cut(buffer)?;
            made.served = self.durable.requests.asked();
            made.objects += cut.write_changed()?;
            let store = pager.store();
            store.seal_and_drain();
            made.marks = self.marks(pager);
            if store.has_failed_writes() {
                let why = store.failure().unwrap_or(deepheap_store::StoreError::Full);
                return Err(CheckpointError::Cut(CutError::Store(why)));
            }
            let pin = store.pin_all().map_err(CutError::Store)?;
            let mut page = |table, page, bytes: &[u8]| saving.page(table, page, bytes);
            let saved = store.save(since, &mut page).and_then(|up_to| {
                let mut failed = Ok(());
                let mut page = |table, number, bytes: &[u8]| {
                    if failed.is_ok() {
                        failed = page(table, number, bytes);
                    }
                };
                cut.save_table(&mut |number, bytes| page(OBJECT_TABLE, number, bytes));
                runtime.heap.save(&mut page);
                roots.save(&mut page);
                failed.map(|()| up_to)
            });
            match saved {
                Ok(up_to) => Ok((pin, up_to)),
                Err(error) => {
                    store.unpin(pin);
                    Err(CheckpointError::from(error))
                }
            }
        })();
        let pause_ns = clock::monotonic_ns() - begun_ns;
        runtime.heap.after_fork();
        let (pin, up_to) = done?;
        Ok((pin, up_to, pause_ns))
    }

    /// The longest that a checkpoint has held threads up.
    pub fn longest_pause(&self) -> Duration {
        Duration::from_nanos(self.durable.longest_pause_ns.load(Ordering::Relaxed))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.durable.path
    }

    /// Makes a checkpoint and closes the heap: its memory is not there any more. It holds what was
    /// asked for as well. If the checkpoint fails the heap stays open. None is made of a heap that
    /// was opened for reading alone.
    ///
    /// # Errors
    /// As `checkpoint`.
    ///
    /// # Safety
    /// No thread uses the heap, its memory or this handle any more.
    pub unsafe fn close(self) -> Result<Checkpoint, CheckpointError> {
        if !self.is_open() {
            return Err(CheckpointError::Closed);
        }
        self.durable.requests.pause();
        let made = match self.is_read_only() {
            true => Checkpoint::default(),
            false => self.make_checkpoint(true).inspect_err(|_| self.durable.requests.go_on())?,
        };
        // SAFETY: the caller's promise.
        unsafe { self.abandon() };
        Ok(made)
    }

    /// Closes the heap without a checkpoint: what was changed since the last one is lost, and what
    /// was asked for and not begun.
    ///
    /// # Safety
    /// As `close`.
    pub unsafe fn abandon(self) {
        let _inside = Inside::enter();
        self.durable.requests.pause();
        self.durable.requests.end();
        let changing = hold_durable();
        while self.runtime.workers.load(Ordering::SeqCst) > 0 {
            if let Some(pager) = self.runtime.pager() {
                pager.end_work();
            }
            thread::sleep(CLOSE_PAUSE);
        }
        // They have ended, or are about to: their stacks go back.
        for thread in self.runtime.threads.lock().drain(..) {
            let _ = thread.join();
        }
        changing.remove(self.runtime);
        if let Some(main) = running() {
            main.take_back(self.durable.borrowed);
        }
        let (base, length) = (self.runtime.region_base, self.runtime.heap.region_bytes());
        // SAFETY: by the caller's promise nobody uses it; the workers have ended.
        unsafe {
            self.runtime.discard();
            let _ = mapping::unmap(base as *mut u8, length);
        }
    }
}

/// A checkpoint is being made, as the store sees it.
struct Making<'a>(&'a Store);

impl<'a> Making<'a> {
    fn begin(store: &'a Store) -> Making<'a> {
        store.make_checkpoint(true);
        Making(store)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.make_checkpoint(false);
    }
}

/// A file in which a heap was just made: it is again what it was, unless the heap can be opened.
struct Made<'a>(&'a Path, Found);

impl Made<'_> {
    fn stays(mut self) {
        self.1 = Found::Filled;
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        durable_location::restore(self.0, self.1);
    }
}

/// A worker's loop: makes the checkpoints that nobody makes himself.
fn make_checkpoints(runtime: &'static Runtime, _: &'static Pager) {
    let Some(heap) = DurableHeap::of(runtime) else { return };
    let name = heap.path().to_string_lossy();
    let make = |why| heap.make_checkpoint_if(false, Some(why));
    heap.requests().serve(heap.durable.every, &name, &make);
}

/// Opens the file of a heap, or makes it.
fn open_file<'a>(
    path: &'a Path,
    options: &DurableOptions,
    segment_bytes: u64,
) -> Result<(DurableFile, RawFd, Made<'a>), OpenError> {
    let key = options.key_file.as_deref().map(read_key).transpose()?;
    if options.read_only {
        let file = HeapFile { path, key };
        let (file, descriptor) = durable_readers::open(&file, options.snapshot.as_deref())?;
        expect_tables(&file)?;
        return Ok((file, descriptor, Made(path, Found::Filled)));
    }
    let (file, found) = durable_location::open(path)?;
    let descriptor = file.as_raw_fd();
    let device = Arc::new(FileDevice::new(file).map_err(OpenError::System)?);
    if found == Found::Filled {
        let file = DurableFile::open_with_key(device, key.as_ref())?;
        expect_tables(&file)?;
        return Ok((file, descriptor, Made(path, Found::Filled)));
    }
    let made = Made(path, found);
    let (region_len, capacity_bytes) = (options.size, options.capacity_bytes());
    let log = StoreOptions { segment_bytes, ..StoreOptions::new(capacity_bytes) };
    let shape = HeapShape {
        tables: expected_tables(region_len as usize, &log, key.is_some())?,
        region_base: options.base(),
        region_len,
        segment_bytes,
        capacity_bytes,
    };
    let (identity, stamp) = (Identity::random(), stamp(true));
    let created = DurableFile::create_with_key(device, shape, identity, stamp, key.as_ref())?;
    Ok((created, descriptor, made))
}

impl Runtime {
    /// Fills the tables from the file, and makes the pager.
    fn load_durable(&'static self) -> Result<(), OpenError> {
        let Some(durable) = &self.durable else { return Err(OpenError::NotStarted) };
        let mut file = durable.file.lock();
        let (file, saved_up_to) = &mut *file;
        let is_new = load_heap(file, &self.heap, &durable.roots)?;
        let shape = file.shape();
        let reserve = (shape.capacity_bytes / shape.segment_bytes / 64).clamp(3, 8);
        let (store, up_to) = open_store(file, self.segment_buffers(), reserve as u32)?;
        *saved_up_to = up_to;
        if !durable.is_read_only {
            *durable.pins.lock() = DurablePins::of_opened(&store, file, durable.descriptor)?;
            // All that is in RAM may have changed, and the cut writes some of it a second time.
            store.keep_for_checkpoint(self.ram() as u64 * 5 / 4);
            let blocks = self.heap.committed_pages() as u64 + self.heap.used_object_blocks();
            store.reserve(blocks).map_err(OpenError::Store)?;
        }
        let options = Options {
            region_base: self.region_base,
            region_pages: self.heap.region_bytes() / PAGE,
            budget_bytes: self.ram(),
            page_buffer_bytes: self.page_buffer_bytes(),
            overcommit: Overcommit::Strict,
            compress: self.config.compress,
            makes_checkpoints: true,
            follows_strides: self.config.strides,
            traces: false,
        };
        let pager = Pager::new(&options, &self.heap, store).map_err(OpenError::Start)?;
        handler_stack::limit(
            deepheap_pager::handler_stacks(options.budget_bytes),
            fault_handler::has_room_for_stack,
        );
        fault_signal::install(fault_handler::on_fault).map_err(OpenError::System)?;
        // SAFETY: `discard` takes it back.
        let pager: &'static Pager = unsafe { &*Box::into_raw(Box::new(pager)) };
        self.publish_pager(pager);
        self.heap.report_free_pages(true);
        let spans = if is_new { 0 } else { self.heap.spans_begun() };
        self.growth.lock().spans = spans;
        for span in 0..spans {
            self.manage_loaded_span(pager, span).map_err(OpenError::System)?;
        }
        file.load_table(OBJECT_TABLE, &mut |page, bytes| {
            right(pager.load_table(page, bytes), "the object table")
        })?;
        // Chunks whose objects were being dropped when the heap was saved.
        while let Some(idle) = self.heap.take_idle_objects() {
            let resident = pager.discard(idle.run());
            self.heap.recycle_objects(idle, resident);
        }
        pager.rebalance();
        if let Some(heap) = DurableHeap::of(self) {
            let (number, marks) = (file.checkpoint(), heap.marks(pager));
            durable.requests.made(&Checkpoint { number, marks, ..Checkpoint::default() });
        }
        Ok(())
    }

    fn manage_loaded_span(&self, pager: &Pager, span: usize) -> Result<(), Errno> {
        let address = (self.region_base + span * SPAN) as *mut u8;
        // SAFETY: our own reservation, which nobody uses yet.
        unsafe {
            match self.is_read_only() {
                true => mapping::protect(address, SPAN, libc::PROT_READ)?,
                false => mapping::commit(address, SPAN)?,
            }
            mapping::advise(address, SPAN, Advice::NoHugePage)?;
        }
        match self.heap.is_object_span(span) {
            true => pager.manage_objects(span, 1),
            false => pager.manage(span, 1),
        }
    }

    /// Drops a durable runtime.
    ///
    /// # Safety
    /// Nobody uses it any more, and it was made by `DurableHeap::load`.
    unsafe fn discard(&'static self) {
        let runtime = core::ptr::from_ref(self).cast_mut();
        // SAFETY: both were boxed, and by the caller's promise nobody uses them. The pager refers
        // to the heap, so it goes first.
        unsafe {
            if let Some(pager) = self.pager() {
                drop(Box::from_raw(core::ptr::from_ref(pager).cast_mut()));
            }
            drop(Box::from_raw(runtime));
        }
    }

    /// Allocates memory of a durable heap; null means ENOMEM.
    pub(crate) fn malloc_durable(&'static self, size: usize, align: usize) -> *mut u8 {
        let Some(durable) = &self.durable else { return core::ptr::null_mut() };
        if durable.is_read_only {
            return core::ptr::null_mut();
        }
        if size > crate::allocate::SIZE_MAX || align > crate::allocate::SIZE_MAX {
            return core::ptr::null_mut();
        }
        loop {
            let allocated = {
                let _inside = Inside::enter();
                // A handler of the program that allocated here would wait for itself.
                let _blocked = Blocked::all();
                let mut cache = durable.cache.lock();
                if cache.is_none() {
                    *cache = ThreadCache::new_in(&self.heap).ok();
                }
                let Some(cache) = cache.as_mut() else { return core::ptr::null_mut() };
                self.heap.allocate(cache, size, align)
            };
            match allocated {
                Ok(allocated) => return allocated.ptr as *mut u8,
                Err(shortage) if self.relieve(shortage) => {}
                Err(_) => return core::ptr::null_mut(),
            }
        }
    }

    /// Frees an allocation of a durable heap.
    pub(crate) fn free_durable(&'static self, address: *mut u8) {
        use deepheap_heap::Freed;
        let Some(durable) = &self.durable else { return };
        if durable.is_read_only {
            return; // what is read stays as it is
        }
        let freed = {
            let _inside = Inside::enter();
            let _blocked = Blocked::all();
            let mut cache = durable.cache.lock();
            if cache.is_none() {
                *cache = ThreadCache::new_in(&self.heap).ok();
            }
            let Some(cache) = cache.as_mut() else { return }; // no memory for it: a leak
            self.heap.free(cache, address as usize)
        };
        match freed {
            Freed::Done => {}
            Freed::Run(run) => self.end_run(run),
            Freed::Pages(pages) => {
                if let Some(pager) = self.pager() {
                    pager.discard_free_pages(pages.as_slice());
                }
            }
            Freed::Objects(freed) => self.end_objects(freed),
            Freed::NotAllocated => crate::allocate::invalid("free", address),
        }
    }

    /// A durable heap gets so many bytes of this one's budget.
    fn lend(&self, bytes: usize) {
        self.lent.fetch_add(bytes, Ordering::Relaxed);
        self.follow_budget();
    }

    fn take_back(&self, bytes: usize) {
        self.lent.fetch_sub(bytes, Ordering::Relaxed);
        self.follow_budget();
    }

    fn follow_budget(&self) {
        if let Some(pager) = self.pager() {
            pager.set_budget(self.ram());
            pager.wake_evictor();
        }
        self.publish_gauges();
    }
}

const _: () = assert!(PAGES_PER_SPAN * PAGE == SPAN);
