//! Objects: the data set of a run, every object with check values that are verified on each access.
//!
//! ```text
//! word 0    tag(index) in the high 32 bits, version in the low 32 bits; a write adds 1 atomically
//! word 1    chase only: index of the next object, masked with content(index, 1)
//! word w    content(index, w), never changed after the fill
//!
//! all of it zero, if the object is one of those that are never written
//! ```
//!
//! Guarantees: an access that meets zeros, another object's bytes or a torn object says so;
//! versions never lose an increment unless the memory underneath does.
//! Never: forms a reference to plain data in measured memory; raw pointers, copies and
//! atomics only.
//! Threads: any number at once after the fill, which is single-threaded.

use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_load::random::mix;

use crate::sizes::{Sizes, WORD_BYTES};

/// Words between two looks of a scan: one cache line.
const LINE_WORDS: u64 = 8;
const VERSION_MASK: u64 = 0xFFFF_FFFF;
/// Which objects stay zeros has nothing to do with what the others hold.
const ZEROS: u64 = 0x5A_E705;

/// Where the objects lie.
#[derive(Debug)]
pub enum Placement {
    /// One allocation of all objects, each at the same distance from the one before.
    Array {
        /// The first.
        base: *mut u8,
        /// The distance, in bytes.
        stride: usize,
    },
    /// Each object where its pointer says.
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
    sizes: Sizes,
    count: u64,
    /// Of a hundred objects, so many stay zeros.
    zero_percent: u64,
}

// SAFETY: the placement is never changed after construction and its memory is accessed only by
// volatile reads of words nobody writes any more and by atomic operations on the headers.
unsafe impl Send for Objects {}
// SAFETY: as above.
unsafe impl Sync for Objects {}

impl Objects {
    /// Objects of `sizes` (multiples of 8, at least 16) at `placement`.
    ///
    /// # Safety
    /// Every object of the placement (`count` of them) is as long as `sizes` says, 8-byte aligned,
    /// readable and writable until the process ends, and nothing else uses it.
    pub unsafe fn new(placement: Placement, sizes: Sizes, count: u64) -> Self {
        Self { placement, sizes, count, zero_percent: 0 }
    }

    /// The same, of which so many in a hundred are never written and stay zeros.
    pub fn with_zeros(self, percent: u32) -> Self {
        Self { zero_percent: u64::from(percent), ..self }
    }

    /// Whether an object stays zeros.
    #[inline]
    fn stays_zero(&self, object: u64) -> bool {
        self.zero_percent > 0 && mix(object ^ ZEROS) % 100 < self.zero_percent
    }

    /// How many objects there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of an object.
    #[inline]
    pub fn bytes(&self, object: u64) -> usize {
        self.sizes.of(object) as usize
    }

    /// Words in an object.
    #[inline]
    pub fn words(&self, object: u64) -> u64 {
        (self.bytes(object) / WORD_BYTES) as u64
    }

    /// Where an object lies.
    #[inline]
    pub fn pointer(&self, object: u64) -> *mut u8 {
        debug_assert!(object < self.count);
        match &self.placement {
            // SAFETY: object < count, so the place is inside the array (see new).
            Placement::Array { base, stride } => unsafe { base.add(object as usize * stride) },
            Placement::Each(pointers) => pointers[object as usize],
        }
    }

    #[inline]
    fn word_ptr(&self, object: u64, word: u64) -> *mut u64 {
        debug_assert!(word < self.words(object));
        // SAFETY: word < words, so the place is inside the object (see new).
        unsafe { self.pointer(object).add(word as usize * WORD_BYTES).cast() }
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

    /// Writes all words of an object, unless it stays zeros; `next` is its successor in a chase.
    pub fn fill(&self, object: u64, next: Option<u64>) {
        if self.stays_zero(object) {
            return;
        }
        let seed = mix(object);
        let first = self.word_ptr(object, 0);
        for word in 0..self.words(object) {
            let value = match (word, next) {
                (0, _) => tag(object),
                (1, Some(next)) => next ^ content(seed, 1),
                _ => content(seed, word),
            };
            // SAFETY: word < words, inside the object; the fill is the only user of it yet.
            unsafe { first.add(word as usize).write_volatile(value) };
        }
    }

    /// What an object holds after `version` writes (no chase), in the first words of `buffer`.
    pub fn compose(&self, object: u64, version: u64, buffer: &mut [u64]) {
        let (seed, words) = (mix(object), self.words(object));
        let buffer = &mut buffer[..words as usize];
        buffer[0] = tag(object) | version & VERSION_MASK;
        for (word, value) in (1..words).zip(&mut buffer[1..]) {
            *value = content(seed, word);
        }
    }

    /// Reads all of an object by pointers into the first words of `buffer`.
    pub fn copy_out(&self, object: u64, buffer: &mut [u64]) {
        let words = self.words(object);
        for (word, value) in (0..words).zip(&mut buffer[..words as usize]) {
            *value = self.atomic(object, word).load(Ordering::Relaxed);
        }
    }

    /// Writes all of an object by pointers from the first words of `buffer`.
    pub fn copy_in(&self, object: u64, buffer: &[u64]) {
        let words = self.words(object);
        for (word, value) in (0..words).zip(&buffer[..words as usize]) {
            self.atomic(object, word).store(*value, Ordering::Relaxed);
        }
    }

    /// A word that several threads may read and write at a time.
    #[inline]
    fn atomic(&self, object: u64, word: u64) -> &AtomicU64 {
        // SAFETY: a valid, aligned word (see new); while copies are made, all access to it is
        // atomic.
        unsafe { AtomicU64::from_ptr(self.word_ptr(object, word)) }
    }

    /// The header as it is now.
    #[inline]
    pub fn look(&self, object: u64) -> u64 {
        self.header(object).load(Ordering::Relaxed)
    }

    /// Verifies a header that was read, and gives the version in it.
    #[inline]
    pub fn version(&self, object: u64, header: u64) -> Result<u64, Mismatch> {
        self.check_header(object, header)?;
        Ok(header & VERSION_MASK)
    }

    /// The header after `version` writes.
    #[inline]
    pub fn header_of(&self, object: u64, version: u64) -> u64 {
        tag(object) | version & VERSION_MASK
    }

    /// Verifies header and word `word` of a copy of the first words of an object.
    #[inline]
    pub fn check_copy(&self, object: u64, word: u64, copy: &[u64]) -> Result<(), Mismatch> {
        self.check_header(object, copy[0])?;
        self.check(object, word, content(mix(object), word), copy[word as usize])
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
        while word < self.words(object) {
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
        let expected = if self.stays_zero(object) { 0 } else { expected };
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
        let placement = Placement::Array { base: memory.as_mut_ptr().cast(), stride: object_bytes };
        let sizes = crate::sizes::ObjectSize::Fixed(object_bytes as u64).sizes(1);
        // SAFETY: the array outlives the objects in each test and is used through them only.
        unsafe { Objects::new(placement, sizes, count) }
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
    fn whole_objects_go_out_and_in() {
        let mut memory = vec![0; 16 * 4];
        let objects = objects(&mut memory, 128);
        (0..4).for_each(|i| objects.fill(i, None));
        let (mut copy, mut made) = (vec![0; 16], vec![0; 16]);
        for i in 0..4 {
            assert_eq!(objects.write(i), Ok(()));
            objects.copy_out(i, &mut copy);
            assert_eq!(objects.check_copy(i, 15, &copy), Ok(()));
            assert_eq!(objects.version(i, copy[0]), Ok(1));
            objects.compose(i, 1, &mut made);
            assert_eq!(copy, made);
            objects.compose(i, 2, &mut made);
            assert_eq!(made[0], objects.header_of(i, 2));
            objects.copy_in(i, &made);
            assert_eq!(objects.audit(i), Ok(2));
        }
        copy[15] ^= 1;
        assert!(objects.check_copy(3, 15, &copy).is_err());
        assert!(objects.version(2, copy[0]).is_err());
    }

    #[test]
    fn objects_that_stay_zeros_are_read_as_such_and_are_as_many_as_asked_for() {
        let mut memory = vec![0; 16 * 1000];
        let objects = objects(&mut memory, 128).with_zeros(75);
        (0..1000).for_each(|i| objects.fill(i, None));
        let zeros: Vec<u64> = (0..1000).filter(|&i| objects.look(i) == 0).collect();
        assert!((700..800).contains(&zeros.len()), "{}", zeros.len());
        assert!((0..1000).all(|i| objects.scan(i) == Ok(()) && objects.read(i, 3) == Ok(())));
        // SAFETY: inside the array of the test.
        unsafe { *objects.word_ptr(zeros[0], 8) = 1 };
        assert!(objects.scan(zeros[0]).is_err());
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
