//! Discard: removes freed memory from the store, from the cache and, if that is worth a system
//! call, from DRAM.
//!
//! Guarantees: pages of a quarantined run have no stored or cached copy afterwards; the live bytes
//! of the log go down at once. Resident pages of small runs stay for the next allocation; the
//! evictor drops them if none comes.
//! Never: allocates, touches managed memory. All signals are blocked inside: otherwise a handler of
//! the program that touches managed memory would find our locks held.
//! Threads: any that frees.

use core::ptr::null_mut;

use deepheap_heap::{FreedRun, PageNo};
use deepheap_residency::ownership::{Found, Owned, OwnedList, Place};
use deepheap_sys::memory::page_extractor::BATCH_MAX;
use deepheap_sys::threads::signals::Blocked;

use crate::PAGE;
use crate::gate::Level;
use crate::pager::Pager;

/// Runs of at least this many pages give their DRAM back at once.
const ZAP_PAGES: usize = 256;

impl Pager {
    /// Ends every object of a run of pages in quarantine. True if pages of it may still be
    /// resident.
    pub fn discard(&self, run: FreedRun) -> bool {
        self.end_objects(run, run.pages >= ZAP_PAGES)
    }

    /// As `discard`, but gives the DRAM back however short the run is.
    pub fn discard_resident(&self, run: FreedRun) -> bool {
        self.end_objects(run, true)
    }

    fn end_objects(&self, run: FreedRun, zap: bool) -> bool {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        // Pages of spans that were not taken over yet are `Zero` in the table, but may be present.
        let mut resident = self.plain_spans.any() && !self.residency.heap.is_object_page(run.first);
        let mut owned = OwnedList::<BATCH_MAX>::empty();
        let run_end = run.first.0 as usize + run.pages;
        let mut next = run.first.0 as usize;
        // Much of a long run may never have been touched.
        while let Some(start) = self.residency.ownership.table.next_object(next, run_end) {
            let end = (start + BATCH_MAX).min(run_end);
            for page in start..end {
                let page = PageNo(page as u32);
                if let Some(one) = self.end_or_claim(page, zap) {
                    owned.push(one);
                } else if matches!(self.residency.ownership.place(page), Place::Busy(_)) {
                    resident = true;
                }
            }
            if !owned.is_empty() {
                resident |= !self.zap_owned(&mut owned);
            }
            next = end;
            self.limit_table_inside();
        }
        resident
    }

    /// Drops the stored copies of pages that look free, after asking the heap again once they are
    /// owned.
    pub fn discard_free_pages(&self, pages: &[PageNo]) {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        for &page in pages {
            if let Place::Stored(block) = self.residency.ownership.place(page) {
                let _ = self.residency.stored_to_zero_if_free(page, block);
            }
        }
    }

    /// Ends the object of a page, unless it is resident: then it is claimed if it is to be zapped,
    /// and otherwise only loses its backing block.
    fn end_or_claim(&self, page: PageNo, zap: bool) -> Option<Owned> {
        loop {
            match self.residency.ownership.look(page) {
                // Nobody finds it again: neither it nor what comes after it there.
                Found::Zero | Found::Lost => return None,
                Found::Stored(block) => {
                    if self.residency.stored_to_zero(page, block) {
                        return None;
                    }
                }
                Found::Cached(id) => {
                    if let Some(owned) = self.residency.ownership.claim_cached(page, id) {
                        self.residency.cached_to_zero(owned);
                        return None;
                    }
                }
                Found::OnItsWay(seen) => self.residency.ownership.wait(seen),
                Found::Resident(_)
                    if zap
                        && let Some(lanes) = self.lanes_of(page)
                        && !lanes.is_exiled(page) =>
                {
                    if self.end_in_lane(lanes, page) {
                        return None;
                    }
                }
                Found::Resident(seen) => {
                    let Some(owned) = self.residency.ownership.claim_resident(page, seen.id())
                    else {
                        continue;
                    };
                    if zap && !self.residency.ownership.of(&owned).is_pinned() {
                        return Some(owned);
                    }
                    self.residency.drop_backing(&owned);
                    self.residency.ownership.put_back(owned);
                    return None;
                }
            }
        }
    }

    /// Drops owned pages, in address order. It zaps only these: a page between them that was `Zero`
    /// may be resident by now, as the fresh neighbour of another fault, and a resident page must be
    /// present.
    fn zap_owned(&self, owned: &mut OwnedList<BATCH_MAX>) -> bool {
        let mut ranges = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; BATCH_MAX];
        let mut count = 0;
        for index in 0..owned.len() {
            let page = self.residency.ownership.descriptor(owned.id(index)).page();
            let address = self.residency.frames.address_of(page);
            match ranges[..count].last_mut() {
                Some(range) if range.iov_base.addr() + range.iov_len == address => {
                    range.iov_len += PAGE;
                }
                _ => {
                    let iov_base = address as *mut libc::c_void;
                    ranges[count] = libc::iovec { iov_base, iov_len: PAGE };
                    count += 1;
                }
            }
        }
        // SAFETY: the pages lie in managed spans, they are owned here, and nobody needs their
        // bytes.
        let zapped = unsafe { self.residency.frames.zapper().zap(&ranges[..count]) }.is_ok();
        for index in 0..owned.len() {
            let one = owned.take(index);
            if zapped {
                self.residency.frames.ranges.leave(self.residency.ownership.of(&one).page());
                self.residency.to_zero(one);
                self.residency.frames.page_buffer.unreserve(1);
            } else {
                self.residency.ownership.put_back(one);
            }
        }
        zapped
    }
}
