//! Global allocator: deepheap as the heap of a Rust program.
//!
//! ```no_run
//! #[global_allocator]
//! static HEAP: deepheap::DeepHeap = deepheap::DeepHeap;
//! ```
//!
//! Guarantees: what the runtime itself asks of the global allocator (at start-up, in its workers)
//! comes from pinned memory, so it never faults on itself.
//! Threads: any.

use core::alloc::{GlobalAlloc, Layout};

use deepheap_sys::memory::pinned_allocator::PinnedAllocator;
use deepheap_sys::threads::tls;

use crate::memory::{allocate, resize};

/// The allocator; settings come from `DEEPHEAP_CONF` alone: before `deepheap::init` could be
/// called, the program has allocated, and so started the runtime.
pub struct DeepHeap;

fn inside_the_runtime() -> bool {
    // SAFETY: the area belongs to this thread.
    unsafe { (*tls::area()).depth > 0 }
}

// SAFETY: malloc's contract is that of GlobalAlloc, with alignments above 16 asked for by
// `aligned_alloc`; every address goes back to the allocator whose region it lies in.
unsafe impl GlobalAlloc for DeepHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if inside_the_runtime() {
            // SAFETY: the caller's layout.
            return unsafe { PinnedAllocator.alloc(layout) };
        }
        if layout.align() <= 16 {
            allocate::malloc(layout.size())
        } else {
            allocate::aligned_alloc(layout.align(), layout.size())
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if inside_the_runtime() || layout.align() > 16 {
            // SAFETY: the caller's layout; the bytes are ours to clear.
            return unsafe {
                let address = self.alloc(layout);
                if !address.is_null() {
                    address.write_bytes(0, layout.size());
                }
                address
            };
        }
        allocate::calloc(1, layout.size())
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if allocate::owns(address as usize) {
            // SAFETY: the caller's promise: a live allocation of this allocator.
            unsafe { allocate::free(address) }
        } else {
            // SAFETY: not in the region, so it came from the pinned allocator, with this layout.
            unsafe { PinnedAllocator.dealloc(address, layout) }
        }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= 16 && allocate::owns(address as usize) && !inside_the_runtime() {
            // SAFETY: the caller's promise: a live allocation of this allocator.
            return unsafe { resize::realloc(address, size) };
        }
        // SAFETY: alignment is valid and the caller promises that size does not overflow; both
        // allocations are live and do not overlap.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(address, layout.size().min(size));
                self.dealloc(address, layout);
            }
            moved
        }
    }
}
