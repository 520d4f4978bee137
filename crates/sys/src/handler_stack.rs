//! Handler stack: room for the fault path when the program's alternate signal stack is too small.
//!
//! A handler with SA_ONSTACK runs on the alternate stack that the program set up, 8 KiB as a rule,
//! of which the kernel's frame takes up to 4. The fault path may have to evict a batch, which needs
//! more. So on an alternate stack it runs on one of ours instead.
//!
//! Guarantees: the function runs once, with nearly `STACK_BYTES` of stack, and has returned
//! afterwards; signals must be blocked, so that uses do not nest.
//! Never: allocates. Waits only when every stack is in use, by yielding.
//! Threads: any, in the signal handler.

use crate::PAGE;
use crate::errno::Result;
use crate::mapping;
use crate::thread;
use core::arch::asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of one stack, and of the page below it that nobody may touch.
const STACK_BYTES: usize = 64 * 1024;
/// Stacks: the threads that can be in the fault path on an alternate stack at a time.
const STACKS: usize = 64;

static MEMORY: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Maps the stacks, once; they cost nothing until they are used.
pub(crate) fn prepare() -> Result<()> {
    if MEMORY.load(Ordering::Acquire) == 0 {
        let memory = mapping::reserve(STACKS * STACK_BYTES, PAGE, 0)?;
        for index in 0..STACKS {
            // SAFETY: within what was just reserved; the first page of each stack stays without
            // access, so that what outgrows a stack ends there and not in its neighbour.
            unsafe {
                mapping::commit(memory.add(index * STACK_BYTES + PAGE), STACK_BYTES - PAGE)?;
            }
        }
        MEMORY.store(memory as usize, Ordering::Release);
    }
    Ok(())
}

/// Calls `run(argument)`, on a stack of ours if this thread is on the alternate stack `alternate`.
pub(crate) fn call(
    alternate: &libc::stack_t,
    run: extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    let here = &raw const argument as usize;
    let bottom = alternate.ss_sp as usize;
    let memory = MEMORY.load(Ordering::Acquire);
    let on_alternate = alternate.ss_flags & libc::SS_DISABLE == 0
        && (bottom..bottom + alternate.ss_size).contains(&here);
    if !on_alternate || memory == 0 {
        return run(argument);
    }
    let index = take();
    let top = memory + (index + 1) * STACK_BYTES;
    // SAFETY: `top` ends a stack that is ours alone until `give_back`; it is aligned to 16, as the
    // ABI wants before a call. r12 survives the call by the ABI, so the stack pointer is what it
    // was afterwards. `run` does not unwind (panic = abort).
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
    TAKEN.fetch_and(!(1 << index), Ordering::Release);
}

/// In a forked child: the threads that used the stacks are not here.
pub(crate) fn after_fork() {
    TAKEN.store(0, Ordering::Relaxed);
}

fn take() -> usize {
    loop {
        let taken = TAKEN.load(Ordering::Relaxed);
        let index = (!taken).trailing_zeros() as usize;
        if index >= STACKS {
            thread::yield_now();
            continue;
        }
        let with = taken | (1 << index);
        if TAKEN.compare_exchange_weak(taken, with, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn use_much_stack(argument: *mut c_void) {
        let mut room = [0u8; 40_000];
        room[7] = 7;
        core::hint::black_box(&mut room);
        // SAFETY: the test passes a usize.
        unsafe { *argument.cast::<usize>() = room.as_ptr() as usize };
    }

    #[test]
    fn code_on_a_small_alternate_stack_gets_a_large_one() {
        prepare().expect("stacks");
        let mut answer = 0usize;
        let argument = (&raw mut answer).cast::<c_void>();
        let here = &raw const answer as usize;
        // An alternate stack that this frame lies in, and one that it does not.
        let around =
            libc::stack_t { ss_sp: (here - 16_384) as *mut c_void, ss_flags: 0, ss_size: 32_768 };
        call(&around, use_much_stack, argument);
        let memory = MEMORY.load(Ordering::Acquire);
        assert!((memory..memory + STACKS * STACK_BYTES).contains(&answer), "on a stack of ours");
        call(&libc::stack_t { ss_size: 8, ..around }, use_much_stack, argument);
        assert!(!(memory..memory + STACKS * STACK_BYTES).contains(&answer), "on the thread's own");
        assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
    }
}
