//! Access: what a program asks of a map beside touching it.
//!
//! Guarantees: the calls agree with plain pointers that other threads and processes use at the same
//! time; many pages are read side by side.
//! Never: touches the map while a shard is owned.
//! Threads: any, not in a signal handler.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::PAGE;
use deepheap_sys::threads::signals::Blocked;

use crate::calls::table::{ask_ahead, find, wake_evictor};
use crate::error::MapError;
use crate::moves::gather::{ROWS_MAX, Row};
use crate::moves::staging::BUFFER_PAGES;
use crate::region::Region;
use crate::tables::streams::WINDOW_MAX;

/// Advice on how a map will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Soon: read it ahead.
    WillNeed,
    /// Not soon: it may leave RAM.
    DontNeed,
    /// In no order: read page by page.
    Random,
    /// In order: read as much as possible together.
    Sequential,
}

/// Counts of a map, in all of its processes. The fields as in `struct dh_map_stats` of
/// deepheap.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of RAM that the map may take.
    pub budget_bytes: u64,
    /// Bytes of pages in RAM.
    pub resident_bytes: u64,
    /// Processes that have it.
    pub processes: u64,
    /// Touches of pages that were not in RAM.
    pub faults: u64,
    /// Pages read from the file.
    pub pages_read: u64,
    /// Pages that left RAM as the file had them.
    pub evicted_clean: u64,
    /// Pages that were written when they left RAM.
    pub evicted_changed: u64,
    /// Pages written to the file, by evictions and syncs.
    pub pages_written: u64,
    /// Times that a faulting thread had to evict by itself.
    pub direct_evictions: u64,
    /// Writes that the device refused.
    pub write_errors: u64,
    /// Shards that were taken over from dead processes.
    pub repairs: u64,
}

/// Whether the address lies in a map of this process.
pub fn owns(address: *const u8) -> bool {
    find(address as usize).is_some()
}

/// Bytes from `address` to the end of the map or of its file; none if no map is there.
pub fn bytes_from(address: *const u8) -> Option<usize> {
    let region = find(address as usize)?;
    let end = region.file_bytes().min(region.bytes as u64) as usize;
    Some(end.saturating_sub(address as usize - region.base))
}

/// The pages of a range of bytes that lies in one map.
fn pages_of(address: usize, length: usize) -> Result<(&'static Region, Range<u32>), MapError> {
    let region = find(address).ok_or(MapError::NotAMap)?;
    let end = address.checked_add(length).ok_or(MapError::NotAMap)?;
    if end > region.base + region.bytes {
        return Err(MapError::NotAMap);
    }
    let first = region.page_of(address);
    let last = (end - region.base).div_ceil(PAGE) as u32;
    Ok((region, first..last.min(region.mapped_pages()).max(first)))
}

/// As `pages_of`; a length of 0: all from `address` on.
fn pages_or_rest(address: usize, length: usize) -> Result<(&'static Region, Range<u32>), MapError> {
    let rest = || find(address).map_or(0, |region| region.base + region.bytes - address);
    pages_of(address, if length == 0 { rest() } else { length })
}

/// Makes durable what every process has stored there until now; a length of 0: all from `address`
/// on.
pub fn sync(address: *const u8, length: usize) -> Result<(), MapError> {
    let (region, pages) = pages_or_rest(address as usize, length)?;
    let _blocked = Blocked::all();
    let synced = region.sync(pages).map_err(MapError::Sync);
    // The commit may be too much for the log.
    wake_evictor(region);
    synced
}

/// Tells how a part of a map will be used; a length of 0: all from `address` on. `Random` and
/// `Sequential` are of the whole map, in this process.
pub fn advise(address: *const u8, length: usize, advice: Advice) -> Result<(), MapError> {
    let (region, pages) = pages_or_rest(address as usize, length)?;
    match advice {
        Advice::WillNeed => {
            ask_ahead(address as usize, pages);
        }
        Advice::DontNeed => {
            let _blocked = Blocked::all();
            region.evict_range(&pages);
        }
        Advice::Random => region.streams.fix(1),
        Advice::Sequential => region.streams.fix(WINDOW_MAX),
    }
    Ok(())
}

/// Starts to read the page of an address, and does not wait. False: the queue is full, or it is in
/// no map.
pub fn prefetch(address: *const u8) -> bool {
    let page = find(address as usize).map(|region| region.page_of(address as usize));
    page.is_some_and(|page| ask_ahead(address as usize, page..page + 1) > 0)
}

/// Brings the pages of these ranges of bytes into RAM, read side by side, as far as there is room.
/// Other pages come when they are touched.
pub fn bring_in(addresses: impl Iterator<Item = usize>, length: usize) {
    let (mut pages, mut count) = ([0u32; BUFFER_PAGES], 0);
    let mut of: Option<&'static Region> = None;
    let flush = |region: Option<&'static Region>, pages: &mut [u32]| {
        if let Some(region) = region.filter(|_| pages.len() > 1) {
            pages.sort_unstable();
            let _blocked = Blocked::all();
            // A thread that touches such a page is told what is wrong.
            let _ = region.fill_many(pages);
            wake_evictor(region);
        }
    };
    for address in addresses {
        let Ok((region, wanted)) = pages_of(address, length) else { continue };
        for page in wanted {
            let is_same = of.is_some_and(|of| core::ptr::eq(of, region));
            if count == BUFFER_PAGES || (count > 0 && !is_same) {
                flush(of, &mut pages[..count]);
                count = 0;
            }
            of = Some(region);
            pages[count] = page;
            count += 1;
        }
    }
    flush(of, &mut pages[..count]);
}

/// Copies rows of `length` bytes, at most `ROWS_MAX`, to `into`, one after the other, which is no
/// memory of a map. They are read side by side. Answers which were copied, a bit for each; the
/// others are in RAM, or on their way there, as far as there is room.
pub fn gather_absent(addresses: &[usize], length: usize, into: &mut [u8]) -> u64 {
    let (mut rows, mut count) = ([Row::default(); ROWS_MAX], 0);
    let region = addresses.first().and_then(|address| find(*address));
    let Some(region) = region else { return 0 };
    let in_a_page = |address: usize| region.contains(address) && address % PAGE + length <= PAGE;
    for (index, &address) in addresses.iter().enumerate().take(ROWS_MAX) {
        if in_a_page(address) {
            let page = region.page_of(address);
            rows[count] = Row { page, offset: address % PAGE, index };
            count += 1;
        }
    }
    rows[..count].sort_unstable_by_key(|row| row.page);
    let _blocked = Blocked::all();
    let copied = region.gather(&rows[..count], length, into);
    wake_evictor(region);
    if count < addresses.len() {
        bring_in(addresses.iter().copied().filter(|address| !in_a_page(*address)), length);
    }
    copied
}

/// The counts of the map of this address.
pub fn stats(address: *const u8) -> Result<Stats, MapError> {
    let region = find(address as usize).ok_or(MapError::NotAMap)?;
    let header = region.tables.header();
    let counts = &header.counts;
    let resident = region.memory.resident_bytes();
    Ok(Stats {
        file_bytes: region.file_bytes(),
        budget_bytes: header.budget_bytes.load(Relaxed),
        resident_bytes: resident.unwrap_or_else(|_| header.resident.load(Relaxed) * PAGE as u64),
        processes: 1 + region.tables.others().count() as u64,
        faults: counts.faults.load(Relaxed),
        pages_read: counts.pages_read.load(Relaxed),
        evicted_clean: counts.evicted_clean.load(Relaxed),
        evicted_changed: counts.evicted_changed.load(Relaxed),
        pages_written: counts.pages_written.load(Relaxed),
        direct_evictions: counts.direct_evictions.load(Relaxed),
        write_errors: counts.write_errors.load(Relaxed),
        repairs: counts.repairs.load(Relaxed),
    })
}
