//! Byte-granular heap with its metadata out of band.
//!
//! The heap hands out addresses inside a region that the caller has reserved, and never touches
//! what is there: every bit it keeps is in pinned memory of its own, so that freeing an object
//! that was evicted does not read it in.
//!
//! From the front: [`Heap`] and [`ThreadCache`]; then a central list for each small class over
//! slabs, and page runs that coalesce; at the back the address map, which answers what an
//! address or a page is.

mod address_map;
mod address_set;
mod central_list;
mod coalescing;
mod fork;
mod free_runs;
mod heap;
#[cfg(feature = "strict")]
mod invariants;
mod outcome;
mod page;
mod page_bits;
mod resize;
mod size_class;
mod slab;
mod table;
mod thread_cache;
mod units;

pub use heap::Heap;
pub use outcome::{Allocated, Freed, FreedPages, FreedRun, Shortage, Shrunk, SpanRange};
pub use page::{PAGE, PAGE_SHIFT, PAGES_PER_SPAN, PageNo, SPAN, SPAN_SHIFT};
pub use thread_cache::ThreadCache;
