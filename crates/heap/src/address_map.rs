//! Address map: finds what is allocated at an address, by shifts and at most two loads.
//!
//! Guarantees: an address that is not the start of a live allocation is never taken for one
//! (objects in thread caches count as live). `page_is_free` errs towards "no".
//! Never: locks, writes, touches managed memory.
//! Threads: any, at any time, also in signal handlers.

use deepheap_sys::errno::Result;

use crate::page::{PAGE, PAGE_SHIFT, PAGES_PER_SPAN, PageNo, SPAN_SHIFT};
use crate::runs::coalescing::Coalescing;
use crate::runs::tags::RunState;
use crate::slabs::bits::Slabs;
use crate::slabs::size_class::{PAGES_PER_SLAB, SIZE_CLASSES, SLAB, SLAB_SHIFT};
use crate::table::Populated;

/// The region and its tables.
pub(crate) struct AddressMap {
    base: usize,
    len: usize,
    pub(crate) slabs: Slabs,
    pub(crate) runs: Coalescing,
}

impl AddressMap {
    /// The tables of the region `[base, base + len)`, both multiples of a span.
    pub(crate) fn new(base: usize, len: usize, populated: &Populated) -> Result<Self> {
        Ok(Self {
            base,
            len,
            slabs: Slabs::new(len >> SLAB_SHIFT, populated)?,
            runs: Coalescing::new(len >> SPAN_SHIFT, populated)?,
        })
    }

    /// The address of the region's first byte.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Bytes in the region.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether `ptr` lies in the region.
    #[inline]
    pub(crate) fn contains(&self, ptr: usize) -> bool {
        ptr.wrapping_sub(self.base) < self.len
    }

    /// How far into the region `ptr` lies; None if it lies outside.
    #[inline]
    pub(crate) fn offset_of(&self, ptr: usize) -> Option<usize> {
        let offset = ptr.wrapping_sub(self.base);
        (offset < self.len).then_some(offset)
    }

    /// The address of a page.
    #[inline]
    pub(crate) fn address_of_page(&self, page: usize) -> usize {
        self.base + (page << PAGE_SHIFT)
    }

    /// The address of a slab.
    #[inline]
    pub(crate) fn address_of_slab(&self, slab: usize) -> usize {
        self.base + (slab << SLAB_SHIFT)
    }

    /// The page that starts at `ptr`; None if none does.
    #[inline]
    pub(crate) fn page_at(&self, ptr: usize) -> Option<usize> {
        let offset = ptr.wrapping_sub(self.base);
        (offset < self.len && offset.is_multiple_of(PAGE)).then_some(offset >> PAGE_SHIFT)
    }

    /// The object slot that starts at `ptr`: its slab, class and index. Not whether it is
    /// allocated.
    #[inline(always)]
    pub(crate) fn slot_at(&self, ptr: usize) -> Option<(usize, u8, usize)> {
        let offset = ptr.wrapping_sub(self.base);
        // Beyond the region there is no slab, hence class 0, of which no object starts anywhere.
        let slab = offset >> SLAB_SHIFT;
        let class = self.slabs.class_of(slab);
        let index = SIZE_CLASSES[class as usize].index_at(offset & (SLAB - 1))?;
        Some((slab, class, index))
    }

    /// Bytes of the live allocation that starts at `ptr`, unless that is an object.
    pub(crate) fn size_at(&self, ptr: usize) -> Option<usize> {
        if let Some((slab, class, index)) = self.slot_at(ptr) {
            let class = &SIZE_CLASSES[class as usize];
            return self.slabs.is_allocated(slab, class, index).then_some(class.size as usize);
        }
        self.run_at(ptr).map(|(_, pages)| pages * PAGE)
    }

    /// The allocated run that starts at `ptr`: its first page and length in pages.
    #[inline]
    pub(crate) fn run_at(&self, ptr: usize) -> Option<(usize, usize)> {
        let first = self.page_at(ptr)?;
        match self.runs.tags.get(first) {
            (RunState::Allocated, pages) => Some((first, pages)),
            _ => None,
        }
    }

    /// See `Heap::page_is_free`.
    ///
    /// Why "true" is sound. Let X be an allocation that touches the page, made before the call
    /// and not freed until it returns.
    ///
    /// 1. While X lives, what the answer depends on does not change: X's slab keeps its class
    ///    (only a slab without allocated objects is closed, under the same lock that sets the
    ///    bits), X's own bit stays set, and where X is a run there is no slab and the page's bit
    ///    in `live_pages` stays set. Object spans have no slabs; there the page's bit in
    ///    `live_pages` is set before the first of its objects is handed out, and cleared when the
    ///    last is freed, both under the pool's lock where objects share a page. So the loads below
    ///    cannot mix two epochs of the page as far as X is concerned; what they see of other
    ///    objects only ever adds a "no". This is why no sequence counter is needed: the class is
    ///    one atomic byte, and where the bits are depends on nothing but the class.
    /// 2. The loads do see X. The caller has unmapped the page before the call. If the program
    ///    stored to X through the old mapping, then that store was in memory when the unmapping
    ///    returned (the TLB shootdown drains every core's stores), and the stores to the bits
    ///    came before it in program order: the allocating thread sets them, then passes a
    ///    release fence, then returns the pointer; x86 keeps the order of stores. If the pointer
    ///    went to another thread, that hand-over orders the two. So the bits are in memory too.
    ///    Where X shares an object page, another thread may have set the page's bit, for an
    ///    earlier object; it gave up the pool's lock before the allocating thread took it.
    /// 3. If the program has not stored to X yet, it will fault on the page and wait for the
    ///    caller; the bytes that the caller drops are not X's.
    ///
    /// An object in a thread cache has its bit set: taking it out of the cache writes nothing
    /// here, and need not. A freed one has its bit cleared, at the latest at the next flush.
    pub(crate) fn page_is_free(&self, page: PageNo) -> bool {
        let page = page.index();
        let slab = page / PAGES_PER_SLAB;
        match self.slabs.class_of(slab) {
            0 => !self.runs.live_pages.get(page) && !self.runs.is_area_span(page / PAGES_PER_SPAN),
            class => {
                let class = &SIZE_CLASSES[class as usize];
                self.slabs.page_is_free(slab, class, page % PAGES_PER_SLAB)
            }
        }
    }
}

const _: () = assert!(PAGES_PER_SPAN.is_multiple_of(PAGES_PER_SLAB));
