//! Signal action: `sigaction` and `signal`, with SIGBUS kept for the fault handler.
//!
//! Guarantees: no handler of the program runs with SIGBUS blocked. Once the runtime has its own
//! handler for SIGBUS, it keeps the program's action, shows it to the program, and calls it for
//! faults that are not ours.
//! Never: allocates; safe in signal handlers.
//!
//! Threads: any.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{SA_NODEFER, SA_RESETHAND, SA_RESTART, sigaction as Action, sighandler_t};

use crate::calls::calls;
use crate::real::real;
use crate::seam;
use crate::signal_set::{FAULT_BIT, without_fault, word};

type SetAction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

/// Signals whose handlers the program wanted to run with SIGBUS blocked.
static BLOCKED_IN: AtomicU64 = AtomicU64::new(0);

fn bit(signal: c_int) -> u64 {
    1u64.checked_shl((signal - 1) as u32).unwrap_or(0)
}

calls! {
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int
        = program(sigaction_for_program);
    fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int
        = program(sigaction_for_program);
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t
        = by(|real| handle(signal, handler, SA_RESTART, real));
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t
        = by(|real| handle(signal, handler, SA_RESTART, real));
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t
        = by(|real| handle(signal, handler, SA_RESTART, real));
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t
        = by(|real| handle(signal, handler, SA_RESETHAND | SA_NODEFER, real));
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t
        = by(|real| handle(signal, handler, SA_RESETHAND | SA_NODEFER, real));
    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t
        = by(|real| handle(signal, handler, 0, real));
    fn sigignore(signal: c_int) -> c_int = by(|real| {
        let ignore = |signal, _| if real(signal) == 0 { 0 } else { libc::SIG_ERR };
        if handle(signal, libc::SIG_IGN, 0, ignore) == libc::SIG_ERR { -1 } else { 0 }
    });
}

unsafe extern "C" fn sigaction_for_program(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        if signal != libc::SIGBUS {
            return change_action(signal, new, old);
        }
        seam::change_fault_action(new, old, || change_action(signal, new, old))
    }
}

/// The kernel's `struct sigaction`.
#[repr(C)]
pub struct KernelAction {
    handler: sighandler_t,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// The system call, for programs that make it through `syscall`. libc's way out of a handler takes
/// the place of the program's.
pub unsafe fn change_by_word(
    signal: c_int,
    new: *const KernelAction,
    old: *mut KernelAction,
) -> c_int {
    // SAFETY: the program's own actions, read and written in user mode; zeroed is a valid action.
    unsafe {
        let mut wanted: Action = MaybeUninit::zeroed().assume_init();
        let mut before: Action = MaybeUninit::zeroed().assume_init();
        let asked = new.as_ref().map_or(core::ptr::null(), |new| {
            wanted.sa_sigaction = new.handler;
            wanted.sa_flags = new.flags as c_int;
            *(&raw mut wanted.sa_mask).cast::<u64>() = new.mask;
            &raw const wanted
        });
        let outcome = sigaction_for_program(signal, asked, &mut before);
        if let Some(old) = old.as_mut()
            && outcome == 0
        {
            let flags = before.sa_flags as u32;
            let handler = before.sa_sigaction;
            *old = KernelAction {
                handler,
                flags: flags.into(),
                restorer: 0,
                mask: word(&before.sa_mask),
            };
        }
        outcome
    }
}

/// Changes the kernel's action for a signal, whose handler never has SIGBUS blocked.
unsafe fn change_action(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the program's own arguments; copies on this stack go to the kernel.
    unsafe {
        let open = new.as_ref().map(|action| {
            let mut open = *action;
            open.sa_mask = without_fault(&action.sa_mask);
            open
        });
        let pointer = open.as_ref().map_or(core::ptr::null(), |action| &raw const *action);
        let mut before = MaybeUninit::<Action>::zeroed();
        let outcome = real!(sigaction: SetAction)(signal, pointer, before.as_mut_ptr());
        if outcome != 0 {
            return outcome;
        }
        let blocked_before = BLOCKED_IN.load(Ordering::Relaxed) & bit(signal) != 0;
        if let Some(action) = new.as_ref() {
            if word(&action.sa_mask) & FAULT_BIT != 0 {
                BLOCKED_IN.fetch_or(bit(signal), Ordering::Relaxed);
            } else {
                BLOCKED_IN.fetch_and(!bit(signal), Ordering::Relaxed);
            }
        }
        if let Some(old) = old.as_mut() {
            *old = before.assume_init();
            if blocked_before {
                libc::sigaddset(&mut old.sa_mask, libc::SIGBUS);
            }
        }
        outcome
    }
}

/// `signal` and its kin, where `real` is libc's. libc blocks the signal itself in its handler, and
/// no other; SIGBUS goes through `sigaction`.
fn handle(
    signal: c_int,
    handler: sighandler_t,
    flags: c_int,
    real: impl Fn(c_int, sighandler_t) -> sighandler_t,
) -> sighandler_t {
    if signal != libc::SIGBUS {
        return real(signal, handler);
    }
    // SAFETY: zeroed is a valid action; both actions are on this stack.
    unsafe {
        let mut new: Action = MaybeUninit::zeroed().assume_init();
        let mut old: Action = MaybeUninit::zeroed().assume_init();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if sigaction_for_program(libc::SIGBUS, &new, &mut old) != 0 {
            return libc::SIG_ERR;
        }
        old.sa_sigaction
    }
}
