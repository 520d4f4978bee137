//! Open: from the file of a durable heap to a runtime that serves it.
//!
//! Guarantees: a heap that cannot be opened leaves the process as it was, and the file in which
//! it was to be made, too.
//! Never: in a forked child: the memory is not there.
//! Threads: any, outside the fault path; one heap is opened or closed at a time.

use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use deepheap_durable::load::{
    OBJECT_TABLE, expect_tables, expected_tables, load_heap, open_store, right,
};
use deepheap_durable::location::{self, Found};
use deepheap_durable::offline::stamp;
use deepheap_durable::pins::DurablePins;
use deepheap_durable::roots::Roots;
use deepheap_durable::{HeapFile, OpenError, readers};
use deepheap_heap::{PAGE, PAGES_PER_SPAN, SPAN};
use deepheap_pager::{Moves, Pager, StartError};
use deepheap_store::{
    DurableFile, FileDevice, HeapShape, Identity, Options as StoreOptions, SavedUpTo,
};
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::mapping::{self, Advice};
use deepheap_sys::threads::lock::Lock;

use crate::control::budget::segment_buffers;
use crate::control::ceiling::lend;
use crate::control::workers;
use crate::durable::checkpoint::{make_checkpoints, marks};
use crate::durable::options::DurableOptions;
use crate::durable::state::{Durable, FullWait};
use crate::durable::worker::{Checkpoint, Requests};
use crate::durable::{DurableHeap, discard};
use crate::process::provision::Frames;
use crate::process::start::start_from_environment;
use crate::process::switch::{make_pager, refused_start, table_device};
use crate::runtime::{Inside, Runtime, hold_durable, running};
use crate::settings::config::{Config, OPEN_MAX, RAM_MIN_BYTES};
use crate::stats::report::bytes;

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
        let of = HeapFile::with_key_file(path, options.key_file.as_deref())?;
        match options.read_only {
            true => readers::until_steady(path, || open_once(&of, options)),
            false => open_once(&of, options),
        }
    }
}

/// As `open`, but for the key. The caller is inside.
pub(crate) fn open_once(
    of: &HeapFile<'_>,
    options: &DurableOptions,
) -> Result<DurableHeap, OpenError> {
    let main = running().or_else(start_from_environment).ok_or_else(|| {
        let text = "deepheap could not start in this process; the reason was told";
        OpenError::Process(libc::ENOMEM, text.into())
    })?;
    let changing = hold_durable();
    if changing.is_full() {
        let text = format!("{OPEN_MAX} durable heaps are open in this process; close one first");
        return Err(OpenError::Process(libc::EMFILE, text));
    }
    let whole = main.ram() as u64;
    let ram = options.ram.bytes_of(whole);
    if ram < RAM_MIN_BYTES || whole.saturating_sub(ram) < RAM_MIN_BYTES {
        let text = format!(
            "of a RAM budget of {} a durable heap cannot have {}: give both at least {} \
             (`ram:` of the heap, and of the process in DEEPHEAP_CONF)",
            bytes(whole),
            bytes(ram),
            bytes(RAM_MIN_BYTES)
        );
        return Err(OpenError::Process(libc::ENOMEM, text));
    }
    let config = options.config(ram);
    let (file, descriptor, made) = open_file(of, options, config.segment_bytes)?;
    let shape = file.shape();
    let (base, length) = (shape.region_base as usize, shape.region_len as usize);
    let config = Config { segment_bytes: shape.segment_bytes, ..config };
    let reserved = mapping::reserve(length, SPAN, base).map_err(OpenError::System)? as usize;
    if reserved != base {
        // SAFETY: just reserved, and nobody knows of it.
        let _ = unsafe { mapping::unmap(reserved as *mut u8, length) };
        let text = format!(
            "the heap lives at {base:#x}, and something else is within the {} from there; open \
             it before other libraries map memory, or make it anew with another `address:`",
            bytes(length as u64)
        );
        return Err(OpenError::Process(libc::EADDRINUSE, text));
    }
    // SAFETY: our own reservation.
    let opened = unsafe { mapping::advise(base as *mut u8, length, Advice::DontFork) }
        .map_err(OpenError::System)
        .and_then(|()| load(main, of.path, options, config, file, descriptor));
    let heap = opened.inspect_err(|_| {
        // SAFETY: our own reservation, which nobody uses.
        let _ = unsafe { mapping::unmap(base as *mut u8, length) };
    })?;
    made.stays();
    lend(main, heap.runtime.ram());
    changing.add(heap.runtime);
    workers::start(heap.runtime);
    workers::spawn(heap.runtime, c"deepheap-commit", make_checkpoints);
    Ok(heap)
}

/// Makes a runtime of what a file holds.
fn load(
    main: &'static Runtime,
    path: &Path,
    options: &DurableOptions,
    config: Config,
    file: DurableFile,
    descriptor: RawFd,
) -> Result<DurableHeap, OpenError> {
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
        requests: Requests::default(),
        roots_set: Default::default(),
        every: options.checkpoint.filter(|_| !options.read_only),
        full_wait: FullWait::default(),
    };
    let runtime = Runtime::in_region(config, main.stats, region, Some(durable));
    let runtime = Box::new(runtime.map_err(OpenError::System)?);
    // SAFETY: `discard` takes it back if this fails, or at the close.
    let runtime: &'static Runtime = unsafe { &*Box::into_raw(runtime) };
    let heap = DurableHeap::of(runtime).ok_or(OpenError::System(Errno::EINVAL))?;
    // SAFETY: nobody else knows of it.
    fill(heap).inspect_err(|_| unsafe { discard(runtime) })?;
    Ok(heap)
}

/// Fills the tables from the file, and makes the pager.
fn fill(heap: DurableHeap) -> Result<(), OpenError> {
    let DurableHeap { runtime, durable } = heap;
    let mut file = durable.file.lock();
    let (file, saved_up_to) = &mut *file;
    let is_new = load_heap(file, &runtime.heap, &durable.roots)?;
    let shape = file.shape();
    let reserve = (shape.capacity_bytes / shape.segment_bytes / 64).clamp(3, 8);
    let (store, up_to) = open_store(file, segment_buffers(&runtime.config), reserve as u32)?;
    *saved_up_to = up_to;
    if !runtime.config.discard {
        store.stop_discards();
    }
    if !durable.is_read_only {
        *durable.pins.lock() = DurablePins::of_opened(&store, file, durable.descriptor)?;
        // All that is in RAM may have changed, and the cut writes some of it a second time.
        store.keep_for_checkpoint(runtime.ram() as u64 * 5 / 4);
        let blocks = runtime.heap.committed_pages() as u64 + runtime.heap.used_object_blocks();
        store.reserve(blocks).map_err(OpenError::Store)?;
    }
    let frames = Frames { userfaultfd: None, is_shared: false };
    let pager = make_pager(runtime, store, frames, table_device(runtime));
    let pager = pager.map_err(|error| match error {
        StartError::Resources(errno)
        | StartError::Pipe(errno @ (Errno::EMFILE | Errno::ENOMEM)) => OpenError::System(errno),
        error => OpenError::Process(libc::ENOSYS, refused_start(error)),
    })?;
    runtime.publish_pager(pager);
    let spans = if is_new { 0 } else { runtime.heap.spans_begun() };
    runtime.growth.lock().spans = spans;
    let mut first = 0;
    while first < spans {
        let is_object = |span: &usize| runtime.heap.is_object_span(*span);
        let kind = is_object(&first);
        let count = (first..spans).take_while(|span| is_object(span) == kind).count();
        manage_spans(runtime, pager, first, count).map_err(OpenError::System)?;
        first += count;
    }
    if durable.is_read_only {
        // The process that makes checkpoints may write over the pages of this one.
        file.load_table(OBJECT_TABLE, &mut |page, bytes| {
            pager.trim_table(&mut Moves::default());
            right(pager.load_table(page, bytes), "the object table")
        })?;
    } else {
        let table = file.saved_table(OBJECT_TABLE)?;
        right(pager.adopt_table(table), "the object table")?;
    }
    // Chunks whose objects were being dropped when the heap was saved.
    while let Some(idle) = runtime.heap.take_idle_objects() {
        let resident = pager.discard(idle.run());
        runtime.heap.recycle_objects(idle, resident);
    }
    pager.rebalance();
    let (number, marks) = (file.checkpoint(), marks(heap, pager));
    durable.requests.made(&Checkpoint { number, marks, ..Checkpoint::default() });
    Ok(())
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
        location::restore(self.0, self.1);
    }
}

/// Opens the file of a heap, or makes it.
fn open_file<'a>(
    of: &HeapFile<'a>,
    options: &DurableOptions,
    segment_bytes: u64,
) -> Result<(DurableFile, RawFd, Made<'a>), OpenError> {
    if options.read_only {
        let (file, descriptor) = readers::open(of, options.snapshot.as_deref())?;
        expect_tables(&file)?;
        return Ok((file, descriptor, Made(of.path, Found::Filled)));
    }
    let (file, found) = location::open(of.path)?;
    let (made, key) = (Made(of.path, found), of.key.as_ref());
    let descriptor = file.as_raw_fd();
    let device = Arc::new(FileDevice::new(file).map_err(OpenError::System)?);
    if found == Found::Filled {
        let file = DurableFile::open(device, key)?;
        expect_tables(&file)?;
        return Ok((file, descriptor, made));
    }
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
    let created = DurableFile::create(device, shape, identity, stamp, key)?;
    Ok((created, descriptor, made))
}

/// Has spans of one kind usable and managed.
fn manage_spans(runtime: &Runtime, pager: &Pager, first: usize, count: usize) -> Result<(), Errno> {
    let address = (runtime.region_base + first * SPAN) as *mut u8;
    let length = count * SPAN;
    // SAFETY: our own reservation, which nobody uses yet.
    unsafe {
        match runtime.is_read_only() {
            true => mapping::protect(address, length, libc::PROT_READ)?,
            false => mapping::commit(address, length)?,
        }
        mapping::advise(address, length, Advice::NoHugePage)?;
    }
    match runtime.heap.is_object_span(first) {
        true => pager.manage_objects(first, count),
        false => pager.manage(first, count),
    }
}

const _: () = assert!(PAGES_PER_SPAN * PAGE == SPAN);
