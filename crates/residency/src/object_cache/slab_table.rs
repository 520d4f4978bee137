//! Slab table: which slots of which slab are free, by size class.
//!
//! Each class has four bins of partly used slabs, by how full they are. Slots are taken from the
//! fullest bin, so that sparse slabs become sparser and empty ones go back to the pool. A slab that
//! is being emptied is in no bin and hands out no slot.
//!
//! ```text
//!   pooled ─► partial, in a bin ◄─► full          [open, take, give_back]
//!     ▲              │  ▲
//!     │              ▼  │ slots still held
//!     └───────── emptying                         [begin_emptying, end_emptying]
//! ```
//!
//! Guarantees: a slot has one holder from `open` or `take` to `give_back`; a slab changes its class
//! only while nobody holds a slot of it.
//! Never: allocates, touches the slabs' memory.
//! Threads: any; one lock for each class, held for a few dozen loads.

use deepheap_sys::errno::Result;
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::pinned_array::{PinnedArray, Zeroed};
use deepheap_sys::threads::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use deepheap_sys::threads::lock::Lock;

use super::size_class::{CLASSES, SLOTS_MAX, SizeClass};

const NONE: u32 = u32::MAX;
const WORDS: usize = SLOTS_MAX / 64;
/// Bins of partly used slabs, by quarters.
const BINS: usize = 4;
/// In `SlabRecord::bin`: in no bin, because full or in the pool.
const UNBINNED: u8 = BINS as u8;
/// In `SlabRecord::bin`: in no bin, because it is being emptied.
const EMPTYING: u8 = BINS as u8 + 1;
/// The search for the sparsest slab looks at so many slabs of a bin.
const LOOKED_AT_MAX: usize = 8;

/// Everything known of one slab. Fields belong to the lock of its class.
#[repr(C)]
struct SlabRecord {
    /// A bit for every slot that is free.
    free: [AtomicU64; WORDS],
    /// Slots held, and one more while the slab is being emptied.
    used: AtomicU32,
    next: AtomicU32,
    previous: AtomicU32,
    class: AtomicU8,
    bin: AtomicU8,
    padding: [AtomicU8; 2],
}

/// Bytes of the table for a slab.
pub const RECORD_BYTES: usize = core::mem::size_of::<SlabRecord>();

// SAFETY: made of atomics only, for which all zero bytes are a value.
unsafe impl Zeroed for SlabRecord {}

/// One class. Its counts change under the lock and are read without.
struct Class {
    /// Heads of the bins.
    bins: Lock<[u32; BINS]>,
    /// Free slots of its slabs, without those being emptied.
    free: AtomicU32,
    /// Slots held.
    used: AtomicU32,
}

/// The classes and their slabs.
pub struct SlabTable {
    classes: [Padded<Class>; CLASSES],
    records: PinnedArray<SlabRecord>,
}

fn get(count: &AtomicU32) -> u32 {
    count.load(Ordering::Relaxed)
}

fn set(count: &AtomicU32, value: u32) {
    count.store(value, Ordering::Relaxed);
}

impl SlabTable {
    /// A table for so many slabs, none of which has a class.
    pub fn new(slabs: usize) -> Result<SlabTable> {
        let class = || {
            let bins = Lock::new([NONE; BINS]);
            Padded(Class { bins, free: AtomicU32::new(0), used: AtomicU32::new(0) })
        };
        Ok(SlabTable {
            classes: core::array::from_fn(|_| class()),
            records: PinnedArray::new(slabs)?,
        })
    }

    /// The class of a slab of which the caller holds a slot, or which it empties.
    pub fn class(&self, slab: u32) -> SizeClass {
        SizeClass(self.record(slab).class.load(Ordering::Relaxed))
    }

    /// Slots held in a class.
    pub fn used(&self, class: SizeClass) -> usize {
        get(&self.classes[class.0 as usize].used) as usize
    }

    /// Free slots of a class, without those of slabs that are being emptied.
    pub fn free(&self, class: SizeClass) -> usize {
        get(&self.classes[class.0 as usize].free) as usize
    }

    /// A free slot of the class, as slab and index.
    pub fn take(&self, class: SizeClass) -> Option<(u32, usize)> {
        let of = &self.classes[class.0 as usize];
        if get(&of.free) == 0 {
            return None;
        }
        let mut bins = of.bins.lock();
        let slab = bins.iter().rev().copied().find(|head| *head != NONE)?;
        let index = self.occupy(slab);
        set(&of.free, get(&of.free) - 1);
        set(&of.used, get(&of.used) + 1);
        self.rebin(&mut bins, slab, class);
        Some((slab, index))
    }

    /// Gives a pooled slab to a class; its first slot is the caller's.
    pub fn open(&self, slab: u32, class: SizeClass) -> usize {
        let of = &self.classes[class.0 as usize];
        let record = self.record(slab);
        let slots = class.slots();
        let mut bins = of.bins.lock();
        for (word, bits) in record.free.iter().enumerate() {
            let left = slots.saturating_sub(word * 64);
            bits.store(if left >= 64 { !0 } else { (1 << left) - 1 }, Ordering::Relaxed);
        }
        set(&record.used, 0);
        record.class.store(class.0, Ordering::Relaxed);
        record.bin.store(UNBINNED, Ordering::Relaxed);
        let index = self.occupy(slab);
        set(&of.free, get(&of.free) + slots as u32 - 1);
        set(&of.used, get(&of.used) + 1);
        self.rebin(&mut bins, slab, class);
        index
    }

    /// Gives a slot back. True if the slab is empty now, has no class any more and belongs to the
    /// caller.
    pub fn give_back(&self, slab: u32, index: usize) -> bool {
        let class = self.class(slab);
        let of = &self.classes[class.0 as usize];
        let record = self.record(slab);
        let mut bins = of.bins.lock();
        let bits = &record.free[index / 64];
        let old = bits.load(Ordering::Relaxed);
        debug_assert_eq!(old >> (index % 64) & 1, 0, "a slot is given back twice");
        bits.store(old | 1 << (index % 64), Ordering::Relaxed);
        set(&record.used, get(&record.used) - 1);
        set(&of.used, get(&of.used) - 1);
        if record.bin.load(Ordering::Relaxed) == EMPTYING {
            return false;
        }
        set(&of.free, get(&of.free) + 1);
        self.rebin(&mut bins, slab, class)
    }

    /// Withdraws the sparsest slab it finds, of a class whose other slabs have room for what is in
    /// it. The caller moves the objects and ends with `end_emptying`.
    pub fn begin_emptying(&self) -> Option<u32> {
        let spare = |class: SizeClass| match self.free(class) {
            free if free >= class.slots() => free * class.slot_bytes(),
            _ => 0,
        };
        let classes = (0..CLASSES as u8).map(SizeClass);
        let class = classes.max_by_key(|class| spare(*class))?;
        let of = &self.classes[class.0 as usize];
        let mut bins = of.bins.lock();
        if (get(&of.free) as usize) < class.slots() {
            return None;
        }
        let mut slab = bins.iter().copied().find(|head| *head != NONE)?;
        let mut at = slab;
        for _ in 0..LOOKED_AT_MAX {
            if at == NONE {
                break;
            }
            if get(&self.record(at).used) < get(&self.record(slab).used) {
                slab = at;
            }
            at = get(&self.record(at).next);
        }
        let record = self.record(slab);
        self.unlink(&mut bins, slab);
        record.bin.store(EMPTYING, Ordering::Relaxed);
        let used = get(&record.used);
        set(&of.free, get(&of.free) - (class.slots() as u32 - used));
        set(&record.used, used + 1);
        Some(slab)
    }

    /// Ends it. True if the slab is empty, has no class any more and belongs to the caller;
    /// otherwise it is as it was before.
    pub fn end_emptying(&self, slab: u32) -> bool {
        let class = self.class(slab);
        let of = &self.classes[class.0 as usize];
        let record = self.record(slab);
        let mut bins = of.bins.lock();
        let used = get(&record.used) - 1;
        set(&record.used, used);
        record.bin.store(UNBINNED, Ordering::Relaxed);
        set(&of.free, get(&of.free) + class.slots() as u32 - used);
        self.rebin(&mut bins, slab, class)
    }

    /// Whether a slot of the slab was held at this instant.
    pub fn is_held(&self, slab: u32, index: usize) -> bool {
        let bits = self.record(slab).free[index / 64].load(Ordering::Relaxed);
        bits >> (index % 64) & 1 == 0
    }

    fn record(&self, slab: u32) -> &SlabRecord {
        &self.records[slab as usize]
    }

    /// Takes the first free slot of a slab that has one.
    fn occupy(&self, slab: u32) -> usize {
        let record = self.record(slab);
        set(&record.used, get(&record.used) + 1);
        for (word, bits) in record.free.iter().enumerate() {
            let old = bits.load(Ordering::Relaxed);
            if old != 0 {
                bits.store(old & (old - 1), Ordering::Relaxed);
                return word * 64 + old.trailing_zeros() as usize;
            }
        }
        unreachable!("a slab in a bin has a free slot")
    }

    /// Puts a slab where its use says. True if it is empty: it is in no class then.
    fn rebin(&self, bins: &mut [u32; BINS], slab: u32, class: SizeClass) -> bool {
        let record = self.record(slab);
        let (used, slots) = (get(&record.used) as usize, class.slots());
        let bin = if used == slots || used == 0 { UNBINNED } else { (used * BINS / slots) as u8 };
        let old = record.bin.load(Ordering::Relaxed);
        if bin != old {
            if old != UNBINNED {
                self.unlink(bins, slab);
            }
            if bin != UNBINNED {
                self.link(bins, slab, bin);
            }
            record.bin.store(bin, Ordering::Relaxed);
        }
        if used == 0 {
            let free = &self.classes[class.0 as usize].free;
            set(free, get(free) - slots as u32);
        }
        used == 0
    }

    fn link(&self, bins: &mut [u32; BINS], slab: u32, bin: u8) {
        let head = bins[bin as usize];
        let record = self.record(slab);
        set(&record.next, head);
        set(&record.previous, NONE);
        if head != NONE {
            set(&self.record(head).previous, slab);
        }
        bins[bin as usize] = slab;
    }

    fn unlink(&self, bins: &mut [u32; BINS], slab: u32) {
        let record = self.record(slab);
        let (next, previous) = (get(&record.next), get(&record.previous));
        if previous == NONE {
            bins[record.bin.load(Ordering::Relaxed) as usize] = next;
        } else {
            set(&self.record(previous).next, next);
        }
        if next != NONE {
            set(&self.record(next).previous, previous);
        }
    }
}
