//! Private maps: files whose bytes a program changes for itself alone (copy on write).
//!
//! A private map is memory of the heap whose pages the pager reads from the file when they are
//! touched first. An unchanged page stays the file's, and is dropped when it leaves RAM; a changed
//! one is memory of the heap, in its budget and its store.
//!
//! Guarantees: nothing is ever written to the file.
//! Threads: any, outside the fault path.

use std::path::Path;

use deepheap_heap::PAGE;
use deepheap_maps::MapError;
use deepheap_sys::errno::Errno;
use deepheap_sys::files::direct_file::DirectFile;
use deepheap_sys::threads::signals::Blocked;

use crate::maps::private_table;
use crate::memory::areas::{map_area, unmap_area};
use crate::process::start::start_from_environment;
use crate::process::switch::managed;
use crate::runtime::{Inside, running};

/// Maps a file; answers where it begins.
pub(crate) fn map(path: &Path, length: u64, writes: bool) -> Result<*mut u8, MapError> {
    let _inside = Inside::enter();
    let resources = MapError::Resources;
    let file = DirectFile::open_in_place(path, false).map_err(MapError::Open)?;
    let file_bytes = file.len().map_err(resources)?;
    let length = if length == 0 { file_bytes } else { length.min(file_bytes) };
    if length == 0 {
        return Err(MapError::Empty);
    }
    let length = usize::try_from(length).map_err(|_| MapError::TooLong)?;
    let runtime = running().or_else(start_from_environment).ok_or(resources(Errno::ENOMEM))?;
    // Pages that are read from a file are managed from their birth.
    let pager = managed(runtime).ok_or(resources(Errno::ENOMEM))?;
    let _blocked = Blocked::all();
    let mut maps = private_table::lock();
    let free = maps.iter().position(|map| map.1 == 0).ok_or(MapError::TooManyMaps)?;
    let write = if writes { libc::PROT_WRITE } else { 0 };
    // Much of it may never be touched: it is promised nothing.
    let at = map_area(length, libc::PROT_READ | write, true).map_err(resources)?;
    let first = runtime.page_of(at);
    // One that was here, and that the program has ended by munmap.
    for map in maps.iter_mut().filter(|map| map.0 < at + length && at < map.0 + map.1) {
        let first = runtime.page_of(map.0);
        if let Some(pages) = pager.forget_source(first) {
            pager.end_source(first, pages);
        }
        *map = (0, 0);
    }
    if !pager.add_source(first, length.div_ceil(PAGE), file, file_bytes) {
        let _ = unmap_area(at, length);
        return Err(resources(Errno::ENOMEM));
    }
    maps[free] = (at, length);
    Ok(at as *mut u8)
}

/// Bytes from `address` to the end of its private map; none if it lies in none.
pub(crate) fn bytes_from(address: usize) -> Option<usize> {
    let _blocked = Blocked::all();
    let maps = private_table::lock();
    let found = maps.iter().find(|(at, bytes)| address.wrapping_sub(*at) < *bytes)?;
    Some(found.0 + found.1 - address)
}

/// Ends the private map that begins there; None if none does.
///
/// # Safety
/// No thread uses its memory any more.
pub(crate) unsafe fn unmap(address: usize) -> Option<()> {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    let mut maps = private_table::lock();
    let found = maps.iter_mut().find(|(at, bytes)| *at == address && *bytes != 0)?;
    let (at, length) = core::mem::take(found);
    let runtime = running()?;
    let first = runtime.page_of(at);
    let pager = runtime.pager()?;
    // First no page is the file's any more; then each is owned and dropped; then nobody reads it.
    let pages = pager.forget_source(first);
    unmap_area(at, length)?;
    if let Some(pages) = pages {
        pager.end_source(first, pages);
    }
    Some(())
}
