//! Objects: the data set of a run, every object with check values that are verified on each access.
//!
//! ```text
//! word 0    tag(index) in the high 32 bits, version in the low 32 bits; a write adds 1 atomically
//! word 1    chase only: index of the next object, masked with content(index, 1)
//! word w    content(index, w), never changed after the fill
//! ```
//!
//! Guarantees: an access that meets zeros, another object's bytes or a torn object says so;
//! versions never lose an increment unless the memory underneath does.
//! Never: forms a reference to plain data in measured memory; raw pointers, copies and
//! atomics only.
//! Threads: any number at once after the fill, which is single-threaded.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::random::mix;

/// Bytes in a word, the unit of every access.
pub const WORD_BYTES: usize = 8;
/// The smallest object: a header and one word.
pub const MIN_OBJECT_BYTES: usize = 16;
/// Words between two looks of a scan: one cache line.
const LINE_WORDS: u64 = 8;
const VERSION_MASK: u64 = 0xFFFF_FFFF;

/// Where the objects lie.
#[derive(Debug)]
pub enum Placement {
    /// One allocation of all objects side by side.
    Array(*mut u8),
    /// One allocation for each object.
    Each(Vec<*mut u8>),
}

/// An object that does not hold what was written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    object: u64,
    word: u64,
    expected: u64,
    found: u64,
}

impl core::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "object {} word {}: expected {:#018x}, found {:#018x}",
            self.object, self.word, self.expected, self.found
        )
    }
}

/// All objects of a run.
#[derive(Debug)]
pub struct Objects {
    placement: Placement,
    object_bytes: usize,
    count: u64,
}

// SAFETY: the placement is never changed after construction and its memory is accessed only by
// volatile reads of words nobody writes any more and by atomic operations on the headers.
unsafe impl Send for Objects {}
// SAFETY: as above.
unsafe impl Sync for Objects {}

impl Objects {
    /// Objects of `object_bytes` (a multiple of 8, at least 16) at `placement`.
    ///
    /// # Safety
    /// Every object of the placement (`count` of them) is `object_bytes` long, 8-byte aligned,
    /// readable and writable until the process ends, and nothing else uses it.
    pub unsafe fn new(placement: Placement, object_bytes: usize, count: u64) -> Self {
        Self { placement, object_bytes, count }
    }

    /// How many objects there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Words in an object.
    pub fn words(&self) -> u64 {
        (self.object_bytes / WORD_BYTES) as u64
    }

    #[inline]
    fn word_ptr(&self, object: u64, word: u64) -> *mut u64 {
        debug_assert!(object < self.count && word < self.words());
        let offset = word as usize * WORD_BYTES;
        match &self.placement {
            // SAFETY: object < count and word < words, so the place is inside the array (see new).
            Placement::Array(base) => unsafe {
                base.add(object as usize * self.object_bytes + offset).cast()
            },
            // SAFETY: offset < object_bytes, the length of each allocation (see new).
            Placement::Each(pointers) => unsafe { pointers[object as usize].add(offset).cast() },
        }
    }

    #[inline]
    fn load(&self, object: u64, word: u64) -> u64 {
        // SAFETY: a valid, aligned word (see new) that nobody writes after the fill.
        unsafe { self.word_ptr(object, word).read_volatile() }
    }

    #[inline]
    fn header(&self, object: u64) -> &AtomicU64 {
        // SAFETY: a valid, aligned word (see new) that is only accessed atomically after the fill.
        unsafe { AtomicU64::from_ptr(self.word_ptr(object, 0)) }
    }

    /// Writes all words of an object; `next` is its successor in a chase.
    pub fn fill(&self, object: u64, next: Option<u64>) {
        let seed = mix(object);
        let first = self.word_ptr(object, 0);
        for word in 0..self.words() {
            let value = match (word, next) {
                (0, _) => tag(object),
                (1, Some(next)) => next ^ content(seed, 1),
                _ => content(seed, word),
            };
            // SAFETY: word < words, inside the object; the fill is the only user of it yet.
            unsafe { first.add(word as usize).write_volatile(value) };
        }
    }

    /// Reads and verifies the header and one more word.
    #[inline]
    pub fn read(&self, object: u64, word: u64) -> Result<(), Mismatch> {
        self.check_header(object, self.header(object).load(Ordering::Relaxed))?;
        self.check(object, word, content(mix(object), word), self.load(object, word))
    }

    /// Adds 1 to the version, verifying the tag beside it.
    #[inline]
    pub fn write(&self, object: u64) -> Result<(), Mismatch> {
        self.check_header(object, self.header(object).fetch_add(1, Ordering::Relaxed))
    }

    /// Reads and verifies the header and the first word of every further cache line.
    #[inline]
    pub fn scan(&self, object: u64) -> Result<(), Mismatch> {
        self.check_header(object, self.header(object).load(Ordering::Relaxed))?;
        let seed = mix(object);
        let mut word = LINE_WORDS;
        while word < self.words() {
            self.check(object, word, content(seed, word), self.load(object, word))?;
            word += LINE_WORDS;
        }
        Ok(())
    }

    /// Verifies the header and reads the successor stored in the object.
    #[inline]
    pub fn follow(&self, object: u64) -> Result<u64, Mismatch> {
        self.check_header(object, self.header(object).load(Ordering::Relaxed))?;
        let (found, mask) = (self.load(object, 1), content(mix(object), 1));
        let next = found ^ mask;
        if next < self.count {
            Ok(next)
        } else {
            Err(Mismatch { object, word: 1, expected: mask, found })
        }
    }

    /// Verifies the whole object as `scan` does and returns how often it was written.
    pub fn audit(&self, object: u64) -> Result<u64, Mismatch> {
        self.scan(object)?;
        Ok(self.header(object).load(Ordering::Relaxed) & VERSION_MASK)
    }

    #[inline]
    fn check_header(&self, object: u64, found: u64) -> Result<(), Mismatch> {
        self.check(object, 0, tag(object), found & !VERSION_MASK)
    }

    #[inline]
    fn check(&self, object: u64, word: u64, expected: u64, found: u64) -> Result<(), Mismatch> {
        if found == expected { Ok(()) } else { Err(Mismatch { object, word, expected, found }) }
    }
}

/// The high half of an object's header; never all zero.
#[inline]
fn tag(object: u64) -> u64 {
    (mix(object) & !VERSION_MASK) | 1 << 63
}

/// What word `word` of the object with `mix(index) == seed` holds.
#[inline]
fn content(seed: u64, word: u64) -> u64 {
    seed.rotate_left(29) ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(memory: &mut [u64], object_bytes: usize) -> Objects {
        let count = (memory.len() * WORD_BYTES / object_bytes) as u64;
        // SAFETY: the array outlives the objects in each test and is used through them only.
        unsafe { Objects::new(Placement::Array(memory.as_mut_ptr().cast()), object_bytes, count) }
    }

    #[test]
    fn what_was_filled_is_read_and_writes_are_counted() {
        let mut memory = vec![0; 16 * 64];
        let objects = objects(&mut memory, 128);
        for i in 0..objects.count() {
            objects.fill(i, Some((i + 1) % objects.count()));
        }
        for i in 0..objects.count() {
            assert_eq!(objects.read(i, 2), Ok(()));
            assert_eq!(objects.scan(i), Ok(()));
            assert_eq!(objects.follow(i), Ok((i + 1) % objects.count()));
            assert_eq!(objects.write(i), Ok(()));
            assert_eq!(objects.audit(i), Ok(1));
        }
    }

    #[test]
    fn zeros_foreign_bytes_and_a_flipped_bit_are_mismatches() {
        let mut memory = vec![0; 16 * 4];
        let objects = objects(&mut memory, 128);
        (0..4).for_each(|i| objects.fill(i, None));
        let flip = |word: usize, bits: u64| {
            // SAFETY: inside the array of the test.
            unsafe { *objects.word_ptr(0, 0).add(word) ^= bits };
        };
        flip(8, 1);
        assert!(objects.scan(0).is_err() && objects.read(0, 8).is_err());
        flip(8, 1);
        assert_eq!(objects.scan(0), Ok(()));
        flip(0, tag(0));
        assert!(objects.write(0).is_err() && objects.follow(0).is_err());
        flip(0, tag(1));
        assert!(objects.read(0, 3).is_err());
    }
}
