//! Byte-granular heap with its metadata out of band.
//!
//! The heap hands out addresses inside a region that the caller has reserved, and never touches the
//! memory there: all its metadata is in pinned memory of its own, so that freeing an evicted object
//! does not read it in.
//!
//! From the front: [`Heap`] and [`ThreadCache`]; then a central list for each small class over
//! slabs (`slabs`), and page runs that coalesce (`runs`); at the back the address map, which tells
//! what an address or a page is. Beside them are the objects that have pages of their own
//! (`objects`): pools and arrays, chunks of consecutive pages, and the object map, which tells how
//! many bytes of a page are an object's. The tables of a durable heap can be saved, and found again
//! by another process (`saved`).
#![cfg_attr(not(test), warn(unreachable_pub))]
#![warn(clippy::cast_lossless)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod address_map;
mod address_set;
mod fork;
mod heap;
mod limits;
mod objects;
mod outcome;
mod page;
mod page_bits;
mod runs;
mod saved;
mod slabs;
#[cfg(debug_assertions)]
mod strict_tests;
mod table;

pub use heap::Heap;
pub use objects::chunk::PAGES_PER_GROUP;
pub use objects::shape::{LANE_BYTES, LANES, objects_per_block, stride};
pub use outcome::{
    Allocated, Freed, FreedObjects, FreedPages, FreedRun, ObjectShape, Shortage, Shrunk, SpanRange,
};
pub use page::{PAGE, PAGE_SHIFT, PAGES_PER_SPAN, PageNo, SPAN, SPAN_SHIFT};
pub use saved::mend::Mended;
pub use saved::tables::{BadTables, TableShape};
pub use slabs::thread_cache::ThreadCache;
