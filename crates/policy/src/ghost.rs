//! Ghost: remembers the pages of objects that left the cache, and the queue they left; first in,
//! first out.
//!
//! A table of buckets of 16 entries, one cache line each. An entry has 24 bits of the page's mixed
//! number, the queue, and the time it was made, in 64ths of the table's length. A new entry
//! replaces the oldest one of its bucket. The mixing loses nothing and the bucket's number has at
//! least 8 bits, so an entry is never taken for another page's.
//!
//! Guarantees: an entry is forgotten at the latest after as many other insertions as there are
//! entries.
//! Never: allocates, waits; two threads that insert into one bucket at once may lose one insertion.
//! Threads: any.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::Memory;
use crate::replacement::Queue;

const WAYS: usize = 16;
/// Fewest buckets: with them, bucket and fingerprint make up the whole page number.
const BUCKETS_MIN: usize = 256;
/// Ticks of the clock for as many insertions as there are entries.
const TICKS: u32 = 64;
/// Ticks are counted modulo this, from 1: an entry of 0 is empty.
const TICKS_KEPT: u32 = 127;
const TICK_MASK: u32 = 127;
/// In an entry: the object left the main queue.
const MAIN: u32 = 128;
const FINGERPRINT_MASK: u32 = !(MAIN | TICK_MASK);

/// How many entries a ghost has that can grow to so many pages.
pub fn length(pages_max: usize) -> usize {
    pages_max.div_ceil(WAYS).next_power_of_two().max(BUCKETS_MIN) * WAYS
}

/// The pages remembered.
pub struct Ghost<M> {
    entries: M,
    /// Buckets in use, a power of two.
    buckets: AtomicUsize,
    insertions: AtomicU32,
}

impl<M: Memory> Ghost<M> {
    /// A ghost that can grow to so many `entries` as there are, and remembers only a few as yet.
    pub fn new(entries: M) -> Ghost<M> {
        let (buckets, insertions) = (AtomicUsize::new(BUCKETS_MIN), AtomicU32::new(0));
        Ghost { entries, buckets, insertions }
    }

    /// Makes it remember at least `entries` pages, and less than twice as many, as far as `new`
    /// allowed. It may forget what it remembered. It never shrinks: its memory is touched already.
    pub fn grow(&self, entries: usize) {
        let most = self.entries.len() / WAYS;
        let buckets = entries.div_ceil(WAYS).next_power_of_two().clamp(BUCKETS_MIN, most);
        self.buckets.fetch_max(buckets, Ordering::Relaxed);
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.buckets.load(Ordering::Relaxed) * WAYS * 4
    }

    /// How many of the last insertions `left_recently` knows: half of what the table holds. Full
    /// buckets have lost some of the earlier ones.
    pub fn recent(&self) -> usize {
        self.buckets.load(Ordering::Relaxed) * WAYS / 2
    }

    /// Remembers a page whose object left this queue.
    pub fn insert(&self, page: u32, from: Queue) {
        let (bucket, fingerprint) = self.find(page);
        let now = self.tick(self.insertions.fetch_add(1, Ordering::Relaxed));
        let age = |entry: u32| match entry {
            0 => TICKS_KEPT,
            entry => Self::age(entry, now),
        };
        let oldest = bucket.iter().max_by_key(|entry| {
            let entry = entry.load(Ordering::Relaxed);
            // An older entry of the same page is the one to replace.
            if is_of(entry, fingerprint) { u32::MAX } else { age(entry) }
        });
        if let Some(oldest) = oldest {
            let queue = if from == Queue::Main { MAIN } else { 0 };
            oldest.store(fingerprint | queue | now, Ordering::Relaxed);
        }
    }

    /// Whether the page is one of the last `recent` that were inserted.
    pub fn left_recently(&self, page: u32) -> bool {
        let (bucket, fingerprint) = self.find(page);
        let now = self.tick(self.insertions.load(Ordering::Relaxed));
        bucket.iter().any(|entry| {
            let seen = entry.load(Ordering::Relaxed);
            is_of(seen, fingerprint) && Self::age(seen, now) <= TICKS / 2
        })
    }

    /// How many insertions ago the page was inserted, rounded up to a tick; none if it is not
    /// remembered.
    pub fn insertions_since(&self, page: u32) -> Option<u32> {
        let (bucket, fingerprint) = self.find(page);
        let now = self.tick(self.insertions.load(Ordering::Relaxed));
        let ages = bucket.iter().filter_map(|entry| {
            let seen = entry.load(Ordering::Relaxed);
            is_of(seen, fingerprint).then(|| Self::age(seen, now))
        });
        ages.min().filter(|&age| age <= TICKS).map(|age| (age + 1) * self.tick_length())
    }

    /// The queue that the page's object left, if the page is remembered. Forgets it.
    pub fn take(&self, page: u32) -> Option<Queue> {
        let (bucket, fingerprint) = self.find(page);
        let now = self.tick(self.insertions.load(Ordering::Relaxed));
        bucket.iter().find_map(|entry| {
            let seen = entry.load(Ordering::Relaxed);
            let is_known = is_of(seen, fingerprint)
                && entry.compare_exchange(seen, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                && Self::age(seen, now) <= TICKS;
            let from = if seen & MAIN != 0 { Queue::Main } else { Queue::Small };
            is_known.then_some(from)
        })
    }

    fn age(entry: u32, now: u32) -> u32 {
        (now + TICKS_KEPT - (entry & TICK_MASK)) % TICKS_KEPT
    }

    fn tick(&self, insertions: u32) -> u32 {
        insertions / self.tick_length() % TICKS_KEPT + 1
    }

    /// Insertions of a tick.
    #[expect(clippy::cast_possible_truncation, reason = "fewer entries than page numbers")]
    fn tick_length(&self) -> u32 {
        (self.buckets.load(Ordering::Relaxed) * WAYS) as u32 / TICKS
    }

    /// The page's bucket, and its fingerprint in the upper 24 bits.
    fn find(&self, page: u32) -> (&[AtomicU32], u32) {
        // Every step can be undone, so different pages stay different.
        let mut mixed = page ^ (page >> 16);
        mixed = mixed.wrapping_mul(0x7feb_352d);
        mixed ^= mixed >> 15;
        mixed = mixed.wrapping_mul(0x846c_a68b);
        mixed ^= mixed >> 16;
        let bucket = mixed as usize & (self.buckets.load(Ordering::Relaxed) - 1);
        (&self.entries[bucket * WAYS..(bucket + 1) * WAYS], mixed & FINGERPRINT_MASK)
    }
}

/// Whether an entry is that of a page with this fingerprint.
fn is_of(entry: u32, fingerprint: u32) -> bool {
    entry != 0 && entry & FINGERPRINT_MASK == fingerprint
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zeros;

    fn ghost(pages_max: usize) -> Ghost<Box<[AtomicU32]>> {
        Ghost::new(zeros(length(pages_max)))
    }

    #[test]
    fn a_page_is_remembered_once_and_only_for_a_while() {
        let ghost = ghost(1 << 16);
        ghost.grow(10_000);
        assert_eq!(ghost.bytes(), 16_384 * 4);
        assert!(ghost.take(7).is_none());
        ghost.insert(7, Queue::Small);
        assert!(ghost.take(8).is_none());
        assert!(ghost.take(7).is_some());
        assert!(ghost.take(7).is_none());
        let pages = |from: u32| from..from + 8192;
        pages(0).for_each(|page| ghost.insert(page, Queue::Small));
        let known = pages(0).filter(|page| ghost.take(*page).is_some()).count();
        assert!(known > 8000, "{known} of 8192");
        pages(0).for_each(|page| ghost.insert(page, Queue::Small));
        pages(100_000).chain(pages(200_000)).for_each(|page| ghost.insert(page, Queue::Small));
        // A tick is 256 insertions long, and an entry may be one tick late.
        let known = pages(0).take(7600).filter(|page| ghost.take(*page).is_some()).count();
        assert_eq!(known, 0);
        let known = pages(200_000).filter(|page| ghost.take(*page).is_some()).count();
        assert!(known > 7000, "{known} of 8192");
    }

    #[test]
    fn how_long_ago_a_page_left_is_known_to_a_tick() {
        let ghost = ghost(1 << 16);
        ghost.grow(16_384);
        assert_eq!(ghost.insertions_since(0), None);
        (0..16_000).for_each(|page| ghost.insert(page, Queue::Small));
        let mut known = 0;
        for page in 0..16_000 {
            let Some(since) = ghost.insertions_since(page) else { continue };
            let insertions = 16_000 - page;
            assert!((insertions..=insertions + 512).contains(&since), "{page}: {since}");
            known += 1;
        }
        assert!(known > 12_000, "{known}");
    }

    #[test]
    fn no_page_is_taken_for_another() {
        let ghost = ghost(1);
        for page in 0..4000 {
            ghost.insert(page * 0x0010_0001, Queue::Small);
        }
        let mistaken = (0..1u32 << 22).filter(|page| page % 0x0010_0001 != 0);
        assert_eq!(mistaken.filter(|page| ghost.take(*page).is_some()).count(), 0);
    }

    #[test]
    fn threads_lose_next_to_nothing() {
        let ghost = ghost(1 << 16);
        ghost.grow(1 << 16);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let ghost = &ghost;
                scope.spawn(move || {
                    (0..8192).for_each(|page| ghost.insert(thread << 20 | page, Queue::Small))
                });
            }
        });
        let known = (0..4u32)
            .flat_map(|thread| (0..8192).map(move |page| thread << 20 | page))
            .filter(|page| ghost.take(*page).is_some())
            .count();
        assert!(known > 32_000, "{known} of 32768");
    }
}
