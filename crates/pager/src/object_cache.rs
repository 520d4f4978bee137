//! Object cache: DRAM copies of objects that are not mapped in the program.
//!
//! For memory pages a slot is 4 KiB. Which object is in a slot, and the order of arrival, stand in
//! the descriptors; here is the memory, and the count against its limit.
//!
//! Guarantees: at most `limit` slots are backed by memory; a slot belongs to one owner from `take`
//! to `give_back`.
//! Never: allocates, does I/O. `take` does not wait.
//! Threads: any, also in a signal handler.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use deepheap_sys::errno::Result;
use deepheap_sys::lock::Lock;
use deepheap_sys::mapping::{self, Advice, PinnedArray};

use crate::PAGE;

/// Free slots, a stack in `free`: those without memory at the bottom.
struct Stack {
    /// Slots in the stack.
    free: usize,
    /// The lowest of them, whose memory went back to the system.
    unbacked: usize,
    /// Slots from here on were never used.
    used: usize,
}

/// The slots.
pub struct ObjectCache {
    memory: *mut u8,
    slots: usize,
    free: PinnedArray<AtomicU32>,
    stack: Lock<Stack>,
    limit: AtomicUsize,
    held: AtomicUsize,
}

// SAFETY: `memory` is a mapping that lives as long as the process; slots are handed to one owner
// at a time by `take` and `give_back`, under the lock.
unsafe impl Send for ObjectCache {}
// SAFETY: as above.
unsafe impl Sync for ObjectCache {}

impl ObjectCache {
    /// A cache of up to `slots` slots; none is backed by memory yet.
    pub fn new(slots: usize) -> Result<ObjectCache> {
        let memory = mapping::map_pinned(slots * PAGE)?;
        Ok(ObjectCache {
            memory,
            slots,
            free: PinnedArray::new(slots)?,
            stack: Lock::new(Stack { free: 0, unbacked: 0, used: 0 }),
            limit: AtomicUsize::new(slots),
            held: AtomicUsize::new(0),
        })
    }

    /// An empty slot; none at the limit.
    pub fn take(&self) -> Option<u32> {
        let mut stack = self.stack.lock();
        if self.held.load(Ordering::Relaxed) >= self.limit() {
            return None;
        }
        let slot = if stack.free > 0 {
            stack.free -= 1;
            stack.unbacked = stack.unbacked.min(stack.free);
            self.free[stack.free].load(Ordering::Relaxed)
        } else if stack.used < self.slots {
            stack.used += 1;
            stack.used as u32 - 1
        } else {
            return None;
        };
        self.held.fetch_add(1, Ordering::Relaxed);
        Some(slot)
    }

    /// Gives a slot back. Its memory stays with it until the limit is lowered.
    pub fn give_back(&self, slot: u32) {
        let mut stack = self.stack.lock();
        self.held.fetch_sub(1, Ordering::Relaxed);
        self.free[stack.free].store(slot, Ordering::Relaxed);
        stack.free += 1;
    }

    /// Where the slot's bytes are.
    pub fn address(&self, slot: u32) -> *mut u8 {
        debug_assert!((slot as usize) < self.slots);
        // SAFETY: a slot index is below `slots`, the mapping has `slots` pages.
        unsafe { self.memory.add(slot as usize * PAGE) }
    }

    /// Slots that hold objects.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The ceiling, in slots.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the ceiling, and gives memory of free slots above it back to the system. Reclaim brings
    /// the number of held slots below a lowered one.
    pub fn set_limit(&self, slots: usize) {
        let slots = slots.min(self.slots);
        self.limit.store(slots, Ordering::Relaxed);
        let mut stack = self.stack.lock();
        while stack.unbacked < stack.free && self.held() + stack.free - stack.unbacked > slots {
            let slot = self.free[stack.unbacked].load(Ordering::Relaxed);
            // SAFETY: a free slot: its bytes are nobody's.
            let _ = unsafe { mapping::advise(self.address(slot), PAGE, Advice::DontNeed) };
            stack.unbacked += 1;
        }
    }
}
