//! Slab pool: the slabs that no size class has. It counts those that the classes have.
//!
//! Guarantees: the size classes have at most `limit` slabs. These, and the slabs in the pool that
//! still have memory, are together no more than the limit was when it was last set.
//! Never: allocates, waits for a slab; gives memory back under its lock: that interrupts every
//! processor that runs the process, and all who want a slab would wait.
//! Threads: any; one lock, innermost.

use deepheap_sys::errno::Result;
use deepheap_sys::memory::mapping::{self, Advice};
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::threads::lock::Lock;

use super::size_class::SLAB_BYTES;

/// Slabs whose memory is given back together, outside the lock.
const TRIMMED: usize = 16;

/// The slabs.
pub(super) struct SlabPool {
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
    pub(super) fn new(slabs: usize) -> Result<SlabPool> {
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
    pub(super) fn take(&self) -> Option<u32> {
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
    pub(super) fn give_back(&self, slab: u32) {
        let mut stack = self.stack.lock();
        let held = self.held.fetch_sub(1, Ordering::Relaxed) - 1;
        self.free[*stack].store(slab, Ordering::Relaxed);
        *stack += 1;
        let has_surplus = self.surplus(*stack, held) > 0;
        drop(stack);
        if has_surplus {
            self.trim();
        }
    }

    /// Sets the ceiling, and gives memory of free slabs above it back to the system.
    pub(super) fn set_limit(&self, slabs: usize) {
        self.limit.store(slabs.min(self.slabs), Ordering::Relaxed);
        self.trim();
    }

    /// How many free slabs with memory there are above the limit. Under the lock.
    fn surplus(&self, stack: usize, held: usize) -> usize {
        let backed = stack - self.unbacked.load(Ordering::Relaxed);
        (held + backed).saturating_sub(self.limit()).min(backed)
    }

    /// Gives the memory of free slabs above the limit back to the system. Meanwhile they are in
    /// nobody's hands but ours, and count as slabs with memory.
    fn trim(&self) {
        let mut trimmed = [0; TRIMMED];
        loop {
            let mut stack = self.stack.lock();
            let count = self.surplus(*stack, self.held()).min(TRIMMED);
            for slab in &mut trimmed[..count] {
                *stack -= 1;
                *slab = self.free[*stack].load(Ordering::Relaxed);
            }
            drop(stack);
            if count == 0 {
                return;
            }
            for &slab in &trimmed[..count] {
                let address = self.address(slab);
                // SAFETY: a slab that only we have: its bytes are nobody's.
                let _ = unsafe { mapping::advise(address, SLAB_BYTES, Advice::DontNeed) };
            }
            let mut stack = self.stack.lock();
            for &slab in &trimmed[..count] {
                // To the others at the bottom; the slab that was there goes to the top.
                let bottom = self.unbacked.load(Ordering::Relaxed);
                let with_memory = self.free[bottom].load(Ordering::Relaxed);
                self.free[*stack].store(with_memory, Ordering::Relaxed);
                self.free[bottom].store(slab, Ordering::Relaxed);
                self.unbacked.store(bottom + 1, Ordering::Relaxed);
                *stack += 1;
            }
        }
    }

    /// Where the slab's bytes are.
    pub(super) fn address(&self, slab: u32) -> *mut u8 {
        debug_assert!((slab as usize) < self.slabs);
        // SAFETY: a slab number is below `slabs`, the mapping has `slabs` slabs.
        unsafe { self.memory.as_ptr().add(slab as usize * SLAB_BYTES) }
    }

    /// Slabs in all.
    pub(super) fn slabs(&self) -> usize {
        self.slabs
    }

    /// Slabs that were ever taken.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Slabs that the size classes have.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Slabs that have memory, free ones with it. A snapshot.
    pub(super) fn backed(&self) -> usize {
        self.used().saturating_sub(self.unbacked.load(Ordering::Relaxed))
    }

    /// The ceiling, in slabs.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }
}
