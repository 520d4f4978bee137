//! Objects: allocation of objects on pages of their own, and access to them without page faults.
//!
//! The calls without faults take the address of any live allocation of the heap, and of an element
//! of an array of objects (`transfer` moves the bytes).
//!
//! Guarantees: the calls agree with plain pointers that other threads use at the same time.
//! Never: panics on bad input.
//! Threads: any, outside the fault path.

pub(crate) mod boxed;
mod place;
mod transfer;

use core::ptr;

use deepheap_heap::{ObjectShape, PAGE};
use deepheap_maps::PinKind;
use deepheap_pager::Operation;
use deepheap_policy::replacement::{ONCE, REUSE_MAX};
use deepheap_sys::threads::signals::open_fault_signal;

use crate::memory::allocate::{free, malloc_in};
use crate::memory::{SIZE_MAX, residency};
use crate::process::start::start_from_environment;
use crate::process::switch::managed;
use crate::runtime::{Inside, Runtime, running, running_at};
use crate::stats::allocations;

pub use place::ObjectError;
use place::{Place, pages_of};
use transfer::Transfer;

/// Pages of one object that `prefetch` looks at: as many as the pager keeps waiting.
const PAGES_AHEAD: usize = 1024;

/// Advice on how an object will be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Soon and often: keep it in RAM if there is a choice.
    Hot,
    /// Not soon: let it go first.
    Cold,
    /// In address order.
    Sequential,
    /// Once: let it go after the next use.
    Once,
}

/// Allocates `count` objects of `size` bytes, each on pages of its own and, alone, packed to its
/// size in RAM and on the SSD (SSDAlloc, sections 3.1 and 3.4); null means ENOMEM. Elements of an
/// array are `stride(size)` bytes apart. No object at all, or any number of no bytes, counts as
/// one of one byte.
pub fn allocate(count: usize, size: usize) -> *mut u8 {
    let runtime = running().or_else(start_from_environment);
    runtime.map_or(ptr::null_mut(), |runtime| allocate_in(runtime, count, size))
}

/// As `allocate`, of one heap.
pub(crate) fn allocate_in(runtime: &'static Runtime, count: usize, size: usize) -> *mut u8 {
    open_fault_signal();
    let (count, size) = if size == 0 { (1, 1) } else { (count.max(1), size) };
    let stride = if size > SIZE_MAX { usize::MAX } else { stride(size) };
    let bytes = count.checked_mul(stride).filter(|bytes| *bytes <= SIZE_MAX);
    let Some(bytes) = bytes.filter(|_| !runtime.is_read_only()) else { return ptr::null_mut() };
    if count > 1 && stride < PAGE {
        return malloc_in(runtime, bytes);
    }
    let allocated = runtime.relieved(|| runtime.heap.allocate_object_array(count, size));
    allocated.map_or(ptr::null_mut(), |allocated| {
        if runtime.durable.is_none() {
            allocations::note(allocated.ptr, bytes);
        }
        allocated.ptr as *mut u8
    })
}

/// `realloc` for an array of objects: as many elements as `bytes` reach into, the old ones' bytes
/// kept; null means ENOMEM, and then nothing has changed.
///
/// # Safety
/// `array` is the first element of the live array of the runtime's heap that `shape` describes;
/// dead afterwards.
pub(crate) unsafe fn resize_array(
    runtime: &'static Runtime,
    array: *mut u8,
    shape: ObjectShape,
    bytes: usize,
) -> *mut u8 {
    let count = bytes.div_ceil(shape.stride).max(1);
    if count == shape.count {
        return array;
    }
    let moved = allocate_in(runtime, count, shape.size);
    if moved.is_null() {
        // Fewer elements fit where they are.
        return if count < shape.count { array } else { moved };
    }
    for index in 0..count.min(shape.count) {
        let offset = index * shape.stride;
        // SAFETY: both arrays have that element, of that size.
        unsafe { moved.add(offset).copy_from_nonoverlapping(array.add(offset), shape.size) };
    }
    // SAFETY: the caller's promise.
    unsafe { free(array) };
    moved
}

/// Bytes from one element of an array of objects of `size` bytes to the next: whole pages, or for
/// less than 128 bytes, of which arrays are memory pages, the size rounded up to 8.
pub fn stride(size: usize) -> usize {
    deepheap_heap::stride(size.max(1))
}

/// Copies `length` bytes at `offset` of the object to `buffer`.
///
/// # Errors
/// [`ObjectError`]; `buffer` may hold a part of the bytes then.
///
/// # Safety
/// `object` is live; `buffer` has room for `length` bytes.
pub unsafe fn read(
    object: *const u8,
    offset: usize,
    buffer: *mut u8,
    length: usize,
) -> Result<(), ObjectError> {
    // SAFETY: the caller's promise, for one object.
    unsafe { gather(&object, 1, offset, length, buffer) }.map(|_| ())
}

/// Copies `length` bytes from `buffer` to `offset` of the object.
///
/// # Errors
/// [`ObjectError`]; a part of the bytes may be written then.
///
/// # Safety
/// `object` is live; `buffer` holds `length` bytes.
pub unsafe fn write(
    object: *mut u8,
    offset: usize,
    buffer: *const u8,
    length: usize,
) -> Result<(), ObjectError> {
    // SAFETY: the caller's promise, for one object.
    unsafe { scatter(&object, 1, offset, length, buffer) }.map(|_| ())
}

/// Copies `length` bytes at `offset` of each object, packed, to `buffer`. Returns how many objects
/// were read: all, or those before the first that failed.
///
/// # Errors
/// [`ObjectError`] of the first object; nothing was read then.
///
/// # Safety
/// The objects are live; `buffer` has room for `count * length` bytes.
pub unsafe fn gather(
    objects: *const *const u8,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *mut u8,
) -> Result<usize, ObjectError> {
    // SAFETY: the caller's promise.
    unsafe { Transfer { operation: Operation::Read, objects, count, offset, length, buffer }.run() }
}

/// Copies `length` bytes for each object, packed in `buffer`, to `offset` of the objects. Returns
/// how many objects were written: all, or those before the first that failed.
///
/// # Errors
/// [`ObjectError`] of the first object; nothing was written then.
///
/// # Safety
/// The objects are live; `buffer` holds `count * length` bytes.
pub unsafe fn scatter(
    objects: *const *mut u8,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *const u8,
) -> Result<usize, ObjectError> {
    let (objects, buffer) = (objects.cast::<*const u8>(), buffer.cast_mut());
    // SAFETY: the caller's promise; a write only reads the buffer.
    unsafe {
        Transfer { operation: Operation::Write, objects, count, offset, length, buffer }.run()
    }
}

/// Starts to bring the objects into RAM, of larger ones as many pages as may wait at a time
/// (1024); a worker does the rest. Returns how many were started: not those that are in
/// RAM already, nor those that find the queue full.
///
/// # Errors
/// `NotAnObject` if one of them lies outside of the heap; none is started then.
///
/// # Safety
/// The objects are live.
pub unsafe fn prefetch(objects: *const *const u8, count: usize) -> Result<usize, ObjectError> {
    open_fault_signal();
    // SAFETY: the caller's promise.
    let address = |index: usize| unsafe { *objects.add(index) } as usize;
    if count == 0 {
        return Ok(0);
    }
    if deepheap_maps::owns(address(0) as *const u8) {
        return prefetch_in_maps((0..count).map(address));
    }
    let runtime = running_at(address(0)).ok_or(ObjectError::NotAnObject)?;
    if (0..count).any(|index| !runtime.heap.contains(address(index))) {
        return Err(ObjectError::NotAnObject);
    }
    let Some(pager) = runtime.pager() else { return Ok(0) };
    const TOGETHER: usize = 256;
    let mut started = 0;
    for first in (0..count).step_by(TOGETHER) {
        // Read before the pager blocks signals: the program's list may lie in managed memory.
        let mut addresses = [0; TOGETHER];
        let mut some = 0;
        for object in (first..count.min(first + TOGETHER)).map(address) {
            let size = Place { runtime, address: object }.size();
            let pages = pages_of(object, size.unwrap_or(1).max(1));
            if pages.len() == 1 {
                addresses[some] = object;
                some += 1;
            } else {
                started += usize::from(pager.prefetch(pages.take(PAGES_AHEAD)) > 0);
            }
        }
        started += pager.prefetch(addresses[..some].iter().copied());
    }
    Ok(started)
}

/// Keeps the object in RAM, touchable without a fault, until `unpin`.
///
/// # Errors
/// `NotAnObject`; `Resources` if the pinned pages would be more than half of the page buffer, or if
/// memory cannot be managed at all. In a map the page of the address is pinned; there may be pins
/// of a quarter of its RAM.
pub fn pin(object: *const u8) -> Result<(), ObjectError> {
    open_fault_signal();
    if deepheap_maps::owns(object) {
        let pinned = deepheap_maps::pin(object as usize, 1, PinKind::Wish);
        return pinned.map_err(|_| ObjectError::Resources);
    }
    let (place, bytes) = live(object)?;
    // A pin in plain mode would be forgotten when it ends, and the unpin would end another's.
    let is_pinned =
        managed(place.runtime).is_some() && residency::pin_for_long(place.address, bytes);
    is_pinned.then_some(()).ok_or(ObjectError::Resources)
}

/// Ends one `pin`.
///
/// # Errors
/// `NotAnObject`.
pub fn unpin(object: *const u8) -> Result<(), ObjectError> {
    if deepheap_maps::owns(object) {
        deepheap_maps::unpin(object as usize, 1);
        return Ok(());
    }
    let (place, bytes) = live(object)?;
    residency::unpin_for_long(place.address, bytes);
    Ok(())
}

/// Tells how the object will be used. A hint: nothing depends on it but speed.
///
/// # Errors
/// `NotAnObject`.
pub fn advise(object: *const u8, advice: Advice) -> Result<(), ObjectError> {
    let (place, bytes) = live(object)?;
    let Some(pager) = place.runtime.pager() else { return Ok(()) };
    let pages = pages_of(place.address, bytes);
    match advice {
        Advice::Hot => {
            pager.prefetch(pages.clone());
            pages.for_each(|page| pager.advise(page, REUSE_MAX));
        }
        Advice::Sequential => {
            pager.prefetch(pages);
        }
        Advice::Cold => pages.for_each(|page| pager.advise(page, 0)),
        Advice::Once => pages.for_each(|page| pager.advise(page, ONCE)),
    }
    Ok(())
}

/// `prefetch` for addresses in maps.
fn prefetch_in_maps(addresses: impl Iterator<Item = usize> + Clone) -> Result<usize, ObjectError> {
    let pointer = |address: usize| address as *const u8;
    if addresses.clone().any(|address| !deepheap_maps::owns(pointer(address))) {
        return Err(ObjectError::NotAnObject);
    }
    let _inside = Inside::enter();
    Ok(addresses.filter(|&address| deepheap_maps::prefetch(pointer(address))).count())
}

/// Where a live object is, and how many bytes it has.
fn live(object: *const u8) -> Result<(Place, usize), ObjectError> {
    let place = Place::of(object).ok_or(ObjectError::NotAnObject)?;
    Ok((place, place.bytes().ok_or(ObjectError::NotAnObject)?))
}

/// Whether `address` is that of a live object, not of memory pages.
pub fn is_object(address: *const u8) -> bool {
    let runtime = running_at(address as usize);
    runtime.is_some_and(|runtime| runtime.heap.object_at(address as usize).is_some())
}
