//! Neighbours: decides when the pages beside one that faulted are brought into the object cache
//! too. Programs that jump about often jump among pages that lie together. A read of eight blocks
//! that lie together in the log costs hardly more than a read of one, and runs beside the program.
//!
//! A neighbour pays if the program touches it soon: before an eighth of the page buffer was
//! replaced twice. One that is touched much later is no better than what it drove out of the cache.
//! One fault in `PROBE` asks for its neighbours even where they did not pay, to see whether they do
//! now.
//!
//! Never: allocates, waits.
//! Threads: any; faulting threads ask (`fetch`), the fetchers bring (`fetcher`).

use core::sync::atomic::{AtomicU32, Ordering};

/// Pages of an aligned group. The neighbours of a page are the others of its group.
pub(crate) const GROUP: usize = 8;
/// Blocks of the log within which neighbours are worth a request of their own.
pub(crate) const NEAR: u32 = 4 * GROUP as u32;
/// Where neighbours do not pay, one fault in so many asks for them.
const PROBE: u32 = 1024;
/// Neighbours pay when one in so many is touched soon.
const USED_PART: u32 = 4;
/// After so many neighbours were brought, all counts are halved.
const HALF_LIFE: u32 = 2048;

/// How many neighbours were brought lately, and how many of them were touched soon. A race loses
/// one count at worst.
#[derive(Default)]
pub(crate) struct Neighbours {
    faults: AtomicU32,
    brought: AtomicU32,
    used: AtomicU32,
}

impl Neighbours {
    /// Whether to bring the neighbours of the page that faulted.
    pub(crate) fn are_wanted(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        let pays = used * USED_PART > self.brought.load(Ordering::Relaxed);
        pays || self.faults.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE)
    }

    /// Counts neighbours that were brought.
    pub(crate) fn bring(&self, count: u32) {
        if self.brought.fetch_add(count, Ordering::Relaxed) + count >= HALF_LIFE {
            for counter in [&self.brought, &self.used] {
                counter.store(counter.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }

    /// Counts one that was touched soon.
    pub(crate) fn touch(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
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
