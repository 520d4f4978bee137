//! Object cache: DRAM copies of objects that are not mapped in the program, at their true size.
//!
//! The memory is cut into slabs of 64 KiB, each of which holds slots of one size class. Which
//! object is in a slot stands in the descriptors; the owner noted beside each slot leads back to
//! the descriptor, so that a slab can be emptied by moving what is in it (`compact`).
//!
//! A slot number is its slab's number times 512 plus its index in the slab.
//!
//! Guarantees: the slabs in use are at most `limit` bytes, except while a lowered limit is being
//! brought about; a slot belongs to one owner from `take` to `give_back`, and is as long as the
//! object it was taken for, at least.
//! Never: allocates, does I/O. `take` does not wait.
//! Threads: any, also in a signal handler. A lock for each size class, then the pool's, both
//! innermost and never together.

mod size_class;
mod slab_pool;
mod slab_table;
#[cfg(test)]
mod tests;

use deepheap_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::mapping::PinnedArray;

use crate::descriptor::DescriptorId;
use size_class::{CLASSES, OUTSIDE_MAX, OWNERS_OUTSIDE, SLAB_BYTES, SLOTS_MAX, SizeClass};
use slab_pool::SlabPool;
use slab_table::{RECORD_BYTES, SlabTable};

/// Slabs for each class that objects have asked for, below which a cache cannot afford so many: it
/// uses every second class only, or every fourth. The last slab of a class is half empty as a rule.
const SLABS_FOR_ALL: usize = 7;
const SLABS_FOR_HALF: usize = 3;

const NO_OWNER: u32 = u32::MAX;

/// The slots.
pub struct ObjectCache {
    pool: SlabPool,
    table: SlabTable,
    /// Owners of slots of `OWNERS_OUTSIDE` bytes and more, by index in the slab, then by slab: a
    /// cache of 4096-byte slots touches a quarter of it.
    owners: PinnedArray<AtomicU32>,
    /// A bit for every class that an object has asked for.
    asked: [AtomicU64; CLASSES.div_ceil(64)],
}

impl ObjectCache {
    /// A cache of up to so many bytes; none is backed by memory yet.
    pub fn new(bytes: usize) -> Result<ObjectCache> {
        // As many as a slot number can name.
        let slabs = (bytes / SLAB_BYTES).min(u32::MAX as usize / SLOTS_MAX);
        Ok(ObjectCache {
            pool: SlabPool::new(slabs)?,
            table: SlabTable::new(slabs)?,
            owners: PinnedArray::new(slabs * OUTSIDE_MAX)?,
            asked: Default::default(),
        })
    }

    /// An empty slot for an object of so many bytes, 4096 at most; none at the limit.
    pub fn take(&self, bytes: usize) -> Option<u32> {
        let exact = SizeClass::of(bytes)?;
        self.note(exact);
        if self.is_over_limit() {
            return None;
        }
        let (class, larger) = self.usable(exact);
        self.take_of(class).or_else(|| self.open(class)).or_else(|| self.take_of(larger))
    }

    /// Whether a slot is free only where another object left one.
    pub fn is_full(&self) -> bool {
        self.pool.held() >= self.pool.limit()
    }

    /// Whether `take` of so many bytes found a slot now, as far as one can tell.
    pub fn has_room(&self, bytes: usize) -> bool {
        let Some((class, larger)) = SizeClass::of(bytes).map(|exact| self.usable(exact)) else {
            return false;
        };
        let free = |class| self.table.free(class) > 0;
        !self.is_over_limit() && (!self.is_full() || free(class) || free(larger))
    }

    /// Gives a slot back. Memory of empty slabs stays until the limit is lowered.
    pub fn give_back(&self, slot: u32) {
        let (slab, index) = split(slot);
        if self.table.give_back(slab, index) {
            self.pool.give_back(slab);
        }
    }

    /// Where the slot's bytes are.
    pub fn address(&self, slot: u32) -> *mut u8 {
        let (slab, index) = split(slot);
        let offset = index * self.table.class(slab).slot_bytes();
        debug_assert!(offset < SLAB_BYTES);
        // SAFETY: the caller holds the slot: its slab has a class, and the index is below the
        // number of slots of that class, which fit the slab.
        unsafe { self.pool.address(slab).add(offset) }
    }

    /// Bytes of the slot, at least those it was taken for.
    pub fn slot_bytes(&self, slot: u32) -> usize {
        self.table.class(split(slot).0).slot_bytes()
    }

    /// Notes whose object is in a slot that the caller holds. Until then `compact` passes it over.
    pub fn set_owner(&self, slot: u32, id: DescriptorId) {
        let (slab, index) = split(slot);
        self.owner(slab, index).store(id.0, Ordering::Relaxed);
    }

    /// Empties one slab by moving what is in it to other slabs of its class, if some class has
    /// that much room. `relocate` is asked for each slot: it claims the owner's object if that
    /// still is in the first slot, copies it to the second one, and answers true; false leaves the
    /// object where it is. True if the slab became free.
    pub fn compact(&self, mut relocate: impl FnMut(DescriptorId, u32, u32) -> bool) -> bool {
        let Some(slab) = self.table.begin_emptying() else { return false };
        let class = self.table.class(slab);
        for index in 0..class.slots() {
            if !self.table.is_held(slab, index) {
                continue;
            }
            let id = self.owner(slab, index).load(Ordering::Relaxed);
            if id == NO_OWNER {
                continue;
            }
            let Some(to) = self.take_of(class) else { break };
            self.set_owner(to, DescriptorId(id));
            let from = slot_number(slab, index);
            self.give_back(if relocate(DescriptorId(id), from, to) { from } else { to });
        }
        let emptied = self.table.end_emptying(slab);
        if emptied {
            self.pool.give_back(slab);
        }
        emptied
    }

    /// Bytes of slabs in use: what counts against the limit.
    pub fn held_bytes(&self) -> usize {
        self.pool.held() * SLAB_BYTES
    }

    /// Slots that are held.
    pub fn objects(&self) -> usize {
        (0..CLASSES as u8).map(|class| self.table.used(SizeClass(class))).sum()
    }

    /// Bytes of tables beside the slabs, at most.
    pub fn table_bytes(&self) -> usize {
        self.pool.used() * Self::TABLE_BYTES_PER_SLAB
    }

    /// Bytes of tables for a slab, at most.
    const TABLE_BYTES_PER_SLAB: usize = RECORD_BYTES + 4 * OUTSIDE_MAX + 4;
    /// Bytes of tables for a page of cache, at most.
    pub const TABLE_BYTES_PER_PAGE: usize =
        Self::TABLE_BYTES_PER_SLAB.div_ceil(SLAB_BYTES / crate::PAGE);

    /// The ceiling, in bytes.
    pub fn limit(&self) -> usize {
        self.pool.limit() * SLAB_BYTES
    }

    /// Sets the ceiling, and gives memory of free slabs above it back to the system. `compact` and
    /// reclaim bring the cache below a lowered one.
    pub fn set_limit(&self, bytes: usize) {
        self.pool.set_limit(bytes / SLAB_BYTES);
    }

    /// Whether the slabs in use are more than a lowered limit allows: nothing is taken then.
    pub fn is_over_limit(&self) -> bool {
        self.held_bytes() > self.limit()
    }

    fn take_of(&self, class: SizeClass) -> Option<u32> {
        let (slab, index) = self.table.take(class)?;
        Some(slot_number(slab, index))
    }

    /// A slot of a new slab of the class.
    fn open(&self, class: SizeClass) -> Option<u32> {
        let slab = self.pool.take()?;
        for index in 0..class.slots() {
            self.owner_in(slab, class, index).store(NO_OWNER, Ordering::Relaxed);
        }
        Some(slot_number(slab, self.table.open(slab, class)))
    }

    /// The class to use for objects of this one, and the next one, from which they may borrow: a
    /// free slot is better used badly than not at all.
    fn usable(&self, exact: SizeClass) -> (SizeClass, SizeClass) {
        let asked: u32 =
            self.asked.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
        let step = match self.pool.limit() / asked.max(1) as usize {
            SLABS_FOR_ALL.. => 1,
            SLABS_FOR_HALF.. => 2,
            _ => 4,
        };
        let class = exact.0.next_multiple_of(step);
        (SizeClass(class), SizeClass((class + step).min(CLASSES as u8 - 1)))
    }

    fn note(&self, exact: SizeClass) {
        let (word, bit) = (&self.asked[exact.0 as usize / 64], 1 << (exact.0 % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn owner(&self, slab: u32, index: usize) -> &AtomicU32 {
        self.owner_in(slab, self.table.class(slab), index)
    }

    fn owner_in(&self, slab: u32, class: SizeClass, index: usize) -> &AtomicU32 {
        debug_assert!(index < class.slots());
        if class.slot_bytes() >= OWNERS_OUTSIDE {
            return &self.owners[index * self.pool.slabs() + slab as usize];
        }
        let offset = SLAB_BYTES - 4 * (index + 1);
        // SAFETY: `slots` leaves four bytes a slot at the end of such a slab, which nothing else
        // uses while it has this class; pinned, aligned, and only used as atomics.
        unsafe { AtomicU32::from_ptr(self.pool.address(slab).add(offset).cast()) }
    }
}

fn slot_number(slab: u32, index: usize) -> u32 {
    slab * SLOTS_MAX as u32 + index as u32
}

fn split(slot: u32) -> (u32, usize) {
    (slot / SLOTS_MAX as u32, slot as usize % SLOTS_MAX)
}
