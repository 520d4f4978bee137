//! Index: for each page of a shard that has records which the base lacks, where the last is.
//!
//! Guarantees: a change of a place is one store; so the process that goes on after a death finds it
//! before or after.
//! Never: allocates.
//! Threads: the owner of the shard.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::log::tables::{INDEX, LogShard, LogWords, Logged};

/// Places of an index that are taken when it is nearly full.
const PRESSED: usize = INDEX - INDEX / 4;

impl LogShard {
    /// The entry of the index for a page.
    pub(crate) fn logged(&self, page: u32) -> Option<Logged> {
        Some(Logged::of(self.places[self.place_of(page)?].load(Relaxed)))
    }

    fn place_of(&self, page: u32) -> Option<usize> {
        self.keys.iter().position(|key| key.load(Relaxed) == page + 1)
    }

    fn free_place(&self) -> Option<usize> {
        self.keys.iter().position(|key| key.load(Relaxed) == 0)
    }

    /// Whether the page has a place, or there is a free one; and notes in `words` if there are few.
    pub(crate) fn has_place(&self, page: u32, words: &LogWords) -> bool {
        if self.place_of(page).is_some() {
            return true;
        }
        let free = self.free_place();
        if free.is_none_or(|free| free >= PRESSED) {
            words.is_pressed.store(1, Release);
        }
        free.is_some()
    }

    /// Notes it. There is a place (`has_place`).
    pub(crate) fn set_logged(&self, page: u32, logged: Logged) {
        if let Some(place) = self.place_of(page) {
            self.places[place].store(logged.word(), Release);
        } else if let Some(free) = self.free_place() {
            self.places[free].store(logged.word(), Relaxed);
            self.keys[free].store(page + 1, Release);
        }
    }

    /// The base has all of the page that is logged.
    pub(crate) fn forget_logged(&self, page: u32) {
        if let Some(place) = self.place_of(page) {
            self.keys[place].store(0, Release);
        }
    }

    /// The page at a place, and what is said of it.
    pub(crate) fn logged_at(&self, place: usize) -> Option<(u32, Logged)> {
        let page = self.keys[place].load(Relaxed).checked_sub(1)?;
        Some((page, Logged::of(self.places[place].load(Relaxed))))
    }
}
