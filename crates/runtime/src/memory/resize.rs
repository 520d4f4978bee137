//! Resize: `realloc`, in place where that is possible, by a copy elsewhere.
//!
//! Guarantees: as realloc(3): on NULL nothing has changed.
//! Never: moves an array of objects to memory pages.
//! Threads: any.

use core::ptr;

use deepheap_heap::Shrunk;

use crate::memory::allocate::{free, invalid, malloc, malloc_in};
use crate::memory::{ALIGN, SIZE_MAX};
use crate::objects;
use crate::runtime::running_at;
use crate::stats::allocations;

/// Changes the size of an allocation, moving it if need be; null means ENOMEM, and then nothing has
/// changed.
///
/// # Safety
/// `address` is null or a live allocation of this heap; if it moves, the old address is dead.
pub unsafe fn realloc(address: *mut u8, size: usize) -> *mut u8 {
    if address.is_null() {
        return malloc(size);
    }
    let Some(runtime) = running_at(address as usize) else { return ptr::null_mut() };
    let shape = runtime.heap.object_at(address as usize);
    let array = shape.filter(|shape| shape.count > 1 && shape.index == 0);
    if let Some(array) = array.filter(|_| !runtime.is_read_only()) {
        // SAFETY: the caller's promise: a live array of objects.
        return unsafe { objects::resize_array(runtime, address, array, size) };
    }
    let Some(usable) = runtime.heap.allocation_size(address as usize) else {
        invalid("realloc", address);
    };
    if runtime.is_read_only() {
        return if size <= usable { address } else { ptr::null_mut() };
    }
    let note_resized = || {
        if runtime.durable.is_none() {
            allocations::note_again(address as usize, size);
        }
    };
    if size <= usable {
        match runtime.heap.shrink_in_place(address as usize, size) {
            Shrunk::Done => return address,
            Shrunk::Run(run) => {
                // Before another thread can get the rest.
                note_resized();
                runtime.end_run(run);
                return address;
            }
            Shrunk::Wasteful => {}
            Shrunk::NotAllocated => invalid("realloc", address),
        }
    } else {
        if size > SIZE_MAX {
            return ptr::null_mut();
        }
        match runtime.relieved(|| runtime.heap.grow_in_place(address as usize, size)) {
            Some(true) => {
                note_resized();
                return address;
            }
            Some(false) => {}
            None => return ptr::null_mut(),
        }
    }
    let moved = match shape {
        Some(_) => objects::allocate_in(runtime, 1, size.next_multiple_of(ALIGN)),
        None => malloc_in(runtime, size),
    };
    if moved.is_null() {
        // A smaller size always fits where it is.
        return if size <= usable { address } else { moved };
    }
    // SAFETY: both are live, at least that long, and do not overlap.
    unsafe {
        ptr::copy_nonoverlapping(address, moved, usable.min(size));
        free(address);
    }
    moved
}
