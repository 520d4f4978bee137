//! Index: for each page of a shard that has records which the base lacks, where the last is.
//!
//! Guarantees: a change of a place is one store; so whoever goes on after a death finds it before
//! or after.
//! Never: allocates.
//! Threads: the owner of the shard.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::log::tables::{INDEX, Logged, Tail};
use crate::tables::ownership::Owned;

/// Places of an index that are taken when it is nearly full.
const PRESSED: usize = INDEX - INDEX / 4;

impl Owned<'_> {
    /// What the index says of a page.
    pub(crate) fn logged(&self, page: u32) -> Option<Logged> {
        let shard = self.log_shard()?;
        Some(Logged::of(shard.places[self.place_of(page)?].load(Relaxed)))
    }

    fn place_of(&self, page: u32) -> Option<usize> {
        self.log_shard()?.keys.iter().position(|key| key.load(Relaxed) == page + 1)
    }

    /// Whether the page has a place, or there is a free one; and tells if there are few.
    pub(crate) fn has_log_place(&self, page: u32) -> bool {
        let Some(shard) = self.log_shard() else { return false };
        if self.place_of(page).is_some() {
            return true;
        }
        let free = shard.keys.iter().position(|key| key.load(Relaxed) == 0);
        if free.is_none_or(|free| free >= PRESSED)
            && let Some(log) = self.region.log()
        {
            log.words.is_pressed.store(1, Release);
        }
        free.is_some()
    }

    /// Notes it. There is a place (`has_log_place`).
    pub(crate) fn set_logged(&self, page: u32, logged: Logged) {
        let Some(shard) = self.log_shard() else { return };
        if let Some(place) = self.place_of(page) {
            shard.places[place].store(logged.word(), Release);
        } else if let Some(free) = shard.keys.iter().position(|key| key.load(Relaxed) == 0) {
            shard.places[free].store(logged.word(), Relaxed);
            shard.keys[free].store(page + 1, Release);
        }
    }

    /// The base has all of the page that is logged.
    pub(crate) fn forget_logged(&self, page: u32) {
        if let (Some(shard), Some(place)) = (self.log_shard(), self.place_of(page)) {
            shard.keys[place].store(0, Release);
        }
    }

    /// For tests: whether the index contradicts itself, the log or what is in RAM. Says what does.
    pub(crate) fn check_index(&self) -> Result<(), String> {
        let Some(log) = self.region.log() else { return Ok(()) };
        let mut pages = Vec::new();
        let end = Tail::of(log.words).end();
        for (page, logged) in (0..INDEX).filter_map(|place| self.logged_at(place)) {
            pages.push(page);
            if logged.position >= end || logged.pieces == 0 {
                return Err(format!("page {page} is logged as {logged:?}, the log ends at {end}"));
            }
            if !logged.is_whole && self.find(page).is_none() {
                return Err(format!("page {page} is in RAM no more, and its record is a part"));
            }
        }
        let count = pages.len();
        pages.sort_unstable();
        pages.dedup();
        if pages.len() == count { Ok(()) } else { Err("a page is in the index twice".to_owned()) }
    }

    /// For tests: every page in RAM is as it was logged.
    #[cfg(test)]
    pub(crate) fn check_logged(&self) {
        use crate::region::Region;
        let mut bytes = [0u8; deepheap_sys::PAGE];
        for (entry, page) in
            (0..crate::tables::control::ENTRIES).filter_map(|at| Some((at, self.page(at)?)))
        {
            // SAFETY: a page of ours.
            let hash = unsafe {
                let into = bytes.as_mut_ptr();
                self.region.memory.read_page(into, Region::offset_of(page)).expect("a page");
                self.region.hash(into)
            };
            assert_eq!(hash, self.hash(entry), "page {page}");
        }
    }

    /// The page at a place, and what is said of it.
    pub(crate) fn logged_at(&self, place: usize) -> Option<(u32, Logged)> {
        let shard = self.log_shard()?;
        let page = shard.keys[place].load(Relaxed).checked_sub(1)?;
        Some((page, Logged::of(shard.places[place].load(Relaxed))))
    }
}
