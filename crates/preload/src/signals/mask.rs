//! Mask: SIGBUS is never blocked, whatever the program asks for.
//!
//! A synchronous SIGBUS while it is blocked kills the process, so it is taken out of every mask on
//! its way to the kernel. The mask that the program believes in is remembered for each thread and
//! shown to it again.
//!
//! Guarantees: the kernel only ever sees sets on this stack, so a set on the heap cannot meet
//! EFAULT.
//! Never: allocates; safe in signal handlers.
//! Threads: any, each for itself; one that libc made begins with `open_in_foreign_thread`. A mask
//! restored by `siglongjmp` or by returning from a handler does not change the belief.

use core::ffi::c_int;

use libc::sigset_t;

use crate::calls::{Opaque, calls};
use crate::real::real;
use crate::signals::set::{FAULT_BIT, of_word, pointer, without_fault, word};

type SetMask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// Changes the mask through `set_mask` and keeps the program's belief about SIGBUS.
fn change(
    set_mask: impl Fn(c_int, *const sigset_t, *mut sigset_t) -> c_int,
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    let mut before = of_word(0);
    // SAFETY: the program's sets, copied; this thread's own area.
    unsafe {
        let state = deepheap::internal::thread_area();
        let asked = new.as_ref().map(word);
        let open = new.as_ref().map(without_fault);
        let outcome = set_mask(how, pointer(&open), &mut before);
        if outcome != 0 {
            return outcome;
        }
        let believed = (*state).believes_blocked;
        if let Some(asked) = asked {
            let names_it = asked & FAULT_BIT != 0;
            (*state).believes_blocked = match how {
                libc::SIG_BLOCK => believed || names_it,
                libc::SIG_UNBLOCK => believed && !names_it,
                _ => names_it,
            };
        }
        if !old.is_null() {
            // The kernel's sets have one word; libc leaves the others of the program's set alone.
            *old.cast::<u64>() = word(&before) | if believed { FAULT_BIT } else { 0 };
        }
        outcome
    }
}

/// Lets SIGBUS through in a thread that libc made with a mask of its own; the program goes on
/// believing in that mask.
pub fn open_in_foreign_thread() {
    let set_mask = real!(pthread_sigmask: SetMask);
    let mut before = of_word(0);
    // SAFETY: sets on this stack; this thread's own area.
    unsafe {
        if set_mask(libc::SIG_UNBLOCK, &of_word(FAULT_BIT), &mut before) == 0 {
            let was_blocked = word(&before) & FAULT_BIT != 0;
            (*deepheap::internal::thread_area()).believes_blocked = was_blocked;
        }
    }
}

calls! {
    fn sigprocmask, pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t)
        -> c_int = program(|real| change(real, how, new, old));
    fn pthread_attr_setsigmask_np(attributes: Opaque, mask: *const sigset_t) -> c_int
        = hold(open mask);
    // BSD's masks are the low word of a set.
    fn sigblock, sigsetmask, sigpause(mask: c_int)
        -> c_int = by(|real| real(mask & !(FAULT_BIT as c_int)));
    fn __sigpause(mask: c_int, is_signal: c_int) -> c_int = by(|real| {
        real(if is_signal == 0 { mask & !(FAULT_BIT as c_int) } else { mask }, is_signal)
    });
    // System V's: blocks one signal.
    fn sighold(signal: c_int) -> c_int = by(|real| {
        if signal != libc::SIGBUS {
            return real(signal);
        }
        // SAFETY: this thread's own area.
        unsafe { (*deepheap::internal::thread_area()).believes_blocked = true };
        0
    });
}

/// The system call, for programs that make it through `syscall`: sets of one word.
pub unsafe fn change_word(how: c_int, new: *const u64, old: *mut u64) -> c_int {
    let set_mask = real!(sigprocmask: SetMask);
    let mut before = of_word(0);
    // SAFETY: one-word sets of the program.
    unsafe {
        let asked = new.as_ref().map(|word| of_word(*word));
        let set_mask = |how, new, old| set_mask(how, new, old);
        let outcome = change(set_mask, how, pointer(&asked), &mut before);
        if outcome == 0 && !old.is_null() {
            *old = word(&before);
        }
        outcome
    }
}
