//! Neighbours: the pages beside one that faulted are brought into the object cache, where that has
//! paid lately. Programs that jump about often jump among pages that lie together; a read of eight
//! blocks that lie together in the log costs hardly more than a read of one, and comes meanwhile.
//!
//! What pays: neighbours that the program touches soon, before an eighth of the page buffer was
//! replaced twice. Pages that it would touch at some time anyway are no better than those they
//! drive out. One fault in `PROBE` asks for its neighbours whatever was seen so far.
//!
//! Never: allocates, waits.
//! Threads: any; the fetchers bring.

use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_heap::PageNo;
use deepheap_store::Block;

use crate::access::Piece;
use crate::descriptor::Descriptor;
use crate::object_table::Place;
use crate::pager::Pager;

/// Pages of an aligned group: those of a fault's group are its neighbours.
pub(crate) const GROUP: usize = 8;
/// Blocks of the log within which neighbours are worth a request of their own.
const NEAR: u32 = 4 * GROUP as u32;
/// Faults between two that ask where it does not pay.
const PROBE: u32 = 1024;
/// It pays when one in so many is touched soon.
const USED_PART: u32 = 4;
/// After so many brought, what was counted counts half.
const HALF_LIFE: u32 = 2048;

/// What was brought lately, and what of it was touched soon. Races lose a count at worst.
#[derive(Default)]
pub(crate) struct Neighbours {
    faults: AtomicU32,
    brought: AtomicU32,
    used: AtomicU32,
}

impl Neighbours {
    /// Whether a fault's neighbours are to be brought.
    fn are_wanted(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        let pays = used * USED_PART > self.brought.load(Ordering::Relaxed);
        pays || self.faults.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE)
    }

    fn bring(&self, count: u32) {
        if self.brought.fetch_add(count, Ordering::Relaxed) + count >= HALF_LIFE {
            for counter in [&self.brought, &self.used] {
                counter.store(counter.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }

    fn touch(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
    }
}

impl Pager {
    /// A fault falls on `page`, whose object is stored: asks for its neighbours if that pays.
    pub(crate) fn ask_beside(&self, page: PageNo) {
        if !self.heap.is_object_page(page) && self.neighbours.are_wanted() {
            self.ask_for_beside(page);
        }
    }

    /// The stored neighbours of a page that are near it in the log; returns how many they are.
    pub(crate) fn neighbours_of(&self, page: PageNo, pieces: &mut [Piece]) -> usize {
        let home = match self.table.load(page) {
            Place::Stored(block) => Some(block),
            // It may be another's by now: a hint.
            Place::Busy(id) | Place::Cached(id) => self.descriptors.get(id).home(),
            Place::Zero => None,
        };
        let Some(Block(home)) = home else { return 0 };
        let first = page.0 - page.0 % GROUP as u32;
        let mut count = 0;
        for neighbour in (first..first + GROUP as u32).map(PageNo) {
            if neighbour != page
                && let Place::Stored(Block(block)) = self.table.load(neighbour)
                && block.abs_diff(home) < NEAR
            {
                pieces[count] = Piece { address: self.address_of(neighbour), length: 0 };
                count += 1;
            }
        }
        self.neighbours.bring(count as u32);
        count
    }

    /// The program touches a cached object for the first time since it came; true if it came as a
    /// neighbour.
    pub(crate) fn touch_neighbour(&self, descriptor: &Descriptor) -> bool {
        let is_neighbour = descriptor.is_neighbour();
        if is_neighbour && self.balancer.is_young(descriptor) {
            self.neighbours.touch();
        }
        is_neighbour
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_wanted_while_one_in_four_is_used() {
        let neighbours = Neighbours::default();
        let wanted = |faults| (0..faults).filter(|_| neighbours.are_wanted()).count() as u32;
        assert_eq!(wanted(10 * PROBE), 10, "a probe now and then");
        for _ in 0..10 {
            neighbours.bring(7);
            (0..3).for_each(|_| neighbours.touch());
        }
        assert_eq!(wanted(PROBE), PROBE, "three of seven are used");
        for _ in 0..HALF_LIFE {
            neighbours.bring(7);
        }
        assert!(wanted(10 * PROBE) <= 10, "none is any more");
    }
}
