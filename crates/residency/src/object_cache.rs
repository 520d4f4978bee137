//! Object cache: DRAM copies of objects that are not mapped in the program, at their true size.
//!
//! The memory is cut into slabs of 64 KiB, each of which has slots of one size class. A descriptor
//! names the slot of its object. The descriptor is also noted beside the slot, as the slot's owner,
//! so that a slab can be emptied by moving its objects (`compact`).
//!
//! A compressed page in a slot comes after its length, two bytes.
//!
//! A slot number is its slab's number times 512 plus its index in the slab.
//!
//! Guarantees: the slabs in use are at most `limit` bytes, except after the limit was lowered,
//! until reclaim has followed; a slot belongs to one owner from `take` to `give_back`, and is at
//! least as long as the object it was taken for.
//! Never: allocates, does I/O. `take` does not wait.
//! Threads: any, also in a signal handler. A lock for each part of a size class, then the pool's,
//! both innermost and never together.

mod size_class;
mod slab_pool;
mod slab_table;
mod spares;
#[cfg(test)]
mod tests;

use core::sync::atomic::AtomicU16;

use deepheap_sys::errno::Result;
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use deepheap_sys::threads::{thread, tls};

use crate::PAGE;
use crate::ownership::DescriptorId;
use size_class::{CLASSES, OUTSIDE_MAX, OWNERS_OUTSIDE, SLAB_BYTES, SLOTS_MAX, SizeClass};
use slab_pool::SlabPool;
use slab_table::{RECORD_BYTES, SlabTable, parts_for};
use spares::Spares;

/// A cache with fewer slabs than this for each class that objects have asked for uses only every
/// second class, or every fourth: the last slab of a class is half empty as a rule.
const SLABS_FOR_ALL: usize = 7;
const SLABS_FOR_HALF: usize = 3;

const NO_OWNER: u32 = u32::MAX;
/// Parts of the count of slots without an object.
const LANES: usize = 16;

/// Bytes of a compressed page's length, before the page.
const LENGTH_BYTES: usize = 2;
/// Spare slots are at most this part of the cache.
const SPARES_PART: usize = 32;
/// A larger slot is no gain for a compressed page.
const COMPRESSED_SLOT_MAX: usize = PAGE * 7 / 8;

/// Room for one object in the cache. Dropped, it is free again.
#[must_use]
pub struct Slot<'a> {
    cache: &'a ObjectCache,
    number: u32,
}

impl Slot<'_> {
    /// Its bytes, at least those that it was taken for.
    pub fn bytes(&self) -> usize {
        self.cache.slot_bytes(self.number)
    }

    /// Where they are.
    pub fn address(&self) -> *mut u8 {
        self.cache.address(self.number)
    }

    /// It is an object's from now on, or on a list: its number. `ObjectCache::slot` ends that.
    pub fn keep(self) -> u32 {
        let number = self.number;
        core::mem::forget(self);
        number
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.cache.give_back(self.number);
    }
}

/// The slots.
pub struct ObjectCache {
    pool: SlabPool,
    table: SlabTable,
    /// Owners of slots of `OWNERS_OUTSIDE` bytes and more, by index in the slab, then by slab: a
    /// cache of 4096-byte slots touches a quarter of it.
    owners: PinnedArray<AtomicU32>,
    /// A bit for every class that an object has asked for.
    asked: [AtomicU64; CLASSES.div_ceil(64)],
    /// Slots that are kept without an object: the sum, which wraps. Evictions change it for each
    /// page, so each lane of threads has a part in cache lines of its own.
    lent: [Padded<AtomicUsize>; LANES],
    spares: Spares,
    /// Bytes of all spares, those in use included.
    spare_bytes: AtomicUsize,
}

impl ObjectCache {
    /// A cache of up to so many bytes; none is backed by memory yet.
    pub fn new(bytes: usize) -> Result<ObjectCache> {
        Self::in_parts(bytes, parts_for(thread::cpu_count(), bytes / SLAB_BYTES))
    }

    fn in_parts(bytes: usize, parts: usize) -> Result<ObjectCache> {
        // At most as many as a slot number can name.
        let slabs = (bytes / SLAB_BYTES).min(u32::MAX as usize / SLOTS_MAX);
        Ok(ObjectCache {
            pool: SlabPool::new(slabs)?,
            table: SlabTable::new(slabs, parts)?,
            owners: PinnedArray::new(slabs * OUTSIDE_MAX)?,
            asked: Default::default(),
            lent: Default::default(),
            spares: Spares::new()?,
            spare_bytes: AtomicUsize::new(0),
        })
    }

    /// A slot that was kept, and that the caller has: as owner of the object that leaves it, or by
    /// a list.
    pub fn slot(&self, number: u32) -> Slot<'_> {
        Slot { cache: self, number }
    }

    /// An empty slot for an object of so many bytes, 4096 at most; none at the limit.
    pub fn take(&self, bytes: usize) -> Option<Slot<'_>> {
        let exact = SizeClass::of(bytes)?;
        self.note(exact);
        if self.is_over_limit() {
            return None;
        }
        let (class, larger) = self.usable(exact);
        let number = self.take_of(class).or_else(|| self.open(class));
        number.or_else(|| self.take_of(larger)).map(|number| self.slot(number))
    }

    /// A slot with a compressed page in it: its length, then its bytes. None if only slots are free
    /// that are hardly smaller than a page.
    pub fn take_compressed(&self, bytes: &[u8]) -> Option<Slot<'_>> {
        let needed = LENGTH_BYTES + bytes.len();
        let slot = self.take(needed).or_else(|| self.take_larger(needed, COMPRESSED_SLOT_MAX))?;
        Some(with_compressed(slot, bytes))
    }

    /// As `take_compressed`; none if no slot of at most so many bytes is free.
    pub fn take_dense(&self, bytes: &[u8], most_bytes: usize) -> Option<Slot<'_>> {
        let needed = LENGTH_BYTES + bytes.len();
        let slot = self.take(needed).filter(|slot| slot.bytes() <= most_bytes);
        Some(with_compressed(slot.or_else(|| self.take_larger(needed, most_bytes))?, bytes))
    }

    /// Where the compressed page in a slot seems to be, and how long; see `glimpse`.
    pub fn glimpse_compressed(&self, slot: u32) -> Option<(*const u8, usize)> {
        let bytes = self.compressed_bytes(slot);
        let start = self.glimpse(slot, LENGTH_BYTES + bytes)?;
        // SAFETY: in the slab, as `glimpse` has found.
        (bytes <= PAGE).then(|| (unsafe { start.add(LENGTH_BYTES) }, bytes))
    }

    /// The free slot of the next size that has one, of at most so many bytes.
    fn take_larger(&self, bytes: usize, most_bytes: usize) -> Option<Slot<'_>> {
        let least = SizeClass::of(bytes)?;
        if self.is_over_limit() {
            return None;
        }
        let classes = (least.0..CLASSES as u8).map(SizeClass);
        classes
            .take_while(|class| class.slot_bytes() <= most_bytes)
            .find_map(|class| self.take_of(class))
            .map(|number| self.slot(number))
    }

    /// How long the compressed page in a slot is. A hint, unless the caller holds the slot: the
    /// slab may have another class by now.
    pub fn compressed_bytes(&self, slot: u32) -> usize {
        let (slab, offset) = self.offset(slot);
        if offset >= SLAB_BYTES {
            return PAGE;
        }
        // SAFETY: in the slab, aligned to 16; the cache stays mapped. A thread that does not hold
        // the slot reads some number.
        let length = unsafe { AtomicU16::from_ptr(self.pool.address(slab).add(offset).cast()) };
        length.load(Ordering::Relaxed).into()
    }

    /// The compressed page in a slot.
    ///
    /// # Safety
    /// The caller holds the slot during 'a, and it holds a compressed page.
    pub unsafe fn compressed<'a>(&self, slot: u32) -> &'a [u8] {
        let bytes = self.compressed_bytes(slot).min(self.slot_bytes(slot) - LENGTH_BYTES);
        // SAFETY: by our contract; the bytes lie in the slot.
        unsafe { core::slice::from_raw_parts(self.address(slot).add(LENGTH_BYTES), bytes) }
    }

    /// Bytes of slabs that could be taken now, and of slots for compressed pages of so many bytes.
    /// A hint.
    pub fn free_bytes(&self, bytes: usize) -> usize {
        let least = SizeClass::of(bytes).map_or(0, |class| class.0);
        let classes = (least..CLASSES as u8).map(SizeClass);
        let classes = classes.take_while(|class| class.slot_bytes() <= COMPRESSED_SLOT_MAX);
        let slots: usize = classes.map(|class| self.table.free(class) * class.slot_bytes()).sum();
        slots + self.limit().saturating_sub(self.held_bytes())
    }

    /// Whether all slabs are in use, so that only a slot that another object left can be free.
    pub fn is_full(&self) -> bool {
        self.pool.held() >= self.pool.limit()
    }

    /// Whether `take` of so many bytes would find a slot now. A hint.
    pub fn has_room(&self, bytes: usize) -> bool {
        let Some((class, larger)) = SizeClass::of(bytes).map(|exact| self.usable(exact)) else {
            return false;
        };
        let free = |class| self.table.free(class) > 0;
        !self.is_over_limit() && (!self.is_full() || free(class) || free(larger))
    }

    /// Gives a slot back. Memory of empty slabs stays until the limit is lowered.
    fn give_back(&self, slot: u32) {
        let (slab, index) = split(slot);
        if self.table.give_back(slab, index) {
            self.pool.give_back(slab);
        }
    }

    /// The object in a slot, of so many bytes, as it is.
    ///
    /// # Safety
    /// The caller holds the slot during 'a, and it is so long.
    pub unsafe fn object<'a>(&self, slot: u32, bytes: usize) -> &'a [u8] {
        // SAFETY: by our contract; the bytes lie in the slot.
        unsafe { core::slice::from_raw_parts(self.address(slot), bytes) }
    }

    /// Where the slot's bytes are.
    pub fn address(&self, slot: u32) -> *mut u8 {
        let (slab, offset) = self.offset(slot);
        debug_assert!(offset < SLAB_BYTES);
        // SAFETY: the caller holds the slot: its slab has a class, and the index is below the
        // number of slots of that class, which fit the slab.
        unsafe { self.pool.address(slab).add(offset) }
    }

    /// The slab of a slot, and where in it the slot begins by the slab's class.
    fn offset(&self, slot: u32) -> (u32, usize) {
        let (slab, index) = split(slot);
        (slab, index * self.table.class(slab).slot_bytes())
    }

    /// Where a slot seems to be that somebody else may hold, or nobody; none if `bytes` bytes from
    /// there on would not lie in its slab. Slabs stay mapped, so that they can be read.
    pub fn glimpse(&self, slot: u32, bytes: usize) -> Option<*const u8> {
        let (slab, offset) = self.offset(slot);
        // SAFETY: in the slab.
        let address = || unsafe { self.pool.address(slab).add(offset) };
        (offset + bytes <= SLAB_BYTES).then(|| address().cast_const())
    }

    /// Takes this thread's spare of the class that a slot seems to have, if so many bytes fit.
    pub fn take_spare(&self, like: u32, bytes: usize) -> Option<u32> {
        let class = self.table.class(split(like).0);
        if class.slot_bytes() < bytes { None } else { self.spares.take(class) }
    }

    /// Keeps a slot, which was a spare or was exchanged for one, as this thread's spare. False if
    /// the thread has one of that class by now: then `end_spare` gives it back.
    #[must_use]
    pub fn keep_spare(&self, slot: u32) -> bool {
        self.spares.keep(self.table.class(split(slot).0), slot)
    }

    /// Sees to it that this thread has a spare of the class of a slot, which the caller holds, if
    /// one is free.
    pub fn provide_spare(&self, like: u32) {
        let class = self.table.class(split(like).0);
        let bytes = self.spare_bytes.load(Ordering::Relaxed) + class.slot_bytes();
        if self.spares.has(class) || bytes > self.limit() / SPARES_PART || self.is_over_limit() {
            return;
        }
        let Some(slot) = self.take_of(class).or_else(|| self.open(class)) else { return };
        self.lend();
        self.spare_bytes.fetch_add(class.slot_bytes(), Ordering::Relaxed);
        if !self.keep_spare(slot) {
            self.end_spare(slot);
        }
    }

    /// Gives a spare back that the caller has taken.
    pub fn end_spare(&self, slot: u32) {
        self.spare_bytes.fetch_sub(self.slot_bytes(slot), Ordering::Relaxed);
        self.unlend();
        self.give_back(slot);
    }

    /// Whether there are spares.
    pub fn has_spares(&self) -> bool {
        self.spare_bytes.load(Ordering::Relaxed) > 0
    }

    /// Gives all spares back that no thread has taken.
    pub fn end_spares(&self) {
        self.spares.take_all().for_each(|slot| self.end_spare(slot));
    }

    /// Bytes of the slot, at least those it was taken for.
    pub fn slot_bytes(&self, slot: u32) -> usize {
        self.table.class(split(slot).0).slot_bytes()
    }

    /// Notes whose object is in a slot that the caller holds. Until then `compact` skips the slot.
    pub fn set_owner(&self, slot: u32, id: DescriptorId) {
        let (slab, index) = split(slot);
        self.owner(slab, index).store(id.0, Ordering::Relaxed);
    }

    /// Whose object is in a slot, if the slot is held.
    #[cfg(any(test, debug_assertions))]
    pub fn owner_of(&self, slot: u32) -> Option<DescriptorId> {
        let (slab, index) = split(slot);
        let owner = || DescriptorId(self.owner(slab, index).load(Ordering::Relaxed));
        self.table.is_held(slab, index).then(owner)
    }

    /// Empties one slab by moving its objects to other slabs of its class, if some class has that
    /// much room. For each slot it calls `relocate`, which claims the owner's object if that still
    /// is in the first slot, copies it to the second one, and answers true; false leaves the object
    /// where it is. Returns true if the slab became free.
    pub fn compact(&self, mut relocate: impl FnMut(DescriptorId, u32, u32) -> bool) -> bool {
        let Some(slab) = self.table.begin_emptying() else { return false };
        self.empty(slab, |id, from| self.relocate(id, from, &mut relocate))
    }

    /// Empties the slab of a slot. For each of its slots it calls `leave`, which moves the owner's
    /// object out, if that still is in the slot; false ends it. Returns true if the slab became
    /// free.
    pub fn empty_slab_of(&self, slot: u32, leave: impl FnMut(DescriptorId, u32) -> bool) -> bool {
        let slab = split(slot).0;
        self.table.begin_emptying_of(slab) && self.empty(slab, leave)
    }

    /// Calls `relocate` for the owner of a slot as `compact` does; false if its class has no other
    /// slot free.
    pub fn relocate(
        &self,
        id: DescriptorId,
        from: u32,
        relocate: &mut impl FnMut(DescriptorId, u32, u32) -> bool,
    ) -> bool {
        let Some(to) = self.take_of(self.table.class(split(from).0)) else { return false };
        self.set_owner(to, id);
        self.give_back(if relocate(id, from, to) { from } else { to });
        true
    }

    fn empty(&self, slab: u32, mut leave: impl FnMut(DescriptorId, u32) -> bool) -> bool {
        for index in 0..self.table.class(slab).slots() {
            if !self.table.is_held(slab, index) {
                continue;
            }
            let id = self.owner(slab, index).load(Ordering::Relaxed);
            if id != NO_OWNER && !leave(DescriptorId(id), slot_number(slab, index)) {
                break;
            }
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

    /// Bytes of RAM: slabs in use, and free ones that keep their memory for the next objects.
    pub fn backed_bytes(&self) -> usize {
        self.pool.backed() * SLAB_BYTES
    }

    /// Slots that are held by objects.
    pub fn objects(&self) -> usize {
        let held: usize = (0..CLASSES as u8).map(|class| self.table.used(SizeClass(class))).sum();
        let lent = self.lent.iter().map(|lent| lent.load(Ordering::Relaxed));
        // A thread that is just now lending may be counted in part.
        let lent = lent.fold(0usize, usize::wrapping_add);
        held.saturating_sub(if lent > isize::MAX as usize { 0 } else { lent })
    }

    /// The caller keeps a slot, that it has taken, without an object in it.
    pub fn lend(&self) {
        self.lent[tls::lane_of::<LANES>()].fetch_add(1, Ordering::Relaxed);
    }

    /// Ends that.
    pub fn unlend(&self) {
        self.lent[tls::lane_of::<LANES>()].fetch_sub(1, Ordering::Relaxed);
    }

    /// The most bytes of tables beside the slabs.
    pub fn table_bytes(&self) -> usize {
        self.pool.used() * Self::TABLE_BYTES_PER_SLAB
    }

    /// The most bytes of tables for a slab.
    const TABLE_BYTES_PER_SLAB: usize = RECORD_BYTES + 4 * OUTSIDE_MAX + 4;
    /// The most bytes of tables for a page of cache.
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

    /// Whether the slabs in use are more than a lowered limit allows: no slot is taken then.
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

    /// The class to use for objects of class `exact`, and the next larger one, whose free slots
    /// they may use: a free slot is better used badly than not at all.
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

/// The slot with a compressed page in it: its length, then its bytes.
fn with_compressed<'a>(slot: Slot<'a>, bytes: &[u8]) -> Slot<'a> {
    debug_assert!(slot.bytes() >= LENGTH_BYTES + bytes.len());
    let to = slot.address();
    // SAFETY: the slot is ours alone, as long as that, and aligned to 16.
    unsafe {
        AtomicU16::from_ptr(to.cast()).store(bytes.len() as u16, Ordering::Relaxed);
        to.add(LENGTH_BYTES).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
    slot
}

fn slot_number(slab: u32, index: usize) -> u32 {
    slab * SLOTS_MAX as u32 + index as u32
}

fn split(slot: u32) -> (u32, usize) {
    (slot / SLOTS_MAX as u32, slot as usize % SLOTS_MAX)
}
