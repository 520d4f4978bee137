//! Object calls: the heap's functions for objects.
//!
//! SSDAlloc calls this object per page (sections 3.1 and 3.4). `Heap::free`, `usable_size` and the
//! calls to resize take objects, too.
//!
//! Guarantees: a freed object's pages are handed out again only after `recycle_objects`; for a
//! pointer that is not the start of a live object the answer says so, and nothing changes.
//! Never: touches an object; allocates; takes more time in a larger heap, except for arrays longer
//! than a span.
//! Threads: any. Locks in order: a pool's, `ObjectSpace`; none is held on return.

use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::fence;

use crate::heap::Heap;
use crate::objects::chunk::ChunkState;
use crate::objects::map::ObjectAt;
use crate::objects::pool::{Put, pool_of};
use crate::objects::shape::{BATCH_BELOW, Shape};
use crate::outcome::{Allocated, Freed, FreedObjects, ObjectShape, Shortage, SpanRange};
use crate::page::{PAGE, PAGES_PER_SPAN, PageNo};

impl Heap {
    /// One object of `size` bytes (0 counts as 1, and it is rounded up to 8), alone at the start of
    /// a page unless it is smaller than 128 bytes.
    ///
    /// Objects of at least 128 bytes are page aligned. Smaller ones share a page with others of
    /// their size, at multiples of their rounded size from its start: aligned to the largest power
    /// of two that divides the rounded size. In lanes (`set_lanes`) that holds for all up to 512
    /// bytes, from the start of the lane, a multiple of 512.
    ///
    /// # Errors
    /// A shortage says what to provide before trying again, or that trying again is useless.
    pub fn allocate_object(&self, size: usize) -> Result<Allocated, Shortage> {
        let shape = Shape::of_object(size).ok_or(Shortage::TooLarge)?;
        if let Some(pool) = pool_of(shape) {
            let taken = self.objects.pools.take(self.objects.ground(&self.map), pool, shape)?;
            let ptr = self.map.address_of_page(taken.page) + taken.byte;
            return Ok(Allocated { ptr, zeroed: taken.fresh });
        }
        self.allocate_array(1, shape)
    }

    /// An array of `count` objects of `size` bytes, each on pages of its own,
    /// [`crate::stride`]`(size)` bytes apart. Its memory reads as zeros.
    ///
    /// # Errors
    /// As `allocate_object`. `TooLarge` also for more than one object below 128 bytes: such arrays
    /// are dense, and come from `Heap::allocate`.
    pub fn allocate_object_array(&self, count: usize, size: usize) -> Result<Allocated, Shortage> {
        if count <= 1 {
            return self.allocate_object(size);
        }
        let shape = Shape::of_element(size).ok_or(Shortage::TooLarge)?;
        if shape.size() < BATCH_BELOW {
            return Err(Shortage::TooLarge);
        }
        self.allocate_array(count, shape)
    }

    fn allocate_array(&self, count: usize, shape: Shape) -> Result<Allocated, Shortage> {
        let (objects, runs) = (&self.objects, &self.map.runs);
        let pages = count.checked_mul(shape.stride as usize);
        let fits = pages.is_some_and(|pages| pages.div_ceil(PAGES_PER_SPAN) <= runs.huge.len());
        if !fits {
            return Err(Shortage::TooLarge);
        }
        let id = objects.space.create(&objects.map, (shape, false), count, count)?;
        let chunk = objects.map.chunk(id);
        runs.live_pages.set(chunk.range());
        objects.count_array(chunk);
        chunk.set_state(ChunkState::Array);
        // As in `Pools::take`.
        fence(Release);
        Ok(Allocated { ptr: self.map.address_of_page(chunk.first()), zeroed: true })
    }

    /// The live object or array that starts at `ptr`; with `elements`, also any element of an
    /// array.
    fn find_object(&self, ptr: usize, elements: bool) -> Option<(ObjectAt, Shape)> {
        let map = &self.objects.map;
        let place = map.locate(self.map.offset_of(ptr)?)?;
        let chunk = map.chunk(place.chunk);
        let shape = chunk.shape();
        let lives = match shape.batch {
            1 => self.map.runs.live_pages.get(place.page),
            _ => map.batch(place.page).load(Acquire) >> place.slot & 1 == 1,
        };
        let starts = elements || chunk.state() != ChunkState::Array || place.page == chunk.first();
        (lives && starts).then_some((place, shape))
    }

    /// Bytes that the live object, or an element of the live array, that starts at `ptr` holds.
    pub(crate) fn object_size(&self, ptr: usize) -> Option<usize> {
        Some(self.find_object(ptr, false)?.1.size())
    }

    /// Takes back the object or array that starts at `ptr`.
    pub(crate) fn free_object(&self, ptr: usize) -> Freed {
        let (objects, offset) = (&self.objects, self.map.offset_of(ptr));
        let Some(place) = offset.and_then(|at| objects.map.locate(at)) else {
            return Freed::NotAllocated;
        };
        let chunk = objects.map.chunk(place.chunk);
        let first = PageNo::from(place.page);
        match chunk.state() {
            ChunkState::Pooled => {
                match objects.pools.put(objects.ground(&self.map), chunk, place) {
                    Put::Not => Freed::NotAllocated,
                    Put::Slot => Freed::Done,
                    Put::Pages => {
                        let pages = chunk.shape().stride as usize;
                        Freed::Objects(FreedObjects { first, pages, reshaped: false })
                    }
                }
            }
            ChunkState::Array
                if place.page == chunk.first()
                    && chunk.change_state(ChunkState::Array, ChunkState::Held) =>
            {
                self.map.runs.live_pages.clear(chunk.range());
                objects.uncount_array(chunk);
                Freed::Objects(FreedObjects { first, pages: chunk.pages(), reshaped: true })
            }
            _ => Freed::NotAllocated,
        }
    }

    /// Ends the quarantine of pages that `free` or `take_idle_objects` has answered, after the
    /// pager has ended the objects on them. `still_resident`: one of the pages may still be in the
    /// page buffer. Then pages that are to be `reshaped` are not reused, but come back from
    /// `take_idle_objects` for another try.
    pub fn recycle_objects(&self, freed: FreedObjects, still_resident: bool) {
        let (objects, page) = (&self.objects, freed.first.index());
        let chunk = objects.map.chunk_of(page);
        let ended = chunk.is_some_and(|(id, chunk)| match chunk.state() {
            ChunkState::Pooled => {
                let place = ObjectAt { chunk: id, page, slot: 0 };
                objects.pools.recycle(objects.ground(&self.map), place)
            }
            ChunkState::Held if still_resident => {
                objects.space.put_idle(&objects.map, id);
                true
            }
            ChunkState::Held => {
                objects.space.destroy(&objects.map, id);
                true
            }
            _ => false,
        });
        debug_assert!(ended, "recycle of objects that are not in quarantine");
    }

    /// Takes the pages of a chunk that has no live object any more, and puts them in quarantine.
    /// The caller ends them, takes them out of the page buffer, and calls `recycle_objects`; then
    /// their address space, and the store space promised for them, are free for other sizes. Call
    /// it after `recycle_objects` until it answers None; that costs one load if there is nothing.
    #[inline]
    pub fn take_idle_objects(&self) -> Option<FreedObjects> {
        let chunk = self.objects.map.chunk(self.objects.space.take_idle(&self.objects.map)?);
        let first = PageNo::from(chunk.first());
        Some(FreedObjects { first, pages: chunk.pages(), reshaped: true })
    }

    /// Makes pools give up the empty chunks that they keep for the next object. Called when store
    /// space is short, before `take_idle_objects`.
    pub fn retire_empty_pools(&self) {
        self.objects.pools.retire_kept(self.objects.ground(&self.map));
    }

    /// Gives objects the spans that were begun with `begin_spans` and made usable. Such spans are
    /// never published; their pages read as zeros.
    pub fn add_object_spans(&self, range: SpanRange) {
        self.objects.space.add_spans(&self.objects.map, range, false);
    }

    /// Has single objects of up to [`LANE_BYTES`](crate::LANE_BYTES) bytes lie in lanes of
    /// 2^`shift` frames from now on, as long as no lane has more than 16 pages: page n has lane
    /// n / 2^`shift` % 8 of frame n % 2^`shift`. To be called once, before any object is allocated;
    /// not in a heap that is saved.
    pub fn set_lanes(&self, shift: u32) {
        self.objects.map.set_lanes(shift);
    }

    /// As `add_object_spans`, for objects in lanes.
    pub fn add_lane_spans(&self, range: SpanRange) {
        self.objects.space.add_spans(&self.objects.map, range, true);
    }

    /// Whether the page is of a span whose objects lie in lanes. Lock-free.
    #[inline]
    pub fn is_lane_page(&self, page: PageNo) -> bool {
        self.objects.map.is_lane_page(page.index())
    }

    /// Where on a page its kept bytes begin: 0, or that of the page's lane. Lock-free.
    #[inline]
    pub fn kept_offset(&self, page: PageNo) -> usize {
        self.objects.map.kept_offset(page.index())
    }

    /// Promises `blocks` more blocks of the store to objects.
    pub fn grant_object_blocks(&self, blocks: u64) {
        let mut space = self.objects.space.lock.lock();
        space.granted = space.granted.saturating_add(blocks);
    }

    /// Takes back up to `blocks` promised blocks that no chunk needs; returns how many.
    pub fn revoke_object_blocks(&self, blocks: u64) -> u64 {
        let mut space = self.objects.space.lock.lock();
        let revoked = blocks.min(space.granted - space.promised);
        space.granted -= revoked;
        revoked
    }

    /// Blocks of the store that chunks of objects need; at most the granted ones.
    pub fn used_object_blocks(&self) -> u64 {
        self.objects.space.lock.lock().promised
    }

    /// The kept bytes of a page: those of its object or objects if it is an object page, otherwise
    /// all 4096. Stable while an object of the page's pool chunk or array is live or in quarantine.
    /// Lock-free, for signal handlers too.
    #[inline]
    pub fn kept_bytes(&self, page: PageNo) -> usize {
        self.objects
            .map
            .place_of(page.index())
            .map_or(PAGE, |(chunk, within)| chunk.shape().kept_bytes(within))
    }

    /// Whether a span holds objects, not memory.
    pub fn is_object_span(&self, span: usize) -> bool {
        self.objects.space.has_span(span)
    }

    /// Whether the page is an object page, with a live object or not. Lock-free, for signal
    /// handlers too.
    #[inline]
    pub fn is_object_page(&self, page: PageNo) -> bool {
        self.objects.map.place_of(page.index()).is_some()
    }

    /// The live object or element of a live array that starts at `ptr`; None for anything else,
    /// also for memory of `Heap::allocate`.
    pub fn object_at(&self, ptr: usize) -> Option<ObjectShape> {
        let (place, shape) = self.find_object(ptr, true)?;
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
