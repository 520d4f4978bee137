//! Slab table: which slots of which slab are free, by size class.
//!
//! Each class has four bins of partly used slabs, by how full they are. Slots are taken from the
//! fullest bin, so that sparse slabs become sparser and empty ones go back to the pool. A slab that
//! is being emptied is in no bin and hands out no slot.
//!
//! Where there are many processors each class has several *parts*, with bins and a lock of their
//! own: pages that compress alike are of one class, and each page that comes and goes takes its
//! lock. A thread takes slots from its own part, and from the others before a slab is opened; so
//! parts take no more memory, but that the fullest slab is only the fullest of a part.
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
//! Threads: any; one lock for each part of a class, held for a few dozen loads.

use deepheap_sys::errno::Result;
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::pinned_array::{PinnedArray, Zeroed};
use deepheap_sys::threads::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::tls;

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

/// So many processors use one part, ...
const CPUS_PER_PART: usize = 2;
/// ... and so many slabs there are for each; but no more parts than this.
const SLABS_PER_PART: usize = 1024;
const PARTS_MAX: usize = 16;

/// How many parts a class has, a power of two.
pub(super) fn parts_for(cpus: usize, slabs: usize) -> usize {
    let wanted = (cpus / CPUS_PER_PART).min(slabs / SLABS_PER_PART).clamp(1, PARTS_MAX);
    1 << wanted.ilog2()
}

/// Everything known of one slab. Fields belong to the lock of its part of its class.
#[repr(C)]
struct SlabRecord {
    /// A bit for every slot that is free.
    free: [AtomicU64; WORDS],
    /// Slots held, and one more while the slab is being emptied.
    used: AtomicU32,
    next: AtomicU32,
    previous: AtomicU32,
    class: AtomicU8,
    part: AtomicU8,
    bin: AtomicU8,
    padding: AtomicU8,
}

/// Bytes of the table for a slab.
pub(super) const RECORD_BYTES: usize = core::mem::size_of::<SlabRecord>();

// SAFETY: made of atomics only, for which all zero bytes are a value.
unsafe impl Zeroed for SlabRecord {}

/// A part of a class. Its counts change under the lock and are read without.
struct Part {
    /// Heads of the bins.
    bins: Lock<[u32; BINS]>,
    /// Free slots of its slabs, without those being emptied.
    free: AtomicU32,
    /// Slots held.
    used: AtomicU32,
}

/// The classes and their slabs.
pub(super) struct SlabTable {
    /// Those of a class lie together.
    parts: Box<[Padded<Part>]>,
    parts_each: usize,
    records: PinnedArray<SlabRecord>,
}

fn get(count: &AtomicU32) -> u32 {
    count.load(Ordering::Relaxed)
}

/// Who reads the count with Acquire sees what was done under the lock before (`begin_emptying_of`).
fn set(count: &AtomicU32, value: u32) {
    count.store(value, Ordering::Release);
}

impl SlabTable {
    /// A table for so many slabs, none of which has a class; each class has so many parts.
    pub(super) fn new(slabs: usize, parts_each: usize) -> Result<SlabTable> {
        let part = |_| {
            let bins = Lock::new([NONE; BINS]);
            Padded(Part { bins, free: AtomicU32::new(0), used: AtomicU32::new(0) })
        };
        Ok(SlabTable {
            parts: (0..CLASSES * parts_each).map(part).collect(),
            parts_each,
            records: PinnedArray::new(slabs)?,
        })
    }

    /// The parts of a class.
    fn parts_of(&self, class: SizeClass) -> &[Padded<Part>] {
        &self.parts[usize::from(class.0) * self.parts_each..][..self.parts_each]
    }

    /// The part that has a slab, of which the caller holds a slot, or which it empties.
    fn part_of(&self, slab: u32) -> &Part {
        let part = self.record(slab).part.load(Ordering::Relaxed);
        &self.parts_of(self.class(slab))[usize::from(part)]
    }

    /// The class of a slab of which the caller holds a slot, or which it empties.
    pub(super) fn class(&self, slab: u32) -> SizeClass {
        SizeClass(self.record(slab).class.load(Ordering::Relaxed))
    }

    /// Slots held in a class.
    pub(super) fn used(&self, class: SizeClass) -> usize {
        self.parts_of(class).iter().map(|part| get(&part.used) as usize).sum()
    }

    /// Free slots of a class, without those of slabs that are being emptied.
    pub(super) fn free(&self, class: SizeClass) -> usize {
        self.parts_of(class).iter().map(|part| get(&part.free) as usize).sum()
    }

    /// A free slot of the class, as slab and index: of this thread's part, or else of another one.
    pub(super) fn take(&self, class: SizeClass) -> Option<(u32, usize)> {
        let own = tls::lane_among(self.parts_each);
        let (before, from_own) = self.parts_of(class).split_at(own);
        from_own.iter().chain(before).find_map(|part| self.take_from(part, class))
    }

    fn take_from(&self, of: &Part, class: SizeClass) -> Option<(u32, usize)> {
        if get(&of.free) == 0 {
            return None;
        }
        let mut bins = of.bins.lock();
        let slab = bins.iter().rev().copied().find(|head| *head != NONE)?;
        let index = self.occupy(slab);
        set(&of.free, get(&of.free) - 1);
        set(&of.used, get(&of.used) + 1);
        self.rebin(of, &mut bins, slab, class);
        Some((slab, index))
    }

    /// Gives a pooled slab to this thread's part of a class; its first slot is the caller's.
    pub(super) fn open(&self, slab: u32, class: SizeClass) -> usize {
        let part = tls::lane_among(self.parts_each);
        let of = &self.parts_of(class)[part];
        let record = self.record(slab);
        let slots = class.slots();
        let mut bins = of.bins.lock();
        for (word, bits) in record.free.iter().enumerate() {
            let left = slots.saturating_sub(word * 64);
            bits.store(if left >= 64 { !0 } else { (1 << left) - 1 }, Ordering::Relaxed);
        }
        set(&record.used, 0);
        record.class.store(class.0, Ordering::Relaxed);
        record.part.store(part as u8, Ordering::Relaxed);
        record.bin.store(UNBINNED, Ordering::Relaxed);
        let index = self.occupy(slab);
        set(&of.free, get(&of.free) + slots as u32 - 1);
        set(&of.used, get(&of.used) + 1);
        self.rebin(of, &mut bins, slab, class);
        index
    }

    /// Gives a slot back. True if the slab is empty now, has no class any more and belongs to the
    /// caller.
    pub(super) fn give_back(&self, slab: u32, index: usize) -> bool {
        let (class, of) = (self.class(slab), self.part_of(slab));
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
        self.rebin(of, &mut bins, slab, class)
    }

    /// Withdraws the sparsest slab it finds, of a class whose other slabs have room for what is in
    /// it. The caller moves the objects and ends with `end_emptying`.
    pub(super) fn begin_emptying(&self) -> Option<u32> {
        let spare = |class: SizeClass| match self.free(class) {
            free if free >= class.slots() => free * class.slot_bytes(),
            _ => 0,
        };
        let classes = (0..CLASSES as u8).map(SizeClass);
        let class = classes.max_by_key(|class| spare(*class))?;
        let of = self.parts_of(class).iter().max_by_key(|part| get(&part.free))?;
        let mut bins = of.bins.lock();
        // Looked at again under the lock; free slots of other parts may be taken meanwhile. Then
        // the caller finds no room for some objects, and the slab stays.
        if self.free(class) < class.slots() {
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
        self.withdraw(of, &mut bins, slab, class);
        Some(slab)
    }

    /// Withdraws this slab likewise; false if no slot of it is held, or another thread empties it.
    pub(super) fn begin_emptying_of(&self, slab: u32) -> bool {
        let (class, of) = (self.class(slab), self.part_of(slab));
        let mut bins = of.bins.lock();
        let record = self.record(slab);
        // A slab with a slot that is held changes its class and its part under no other lock than
        // this one. But another thread may be opening this one for others: who sees its slot
        // counted must see its new class and part (`set`).
        let is_held = record.used.load(Ordering::Acquire) > 0;
        let is_same = (self.class(slab), &raw const *self.part_of(slab)) == (class, &raw const *of);
        let is_ours = is_held && is_same && record.bin.load(Ordering::Relaxed) != EMPTYING;
        if is_ours {
            self.withdraw(of, &mut bins, slab, class);
        }
        is_ours
    }

    fn withdraw(&self, of: &Part, bins: &mut [u32; BINS], slab: u32, class: SizeClass) {
        let record = self.record(slab);
        if record.bin.load(Ordering::Relaxed) != UNBINNED {
            self.unlink(bins, slab);
        }
        record.bin.store(EMPTYING, Ordering::Relaxed);
        let used = get(&record.used);
        set(&of.free, get(&of.free) - (class.slots() as u32 - used));
        set(&record.used, used + 1);
    }

    /// Ends it. True if the slab is empty, has no class any more and belongs to the caller;
    /// otherwise it is as it was before.
    pub(super) fn end_emptying(&self, slab: u32) -> bool {
        let (class, of) = (self.class(slab), self.part_of(slab));
        let record = self.record(slab);
        let mut bins = of.bins.lock();
        let used = get(&record.used) - 1;
        set(&record.used, used);
        record.bin.store(UNBINNED, Ordering::Relaxed);
        set(&of.free, get(&of.free) + class.slots() as u32 - used);
        self.rebin(of, &mut bins, slab, class)
    }

    /// Whether a slot of the slab was held at this instant.
    pub(super) fn is_held(&self, slab: u32, index: usize) -> bool {
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
    fn rebin(&self, of: &Part, bins: &mut [u32; BINS], slab: u32, class: SizeClass) -> bool {
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
            set(&of.free, get(&of.free) - slots as u32);
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
