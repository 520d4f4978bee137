//! Slab pool: the slabs that no size class has. It counts those that the classes have.
//!
//! Guarantees: the size classes have at most `limit` slabs. These, and the slabs in the pool that
//! still have memory, are together no more than the limit was when it was last set.
//! Never: allocates, waits for a slab.
//! Threads: any; one lock, innermost.

use deepheap_sys::errno::Result;
use deepheap_sys::memory::mapping::{self, Advice};
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::threads::lock::Lock;

use super::size_class::SLAB_BYTES;

/// The slabs.
pub struct SlabPool {
    memory: PinnedArray<u8>,
    slabs: usize,
    /// The free slabs, a stack: those without memory are at the bottom.
    free: PinnedArray<AtomicU32>,
    /// How many they are.
    stack: Padded<Lock<usize>>,
    limit: AtomicUsize,
    held: AtomicUsize,
    /// How many at the bottom of the stack have no memory: it went back to the system. Changes
    /// under the lock.
    unbacked: AtomicUsize,
    /// The first slab that was never used; changes under the lock.
    used: AtomicUsize,
}

impl SlabPool {
    /// A pool of `slabs` slabs; none is backed by memory yet.
    pub fn new(slabs: usize) -> Result<SlabPool> {
        Ok(SlabPool {
            memory: PinnedArray::new(slabs * SLAB_BYTES)?,
            slabs,
            free: PinnedArray::new(slabs)?,
            stack: Padded(Lock::new(0)),
            limit: AtomicUsize::new(slabs),
            held: AtomicUsize::new(0),
            unbacked: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
        })
    }

    /// Takes a slab; none at the limit.
    pub fn take(&self) -> Option<u32> {
        if self.held() >= self.limit() {
            return None;
        }
        let mut stack = self.stack.lock();
        if self.held() >= self.limit() {
            return None;
        }
        let used = self.used.load(Ordering::Relaxed);
        let slab = if *stack > 0 {
            *stack -= 1;
            let unbacked = self.unbacked.load(Ordering::Relaxed).min(*stack);
            self.unbacked.store(unbacked, Ordering::Relaxed);
            self.free[*stack].load(Ordering::Relaxed)
        } else if used < self.slabs {
            self.used.store(used + 1, Ordering::Relaxed);
            used as u32
        } else {
            return None;
        };
        self.held.fetch_add(1, Ordering::Relaxed);
        Some(slab)
    }

    /// Takes a slab back. It keeps its memory while the slabs with memory are within the limit.
    pub fn give_back(&self, slab: u32) {
        let mut stack = self.stack.lock();
        let held = self.held.fetch_sub(1, Ordering::Relaxed) - 1;
        self.free[*stack].store(slab, Ordering::Relaxed);
        *stack += 1;
        self.trim(*stack, held);
    }

    /// Sets the ceiling, and gives memory of free slabs above it back to the system.
    pub fn set_limit(&self, slabs: usize) {
        self.limit.store(slabs.min(self.slabs), Ordering::Relaxed);
        let stack = self.stack.lock();
        self.trim(*stack, self.held());
    }

    fn trim(&self, stack: usize, held: usize) {
        let mut unbacked = self.unbacked.load(Ordering::Relaxed);
        while unbacked < stack && held + stack - unbacked > self.limit() {
            let slab = self.free[unbacked].load(Ordering::Relaxed);
            // SAFETY: a free slab: its bytes are nobody's.
            let _ = unsafe { mapping::advise(self.address(slab), SLAB_BYTES, Advice::DontNeed) };
            unbacked += 1;
        }
        self.unbacked.store(unbacked, Ordering::Relaxed);
    }

    /// Where the slab's bytes are.
    pub fn address(&self, slab: u32) -> *mut u8 {
        debug_assert!((slab as usize) < self.slabs);
        // SAFETY: a slab number is below `slabs`, the mapping has `slabs` slabs.
        unsafe { self.memory.as_ptr().add(slab as usize * SLAB_BYTES) }
    }

    /// Slabs in all.
    pub fn slabs(&self) -> usize {
        self.slabs
    }

    /// Slabs that were ever taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Slabs that the size classes have.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Slabs that have memory, free ones with it. A snapshot.
    pub fn backed(&self) -> usize {
        self.used().saturating_sub(self.unbacked.load(Ordering::Relaxed))
    }

    /// The ceiling, in slabs.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }
}
