//! Duplicate: functions whose result belongs to the program: `strdup`, `getline`, `asprintf` and
//! their kin. libc would allocate the result from plain memory.
//!
//! Guarantees: once our constructor has run, results are managed memory. A program that has a
//! `malloc` of its own gets them from there, as from libc. Nothing else differs from libc. Only
//! user-mode code touches the results here, so faults are resolved as everywhere.
//! Never: changes what libc allocates for itself; its own calls of these functions do not come
//! here.
//! Threads: any.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{transmute, zeroed};
use core::ptr::{copy_nonoverlapping, null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, size_t, ssize_t, wchar_t};

use crate::caller::is_all_plain;
use crate::calls::calls;
use crate::calls::formatted::written;
use crate::calls::variadic::{VaList, into, into_checked, variadic};
use crate::memory::plain;
use crate::seam;

/// The buffer that glibc's `getdelim` starts with.
const LINE_BYTES: usize = 120;

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;

/// Stands for our `malloc`: the address of our own symbol may be that of the program's.
const OURS: *mut c_void = without_provenance_mut(1);
/// The `malloc` that the program's calls come to, once that is known: `OURS`, or one of its own.
static PROGRAMS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds out where the program's calls of `malloc` come to. So does the first result, which may be
/// of a constructor before ours. A forked child or a signal handler is not to ask the dynamic
/// linker.
pub fn learn() -> *mut c_void {
    // SAFETY: a C string, and a handle that dlsym knows.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    let is_ours = object_of(found) == object_of(result as *mut c_void);
    let found = if is_ours { OURS } else { found };
    PROGRAMS.store(found, Ordering::Relaxed);
    found
}

/// Where the loaded object with this address begins.
fn object_of(address: *mut c_void) -> *mut c_void {
    // SAFETY: room for the answer, of which all zero bytes are a value.
    unsafe {
        let mut info: libc::Dl_info = zeroed();
        libc::dladdr(address, &mut info);
        info.dli_fbase
    }
}

/// The program's own `malloc`, if it has one: its own `free` will get what comes of it.
fn programs_malloc() -> Option<Malloc> {
    let known = PROGRAMS.load(Ordering::Relaxed);
    let malloc = if known.is_null() { learn() } else { known };
    // SAFETY: the dynamic linker found a function of that name, which has this type.
    (malloc != OURS).then(|| unsafe { transmute::<*mut c_void, Malloc>(malloc) })
}

/// Memory for a result.
fn result(bytes: usize) -> *mut u8 {
    if let Some(malloc) = programs_malloc() {
        // SAFETY: it takes any size.
        return unsafe { malloc(bytes).cast() };
    }
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

calls! {
    fn strdup(string: *const c_char) -> *mut c_char
        = same(copy_of(string.cast(), libc::strlen(string), 1).cast());
    fn strndup(string: *const c_char, most: size_t) -> *mut c_char
        = same(copy_of(string.cast(), libc::strnlen(string, most), 1).cast());
    fn wcsdup(string: *const wchar_t) -> *mut wchar_t = same({
        let wide = size_of::<wchar_t>();
        copy_of(string.cast(), libc::wcslen(string) * wide, wide).cast()
    });

    // libc grows the line with `realloc`, which keeps a managed block managed; so all there is to
    // do is to start it managed.
    fn getdelim(line: *mut *mut c_char, size: *mut size_t, delimiter: c_int, stream: *mut FILE)
        -> ssize_t = by(|real| {
            if start_line(line, size) { real(line, size, delimiter, stream) } else { -1 }
        });
    fn getline(line: *mut *mut c_char, size: *mut size_t, stream: *mut FILE) -> ssize_t
        = same(getdelim(line, size, c_int::from(b'\n'), stream));

    fn vasprintf(out: *mut *mut c_char, format: *const c_char, list: *mut VaList) -> c_int
        = same(written(&to_result(out), list, &into(format)));
    fn __vasprintf_chk(
        out: *mut *mut c_char, flag: c_int, format: *const c_char, list: *mut VaList,
    ) -> c_int = same(written(&to_result(out), list, &into_checked(flag, format)));
}

variadic! {
    asprintf: 2, "rdx" => vasprintf -> c_int;
    __asprintf: 2, "rdx" => vasprintf -> c_int;
    __asprintf_chk: 3, "rcx" => __vasprintf_chk -> c_int;
}

/// Gives `getdelim` a line to start with, if the program has none; false if there is no memory.
fn start_line(line: *mut *mut c_char, size: *mut size_t) -> bool {
    if line.is_null() || size.is_null() {
        return true;
    }
    // SAFETY: the program passes places for the line and its size.
    unsafe {
        if (*line).is_null() || *size == 0 {
            let start = result(LINE_BYTES);
            if start.is_null() {
                return false;
            }
            *line = start.cast();
            *size = LINE_BYTES;
        }
    }
    true
}

/// Makes the result of a text: all of it, or more than there is if there is no memory.
fn to_result(out: *mut *mut c_char) -> impl Fn(*const u8, usize) -> usize {
    move |text, bytes| {
        // SAFETY: `written` passes a text of that length.
        let copy = unsafe { copy_of(text, bytes, 1) };
        if copy.is_null() {
            return usize::MAX;
        }
        // SAFETY: the program passes a place for the result.
        unsafe { *out = copy.cast() };
        bytes
    }
}
