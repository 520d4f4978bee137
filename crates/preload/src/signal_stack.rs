//! Signal stack: a resident alternate stack for every thread.
//!
//! Coroutines run on stacks from `malloc`, which may be evicted. The kernel must find a resident
//! stack for the frame of our SIGBUS handler.
//!
//! Guarantees: every thread has an alternate stack of plain memory with a guard page below it,
//! until the program sets a stack of its own. The program's is pinned if it is managed. A program
//! that disables its stack gets ours back, and is told that it has none.
//!
//! Threads: each for itself.

use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, with_exposed_provenance_mut};

use deepheap::Hold;
use libc::stack_t;

use crate::calls::calls;
use crate::pins::PAGE;
use crate::real::real;
use crate::thread_state;

/// Usable bytes of a thread's signal stack.
const STACK_BYTES: usize = 64 * 1024;

type SetStack = unsafe extern "C" fn(*const stack_t, *mut stack_t) -> c_int;
type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Unmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Protect = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

fn description(mapping: usize) -> stack_t {
    let bottom = with_exposed_provenance_mut(mapping + PAGE);
    stack_t { ss_sp: bottom, ss_flags: 0, ss_size: STACK_BYTES }
}

/// Gives the calling thread a signal stack, unless it has one. Without memory for it the thread
/// goes on with its own stack.
pub fn enter() {
    let state = thread_state::current();
    let set = real!(sigaltstack: SetStack);
    let mut old = stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: a query into this stack; a fresh private mapping; a description of that mapping.
    unsafe {
        if set(core::ptr::null(), &mut old) != 0 || old.ss_flags & libc::SS_DISABLE == 0 {
            return;
        }
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let mapping = real!(mmap: Map)(null_mut(), PAGE + STACK_BYTES, read_write, flags, -1, 0);
        if mapping == libc::MAP_FAILED {
            return;
        }
        real!(mprotect: Protect)(mapping, PAGE, libc::PROT_NONE);
        (*state).signal_stack = mapping as usize;
        set(&description(mapping as usize), null_mut());
    }
}

/// Takes the calling thread's signal stack away at its end.
pub fn leave() {
    let state = thread_state::current();
    // SAFETY: this thread's own block and the mapping `enter` made; the kernel lets go of it first.
    // If the thread is running on it right now the kernel refuses, and the mapping stays.
    unsafe {
        let mapping = (*state).signal_stack;
        if mapping == 0 {
            return;
        }
        let none = stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        if real!(sigaltstack: SetStack)(&none, null_mut()) == 0 {
            (*state).signal_stack = 0;
            real!(munmap: Unmap)(with_exposed_provenance_mut(mapping), PAGE + STACK_BYTES);
        }
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
    // SAFETY: this thread's own block.
    let mapping = unsafe { (*thread_state::current()).signal_stack };
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
