//! Heap: the front door; hands out and takes back byte-granular allocations in spans.
//!
//! Small sizes come from slabs through the thread cache and the central lists, medium ones (to 1
//! MiB) are page runs that the thread cache may keep, larger ones are page runs, and those longer
//! than a span take consecutive spans. Objects of `objects.rs` are freed here as well.
//!
//! Guarantees: live allocations never overlap; memory that it hands out is committed and granted;
//! for a pointer that is not a live allocation the answer says so, and nothing changes.
//! Never: touches the memory it hands out; allocates after `new`, except that `ThreadCache::
//! new_in` maps pinned memory; blocks for longer than its own short locks.
//! Threads: any. Locks in order: central list, `Coalescing`, caches; none is held on return.

use core::sync::atomic::{AtomicBool, Ordering};

use deepheap_sys::errno::{self, Errno};
use deepheap_sys::threads::lock::Lock;

use crate::address_map::AddressMap;
use crate::fork::ForkGuards;
use crate::objects::Objects;
use crate::outcome::{Allocated, Freed, FreedRun, Shortage, Shrunk};
use crate::page::{PAGE, PAGES_PER_SPAN, PageNo, SPAN, SPAN_SHIFT};
use crate::saved::tables::RawHead;
use crate::slabs::central_list::CentralList;
use crate::slabs::size_class::{
    GRAIN, LAST_SMALL, PAGES_PER_SLAB, SIZE_CLASSES, SMALL_CLASSES, SMALL_MAX, aligned_class_of,
    medium_class_of, small_class_of,
};
use crate::slabs::thread_cache::{CacheMemory, Caches, Push, ThreadCache};
use crate::table::Populated;

/// Largest region: 2^30 pages.
const REGION_MAX: usize = 1 << 42;

/// A byte-granular heap over one region of address space.
pub struct Heap {
    pub(crate) map: AddressMap,
    pub(crate) lists: Box<[CentralList]>,
    pub(crate) caches: Caches,
    pub(crate) objects: Objects,
    pub(crate) fork_guards: Lock<Option<ForkGuards>>,
    report_free_pages: AtomicBool,
    /// The head page of a heap that is being loaded; see `saved/calls.rs`.
    pub(crate) loading: Lock<Option<RawHead>>,
    populated: Populated,
}

impl Heap {
    /// A heap over `[region_base, region_base + region_len)`, with no span usable and nothing
    /// granted yet.
    ///
    /// # Errors
    /// EINVAL if base or length is no multiple of `SPAN`, the region is empty, longer than 4 TiB or
    /// at address 0; ENOMEM if there is no address space for the tables.
    pub fn new(region_base: usize, region_len: usize) -> errno::Result<Heap> {
        let aligned = region_base.is_multiple_of(SPAN) && region_len.is_multiple_of(SPAN);
        let sane = region_base != 0 && (SPAN..=REGION_MAX).contains(&region_len);
        if !aligned || !sane || region_base.checked_add(region_len).is_none() {
            return Err(Errno::EINVAL);
        }
        let populated = Populated::default();
        let slabs = (region_len >> SPAN_SHIFT) * (PAGES_PER_SPAN / PAGES_PER_SLAB);
        let lists: errno::Result<Box<[_]>> =
            (1..=LAST_SMALL).map(|it| CentralList::new(it, slabs, &populated)).collect();
        Ok(Heap {
            map: AddressMap::new(region_base, region_len, &populated)?,
            lists: lists?,
            caches: Caches::new(),
            objects: Objects::new(region_len >> SPAN_SHIFT, &populated)?,
            fork_guards: Lock::new(None),
            report_free_pages: AtomicBool::new(false),
            loading: Lock::new(None),
            populated,
        })
    }

    /// An allocation of at least `size` bytes at a multiple of `align` (a power of two, at most
    /// a span) and of 16.
    ///
    /// # Errors
    /// A [`Shortage`] says what to provide before trying again, or that trying again is useless.
    #[inline(always)]
    pub fn allocate(
        &self,
        cache: &mut ThreadCache,
        size: usize,
        align: usize,
    ) -> Result<Allocated, Shortage> {
        if align <= GRAIN
            && let Some(ptr) = cache.allocate(size)
        {
            return Ok(Allocated { ptr, zeroed: false });
        }
        self.allocate_slowly(cache, size, align)
    }

    #[inline(never)]
    fn allocate_slowly(
        &self,
        cache: &mut ThreadCache,
        size: usize,
        align: usize,
    ) -> Result<Allocated, Shortage> {
        if !align.is_power_of_two() || align > SPAN {
            return Err(Shortage::TooLarge);
        }
        let class =
            if align <= GRAIN { small_class_of(size) } else { aligned_class_of(size, align) };
        match class {
            Some(class) => {
                let ptr = match cache.pop(class) {
                    Some(ptr) => ptr,
                    None => self.refill(cache, class)?,
                };
                Ok(Allocated { ptr, zeroed: false })
            }
            None => self.allocate_run(cache, size, align),
        }
    }

    fn refill(&self, cache: &mut ThreadCache, class: u8) -> Result<usize, Shortage> {
        let want = cache.next_batch(class);
        cache.fill(class, want, |filling| self.list(class).take(&self.map, want, filling))?;
        cache.pop(class).ok_or(Shortage::TooLarge)
    }

    fn allocate_run(
        &self,
        cache: &mut ThreadCache,
        size: usize,
        align: usize,
    ) -> Result<Allocated, Shortage> {
        let (pages, class) = run_pages_for(size);
        if let Some(class) = class
            && align <= PAGE
            && let Some(ptr) = cache.pop_medium(class)
        {
            if let Some(first) = self.map.page_at(ptr) {
                self.map.runs.tags.uncache(first, pages);
            }
            return Ok(Allocated { ptr, zeroed: false });
        }
        let (first, zeroed) = self.map.runs.allocate(pages, align.div_ceil(PAGE))?;
        Ok(Allocated { ptr: self.map.address_of_page(first), zeroed })
    }

    /// Takes back the allocation at `ptr`; never touches it.
    #[inline(always)]
    pub fn free(&self, cache: &mut ThreadCache, ptr: usize) -> Freed {
        let Some((slab, class, index)) = self.map.slot_at(ptr) else {
            return self.free_run(cache, ptr);
        };
        if !self.map.slabs.is_allocated(slab, &SIZE_CLASSES[class as usize], index) {
            return Freed::NotAllocated;
        }
        match cache.push(class, ptr) {
            Push::Cached => Freed::Done,
            Push::Twice => Freed::NotAllocated,
            Push::Full => self.free_to_full(cache, class, ptr),
        }
    }

    #[inline(never)]
    fn free_to_full(&self, cache: &mut ThreadCache, class: u8, ptr: usize) -> Freed {
        let report = self.report_free_pages.load(Ordering::Relaxed);
        let list = self.list(class);
        let freed = cache.drain_half(class, |half| list.put(&self.map, half, report));
        let pushed = cache.push(class, ptr);
        debug_assert!(pushed == Push::Cached);
        freed
    }

    #[inline(never)]
    fn free_run(&self, cache: &mut ThreadCache, ptr: usize) -> Freed {
        let Some((first, pages)) = self.map.run_at(ptr) else {
            return self.free_object(ptr);
        };
        if let Some(class) = medium_class_of(pages)
            && SIZE_CLASSES[class as usize].run_pages() == pages
            && cache.push_medium(class, ptr, pages * PAGE)
        {
            self.map.runs.tags.cache(first, pages);
            return Freed::Done;
        }
        match self.map.runs.hold(first) {
            Some(run) => Freed::Run(run),
            None => Freed::NotAllocated,
        }
    }

    /// Takes a run that left use when no answer could carry it (several slabs at once, a thread's
    /// exit). Call it until None after `thread_exit` and `reclaim_orphans`, and now and then.
    pub fn take_freed(&self) -> Option<FreedRun> {
        self.map.runs.take_parked()
    }

    /// Ends the quarantine of `run`, which may be used again from now on. `still_resident`: its old
    /// bytes may still be readable; otherwise every page reads as zeros.
    pub fn recycle(&self, run: FreedRun, still_resident: bool) {
        self.map.runs.recycle(run, !still_resident);
    }

    /// Free pages that may hold old bytes.
    pub fn dirty_free_pages(&self) -> usize {
        self.map.runs.dirty_free.all()
    }

    /// If more than `max_dirty_pages` free pages may hold old bytes: puts a run of them (up to
    /// 4 MiB, free pages without bytes possibly among them) in quarantine, for the caller to
    /// discard and `recycle(run, false)`.
    pub fn take_purgeable(&self, max_dirty_pages: usize) -> Option<FreedRun> {
        self.map.runs.take_purgeable(max_dirty_pages)
    }

    /// Bytes that the live allocation at `ptr` can hold; fast. If `ptr` is not one, it answers
    /// None, or the size of a free slot that starts there; [`Heap::allocation_size`] can tell. For
    /// an array of objects it answers the size of an element.
    #[inline(always)]
    pub fn usable_size(&self, ptr: usize) -> Option<usize> {
        match self.map.slot_at(ptr) {
            Some((_, class, _)) => Some(SIZE_CLASSES[class as usize].size as usize),
            None => self.run_size(ptr),
        }
    }

    /// Bytes the allocation at `ptr` can hold; None if `ptr` is not the start of a live one.
    pub fn allocation_size(&self, ptr: usize) -> Option<usize> {
        self.map.size_at(ptr).or_else(|| self.object_size(ptr))
    }

    #[inline(never)]
    fn run_size(&self, ptr: usize) -> Option<usize> {
        match self.map.run_at(ptr) {
            Some((_, pages)) => Some(pages * PAGE),
            None => self.object_size(ptr),
        }
    }

    /// Grows the allocation at `ptr` to `new_size` bytes without moving it; returns whether it did.
    /// The new bytes need not be zero.
    ///
    /// # Errors
    /// `Shortage::Pages`: there is room to grow once that many pages are granted.
    pub fn grow_in_place(&self, ptr: usize, new_size: usize) -> Result<bool, Shortage> {
        match self.map.run_at(ptr) {
            Some((first, pages)) if new_size > pages * PAGE => {
                self.map.runs.grow(first, run_pages_for(new_size).0)
            }
            _ => Ok(self.allocation_size(ptr).is_some_and(|usable| new_size <= usable)),
        }
    }

    /// Shrinks the allocation at `ptr` to `new_size` in place, if that saves an eighth.
    pub fn shrink_in_place(&self, ptr: usize, new_size: usize) -> Shrunk {
        match self.map.run_at(ptr) {
            Some((first, pages)) if new_size > SMALL_MAX => {
                let kept = run_pages_for(new_size).0;
                if kept >= pages - pages / 8 {
                    return Shrunk::Done;
                }
                self.map.runs.shrink(first, kept)
            }
            _ => match self.allocation_size(ptr) {
                None => Shrunk::NotAllocated,
                Some(usable) if new_size < usable / 2 => Shrunk::Wasteful,
                Some(_) => Shrunk::Done,
            },
        }
    }

    /// Bytes of the region.
    pub fn region_bytes(&self) -> usize {
        self.map.len()
    }

    /// Whether `ptr` lies in the region (not: whether it is allocated).
    #[inline(always)]
    pub fn contains(&self, ptr: usize) -> bool {
        self.map.contains(ptr)
    }

    /// True only if no allocation made before the call and not yet freed touches the page; may be
    /// false for a free page. A caller that is going to drop the page's bytes must unmap it before
    /// asking. Lock-free, for signal handlers too.
    #[inline]
    pub fn page_is_free(&self, page: PageNo) -> bool {
        self.map.page_is_free(page)
    }

    /// Sets whether `free` looks for pages of kept slabs that became free (`Freed::Pages`); off at
    /// first.
    pub fn report_free_pages(&self, on: bool) {
        self.report_free_pages.store(on, Ordering::Relaxed);
    }

    /// Whether the page of memory may be in use; a page that is not is nobody's to touch.
    /// Lock-free, for signal handlers too.
    #[inline]
    pub fn is_handed_out(&self, page: PageNo) -> bool {
        self.map.runs.is_handed_out(page.index())
    }

    /// Usable bytes of live allocations, objects included; those in thread caches are not live. A
    /// snapshot, inexact while other threads allocate.
    pub fn allocated_bytes(&self) -> usize {
        let objects: usize = self.lists.iter().map(CentralList::allocated_bytes).sum();
        let runs = self.map.runs.run_pages.load(Ordering::Relaxed) * PAGE;
        (objects + runs).saturating_sub(self.cached_bytes()) + self.object_bytes()
    }

    /// Bytes in thread caches: counted by `committed_pages`, not by `allocated_bytes`.
    pub fn cached_bytes(&self) -> usize {
        self.caches.taken().map(CacheMemory::held_bytes).sum()
    }

    /// Bytes of memory the heap's own tables and caches take up.
    pub fn metadata_bytes(&self) -> usize {
        self.populated.load(Ordering::Relaxed) * PAGE + self.caches.mapped_bytes()
    }

    /// Empties `cache` and pools it for the next thread. Then drain `take_freed`.
    pub fn thread_exit(&self, cache: ThreadCache) {
        self.empty(cache.memory());
        self.caches.give_back(cache.memory());
    }

    /// Gives back all that is in `cache`, which stays in use: before the heap is saved. Then drain
    /// `take_freed`. Nobody uses the cache meanwhile.
    pub fn flush(&self, cache: &ThreadCache) {
        self.empty(cache.memory());
    }

    /// Gives all that is cached back, and parks the runs that leave use.
    pub(crate) fn empty(&self, cache: &'static CacheMemory) {
        cache.drain_all(|class, addresses| {
            if class as usize <= SMALL_CLASSES {
                if let Freed::Run(run) = self.list(class).put(&self.map, addresses, false) {
                    self.map.runs.park(run);
                }
                return;
            }
            let hold = |&ptr| self.map.runs.hold(self.map.page_at(ptr)?);
            for run in addresses.iter().filter_map(hold) {
                self.map.runs.park(run);
            }
        });
    }

    fn list(&self, class: u8) -> &CentralList {
        &self.lists[class as usize - 1]
    }

    /// Takes every lock of the heap, before a fork or a `save`. Until `after_fork` this thread
    /// calls nothing else of it. In a handler it leaves those out that the interrupted code has,
    /// and answers false; then call nothing of the heap in the child until that code goes on.
    pub fn fork_prepare(&'static self) -> bool {
        let guards = ForkGuards::take(&self.lists, &self.map, &self.caches, &self.objects);
        let are_all = guards.are_all();
        *self.fork_guards.lock() = Some(guards);
        are_all
    }

    /// Releases them, in parent and child. Threads that waited for them are not in the child.
    pub fn after_fork(&'static self) {
        *self.fork_guards.lock() = None;
    }

    /// In the child, after `after_fork`: empties and pools the caches of the threads that are no
    /// more. Then drain `take_freed`.
    pub fn reclaim_orphans(&self, own: Option<&ThreadCache>) {
        let own = own.map(|cache| core::ptr::from_ref(cache.memory()));
        for cache in self.caches.taken().filter(|&cache| Some(core::ptr::from_ref(cache)) != own) {
            self.empty(cache);
            self.caches.give_back(cache);
        }
    }
}

/// How many pages a run for `size` bytes has, and its medium class if it has one.
fn run_pages_for(size: usize) -> (usize, Option<u8>) {
    let pages = size.div_ceil(PAGE).max(1);
    if size <= SMALL_MAX {
        return (pages, None);
    }
    match medium_class_of(pages) {
        Some(class) => (SIZE_CLASSES[class as usize].run_pages(), Some(class)),
        None => (pages, None),
    }
}
