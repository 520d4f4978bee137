//! Allocation: the `malloc(3)` family.
//!
//! Guarantees: a call that libc or the dynamic linker makes for itself (`caller`) is served from
//! plain memory, every other from the managed heap, where `placement` may make it an object.
//! `free`, `realloc` and `malloc_usable_size` look at the address. A null answer sets errno to
//! ENOMEM. `free` keeps errno.
//! Never: touches a block (`free` of an evicted block does not read it in).
//! Threads: any, from the first instruction of the process on: before our constructor has run
//! everything is plain.
//!
//! The entry points are naked functions: they add a pointer to their return address to the
//! arguments and jump, so the fast path is a plain tail call.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use crate::buffers::pins::PAGE;
use crate::caller::{is_for_libc, is_libc, is_special};
use crate::memory::{placement, plain};
use crate::seam;

/// Entry points that pass a pointer to their return address as one more argument.
macro_rules! entry {
    ($($name:ident($($argument:ident),*) -> $result:ty, $register:literal => $body:ident;)*) => {$(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: usize),*) -> $result {
            naked_asm!(
                concat!("mov ", $register, ", rsp"),
                "jmp {body}",
                body = sym $body
            )
        }
    )*};
}

entry! {
    malloc(_size) -> *mut c_void, "rsi" => malloc_from;
    calloc(_count, _size) -> *mut c_void, "rdx" => calloc_from;
    realloc(_pointer, _size) -> *mut c_void, "rdx" => realloc_from;
    reallocarray(_pointer, _count, _size) -> *mut c_void, "rcx" => reallocarray_from;
    aligned_alloc(_alignment, _size) -> *mut c_void, "rdx" => memalign_from;
    memalign(_alignment, _size) -> *mut c_void, "rdx" => memalign_from;
    valloc(_size) -> *mut c_void, "rsi" => valloc_from;
    pvalloc(_size) -> *mut c_void, "rsi" => pvalloc_from;
    posix_memalign(_out, _alignment, _size) -> c_int, "rcx" => posix_memalign_from;
}

/// Points to the return address of an entry point.
type Frame = *const usize;

/// The return address.
#[inline(always)]
fn caller_of(frame: Frame) -> usize {
    // SAFETY: our entry points pass the place of their return address, and have not returned.
    unsafe { frame.read() }
}

#[inline(always)]
fn answered(pointer: *mut u8) -> *mut c_void {
    if pointer.is_null() {
        out_of_memory();
    }
    pointer.cast()
}

#[cold]
fn out_of_memory() {
    seam::set_errno(libc::ENOMEM);
}

fn refused(code: c_int) -> *mut c_void {
    seam::set_errno(code);
    null_mut()
}

unsafe extern "C" fn malloc_from(size: usize, frame: Frame) -> *mut c_void {
    if is_special(caller_of(frame)) {
        return special_malloc(size, frame);
    }
    answered(deepheap::malloc(size))
}

#[cold]
fn special_malloc(size: usize, frame: Frame) -> *mut c_void {
    if is_for_libc(caller_of(frame)) {
        // SAFETY: glibc's malloc takes any size.
        return unsafe { plain::malloc(size) };
    }
    answered(placement::malloc(size))
}

unsafe extern "C" fn calloc_from(count: usize, size: usize, frame: Frame) -> *mut c_void {
    if is_special(caller_of(frame)) {
        return special_calloc(count, size, frame);
    }
    answered(deepheap::calloc(count, size))
}

#[cold]
fn special_calloc(count: usize, size: usize, frame: Frame) -> *mut c_void {
    if is_for_libc(caller_of(frame)) {
        // SAFETY: glibc's calloc takes any sizes.
        return unsafe { plain::calloc(count, size) };
    }
    answered(placement::calloc(count, size))
}

unsafe extern "C" fn realloc_from(pointer: *mut c_void, size: usize, frame: Frame) -> *mut c_void {
    if pointer.is_null() {
        // SAFETY: as `malloc`.
        return unsafe { malloc_from(size, frame) };
    }
    if !deepheap::owns(pointer as usize) {
        // SAFETY: not ours, so a block of glibc's heap; it stays one for every caller.
        return unsafe { plain::realloc(pointer, size) };
    }
    if size == 0 {
        // SAFETY: the program gives up a live block of ours; glibc frees it too and answers null.
        unsafe { deepheap::free(pointer.cast()) };
        return null_mut();
    }
    if placement::is_on() && !is_libc(caller_of(frame)) {
        // SAFETY: the program passes a live block of ours.
        return answered(unsafe { placement::realloc(pointer.cast(), size) });
    }
    // SAFETY: the program passes a live block of ours.
    answered(unsafe { deepheap::realloc(pointer.cast(), size) })
}

unsafe extern "C" fn reallocarray_from(
    pointer: *mut c_void,
    count: usize,
    size: usize,
    frame: Frame,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as `realloc`.
        Some(bytes) => unsafe { realloc_from(pointer, bytes, frame) },
        None => refused(libc::ENOMEM),
    }
}

/// Memory at a multiple of `alignment`, a power of two.
fn aligned(alignment: usize, size: usize, frame: Frame) -> *mut c_void {
    if !is_special(caller_of(frame)) {
        return answered(deepheap::aligned_alloc(alignment, size));
    }
    if is_libc(caller_of(frame)) {
        // SAFETY: glibc's memalign takes any power of two and any size.
        return unsafe { plain::memalign(alignment, size) };
    }
    answered(placement::aligned(alignment, size))
}

/// glibc's `memalign` rounds an odd alignment up instead of refusing it; up to 2.37 its
/// `aligned_alloc` is the same function.
unsafe extern "C" fn memalign_from(alignment: usize, size: usize, frame: Frame) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        Some(alignment) => aligned(alignment, size, frame),
        None => refused(libc::EINVAL),
    }
}

unsafe extern "C" fn valloc_from(size: usize, frame: Frame) -> *mut c_void {
    aligned(PAGE, size, frame)
}

unsafe extern "C" fn pvalloc_from(size: usize, frame: Frame) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(PAGE) {
        Some(size) => aligned(PAGE, size, frame),
        None => refused(libc::ENOMEM),
    }
}

unsafe extern "C" fn posix_memalign_from(
    out: *mut *mut c_void,
    alignment: usize,
    size: usize,
    frame: Frame,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let pointer = seam::keep_errno(|| aligned(alignment, size, frame));
    if pointer.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the program passes a place for the answer.
    unsafe { *out = pointer };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    if deepheap::owns(pointer as usize) {
        // SAFETY: the program gives up a live block of ours.
        unsafe { deepheap::free(pointer.cast()) };
    } else {
        // SAFETY: null, or a block of glibc's heap.
        unsafe { plain::free(pointer) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(pointer: *mut c_void) {
    // SAFETY: `free` under its old name.
    unsafe { free(pointer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> usize {
    if deepheap::owns(pointer as usize) {
        return deepheap::usable_size(pointer.cast()).unwrap_or(0);
    }
    // SAFETY: null, or a block of glibc's heap.
    unsafe { plain::usable_size(pointer) }
}
