//! Slabs: allocations of up to 16 KiB, by size class: the bits of each slab, the classes' lists,
//! the threads' caches.

pub(crate) mod bits;
pub(crate) mod central_list;
pub(crate) mod size_class;
pub(crate) mod thread_cache;
