//! The C functions of deepheap: `dh_malloc` and its family, and those of objects, as
//! `include/deepheap.h` declares them.
//!
//! A skin: it converts arguments, results and errors, and holds no logic of memory. Two libraries
//! export these functions, `libdeepheap.so` and the preload library; whichever a process finds
//! first serves all callers, so there is one runtime.
//!
//! Guarantees: errno as malloc(3) leaves it; no panic crosses into C (`extern "C"` aborts).
//! Threads: any thread; never a signal handler.

mod allocation;
mod durable;
mod error;
mod maps;
mod objects;
mod start;
mod statistics;

pub use allocation::{dh_aligned_alloc, dh_calloc, dh_free, dh_malloc, dh_realloc, dh_usable_size};
pub use durable::{
    CheckpointInfo, dh_checkpoint, dh_checkpoint_async, dh_checkpoint_info, dh_checkpoint_wait,
    dh_close, dh_heap_aligned_alloc, dh_heap_malloc, dh_heap_oalloc, dh_last_error, dh_open,
    dh_remove_snapshot, dh_root, dh_set_root, dh_snapshot,
};
pub use error::{
    DH_EBOUNDS, DH_ECONF, DH_EFILE, DH_EINVAL, DH_EKERNEL, DH_EMEMORY, DH_ENOROOM, DH_EOBJECT,
    DH_EREAD, DH_ESTARTED, DH_ESTORE, dh_strerror, keep_errno, set_errno,
};
pub use maps::{
    DH_MAP_DONTNEED, DH_MAP_LOG, DH_MAP_PRIVATE, DH_MAP_RANDOM, DH_MAP_SEQUENTIAL, DH_MAP_SHARED,
    DH_MAP_WILLNEED, dh_map, dh_map_advise, dh_map_stats, dh_remap, dh_sync, dh_unmap,
};
pub use objects::{
    DH_COLD, DH_HOT, DH_ONCE, DH_SEQUENTIAL, dh_advise, dh_gather, dh_oalloc, dh_ostride, dh_pin,
    dh_prefetch, dh_read, dh_scatter, dh_unpin, dh_write,
};
pub use start::dh_init;
pub use statistics::{dh_stats, dh_stats_json};
