//! Stack: a resident alternate stack for every thread.
//!
//! Coroutines run on stacks from `malloc`, which may be evicted. The kernel must find a resident
//! stack for the frame of our SIGBUS handler.
//!
//! Guarantees: every thread has an alternate stack of plain memory with a guard page below it,
//! until the program sets a stack of its own. The program's is pinned if it is managed. A program
//! that disables its stack gets ours back, and is told that it has none.
//! Threads: each for itself.

use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, with_exposed_provenance_mut};

use deepheap::internal::Hold;
use libc::stack_t;

use crate::buffers::pins::PAGE;
use crate::calls::calls;
use crate::real::real;

/// Usable bytes of a thread's signal stack.
const STACK_BYTES: usize = 64 * 1024;

type SetStack = unsafe extern "C" fn(*const stack_t, *mut stack_t) -> c_int;

fn description(mapping: usize) -> stack_t {
    let bottom = with_exposed_provenance_mut(mapping + PAGE);
    stack_t { ss_sp: bottom, ss_flags: 0, ss_size: STACK_BYTES }
}

/// Whether this is the signal stack of the calling thread.
pub fn is_ours(stack: &stack_t) -> bool {
    own().is_some_and(|own| own.ss_sp == stack.ss_sp)
}

/// The calling thread's signal stack, also while the kernel knows of one of the program's.
pub fn own() -> Option<stack_t> {
    // SAFETY: this thread's own area.
    let mapping = unsafe { (*deepheap::internal::thread_area()).signal_stack };
    (mapping != 0).then(|| description(mapping))
}

/// Maps a signal stack and has the calling thread use it; zero without memory for it.
pub fn map() -> usize {
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let map = real!(mmap: fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void);
    // SAFETY: a fresh private mapping.
    unsafe {
        let mapping = map(null_mut(), PAGE + STACK_BYTES, read_write, flags, -1, 0);
        if mapping == libc::MAP_FAILED {
            return 0;
        }
        real!(mprotect: fn(*mut c_void, usize, c_int) -> c_int)(mapping, PAGE, libc::PROT_NONE);
        mapping as usize
    }
}

/// Has the calling thread use a stack of `map`.
pub fn set(mapping: usize) {
    // SAFETY: a description of a mapping that lasts.
    unsafe { real!(sigaltstack: SetStack)(&description(mapping), null_mut()) };
}

/// Where a record may lie on a stack of `map` that nobody uses yet.
pub fn record(mapping: usize) -> *mut c_void {
    with_exposed_provenance_mut(mapping + PAGE)
}

/// Unmaps a stack of `map` that the calling thread has, and is not on: the kernel refuses then, and
/// the stack stays.
pub fn unmap(mapping: usize) {
    let none = stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: a description that disables.
    if unsafe { real!(sigaltstack: SetStack)(&none, null_mut()) } == 0 {
        give_back(mapping);
    }
}

/// Unmaps a stack of `map` that no thread has.
pub fn give_back(mapping: usize) {
    let unmap = real!(munmap: fn(*mut c_void, usize) -> c_int);
    // SAFETY: `map` made it, and nobody uses it.
    unsafe { unmap(with_exposed_provenance_mut(mapping), PAGE + STACK_BYTES) };
}

/// Gives the calling thread a signal stack, unless it has one. Without memory for it the thread
/// goes on with its own stack.
pub fn enter() {
    let state = deepheap::internal::thread_area();
    let mut old = stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: a query into this stack; this thread's own area.
    unsafe {
        if real!(sigaltstack: SetStack)(core::ptr::null(), &mut old) != 0
            || old.ss_flags & libc::SS_DISABLE == 0
        {
            return;
        }
        let mapping = map();
        if mapping != 0 {
            (*state).signal_stack = mapping;
            set(mapping);
        }
    }
}

/// Takes the calling thread's signal stack away at its end.
pub fn leave() {
    let state = deepheap::internal::thread_area();
    // SAFETY: this thread's own area.
    let mapping = unsafe { core::mem::take(&mut (*state).signal_stack) };
    // A thread that runs on it right now keeps it.
    if mapping != 0 {
        unmap(mapping);
    }
}

calls! {
    fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> c_int
        = by(|real| change(new, old, real));
}

/// `sigaltstack` as the program means it, where `set` is libc's.
fn change(
    new: *const stack_t,
    old: *mut stack_t,
    set: impl Fn(*const stack_t, *mut stack_t) -> c_int,
) -> c_int {
    // SAFETY: this thread's own area.
    let mapping = unsafe { (*deepheap::internal::thread_area()).signal_stack };
    let mut before = stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the program's descriptions, copied so that the kernel sees plain memory.
    unsafe {
        let outcome = if new.is_null() {
            set(core::ptr::null(), &mut before)
        } else {
            let mut wanted = *new;
            if wanted.ss_flags & libc::SS_DISABLE != 0 && mapping != 0 {
                wanted = description(mapping);
            } else {
                Hold::for_good(wanted.ss_sp as usize, wanted.ss_size);
            }
            set(&wanted, &mut before)
        };
        if outcome == 0 && !old.is_null() {
            if mapping != 0 && before.ss_sp as usize == mapping + PAGE {
                before = stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            }
            *old = before;
        }
        outcome
    }
}
