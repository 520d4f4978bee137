//! Start: the first allocation, or `init`, makes the runtime of the process.
//!
//! Guarantees: one thread starts it, once. If the first allocation cannot start it, the reason is
//! logged once and no later allocation tries again; `init` returns its reason.
//! Never: opens the store, which happens when the heap outgrows RAM.
//! Threads: any, outside the fault path. Signals are blocked while the start is held.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_sys::errno::Errno;
use deepheap_sys::memory::pinned_allocator::PinnedAllocator;
use deepheap_sys::process::kept_stderr;
use deepheap_sys::say;
use deepheap_sys::threads::lock::Guard;
use deepheap_sys::threads::signals::Blocked;

use crate::process;
use crate::runtime::{Inside, REGION_BYTES, Runtime, hold_start, running};
use crate::settings::config::{Config, ConfigError};
use crate::settings::limits;
use crate::settings::machine::Machine;
use crate::settings::obstacles::{self, Finding};
use crate::settings::store_location::{StoreLocation, StoreLocationError, folders_of_children};
use crate::stats::observe::is_first_process;
use crate::stats::observe::publish_gauges;

static START_FAILED: AtomicU32 = AtomicU32::new(0);

/// Why deepheap could not start. The text says what to do.
#[derive(Debug)]
pub enum InitError {
    /// It has started already: with `init`, or by an allocation.
    Started,
    /// The settings make no sense.
    Config(ConfigError),
    /// There is nowhere to put the store.
    Store(StoreLocationError),
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
            InitError::Resources(Errno::EMFILE) => {
                write!(out, "too many open files: raise `ulimit -n`")
            }
            InitError::Resources(errno) => write!(
                out,
                "no address space for the heap ({errno}): raise `ulimit -v`, and set \
                 vm.overcommit_memory to 0 or 1",
            ),
        }
    }
}

impl core::error::Error for InitError {}

/// The runtime, started from the environment if need be. None if that failed, for a reason that was
/// logged; the caller answers ENOMEM.
#[cold]
pub(crate) fn start_from_environment() -> Option<&'static Runtime> {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    // Before anything is allocated here.
    if START_FAILED.load(Ordering::Relaxed) == 0 && !PinnedAllocator::has_room() {
        START_FAILED.store(1, Ordering::Relaxed);
        say!("no address space for the heap: raise `ulimit -v`");
        return None;
    }
    let attached = process::attach();
    let held = hold_start();
    if let Some(runtime) = running() {
        return Some(runtime);
    }
    if START_FAILED.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let started = attached
        .map_err(InitError::Resources)
        .and_then(|()| Config::from_environment().map_err(InitError::Config))
        .and_then(|config| start(config, &held));
    if let Err(error) = &started {
        START_FAILED.store(1, Ordering::Relaxed);
        say!(&*error.to_string());
    }
    started.ok()
}

/// Starts with these settings. The store and the kernel are checked at once; the store is opened
/// when it is needed.
pub fn init(config: Config) -> Result<(), InitError> {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    process::attach().map_err(InitError::Resources)?;
    let held = hold_start();
    if running().is_some() {
        return Err(InitError::Started);
    }
    config.check(Machine::read()).map_err(InitError::Config)?;
    StoreLocation::find(&config).map_err(InitError::Store)?;
    if let Some(settings) = config.of_tier() {
        StoreLocation::find(&settings).map_err(InitError::Store)?;
    }
    if let Some(finding) = obstacles::first_obstacle() {
        return Err(InitError::Kernel(finding));
    }
    start(config, &held).map(|_| ())
}

/// Whether `ulimit -v` leaves a heap its address space; says so if it does not. A script that sets
/// the limit for one command sets it for all that follow: they are to run all the same, without a
/// heap of ours. To be asked before the first allocation.
pub fn has_address_space() -> bool {
    let has_enough = limits::address_space().is_none_or(|it| it.soft > REGION_BYTES as u64);
    if !has_enough {
        say!("ulimit -v leaves no address space for the heap: the program runs without deepheap");
    }
    has_enough
}

fn start(mut config: Config, held: &Guard<'static, ()>) -> Result<&'static Runtime, InitError> {
    config.fit_segments();
    let child_folders = folders_of_children(&config);
    let runtime = Runtime::new(config, child_folders).map_err(InitError::Resources)?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    if runtime.config.is_managed_early() {
        runtime.stats.wish().refuse();
    }
    publish_gauges(runtime);
    runtime.publish(held);
    if is_first_process(runtime) {
        let parent = &runtime.process.parent;
        parent.introduce(runtime.stats);
        if runtime.config.show_stats && !parent.is_there() {
            kept_stderr::keep();
        }
    }
    Ok(runtime)
}
