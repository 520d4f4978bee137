//! Pool: all single objects of one size (SSDAlloc, section 3.4).
//!
//! A pool grows by chunks of consecutive pages: first up to 128 objects (for objects of several
//! pages one group of 16 pages), then as many as it has already, at most 10,000. A bit of
//! `ObjectMap::open` says that a page has room for an object, a bit of the live pages that a live
//! object is on it; each batched object has a bit of its own as well.
//!
//! ```text
//! page   open, free -> live        [take]     live -> quarantine [put, of its last object]
//!        quarantine -> open, free  [recycle]
//! slot   free       -> live        [take]     live -> free       [put]
//! ```
//!
//! Guarantees: chunks are filled by ascending address; a chunk with room is in its pool's list; a
//! page that left use is not handed out again before `recycle`; a pool keeps one empty chunk, and
//! further empty ones become idle.
//! Never: touches an object; takes longer in a large heap than in a small one.
//! Threads: any, under the pool's lock; the lock of `ObjectSpace` is taken inside it. `put` of an
//! object that has its page to itself takes no lock.

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, fence};

use deepheap_sys::errno;
use deepheap_sys::memory::pinned_array::Zeroed;
use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::lock::{Guard, Lock};

use crate::objects::chunk::{Chunk, ChunkState, PAGES_PER_GROUP, add, subtract};
use crate::objects::map::{ChunkId, ObjectAt, ObjectMap};
use crate::objects::shape::{OBJECT_GRAIN, Shape};
use crate::objects::space::ObjectSpace;
use crate::outcome::Shortage;
use crate::page::{PAGE, PAGES_PER_SPAN};
use crate::page_bits::PageBits;
use crate::table::{Populated, Table};

/// The largest object that has a pool; its pages fit in a group.
pub(crate) const POOLED_MAX: usize = PAGES_PER_GROUP * PAGE;
/// Pools share a lock if their objects have equally long last pages.
pub(crate) const POOL_LOCKS: usize = PAGE / OBJECT_GRAIN;
const POOLS: usize = POOLED_MAX / OBJECT_GRAIN;
/// Objects of a pool's first chunk, if an object is no longer than `FIRST_SIZE` bytes.
const FIRST_STEP: usize = 128;
const FIRST_SIZE: usize = 512;
/// The most objects of a later chunk.
const POOL_STEP: usize = 10_000;

/// One pool. Chunk names are 0 where there is none.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Pool {
    /// Live objects.
    pub live: AtomicUsize,
    /// Ends of the list of chunks with room; objects are taken from the head.
    pub head: AtomicU32,
    tail: AtomicU32,
    /// The empty chunk that the pool keeps.
    pub kept: AtomicU32,
    /// Objects that all its chunks can hold.
    pub objects: AtomicU32,
}

// SAFETY: atomic integers, for which zero is a value, and which need no drop.
unsafe impl Zeroed for Pool {}

/// All pools.
pub(crate) struct Pools {
    pub(crate) pools: Table<Pool>,
    pub(crate) locks: Box<[Lock<()>]>,
    /// A bit for each pool that ever had a chunk.
    used: [AtomicU64; POOLS / 64],
}

/// The tables that pools share.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub map: &'a ObjectMap,
    pub space: &'a ObjectSpace,
    /// Pages of live objects, and of runs.
    pub live: &'a PageBits,
}

/// A fresh object.
pub(crate) struct Taken {
    pub page: usize,
    /// Bytes from the start of the page.
    pub byte: usize,
    /// It was never handed out before.
    pub fresh: bool,
}

/// The content of a chunk of a loaded heap.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    /// Strides with room, which are open.
    pub open: usize,
    /// Strides with a live object.
    pub busy: usize,
    /// Live objects.
    pub live: usize,
}

/// The result of putting an object back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// It was not live.
    Not,
    /// Other objects live on its page.
    Slot,
    /// Its pages are in quarantine.
    Pages,
}

/// The number of the pool for objects of this shape; None if they have no pool.
pub(crate) fn pool_of(shape: Shape) -> Option<usize> {
    let size = shape.size();
    (size <= POOLED_MAX).then(|| size / OBJECT_GRAIN - 1)
}

impl Pools {
    /// Empty pools.
    pub(crate) fn new(populated: &Populated) -> errno::Result<Self> {
        Ok(Self {
            pools: Table::new(POOLS, populated)?,
            locks: (0..POOL_LOCKS).map(|_| Lock::new(())).collect(),
            used: [const { AtomicU64::new(0) }; POOLS / 64],
        })
    }

    /// Takes a free object of pool `number`, growing the pool if it has none.
    pub(crate) fn take(
        &self,
        ground: Ground<'_>,
        number: usize,
        shape: Shape,
    ) -> Result<Taken, Shortage> {
        let _lock = self.lock(number);
        let pool = &self.pools[number];
        if pool.head.load(Relaxed) == 0 {
            self.grow(ground, number, shape)?;
        }
        let id = pool.head.load(Relaxed);
        let chunk = ground.map.chunk(id);
        let shape = chunk.shape();
        let first = chunk.first();
        let from = first + chunk.hint.load(Relaxed) as usize;
        let found = ground.map.open.first(from..first + chunk.pages());
        debug_assert!(found.is_some(), "a listed chunk has room");
        let page = found.ok_or(Shortage::TooLarge)?;
        chunk.hint.store((page - first).to_u32(), Relaxed);
        let (slot, first_on_page, last_on_page) = match shape.batch {
            1 => (0, true, true),
            batch => {
                let cell = ground.map.batch(page);
                let live = cell.load(Relaxed);
                let slot = live.trailing_ones();
                let now = live | 1 << slot;
                cell.store(now, Release);
                (slot, live == 0, now.count_ones() == batch)
            }
        };
        if first_on_page {
            ground.live.set(page..page + shape.stride as usize);
            if add(&chunk.busy, 1) == 1 && pool.kept.load(Relaxed) == id {
                pool.kept.store(0, Relaxed);
            }
        }
        if last_on_page {
            ground.map.open.clear(page..page + 1);
            if subtract(&chunk.open, 1) == 0 {
                self.unlist(ground.map, pool, id);
            }
        }
        let index = ((page - first).to_u32() / shape.stride) * shape.batch + slot;
        let fresh = index >= chunk.fresh.load(Relaxed);
        if fresh {
            chunk.fresh.store(index + 1, Relaxed);
        }
        pool.live.fetch_add(1, Relaxed);
        // page_is_free counts on the bits being stored before the program's first store to the
        // object; see `address_map.rs`.
        fence(Release);
        let within = slot as usize * (shape.tail / shape.batch) as usize;
        Ok(Taken { page, byte: ground.map.kept_offset(page) + within, fresh })
    }

    /// Takes an object back.
    pub(crate) fn put(&self, ground: Ground<'_>, chunk: &Chunk, place: ObjectAt) -> Put {
        let shape = chunk.shape();
        let Some(number) = pool_of(shape) else { return Put::Not };
        let pool = &self.pools[number];
        if shape.batch == 1 {
            // If several threads free one object, the one that clears the bit has freed it.
            if !ground.live.take(place.page) {
                return Put::Not;
            }
            ground.live.clear(place.page + 1..place.page + shape.stride as usize);
            pool.live.fetch_sub(1, Relaxed);
            return Put::Pages;
        }
        let _lock = self.lock(number);
        let cell = ground.map.batch(place.page);
        let live = cell.load(Relaxed);
        if live >> place.slot & 1 == 0 || chunk.state() != ChunkState::Pooled {
            return Put::Not;
        }
        let left = live & !(1 << place.slot);
        cell.store(left, Release);
        pool.live.fetch_sub(1, Relaxed);
        if left == 0 {
            // At least two objects share a page, so it had room before.
            ground.live.clear(place.page..place.page + 1);
            ground.map.open.clear(place.page..place.page + 1);
            if subtract(&chunk.open, 1) == 0 {
                self.unlist(ground.map, pool, place.chunk);
            }
            return Put::Pages;
        }
        if live.count_ones() == shape.batch {
            self.open(ground.map, pool, place);
        }
        Put::Slot
    }

    /// Ends the quarantine of the pages at `place`. False if they are not in quarantine.
    pub(crate) fn recycle(&self, ground: Ground<'_>, place: ObjectAt) -> bool {
        let chunk = ground.map.chunk(place.chunk);
        let Some(number) = pool_of(chunk.shape()) else { return false };
        let _lock = self.lock(number);
        let pool = &self.pools[number];
        let quarantined = chunk.state() == ChunkState::Pooled
            && !ground.live.get(place.page)
            && !ground.map.open.get(place.page);
        if !quarantined {
            return false;
        }
        self.open(ground.map, pool, place);
        if subtract(&chunk.busy, 1) > 0 {
            return true;
        }
        if pool.kept.load(Relaxed) == 0 {
            // To the end of the list, so that it is used last.
            pool.kept.store(place.chunk, Relaxed);
            self.unlist(ground.map, pool, place.chunk);
            self.list(ground.map, pool, place.chunk);
        } else {
            self.retire(ground, pool, place.chunk);
        }
        true
    }

    /// Retires the empty chunks that pools keep.
    pub(crate) fn retire_kept(&self, ground: Ground<'_>) {
        for number in self.used() {
            let _lock = self.lock(number);
            let pool = &self.pools[number];
            match pool.kept.swap(0, Relaxed) {
                0 => {}
                id => self.retire(ground, pool, id),
            }
        }
    }

    /// Notes that the page at `place` has room.
    fn open(&self, map: &ObjectMap, pool: &Pool, place: ObjectAt) {
        let chunk = map.chunk(place.chunk);
        map.open.set(place.page..place.page + 1);
        let within = (place.page - chunk.first()).to_u32();
        chunk.hint.store(chunk.hint.load(Relaxed).min(within), Relaxed);
        if add(&chunk.open, 1) == 1 {
            self.list(map, pool, place.chunk);
        }
    }

    /// Takes an empty chunk out of the pool.
    fn retire(&self, ground: Ground<'_>, pool: &Pool, id: ChunkId) {
        let chunk = ground.map.chunk(id);
        debug_assert_eq!(chunk.busy.load(Relaxed), 0);
        self.unlist(ground.map, pool, id);
        ground.map.open.clear(chunk.range());
        let objects = chunk.slots().to_u32() * chunk.shape().batch;
        subtract(&pool.objects, objects);
        ground.space.put_idle(ground.map, id);
    }

    /// Adds a chunk to a pool that has no room.
    fn grow(&self, ground: Ground<'_>, number: usize, shape: Shape) -> Result<(), Shortage> {
        let have = self.pools[number].objects.load(Relaxed) as usize;
        let create = |shape: Shape, in_lanes: bool| {
            let (stride, batch) = (shape.stride as usize, shape.batch as usize);
            // Larger objects have many sizes, with few objects of each. Their pools start small,
            // because store space is promised for a whole chunk.
            let first = match stride {
                1 => (FIRST_STEP * FIRST_SIZE / shape.size()).clamp(PAGES_PER_GROUP, FIRST_STEP),
                _ => PAGES_PER_GROUP / stride,
            };
            let objects = have.max(first).min(POOL_STEP / stride);
            // Whole groups of pages, up to a span.
            let pages = (objects.div_ceil(batch) * stride).next_multiple_of(PAGES_PER_GROUP);
            let slots = pages.min(PAGES_PER_SPAN) / stride;
            let least = PAGES_PER_GROUP / stride;
            ground.space.create(ground.map, (shape, in_lanes), slots, least)
        };
        let in_lane = ground.map.has_lanes().then(|| Shape::in_lane(shape.size())).flatten();
        let id = match in_lane.map(|shape| create(shape, true)) {
            Some(Err(Shortage::LaneSpans(more))) if ground.map.lanes_are_full(more) => None,
            created => created,
        };
        let id = id.unwrap_or_else(|| create(in_lane.unwrap_or(shape), false))?;
        let chunk = ground.map.chunk(id);
        let (first, slots, shape) = (chunk.first(), chunk.slots(), chunk.shape());
        let stride = shape.stride as usize;
        if stride == 1 {
            ground.map.open.set(first..first + slots);
        } else {
            let starts = (0..slots).map(|slot| first + slot * stride);
            starts.for_each(|page| ground.map.open.set(page..page + 1));
        }
        chunk.pool.store(number.to_u32(), Relaxed);
        chunk.fresh.store(0, Relaxed);
        chunk.set_state(ChunkState::Pooled);
        self.take_in(ground.map, number, id, Counts { open: slots, busy: 0, live: 0 });
        Ok(())
    }

    /// Adds a chunk, whose open pages are marked, to a pool.
    fn take_in(&self, map: &ObjectMap, number: usize, id: ChunkId, counts: Counts) {
        self.used[number / 64].fetch_or(1 << (number % 64), Relaxed);
        let (pool, chunk) = (self.pools.cell(number), map.chunk(id));
        add(&pool.objects, chunk.slots().to_u32() * chunk.shape().batch);
        pool.live.fetch_add(counts.live, Relaxed);
        chunk.open.store(counts.open.to_u32(), Relaxed);
        chunk.busy.store(counts.busy.to_u32(), Relaxed);
        chunk.hint.store(0, Relaxed);
        if counts.open > 0 {
            self.list(map, pool, id);
        }
    }

    /// Takes over a chunk of a loaded heap, whose open pages are marked.
    pub(crate) fn adopt(&self, ground: Ground<'_>, number: usize, id: ChunkId, counts: Counts) {
        let _lock = self.lock(number);
        self.take_in(ground.map, number, id, counts);
        if counts.busy == 0 {
            match self.pools[number].kept.load(Relaxed) {
                0 => self.pools[number].kept.store(id, Relaxed),
                _ => self.retire(ground, &self.pools[number], id),
            }
        }
    }

    /// Puts a chunk at the end of the pool's list.
    fn list(&self, map: &ObjectMap, pool: &Pool, id: ChunkId) {
        let tail = pool.tail.load(Relaxed);
        map.chunk(id).previous.store(tail, Relaxed);
        map.chunk(id).next.store(0, Relaxed);
        match tail {
            0 => pool.head.store(id, Relaxed),
            tail => map.chunk(tail).next.store(id, Relaxed),
        }
        pool.tail.store(id, Relaxed);
    }

    /// Takes a chunk out of the pool's list.
    fn unlist(&self, map: &ObjectMap, pool: &Pool, id: ChunkId) {
        let next = map.chunk(id).next.load(Relaxed);
        let previous = map.chunk(id).previous.load(Relaxed);
        match previous {
            0 => pool.head.store(next, Relaxed),
            previous => map.chunk(previous).next.store(next, Relaxed),
        }
        match next {
            0 => pool.tail.store(previous, Relaxed),
            next => map.chunk(next).previous.store(previous, Relaxed),
        }
    }

    /// Live objects of all pools, and their bytes.
    pub(crate) fn live(&self) -> (usize, usize) {
        self.used().fold((0, 0), |(objects, bytes), number| {
            let live = self.pools[number].live.load(Relaxed);
            (objects + live, bytes + live * (number + 1) * OBJECT_GRAIN)
        })
    }

    /// The numbers of the pools that ever had a chunk.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> {
        (0..POOLS / 64).flat_map(|at| {
            let word = self.used[at].load(Relaxed);
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }

    /// The lock of pool `number`.
    fn lock(&self, number: usize) -> Guard<'_, ()> {
        self.locks[number % POOL_LOCKS].lock()
    }
}
