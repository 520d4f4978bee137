//! Rebuild objects: makes pools, open pages, the object map and free address space anew from the
//! chunks and live pages of a heap that was loaded.
//!
//! Pages that were in quarantine have room from now on. An empty chunk that a pool does not keep,
//! and one whose bytes were being ended, is idle.
//!
//! Guarantees: if it succeeds, chunks do not overlap and lie in object spans, and every count is
//! that of the live pages and batches.
//! Never: touches pages. It looks at 64 pages at a time, or at one if its objects share it.
//! Threads: the one that loads the heap.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::narrow::Narrow;

use crate::objects::Objects;
use crate::objects::chunk::{Chunk, ChunkState, PAGES_PER_GROUP};
use crate::objects::map::{ChunkId, ObjectMap};
use crate::objects::pool::{Counts, Ground, pool_of};
use crate::objects::shape::{BATCH_BELOW, OBJECT_GRAIN};
use crate::page::{PAGE, PAGES_PER_SPAN};
use crate::page_bits::PageBits;
use crate::saved::tables::{BadTables, check};

impl Objects {
    /// Checks the chunks named below `chunks_end`, and makes the rest from them. Returns the live
    /// pages of objects.
    pub(crate) fn rebuild(
        &self,
        ground: Ground<'_>,
        spans: usize,
        chunks_end: usize,
    ) -> Result<usize, BadTables> {
        let chunks_end: ChunkId = chunks_end.to_u32();
        let mut live_pages = 0;
        for id in 1..chunks_end {
            let chunk = self.map.chunk(id);
            check(chunk.has_state(), "no such state: that of chunk", id as usize)?;
            if chunk.state() == ChunkState::Unused {
                self.space.adopt_unused(&self.map, id);
                continue;
            }
            self.check_place(chunk, id, spans)?;
            self.space.adopt(&self.map, id);
            let live = ground.live.count(chunk.range());
            live_pages += live;
            match chunk.state() {
                ChunkState::Pooled => self.rebuild_pooled(ground, chunk, id, live)?,
                ChunkState::Array => {
                    check(live == chunk.pages(), "not whole: the array in chunk", id as usize)?;
                    self.count_array(chunk);
                }
                _ => {
                    check(live == 0, "live objects in the idle chunk", id as usize)?;
                    self.space.put_idle(&self.map, id);
                }
            }
        }
        self.space.adopt_spans(&self.map, spans, chunks_end);
        Ok(live_pages)
    }

    /// Whether shape and place of the chunk are possible, and nobody else's.
    fn check_place(&self, chunk: &Chunk, id: ChunkId, spans: usize) -> Result<(), BadTables> {
        let number = id as usize;
        let (first, pages, shape) = (chunk.first(), chunk.pages(), chunk.shape());
        let (stride, tail, batch) = (shape.stride as usize, shape.tail as usize, shape.batch);
        let batched = tail.is_multiple_of(batch as usize)
            && tail / (batch as usize) < BATCH_BELOW
            && stride == 1
            && batch as usize <= BATCH_BELOW / OBJECT_GRAIN;
        let possible = (1..=PAGE).contains(&tail)
            && shape.size().is_multiple_of(OBJECT_GRAIN)
            && (batch == 1 || batched)
            && chunk.is_saved_shape(shape);
        check(possible, "no such shape: that of chunk", number)?;
        let inside = pages > 0
            && pages.is_multiple_of(stride)
            && first.is_multiple_of(PAGES_PER_GROUP)
            && first + pages <= spans * PAGES_PER_SPAN;
        check(inside, "no such place: that of chunk", number)?;
        let of_spans = first / PAGES_PER_SPAN..(first + pages).div_ceil(PAGES_PER_SPAN);
        let owned = of_spans.into_iter().all(|span| self.space.has_span(span));
        check(owned, "outside of the object spans: chunk", number)?;
        let free = chunk.groups().all(|group| self.map.is_free(group));
        check(free, "overlaps another one: chunk", number)
    }

    fn rebuild_pooled(
        &self,
        ground: Ground<'_>,
        chunk: &Chunk,
        id: ChunkId,
        live: usize,
    ) -> Result<(), BadTables> {
        let number = id as usize;
        let shape = chunk.shape();
        let pages = chunk.range();
        let pool = pool_of(shape).filter(|&pool| pool == chunk.pool.load(Relaxed) as usize);
        let of_span = |page| page / PAGES_PER_SPAN;
        let one_span = of_span(pages.start) == of_span(pages.end - 1);
        let objects = chunk.slots() * shape.batch as usize;
        let sound = one_span && chunk.fresh.load(Relaxed) as usize <= objects;
        let pool = pool.filter(|_| sound);
        let pool = pool.ok_or(BadTables { what: "of no pool: chunk", number })?;
        let counts = if shape.batch > 1 {
            open_batches(&self.map, ground.live, pages, shape.batch)
        } else {
            Some(open_singles(&self.map, ground.live, pages, (shape.stride as usize, live)))
        };
        let counts = counts.filter(|counts| counts.busy * shape.stride as usize == live);
        let what = "live pages that are not those of its objects: chunk";
        let counts = counts.ok_or(BadTables { what, number })?;
        self.pools.adopt(ground, pool, id, counts);
        Ok(())
    }
}

/// Opens the pages without a live object, of objects that have theirs alone.
fn open_singles(
    map: &ObjectMap,
    live: &PageBits,
    pages: Range<usize>,
    (stride, live_pages): (usize, usize),
) -> Counts {
    let slots = pages.len() / stride;
    if stride == 1 {
        map.open.set_unless(live, pages);
        return Counts { open: slots - live_pages, busy: live_pages, live: live_pages };
    }
    let mut open = 0;
    for page in pages.step_by(stride).filter(|&page| !live.get(page)) {
        map.open.set(page..page + 1);
        open += 1;
    }
    Counts { open, busy: slots - open, live: slots - open }
}

/// Opens the pages that have room in their batch. None if a batch is none.
fn open_batches(
    map: &ObjectMap,
    live: &PageBits,
    pages: Range<usize>,
    batch: u32,
) -> Option<Counts> {
    let full = u16::MAX >> (u16::BITS - batch);
    let mut counts = Counts { open: 0, busy: 0, live: 0 };
    for (page, cell) in pages.clone().zip(&map.batches[pages]) {
        let objects = cell.load(Relaxed);
        if objects != full {
            if objects > full || live.get(page) != (objects != 0) {
                return None;
            }
            map.open.set(page..page + 1);
            counts.open += 1;
        }
        counts.busy += usize::from(objects != 0);
        counts.live += objects.count_ones() as usize;
    }
    Some(counts)
}
