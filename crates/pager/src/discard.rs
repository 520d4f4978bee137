//! Discard: freed memory leaves the store, the cache and, when it is worth a system call, DRAM.
//!
//! Guarantees: pages of a quarantined run have no stored or cached copy afterwards; live bytes of
//! the log go down at once. Resident pages of small runs stay for the next allocation (the evictor
//! drops them if none comes).
//! Never: allocates, touches managed memory. All signals are blocked inside: a handler of the
//! program that touched managed memory would find our locks held.
//! Threads: any that frees.

use core::ptr::null_mut;

use deepheap_heap::{FreedRun, PageNo};
use deepheap_sys::page_extractor::BATCH_MAX;
use deepheap_sys::signals::Blocked;

use crate::PAGE;
use crate::descriptor::{DescriptorId, State};
use crate::gate::Level;
use crate::object_table::Place;
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
        // Pages of spans not looked at yet are Zero in the table and may be present all the same.
        let mut resident = self.has_plain_spans() && !self.heap.is_object_page(run.first);
        let mut owned = [DescriptorId(0); BATCH_MAX];
        let mut start = 0;
        while start < run.pages {
            let end = (start + BATCH_MAX).min(run.pages);
            let mut count = 0;
            for offset in start..end {
                let page = PageNo(run.first.0 + offset as u32);
                if let Some(id) = self.end_or_claim(page, zap) {
                    owned[count] = id;
                    count += 1;
                } else if matches!(self.table.load(page), Place::Busy(_)) {
                    resident = true;
                }
            }
            if count > 0 {
                resident |= !self.zap_owned(&owned[..count]);
            }
            start = end;
        }
        resident
    }

    /// Drops the stored copies of pages that look free, after asking again under ownership.
    pub fn discard_free_pages(&self, pages: &[PageNo]) {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        for &page in pages {
            if let Place::Stored(block) = self.table.load(page) {
                self.drop_stored_if_free(page, block);
            }
        }
    }

    /// Ends the object of a page, except a resident one: that is claimed if it is to be zapped, and
    /// otherwise only loses its home.
    fn end_or_claim(&self, page: PageNo, zap: bool) -> Option<DescriptorId> {
        loop {
            let place = self.table.load(page);
            match place {
                Place::Zero => return None,
                Place::Stored(block) => {
                    if self.table.replace(page, place, Place::Zero) {
                        self.store.retire(block, self.cost_of(page));
                        return None;
                    }
                }
                Place::Cached(id) => {
                    if self.table.replace(page, place, Place::Busy(id)) {
                        self.cache.give_back(self.descriptors.get(id).slot());
                        self.end_as_zero(id);
                        return None;
                    }
                }
                Place::Busy(id) => {
                    let descriptor = self.descriptors.get(id);
                    let seen = descriptor.state();
                    if self.table.load(page) != place {
                        continue;
                    }
                    let to = if zap { State::Leaving } else { State::Moving };
                    if seen.state() != State::Resident {
                        descriptor.wait_while(seen);
                    } else if descriptor.claim(to) {
                        if self.table.load(page) != place {
                            descriptor.change(State::Resident);
                            continue;
                        }
                        if zap && !descriptor.is_pinned() {
                            return Some(id);
                        }
                        self.drop_home(descriptor);
                        descriptor.change(State::Resident);
                        return None;
                    }
                }
            }
        }
    }

    /// Drops owned pages, in address order. Only these: one between them that was Zero may have
    /// come meanwhile as the fresh neighbour of another's, and what is Resident must be there.
    fn zap_owned(&self, owned: &[DescriptorId]) -> bool {
        let mut ranges = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; BATCH_MAX];
        let mut count = 0;
        for &id in owned {
            let address = self.address_of(self.descriptors.get(id).page());
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
        // SAFETY: the pages lie in managed spans, nobody wants their bytes, and they are ours to
        // move.
        let zapped = unsafe { self.zapper.get().zap(&ranges[..count]) }.is_ok();
        for &id in owned {
            if zapped {
                self.ranges.leave(self.descriptors.get(id).page());
                self.end_as_zero(id);
                self.page_buffer.unreserve(1);
            } else {
                self.descriptors.get(id).change(State::Resident);
            }
        }
        zapped
    }
}
