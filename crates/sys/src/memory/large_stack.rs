//! Large stack: runs a function once on a stack that is mapped for it alone.
//!
//! A function that needs hundreds of KiB of stack once, in a thread of the program, would otherwise
//! overflow a small stack, or leave a large one with pages that nobody needs again.
//!
//! Guarantees: the function runs once, with `bytes` of stack above a guard page, and has returned
//! afterwards; the stack is unmapped then.
//! Never: allocates.
//! Threads: any, also in a signal handler. Signals must be blocked: a handler would run on this
//! stack.

use crate::PAGE;
use crate::errno::Result;
use crate::faults::stack_switch;
use crate::memory::mapping;
use core::ffi::c_void;

/// Calls `run(argument)` on a stack of so many bytes.
///
/// Errors: ENOMEM if it cannot be mapped; then `run` was not called.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "nobody but `run` looks at the argument")]
pub fn call(bytes: usize, run: extern "C" fn(*mut c_void), argument: *mut c_void) -> Result<()> {
    let length = bytes.next_multiple_of(PAGE) + PAGE;
    let memory = mapping::map_pinned(length)?;
    // SAFETY: the lowest page of our own memory, which nobody uses.
    unsafe { libc::mprotect(memory.cast(), PAGE, libc::PROT_NONE) };
    // SAFETY: the mapping ends there.
    let top = unsafe { memory.add(length) };
    // SAFETY: the stack is ours alone and large enough by the caller's word.
    unsafe { stack_switch::call(top as usize, run, argument) };
    // SAFETY: mapped above, and nobody is on it any more. The kernel has no reason to refuse.
    let _ = unsafe { mapping::unmap(memory, length) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 20;

    extern "C" fn use_most_of_it(argument: *mut c_void) {
        let mut room = [1u8; BYTES * 3 / 4];
        core::hint::black_box(&mut room);
        // SAFETY: the test passes a usize.
        unsafe {
            *argument.cast::<usize>() += room.iter().map(|&byte| usize::from(byte)).sum::<usize>()
        };
    }

    #[test]
    fn a_thread_with_a_small_stack_can_use_much_of_it_for_a_moment() {
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        let run = || {
            let mut sum = 0usize;
            for _ in 0..3 {
                call(BYTES, use_most_of_it, (&raw mut sum).cast()).expect("memory");
            }
            sum
        };
        let sum = thread.spawn(run).expect("a thread").join().expect("no panic");
        assert_eq!(sum, 3 * (BYTES * 3 / 4));
    }
}
