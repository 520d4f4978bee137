//! Object map: from a page to the chunk of objects it belongs to, by two loads.
//!
//! Guarantees: its answers about a page do not change while an object of the page's chunk is live
//! or in quarantine; an address that is not exactly the start of an object is never taken for one.
//! Never: locks, allocates, touches managed memory.
//! Threads: lookups from anywhere, also in signal handlers. Chunks come and go under the lock of
//! `ObjectSpace`; open bits and batches belong to the lock of the pool.

use core::ops::Range;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use deepheap_sys::errno::Result;
use deepheap_sys::narrow::Narrow;

use crate::objects::chunk::{Chunk, PAGES_PER_GROUP};
use crate::objects::shape::{LANE_BYTES, LANES, PAGES_PER_LANE};
use crate::page::{PAGE, PAGE_SHIFT, PAGES_PER_SPAN};
use crate::page_bits::PageBits;
use crate::table::{Populated, Table};

/// Names a chunk; 0 names none.
pub(crate) type ChunkId = u32;

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectAt {
    pub chunk: ChunkId,
    /// Its first page.
    pub page: usize,
    /// Its index on the page; 0 unless objects are batched.
    pub slot: u32,
}

/// The tables of all object pages of a region.
pub(crate) struct ObjectMap {
    /// Per group of pages: its chunk.
    groups: Table<AtomicU32>,
    pub(crate) chunks: Table<Chunk>,
    /// Per page of batched objects: which of them are live.
    pub(crate) batches: Table<AtomicU16>,
    /// First pages of strides that have room for an object.
    pub open: PageBits,
    /// A bit for each span whose objects lie in lanes.
    lane_spans: Table<AtomicU64>,
    /// How many of them there are.
    lane_span_count: AtomicUsize,
    /// There are so many frames, to the power of two, that pages in lanes share; 0: no lanes.
    lanes_shift: AtomicU32,
}

impl ObjectMap {
    /// No objects, for `pages` pages.
    pub(crate) fn new(pages: usize, populated: &Populated) -> Result<Self> {
        let groups = pages / PAGES_PER_GROUP;
        Ok(Self {
            groups: Table::new(groups, populated)?,
            chunks: Table::new(groups + 1, populated)?,
            batches: Table::new(pages, populated)?,
            open: PageBits::new(pages, populated)?,
            lane_spans: Table::new(pages.div_ceil(PAGES_PER_SPAN).div_ceil(64), populated)?,
            lane_span_count: AtomicUsize::new(0),
            lanes_shift: AtomicU32::new(0),
        })
    }

    /// Has objects that are allocated from now on lie in lanes, if they fit, of 2^`shift` frames.
    /// Once, and before there is any object.
    pub(crate) fn set_lanes(&self, shift: u32) {
        self.lanes_shift.store(shift, Ordering::Release);
    }

    /// Whether objects lie in lanes if they fit.
    #[inline]
    pub(crate) fn has_lanes(&self) -> bool {
        self.lanes_shift.load(Ordering::Acquire) != 0
    }

    /// Notes that objects of these spans lie in lanes.
    pub(crate) fn add_lane_spans(&self, spans: Range<usize>) {
        for span in spans {
            self.lane_spans.set_bit(span);
            self.lane_span_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether with so many more spans there would be more than [`PAGES_PER_LANE`] pages to a lane.
    pub(crate) fn lanes_are_full(&self, more: usize) -> bool {
        let frames = 1usize << self.lanes_shift.load(Ordering::Acquire);
        let most = (frames * LANES * PAGES_PER_LANE / PAGES_PER_SPAN).max(1);
        self.lane_span_count.load(Ordering::Relaxed) + more > most
    }

    /// See `Heap::is_lane_page`.
    #[inline]
    pub(crate) fn is_lane_page(&self, page: usize) -> bool {
        self.has_lanes() && self.lane_spans.bit(page / PAGES_PER_SPAN)
    }

    /// See `Heap::kept_offset`.
    #[inline]
    pub(crate) fn kept_offset(&self, page: usize) -> usize {
        match self.is_lane_page(page) {
            false => 0,
            true => (page >> self.lanes_shift.load(Ordering::Acquire)) % LANES * LANE_BYTES,
        }
    }

    /// The chunk with that name.
    #[inline]
    pub(crate) fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id as usize]
    }

    /// The chunk that page `page` belongs to.
    #[inline]
    pub(crate) fn chunk_of(&self, page: usize) -> Option<(ChunkId, &Chunk)> {
        let id = self.groups.get(page / PAGES_PER_GROUP)?.load(Ordering::Acquire);
        if id == 0 { None } else { Some((id, self.chunk(id))) }
    }

    /// The chunk that page `page` is an object page of, and the page's number in it.
    #[inline]
    pub(crate) fn place_of(&self, page: usize) -> Option<(&Chunk, usize)> {
        let (_, chunk) = self.chunk_of(page)?;
        let within = page.wrapping_sub(chunk.first());
        (within < chunk.pages()).then_some((chunk, within))
    }

    /// The object, live or not, or array element that starts `offset` bytes into the region.
    #[inline]
    pub(crate) fn locate(&self, offset: usize) -> Option<ObjectAt> {
        let page = offset >> PAGE_SHIFT;
        let (id, chunk) = self.chunk_of(page)?;
        let within = page.checked_sub(chunk.first()).filter(|&within| within < chunk.pages())?;
        let shape = chunk.shape();
        if !within.is_multiple_of(shape.stride as usize) {
            return None;
        }
        let byte = (offset % PAGE).checked_sub(self.kept_offset(page))?.to_u32();
        let slot = if byte == 0 { 0 } else { byte / (shape.tail / shape.batch).max(1) };
        let starts_here = slot < shape.batch && slot * (shape.tail / shape.batch) == byte;
        starts_here.then_some(ObjectAt { chunk: id, page, slot })
    }

    /// Whether no chunk has the group of pages. A group never entered costs no memory.
    pub(crate) fn is_free(&self, group: usize) -> bool {
        !self.groups.is_marked(group) || self.groups[group].load(Ordering::Relaxed) == 0
    }

    /// Enters the pages of the chunk, which the caller owns. The chunk has its shape already.
    pub(crate) fn enter(&self, id: ChunkId) {
        let chunk = self.chunk(id);
        if chunk.shape().batch > 1 {
            self.batches.mark(chunk.range());
        }
        self.groups.mark(chunk.groups());
        for group in &self.groups[chunk.groups()] {
            group.store(id, Ordering::Release);
        }
    }

    /// Removes the pages of the chunk.
    pub(crate) fn leave(&self, id: ChunkId) {
        for group in &self.groups[self.chunk(id).groups()] {
            group.store(0, Ordering::Release);
        }
    }

    /// Which objects of a page of batched objects are live.
    #[inline]
    pub(crate) fn batch(&self, page: usize) -> &AtomicU16 {
        &self.batches[page]
    }
}
