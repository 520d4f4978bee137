//! List: doubly linked lists of segments. A segment is on at most one list, so all lists share the
//! same two arrays of links.
//!
//! Guarantees: every operation but `clear` takes constant time. A segment is unlinked without
//! knowing its list: each list is a ring around its own root.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: under the lock of the space; the links are atomics only to change through `&self`.

use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, Ordering};

use crate::block::Segment;
use crate::error::StoreError;

/// A list, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct List(pub(crate) u32);

/// The links of all segments and of the roots of all lists.
pub(crate) struct Lists {
    segments: u32,
    lists: u32,
    next: PinnedArray<AtomicU32>,
    prev: PinnedArray<AtomicU32>,
}

impl Lists {
    /// `lists` empty lists for `segments` segments.
    pub(crate) fn new(segments: u32, lists: u32) -> Result<Self, StoreError> {
        let nodes = segments as usize + lists as usize;
        let this = Self {
            segments,
            lists,
            next: PinnedArray::new(nodes)?,
            prev: PinnedArray::new(nodes)?,
        };
        this.clear();
        Ok(this)
    }

    /// Empties all lists.
    pub(crate) fn clear(&self) {
        for root in self.segments..self.segments + self.lists {
            self.join(root, root);
        }
    }

    fn root(&self, list: List) -> u32 {
        self.segments + list.0
    }

    fn join(&self, before: u32, after: u32) {
        self.next[before as usize].store(after, Ordering::Relaxed);
        self.prev[after as usize].store(before, Ordering::Relaxed);
    }

    fn next(&self, node: u32) -> u32 {
        self.next[node as usize].load(Ordering::Relaxed)
    }

    fn prev(&self, node: u32) -> u32 {
        self.prev[node as usize].load(Ordering::Relaxed)
    }

    /// Puts a segment that is on no list at the front.
    pub(crate) fn push_front(&self, list: List, segment: Segment) {
        let root = self.root(list);
        let first = self.next(root);
        self.join(segment.0, first);
        self.join(root, segment.0);
    }

    /// Puts a segment that is on no list at the back.
    pub(crate) fn push_back(&self, list: List, segment: Segment) {
        let root = self.root(list);
        let last = self.prev(root);
        self.join(last, segment.0);
        self.join(segment.0, root);
    }

    /// Takes a segment off the list that it is on.
    pub(crate) fn unlink(&self, segment: Segment) {
        self.join(self.prev(segment.0), self.next(segment.0));
    }

    /// The first segment of the list.
    pub(crate) fn front(&self, list: List) -> Option<Segment> {
        let first = self.next(self.root(list));
        (first < self.segments).then_some(Segment(first))
    }

    /// The last segment of the list.
    pub(crate) fn back(&self, list: List) -> Option<Segment> {
        let last = self.prev(self.root(list));
        (last < self.segments).then_some(Segment(last))
    }

    /// The segment after this one on its list.
    pub(crate) fn after(&self, segment: Segment) -> Option<Segment> {
        let next = self.next(segment.0);
        (next < self.segments).then_some(Segment(next))
    }

    /// Moves all of `from` to the back of `to`.
    pub(crate) fn splice(&self, from: List, to: List) {
        let (Some(first), Some(last)) = (self.front(from), self.back(from)) else {
            return;
        };
        let (from, to) = (self.root(from), self.root(to));
        self.join(self.prev(to), first.0);
        self.join(last.0, to);
        self.join(from, from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(lists: &Lists, list: List) -> Vec<u32> {
        let mut content = Vec::new();
        let mut at = lists.front(list);
        while let Some(segment) = at {
            content.push(segment.0);
            at = lists.after(segment);
        }
        assert_eq!(content.last().copied(), lists.back(list).map(|segment| segment.0));
        content
    }

    #[test]
    fn lists_keep_their_order_under_every_operation() {
        let lists = Lists::new(8, 2).expect("memory");
        let (a, b) = (List(0), List(1));
        for segment in [3, 4, 5].map(Segment) {
            lists.push_back(a, segment);
        }
        lists.push_front(a, Segment(0));
        assert_eq!(content(&lists, a), [0, 3, 4, 5]);
        lists.unlink(Segment(4));
        lists.unlink(Segment(0));
        assert_eq!(content(&lists, a), [3, 5]);
        lists.push_back(b, Segment(7));
        lists.splice(a, b);
        assert_eq!(content(&lists, b), [7, 3, 5]);
        assert_eq!(content(&lists, a), []);
        lists.splice(a, b);
        assert_eq!(content(&lists, b), [7, 3, 5]);
        lists.clear();
        assert_eq!(content(&lists, b), []);
    }
}
