//! Region: a heap over really mapped memory, with the runtime's part played in a few lines.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::atomic::{AtomicUsize, Ordering};

use deepheap_heap::{
    Allocated, Freed, FreedObjects, FreedRun, Heap, PAGE, PAGES_PER_SPAN, SPAN, Shortage,
    ThreadCache,
};
use deepheap_sys::memory::mapping::{self, Advice};

/// What happens to freed runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Recycling {
    /// Discarded and recycled clean.
    Discard,
    /// Recycled as they are.
    Keep,
}

pub struct Region {
    pub heap: &'static Heap,
    pub base: usize,
    recycling: Recycling,
    pub grant_step: usize,
}

impl Region {
    pub fn new(spans: usize, recycling: Recycling) -> Region {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let len = spans * SPAN;
        let hint = NEXT.fetch_add(len + SPAN, Ordering::Relaxed);
        let base = mapping::reserve(len, SPAN, hint).expect("address space");
        // SAFETY: the range was reserved just now and nothing else uses it.
        unsafe { mapping::commit(base, len) }.expect("memory");
        let heap = Heap::new(base as usize, len).expect("pinned memory");
        Region { heap: Box::leak(Box::new(heap)), base: base as usize, recycling, grant_step: 64 }
    }

    /// The same memory under another heap.
    pub fn under(&self, heap: Heap) -> Region {
        let Region { base, recycling, grant_step, .. } = *self;
        Region { heap: Box::leak(Box::new(heap)), base, recycling, grant_step }
    }

    pub fn cache(&self) -> ThreadCache {
        ThreadCache::new_in(self.heap).expect("pinned memory")
    }

    /// Allocates, providing what is short; None if the region is full.
    pub fn allocate(
        &self,
        cache: &mut ThreadCache,
        size: usize,
        align: usize,
    ) -> Option<Allocated> {
        loop {
            match self.heap.allocate(cache, size, align) {
                Ok(allocated) => return Some(allocated),
                Err(Shortage::Pages(pages)) => self.heap.grant(pages.max(self.grant_step)),
                Err(Shortage::Spans(count)) => {
                    let spans = self.heap.begin_spans(count)?;
                    self.heap.publish_spans(spans);
                }
                Err(_) => return None,
            }
        }
    }

    pub fn free(&self, cache: &mut ThreadCache, ptr: usize) {
        match self.heap.free(cache, ptr) {
            Freed::Run(run) => self.recycle(run),
            Freed::Done | Freed::Pages(_) => {}
            Freed::Objects(freed) => self.end_objects(freed),
            Freed::NotAllocated => panic!("free of {ptr:#x} refused"),
        }
    }

    /// An object, or an array of `count`; None if the region is full.
    pub fn allocate_objects(&self, count: usize, size: usize) -> Option<Allocated> {
        loop {
            match self.heap.allocate_object_array(count, size) {
                Ok(allocated) => return Some(allocated),
                Err(Shortage::ObjectBlocks(blocks)) => {
                    self.heap.grant_object_blocks(blocks.max(self.grant_step) as u64);
                }
                Err(Shortage::ObjectSpans(count)) => {
                    let spans = self.heap.begin_spans(count)?;
                    self.heap.add_object_spans(spans);
                }
                Err(Shortage::LaneSpans(count)) => {
                    let spans = self.heap.begin_spans(count)?;
                    self.heap.add_lane_spans(spans);
                }
                Err(_) => return None,
            }
        }
    }

    /// Ends freed objects, then what left use with them.
    pub fn end_objects(&self, freed: FreedObjects) {
        let mut next = Some(freed);
        while let Some(freed) = next {
            if freed.reshaped || self.recycling == Recycling::Discard {
                self.discard(freed.run());
            }
            let resident = !freed.reshaped && self.recycling == Recycling::Keep;
            self.heap.recycle_objects(freed, resident);
            next = self.heap.take_idle_objects();
        }
    }

    pub fn recycle(&self, run: FreedRun) {
        if self.recycling == Recycling::Discard {
            self.discard(run);
        }
        self.heap.recycle(run, self.recycling == Recycling::Keep);
    }

    pub fn drain_freed(&self) {
        while let Some(run) = self.heap.take_freed() {
            self.recycle(run);
        }
    }

    pub fn discard(&self, run: FreedRun) {
        let start = self.base + run.first.index() * PAGE;
        assert!(run.first.index() + run.pages <= self.pages());
        // SAFETY: the heap says that no allocation uses the pages, and nobody holds references.
        unsafe { mapping::advise(start as *mut u8, run.pages * PAGE, Advice::DontNeed) }
            .expect("advise");
    }

    fn pages(&self) -> usize {
        64 * PAGES_PER_SPAN
    }

    pub fn page_of(&self, ptr: usize) -> usize {
        (ptr - self.base) / PAGE
    }

    pub fn check(&self) {
        #[cfg(debug_assertions)]
        self.heap.check_invariants();
    }
}

/// A small generator, so that a failure is replayed by its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    /// Mostly small, sometimes up to a few MiB.
    pub fn size(&mut self) -> usize {
        let shift = match self.below(100) {
            0..60 => 4 + self.below(5),
            60..85 => 8 + self.below(6),
            85..97 => 13 + self.below(6),
            _ => 18 + self.below(5),
        };
        1 + self.below(1 << shift)
    }
}

/// Writes `tag` over the first and last bytes of an allocation and at many places between.
pub fn stamp(ptr: usize, size: usize, tag: u8) {
    for offset in stamped(size) {
        // SAFETY: the bytes belong to a live allocation of `size` bytes at `ptr`.
        unsafe { ((ptr + offset) as *mut u8).write_volatile(tag) };
    }
}

/// Whether the stamp is whole.
pub fn stamp_holds(ptr: usize, size: usize, tag: u8) -> bool {
    // SAFETY: as in `stamp`.
    stamped(size).all(|offset| unsafe { ((ptr + offset) as *const u8).read_volatile() } == tag)
}

fn stamped(size: usize) -> impl Iterator<Item = usize> {
    let head = 0..size.min(32);
    let tail = size.saturating_sub(32).max(size.min(32))..size;
    head.chain((32..size).step_by(PAGE.max(size / 512))).chain(tail)
}

/// Whether all `size` bytes are zero; of large allocations only the stamped places are read.
pub fn reads_as_zeros(ptr: usize, size: usize) -> bool {
    if size > 4 << 20 {
        return stamp_holds(ptr, size, 0);
    }
    // SAFETY: as in `stamp`; nobody writes meanwhile.
    let bytes = unsafe { core::slice::from_raw_parts(ptr as *const u8, size) };
    bytes.iter().all(|byte| *byte == 0)
}
