//! Release: gives back what the program has freed: memory to the kernel, chunks to their pools,
//! promises of space to the store.
//!
//! Guarantees: the heap hands a freed page out again only after its stored and cached copies are
//! gone, and knows whether the page may still hold old bytes.
//! Never: touches a page that was freed.
//! Threads: any, outside the fault path; `return_space` is the collector's.

use core::sync::atomic::Ordering;

use deepheap_heap::{Freed, FreedObjects, FreedRun, PAGE};
use deepheap_pager::Pager;
use deepheap_sys::memory::mapping::{self, Advice};
use deepheap_sys::process::clock;
use deepheap_sys::threads::signals::Blocked;

use crate::runtime::{GRANT_BLOCKS, Runtime};
use crate::stats::observe::publish_gauges;

/// Free pages with old bytes that plain mode keeps for reuse, at least.
const DIRTY_PAGES_LEAST: usize = 4096;
/// Fruitless looks after which there is nothing more to give back.
const RETURN_LOOKS: u32 = 8;
/// So many pages freed, at once or one by one, make the collector look for space to give back.
const RETURNING_PAGES: usize = 256;

impl Runtime {
    /// Does what a free leaves to do; false if nothing was freed.
    #[inline]
    pub(crate) fn end_freed(&'static self, freed: Freed) -> bool {
        match freed {
            Freed::Done => {}
            Freed::Run(run) => self.end_run(run),
            Freed::Pages(pages) => {
                if let Some(pager) = self.pager() {
                    pager.discard_free_pages(pages.as_slice());
                }
            }
            Freed::Objects(freed) => self.end_objects(freed),
            Freed::NotAllocated => return false,
        }
        true
    }

    /// Ends a run of pages that left use, and those that the heap parked meanwhile.
    pub(crate) fn end_run(&'static self, run: FreedRun) {
        self.end_one_run(run);
        self.end_parked_runs();
    }

    /// Ends the runs that the heap parked because no free could carry them.
    pub(crate) fn end_parked_runs(&'static self) {
        while let Some(run) = self.heap.take_freed() {
            self.end_one_run(run);
        }
    }

    /// Ends what was on the pages of freed objects.
    fn end_objects(&'static self, freed: FreedObjects) {
        let Some(pager) = self.pager() else { return };
        let resident = match freed.reshaped {
            true => pager.discard_resident(freed.run()),
            false => pager.discard(freed.run()),
        };
        self.heap.recycle_objects(freed, resident);
        self.end_idle_objects_in_turn(pager);
        if may_return(self, freed.run()) {
            self.expect_space_to_return(pager);
        }
    }

    fn end_one_run(&'static self, run: FreedRun) {
        match self.pager() {
            Some(pager) => {
                let resident = pager.discard(run);
                self.heap.recycle(run, resident);
                if may_return(self, run) {
                    self.expect_space_to_return(pager);
                }
            }
            None => {
                self.heap.recycle(run, true);
                self.purge_surplus();
            }
        }
    }

    /// Has pools part with the chunks without an object that they keep for the next one.
    pub(crate) fn return_idle_objects(&self, pager: &Pager) {
        self.heap.retire_empty_pools();
        self.end_idle_objects(pager);
    }

    /// After a free: ends chunks of objects that nobody uses any more. Those with pinned pages were
    /// looked at in vain: again after as many frees as they have pages, so that a free pays for a
    /// page of them at most.
    fn end_idle_objects_in_turn(&self, pager: &Pager) {
        match self.returning.idle_pause.load(Ordering::Relaxed) {
            0 => self.end_idle_objects(pager),
            // Others count down as well: a hint.
            pause => self.returning.idle_pause.store(pause - 1, Ordering::Relaxed),
        }
    }

    fn end_idle_objects(&self, pager: &Pager) {
        const PINNED_MAX: usize = 8;
        let mut pinned = [None; PINNED_MAX];
        let mut count = 0;
        while count < PINNED_MAX
            && let Some(idle) = self.heap.take_idle_objects()
        {
            if pager.discard_resident(idle.run()) {
                pinned[count] = Some(idle);
                count += 1;
            } else {
                self.heap.recycle_objects(idle, false);
                self.expect_space_to_return(pager);
            }
        }
        let pinned = pinned.into_iter().flatten();
        self.returning
            .idle_pause
            .store(pinned.clone().map(|idle| idle.pages).sum(), Ordering::Relaxed);
        pinned.for_each(|idle| self.heap.recycle_objects(idle, true));
    }

    /// Gives the memory of free pages back while more than `keep` of them hold old bytes.
    pub(crate) fn purge(&self, keep: usize) {
        while let Some(run) = self.heap.take_purgeable(keep) {
            let stays = match self.pager() {
                Some(pager) => pager.discard_resident(run),
                None => !drop_plain(self, run),
            };
            self.heap.recycle(run, stays);
            if stays {
                return;
            }
        }
    }

    /// Notes that much was freed: the collectors give space of the store back at leisure.
    pub(crate) fn expect_space_to_return(&self, pager: &Pager) {
        if self.returning.looks_left.swap(RETURN_LOOKS, Ordering::Relaxed) == 0 {
            pager.store().call_collectors();
        }
    }

    pub(crate) fn has_space_to_return(&self) -> bool {
        self.returning.looks_left.load(Ordering::Relaxed) > 0
    }

    /// Drops what the pages of a run hold, which the program does not know yet or has given up;
    /// false if some of it may be left.
    pub(crate) fn drop_old_bytes(&self, run: FreedRun) -> bool {
        if let Some(pager) = self.pager() {
            return !pager.discard_resident(run);
        }
        // As in `purge_surplus`.
        let _blocked = Blocked::all();
        let Some(_growth) = self.growth.try_lock() else { return false };
        self.pager().is_none() && drop_plain(self, run)
    }

    /// Plain mode: keeps free memory within an eighth of what is in use.
    fn purge_surplus(&self) {
        let keep = DIRTY_PAGES_LEAST.max(self.heap.committed_pages() / 8);
        if self.heap.dirty_free_pages() <= keep {
            return;
        }
        // Plain mode cannot end while we have the growth lock. A handler of the program that forks
        // would want the lock, too.
        let _blocked = Blocked::all();
        let Some(_growth) = self.growth.try_lock() else { return };
        if self.pager().is_some() {
            return;
        }
        self.purge(keep);
        publish_gauges(self);
    }
}

/// Whether a free should make the collector look: one in so many by the number of its first
/// page, so that threads that free count nothing together. The file of a durable heap shrinks
/// at large frees, and by `compact`.
fn may_return(runtime: &Runtime, run: FreedRun) -> bool {
    let mixed = u64::from(run.first.0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> u32::BITS;
    let is_enough = run.pages >= RETURNING_PAGES;
    is_enough || runtime.durable.is_none() && run.pages > mixed as usize % RETURNING_PAGES
}

/// Plain mode: gives the memory of a run back, which nobody needs the bytes of; false if the
/// kernel refuses.
fn drop_plain(runtime: &Runtime, run: FreedRun) -> bool {
    let address = runtime.region_base + run.first.0 as usize * PAGE;
    // SAFETY: our own memory, in quarantine, just allocated, or given up by the program.
    unsafe { mapping::advise(address as *mut u8, run.pages * PAGE, Advice::DontNeed).is_ok() }
}

/// Collector: takes back what was granted and is not used any more, and gives space that has been
/// free for a while back to the device (discard later: live bytes went down at the free).
pub(crate) fn return_space(runtime: &Runtime, pager: &Pager) {
    if !runtime.has_space_to_return() {
        return;
    }
    let (pages, blocks) = runtime.heap.try_revoke_but(GRANT_BLOCKS, GRANT_BLOCKS as u64);
    let pages = if runtime.config.is_lazy() { 0 } else { pages as u64 };
    pager.store().unreserve(pages + blocks);
    runtime.return_promises(pager);
    if pager.store().discard_idle(clock::monotonic_ns()) == 0 {
        runtime.returning.looks_left.fetch_sub(1, Ordering::Relaxed);
    }
    publish_gauges(runtime);
}

/// The same for space of the second tier. While it has some, both collectors go on to look.
pub(crate) fn return_space_of_tier(runtime: &Runtime, pager: &Pager) {
    if runtime.has_space_to_return()
        && let Some(second) = pager.store().second_tier()
        && second.discard_idle(clock::monotonic_ns()) > 0
    {
        runtime.expect_space_to_return(pager);
    }
}
