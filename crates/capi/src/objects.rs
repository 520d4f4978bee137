//! Objects: the `dh_` functions of objects and of access without page faults.
//!
//! Guarantees: a bad argument is answered with a `DH_E...`, never with a crash; a count of 0 is
//! nothing to do and answers 0.
//! Never: looks into the memory it hands out.
//! Threads: any thread.

use core::ffi::{c_int, c_void};

use deepheap::objects::{self, Advice, ObjectError};

use crate::allocation::or_enomem;
use crate::error::{DH_EBOUNDS, DH_EINVAL, DH_EMEMORY, DH_ENOROOM, DH_EOBJECT, DH_EREAD};

/// Soon and often: keep it in RAM if there is a choice.
pub const DH_HOT: c_int = 0;
/// Not soon: let it go first.
pub const DH_COLD: c_int = 1;
/// In the order of addresses.
pub const DH_SEQUENTIAL: c_int = 2;
/// Once: let it go after the next use.
pub const DH_ONCE: c_int = 3;

/// No object is larger, in bytes; as for malloc(3).
const SIZE_MAX: usize = isize::MAX as usize;

/// The code that stands for a refusal of the runtime.
fn code_of(error: ObjectError) -> c_int {
    match error {
        ObjectError::NotAnObject => DH_EOBJECT,
        ObjectError::OutOfBounds => DH_EBOUNDS,
        ObjectError::Unreadable => DH_EREAD,
        ObjectError::NoRoom => DH_ENOROOM,
        ObjectError::Resources => DH_EMEMORY,
    }
}

fn zero_or_code(result: Result<(), ObjectError>) -> c_int {
    result.map_or_else(code_of, |()| 0)
}

fn count_or_code(result: Result<usize, ObjectError>) -> isize {
    // A count is one of pointers in memory, so it fits.
    result.map_or_else(|error| code_of(error) as isize, |count| count as isize)
}

/// Allocates `count` objects of `object_size` bytes, `dh_ostride` bytes apart.
#[unsafe(no_mangle)]
pub extern "C" fn dh_oalloc(count: usize, object_size: usize) -> *mut c_void {
    or_enomem(objects::allocate(count, object_size))
}

/// Bytes from one element of an array of `dh_oalloc` to the next; 0 for an impossible size.
#[unsafe(no_mangle)]
pub extern "C" fn dh_ostride(object_size: usize) -> usize {
    if object_size > SIZE_MAX { 0 } else { objects::stride(object_size) }
}

/// The error in a part of an object, without a look at the object.
fn part_is_wrong(offset: usize, buffer: *const c_void, length: usize) -> Option<c_int> {
    if buffer.is_null() && length > 0 {
        return Some(DH_EINVAL);
    }
    offset.checked_add(length).is_none().then_some(DH_EBOUNDS)
}

/// Copies `length` bytes at `offset` of an object to `buffer`, without a page fault.
///
/// # Safety
/// `buffer` has `length` bytes to write; the object is not freed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_read(
    object: *const c_void,
    offset: usize,
    buffer: *mut c_void,
    length: usize,
) -> c_int {
    match part_is_wrong(offset, buffer, length) {
        Some(code) => code,
        None => {
            // SAFETY: the caller's promise; what is no live object is refused.
            zero_or_code(unsafe { objects::read(object.cast(), offset, buffer.cast(), length) })
        }
    }
}

/// Copies `length` bytes of `buffer` into an object at `offset`, without a page fault.
///
/// # Safety
/// `buffer` has `length` bytes to read; the object is not freed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_write(
    object: *mut c_void,
    offset: usize,
    buffer: *const c_void,
    length: usize,
) -> c_int {
    match part_is_wrong(offset, buffer, length) {
        Some(code) => code,
        None => {
            // SAFETY: the caller's promise; what is no live object is refused.
            zero_or_code(unsafe { objects::write(object.cast(), offset, buffer.cast(), length) })
        }
    }
}

/// What to answer without looking at the objects: nothing to do, or what is wrong with a part of
/// each.
fn parts_answer(
    objects: *const *mut c_void,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *const c_void,
) -> Option<isize> {
    if count == 0 {
        return Some(0);
    }
    let is_possible =
        !objects.is_null() && count.checked_mul(length).is_some_and(|bytes| bytes <= SIZE_MAX);
    let code = if is_possible { part_is_wrong(offset, buffer, length) } else { Some(DH_EINVAL) };
    code.map(|code| code as isize)
}

/// Copies `length` bytes at `offset` of each object to `buffer`, one behind the other.
///
/// # Safety
/// `objects` has `count` pointers, `buffer` room for `count * length` bytes; no object is freed
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_gather(
    objects: *const *mut c_void,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *mut c_void,
) -> isize {
    parts_answer(objects, count, offset, length, buffer).unwrap_or_else(|| {
        // SAFETY: the caller's promise; what is no live object is refused.
        count_or_code(unsafe {
            objects::gather(objects.cast(), count, offset, length, buffer.cast())
        })
    })
}

/// Copies `length` bytes for each object, one behind the other in `buffer`, into it at `offset`.
///
/// # Safety
/// `objects` has `count` pointers, `buffer` `count * length` bytes; no object is freed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_scatter(
    objects: *const *mut c_void,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *const c_void,
) -> isize {
    parts_answer(objects, count, offset, length, buffer).unwrap_or_else(|| {
        // SAFETY: the caller's promise; what is no live object is refused.
        count_or_code(unsafe {
            objects::scatter(objects.cast(), count, offset, length, buffer.cast())
        })
    })
}

/// Starts to bring objects into RAM; returns how many were started.
///
/// # Safety
/// `objects` has `count` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_prefetch(objects: *const *mut c_void, count: usize) -> isize {
    if objects.is_null() && count > 0 {
        return DH_EINVAL as isize;
    }
    // SAFETY: the caller's promise; what is no live object is refused.
    count_or_code(unsafe { objects::prefetch(objects.cast(), count) })
}

/// Keeps an object in RAM, touchable without a fault, until `dh_unpin`.
#[unsafe(no_mangle)]
pub extern "C" fn dh_pin(object: *const c_void) -> c_int {
    zero_or_code(objects::pin(object.cast()))
}

/// Ends one `dh_pin`.
#[unsafe(no_mangle)]
pub extern "C" fn dh_unpin(object: *const c_void) -> c_int {
    zero_or_code(objects::unpin(object.cast()))
}

/// Tells how an object will be used: `DH_HOT`, `DH_COLD`, `DH_SEQUENTIAL` or `DH_ONCE`.
#[unsafe(no_mangle)]
pub extern "C" fn dh_advise(object: *const c_void, advice: c_int) -> c_int {
    let advice = match advice {
        DH_HOT => Advice::Hot,
        DH_COLD => Advice::Cold,
        DH_SEQUENTIAL => Advice::Sequential,
        DH_ONCE => Advice::Once,
        _ => return DH_EINVAL,
    };
    zero_or_code(objects::advise(object.cast(), advice))
}

#[cfg(test)]
mod tests {
    use core::ptr::{null, null_mut};

    use super::*;

    #[test]
    fn null_and_impossible_arguments_are_answered_before_the_runtime_sees_them() {
        let mut byte = 0u8;
        let place = (&raw mut byte).cast::<c_void>();
        let list = [place];
        // SAFETY: the buffers are as long as what could be copied, which is nothing.
        unsafe {
            assert_eq!(dh_read(null(), 0, place, 1), DH_EOBJECT);
            assert_eq!(dh_read(place, 0, null_mut(), 1), DH_EINVAL);
            assert_eq!(dh_read(place, usize::MAX, place, 2), DH_EBOUNDS);
            assert_eq!(dh_write(null_mut(), 0, place, 1), DH_EOBJECT);
            assert_eq!(dh_write(place, 0, null(), 1), DH_EINVAL);
            assert_eq!(dh_write(place, 2, place, usize::MAX), DH_EBOUNDS);
            assert_eq!(dh_gather(null(), 0, 0, 1, null_mut()), 0);
            assert_eq!(dh_gather(null(), 1, 0, 1, place), DH_EINVAL as isize);
            assert_eq!(dh_gather(list.as_ptr(), 1, 0, 1, null_mut()), DH_EINVAL as isize);
            assert_eq!(dh_gather(list.as_ptr(), 2, 0, usize::MAX, place), DH_EINVAL as isize);
            assert_eq!(dh_gather(list.as_ptr(), 1, usize::MAX, 1, place), DH_EBOUNDS as isize);
            assert_eq!(dh_scatter(null(), 0, 0, 1, null()), 0);
            assert_eq!(dh_scatter(null(), 1, 0, 1, place), DH_EINVAL as isize);
            assert_eq!(dh_scatter(list.as_ptr(), 2, 0, usize::MAX, place), DH_EINVAL as isize);
            assert_eq!(dh_prefetch(null(), 0), 0);
            assert_eq!(dh_prefetch(null(), 1), DH_EINVAL as isize);
        }
        assert_eq!(dh_pin(null()), DH_EOBJECT);
        assert_eq!(dh_unpin(null()), DH_EOBJECT);
        assert_eq!(dh_advise(null(), DH_ONCE), DH_EOBJECT);
        assert_eq!(dh_advise(place, 4), DH_EINVAL);
        assert_eq!(dh_advise(place, -1), DH_EINVAL);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for (count, size) in [(usize::MAX, 1), (2, SIZE_MAX), (1, usize::MAX), (1 << 52, 4096)] {
            assert!(dh_oalloc(count, size).is_null(), "{count} objects of {size}");
        }
        assert_eq!(dh_ostride(usize::MAX), 0);
    }
}
