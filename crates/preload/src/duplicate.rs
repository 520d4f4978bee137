//! Duplicate: the libc functions whose result the program owns as its own data: `strdup`,
//! `getline`, `asprintf` and their kin. libc would allocate them from plain memory.
//!
//! Guarantees: results are managed, once our constructor has run; everything else is libc's
//! behaviour. Only code of ours and of libc in user mode touches them, so faults are resolved as
//! everywhere.
//! Never: changes what libc itself allocates (its calls to these functions do not come here).
//!
//! Threads: any.

use core::ffi::{c_char, c_int};
use core::ptr::copy_nonoverlapping;

use libc::{FILE, size_t, ssize_t, wchar_t};

use crate::caller::is_all_plain;
use crate::real::real;
use crate::variadic::{VaList, variadic};
use crate::{plain, seam};

/// Formatted results up to this length are formatted once.
const SHORT_BYTES: usize = 512;
/// What glibc's `getdelim` starts with.
const LINE_BYTES: usize = 120;

/// Memory for a result.
fn result(bytes: usize) -> *mut u8 {
    if is_all_plain() {
        // SAFETY: glibc's malloc takes any size.
        return unsafe { plain::malloc(bytes).cast() };
    }
    let pointer = deepheap::malloc(bytes);
    if pointer.is_null() {
        seam::set_errno(libc::ENOMEM);
    }
    pointer
}

/// A copy of `bytes` bytes with `zeros` zero bytes behind it.
unsafe fn copy_of(source: *const u8, bytes: usize, zeros: usize) -> *mut u8 {
    let copy = result(bytes + zeros);
    if !copy.is_null() {
        // SAFETY: the caller's source has `bytes` bytes, the copy has room for both parts.
        unsafe {
            copy_nonoverlapping(source, copy, bytes);
            copy.add(bytes).write_bytes(0, zeros);
        }
    }
    copy
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn strdup(string: *const c_char) -> *mut c_char {
    // SAFETY: the program passes a C string.
    unsafe { copy_of(string.cast(), libc::strlen(string), 1).cast() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __strdup(string: *const c_char) -> *mut c_char {
    // SAFETY: `strdup` under its old name.
    unsafe { strdup(string) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn strndup(string: *const c_char, most: size_t) -> *mut c_char {
    // SAFETY: the program passes a string of `most` bytes or with a NUL before.
    unsafe { copy_of(string.cast(), libc::strnlen(string, most), 1).cast() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __strndup(string: *const c_char, most: size_t) -> *mut c_char {
    // SAFETY: `strndup` under its old name.
    unsafe { strndup(string, most) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn wcsdup(string: *const wchar_t) -> *mut wchar_t {
    // SAFETY: the program passes a wide C string.
    unsafe {
        let bytes = libc::wcslen(string) * size_of::<wchar_t>();
        copy_of(string.cast(), bytes, size_of::<wchar_t>()).cast()
    }
}

/// `getdelim`: libc grows the line with `realloc`, which keeps a managed block managed; so all
/// there is to do is to start it managed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getdelim(
    line: *mut *mut c_char,
    size: *mut size_t,
    delimiter: c_int,
    stream: *mut FILE,
) -> ssize_t {
    let real = real!(
        getdelim: unsafe extern "C" fn(*mut *mut c_char, *mut size_t, c_int, *mut FILE) -> ssize_t
    );
    if !line.is_null() && !size.is_null() {
        // SAFETY: the program passes places for the line and its size.
        unsafe {
            if (*line).is_null() || *size == 0 {
                let start = result(LINE_BYTES);
                if start.is_null() {
                    return -1;
                }
                *line = start.cast();
                *size = LINE_BYTES;
            }
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { real(line, size, delimiter, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __getdelim(
    line: *mut *mut c_char,
    size: *mut size_t,
    delimiter: c_int,
    stream: *mut FILE,
) -> ssize_t {
    // SAFETY: `getdelim` under its old name.
    unsafe { getdelim(line, size, delimiter, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getline(
    line: *mut *mut c_char,
    size: *mut size_t,
    stream: *mut FILE,
) -> ssize_t {
    // SAFETY: `getdelim` up to a newline.
    unsafe { getdelim(line, size, c_int::from(b'\n'), stream) }
}

/// `format(buffer, room, list)` formats like `vsnprintf`.
unsafe fn formatted(
    out: *mut *mut c_char,
    list: *mut VaList,
    format: &dyn Fn(*mut c_char, size_t, *mut VaList) -> c_int,
) -> c_int {
    let mut short = [0u8; SHORT_BYTES];
    // SAFETY: the entry point or the program passes a list; a copy leaves the original for later.
    let mut copy = unsafe { *list };
    let length = format(short.as_mut_ptr().cast(), SHORT_BYTES, &raw mut copy);
    let Ok(bytes) = usize::try_from(length) else {
        return length;
    };
    let text = result(bytes + 1);
    if text.is_null() {
        return -1;
    }
    if bytes < SHORT_BYTES {
        // SAFETY: the text and its NUL are in `short`, and `text` has room for them.
        unsafe { copy_nonoverlapping(short.as_ptr(), text, bytes + 1) };
    } else if format(text.cast(), bytes + 1, list) != length {
        // SAFETY: allocated above, wherever.
        unsafe { libc::free(text.cast()) };
        return -1;
    }
    // SAFETY: the program passes a place for the result.
    unsafe { *out = text.cast() };
    length
}

type FormatInto = unsafe extern "C" fn(*mut c_char, size_t, *const c_char, *mut VaList) -> c_int;
type CheckedFormatInto =
    unsafe extern "C" fn(*mut c_char, size_t, c_int, size_t, *const c_char, *mut VaList) -> c_int;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vasprintf(
    out: *mut *mut c_char,
    format: *const c_char,
    list: *mut VaList,
) -> c_int {
    let into = real!(vsnprintf: FormatInto);
    // SAFETY: the program's format and arguments, into buffers of the stated room.
    unsafe { formatted(out, list, &|buffer, room, list| into(buffer, room, format, list)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vasprintf_chk(
    out: *mut *mut c_char,
    flag: c_int,
    format: *const c_char,
    list: *mut VaList,
) -> c_int {
    let into = real!(__vsnprintf_chk: CheckedFormatInto);
    // SAFETY: as `vasprintf`.
    unsafe {
        formatted(out, list, &|buffer, room, list| into(buffer, room, flag, room, format, list))
    }
}

variadic! {
    asprintf: 2, "rdx" => vasprintf -> c_int;
    __asprintf: 2, "rdx" => vasprintf -> c_int;
    __asprintf_chk: 3, "rcx" => __vasprintf_chk -> c_int;
}
