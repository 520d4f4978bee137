//! Budget split: how the RAM budget is shared between page buffer and object cache, and how the
//! border between them moves.
//!
//! Guarantees: a side grows only by what the other one has given up already, so the sum stays
//! within the budget; and no thread that needs room waits for a side to give up more than `STEP`.

use crate::PAGE;

/// Limits in pages, or what is held of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// The page buffer's.
    pub page_buffer: usize,
    /// The object cache's.
    pub object_cache: usize,
}

/// Least number of pages either side is left with: two batches of eviction.
pub const LEAST: usize = 512;

/// The most pages that a side has to give up at a time: two batches of eviction. A fault may wait
/// for that.
pub const STEP: usize = 512;

/// The page buffer's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// So many bytes.
    Bytes(usize),
    /// So many 65536ths of what the overhead leaves.
    Part(usize),
}

/// Shares `budget` bytes less `overhead` bytes (tables, page tables, buffers). `held` pages cannot
/// leave the page buffer: it gets room for them and for `LEAST` others.
pub fn split(budget: usize, overhead: usize, share: Share, held: usize) -> Split {
    let pages = (budget.saturating_sub(overhead) / PAGE).max(2 * LEAST);
    let page_buffer = match share {
        Share::Bytes(bytes) => bytes / PAGE,
        Share::Part(part) => (pages * part) >> 16,
    };
    let page_buffer = page_buffer.max(held + LEAST).min(pages - LEAST);
    Split { page_buffer, object_cache: pages - page_buffer }
}

/// The page buffer may use the unfilled part of the cache, less one of so many of all pages.
const SPARE_PART: usize = 16;

impl Split {
    /// The same where the cache holds so many pages: a page of RAM that no object needs spares a
    /// fault in the page buffer. Pages that leave it come to the cache, which takes the room back.
    pub fn lend(self, cached: usize) -> Split {
        let spare = (self.page_buffer + self.object_cache) / SPARE_PART;
        let lent = self.object_cache.saturating_sub(cached.max(LEAST) + spare);
        Split { page_buffer: self.page_buffer + lent, object_cache: self.object_cache - lent }
    }

    /// The next limits on the way to these, while both sides are what `now` says, their limits are
    /// `limits`, and `held` pages cannot leave the page buffer. A side that has not come down to
    /// its limit yet takes no further step: or threads that wait for it would wait for the whole
    /// way. Pages that leave the page buffer come to the cache, so the
    /// cache's limit may be the room that the page buffer's next limit leaves. Room that the cache
    /// gives up is free for any use, so the page buffer's limit grows only after that. If
    /// tables have grown and the budget is passed, a step is longer by the excess.
    pub fn next(self, now: Split, limits: Split, held: usize) -> Split {
        let pages = self.page_buffer + self.object_cache;
        let excess = (now.page_buffer + now.object_cache).saturating_sub(pages);
        let lowered = |side: usize, limit: usize| match side > limit {
            // What it gives up has to have room on the other one.
            true => limit.min(side.saturating_sub(excess)).min(pages.saturating_sub(STEP)),
            false => side.saturating_sub(STEP + excess),
        };
        if now.object_cache > self.object_cache {
            let object_cache =
                self.object_cache.max(lowered(now.object_cache, limits.object_cache));
            let left = pages.saturating_sub(now.object_cache).max(now.page_buffer);
            let least = self.page_buffer.min(held + LEAST);
            Split { page_buffer: left.min(pages - object_cache).max(least), object_cache }
        } else {
            let page_buffer = self.page_buffer.max(lowered(now.page_buffer, limits.page_buffer));
            Split { page_buffer, object_cache: pages.saturating_sub(page_buffer) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From any state, sides that follow their limits reach the split, never hold more than the
    /// budget meanwhile, and never have to give up more than a step.
    #[test]
    fn a_border_moves_in_steps_within_the_budget() {
        let target = |part| split(256 << 20, 16 << 20, Share::Part(part), 0);
        for (from, to) in [(1 << 15, 3 << 14), (3 << 14, 1 << 8), (1 << 8, 1 << 15)] {
            let (mut now, to) = (target(from), target(to));
            let pages = to.page_buffer + to.object_cache;
            let (mut steps, mut limits) = (0, now);
            while now != to {
                limits = to.next(now, limits, 0);
                assert!(limits.page_buffer + limits.object_cache <= pages, "{limits:?}");
                assert!(now.object_cache.saturating_sub(limits.object_cache) <= STEP);
                let leaves = now.page_buffer.saturating_sub(limits.page_buffer);
                assert!(leaves <= STEP);
                // Faults and evictions fill what they may.
                now.object_cache = limits.object_cache.min(now.object_cache + leaves);
                now.page_buffer = limits.page_buffer.min(pages - now.object_cache);
                assert!(now.page_buffer + now.object_cache <= pages);
                steps += 1;
                assert!(steps < 1000, "{now:?} does not come to {to:?}");
            }
            assert!(steps > 20);
        }
    }

    #[test]
    fn the_beginning_of_management_moves_in_steps_too() {
        let to = split(1 << 36, 1 << 30, Share::Part(1 << 15), 0);
        let pages = to.page_buffer + to.object_cache;
        let mut now = Split { page_buffer: pages - 1, object_cache: 0 };
        let mut limits = Split { page_buffer: pages, object_cache: 0 };
        while now.page_buffer > to.page_buffer {
            limits = to.next(now, limits, 0);
            assert!(limits.page_buffer >= now.page_buffer - STEP);
            assert_eq!(limits.page_buffer + limits.object_cache, pages);
            now.object_cache += now.page_buffer - limits.page_buffer;
            now.page_buffer = limits.page_buffer;
            assert!(now.object_cache <= limits.object_cache);
        }
        assert_eq!(now.page_buffer, to.page_buffer);
    }

    #[test]
    fn by_what_the_budget_is_passed_a_step_is_longer_and_what_is_held_has_its_place() {
        let to = Split { page_buffer: 20_000, object_cache: 20_000 };
        let split = |page_buffer, object_cache| Split { page_buffer, object_cache };
        let next = |now, held| to.next(now, now, held);
        let cache_is_over = split(19_000, 30_000);
        assert_eq!(next(cache_is_over, 0), split(19_000, 21_000 - STEP));
        assert_eq!(next(cache_is_over, 50_000), split(20_000, 21_000 - STEP));
        let cache_is_little_over = split(25_000, 20_100);
        assert_eq!(next(cache_is_little_over, 0), to);
        let page_buffer_is_over = split(35_000, 10_000);
        assert_eq!(next(page_buffer_is_over, 0), split(30_000 - STEP, 10_000 + STEP));
    }

    #[test]
    fn a_side_that_is_still_above_its_limit_takes_no_further_step() {
        let split = |page_buffer, object_cache| Split { page_buffer, object_cache };
        let to = split(20_000, 20_000);
        let limits = split(30_000, 10_000);
        assert_eq!(to.next(split(30_200, 9_800), limits, 0), limits);
        assert_eq!(to.next(split(30_000, 9_900), limits, 0), split(30_000 - STEP, 10_000 + STEP));
        // Tables have grown: by that it goes down all the same, and once only.
        assert_eq!(to.next(split(30_200, 10_200), limits, 0), split(29_800, 10_200));
        assert_eq!(to.next(split(30_100, 10_000), split(29_800, 10_200), 0), split(29_800, 10_200));
        let limits = split(9_000, 30_000);
        assert_eq!(to.next(split(9_500, 30_300), limits, 0).object_cache, 30_000);
        assert_eq!(to.next(split(9_500, 29_900), limits, 0).object_cache, 29_900 - STEP);
    }

    #[test]
    fn a_cache_that_is_not_full_lends_and_takes_back_as_it_fills() {
        let own = Split { page_buffer: 1_000, object_cache: 31_000 };
        assert_eq!(own.lend(31_000), own);
        assert_eq!(own.lend(29_000), own, "some of it stays free");
        let lent = own.lend(9_000);
        assert_eq!(lent, Split { page_buffer: 21_000, object_cache: 11_000 });
        assert_eq!(own.lend(0).object_cache, LEAST + 2_000);
    }

    #[test]
    fn both_sides_keep_their_least_and_the_sum_is_the_budget() {
        for budget in [1 << 20, 16 << 20, 256 << 20, 1usize << 40] {
            for share in [0, 1, 1 << 14, 1 << 15, 1 << 16].map(Share::Part) {
                for held in [0, 100, 1 << 12, 1 << 40] {
                    let split = split(budget, 3 << 20, share, held);
                    assert!(split.page_buffer >= LEAST && split.object_cache >= LEAST);
                    let pages = (budget.saturating_sub(3 << 20) / PAGE).max(2 * LEAST);
                    assert_eq!(split.page_buffer + split.object_cache, pages);
                    assert!(split.page_buffer >= (held + LEAST).min(pages - LEAST));
                }
            }
        }
    }
}
