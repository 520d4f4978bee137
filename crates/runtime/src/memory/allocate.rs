//! Allocate: `malloc`'s family over the heap and, once there is one, the pager.
//!
//! Guarantees: as malloc(3), alignment 16 at least; NULL means ENOMEM (the caller sets errno).
//! Never: touches an object that is freed.
//! Threads: any. The fast path is the thread's cache and takes no lock. A thread whose allocations
//! are sampled has no fast path.

use core::mem::ManuallyDrop;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_heap::{FreedRun, PAGE, ThreadCache};
use deepheap_sys::process::log::Piece;
use deepheap_sys::say;

use crate::durable::allocate as durable;
use crate::memory::thread_cache::{some_cache, this_threads_cache};
use crate::memory::{ALIGN, SIZE_MAX};
use crate::process::start::start_from_environment;
use crate::runtime::{Runtime, durable_at, running, running_at};
use crate::stats::allocations;
use crate::stats::observe::publish_plain;

/// From so many bytes on, old ones are dropped rather than overwritten.
const DROPPED_BYTES: usize = 4 << 20;
/// Memory that is given up is written with zeros if it is less than this.
const GIVEN_UP_BYTES: usize = 8 * PAGE;

/// Allocates `size` bytes; null means ENOMEM.
#[inline]
pub fn malloc(size: usize) -> *mut u8 {
    // SAFETY: the area and the cache in it belong to this thread.
    if let Some(mut cache) = unsafe { this_threads_cache() }
        && let Some(address) = cache.allocate(size)
    {
        return address as *mut u8;
    }
    allocate(size, ALIGN).0
}

/// As `malloc`, of one heap.
pub(crate) fn malloc_in(runtime: &'static Runtime, size: usize) -> *mut u8 {
    match runtime.durable {
        Some(_) => durable::allocate(runtime, size, ALIGN),
        None => malloc(size),
    }
}

/// Allocates `count` times `size` bytes of zeros; null means ENOMEM.
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else { return ptr::null_mut() };
    let (address, zeroed) = allocate(bytes, ALIGN);
    let are_zero = || bytes >= DROPPED_BYTES && drop_old_bytes(address as usize, bytes);
    if !address.is_null() && !zeroed && !are_zero() {
        // SAFETY: a fresh allocation of that many bytes.
        unsafe { address.write_bytes(0, bytes) };
    }
    address
}

/// The program gives up the content of this part of its memory: it reads as zeros from now on, as
/// after `MADV_DONTNEED`, and evicted pages are not read in for that.
///
/// # Safety
/// The bytes lie in live allocations of this heap and may be written.
pub unsafe fn give_up(address: *mut u8, bytes: usize) {
    let (start, end) = (address as usize, address as usize + bytes);
    let (first, last) = (start.next_multiple_of(PAGE), end - end % PAGE);
    let zero = |from: usize, to: usize| {
        // SAFETY: the caller's promise: a part of the bytes.
        unsafe { (from as *mut u8).write_bytes(0, to - from) };
    };
    if first + GIVEN_UP_BYTES <= last && drop_old_bytes(first, last - first) {
        zero(start, first);
        zero(last, end);
    } else {
        zero(start, end);
    }
}

/// Has many bytes, from the beginning of a page, read as zeros without touching them all; false if
/// they have to be written.
fn drop_old_bytes(address: usize, bytes: usize) -> bool {
    let Some(runtime) = running_at(address) else { return false };
    let first = runtime.page_of(address);
    runtime.drop_old_bytes(FreedRun { first, pages: bytes.div_ceil(PAGE) })
}

/// Allocates `size` bytes at a multiple of `align`, a power of two; null means ENOMEM.
pub fn aligned_alloc(align: usize, size: usize) -> *mut u8 {
    allocate(size, align.max(ALIGN)).0
}

/// Frees an allocation; null is nothing. Never reads or writes it.
///
/// # Safety
/// `address` is null or a live allocation of this heap, dead afterwards.
#[inline]
pub unsafe fn free(address: *mut u8) {
    if address.is_null() {
        return;
    }
    let Some(runtime) = running() else { return };
    // SAFETY: the area and the cache in it belong to this thread.
    let cache = unsafe { this_threads_cache().or_else(|| cache_to_free(runtime, address)) };
    let Some(mut cache) = cache else { return }; // no memory for a cache: the object leaks
    let freed = runtime.heap.free(&mut cache, address as usize);
    if !runtime.end_freed(freed) {
        match durable_at(address as usize) {
            Some(owner) if durable::free(owner, address) => {}
            _ => invalid("free", address),
        }
    }
}

/// The cache of a thread that has none yet, or whose allocations are sampled.
///
/// # Safety
/// No other handle of it is in use in this thread.
#[cold]
unsafe fn cache_to_free(
    runtime: &'static Runtime,
    address: *mut u8,
) -> Option<ManuallyDrop<ThreadCache>> {
    // Before another thread can get the address.
    allocations::forget(address as usize);
    // SAFETY: the caller's promise.
    unsafe { some_cache(runtime) }
}

/// Bytes the allocation at `address` can hold; None if this heap has nothing there. Programs ask at
/// every allocation and free, so a freed address may be answered with the size it had.
#[inline]
pub fn usable_size(address: *const u8) -> Option<usize> {
    running_at(address as usize)?.heap.usable_size(address as usize)
}

/// Whether an address lies in the heap's region (not: whether it is allocated).
#[inline]
pub fn owns(address: usize) -> bool {
    running_at(address).is_some_and(|runtime| runtime.heap.contains(address))
}

/// The slow path: through the heap's shared parts, growing it where it falls short. Answers the
/// address and whether the memory reads as zeros.
#[cold]
fn allocate(size: usize, align: usize) -> (*mut u8, bool) {
    const NONE: (*mut u8, bool) = (ptr::null_mut(), false);
    if size > SIZE_MAX || align > SIZE_MAX {
        return NONE;
    }
    let Some(runtime) = running().or_else(start_from_environment) else { return NONE };
    // SAFETY: the area and the cache in it belong to this thread.
    let cache = unsafe { some_cache(runtime) };
    let Some(mut cache) = cache else { return NONE };
    let allocated = runtime.relieved(|| runtime.heap.allocate(&mut cache, size, align));
    allocated.map_or(NONE, |allocated| {
        publish_plain(runtime);
        allocations::note(allocated.ptr, size);
        (allocated.ptr as *mut u8, allocated.zeroed)
    })
}

/// The program gave us an address that is not a live allocation: going on would corrupt its heap.
#[cold]
pub(crate) fn invalid(call: &str, address: *const u8) -> ! {
    static SAID: AtomicU32 = AtomicU32::new(0);
    if SAID.swap(1, Ordering::Relaxed) == 0 {
        say!(
            call,
            "(",
            Piece::Hex(address as u64),
            "): not a live allocation (freed twice, or never allocated); aborting"
        );
    }
    std::process::abort()
}
