//! Objects: what the heap keeps of its objects, single ones and arrays.
//!
//! Single objects up to 64 KiB come from pools, larger ones and arrays are chunks of their own.
//!
//! Guarantees: objects never overlap, and a page has objects of one pool or array only.
//! Never: touches an object.
//! Threads: any.

pub(crate) mod calls;
pub(crate) mod chunk;
pub(crate) mod extents;
pub(crate) mod map;
pub(crate) mod pool;
pub(crate) mod shape;
pub(crate) mod space;

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::errno::Result;

use crate::address_map::AddressMap;
use crate::objects::chunk::Chunk;
use crate::objects::map::ObjectMap;
use crate::objects::pool::{Ground, Pools};
use crate::objects::space::ObjectSpace;
use crate::page::PAGES_PER_SPAN;
use crate::table::Populated;

/// All objects of a region.
pub(crate) struct Objects {
    pub(crate) map: ObjectMap,
    pub(crate) space: ObjectSpace,
    pub(crate) pools: Pools,
    /// Live elements of arrays, and their bytes.
    array_objects: AtomicUsize,
    array_bytes: AtomicUsize,
}

impl Objects {
    /// The objects of a region of `spans` spans: none yet.
    pub(crate) fn new(spans: usize, populated: &Populated) -> Result<Self> {
        Ok(Self {
            map: ObjectMap::new(spans * PAGES_PER_SPAN, populated)?,
            space: ObjectSpace::new(spans, populated)?,
            pools: Pools::new(populated)?,
            array_objects: AtomicUsize::new(0),
            array_bytes: AtomicUsize::new(0),
        })
    }

    pub(crate) fn ground<'a>(&'a self, map: &'a AddressMap) -> Ground<'a> {
        Ground { map: &self.map, space: &self.space, live: &map.runs.live_pages }
    }

    /// Counts an array.
    pub(crate) fn count_array(&self, chunk: &Chunk) {
        self.array_objects.fetch_add(chunk.slots(), Relaxed);
        self.array_bytes.fetch_add(chunk.slots() * chunk.shape().size(), Relaxed);
    }

    /// Counts an array no longer.
    pub(crate) fn uncount_array(&self, chunk: &Chunk) {
        self.array_objects.fetch_sub(chunk.slots(), Relaxed);
        self.array_bytes.fetch_sub(chunk.slots() * chunk.shape().size(), Relaxed);
    }

    /// Live objects and elements of arrays, and their bytes.
    pub(crate) fn live(&self) -> (usize, usize) {
        let (objects, bytes) = self.pools.live();
        let array_objects = self.array_objects.load(Relaxed);
        (objects + array_objects, bytes + self.array_bytes.load(Relaxed))
    }
}
