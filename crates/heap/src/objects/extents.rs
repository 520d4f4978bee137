//! Extents: allocates address space for chunks of objects, as buddies in object spans.
//!
//! Blocks are powers of two of page groups, up to a span; a chunk that needs less gives the rest of
//! its block back at once. A chunk longer than a span takes consecutive free spans.
//!
//! Guarantees: free blocks never overlap; buddies are merged; the lowest fitting block is taken.
//! Never: allocates after `new`, touches pages.
//! Threads: under the lock of `ObjectSpace`.

use core::ops::Range;

use deepheap_sys::errno::Result;

use crate::address_set::AddressSet;
use crate::objects::chunk::PAGES_PER_GROUP;
use crate::page::PAGES_PER_SPAN;
use crate::table::Populated;

/// Groups in a span.
pub(crate) const GROUPS_PER_SPAN: usize = PAGES_PER_SPAN / PAGES_PER_GROUP;
/// The order of a whole span: 2^order groups.
const SPAN_ORDER: u32 = GROUPS_PER_SPAN.trailing_zeros();
const ORDERS: usize = SPAN_ORDER as usize + 1;

/// The free address space of object spans, in groups of pages.
pub(crate) struct Extents {
    /// Free blocks by order; block n of an order starts at group n << order.
    free: [AddressSet; ORDERS],
    /// No group of this span or a later one was ever given.
    spans_end: usize,
}

impl Extents {
    /// Extents of a region of `spans` spans, with no address space yet.
    pub(crate) fn new(spans: usize, populated: &Populated) -> Result<Self> {
        let mut sets = Vec::with_capacity(ORDERS);
        for order in 0..ORDERS {
            sets.push(AddressSet::new((spans * GROUPS_PER_SPAN) >> order, populated)?);
        }
        let free = sets.try_into().map_err(|_| deepheap_sys::errno::Errno::EINVAL)?;
        Ok(Self { free, spans_end: 0 })
    }

    /// Takes `count` consecutive groups; None if no free block or run of spans holds them.
    pub(crate) fn take(&mut self, count: usize) -> Option<usize> {
        debug_assert!(count > 0);
        let first = if count > GROUPS_PER_SPAN {
            self.take_spans(count.div_ceil(GROUPS_PER_SPAN))?
        } else {
            self.take_block(count.next_power_of_two().trailing_zeros())?
        };
        let taken = match count > GROUPS_PER_SPAN {
            true => count.next_multiple_of(GROUPS_PER_SPAN),
            false => count.next_power_of_two(),
        };
        self.give(first + count..first + taken);
        Some(first)
    }

    /// Takes `most` groups, or else the largest power of two that is there, at least `least`.
    pub(crate) fn take_up_to(&mut self, most: usize, least: usize) -> Option<(usize, usize)> {
        let mut count = most;
        loop {
            if let Some(first) = self.take(count) {
                return Some((first, count));
            }
            // The power of two below it, so that a whole block is left.
            count = count.next_power_of_two() / 2;
            if count < least.max(1) {
                return None;
            }
        }
    }

    /// Gives back groups that were taken, or adds new ones.
    pub(crate) fn give(&mut self, groups: Range<usize>) {
        self.spans_end = self.spans_end.max(groups.end.div_ceil(GROUPS_PER_SPAN));
        let mut at = groups.start;
        while at < groups.end {
            let aligned = if at == 0 { SPAN_ORDER } else { at.trailing_zeros() };
            let order = aligned.min((groups.end - at).ilog2()).min(SPAN_ORDER);
            self.give_block(at, order);
            at += 1 << order;
        }
    }

    fn give_block(&mut self, mut at: usize, mut order: u32) {
        while order < SPAN_ORDER {
            let buddy = (at >> order) ^ 1;
            if !self.free[order as usize].contains(buddy) {
                break;
            }
            self.free[order as usize].remove(buddy);
            order += 1;
            at = at >> order << order;
        }
        self.free[order as usize].insert(at >> order);
    }

    fn take_block(&mut self, order: u32) -> Option<usize> {
        let from = (order..=SPAN_ORDER).find(|&from| self.free[from as usize].first().is_some())?;
        let block = self.free[from as usize].first()?;
        self.free[from as usize].remove(block);
        let at = block << from;
        self.give(at + (1 << order)..at + (1 << from));
        Some(at)
    }

    /// The lowest run of whole free spans; looks at every span there is.
    fn take_spans(&mut self, count: usize) -> Option<usize> {
        let spans = &mut self.free[SPAN_ORDER as usize];
        let mut start = spans.first()?;
        while start + count <= self.spans_end {
            let taken = (start..start + count).rev().find(|&span| !spans.contains(span));
            match taken {
                Some(taken) => start = taken + 1,
                None => {
                    (start..start + count).for_each(|span| spans.remove(span));
                    return Some(start * GROUPS_PER_SPAN);
                }
            }
        }
        None
    }

    /// Whether all of these groups are free.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn is_free(&self, group: usize) -> bool {
        (0..ORDERS).any(|order| self.free[order].contains(group >> order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_never_overlap_and_come_back_whole() {
        const SPANS: usize = 6;
        let mut extents = Extents::new(SPANS + 2, &Populated::default()).expect("pinned memory");
        assert_eq!(extents.take(1), None);
        extents.give(GROUPS_PER_SPAN..3 * GROUPS_PER_SPAN);
        extents.give(3 * GROUPS_PER_SPAN..(SPANS + 1) * GROUPS_PER_SPAN);
        let mut used = vec![false; (SPANS + 2) * GROUPS_PER_SPAN];
        let mut held: Vec<Range<usize>> = Vec::new();
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut random = |bound: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % bound
        };
        for _ in 0..20_000 {
            if random(2) == 0 {
                let bits = 1 + random(12);
                let count = 1 + random(1 << bits);
                let Some(first) = extents.take(count) else { continue };
                assert!(used[first..first + count].iter().all(|used| !used));
                used[first..first + count].fill(true);
                held.push(first..first + count);
            } else if !held.is_empty() {
                let range = held.swap_remove(random(held.len()));
                used[range.clone()].fill(false);
                extents.give(range);
            }
        }
        let owned = &used[GROUPS_PER_SPAN..(SPANS + 1) * GROUPS_PER_SPAN];
        for (group, used) in (GROUPS_PER_SPAN..).zip(owned) {
            assert_eq!(extents.is_free(group), !used);
        }
        for range in held {
            extents.give(range);
        }
        assert_eq!(extents.take(SPANS * GROUPS_PER_SPAN), Some(GROUPS_PER_SPAN));
        assert_eq!(extents.take(1), None);
    }

    #[test]
    fn what_is_left_of_a_span_serves_smaller_steps() {
        let mut extents = Extents::new(1, &Populated::default()).expect("pinned memory");
        extents.give(0..GROUPS_PER_SPAN);
        assert_eq!(extents.take_up_to(625, 157), Some((0, 625)));
        assert_eq!(extents.take_up_to(625, 157), Some((768, 256)));
        assert_eq!(extents.take_up_to(625, 157), None);
        assert_eq!(extents.take_up_to(1, 1), Some((625, 1)));
        assert_eq!(extents.take_up_to(3, 1), Some((628, 3)));
        let rest = core::iter::from_fn(|| extents.take_up_to(80, 1));
        let blocks = [(640, 80), (736, 32), (720, 16), (632, 8), (626, 2), (631, 1)];
        assert_eq!(rest.collect::<Vec<_>>(), blocks);
    }
}
