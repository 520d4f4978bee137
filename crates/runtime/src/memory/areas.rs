//! Areas: private anonymous memory that the program maps itself, as part of the heap.
//!
//! The addresses are the heap's region's, so what holds for `malloc` memory holds here: plain until
//! the budget is used up, then managed, also across `fork` and in system calls. Pages behave as
//! those of a mapping of the kernel's: unmapped or given up, they are zero; a protection is
//! the kernel's own. A shared mapping or a file placed over an area is a hole: the kernel's, until
//! memory comes back to its place.
//!
//! Guarantees: as mmap(2), but a hint is not followed; unmapped pages of an area stay readable, as
//! zeros, until its last page is unmapped.
//! Never: promises room for what cannot be touched.
//! Threads: any, outside the fault path, with all signals blocked. The lock comes before `growth`;
//! no managed memory is touched under it.

use core::ffi::c_int;
use core::ops::Range;

use deepheap_heap::{FreedRun, PAGE, PAGES_PER_SPAN, PageNo, SPAN, Shortage, SpanRange};
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::memory::mapping::{self, Advice};
use deepheap_sys::threads::lock::Guard;
use deepheap_sys::threads::signals::Blocked;

use crate::memory::area_table::Areas;
use crate::number;
use crate::process::start::start_from_environment;
use crate::runtime::{Inside, Runtime, running};
use crate::stats::allocations;

const USUAL: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// From how many bytes on the program's own mappings are memory of the heap; none if never.
pub fn area_bytes_min() -> Option<usize> {
    running().or_else(start_from_environment)?.config.mmap
}

/// Maps `length` bytes of zeros with that protection. `is_reserved` (MAP_NORESERVE): much of it may
/// never be touched, and it is promised nothing.
///
/// # Errors
/// ENOMEM.
pub fn map_area(length: usize, protection: c_int, is_reserved: bool) -> Result<usize> {
    let runtime = running().ok_or(Errno::ENOMEM)?;
    let pages = length.div_ceil(PAGE).max(1);
    let mut inside = Entered::new(runtime);
    let run = inside.allocate(pages).ok_or(Errno::ENOMEM)?;
    let range = pages_of(run);
    inside.areas.table.add(range.clone());
    if let Err(errno) = inside.protect(range.clone(), protection, is_reserved) {
        inside.unmap(range);
        return Err(errno);
    }
    inside.publish();
    let address = inside.address(&range).addr();
    allocations::note(address, length);
    Ok(address)
}

/// Unmaps pages. None if some of them are memory of `malloc`.
pub fn unmap_area(address: usize, length: usize) -> Option<()> {
    let mut inside = Entered::new(running()?);
    let range = inside.covered(address, length)?;
    inside.unmap(range);
    Some(())
}

/// Maps zeros with that protection in place of what areas have there. None if some of the pages
/// are memory of `malloc`.
pub fn map_over_area(
    address: usize,
    length: usize,
    protection: c_int,
    is_reserved: bool,
) -> Option<Result<()>> {
    let mut inside = Entered::new(running()?);
    let range = inside.covered(address, length)?;
    inside.empty(&range);
    Some(inside.protect(range, protection, is_reserved))
}

/// Makes room for a mapping of the kernel's in place of what areas have there: `place` makes it.
/// None if some of the pages are memory of `malloc`.
pub fn map_hole<R>(address: usize, length: usize, place: impl FnOnce() -> R) -> Option<R> {
    let mut inside = Entered::new(running()?);
    let range = inside.covered(address, length)?;
    inside.empty(&range);
    inside.areas.table.add_hole(range);
    Some(place())
}

/// Whether anything of these pages is mapped as an area; for MAP_FIXED_NOREPLACE.
pub fn is_area_mapped(address: usize, length: usize) -> bool {
    let Some(runtime) = running() else { return false };
    let inside = Entered::new(runtime);
    let range = inside.covered(address, length);
    range.is_none_or(|range| inside.areas.table.is_any_mapped(&range))
}

/// Notes, before it is made, a change of the protection of pages of areas, and has them committed
/// if they can be touched then.
///
/// # Errors
/// ENOMEM.
pub fn before_protect(address: usize, length: usize, protection: c_int) -> Result<()> {
    let Some(runtime) = running() else { return Ok(()) };
    let mut inside = Entered::new(runtime);
    let Some(range) = inside.covered(address, length) else { return Ok(()) };
    inside.areas.table.protect(&range);
    inside.commit(range, protection, false)
}

/// Gives up what pages of areas hold, whatever their protection. None if some of the pages are
/// memory of `malloc`.
pub fn give_up_area(address: usize, length: usize) -> Option<()> {
    let inside = Entered::new(running()?);
    let range = inside.covered(address, length)?;
    for pieces in inside.areas.table.touchable(&range) {
        inside.drop_pages(&pieces);
    }
    Some(())
}

/// The lock, with signals blocked: a handler of the program that faults or maps would want it, too.
struct Entered {
    runtime: &'static Runtime,
    areas: Guard<'static, Areas>,
    _blocked: Blocked,
    _inside: Inside,
}

impl Entered {
    fn new(runtime: &'static Runtime) -> Entered {
        let _inside = Inside::enter();
        let _blocked = Blocked::all();
        Entered { runtime, areas: runtime.process.areas.lock(), _blocked, _inside }
    }

    /// The pages of an address range, if areas cover it.
    fn covered(&self, address: usize, length: usize) -> Option<Range<usize>> {
        let first = address.checked_sub(self.runtime.region_base)? / PAGE;
        let range = first..first.checked_add(length.div_ceil(PAGE))?;
        (address.is_multiple_of(PAGE) && self.areas.table.covers(&range)).then_some(range)
    }

    /// Address space for an area; it reads as zeros.
    fn allocate(&mut self, pages: usize) -> Option<FreedRun> {
        if pages >= PAGES_PER_SPAN {
            let range = self.take_spans(pages.div_ceil(PAGES_PER_SPAN))?;
            self.runtime.heap.mark_area_spans(range, true);
            return Some(FreedRun { first: PageNo::from(range.first * PAGES_PER_SPAN), pages });
        }
        let (run, zeroed) = self.runtime.relieved(|| self.runtime.heap.allocate_area(pages))?;
        if !zeroed {
            self.drop_run(run);
            self.runtime.heap.uncommit_area(run);
        }
        Some(run)
    }

    /// Spans for an area: those of an earlier one, or new ones.
    fn take_spans(&mut self, count: usize) -> Option<SpanRange> {
        let spans = &mut self.areas.free_spans;
        let found = spans.iter().find(|&(_, &length)| length >= count);
        if let Some((&first, &length)) = found {
            spans.remove(&first);
            if length > count {
                spans.insert(first + count, length - count);
            }
            return Some(SpanRange { first, count });
        }
        self.runtime.area_spans(count)
    }

    /// Keeps spans for a later area, with the free ones beside them.
    fn keep_spans(&mut self, mut range: SpanRange) {
        let spans = &mut self.areas.free_spans;
        if let Some(length) = spans.remove(&(range.first + range.count)) {
            range.count += length;
        }
        if let Some((&first, &length)) = spans.range(..range.first).next_back()
            && first + length == range.first
        {
            spans.remove(&first);
            range = SpanRange { first, count: length + range.count };
        }
        spans.insert(range.first, range.count);
    }

    /// Drops what the pages hold, and ends areas of which nothing is left.
    fn unmap(&mut self, range: Range<usize>) {
        self.clear(&range);
        self.areas.table.unmap(range.clone());
        for (first, area) in self.areas.table.ended(&range) {
            let pages = first..area.end;
            let usable = !area.is_protected || self.set_protection(&pages, USUAL).is_ok();
            self.areas.table.remove(first);
            allocations::forget(self.address(&pages).addr());
            if !usable {
                continue; // its address space is lost, nothing else
            }
            if pages.len() < PAGES_PER_SPAN {
                self.runtime.heap.free_area(run_of(&pages));
            } else {
                let count = pages.len().div_ceil(PAGES_PER_SPAN);
                let spans = SpanRange { first: first / PAGES_PER_SPAN, count };
                self.runtime.heap.mark_area_spans(spans, false);
                self.keep_spans(spans);
            }
        }
        self.publish();
    }

    /// Has pages mapped that read as zeros.
    fn empty(&mut self, range: &Range<usize>) {
        self.clear(range);
        self.areas.table.map(range.clone());
        self.publish();
    }

    /// Commits pages and gives them their protection.
    fn protect(&mut self, range: Range<usize>, protection: c_int, is_reserved: bool) -> Result<()> {
        self.commit(range.clone(), protection, is_reserved)?;
        let (_, area) = self.areas.table.area_of(range.start).ok_or(Errno::EINVAL)?;
        if protection == USUAL && !area.is_protected {
            return Ok(());
        }
        self.areas.table.protect(&range);
        self.set_protection(&range, protection)
    }

    /// Gives pages that are fresh, or not needed any more, their protection. Core dumps hold them.
    fn set_protection(&self, range: &Range<usize>, protection: c_int) -> Result<()> {
        for piece in self.areas.table.without_holes(range) {
            let (start, bytes) = (self.address(&piece), piece.len() * PAGE);
            // SAFETY: pages of an area: the program asks for it, or has given all of it up.
            unsafe {
                mapping::protect(start, bytes, protection)?;
                mapping::advise(start, bytes, Advice::DoDump)?;
            }
        }
        Ok(())
    }

    /// Has pages that can be touched from now on committed. A mapping that is only reserved is not:
    /// its pages take their room when they are touched. While the heap is plain, that counts
    /// against the budget all the same.
    fn commit(&mut self, range: Range<usize>, protection: c_int, is_reserved: bool) -> Result<()> {
        if protection == libc::PROT_NONE {
            return Ok(());
        }
        self.areas.table.touch(range.clone());
        while !is_reserved || self.runtime.pager().is_none() {
            match self.runtime.heap.commit_area(run_of(&range)) {
                Ok(()) => break,
                Err(shortage @ Shortage::Pages(_)) if self.runtime.relieve(shortage) => {}
                Err(_) => return Err(Errno::ENOMEM),
            }
        }
        Ok(())
    }

    /// Has pages read as zeros, and counts them as not committed.
    fn clear(&mut self, range: &Range<usize>) {
        self.close_holes(range);
        for piece in self.areas.table.end_touch(range) {
            self.drop_pages(&piece);
            self.runtime.heap.uncommit_area(run_of(&piece));
        }
    }

    /// Has pages read as zeros, holes apart.
    fn drop_pages(&self, range: &Range<usize>) {
        for piece in self.areas.table.without_holes(range) {
            self.drop_run(run_of(&piece));
        }
    }

    /// Puts memory back in place of the kernel's mappings.
    fn close_holes(&mut self, range: &Range<usize>) {
        for hole in self.areas.table.holes(range) {
            let (address, length) = (self.address(&hole), hole.len() * PAGE);
            // SAFETY: the program unmaps or replaces what it has mapped there.
            let replaced = unsafe { mapping::replace(address, length) };
            let is_back = replaced.is_ok()
                && self.runtime.pager().is_none_or(|pager| {
                    pager.manage_again(PageNo::from(hole.start), hole.len()).is_ok()
                });
            // Addresses that cannot be had back stay a hole, and their area never ends.
            if is_back {
                // Pages that were pinned when the hole was made.
                if let Some(pager) = self.runtime.pager() {
                    pager.refill(run_of(&hole));
                }
                self.areas.table.map(hole);
            }
        }
    }

    fn publish(&self) {
        let mapped = self.areas.table.mapped_pages() * PAGE;
        self.runtime.stats.set(number!(mapped_bytes), mapped as u64);
    }

    /// Has pages of an area read as zeros.
    fn drop_run(&self, run: FreedRun) {
        let give_back = || {
            // SAFETY: the program has given these bytes up.
            let _ = unsafe { mapping::give_back(self.address(&pages_of(run)), run.pages * PAGE) };
        };
        // Plain mode cannot end while we have the lock.
        let growth = self.runtime.growth.lock();
        let Some(pager) = self.runtime.pager() else { return give_back() };
        drop(growth);
        pager.part_from_files(run);
        if pager.discard_resident(run) {
            // Some are pinned or not taken over yet. Between the two a page may have been taken
            // over and have left RAM: the second look ends its copy.
            give_back();
            if pager.discard_resident(run) {
                pager.refill(run);
            }
        }
    }

    fn address(&self, range: &Range<usize>) -> *mut u8 {
        (self.runtime.region_base + range.start * PAGE) as *mut u8
    }
}

fn pages_of(run: FreedRun) -> Range<usize> {
    run.first.index()..run.first.index() + run.pages
}

fn run_of(range: &Range<usize>) -> FreedRun {
    FreedRun { first: PageNo::from(range.start), pages: range.len() }
}

const _: () = assert!(SPAN == PAGES_PER_SPAN * PAGE);
