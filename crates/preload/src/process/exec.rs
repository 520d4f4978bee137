//! Exec: the `exec*` family.
//!
//! Guarantees: path, arguments and environment may lie in managed memory. A call that meets EFAULT
//! is made again after touching them, `ATTEMPTS` times at most. They are not pinned: in a child of
//! `vfork` the pins would outlive the call in the parent's memory.
//! Never: allocates managed memory.
//! Threads: any; also in a child of `vfork`.

use core::ffi::{c_char, c_int};
use core::ptr::null;

use crate::buffers::guarded::Outcome;
use crate::calls::calls;
use crate::calls::variadic::{VaList, variadic};
use crate::memory::plain;
use crate::process::lists::{List, environment, strings};
use crate::process::unmanaged::tell_if_static;

/// How often an exec that meets evicted pages is made again.
const ATTEMPTS: usize = 8;
/// Arguments of the `execl` forms that fit the stack.
const SHORT_LIST: usize = 256;

/// A C string that is not pinned.
type Text = *const c_char;

/// Touches a managed string.
pub fn touch_text(text: *const c_char) {
    if deepheap::internal::may_leave(text as usize) {
        // SAFETY: the program's own C string, read in user mode.
        let len = unsafe { libc::strlen(text) } + 1;
        deepheap::internal::touch(text as usize, len);
    }
}

/// Calls `visit` for every string of a list, then for the list itself.
pub fn each_of(list: List, visit: &mut dyn FnMut(usize, usize)) {
    let mut count = 1;
    for text in strings(list) {
        count += 1;
        if deepheap::internal::may_leave(text as usize) {
            // SAFETY: a C string of the program.
            visit(text as usize, unsafe { libc::strlen(text) } + 1);
        }
    }
    if deepheap::internal::may_leave(list as usize) {
        visit(list as usize, count * size_of::<*const c_char>());
    }
}

/// Makes an exec call; returns only if it failed.
pub fn attempt(path: *const c_char, lists: &[List], call: impl Fn() -> c_int) -> c_int {
    let mut outcome = call();
    if !deepheap::internal::is_managing() {
        return outcome;
    }
    for _ in 0..ATTEMPTS {
        if !outcome.is_fault() {
            break;
        }
        touch_text(path);
        for list in lists {
            each_of(*list, &mut deepheap::internal::touch);
        }
        outcome = call();
    }
    outcome
}

calls! {
    fn execve(path: *const c_char, arguments: List, environment: List) -> c_int = by(|real| {
        tell_if_static(path, environment, false);
        attempt(path, &[arguments, environment], || real(path, arguments, environment))
    });
    fn execvpe(path: *const c_char, arguments: List, environment: List) -> c_int = by(|real| {
        tell_if_static(path, environment, true);
        attempt(path, &[arguments, environment], || real(path, arguments, environment))
    });
    fn execv(path: *const c_char, arguments: List) -> c_int = by(|real| {
        tell_if_static(path, environment(), false);
        attempt(path, &[arguments, environment()], || real(path, arguments))
    });
    fn execvp(path: *const c_char, arguments: List) -> c_int = by(|real| {
        tell_if_static(path, environment(), true);
        attempt(path, &[arguments, environment()], || real(path, arguments))
    });
    fn fexecve(descriptor: c_int, arguments: List, environment: List) -> c_int
        = by(|real| attempt(null(), &[arguments, environment], || {
            real(descriptor, arguments, environment)
        }));
    fn execveat(
        folder: c_int, path: *const c_char, arguments: List, environment: List, flags: c_int,
    ) -> c_int = by(|real| attempt(path, &[arguments, environment], || {
        real(folder, path, arguments, environment, flags)
    }));
}

/// Gathers the arguments of an `execl` form and calls `exec` with them and what follows them.
unsafe fn with_list(
    first: *const c_char,
    rest: *mut VaList,
    exec: &dyn Fn(List, &mut VaList) -> c_int,
) -> c_int {
    let mut short = [null::<c_char>(); SHORT_LIST];
    // SAFETY: the entry point's list, which ends with a null; `list` has room for `count` arguments
    // and the null behind them.
    unsafe {
        let (mut ahead, mut count, mut text) = (*rest, 0, first);
        while !text.is_null() {
            count += 1;
            text = ahead.pointer();
        }
        let is_short = count < SHORT_LIST;
        let bytes = (count + 1) * size_of::<*const c_char>();
        let list: *mut *const c_char =
            if is_short { short.as_mut_ptr() } else { plain::malloc(bytes).cast() };
        if list.is_null() {
            return -1;
        }
        *list = first;
        for index in 1..=count {
            *list.add(index) = (*rest).pointer();
        }
        let outcome = exec(list, &mut *rest);
        if !is_short {
            plain::free(list.cast());
        }
        outcome
    }
}

unsafe extern "C" fn execl_of(path: Text, first: Text, rest: *mut VaList) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { with_list(first, rest, &|list, _| execv(path, list)) }
}

unsafe extern "C" fn execlp_of(file: Text, first: Text, rest: *mut VaList) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { with_list(first, rest, &|list, _| execvp(file, list)) }
}

unsafe extern "C" fn execle_of(path: Text, first: Text, rest: *mut VaList) -> c_int {
    // SAFETY: the program's own arguments; the environment follows the null.
    unsafe { with_list(first, rest, &|list, rest| execve(path, list, rest.pointer())) }
}

variadic! {
    execl: 2, "rdx" => execl_of -> c_int;
    execlp: 2, "rdx" => execlp_of -> c_int;
    execle: 2, "rdx" => execle_of -> c_int;
}
