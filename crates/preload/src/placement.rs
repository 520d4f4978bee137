//! Placement: which of the program's allocations become objects, as `objects` in the settings says.
//!
//! Guarantees: without that setting nothing of this runs: `caller::is_special` sends a call here,
//! and then only libc's own calls are special. What cannot be an object is an ordinary allocation.
//! Objects have malloc's alignment.
//! Never: decides for a call of libc or of the dynamic linker.
//!
//! Threads: `learn` once, from the constructor; the rest from any.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deepheap::ObjectPlacement;
use deepheap::object_placement::{Placement, SITES_OF_PROCESS};
use deepheap::objects;

use crate::{caller, seam};

/// What malloc(3) aligns to; objects that share a page are aligned by their size.
const ALIGN: usize = 16;
/// From this size on objects stand at the start of a page.
const ALONE_MIN: usize = 128;
const PAGE: usize = 4096;

/// Sizes that become objects: `min..min + len`.
static MIN: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
/// Whether the sites of the program decide.
static AUTO: AtomicBool = AtomicBool::new(false);

/// Learns from the settings, and has the program's calls brought here if they want it.
pub fn learn() {
    match seam::objects() {
        None => return,
        Some(ObjectPlacement::Range { min, max }) => {
            MIN.store(min, Ordering::Relaxed);
            LEN.store(max.saturating_sub(min) + 1, Ordering::Relaxed);
        }
        Some(ObjectPlacement::Auto) => AUTO.store(true, Ordering::Relaxed),
    }
    caller::all_are_special();
}

/// Whether allocations are placed at all.
#[inline(always)]
pub fn is_on() -> bool {
    LEN.load(Ordering::Relaxed) != 0 || is_auto()
}

#[inline(always)]
fn is_auto() -> bool {
    AUTO.load(Ordering::Relaxed)
}

/// An object of this size for this caller; null if it is not to be one, or cannot.
fn object(size: usize, caller: usize) -> *mut u8 {
    if size.wrapping_sub(MIN.load(Ordering::Relaxed)) < LEN.load(Ordering::Relaxed) {
        return allocate(size);
    }
    if is_auto()
        && let Placement::Object(making) = SITES_OF_PROCESS.place(caller, size)
    {
        let object = allocate(size);
        if !object.is_null() {
            SITES_OF_PROCESS.object_made(making, object as usize);
        }
        return object;
    }
    core::ptr::null_mut()
}

fn allocate(size: usize) -> *mut u8 {
    objects::allocate(1, size.next_multiple_of(ALIGN))
}

/// `malloc` of the program while allocations are placed.
pub fn malloc(size: usize, caller: usize) -> *mut u8 {
    let object = object(size, caller);
    if !object.is_null() {
        return object;
    }
    ordinary(deepheap::malloc(size), size, caller)
}

/// `calloc` of the program while allocations are placed.
pub fn calloc(count: usize, size: usize, caller: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else { return core::ptr::null_mut() };
    let object = object(bytes, caller);
    if !object.is_null() {
        // SAFETY: a fresh object of that many bytes; the pool may have had it before.
        unsafe { object.write_bytes(0, bytes) };
        return object;
    }
    ordinary(deepheap::calloc(count, size), bytes, caller)
}

/// Memory at a multiple of a power of two while allocations are placed.
pub fn aligned(alignment: usize, size: usize, caller: usize) -> *mut u8 {
    let is_aligned = alignment <= ALIGN || (alignment <= PAGE && size >= ALONE_MIN);
    if is_aligned {
        let object = object(size, caller);
        if !object.is_null() {
            return object;
        }
    }
    ordinary(deepheap::aligned_alloc(alignment, size), size, caller)
}

/// `realloc` of the program while allocations are placed.
///
/// # Safety
/// `old` is a live block of the heap; if another is answered, it is dead.
pub unsafe fn realloc(old: *mut u8, size: usize, caller: usize) -> *mut u8 {
    let usable = deepheap::usable_size(old).unwrap_or(0);
    // It stays where it is unless it does not fit, or half of it would lie idle.
    let stays = size <= usable && size > usable / 2;
    if !stays {
        let moved = object(size, caller);
        if !moved.is_null() {
            // SAFETY: both are live, at least that long, and do not overlap; the program gives up
            // the old one.
            unsafe {
                core::ptr::copy_nonoverlapping(old, moved, usable.min(size));
                free(old);
            }
            return moved;
        }
    }
    forget(old);
    if size > usable && deepheap::objects::is_object(old) {
        // It has outgrown the sizes that are placed; memory pages can grow where they are.
        let moved = deepheap::malloc(size);
        if moved.is_null() {
            ordinary(old, usable, caller);
            return moved;
        }
        // SAFETY: both are live, at least that long, and do not overlap; the program gives up the
        // old one.
        unsafe {
            core::ptr::copy_nonoverlapping(old, moved, usable);
            deepheap::free(old);
        }
        return ordinary(moved, size, caller);
    }
    // SAFETY: the caller's promise.
    let moved = unsafe { deepheap::realloc(old, size) };
    ordinary(if moved.is_null() { old } else { moved }, size, caller);
    moved
}

/// `free` of the program.
///
/// # Safety
/// A live block of the heap, dead afterwards.
#[inline(always)]
pub unsafe fn free(block: *mut u8) {
    forget(block);
    // SAFETY: the caller's promise.
    unsafe { deepheap::free(block) };
}

/// Counts an ordinary allocation.
fn ordinary(block: *mut u8, size: usize, caller: usize) -> *mut u8 {
    if is_auto() && !block.is_null() {
        let is_managing = deepheap::is_managing();
        SITES_OF_PROCESS.allocated(block as usize, caller, size, is_managing);
    }
    block
}

/// Counts the end of a block; before it is one, lest somebody else has the address already.
#[inline(always)]
fn forget(block: *mut u8) {
    if is_auto() {
        SITES_OF_PROCESS.freed(block as usize);
    }
}
