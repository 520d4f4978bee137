//! Formatted output: the `printf` and `dprintf` families, which write a long `%s` straight from the
//! program's memory.
//!
//! Guarantees: while any span is managed, the text is formatted first, in user mode, and then
//! written by `fwrite`, or by `write` to a descriptor. Otherwise libc does it all; if management
//! begins meanwhile the output may be cut short, with the stream's error set. Each call prints
//! under the stream's lock.
//! Never: allocates managed memory. A text that does not fit the stack is formatted into plain
//! memory.
//! Threads: any.

use core::ffi::{c_char, c_int, c_void};

use libc::{FILE, size_t, ssize_t};

use crate::calls::calls;
use crate::calls::variadic::{VaList, into, into_checked, variadic};
use crate::memory::plain;
use crate::real::real;

/// Texts up to this length are formatted on the stack.
const SHORT_BYTES: usize = 2048;

unsafe extern "C" {
    static stdout: *mut FILE;
}

calls! {
    fn vfprintf(stream: *mut FILE, format: *const c_char, list: *mut VaList) -> c_int
        = by(|real| match deepheap::internal::is_managing() {
            false => real(stream, format, list),
            true => written(&to_stream(stream), list, &into(format)),
        });
    fn __vfprintf_chk(stream: *mut FILE, flag: c_int, format: *const c_char, list: *mut VaList)
        -> c_int = by(|real| match deepheap::internal::is_managing() {
            false => real(stream, flag, format, list),
            true => written(&to_stream(stream), list, &into_checked(flag, format)),
        });
    fn vprintf(format: *const c_char, list: *mut VaList) -> c_int
        = same(vfprintf(stdout, format, list));
    fn __vprintf_chk(flag: c_int, format: *const c_char, list: *mut VaList) -> c_int
        = same(__vfprintf_chk(stdout, flag, format, list));
    fn vdprintf(descriptor: c_int, format: *const c_char, list: *mut VaList) -> c_int
        = by(|real| match deepheap::internal::is_managing() {
            false => real(descriptor, format, list),
            true => written(&to_descriptor(descriptor), list, &into(format)),
        });
    fn __vdprintf_chk(descriptor: c_int, flag: c_int, format: *const c_char, list: *mut VaList)
        -> c_int = by(|real| match deepheap::internal::is_managing() {
            false => real(descriptor, flag, format, list),
            true => written(&to_descriptor(descriptor), list, &into_checked(flag, format)),
        });
}

variadic! {
    printf: 1, "rsi" => vprintf -> c_int;
    __printf_chk: 2, "rdx" => __vprintf_chk -> c_int;
    fprintf: 2, "rdx" => vfprintf -> c_int;
    __fprintf_chk: 3, "rcx" => __vfprintf_chk -> c_int;
    dprintf: 2, "rdx" => vdprintf -> c_int;
    __dprintf_chk: 3, "rcx" => __vdprintf_chk -> c_int;
}

/// Writes plain memory to a stream; how much.
fn to_stream(stream: *mut FILE) -> impl Fn(*const u8, usize) -> usize {
    let write = real!(fwrite: fn(*const u8, size_t, size_t, *mut FILE) -> size_t);
    // SAFETY: the program passes an open stream, `written` a text of that length.
    move |text, bytes| unsafe { write(text, 1, bytes, stream) }
}

/// Writes plain memory to a descriptor; how much.
fn to_descriptor(descriptor: c_int) -> impl Fn(*const u8, usize) -> usize {
    let write = real!(write: fn(c_int, *const c_void, size_t) -> ssize_t);
    move |text, bytes| {
        let mut done = 0;
        while done < bytes {
            // SAFETY: what is left of the text that `written` passes.
            let moved = unsafe { write(descriptor, text.add(done).cast(), bytes - done) };
            if moved <= 0 {
                break;
            }
            done += moved as usize;
        }
        done
    }
}

/// Formats with `into` and has the text written by `write`, which says how much it wrote.
pub fn written(
    write: &dyn Fn(*const u8, usize) -> usize,
    list: *mut VaList,
    into: &dyn Fn(*mut c_char, size_t, *mut VaList) -> c_int,
) -> c_int {
    let mut short = [0u8; SHORT_BYTES];
    // SAFETY: the entry point or the program passes a list; a copy leaves the original for later.
    let mut copy = unsafe { *list };
    let length = into(short.as_mut_ptr().cast(), SHORT_BYTES, &raw mut copy);
    let Ok(bytes) = usize::try_from(length) else {
        return length;
    };
    if bytes < SHORT_BYTES {
        return if write(short.as_ptr(), bytes) == bytes { length } else { -1 };
    }
    // SAFETY: plain memory of one byte more than the text, freed below.
    unsafe {
        let text = plain::malloc(bytes + 1);
        if text.is_null() {
            return -1;
        }
        let again = into(text.cast(), bytes + 1, list);
        let done = write(text.cast(), bytes);
        plain::free(text);
        if again == length && done == bytes { length } else { -1 }
    }
}
