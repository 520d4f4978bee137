//! Stack switch: runs a function on another stack.
//!
//! Guarantees: the function runs once, and has returned afterwards.
//! Never: allocates.
//! Threads: any, also in a signal handler.

use core::arch::asm;
use core::ffi::c_void;

/// Calls `run(argument)` on the stack that ends at `top`, the end of a page.
///
/// # Safety
/// The stack is the caller's alone and large enough for `run`, which does not unwind (panic =
/// abort).
pub(crate) unsafe fn call(top: usize, run: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the caller's promise. The end of a page is aligned to 16, as the ABI wants before a
    // call. r12 survives the call by the ABI, so the stack pointer is what it was afterwards.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = in(reg) run,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}
