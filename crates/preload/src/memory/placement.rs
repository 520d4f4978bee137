//! Placement: which of the program's allocations become objects, as `objects` in the settings says.
//!
//! Guarantees: without that setting nothing of this runs: `caller::is_special` sends a call here,
//! and then only libc's own calls are special. An allocation that cannot be an object is an
//! ordinary one. Objects have malloc's alignment.
//! Never: decides for a call of libc or of the dynamic linker.
//! Threads: `learn` once, from the constructor; the rest from any.

use core::sync::atomic::{AtomicUsize, Ordering};

use deepheap::objects;

use crate::buffers::pins::PAGE;
use crate::{caller, seam};

/// The alignment of malloc(3); objects that share a page are aligned by their size.
const ALIGN: usize = 16;
/// From this size on objects stand at the start of a page.
const ALONE_MIN: usize = 128;

/// Sizes that become objects: `min..min + len`.
static MIN: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

/// Learns from the settings, and has the program's calls brought here if they want it.
pub fn learn() {
    let Some(sizes) = seam::objects() else { return };
    MIN.store(*sizes.start(), Ordering::Relaxed);
    LEN.store(sizes.end().saturating_sub(*sizes.start()) + 1, Ordering::Relaxed);
    caller::all_are_special();
}

/// Whether allocations are placed at all.
#[inline(always)]
pub fn is_on() -> bool {
    LEN.load(Ordering::Relaxed) != 0
}

/// An object of this size; null if it is not to be one, or cannot.
fn object(size: usize) -> *mut u8 {
    if size.wrapping_sub(MIN.load(Ordering::Relaxed)) < LEN.load(Ordering::Relaxed) {
        return objects::allocate(1, size.next_multiple_of(ALIGN));
    }
    core::ptr::null_mut()
}

/// `malloc` of the program while allocations are placed.
pub fn malloc(size: usize) -> *mut u8 {
    let object = object(size);
    if object.is_null() { deepheap::malloc(size) } else { object }
}

/// `calloc` of the program while allocations are placed.
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else { return core::ptr::null_mut() };
    let object = object(bytes);
    if object.is_null() {
        return deepheap::calloc(count, size);
    }
    // SAFETY: a fresh object of that many bytes; the pool may have had it before.
    unsafe { object.write_bytes(0, bytes) };
    object
}

/// Memory at a multiple of a power of two while allocations are placed.
pub fn aligned(alignment: usize, size: usize) -> *mut u8 {
    let is_aligned = alignment <= ALIGN || (alignment <= PAGE && size >= ALONE_MIN);
    let object = if is_aligned { object(size) } else { core::ptr::null_mut() };
    if object.is_null() { deepheap::aligned_alloc(alignment, size) } else { object }
}

/// `realloc` of the program while allocations are placed.
///
/// # Safety
/// `old` is a live block of the heap; if another is answered, it is dead.
pub unsafe fn realloc(old: *mut u8, size: usize) -> *mut u8 {
    let usable = deepheap::usable_size(old).unwrap_or(0);
    // It stays where it is unless it does not fit, or half of it would lie idle.
    let stays = size <= usable && size > usable / 2;
    let mut moved = if stays { core::ptr::null_mut() } else { object(size) };
    if moved.is_null() {
        if size <= usable || !objects::is_object(old) {
            // SAFETY: the caller's promise.
            return unsafe { deepheap::realloc(old, size) };
        }
        // It has outgrown the sizes that are placed; memory pages can grow where they are.
        moved = deepheap::malloc(size);
        if moved.is_null() {
            return moved;
        }
    }
    // SAFETY: both are live, at least that long, and do not overlap; the program gives up the old
    // one.
    unsafe {
        core::ptr::copy_nonoverlapping(old, moved, usable.min(size));
        deepheap::free(old);
    }
    moved
}
