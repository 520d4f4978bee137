//! Byte-granular heap with its metadata out of band.
//!
//! The heap hands out addresses inside a region that the caller has reserved, and never touches
//! what is there: every bit it keeps is in pinned memory of its own, so that freeing an object
//! that was evicted does not read it in.
//!
//! From the front: [`Heap`] and [`ThreadCache`]; then a central list for each small class over
//! slabs, and page runs that coalesce; at the back the address map, which answers what an
//! address or a page is. Beside them stand the objects that have pages of their own: pools and
//! arrays, chunks of consecutive pages, and the object map, which answers how many bytes of a page
//! are an object's.

mod address_map;
mod address_set;
mod central_list;
mod chunk;
mod coalescing;
mod extents;
mod fork;
mod free_runs;
mod heap;
#[cfg(feature = "strict")]
mod invariants;
#[cfg(feature = "strict")]
mod object_invariants;
mod object_map;
mod object_space;
mod objects;
mod outcome;
mod page;
mod page_bits;
mod pool;
mod resize;
mod shape;
mod size_class;
mod slab;
mod table;
mod thread_cache;
mod units;

pub use heap::Heap;
pub use object_map::PAGES_PER_GROUP;
pub use outcome::{
    Allocated, Freed, FreedObjects, FreedPages, FreedRun, ObjectShape, ObjectShortage, Shortage,
    Shrunk, SpanRange,
};
pub use page::{PAGE, PAGE_SHIFT, PAGES_PER_SPAN, PageNo, SPAN, SPAN_SHIFT};
pub use pool::POOL_STEP;
pub use shape::stride;
pub use thread_cache::ThreadCache;
