//! Memory: what the program allocates, maps and frees, how the heap gets it, and what keeps it in
//! RAM.

pub(crate) mod allocate;
pub(crate) mod area_table;
pub(crate) mod areas;
pub(crate) mod fault_handler;
pub(crate) mod global_allocator;
pub(crate) mod growth;
pub(crate) mod holds;
pub(crate) mod no_room;
pub(crate) mod release;
pub(crate) mod relief;
pub(crate) mod residency;
pub(crate) mod resize;
pub(crate) mod thread_cache;

/// Least alignment of an allocation.
pub(crate) const ALIGN: usize = 16;
/// Largest size malloc(3) may serve.
pub(crate) const SIZE_MAX: usize = isize::MAX as usize;
