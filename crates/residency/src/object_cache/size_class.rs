//! Size class: the slot sizes of the object cache, sixteen steps an octave.
//!
//! 128, 144, ... 256, 272, ... 512, 544, ... 1024, ... 4096: 73 classes, none of which wastes more
//! than a sixteenth of a slot (an eighth of the 128 to 256-byte ones). Smaller objects do not come
//! alone: the heap batches them.

/// Bytes of a slab.
pub(super) const SLAB_BYTES: usize = 64 * 1024;
/// Slot numbers a slab has, used or not.
pub(super) const SLOTS_MAX: usize = 512;
/// Size classes.
pub(super) const CLASSES: usize = 73;
/// From this slot size on the owners are noted outside the slab, so that 4096-byte slots fill it.
pub(super) const OWNERS_OUTSIDE: usize = 1024;
/// The most slots of a slab whose owners are noted outside it.
pub(super) const OUTSIDE_MAX: usize = SLAB_BYTES / OWNERS_OUTSIDE;

const LEAST: usize = 128;
const EVEN_UP_TO: usize = 256;
const EVEN_CLASSES: usize = (EVEN_UP_TO - LEAST) / 16;
const MOST: usize = 4096;

/// A class, below `CLASSES`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SizeClass(pub u8);

impl SizeClass {
    /// The smallest class for objects of so many bytes; none above 4096.
    pub(super) fn of(bytes: usize) -> Option<SizeClass> {
        if bytes > MOST {
            return None;
        }
        if bytes <= EVEN_UP_TO {
            return Some(SizeClass((bytes.saturating_sub(LEAST)).div_ceil(16) as u8));
        }
        let octave = (bytes - 1).ilog2() as usize;
        let step = 1 << (octave - 4);
        let in_octave = (bytes - (1 << octave)).div_ceil(step);
        Some(SizeClass((EVEN_CLASSES + (octave - 8) * 16 + in_octave) as u8))
    }

    /// Bytes of a slot.
    pub(super) const fn slot_bytes(self) -> usize {
        let class = self.0 as usize;
        if class <= EVEN_CLASSES {
            return LEAST + 16 * class;
        }
        let octave = 8 + (class - EVEN_CLASSES - 1) / 16;
        let in_octave = (class - EVEN_CLASSES - 1) % 16 + 1;
        (1 << octave) + (in_octave << (octave - 4))
    }

    /// Slots in a slab.
    pub(super) const fn slots(self) -> usize {
        let bytes = self.slot_bytes();
        if bytes >= OWNERS_OUTSIDE { SLAB_BYTES / bytes } else { SLAB_BYTES / (bytes + 4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for bytes in 0..=MOST {
            let class = SizeClass::of(bytes).unwrap();
            assert!((class.0 as usize) < CLASSES);
            let slot = class.slot_bytes();
            assert!(slot >= bytes && slot.is_multiple_of(16), "{bytes} in {slot}");
            if class.0 > 0 {
                assert!(SizeClass(class.0 - 1).slot_bytes() < bytes, "{bytes} in {slot}");
            }
            if bytes >= LEAST {
                let step = if bytes <= EVEN_UP_TO { 16 } else { bytes / 16 };
                assert!(slot - bytes < step.max(16), "{bytes} in {slot}");
            }
        }
        assert_eq!(SizeClass::of(MOST + 1), None);
        assert_eq!(SizeClass::of(MOST), Some(SizeClass(CLASSES as u8 - 1)));
    }

    #[test]
    fn slots_and_their_owners_fit_the_slab() {
        for class in (0..CLASSES as u8).map(SizeClass) {
            let (bytes, slots) = (class.slot_bytes(), class.slots());
            let inside = if bytes >= OWNERS_OUTSIDE { 0 } else { 4 };
            assert!(slots <= SLOTS_MAX && slots * (bytes + inside) <= SLAB_BYTES);
            assert!(inside != 0 || slots <= OUTSIDE_MAX);
        }
        assert_eq!(SizeClass(CLASSES as u8 - 1).slots(), 16);
    }
}
