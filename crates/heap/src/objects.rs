//! Objects: the front door for objects that have a page, or several, to themselves.
//!
//! What SSDAlloc calls object per page (sections 3.1 and 3.4). Single objects up to 64 KiB come
//! from pools, larger ones and arrays are chunks of their own. `Heap::free`, `usable_size` and the
//! calls to resize take objects, too.
//!
//! Guarantees: objects never overlap, and a page has objects of one pool or array only; a freed
//! object's pages are handed out again only after `recycle_objects`; a pointer that is not the
//! start of a live object is answered, never acted upon.
//! Never: touches an object; allocates after `new`; takes more time in a larger heap, except for
//! arrays longer than a span.
//! Threads: any. Locks in order: a pool's, `ObjectSpace`; none is held on return.

use core::sync::atomic::{AtomicUsize, Ordering, fence};

use deepheap_sys::errno::Result;

use crate::address_map::AddressMap;
use crate::chunk::ChunkState;
use crate::heap::Heap;
use crate::object_map::{ObjectMap, Place};
use crate::object_space::ObjectSpace;
use crate::outcome::{Allocated, Freed, FreedObjects, ObjectShape, ObjectShortage, SpanRange};
use crate::page::{PAGE, PAGES_PER_SPAN, PageNo};
use crate::page_bits::PageBits;
use crate::pool::{Ground, Pools, Put, pool_of};
use crate::shape::{BATCH_BELOW, Shape};

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
    /// No objects, in a region of `spans` spans.
    pub fn new(spans: usize) -> Result<Self> {
        Ok(Self {
            map: ObjectMap::new(spans * PAGES_PER_SPAN)?,
            space: ObjectSpace::new(spans)?,
            pools: Pools::new()?,
            spans,
            array_objects: AtomicUsize::new(0),
            array_bytes: AtomicUsize::new(0),
        })
    }

    fn ground<'a>(&'a self, map: &'a AddressMap) -> Ground<'a> {
        Ground { map: &self.map, space: &self.space, live: &map.runs.live_pages }
    }

    /// The first page of a new array of `count` elements.
    fn allocate_array(
        &self,
        live: &PageBits,
        count: usize,
        shape: Shape,
    ) -> core::result::Result<usize, ObjectShortage> {
        let pages = count.checked_mul(shape.stride as usize);
        let fits = pages.is_some_and(|pages| pages.div_ceil(PAGES_PER_SPAN) <= self.spans);
        if !fits {
            return Err(ObjectShortage::TooLarge);
        }
        let id = self.space.create(&self.map, shape, count, count)?;
        let chunk = self.map.chunk(id);
        live.set(chunk.first()..chunk.first() + chunk.pages());
        self.array_objects.fetch_add(count, Ordering::Relaxed);
        self.array_bytes.fetch_add(count * shape.size(), Ordering::Relaxed);
        chunk.set_state(ChunkState::Array);
        // As in `Pools::take`.
        fence(Ordering::Release);
        Ok(chunk.first())
    }

    /// The allocation that starts at `offset`, or with `elements` any element of an array.
    fn find(&self, live: &PageBits, offset: usize, elements: bool) -> Option<(Place, Shape)> {
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

    fn recycle(&self, map: &AddressMap, freed: FreedObjects, still_resident: bool) {
        let page = freed.first.index();
        let chunk = self.map.chunk_of(page);
        let ended = chunk.is_some_and(|(id, chunk)| match chunk.state() {
            ChunkState::Pooled => {
                self.pools.recycle(self.ground(map), Place { chunk: id, page, slot: 0 })
            }
            ChunkState::Held if still_resident => {
                self.space.put_idle(&self.map, id);
                true
            }
            ChunkState::Held => {
                self.space.destroy(&self.map, id);
                true
            }
            _ => false,
        });
        debug_assert!(ended, "recycle of objects that are not in quarantine");
    }

    /// Live objects and elements of arrays, and their bytes.
    pub fn live(&self) -> (usize, usize) {
        let (objects, bytes) = self.pools.live();
        let array_objects = self.array_objects.load(Ordering::Relaxed);
        (objects + array_objects, bytes + self.array_bytes.load(Ordering::Relaxed))
    }

    /// Bytes of memory all of it takes up.
    pub fn populated_bytes(&self) -> usize {
        self.map.populated_bytes() + self.space.populated_bytes() + self.pools.populated_bytes()
    }
}

impl Heap {
    /// One object of `size` bytes (0 counts as 1, and it is rounded up to 8), alone at the start of
    /// a page unless it is smaller than 128 bytes.
    ///
    /// Objects of at least 128 bytes are page aligned. Smaller ones share a page with their like,
    /// at multiples of their rounded size from its start: aligned to the largest power of two that
    /// divides the rounded size.
    ///
    /// # Errors
    /// A shortage says what to provide before trying again, or that it is hopeless.
    pub fn allocate_object(&self, size: usize) -> core::result::Result<Allocated, ObjectShortage> {
        let shape = Shape::of_object(size).ok_or(ObjectShortage::TooLarge)?;
        if let Some(pool) = pool_of(shape) {
            let taken = self.objects.pools.take(self.objects.ground(&self.map), pool, shape)?;
            let ptr = self.map.address_of_page(taken.page) + taken.byte;
            return Ok(Allocated { ptr, zeroed: taken.fresh });
        }
        let first = self.objects.allocate_array(&self.map.runs.live_pages, 1, shape)?;
        Ok(Allocated { ptr: self.map.address_of_page(first), zeroed: true })
    }

    /// An array of `count` objects of `size` bytes, each on pages of its own; from one to the next
    /// it is [`crate::stride`]`(size)` bytes. Its memory reads as zeros.
    ///
    /// # Errors
    /// As `allocate_object`. `TooLarge` also for more than one object below 128 bytes: such arrays
    /// are dense, and come from `Heap::allocate`.
    pub fn allocate_object_array(
        &self,
        count: usize,
        size: usize,
    ) -> core::result::Result<Allocated, ObjectShortage> {
        if count <= 1 {
            return self.allocate_object(size);
        }
        let shape = Shape::of_element(size).ok_or(ObjectShortage::TooLarge)?;
        if shape.size() < BATCH_BELOW {
            return Err(ObjectShortage::TooLarge);
        }
        let first = self.objects.allocate_array(&self.map.runs.live_pages, count, shape)?;
        Ok(Allocated { ptr: self.map.address_of_page(first), zeroed: true })
    }

    /// Ends the quarantine of pages that `free` or `take_idle_objects` has answered, after the
    /// pager has ended what was on them. `still_resident`: a page of them may still be in the page
    /// buffer. Pages that are to be `reshaped` are not reused then, but come back from
    /// `take_idle_objects` for another try.
    pub fn recycle_objects(&self, freed: FreedObjects, still_resident: bool) {
        self.objects.recycle(&self.map, freed, still_resident);
    }

    /// Pages of a chunk that has no live object any more, put in quarantine: end them, take them
    /// out of the page buffer, and call `recycle_objects`; then their address space and the store
    /// space promised for them are free for other sizes. Drain it after `recycle_objects`; costs
    /// one load if there is nothing.
    #[inline]
    pub fn take_idle_objects(&self) -> Option<FreedObjects> {
        let chunk = self.objects.map.chunk(self.objects.space.take_idle(&self.objects.map)?);
        let first = PageNo::from(chunk.first());
        Some(FreedObjects { first, pages: chunk.pages(), reshaped: true })
    }

    /// Makes pools part with the chunks without any object that they keep for the next one. To be
    /// called when store space is short, before `take_idle_objects`.
    pub fn retire_empty_pools(&self) {
        self.objects.pools.retire_kept(self.objects.ground(&self.map));
    }

    /// Gives spans that were begun with `begin_spans`, and made usable, to objects. They are never
    /// published; their pages read as zeros.
    pub fn add_object_spans(&self, range: SpanRange) {
        self.objects.space.add_spans(range);
    }

    /// Promises `blocks` more blocks of the store to objects.
    pub fn grant_object_blocks(&self, blocks: u64) {
        self.objects.space.grant(blocks);
    }

    /// Takes back up to `blocks` of what was promised and no chunk needs; returns how many.
    pub fn revoke_object_blocks(&self, blocks: u64) -> u64 {
        self.objects.space.revoke(blocks)
    }

    /// Blocks of the store promised to objects.
    pub fn granted_object_blocks(&self) -> u64 {
        self.objects.space.blocks().0
    }

    /// Blocks of the store that chunks of objects need; at most the granted ones.
    pub fn used_object_blocks(&self) -> u64 {
        self.objects.space.blocks().1
    }

    /// Sets how many objects a grown pool adds at a time, at most; `POOL_STEP` if it is never
    /// called.
    pub fn set_pool_step(&self, objects: usize) {
        self.objects.pools.set_step(objects);
    }

    /// Bytes of a page that are kept: of an object page those of its object or objects, of any
    /// other page all 4096. Stable while an object of the page's pool chunk or array is live or in
    /// quarantine. Lock-free, for signal handlers too.
    #[inline]
    pub fn unit_bytes(&self, page: PageNo) -> usize {
        self.objects.map.unit_bytes(page.index())
    }

    /// Whether the page is one for objects, live or not. Lock-free, for signal handlers too.
    #[inline]
    pub fn is_object_page(&self, page: PageNo) -> bool {
        self.objects.map.is_object_page(page.index())
    }

    /// The live object or element of a live array that starts at `ptr`; None for anything else,
    /// memory of `Heap::allocate` included.
    pub fn object_at(&self, ptr: usize) -> Option<ObjectShape> {
        let live = &self.map.runs.live_pages;
        let (place, shape) = self.objects.find(live, self.map.offset_of(ptr)?, true)?;
        let chunk = self.objects.map.chunk(place.chunk);
        let array = chunk.state() == ChunkState::Array;
        let stride = shape.stride as usize;
        Some(ObjectShape {
            size: shape.size(),
            stride: stride * PAGE,
            count: if array { chunk.slots() } else { 1 },
            index: if array { (place.page - chunk.first()) / stride } else { 0 },
        })
    }

    /// Live objects, each element of an array counted. A snapshot.
    pub fn objects_live(&self) -> usize {
        self.objects.live().0
    }

    /// Bytes of live objects, each rounded up to 8. A snapshot.
    pub fn object_bytes(&self) -> usize {
        self.objects.live().1
    }
}
