//! Size class: the sizes that allocations are rounded up to, and the arithmetic on them.
//!
//! Small classes: 16-byte steps to 128, then 8 a doubling up to 16 KiB; objects of one class
//! share a 64 KiB slab. Medium classes: whole pages, 8 a doubling up to 1 MiB; each object is a
//! page run of its own. Larger allocations have no class.
//!
//! Guarantees: rounding up wastes at most 12.5 % plus 16 bytes (plus a page for medium ones).
//! Never: allocates, blocks; every table is a constant.
//! Threads: any.

use crate::page::{PAGE, PAGE_SHIFT};

/// Bytes in a slab, and its alignment.
pub(crate) const SLAB: usize = 1 << SLAB_SHIFT;
/// log2 of [`SLAB`].
pub(crate) const SLAB_SHIFT: u32 = 16;
/// Pages in a slab.
pub(crate) const PAGES_PER_SLAB: usize = SLAB / PAGE;
/// Every object starts at a multiple of this.
pub(crate) const GRAIN: usize = 16;
/// Largest size served from slabs.
pub(crate) const SMALL_MAX: usize = 16 << 10;
/// Largest size that has a class.
pub(crate) const MEDIUM_MAX: usize = 1 << 20;
/// The last small class; they are numbered from 1, and class 0 means "none".
pub(crate) const LAST_SMALL: u8 = 64;
/// Number of small classes.
pub(crate) const SMALL_CLASSES: usize = LAST_SMALL as usize;
/// The last class.
pub(crate) const LAST_CLASS: u8 = LAST_SMALL + 44;
/// Number of classes.
pub(crate) const CLASSES: usize = LAST_CLASS as usize;
/// Tables indexed by a class are this long, so that any `u8` is a valid index.
pub(crate) const CLASS_TABLE: usize = 256;

const MEDIUM_MAX_PAGES: usize = MEDIUM_MAX / PAGE;
/// Bytes that a thread cache keeps of one small class.
const SMALL_BIN_BYTES: usize = 32 << 10;
/// Bytes that a thread cache keeps of one medium class.
const MEDIUM_BIN_BYTES: usize = 256 << 10;

/// One class.
#[derive(Clone, Copy)]
pub(crate) struct SizeClass {
    /// Bytes in an object; 0 where there is no such class.
    pub size: u32,
    /// Bytes of a slab that its objects cover; 0 for medium classes.
    pub covered: u32,
    /// ceil(2^32 / size) for small classes, else 0: see [`SizeClass::index_at`].
    magic: u32,
    /// Objects in a slab; 0 for medium classes.
    objects: u16,
    /// Most objects that a thread cache keeps.
    pub bin_capacity: u16,
}

impl SizeClass {
    /// Which object of a slab starts at byte `offset` of it; None where no object starts.
    ///
    /// With magic = (2^32 + e) / size, 0 <= e < size, and offset = k * size + r, the product is
    /// k * 2^32 + k * e + r * magic. As offset < 2^16 and size <= 2^14, k * e < 2^16 < magic, so
    /// the upper half is k, and the lower half is below magic exactly when r = 0. (The test
    /// tries every offset of every class.) A class without slabs has magic 0: always None.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half; offset < 2^16")]
    pub(crate) fn index_at(&self, offset: usize) -> Option<usize> {
        debug_assert!(offset < SLAB);
        let product = offset as u64 * u64::from(self.magic);
        let starts_here = (product as u32) < self.magic && (offset as u32) < self.covered;
        starts_here.then_some((product >> 32) as usize)
    }

    /// The object that covers byte `offset` of a slab, though its index may be past the end.
    #[inline]
    pub(crate) fn index_covering(&self, offset: usize) -> usize {
        ((offset as u64 * u64::from(self.magic)) >> 32) as usize
    }

    /// Objects in a slab.
    #[inline]
    pub(crate) fn objects(&self) -> usize {
        self.objects as usize
    }

    /// Pages of a slab that objects touch.
    #[inline]
    pub(crate) fn covered_pages(&self) -> usize {
        (self.covered as usize).div_ceil(PAGE)
    }

    /// Pages of an object of a medium class.
    #[inline]
    pub(crate) fn run_pages(&self) -> usize {
        self.size as usize >> PAGE_SHIFT
    }
}

/// The `step`-th size (from 1) of a ladder whose first 16 rungs are multiples of `least` and
/// which then has 8 rungs a doubling.
const fn rung(step: usize, least: usize) -> usize {
    if step <= 16 {
        return step * least;
    }
    let doubling = (step - 17) / 8;
    let eighth = (step - 17) % 8;
    ((9 + eighth) << (doubling + 1)) * least
}

/// Medium classes start at 5 pages, the fifth rung.
const MEDIUM_FIRST_RUNG: usize = 5;

const fn smaller(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

const fn larger(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

#[expect(clippy::cast_possible_truncation, reason = "sizes are at most `MEDIUM_MAX`")]
const fn build_classes() -> [SizeClass; CLASS_TABLE] {
    let none = SizeClass { size: 0, covered: 0, magic: 0, objects: 0, bin_capacity: 0 };
    let mut table = [none; CLASS_TABLE];
    let mut class = 1;
    while class <= SMALL_CLASSES {
        let size = rung(class, GRAIN);
        table[class] = SizeClass {
            size: size as u32,
            covered: (SLAB / size * size) as u32,
            magic: ((1u64 << 32).div_ceil(size as u64)) as u32,
            objects: (SLAB / size) as u16,
            bin_capacity: smaller(larger(SMALL_BIN_BYTES / size, 4), 128) as u16,
        };
        class += 1;
    }
    while class <= CLASSES {
        let size = rung(class - SMALL_CLASSES - 1 + MEDIUM_FIRST_RUNG, PAGE);
        table[class] = SizeClass {
            size: size as u32,
            covered: 0,
            magic: 0,
            objects: 0,
            bin_capacity: smaller(larger(MEDIUM_BIN_BYTES / size, 1), 8) as u16,
        };
        class += 1;
    }
    table
}

/// Every class by its number.
pub(crate) static SIZE_CLASSES: [SizeClass; CLASS_TABLE] = build_classes();

const _: () = {
    let classes = build_classes();
    assert!(classes[SMALL_CLASSES].size as usize == SMALL_MAX);
    assert!(classes[CLASSES].size as usize == MEDIUM_MAX);
};

const SMALL_GRAINS: usize = SMALL_MAX / GRAIN;

/// The class of each size that is a multiple of `unit`, from class `first` on.
#[expect(clippy::cast_possible_truncation, reason = "classes are at most `LAST_CLASS`")]
const fn classes_of_sizes<const N: usize>(first: usize, unit: usize) -> [u8; N] {
    let classes = build_classes();
    let mut table = [first as u8; N];
    let mut class = first;
    let mut at = 1;
    while at < N {
        while (classes[class].size as usize) < at * unit {
            class += 1;
        }
        table[at] = class as u8;
        at += 1;
    }
    table
}

/// Class by size in grains, rounded up.
static SMALL_CLASS_OF: [u8; SMALL_GRAINS + 1] = classes_of_sizes(1, GRAIN);

/// Class by size in pages, rounded up.
static MEDIUM_CLASS_OF: [u8; MEDIUM_MAX_PAGES + 1] = classes_of_sizes(SMALL_CLASSES + 1, PAGE);

/// The class of small objects of `size` bytes; None above [`SMALL_MAX`].
#[inline(always)]
pub(crate) fn small_class_of(size: usize) -> Option<u8> {
    if size > SMALL_MAX {
        return None;
    }
    Some(SMALL_CLASS_OF[size.div_ceil(GRAIN)])
}

/// The smallest small class whose objects hold `size` bytes and all lie at multiples of `align`
/// (a power of two); None if no slab can do that.
pub(crate) fn aligned_class_of(size: usize, align: usize) -> Option<u8> {
    let mut class = small_class_of(size.max(align))?;
    // Slabs are 64 KiB aligned, so objects are as aligned as their size is. Powers of two are
    // classes, so the loop ends at the next one at the latest.
    while !(SIZE_CLASSES[class as usize].size as usize).is_multiple_of(align) {
        class += 1;
    }
    Some(class)
}

/// The medium class of runs of `pages` pages, rounded up; None above [`MEDIUM_MAX`].
#[inline]
pub(crate) fn medium_class_of(pages: usize) -> Option<u8> {
    MEDIUM_CLASS_OF.get(pages).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_of_every_slab_is_located_exactly() {
        for class in &SIZE_CLASSES[1..=SMALL_CLASSES] {
            let (size, covered) = (class.size as usize, class.covered as usize);
            for offset in 0..SLAB {
                let starts = offset % size == 0 && offset < covered;
                assert_eq!(class.index_at(offset), starts.then_some(offset / size));
                assert_eq!(class.index_covering(offset), offset / size);
            }
        }
        for class in &SIZE_CLASSES[SMALL_CLASSES + 1..] {
            assert!((0..SLAB).all(|offset| class.index_at(offset).is_none()));
        }
        assert!((0..SLAB).all(|offset| SIZE_CLASSES[0].index_at(offset).is_none()));
    }

    #[test]
    fn rounding_up_wastes_an_eighth_at_most() {
        for size in 0..=SMALL_MAX {
            let class = small_class_of(size).expect("small");
            let rounded = SIZE_CLASSES[class as usize].size as usize;
            assert!(rounded >= size && rounded - size <= size / 8 + GRAIN, "{size} -> {rounded}");
            assert_eq!(rounded % GRAIN, 0);
        }
        for pages in 5..=MEDIUM_MAX_PAGES {
            let class = medium_class_of(pages).expect("medium");
            let rounded = SIZE_CLASSES[class as usize].run_pages();
            assert!(rounded >= pages && rounded - pages <= pages / 8, "{pages} -> {rounded}");
        }
        assert_eq!(small_class_of(SMALL_MAX + 1), None);
        assert_eq!(medium_class_of(MEDIUM_MAX_PAGES + 1), None);
    }

    #[test]
    fn aligned_classes_keep_every_object_aligned() {
        for align in (4..=14).map(|shift| 1usize << shift) {
            for size in (0..=SMALL_MAX).step_by(7) {
                let class = aligned_class_of(size, align).expect("fits a slab");
                let rounded = SIZE_CLASSES[class as usize].size as usize;
                assert!(rounded >= size && rounded.is_multiple_of(align));
            }
        }
        assert_eq!(aligned_class_of(1, SMALL_MAX * 2), None);
    }
}
