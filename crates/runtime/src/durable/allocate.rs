//! Allocate: memory of a durable heap.
//!
//! Guarantees: a heap that was opened for reading alone gives no memory, and what is freed in it
//! stays.
//! Threads: any, outside the fault path; they share one cache, under its lock.

use core::ptr;

use deepheap_heap::ThreadCache;
use deepheap_sys::threads::signals::Blocked;

use crate::memory::SIZE_MAX;
use crate::runtime::{Inside, Runtime};

/// Allocates `size` bytes; null means ENOMEM.
pub(crate) fn allocate(runtime: &'static Runtime, size: usize, align: usize) -> *mut u8 {
    if size > SIZE_MAX || align > SIZE_MAX {
        return ptr::null_mut();
    }
    let allocated = runtime.relieved(|| {
        with_cache(runtime, |cache| runtime.heap.allocate(cache, size, align)).transpose()
    });
    allocated.flatten().map_or(ptr::null_mut(), |allocated| allocated.ptr as *mut u8)
}

/// Frees an allocation; false if there is none.
pub(crate) fn free(runtime: &'static Runtime, address: *mut u8) -> bool {
    let freed = with_cache(runtime, |cache| runtime.heap.free(cache, address as usize));
    freed.is_none_or(|freed| runtime.end_freed(freed))
}

/// Uses the one cache of a durable heap; none if it was opened for reading alone, or if there is no
/// memory for a cache: what was to be freed leaks then.
fn with_cache<T>(runtime: &'static Runtime, call: impl FnOnce(&mut ThreadCache) -> T) -> Option<T> {
    let durable = runtime.durable.as_ref().filter(|durable| !durable.is_read_only)?;
    let _inside = Inside::enter();
    // A handler of the program that allocated here would wait for itself.
    let _blocked = Blocked::all();
    let mut cache = durable.cache.lock();
    if cache.is_none() {
        *cache = ThreadCache::new_in(&runtime.heap).ok();
    }
    cache.as_mut().map(call)
}
