//! Durable allocate: memory and objects of a durable heap.
//!
//! Guarantees: a heap that was opened for reading alone gives no memory, and what is freed in it
//! stays.
//! Threads: any, outside the fault path; they share one cache, under its lock.

use deepheap_heap::{Freed, PAGE, ThreadCache};
use deepheap_sys::signals::Blocked;

use crate::allocate::{ALIGN, SIZE_MAX, invalid};
use crate::durable::DurableHeap;
use crate::objects;
use crate::runtime::{Inside, Runtime};

impl DurableHeap {
    /// Allocates `size` bytes, byte-granular; null means ENOMEM.
    pub fn malloc(&self, size: usize) -> *mut u8 {
        self.runtime().malloc_durable(size, ALIGN)
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two; null means ENOMEM.
    pub fn aligned_alloc(&self, align: usize, size: usize) -> *mut u8 {
        self.runtime().malloc_durable(size, align.max(ALIGN))
    }

    /// Allocates `count` objects of `size` bytes, as [`crate::objects::allocate`] does; null means
    /// ENOMEM.
    pub fn allocate_objects(&self, count: usize, size: usize) -> *mut u8 {
        let (count, size) = if size == 0 { (1, 1) } else { (count.max(1), size) };
        let stride = objects::stride(size);
        if count > 1 && stride < PAGE {
            return count.checked_mul(stride).map_or(core::ptr::null_mut(), |all| self.malloc(all));
        }
        if self.is_read_only() {
            return core::ptr::null_mut();
        }
        let _inside = Inside::enter();
        self.runtime().allocate_objects(count, size)
    }
}

impl Runtime {
    /// Allocates memory of a durable heap; null means ENOMEM.
    pub(crate) fn malloc_durable(&'static self, size: usize, align: usize) -> *mut u8 {
        let Some(durable) = &self.durable else { return core::ptr::null_mut() };
        if durable.is_read_only {
            return core::ptr::null_mut();
        }
        if size > SIZE_MAX || align > SIZE_MAX {
            return core::ptr::null_mut();
        }
        loop {
            let allocated = {
                let _inside = Inside::enter();
                // A handler of the program that allocated here would wait for itself.
                let _blocked = Blocked::all();
                let mut cache = durable.cache.lock();
                if cache.is_none() {
                    *cache = ThreadCache::new_in(&self.heap).ok();
                }
                let Some(cache) = cache.as_mut() else { return core::ptr::null_mut() };
                self.heap.allocate(cache, size, align)
            };
            match allocated {
                Ok(allocated) => return allocated.ptr as *mut u8,
                Err(shortage) if self.relieve(shortage) => {}
                Err(_) => return core::ptr::null_mut(),
            }
        }
    }

    /// Frees an allocation of a durable heap.
    pub(crate) fn free_durable(&'static self, address: *mut u8) {
        let Some(durable) = &self.durable else { return };
        if durable.is_read_only {
            return; // what is read stays as it is
        }
        let freed = {
            let _inside = Inside::enter();
            let _blocked = Blocked::all();
            let mut cache = durable.cache.lock();
            if cache.is_none() {
                *cache = ThreadCache::new_in(&self.heap).ok();
            }
            let Some(cache) = cache.as_mut() else { return }; // no memory for it: a leak
            self.heap.free(cache, address as usize)
        };
        match freed {
            Freed::Done => {}
            Freed::Run(run) => self.end_run(run),
            Freed::Pages(pages) => {
                if let Some(pager) = self.pager() {
                    pager.discard_free_pages(pages.as_slice());
                }
            }
            Freed::Objects(freed) => self.end_objects(freed),
            Freed::NotAllocated => invalid("free", address),
        }
    }
}
