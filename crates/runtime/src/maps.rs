//! Maps: files larger than RAM, mapped by several processes with one copy in RAM.
//!
//! ```no_run
//! use deepheap::maps::{Map, MapOptions};
//! let map = Map::open("vectors.bin".as_ref(), MapOptions { writes: true, ..Default::default() })?;
//! // SAFETY: nobody changes these bytes meanwhile.
//! let first = unsafe { map.as_ptr().read() };
//! map.sync()?;
//! # Ok::<(), deepheap::maps::MapFailure>(())
//! ```
//!
//! The crate of that name has the how; here it gets its settings, faults, forks and the exit.
//!
//! Guarantees: what was changed in a map is written when the process ends by `exit`.
//! Never: starts the heap.
//! Threads: any, outside the fault path.

pub(crate) mod private;
pub(crate) mod private_table;

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::path::Path;

use deepheap_maps::{self as maps, Request, Writes};
use deepheap_sys::errno::Errno;
use deepheap_sys::faults::fault_signal;

pub use deepheap_maps::{Advice, BUDGET_MIN, MAPS_MAX, MapError, Stats};

use crate::memory::fault_handler;
use crate::process;
use crate::runtime::Inside;
use crate::settings::config::{Config, ConfigError, map_ram};
use crate::settings::machine::Machine;

/// The part of the machine's memory that a map gets if nothing is said.
const RAM_PART: u64 = 4;

static EXIT_IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Why a file cannot be mapped.
#[derive(Debug)]
pub enum MapFailure {
    /// The settings make no sense.
    Config(ConfigError),
    /// The map itself.
    Map(MapError),
}

impl fmt::Display for MapFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapFailure::Config(error) => error.fmt(out),
            MapFailure::Map(error) => error.fmt(out),
        }
    }
}

impl core::error::Error for MapFailure {}

impl From<MapError> for MapFailure {
    fn from(error: MapError) -> Self {
        MapFailure::Map(error)
    }
}

impl MapFailure {
    /// The errno for C programs.
    pub fn errno(&self) -> i32 {
        match self {
            MapFailure::Config(_) => libc::EINVAL,
            MapFailure::Map(error) => error.errno(),
        }
    }
}

/// How a file is mapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapOptions {
    /// Whether the program writes.
    pub writes: bool,
    /// Bytes from the file's beginning; 0: all.
    pub length: u64,
    /// Bytes of RAM, if this process is the first that maps the file; 0: as the settings say. A
    /// private map is in the heap's RAM.
    pub ram: u64,
    /// Whether the file is one of ours with a log: a sync is atomic. If it is not there and the
    /// program writes, it is made: `length` bytes of zeros.
    pub has_log: bool,
    /// Whether what is stored is this process's alone, and never the file's (copy on write).
    pub is_private: bool,
}

/// Maps a file; answers where it begins.
pub fn map(path: &Path, options: MapOptions) -> Result<*mut u8, MapFailure> {
    if options.is_private {
        return Ok(private::map(path, options.length, options.writes)?);
    }
    let _inside = Inside::enter();
    let resources = |errno| MapFailure::Map(MapError::Resources(errno));
    let budget_bytes = match options.ram {
        0 => budget().map_err(MapFailure::Config)?,
        bytes => bytes,
    };
    process::attach().map_err(resources)?;
    watch_exit().map_err(resources)?;
    fault_signal::install(fault_handler::on_fault).map_err(resources)?;
    let MapOptions { writes, length, has_log, .. } = options;
    let request = Request { path, length, writes, budget_bytes };
    Ok(maps::open(&request, if has_log { Writes::Log } else { Writes::InPlace })?)
}

/// The RAM that the settings give a map: DEEPHEAP_MAP_RAM, or `ram` of DEEPHEAP_CONF, or a part of
/// what there is.
fn budget() -> Result<u64, ConfigError> {
    let machine = Machine::read();
    if let Some(bytes) = map_ram(machine)? {
        return Ok(bytes);
    }
    Ok(match Config::is_ram_given()? {
        true => Config::from_environment()?.ram,
        false => (machine.usable_bytes() / RAM_PART).max(BUDGET_MIN),
    })
}

/// Has maps written at the exit of the process.
///
/// Errors: ENOMEM if libc cannot note that.
fn watch_exit() -> Result<(), Errno> {
    extern "C" fn at_exit() {
        let _inside = Inside::enter();
        maps::write_all();
    }
    // SAFETY: a function of this library, which is never unloaded.
    if !EXIT_IS_WATCHED.swap(true, Ordering::AcqRel) && unsafe { libc::atexit(at_exit) } != 0 {
        EXIT_IS_WATCHED.store(false, Ordering::Release);
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// Ends a map, by its beginning. If what was changed cannot be written, it stays.
///
/// # Safety
/// No thread uses its memory any more.
pub unsafe fn unmap(address: *mut u8) -> Result<(), MapError> {
    // SAFETY: the caller's promise.
    if unsafe { private::unmap(address as usize) }.is_some() {
        return Ok(());
    }
    let _inside = Inside::enter();
    // SAFETY: the caller's promise.
    unsafe { maps::close(address) }
}

/// Makes the mapped file `length` bytes long, or takes the length that it has (0), and maps all of
/// it; answers where: other processes see the new length at once, as far as they have mapped it.
///
/// # Errors
/// [`MapError`]; the map is as it was.
///
/// # Safety
/// No thread of this process uses the memory meanwhile, nor by the old address if it has moved.
pub unsafe fn resize(address: *mut u8, length: u64) -> Result<*mut u8, MapError> {
    let _inside = Inside::enter();
    // SAFETY: the caller's promise.
    unsafe { maps::resize(address, length) }
}

/// Makes durable what all processes have stored in a part of a map until now; a length of 0: from
/// `address` to the end. With a log all of that, or nothing, is there after a crash.
///
/// # Errors
/// [`MapError`]; after one of the device itself nobody knows what is durable.
pub fn sync(address: *const u8, length: usize) -> Result<(), MapError> {
    if private::bytes_from(address as usize).is_some() {
        return Ok(());
    }
    let _inside = Inside::enter();
    maps::sync(address, length)
}

/// Tells how a part of a map will be used; a length of 0: from `address` to the end.
///
/// # Errors
/// `MapError::NotAMap`.
pub fn advise(address: *const u8, length: usize, advice: Advice) -> Result<(), MapError> {
    if private::bytes_from(address as usize).is_some() {
        return Ok(());
    }
    let _inside = Inside::enter();
    maps::advise(address, length, advice)
}

/// What a map has done, in all of its processes.
///
/// # Errors
/// `MapError::NotAMap`.
pub fn stats(address: *const u8) -> Result<Stats, MapError> {
    let _inside = Inside::enter();
    maps::stats(address)
}

/// Whether an address lies in a map of this process.
pub fn owns(address: *const u8) -> bool {
    maps::owns(address)
}

/// A mapped file; unmapped when dropped.
#[derive(Debug)]
pub struct Map {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: it lends addresses; what is done with them is the callers' promise.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file.
    pub fn open(path: &Path, options: MapOptions) -> Result<Map, MapFailure> {
        let at = map(path, options)?;
        let bytes = maps::bytes_from(at).or_else(|| private::bytes_from(at as usize));
        let bytes = bytes.unwrap_or(0);
        Ok(Map { at, bytes })
    }

    /// Where it begins. Other threads and processes may change what is there at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }

    /// Bytes of the file that are mapped.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none, which does not happen.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All bytes.
    ///
    /// # Safety
    /// As long as the slice lives, no thread of any process changes them, and nobody makes the file
    /// shorter.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the caller's promise; so many bytes are mapped.
        unsafe { core::slice::from_raw_parts(self.at, self.bytes) }
    }

    /// All of it as values of a type; a part of one at the end is left out.
    ///
    /// # Safety
    /// As for `as_slice`, and every pattern of bits is a value of the type.
    pub unsafe fn as_slice_of<T: Copy>(&self) -> &[T] {
        let count = self.bytes.checked_div(size_of::<T>()).unwrap_or(0);
        // SAFETY: the caller's promise; so many are mapped, from the beginning of a page on.
        unsafe { core::slice::from_raw_parts(self.at.cast(), count) }
    }

    /// As `as_slice_of`, to write.
    ///
    /// # Safety
    /// As for `as_slice_of`; it was mapped to write, and as long as the slice lives nobody else
    /// reads what it has.
    pub unsafe fn as_slice_of_mut<T: Copy>(&mut self) -> &mut [T] {
        let count = self.bytes.checked_div(size_of::<T>()).unwrap_or(0);
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.at.cast(), count) }
    }

    /// Copies the values at these indices to `out`, one after the other; those that are not in RAM
    /// are read side by side. `Err` tells how many were copied before an index beyond the end, or
    /// before one that cannot be read.
    ///
    /// # Safety
    /// As for `as_slice_of`.
    pub unsafe fn gather<T: Copy>(&self, indices: &[usize], out: &mut [T]) -> Result<(), usize> {
        const TOGETHER: usize = 256;
        let count = indices.len().min(out.len());
        for first in (0..count).step_by(TOGETHER) {
            let some = first..count.min(first + TOGETHER);
            let mut list = [core::ptr::null(); TOGETHER];
            for (place, &index) in list.iter_mut().zip(&indices[some.clone()]) {
                *place = self.at.cast::<T>().wrapping_add(index).cast::<u8>().cast_const();
            }
            let into = out[some.clone()].as_mut_ptr().cast();
            // SAFETY: the call compares every address with the map; `out` has room for so many.
            let read = unsafe {
                crate::objects::gather(list.as_ptr(), some.len(), 0, size_of::<T>(), into)
            };
            match read {
                Ok(done) if done == some.len() => {}
                Ok(done) => return Err(first + done),
                Err(_) => return Err(first),
            }
        }
        Ok(())
    }

    /// Makes the file `bytes` bytes long, or takes the length that it has (0), and maps all of it,
    /// maybe elsewhere. Other processes see the new length at once, as far as they have mapped it.
    ///
    /// # Errors
    /// [`MapError`]; the map is as it was.
    pub fn resize(&mut self, bytes: u64) -> Result<(), MapError> {
        // SAFETY: every slice that was lent has ended, and addresses are the callers' promise.
        self.at = unsafe { resize(self.at, bytes) }?;
        self.bytes = maps::bytes_from(self.at).unwrap_or(0);
        Ok(())
    }

    /// Makes durable what all processes have stored until now.
    pub fn sync(&self) -> Result<(), MapError> {
        sync(self.at, 0)
    }

    /// Tells how all of it will be used.
    pub fn advise(&self, advice: Advice) -> Result<(), MapError> {
        advise(self.at, 0, advice)
    }

    /// What it has done, in all of its processes.
    pub fn stats(&self) -> Result<Stats, MapError> {
        stats(self.at)
    }

    /// Ends it.
    ///
    /// # Errors
    /// What was changed cannot be written. The file stays mapped, and the exit of the process tries
    /// again.
    pub fn close(self) -> Result<(), MapError> {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: every slice that was lent has ended.
        unsafe { unmap(this.at) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: every slice that was lent has ended.
        if let Err(error) = unsafe { unmap(self.at) } {
            deepheap_sys::say!("a map cannot be ended: ", &*error.to_string());
        }
    }
}
