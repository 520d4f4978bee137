//! Durable allocate: memory and objects of a durable heap.
//!
//! Guarantees: a heap that was opened for reading alone gives no memory, and what is freed in it
//! stays.
//! Threads: any, outside the fault path; they share one cache, under its lock.

use core::ptr;

use deepheap_heap::ThreadCache;
use deepheap_sys::threads::signals::Blocked;

use crate::memory::allocate::{ALIGN, SIZE_MAX, invalid, malloc};
use crate::runtime::{Inside, Runtime};

impl Runtime {
    /// Allocates `size` bytes of this heap; null means ENOMEM.
    pub(crate) fn malloc(&'static self, size: usize) -> *mut u8 {
        match self.durable {
            Some(_) => self.malloc_durable(size, ALIGN),
            None => malloc(size),
        }
    }

    /// Allocates memory of a durable heap; null means ENOMEM.
    pub(crate) fn malloc_durable(&'static self, size: usize, align: usize) -> *mut u8 {
        if size > SIZE_MAX || align > SIZE_MAX {
            return ptr::null_mut();
        }
        let allocated = self.relieved(|| {
            let allocated = self.with_cache(|cache| self.heap.allocate(cache, size, align));
            allocated.transpose()
        });
        allocated.flatten().map_or(ptr::null_mut(), |allocated| allocated.ptr as *mut u8)
    }

    /// Frees an allocation of a durable heap.
    pub(crate) fn free_durable(&'static self, address: *mut u8) {
        let freed = self.with_cache(|cache| self.heap.free(cache, address as usize));
        if freed.is_some_and(|freed| !self.end_freed(freed)) {
            invalid("free", address);
        }
    }

    /// Uses the one cache of a durable heap; none if it was opened for reading alone, or if there
    /// is no memory for a cache: what was to be freed leaks then.
    fn with_cache<T>(&'static self, call: impl FnOnce(&mut ThreadCache) -> T) -> Option<T> {
        let durable = self.durable.as_ref().filter(|durable| !durable.is_read_only)?;
        let _inside = Inside::enter();
        // A handler of the program that allocated here would wait for itself.
        let _blocked = Blocked::all();
        let mut cache = durable.cache.lock();
        if cache.is_none() {
            *cache = ThreadCache::new_in(&self.heap).ok();
        }
        cache.as_mut().map(call)
    }
}
