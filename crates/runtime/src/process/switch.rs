//! Switch: the one change from plain to managing. A store is opened, a pager is made and published,
//! the workers start.
//!
//! Guarantees: the switch loses nothing and moves nothing; if it fails, the heap stays plain, and
//! the reason is logged once.
//! Never: tried again after it failed.
//! Threads: any, outside the fault path, under `growth` with all signals blocked.

use core::ffi::c_void;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use deepheap_heap::{PAGE, SPAN};
use deepheap_pager::trace::format::Header;
use deepheap_pager::{Options, Pager, StartError, handler_stacks, lanes_shift};
use deepheap_store::{Device, FileDevice, Key, Store, StoreError};
use deepheap_sys::errno::Errno;
use deepheap_sys::faults::{fault_signal, handler_stack};
use deepheap_sys::files::direct_file::OpenError;
use deepheap_sys::memory::userfaultfd::Userfaultfd;
use deepheap_sys::memory::{large_stack, pagemap};
use deepheap_sys::say;
use deepheap_sys::threads::signals::Blocked;

use crate::control::budget::{TIER_BUFFERS, TIER_RINGS, rings, segment_buffers, store_options};
use crate::control::workers;
use crate::memory::{fault_handler, holds};
use crate::process::provision::{Frames, Ground, Provision};
use crate::runtime::{Growth, Inside, Runtime};
use crate::settings::config::Config;
use crate::settings::obstacles;
use crate::settings::store_location::{StoreLocation, open_unnamed};
use crate::stats::observe::is_first_process;
use crate::stats::profile;

/// Stack that the switch has. Store and pager are made there before they are moved to the heap; the
/// program's own stack may be small, and would keep what was touched of it.
const STACK_BYTES: usize = 1 << 20;

/// Why the heap cannot grow beyond RAM, and what to do.
type Refusal = String;

/// The pager, made now if the heap is plain; none if that is not to be had.
pub(crate) fn managed(runtime: &'static Runtime) -> Option<&'static Pager> {
    runtime.pager().or_else(|| {
        let _inside = Inside::enter();
        let _blocked = Blocked::all();
        let mut growth = runtime.growth.lock();
        switched(runtime, &mut growth)
    })
}

/// As `managed`, for a caller that holds `growth`.
pub(crate) fn switched(runtime: &'static Runtime, growth: &mut Growth) -> Option<&'static Pager> {
    if runtime.pager().is_none()
        && !growth.refused
        && let Err(refusal) = switch(runtime, growth)
    {
        growth.refused = true;
        let problem = match runtime.config.is_managed_early() {
            true => "the heap stays in RAM, up to its budget, and saves none: ",
            false => "the heap cannot outgrow its RAM budget, allocations fail now: ",
        };
        say!(problem, &*refusal);
    }
    runtime.pager()
}

/// The switch, on a stack of its own.
fn switch(runtime: &'static Runtime, growth: &mut Growth) -> Result<(), Refusal> {
    struct Call<'a> {
        runtime: &'static Runtime,
        growth: &'a mut Growth,
        result: Result<(), Refusal>,
    }
    extern "C" fn run(call: *mut c_void) {
        // SAFETY: the caller below passes a `Call`, which it does not use meanwhile.
        let call = unsafe { &mut *call.cast::<Call<'_>>() };
        call.result = switch_here(call.runtime, call.growth);
    }
    let mut call = Call { runtime, growth, result: Ok(()) };
    large_stack::call(STACK_BYTES, run, (&raw mut call).cast())
        .map_err(|errno| refused_start(StartError::Resources(errno)))?;
    call.result
}

fn switch_here(runtime: &'static Runtime, growth: &mut Growth) -> Result<(), Refusal> {
    let provided = growth.provision.take().filter(Provision::claim);
    let Provision { ground, tier, table, frames, .. } = match provided {
        Some(provision) => provision,
        None => open_provision(runtime)?,
    };
    let Ground { device, options, key } = ground;
    let mut store = Store::open(device, options, key).map_err(refused_store)?;
    if let Some(Ground { device, options, key }) = tier {
        let added = store.add_second_tier(device, options, key).map_err(refused_store);
        let _ = added.map_err(say_tier_lacks);
    }
    if !runtime.config.discard {
        store.stop_discards();
    }
    // Memory that exists must be spillable, too.
    let present = present_pages(runtime, growth);
    let promised = if runtime.config.is_lazy() { present } else { runtime.heap.granted_pages() };
    store.reserve(promised as u64).map_err(refused_store)?;
    let pager = make_pager(runtime, store, frames, table).map_err(refused_start)?;
    if runtime.config.is_lazy() {
        runtime.heap.grant_follows();
    }
    pager.begin_take_over(growth.spans, present, || {
        runtime.publish_pager(pager);
        holds::pin_early()
    });
    begin_trace(runtime, pager);
    runtime.process.parent.introduce(runtime.stats);
    workers::start(runtime);
    pager.workers.wake_evictor();
    Ok(())
}

/// Makes the pager of the heap, which is published next, and has faults come to it.
pub(crate) fn make_pager(
    runtime: &'static Runtime,
    store: Store,
    frames: Frames,
    table: Option<Box<dyn Device>>,
) -> Result<&'static Pager, StartError> {
    let (is_durable, page_buffer) = (runtime.durable.is_some(), runtime.config.page_buffer);
    let options = Options {
        region_base: runtime.region_base,
        region_pages: runtime.heap.region_bytes() / PAGE,
        budget_bytes: runtime.ram(),
        page_buffer_bytes: page_buffer.map(|share| share.bytes_of(runtime.ram() as u64) as usize),
        overcommit: runtime.config.overcommit,
        compress: runtime.config.compress,
        makes_checkpoints: is_durable,
        follows_strides: runtime.config.strides,
        follows_sequences: runtime.config.sequences,
        traces: runtime.config.trace_file.is_some() && !is_durable,
        lanes_shift: frames.is_shared.then(|| lanes_shift(runtime.ram())),
    };
    let pager = Pager::new(&options, &runtime.heap, store, frames.userfaultfd)?;
    if let Some(device) = table {
        pager.add_table_file(device);
    }
    let stacks = handler_stacks(options.budget_bytes);
    handler_stack::limit(stacks, fault_handler::has_room_for_stack);
    profile::begin();
    fault_signal::install(fault_handler::on_fault).map_err(StartError::Resources)?;
    runtime.heap.report_free_pages(true);
    // `durable::discard` takes that of a durable heap back.
    Ok(Box::leak(Box::new(pager)))
}

/// Opens all that the switch needs, for this process alone. A store without its second tier is
/// as good as one whose second tier is full.
pub(crate) fn open_provision(runtime: &Runtime) -> Result<Provision, Refusal> {
    let config = &runtime.config;
    let ground = open_ground(config, segment_buffers(config), rings(config))?;
    let tier = config.of_tier().and_then(|settings| {
        open_ground(&settings, TIER_BUFFERS, TIER_RINGS).map_err(say_tier_lacks).ok()
    });
    #[cfg(feature = "device-hook")]
    let tier = tier.map(crate::process::tier_hook::hooked);
    let (table, frames) = (table_device(runtime), open_frames(config.micro_pages));
    Ok(Provision { ground, tier, table, frames, token: None })
}

/// A file without a name for the pages of the object table that leave RAM: beside the store, or
/// where there is a disk. None: they stay in RAM.
pub(crate) fn table_device(runtime: &Runtime) -> Option<Box<dyn Device>> {
    let beside = runtime.durable.as_ref().and_then(|durable| durable.path.parent());
    let folders =
        beside.map(Path::to_path_buf).into_iter().chain(runtime.process.child_folders.clone());
    let file = open_unnamed(&folders.collect::<Vec<_>>()).ok()?;
    // Pages are read one by one, and written by one thread at a time.
    Some(Box::new(FileDevice::with_rings(file, 1).ok()?))
}

/// Pages of plain memory that hold something.
fn present_pages(runtime: &Runtime, growth: &Growth) -> usize {
    let mut present = 0;
    let count = &mut |_, pages, _| present += pages;
    match pagemap::present_pages(runtime.region_base, growth.spans * SPAN, count) {
        Ok(()) => present,
        Err(_) => runtime.heap.committed_pages(),
    }
}

/// Begins to record, if the process is to be traced.
fn begin_trace(runtime: &Runtime, pager: &Pager) {
    let path = runtime.config.trace_file.as_ref().filter(|_| pager.trace().is_on());
    let Some(path) = path else { return };
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let pid = std::process::id();
    let header = Header {
        pid,
        ram: runtime.config.ram,
        begun,
        region_base: runtime.region_base as u64,
        ran_before_ns: runtime.stats.snapshot().uptime_ns,
    };
    let mut name = path.as_os_str().to_owned();
    if !is_first_process(runtime) {
        name.push(format!(".{pid}"));
    }
    runtime.process.trace.begin(pager, Path::new(&name), &header);
}

/// Opens what these settings name as the store.
fn open_ground(settings: &Config, buffers: usize, rings: usize) -> Result<Ground, Refusal> {
    let location = StoreLocation::find(settings).map_err(|error| error.to_string())?;
    let file = location.open(settings.force).map_err(refused_open)?;
    let device = FileDevice::with_rings(file, rings)
        .map_err(|errno| refused_open(errno.into()))?
        .with_floor(location.floor_bytes(settings));
    // Nobody else learns the key: what is left on the device when the process ends is noise.
    let key = settings.encrypt.then(Key::random).transpose();
    let key = key.map_err(|errno| refused_store(errno.into()))?;
    let options = store_options(&location, settings, buffers);
    Ok(Ground { device: Box::new(device), options, key })
}

fn open_frames(are_shared: bool) -> Frames {
    let shared = are_shared.then(Userfaultfd::open_sharing_frames);
    if let Some(Err(errno)) = shared {
        say!("no micro-pages, the kernel cannot map shared frames: ", errno);
    }
    let shared = shared.and_then(Result::ok);
    let is_shared = shared.is_some();
    Frames { userfaultfd: shared.or_else(|| Userfaultfd::open().ok()), is_shared }
}

fn say_tier_lacks(refusal: Refusal) {
    say!("the second tier cannot be used, so all goes to the store: ", &*refusal);
}

fn too_many_files() -> Refusal {
    "too many open files: raise `ulimit -n`, or have fewer open".to_owned()
}

fn refused_open(error: OpenError) -> Refusal {
    match error {
        OpenError::System(Errno::EMFILE) => too_many_files(),
        error => format!("the store cannot be opened ({error}): name another with --store"),
    }
}

fn refused_store(error: StoreError) -> Refusal {
    format!("the store cannot be used: {error}")
}

pub(crate) fn refused_start(error: StartError) -> Refusal {
    match error {
        StartError::Userfaultfd(Errno::EMFILE)
        | StartError::Pipe(Errno::EMFILE)
        | StartError::Resources(Errno::EMFILE) => too_many_files(),
        StartError::Userfaultfd(errno) => obstacles::refused_userfaultfd(errno).to_string(),
        StartError::CopiesPages => obstacles::exclusive_pages(Ok(false)).to_string(),
        StartError::Pipe(errno) => obstacles::exclusive_pages(Err(errno)).to_string(),
        StartError::Resources(errno) => {
            format!("no memory or file descriptors for the tables ({errno})")
        }
    }
}
