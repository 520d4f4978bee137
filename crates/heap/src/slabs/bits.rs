//! Slab: 64 KiB of objects of one small class; a bit for each object is kept elsewhere.
//!
//! A set bit means allocated: in the program's hands or in a thread cache. Up to 512 objects
//! the bits fit one cache line of `lines`; slabs of smaller objects have 512 bytes in `sheets`.
//!
//! Guarantees: the bits of a slab without objects are all clear, whatever its class, so that a
//! slab can change its class without touching them.
//! Never: touches an object.
//! Threads: `take`, `put` and `used` under the lock of the class's central list; the lookups
//! from anywhere, also in signal handlers.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use deepheap_sys::errno::Result;
use deepheap_sys::narrow::Narrow;

use crate::page::PAGE;
use crate::slabs::size_class::{GRAIN, SIZE_CLASSES, SLAB, SizeClass};
use crate::table::{Populated, Table};

pub(crate) const LINE_WORDS: usize = 8;
const LINE_BITS: usize = LINE_WORDS * 64;
pub(crate) const SHEET_WORDS: usize = SLAB / GRAIN / 64;

const _: () = assert!(LINE_BITS == SLAB / 128);

/// The out-of-band state of every slab of the region, by slab number.
pub(crate) struct Slabs {
    /// The class, 0 where there is no slab.
    pub(crate) classes: Table<AtomicU8>,
    /// Allocated objects.
    pub(crate) used: Table<AtomicU16>,
    pub(crate) lines: Table<AtomicU64>,
    pub(crate) sheets: Table<AtomicU64>,
}

impl Slabs {
    /// No slabs yet, room for `count`.
    pub(crate) fn new(count: usize, populated: &Populated) -> Result<Self> {
        Ok(Self {
            classes: Table::new(count, populated)?,
            used: Table::new(count, populated)?,
            lines: Table::new(count * LINE_WORDS, populated)?,
            sheets: Table::new(count * SHEET_WORDS, populated)?,
        })
    }

    /// The class of a slab; 0 if there is no slab, or beyond the region.
    #[inline(always)]
    pub(crate) fn class_of(&self, slab: usize) -> u8 {
        match self.classes.get(slab) {
            Some(class) => class.load(Ordering::Acquire),
            None => 0,
        }
    }

    /// Makes `slab` one of `class`. The caller owns its pages, and it has no class yet.
    pub(crate) fn open(&self, slab: usize, class: u8) {
        debug_assert!(self.class_of(slab) == 0 && self.used(slab) == 0);
        self.mark(slab, class);
        self.classes.cell(slab).store(class, Ordering::Release);
    }

    /// Notes that objects of the slab, which is of `class`, may be allocated from now on.
    pub(crate) fn mark(&self, slab: usize, class: u8) {
        self.used.mark(slab..slab + 1);
        let (table, cells) = self.place(slab, words_of(&SIZE_CLASSES[class as usize]));
        table.mark(cells);
    }

    /// Ends the slab, which has no allocated objects.
    pub(crate) fn close(&self, slab: usize) {
        debug_assert_eq!(self.used(slab), 0);
        self.classes[slab].store(0, Ordering::Release);
    }

    /// How many of its objects are allocated.
    pub(crate) fn used(&self, slab: usize) -> usize {
        usize::from(self.used[slab].load(Ordering::Relaxed))
    }

    /// Marks `count` free objects allocated, lowest first, and hands their indices to `each`.
    /// The slab has at least that many.
    pub(crate) fn take(
        &self,
        slab: usize,
        class: &SizeClass,
        count: usize,
        mut each: impl FnMut(usize),
    ) {
        let objects = class.objects();
        let mut left = count;
        for (at, word) in self.bits(slab, class).iter().enumerate() {
            if left == 0 {
                break;
            }
            let valid = u64::MAX >> (64 - (objects - at * 64).min(64));
            let old = word.load(Ordering::Relaxed);
            let mut free = !old & valid;
            let mut taken = 0;
            while free != 0 && left > 0 {
                let bit = free & free.wrapping_neg();
                each(at * 64 + bit.trailing_zeros() as usize);
                taken |= bit;
                free ^= bit;
                left -= 1;
            }
            // A plain store is enough: only the holder of the list's lock writes.
            word.store(old | taken, Ordering::Release);
        }
        debug_assert_eq!(left, 0);
        self.used[slab].store((self.used(slab) + count).to_u16(), Ordering::Relaxed);
    }

    /// Marks the objects free whose bits in word `word` are in `mask`; returns those that were
    /// allocated.
    #[inline]
    pub(crate) fn put(&self, slab: usize, class: &SizeClass, word: usize, mask: u64) -> u64 {
        let bits = &self.bits(slab, class)[word];
        let old = bits.load(Ordering::Relaxed);
        bits.store(old & !mask, Ordering::Release);
        let freed = (old & mask).count_ones() as usize;
        self.used[slab].store((self.used(slab) - freed).to_u16(), Ordering::Relaxed);
        old & mask
    }

    /// Whether object `index` is allocated.
    #[inline(always)]
    pub(crate) fn is_allocated(&self, slab: usize, class: &SizeClass, index: usize) -> bool {
        let word = &self.bits(slab, class)[index / 64];
        word.load(Ordering::Acquire) >> (index % 64) & 1 == 1
    }

    /// Whether no allocated object touches page `page` (0..16) of the slab.
    pub(crate) fn page_is_free(&self, slab: usize, class: &SizeClass, page: usize) -> bool {
        let last = class.index_covering(page * PAGE + PAGE - 1);
        let first = class.index_covering(page * PAGE);
        let end = (last + 1).min(class.objects());
        let bits = self.bits(slab, class);
        let mut index = first;
        while index < end {
            let stop = (index / 64 * 64 + 64).min(end);
            let mask = (u64::MAX << (index % 64)) & (u64::MAX >> (63 - (stop - 1) % 64));
            if bits[index / 64].load(Ordering::Acquire) & mask != 0 {
                return false;
            }
            index = stop;
        }
        true
    }

    /// The slabs that have a class, ascending; looks only at what was ever written.
    pub(crate) fn with_class(&self) -> impl Iterator<Item = usize> + '_ {
        let pages = (0..self.classes.len()).step_by(PAGE);
        let written = pages.filter(|&first| self.classes.is_marked(first));
        let slabs = written.flat_map(|first| first..(first + PAGE).min(self.classes.len()));
        slabs.filter(|&slab| self.class_of(slab) != 0)
    }

    #[inline(always)]
    fn bits(&self, slab: usize, class: &SizeClass) -> &[AtomicU64] {
        let (table, cells) = self.place(slab, words_of(class));
        &table[cells]
    }

    #[inline(always)]
    fn place(&self, slab: usize, words: usize) -> (&Table<AtomicU64>, Range<usize>) {
        if words <= LINE_WORDS {
            (&self.lines, slab * LINE_WORDS..slab * LINE_WORDS + words)
        } else {
            (&self.sheets, slab * SHEET_WORDS..slab * SHEET_WORDS + words)
        }
    }
}

#[inline(always)]
fn words_of(class: &SizeClass) -> usize {
    class.objects().div_ceil(64)
}
