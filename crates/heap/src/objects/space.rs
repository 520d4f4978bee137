//! Object space: makes chunks of objects out of address space and promised store space.
//!
//! Guarantees: chunks never overlap; all chunks together never cost more blocks of the store than
//! were granted; a chunk's address space is reused only after its old bytes have been ended.
//! Never: allocates after `new`, touches pages, calls out while it holds its lock.
//! Threads: any. One lock, taken after a pool's and held for tens of nanoseconds, or for as long as
//! it takes to enter a new chunk in the map.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use deepheap_sys::errno;
use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::lock::Lock;

use crate::objects::chunk::{ChunkState, PAGES_PER_GROUP};
use crate::objects::extents::{Extents, GROUPS_PER_SPAN};
use crate::objects::map::{ChunkId, ObjectMap};
use crate::objects::shape::Shape;
use crate::outcome::{Shortage, SpanRange};
use crate::table::{Populated, Table};

/// Where address space is short, a step may be so many times shorter before more is asked for.
const SHORTEST_STEP: usize = 16;

/// The space of all objects of a region.
pub(crate) struct ObjectSpace {
    pub(crate) lock: Lock<Space>,
    /// A bit for each span that was added.
    pub(crate) spans: Table<AtomicU64>,
    /// The first idle chunk, under the lock; they are linked by `next`, and 0 is the end.
    idle: AtomicU32,
}

/// The state under the lock.
pub(crate) struct Space {
    /// Those of spans whose objects lie in lanes are the second ones.
    pub(crate) extents: [Extents; 2],
    /// The names from 1 to the one before this are chunks, in use or in the list `unused`.
    pub(crate) chunks_end: ChunkId,
    /// The first unused chunk, of a list as that of the idle ones.
    unused: ChunkId,
    /// Blocks of the store that may be promised to chunks; `promised` of them are.
    pub(crate) granted: u64,
    pub(crate) promised: u64,
}

impl ObjectSpace {
    /// The object space of a region of `spans` spans, with no space yet.
    pub(crate) fn new(spans: usize, populated: &Populated) -> errno::Result<Self> {
        let space = Space {
            extents: [Extents::new(spans, populated)?, Extents::new(spans, populated)?],
            chunks_end: 1,
            unused: 0,
            granted: 0,
            promised: 0,
        };
        let spans = Table::new(spans.div_ceil(64), populated)?;
        Ok(Self { lock: Lock::new(space), spans, idle: AtomicU32::new(0) })
    }

    /// Makes a chunk of `slots` strides, or of fewer if space is short, at least `least`, and
    /// enters it in `map`. Its objects lie in lanes if `in_lanes`. Its state is still `Unused`.
    /// Changes nothing if it fails.
    pub(crate) fn create(
        &self,
        map: &ObjectMap,
        (shape, in_lanes): (Shape, bool),
        slots: usize,
        least: usize,
    ) -> Result<ChunkId, Shortage> {
        let stride = shape.stride as usize;
        let groups_of = |slots: usize| (slots * stride).div_ceil(PAGES_PER_GROUP);
        let mut space = self.lock.lock();
        let free = space.granted - space.promised;
        let mut slots = slots.max(least);
        while shape.blocks(slots) > free {
            if slots == least {
                return Err(Shortage::ObjectBlocks((shape.blocks(least) - free).to_usize()));
            }
            slots = (slots / 2).max(least);
        }
        let groups = groups_of(slots);
        let fewest = (groups / SHORTEST_STEP).max(groups_of(least));
        let spans = groups.div_ceil(GROUPS_PER_SPAN);
        let shortage = if in_lanes { Shortage::LaneSpans } else { Shortage::ObjectSpans };
        let taken = space.extents[usize::from(in_lanes)].take_up_to(groups, fewest);
        let (first, groups) = taken.ok_or(shortage(spans))?;
        slots = slots.min(groups * PAGES_PER_GROUP / stride);
        let blocks = shape.blocks(slots);
        space.promised += blocks;
        let id = match space.unused {
            0 => {
                space.chunks_end += 1;
                space.chunks_end - 1
            }
            id => {
                space.unused = map.chunk(id).next.load(Ordering::Relaxed);
                id
            }
        };
        map.chunks.cell(id as usize).shape_as(first * PAGES_PER_GROUP, slots, shape, blocks);
        map.enter(id);
        Ok(id)
    }

    /// Ends a held chunk: its space is free again.
    pub(crate) fn destroy(&self, map: &ObjectMap, id: ChunkId) {
        let chunk = map.chunk(id);
        let mut space = self.lock.lock();
        if !chunk.change_state(ChunkState::Held, ChunkState::Unused) {
            debug_assert!(false, "only a held chunk can be ended, and once");
            return;
        }
        map.leave(id);
        space.extents[usize::from(map.is_lane_page(chunk.first()))].give(chunk.groups());
        space.promised -= chunk.blocks();
        chunk.next.store(space.unused, Ordering::Relaxed);
        space.unused = id;
    }

    /// Makes a chunk idle: it has no live object, and waits for its bytes to be ended.
    pub(crate) fn put_idle(&self, map: &ObjectMap, id: ChunkId) {
        let chunk = map.chunk(id);
        let _lock = self.lock.lock();
        chunk.set_state(ChunkState::Idle);
        chunk.next.store(self.idle.load(Ordering::Relaxed), Ordering::Relaxed);
        self.idle.store(id, Ordering::Relaxed);
    }

    /// Takes an idle chunk, which the caller holds from now on; costs one load if there is none.
    #[inline]
    pub(crate) fn take_idle(&self, map: &ObjectMap) -> Option<ChunkId> {
        if self.idle.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let _lock = self.lock.lock();
        let id = self.idle.load(Ordering::Relaxed);
        if id == 0 {
            return None;
        }
        let chunk = map.chunk(id);
        self.idle.store(chunk.next.load(Ordering::Relaxed), Ordering::Relaxed);
        chunk.set_state(ChunkState::Held);
        Some(id)
    }

    /// Adds address space, for objects in lanes or for others.
    pub(crate) fn add_spans(&self, map: &ObjectMap, range: SpanRange, for_lanes: bool) {
        let mut space = self.lock.lock();
        let spans = range.first..range.first + range.count;
        let groups = spans.start * GROUPS_PER_SPAN..spans.end * GROUPS_PER_SPAN;
        for span in spans.clone() {
            self.spans.set_bit(span);
        }
        if for_lanes {
            map.add_lane_spans(spans);
        }
        space.extents[usize::from(for_lanes)].give(groups);
    }

    /// Whether the span was added.
    pub(crate) fn has_span(&self, span: usize) -> bool {
        self.spans.bit(span)
    }

    /// Takes over a chunk of a loaded heap, with its pages.
    pub(crate) fn adopt(&self, map: &ObjectMap, id: ChunkId) {
        let mut space = self.lock.lock();
        map.enter(id);
        space.promised += map.chunk(id).blocks();
        space.granted = space.promised;
    }

    /// Takes over an unused chunk of a loaded heap.
    pub(crate) fn adopt_unused(&self, map: &ObjectMap, id: ChunkId) {
        let mut space = self.lock.lock();
        // Its page may have been all zero, and not been kept.
        map.chunks.cell(id as usize).next.store(space.unused, Ordering::Relaxed);
        space.unused = id;
    }

    /// Takes over the object spans below `spans` of a loaded heap, after its chunks.
    pub(crate) fn adopt_spans(&self, map: &ObjectMap, spans: usize, chunks_end: ChunkId) {
        let mut space = self.lock.lock();
        space.chunks_end = chunks_end;
        let mut taken_to = 0;
        for span in (0..spans).filter(|&span| self.has_span(span)) {
            let (mut at, end) =
                (taken_to.max(span * GROUPS_PER_SPAN), (span + 1) * GROUPS_PER_SPAN);
            while at < end {
                if let Some((_, chunk)) = map.chunk_of(at * PAGES_PER_GROUP) {
                    at = chunk.groups().end;
                    continue;
                }
                let first = at;
                at = (at..end).find(|&at| !map.is_free(at)).unwrap_or(end);
                space.extents[0].give(first..at);
            }
            taken_to = at;
        }
    }
}
