//! Objects: allocates, finds and frees objects, singly and in arrays.
//!
//! Single objects up to 64 KiB come from pools, larger ones and arrays are chunks of their own.
//!
//! Guarantees: objects never overlap, and a page has objects of one pool or array only; a freed
//! object's pages are handed out again only after `recycle_objects`; for a pointer that is not the
//! start of a live object the answer says so, and nothing changes.
//! Never: touches an object; allocates after `new`; takes more time in a larger heap, except for
//! arrays longer than a span.
//! Threads: any. Locks in order: a pool's, `ObjectSpace`; none is held on return.

use core::sync::atomic::{AtomicUsize, Ordering, fence};

use deepheap_sys::errno::Result;

use crate::address_map::AddressMap;
use crate::chunk::{Chunk, ChunkState};
use crate::object_map::{ObjectAt, ObjectMap};
use crate::object_space::ObjectSpace;
use crate::outcome::{Freed, FreedObjects, Shortage};
use crate::page::{PAGES_PER_SPAN, PageNo};
use crate::page_bits::PageBits;
use crate::pool::{Ground, Pools, Put};
use crate::shape::Shape;
use crate::table::Populated;

/// All objects of a region.
pub(crate) struct Objects {
    pub(crate) map: ObjectMap,
    pub(crate) space: ObjectSpace,
    pub(crate) pools: Pools,
    spans: usize,
    /// Live elements of arrays, and their bytes.
    array_objects: AtomicUsize,
    array_bytes: AtomicUsize,
}

impl Objects {
    /// The objects of a region of `spans` spans: none yet.
    pub fn new(spans: usize, populated: &Populated) -> Result<Self> {
        Ok(Self {
            map: ObjectMap::new(spans * PAGES_PER_SPAN, populated)?,
            space: ObjectSpace::new(spans, populated)?,
            pools: Pools::new(populated)?,
            spans,
            array_objects: AtomicUsize::new(0),
            array_bytes: AtomicUsize::new(0),
        })
    }

    pub(crate) fn ground<'a>(&'a self, map: &'a AddressMap) -> Ground<'a> {
        Ground { map: &self.map, space: &self.space, live: &map.runs.live_pages }
    }

    /// Allocates an array of `count` elements; answers its first page.
    pub(crate) fn allocate_array(
        &self,
        live: &PageBits,
        count: usize,
        shape: Shape,
    ) -> core::result::Result<usize, Shortage> {
        let pages = count.checked_mul(shape.stride as usize);
        let fits = pages.is_some_and(|pages| pages.div_ceil(PAGES_PER_SPAN) <= self.spans);
        if !fits {
            return Err(Shortage::TooLarge);
        }
        let id = self.space.create(&self.map, (shape, false), count, count)?;
        let chunk = self.map.chunk(id);
        live.set(chunk.range());
        self.array_objects.fetch_add(count, Ordering::Relaxed);
        self.array_bytes.fetch_add(count * shape.size(), Ordering::Relaxed);
        chunk.set_state(ChunkState::Array);
        // As in `Pools::take`.
        fence(Ordering::Release);
        Ok(chunk.first())
    }

    /// The allocation that starts at `offset`; with `elements`, also any element of an array.
    pub(crate) fn find(
        &self,
        live: &PageBits,
        offset: usize,
        elements: bool,
    ) -> Option<(ObjectAt, Shape)> {
        let place = self.map.locate(offset)?;
        let chunk = self.map.chunk(place.chunk);
        let shape = chunk.shape();
        let lives = match shape.batch {
            1 => live.get(place.page),
            _ => self.map.batch(place.page).load(Ordering::Acquire) >> place.slot & 1 == 1,
        };
        let starts = elements || chunk.state() != ChunkState::Array || place.page == chunk.first();
        (lives && starts).then_some((place, shape))
    }

    /// Bytes that the live object, or an element of the live array, that starts at `offset` holds.
    #[inline]
    pub fn size_at(&self, map: &AddressMap, offset: usize) -> Option<usize> {
        Some(self.find(&map.runs.live_pages, offset, false)?.1.size())
    }

    /// Takes back the object or array that starts at `offset`.
    pub fn free(&self, map: &AddressMap, offset: usize) -> Freed {
        let ground = self.ground(map);
        let Some(place) = self.map.locate(offset) else { return Freed::NotAllocated };
        let chunk = self.map.chunk(place.chunk);
        let first = PageNo::from(place.page);
        match chunk.state() {
            ChunkState::Pooled => match self.pools.put(ground, chunk, place) {
                Put::Not => Freed::NotAllocated,
                Put::Slot => Freed::Done,
                Put::Pages => {
                    let pages = chunk.shape().stride as usize;
                    Freed::Objects(FreedObjects { first, pages, reshaped: false })
                }
            },
            ChunkState::Array
                if place.page == chunk.first()
                    && chunk.change_state(ChunkState::Array, ChunkState::Held) =>
            {
                let (pages, size) = (chunk.pages(), chunk.shape().size());
                ground.live.clear(place.page..place.page + pages);
                self.array_objects.fetch_sub(chunk.slots(), Ordering::Relaxed);
                self.array_bytes.fetch_sub(chunk.slots() * size, Ordering::Relaxed);
                Freed::Objects(FreedObjects { first, pages, reshaped: true })
            }
            _ => Freed::NotAllocated,
        }
    }

    /// Counts an array of a loaded heap.
    pub(crate) fn adopt_array(&self, chunk: &Chunk) {
        let slots = chunk.slots();
        self.array_objects.fetch_add(slots, Ordering::Relaxed);
        self.array_bytes.fetch_add(slots * chunk.shape().size(), Ordering::Relaxed);
    }

    /// Live objects and elements of arrays, and their bytes.
    pub fn live(&self) -> (usize, usize) {
        let (objects, bytes) = self.pools.live();
        let array_objects = self.array_objects.load(Ordering::Relaxed);
        (objects + array_objects, bytes + self.array_bytes.load(Ordering::Relaxed))
    }
}
