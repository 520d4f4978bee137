//! Address set: a set of slabs or extents, by number, that finds its lowest member fast.
//!
//! A bitmap with summaries: a bit of level n + 1 says that a word of level n is not zero, so
//! that the lowest member is found in one load a level (five for 4 TiB of slabs).
//!
//! Guarantees: `first` is the lowest member.
//! Never: allocates after `new`.
//! Threads: used under the lock of the list that owns it.

use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_sys::errno::Result;

use crate::table::{Populated, Table};

/// Levels enough for 2^30 members.
const LEVELS_MAX: usize = 5;

/// A set of numbers below a fixed bound.
pub(crate) struct AddressSet {
    /// The words of all levels, the top level first, so that small sets sit on one page.
    words: Table<AtomicU64>,
    /// Where each level starts in `words`; level 0 holds the members.
    starts: [usize; LEVELS_MAX],
    levels: usize,
}

impl AddressSet {
    /// An empty set of numbers below `bound`.
    pub(crate) fn new(bound: usize, populated: &Populated) -> Result<Self> {
        let mut lengths = [0; LEVELS_MAX];
        let mut levels = 0;
        let mut length = bound.max(1);
        loop {
            length = length.div_ceil(64);
            lengths[levels] = length;
            levels += 1;
            if length == 1 {
                break;
            }
        }
        let mut starts = [0; LEVELS_MAX];
        let mut next = 0;
        for level in (0..levels).rev() {
            starts[level] = next;
            next += lengths[level];
        }
        Ok(Self { words: Table::new(next, populated)?, starts, levels })
    }

    /// Adds `member`.
    pub(crate) fn insert(&mut self, member: usize) {
        let mut position = member;
        for level in 0..self.levels {
            let at = self.starts[level] + position / 64;
            let cell = self.words.cell(at);
            let word = cell.load(Ordering::Relaxed);
            cell.store(word | 1 << (position % 64), Ordering::Relaxed);
            if word != 0 {
                return;
            }
            position /= 64;
        }
    }

    /// Takes `member` out; it need not be in.
    pub(crate) fn remove(&mut self, member: usize) {
        let mut position = member;
        for level in 0..self.levels {
            let word = &self.words[self.starts[level] + position / 64];
            let bit = 1 << (position % 64);
            let old = word.load(Ordering::Relaxed);
            if old & bit == 0 {
                return;
            }
            word.store(old & !bit, Ordering::Relaxed);
            if old != bit {
                return;
            }
            position /= 64;
        }
    }

    /// The lowest member.
    pub(crate) fn first(&self) -> Option<usize> {
        let mut position = 0;
        for level in (0..self.levels).rev() {
            let word = self.words[self.starts[level] + position].load(Ordering::Relaxed);
            if word == 0 {
                return None;
            }
            position = position * 64 + word.trailing_zeros() as usize;
        }
        Some(position)
    }

    /// Whether `member` is in.
    pub(crate) fn contains(&self, member: usize) -> bool {
        self.words.bit(self.starts[0] * 64 + member)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn first_is_always_the_lowest_member() {
        for bound in [1, 64, 65, 4096, 4097, 1 << 20] {
            let mut set = AddressSet::new(bound, &Populated::default()).expect("pinned memory");
            let mut model = BTreeSet::new();
            let mut seed = 0x9e37_79b9_7f4a_7c15u64 ^ bound as u64;
            for _ in 0..5000 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let member = (seed >> 33) as usize % bound;
                if seed >> 20 & 1 == 0 {
                    set.insert(member);
                    model.insert(member);
                } else {
                    let member = model.first().copied().unwrap_or(member);
                    set.remove(member);
                    model.remove(&member);
                }
                assert_eq!(set.first(), model.first().copied(), "bound {bound}");
                assert_eq!(set.contains(member), model.contains(&member));
            }
        }
    }
}
