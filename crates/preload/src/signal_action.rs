//! Signal action: `sigaction` and `signal`, with SIGBUS kept for the fault handler.
//!
//! Guarantees: no handler of the program runs with SIGBUS blocked. Once the runtime has its own
//! handler, the program's action for SIGBUS is kept beside it, shown when asked for, and called for
//! faults that are not ours.
//! Never: allocates; safe in signal handlers.
//!
//! Threads: any.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{sigaction as Action, sighandler_t};

use crate::program_call::for_program;
use crate::real::real;
use crate::seam;
use crate::signal_mask::{FAULT_BIT, without_fault, word};

type SetAction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

/// Signals whose handlers the program wanted to run with SIGBUS blocked.
static BLOCKED_IN: AtomicU64 = AtomicU64::new(0);

fn bit(signal: c_int) -> u64 {
    1u64.checked_shl((signal - 1) as u32).unwrap_or(0)
}

for_program! {
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int
        => sigaction_for_program;
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

/// `signal` for SIGBUS in terms of `sigaction`.
unsafe fn set_handler(handler: sighandler_t, flags: c_int) -> sighandler_t {
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

type SetHandler = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

macro_rules! handlers {
    ($($name:ident, $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the program's own arguments. libc blocks the signal itself in its handler,
            // and no other; SIGBUS goes through `sigaction`.
            unsafe {
                if signal == libc::SIGBUS {
                    return set_handler(handler, $flags);
                }
                real!($name: SetHandler)(signal, handler)
            }
        }
    )*};
}

handlers! {
    signal, libc::SA_RESTART;
    bsd_signal, libc::SA_RESTART;
    ssignal, libc::SA_RESTART;
    sysv_signal, libc::SA_RESETHAND | libc::SA_NODEFER;
    __sysv_signal, libc::SA_RESETHAND | libc::SA_NODEFER;
    sigset, 0;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    // SAFETY: the program's own argument.
    unsafe {
        if signal == libc::SIGBUS {
            return if set_handler(libc::SIG_IGN, 0) == libc::SIG_ERR { -1 } else { 0 };
        }
        real!(sigignore: unsafe extern "C" fn(c_int) -> c_int)(signal)
    }
}
