//! Pages: what the touched memory holds, and how each touch checks it.
//!
//! ```text
//! word 0    of the page's number
//! word 1    how often the page was written; a write adds 1 atomically
//! word w    of its number and w; where pages compress, seven words of eight are the same in all
//! ```
//!
//! Guarantees: a touch compares word 0 and one more; `audit` compares every word and counts the
//! writes. Pages that compress become about a fifth by LZ4: records of 64 bytes that differ in 8.
//! Never: forms a reference to plain data in measured memory.
//! Threads: one fills, then any number.

use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_load::random::{Random, mix};
use serde::{Deserialize, Serialize};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of an object.
pub const OBJECT: usize = 128;
const WORD: usize = size_of::<u64>();
/// Of so many words of a record, the last differs from page to page.
const RECORD_WORDS: u64 = 8;
/// The word that counts the writes.
const COUNT: u64 = 1;

/// What is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Pages that LZ4 makes five times smaller.
    CompressiblePages,
    /// Pages that do not compress.
    RandomPages,
    /// Objects, read by `dh_read`.
    Objects,
}

/// A page, by its number, that does not hold what was written to it.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong(pub u64);

/// Pages, or objects, side by side.
pub struct Pages {
    base: *mut u8,
    stride: usize,
    count: u64,
    words: u64,
    compress: bool,
}

// SAFETY: the memory lives until the process ends. After the fill, only word 1 is written, and it
// is only accessed atomically.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Fills memory at `base` with `count` pages.
    ///
    /// # Safety
    /// So many pages (objects) of that kind lie there, `stride` bytes apart and 8-byte aligned,
    /// until the process ends; nothing else uses them.
    pub unsafe fn fill(base: *mut u8, stride: usize, count: u64, kind: Kind) -> Pages {
        let bytes = if kind == Kind::Objects { OBJECT } else { PAGE };
        let compress = kind == Kind::CompressiblePages;
        let pages = Pages { base, stride, count, words: (bytes / WORD) as u64, compress };
        for page in 0..count {
            for word in 0..pages.words {
                // SAFETY: a word of the page (see above); the fill is its only user yet.
                unsafe { pages.word(page, word).write_volatile(pages.content(page, word)) };
            }
        }
        pages
    }

    fn word(&self, page: u64, word: u64) -> *mut u64 {
        debug_assert!(page < self.count && word < self.words);
        // SAFETY: inside the memory that `fill` was promised.
        unsafe { self.base.add(page as usize * self.stride + word as usize * WORD).cast() }
    }

    fn content(&self, page: u64, word: u64) -> u64 {
        match word {
            COUNT => 0,
            _ if self.compress && word != 0 && word % RECORD_WORDS != RECORD_WORDS - 1 => {
                mix(word % RECORD_WORDS)
            }
            _ => mix(page << 16 | word),
        }
    }

    fn load(&self, page: u64, word: u64) -> u64 {
        // SAFETY: an aligned word that nobody writes after the fill.
        unsafe { self.word(page, word).read_volatile() }
    }

    fn writes(&self, page: u64) -> &AtomicU64 {
        // SAFETY: an aligned word that is only accessed atomically after the fill.
        unsafe { AtomicU64::from_ptr(self.word(page, COUNT)) }
    }

    fn check(&self, page: u64, word: u64, found: u64) -> Result<(), Wrong> {
        if found == self.content(page, word) { Ok(()) } else { Err(Wrong(page)) }
    }

    /// Any word but the count.
    fn any_word(&self, random: &mut Random) -> u64 {
        COUNT + 1 + random.below(self.words - COUNT - 1)
    }

    /// Touches a random page; true if it was written.
    #[inline]
    pub fn touch(&self, random: &mut Random, write_percent: u32) -> Result<bool, Wrong> {
        let (page, word) = (random.below(self.count), self.any_word(random));
        let write = random.percent(write_percent);
        if write {
            self.writes(page).fetch_add(1, Ordering::Relaxed);
        }
        self.check(page, 0, self.load(page, 0))?;
        self.check(page, word, self.load(page, word))?;
        Ok(write)
    }

    /// Reads a random object by `dh_read`.
    #[inline]
    pub fn call(&self, random: &mut Random) -> Result<(), Wrong> {
        let (object, word) = (random.below(self.count), self.any_word(random));
        let mut copy = [0_u64; OBJECT / WORD];
        // SAFETY: a live object, and a buffer of its size.
        let read = unsafe {
            let from = self.word(object, 0).cast::<u8>();
            deepheap::objects::read(from, 0, copy.as_mut_ptr().cast(), OBJECT)
        };
        read.map_err(|_| Wrong(object))?;
        self.check(object, 0, copy[0])?;
        self.check(object, word, copy[word as usize])
    }

    /// Compares every word; how often all pages together were written.
    pub fn audit(&self) -> Result<u64, Wrong> {
        let mut writes = 0;
        for page in 0..self.count {
            writes += self.writes(page).load(Ordering::Relaxed);
            for word in (0..self.words).filter(|&word| word != COUNT) {
                self.check(page, word, self.load(page, word))?;
            }
        }
        Ok(writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_and_a_wrong_bit_is_found() {
        for kind in [Kind::CompressiblePages, Kind::RandomPages] {
            let mut memory = vec![0_u64; 8 * PAGE / WORD];
            let base = memory.as_mut_ptr();
            // SAFETY: eight pages, which outlive `pages` and are used through it alone.
            let pages = unsafe { Pages::fill(base.cast(), PAGE, 8, kind) };
            let mut random = Random::new(1, 0);
            let written = (0..1000).filter(|_| pages.touch(&mut random, 50) == Ok(true)).count();
            assert_eq!(pages.audit(), Ok(written as u64));
            // SAFETY: a word of the memory above.
            unsafe { *base.add(5 * PAGE / WORD + 100) ^= 1 << 40 };
            assert_eq!(pages.audit(), Err(Wrong(5)));
            assert!((0..100_000).any(|_| pages.touch(&mut random, 0) == Err(Wrong(5))));
        }
    }

    #[test]
    fn seven_eighths_of_a_page_that_compresses_are_the_same_in_all() {
        let mut memory = vec![0_u64; 2 * PAGE / WORD];
        // SAFETY: two pages, which outlive it.
        unsafe { Pages::fill(memory.as_mut_ptr().cast(), PAGE, 2, Kind::CompressiblePages) };
        let (one, other) = memory.split_at(PAGE / WORD);
        let differ = one.iter().zip(other).filter(|(one, other)| one != other).count();
        assert_eq!(differ, PAGE / WORD / RECORD_WORDS as usize + 1);
        assert_eq!(one[10..15], one[18..23]);
    }
}
