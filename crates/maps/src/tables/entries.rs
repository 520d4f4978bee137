//! Entries: which pages of a shard are in RAM, and in which order they came.
//!
//! New entries go to the next free place after the newest; victims are looked for from the oldest
//! on. As long as half of the places are free, that is first in, first out. A page that comes back
//! soon after it has left gets a second chance.
//!
//! Guarantees: a page that is in RAM has an entry: the entry is made before the page comes, and
//! ends after it has gone. After a death there may be entries without a page (`recover`).
//! Never: allocates.
//! Threads: the owner of the shard.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::region::Hash;
use crate::tables::control::{ENTRIES, GHOSTS, Shard};

impl Shard {
    /// The entry of a page.
    pub(crate) fn find(&self, page: u32) -> Option<usize> {
        self.pages.iter().position(|entry| entry.load(Relaxed) == page + 1)
    }

    /// Pages that have an entry.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed) as usize
    }

    /// The page of an entry.
    pub(crate) fn page(&self, entry: usize) -> Option<u32> {
        self.pages[entry].load(Relaxed).checked_sub(1)
    }

    /// The hash of an entry's page as the file has it.
    pub(crate) fn hash(&self, entry: usize) -> Hash {
        let [low, high] = &self.hashes[entry];
        Hash(low.load(Relaxed), high.load(Relaxed))
    }

    /// Notes what the file has of an entry's page.
    pub(crate) fn set_hash(&self, entry: usize, hash: Hash) {
        let [low, high] = &self.hashes[entry];
        low.store(hash.0, Relaxed);
        high.store(hash.1, Relaxed);
    }

    /// Makes an entry for a page that has none. There is a place (`used`).
    pub(crate) fn insert(&self, page: u32, hash: Hash) {
        let newest = self.newest.load(Relaxed) as usize;
        let mut places = (newest..newest + ENTRIES).map(|place| place % ENTRIES);
        let free = places.find(|&place| self.pages[place].load(Relaxed) == 0);
        let Some(place) = free else { return };
        self.chances[place].store(u8::from(self.is_ghost(page)), Relaxed);
        self.set_hash(place, hash);
        self.pages[place].store(page + 1, Release);
        self.newest.store((place + 1) as u32, Relaxed);
        self.used.fetch_add(1, Relaxed);
    }

    /// Ends the entry of a page that has left RAM, or never came.
    pub(crate) fn remove(&self, entry: usize) {
        self.pages[entry].store(0, Release);
        self.used.fetch_sub(1, Relaxed);
    }

    /// Whether a page left the shard lately, or was read without taking RAM (`gather`).
    pub(crate) fn is_ghost(&self, page: u32) -> bool {
        self.ghosts.iter().any(|ghost| ghost.load(Relaxed) == page + 1)
    }

    /// Remembers such a page.
    pub(crate) fn note_ghost(&self, page: u32) {
        let at = self.ghost.load(Relaxed) as usize % GHOSTS;
        self.ghosts[at].store(page + 1, Relaxed);
        self.ghost.store((at + 1) as u32, Relaxed);
    }

    /// The next victim: the oldest entry without a second chance, which it takes.
    pub(crate) fn next_victim(&self) -> Option<usize> {
        // Each entry has at most one chance: two rounds find one, if there is any.
        for _ in 0..2 * ENTRIES {
            let place = self.oldest.load(Relaxed) as usize % ENTRIES;
            self.oldest.store((place + 1) as u32, Relaxed);
            if self.pages[place].load(Relaxed) != 0 && self.chances[place].swap(0, Relaxed) == 0 {
                return Some(place);
            }
        }
        None
    }

    /// Has an entry stay once more.
    pub(crate) fn give_chance(&self, entry: usize) {
        self.chances[entry].store(1, Relaxed);
    }

    /// Counts the entries anew: a process has died while it changed them.
    pub(crate) fn recount(&self) {
        let used = self.pages.iter().filter(|entry| entry.load(Relaxed) != 0).count();
        self.used.store(used as u32, Relaxed);
    }
}
