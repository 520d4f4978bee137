//! Object invariants: one walk over all chunks of objects, comparing them with map, bits and pools.
//!
//! Guarantees: if it returns, chunks and free extents tile the object spans, and every count agrees
//! with the bits it counts.
//! Never: changes anything.
//! Threads: takes every lock of the pools and of `ObjectSpace`; the heap should be idle.

use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeMap;

use deepheap_sys::threads::lock::Guard;

use crate::heap::Heap;
use crate::objects::chunk::{Chunk, ChunkState, PAGES_PER_GROUP};
use crate::objects::extents::GROUPS_PER_SPAN;
use crate::objects::map::ChunkId;
use crate::objects::pool::{POOL_LOCKS, pool_of};
use crate::objects::shape::BATCH_MAX;

/// The sums over the chunks of a pool.
#[derive(Default)]
struct Sums {
    objects: usize,
    live: usize,
    with_room: Vec<ChunkId>,
    empty: Vec<ChunkId>,
}

impl Heap {
    /// Panics if a structure of the objects contradicts itself.
    pub(crate) fn check_objects(&self) {
        let objects = &self.objects;
        let _pools: [Guard<'_, ()>; POOL_LOCKS] =
            core::array::from_fn(|lock| objects.pools.locks[lock].lock());
        let space = objects.space.lock.lock();
        let mut owned = vec![false; self.map.runs.huge.len() * GROUPS_PER_SPAN];
        let mut pools: BTreeMap<usize, Sums> = BTreeMap::new();
        let mut blocks = 0;
        for id in 1..space.chunks_end {
            let chunk = objects.map.chunk(id);
            if chunk.state() == ChunkState::Unused {
                continue;
            }
            blocks += chunk.blocks();
            for group in chunk.groups() {
                assert!(!owned[group], "chunks do not overlap");
                owned[group] = true;
                let is_free = space.extents.iter().any(|it| it.is_free(group));
                assert!(!is_free, "a chunk's group is not free");
                let of = objects.map.chunk_of(group * PAGES_PER_GROUP).map(|(of, _)| of);
                assert_eq!(of, Some(id));
            }
            let pages = chunk.range();
            let live = self.map.runs.live_pages.count(pages.clone());
            match chunk.state() {
                ChunkState::Pooled => {
                    let number = pool_of(chunk.shape()).expect("a pooled size");
                    assert_eq!(chunk.pool.load(Relaxed) as usize, number);
                    self.check_pooled(chunk, id, pools.entry(number).or_default());
                }
                ChunkState::Array => assert_eq!(live, chunk.pages(), "an array lives whole"),
                _ => assert_eq!((live, objects.map.open.count(pages)), (0, 0), "no object"),
            }
        }
        assert_eq!(blocks, space.promised, "promised blocks are those of the chunks");
        for group in (0..owned.len()).filter(|&group| !owned[group]) {
            assert!(objects.map.chunk_of(group * PAGES_PER_GROUP).is_none());
        }
        for number in objects.pools.used() {
            let pool = &objects.pools.pools[number];
            let sums = pools.remove(&number).unwrap_or_default();
            assert_eq!(
                sums.objects,
                pool.objects.load(Relaxed) as usize,
                "objects of pool {number}"
            );
            assert_eq!(sums.live, pool.live.load(Relaxed), "live objects of pool {number}");
            let mut listed = Vec::new();
            let mut at = pool.head.load(Relaxed);
            while at != 0 {
                listed.push(at);
                at = objects.map.chunk(at).next.load(Relaxed);
            }
            listed.sort_unstable();
            assert_eq!(listed, sums.with_room, "chunks with room are listed");
            let kept = pool.kept.load(Relaxed);
            assert_eq!(sums.empty, Vec::from_iter((kept != 0).then_some(kept)), "kept chunk");
        }
        assert!(pools.is_empty(), "a pool with a chunk is in use");
    }

    fn check_pooled(&self, chunk: &Chunk, id: ChunkId, sums: &mut Sums) {
        let (map, live_pages) = (&self.objects.map, &self.map.runs.live_pages);
        let shape = chunk.shape();
        let (mut open, mut live, mut quarantined) = (0, 0, 0);
        for slot in 0..chunk.slots() {
            let page = chunk.first() + slot * shape.stride as usize;
            let stride = page..page + shape.stride as usize;
            let lives = live_pages.get(page);
            let expected = if lives { shape.stride as usize } else { 0 };
            assert_eq!(live_pages.count(stride), expected, "an object lives on all its pages");
            let objects = match shape.batch {
                1 => usize::from(lives),
                _ => map.batch(page).load(Relaxed).count_ones() as usize,
            };
            assert_eq!(lives, objects > 0);
            assert!(objects <= shape.batch as usize && shape.batch as usize <= BATCH_MAX);
            if map.open.get(page) {
                let within = page - chunk.first();
                assert!(objects < shape.batch as usize, "an open page has room");
                assert!(within >= chunk.hint.load(Relaxed) as usize, "the hint is a lower bound");
            } else {
                assert!(objects == 0 || objects == shape.batch as usize, "a closed page has none");
            }
            open += usize::from(map.open.get(page));
            live += objects;
            quarantined += usize::from(!lives && !map.open.get(page));
        }
        let live_slots = (0..chunk.slots())
            .filter(|slot| live_pages.get(chunk.first() + slot * shape.stride as usize))
            .count();
        assert_eq!(open, chunk.open.load(Relaxed) as usize, "open pages of chunk {id}");
        assert_eq!(live_slots + quarantined, chunk.busy.load(Relaxed) as usize, "busy ones");
        sums.objects += chunk.slots() * shape.batch as usize;
        sums.live += live;
        if open > 0 {
            sums.with_room.push(id);
        }
        if live_slots + quarantined == 0 {
            sums.empty.push(id);
        }
    }
}
