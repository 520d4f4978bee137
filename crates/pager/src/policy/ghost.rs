//! Ghost: remembers the pages of objects that left the cache's small queue, first in, first out.
//!
//! A table of buckets of 16 entries, one cache line each. An entry is 24 bits of the page's mixed
//! number and the time it was made, in 64ths of the table's length; a new one takes the oldest
//! place of its bucket. The mixing loses nothing and the bucket's number has 8 bits at least, so an
//! entry is never taken for another page's.
//!
//! Guarantees: an insertion is forgotten after as many others as there are entries, at the latest.
//! Never: allocates, waits; two threads that insert into one bucket at once may lose one insertion.
//! Threads: any.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use deepheap_sys::errno::Result;
use deepheap_sys::mapping::PinnedArray;

const WAYS: usize = 16;
/// Fewest buckets: with them, bucket and fingerprint make up the whole page number.
const BUCKETS_MIN: usize = 256;
/// Ticks of the clock for as many insertions as there are entries.
const TICKS: u32 = 64;
/// Ticks are counted modulo this, from 1: an entry of 0 is empty.
const TICKS_KEPT: u32 = 255;
const TICK_MASK: u32 = 255;

/// The pages remembered.
pub struct Ghost {
    entries: PinnedArray<AtomicU32>,
    /// Buckets in use, a power of two.
    buckets: AtomicUsize,
    insertions: AtomicU32,
}

impl Ghost {
    /// A ghost that remembers up to `entries_max` pages, and only a few as yet.
    pub fn new(entries_max: usize) -> Result<Ghost> {
        let buckets = entries_max.div_ceil(WAYS).next_power_of_two().max(BUCKETS_MIN);
        Ok(Ghost {
            entries: PinnedArray::new(buckets * WAYS)?,
            buckets: AtomicUsize::new(BUCKETS_MIN),
            insertions: AtomicU32::new(0),
        })
    }

    /// Makes it remember at least as many pages, and less than twice as many, as far as `new`
    /// allowed. What was remembered may be forgotten. Never shrinks: its memory is touched.
    pub fn grow(&self, entries: usize) {
        let most = self.entries.len() / WAYS;
        let buckets = entries.div_ceil(WAYS).next_power_of_two().clamp(BUCKETS_MIN, most);
        self.buckets.fetch_max(buckets, Ordering::Relaxed);
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.buckets.load(Ordering::Relaxed) * WAYS * 4
    }

    /// Remembers a page.
    pub fn insert(&self, page: u32) {
        let (bucket, fingerprint) = self.find(page);
        let now = self.tick(self.insertions.fetch_add(1, Ordering::Relaxed));
        let age = |entry: u32| match entry {
            0 => TICKS_KEPT,
            entry => Self::age(entry, now),
        };
        let oldest = bucket.iter().max_by_key(|entry| {
            let entry = entry.load(Ordering::Relaxed);
            // The same page again takes its own place.
            if entry & !TICK_MASK == fingerprint && entry != 0 { u32::MAX } else { age(entry) }
        });
        if let Some(oldest) = oldest {
            oldest.store(fingerprint | now, Ordering::Relaxed);
        }
    }

    /// Whether the page is remembered; it is forgotten now.
    pub fn take(&self, page: u32) -> bool {
        let (bucket, fingerprint) = self.find(page);
        let now = self.tick(self.insertions.load(Ordering::Relaxed));
        bucket.iter().any(|entry| {
            let seen = entry.load(Ordering::Relaxed);
            seen != 0
                && seen & !TICK_MASK == fingerprint
                && entry.compare_exchange(seen, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                && Self::age(seen, now) <= TICKS
        })
    }

    fn age(entry: u32, now: u32) -> u32 {
        (now + TICKS_KEPT - (entry & TICK_MASK)) % TICKS_KEPT
    }

    fn tick(&self, insertions: u32) -> u32 {
        let each = (self.buckets.load(Ordering::Relaxed) * WAYS) as u32 / TICKS;
        insertions / each % TICKS_KEPT + 1
    }

    /// The page's bucket, and its fingerprint in the upper 24 bits.
    fn find(&self, page: u32) -> (&[AtomicU32], u32) {
        // Every step can be undone: different pages stay different.
        let mut mixed = page ^ (page >> 16);
        mixed = mixed.wrapping_mul(0x7feb_352d);
        mixed ^= mixed >> 15;
        mixed = mixed.wrapping_mul(0x846c_a68b);
        mixed ^= mixed >> 16;
        let bucket = mixed as usize & (self.buckets.load(Ordering::Relaxed) - 1);
        (&self.entries[bucket * WAYS..(bucket + 1) * WAYS], mixed & !TICK_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_remembered_once_and_only_for_a_while() {
        let ghost = Ghost::new(1 << 16).unwrap();
        ghost.grow(10_000);
        assert_eq!(ghost.bytes(), 16_384 * 4);
        assert!(!ghost.take(7));
        ghost.insert(7);
        assert!(!ghost.take(8));
        assert!(ghost.take(7));
        assert!(!ghost.take(7));
        let pages = |from: u32| from..from + 8192;
        pages(0).for_each(|page| ghost.insert(page));
        let known = pages(0).filter(|page| ghost.take(*page)).count();
        assert!(known > 8000, "{known} of 8192");
        pages(0).for_each(|page| ghost.insert(page));
        pages(100_000).chain(pages(200_000)).for_each(|page| ghost.insert(page));
        // A tick is 256 insertions long, and an entry may be one tick late.
        let known = pages(0).take(7600).filter(|page| ghost.take(*page)).count();
        assert_eq!(known, 0);
        let known = pages(200_000).filter(|page| ghost.take(*page)).count();
        assert!(known > 7000, "{known} of 8192");
    }

    #[test]
    fn no_page_is_taken_for_another() {
        let ghost = Ghost::new(1).unwrap();
        for page in 0..4000 {
            ghost.insert(page * 0x0010_0001);
        }
        let mistaken = (0..1u32 << 22).filter(|page| page % 0x0010_0001 != 0);
        assert_eq!(mistaken.filter(|page| ghost.take(*page)).count(), 0);
    }

    #[test]
    fn threads_lose_next_to_nothing() {
        let ghost = Ghost::new(1 << 16).unwrap();
        ghost.grow(1 << 16);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let ghost = &ghost;
                scope.spawn(move || (0..8192).for_each(|page| ghost.insert(thread << 20 | page)));
            }
        });
        let known = (0..4u32)
            .flat_map(|thread| (0..8192).map(move |page| thread << 20 | page))
            .filter(|page| ghost.take(*page))
            .count();
        assert!(known > 32_000, "{known} of 32768");
    }
}
