//! Byte-granular heap with its metadata out of band.
//!
//! The heap hands out addresses inside a region that the caller has reserved, and never touches the
//! memory there: all its metadata is in pinned memory of its own, so that freeing an evicted object
//! does not read it in.
//!
//! From the front: [`Heap`] and [`ThreadCache`]; then a central list for each small class over
//! slabs, and page runs that coalesce; at the back the address map, which tells what an address or
//! a page is. Beside them are the objects that have pages of their own: pools and arrays, chunks of
//! consecutive pages, and the object map, which tells how many bytes of a page are an object's.
//! The tables of a durable heap can be saved, and found again by another process (`durable`).

mod address_map;
mod address_set;
mod areas;
mod central_list;
mod chunk;
mod coalescing;
mod durable;
mod extents;
mod fork;
mod free_runs;
mod heap;
#[cfg(feature = "strict")]
mod invariants;
mod limits;
mod mend;
mod object_calls;
#[cfg(feature = "strict")]
mod object_invariants;
mod object_map;
mod object_space;
mod objects;
mod outcome;
mod page;
mod page_bits;
mod pool;
mod rebuild_objects;
mod rebuild_runs;
mod resize;
mod run_tags;
mod saved_tables;
mod shape;
mod size_class;
mod slab;
mod table;
mod thread_cache;

pub use chunk::PAGES_PER_GROUP;
pub use heap::Heap;
pub use mend::Mended;
pub use outcome::{
    Allocated, Freed, FreedObjects, FreedPages, FreedRun, ObjectShape, Shortage, Shrunk, SpanRange,
};
pub use page::{PAGE, PAGE_SHIFT, PAGES_PER_SPAN, PageNo, SPAN, SPAN_SHIFT};
pub use saved_tables::{BadTables, TableShape};
pub use shape::{LANE_BYTES, LANES, objects_per_block, stride};
pub use thread_cache::ThreadCache;
