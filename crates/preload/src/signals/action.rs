//! Action: `sigaction` and `signal`, with SIGBUS kept for the fault handler.
//!
//! Guarantees: no handler of the program runs with SIGBUS blocked, and each is called by the relay
//! (`relay`), of which the program sees nothing. Once the runtime has its own handler for
//! SIGBUS, it keeps the program's action, shows it to the program, and calls it for faults that are
//! not ours. A child that shares our memory (`vfork`) changes the kernel's actions, which are its
//! own, and nothing that we remember.
//! Never: allocates; safe in signal handlers.
//! Threads: any.

use core::ffi::c_int;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{
    SA_NODEFER, SA_RESETHAND, SA_RESTART, SIG_DFL, SIG_ERR, SIG_IGN, sigaction as Action,
    sighandler_t,
};

use crate::calls::calls;
use crate::process::sharing;
use crate::real::real;
use crate::seam;
use crate::signals;
use crate::signals::set::{FAULT_BIT, action, of_word, pointer, without_fault, word};

/// Signals that are to interrupt system calls when `signal` sets their handlers.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// `sigset` asks to block the signal.
const SIG_HOLD: sighandler_t = 2;

fn bit(signal: c_int) -> u64 {
    1u64.checked_shl((signal - 1) as u32).unwrap_or(0)
}

calls! {
    fn sigaction, __sigaction(signal: c_int, new: *const Action, old: *mut Action)
        -> c_int = program(sigaction_for_program);
    fn signal, bsd_signal, ssignal(signal: c_int, handler: sighandler_t)
        -> sighandler_t = same(handle_and_restart(signal, handler));
    fn sysv_signal, __sysv_signal(signal: c_int, handler: sighandler_t)
        -> sighandler_t = same(handle(signal, handler, SA_RESETHAND | SA_NODEFER));
    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int
        = same(interrupt(signal, interrupts != 0));
    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t
        = same(hold_or_handle(signal, handler));
    fn sigignore(signal: c_int) -> c_int
        = same(if handle(signal, SIG_IGN, 0) == SIG_ERR { -1 } else { 0 });
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
        // The runtime's record is the parent's in a child that shares our memory.
        let kept = if sharing::shares_memory() { null() } else { new };
        seam::change_fault_action(kept, old, || change_action(signal, new, old))
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
    // SAFETY: the program's own actions, read and written in user mode.
    unsafe {
        let mut before = action(SIG_DFL, 0, 0);
        let wanted = new.as_ref().map(|new| action(new.handler, new.flags as c_int, new.mask));
        let outcome = sigaction_for_program(signal, pointer(&wanted), &mut before);
        if let Some(old) = old.as_mut()
            && outcome == 0
        {
            let (handler, flags) = (before.sa_sigaction, before.sa_flags as u32);
            let mask = word(&before.sa_mask);
            *old = KernelAction { handler, flags: flags.into(), restorer: 0, mask };
        }
        outcome
    }
}

/// Changes the kernel's action for a signal, whose handler never has SIGBUS blocked.
unsafe fn change_action(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let is_signal = (1..signals::relay::SIGNALS as c_int).contains(&signal);
    // SAFETY: the program's own arguments; copies on this stack go to the kernel.
    unsafe {
        let asked_before = is_signal.then(|| signals::relay::asked(signal));
        let wanted = new.as_ref().map(|asked| {
            // SIGBUS comes to the runtime's own handler as soon as there are faults.
            let is_none = [SIG_DFL, SIG_IGN].contains(&asked.sa_sigaction);
            let shares_memory = sharing::shares_memory();
            if shares_memory && !is_none && seam::has_fault_handler() {
                // Without the relay it would run on top of a fault of the child's.
                seam::keep_all_signals_out();
            }
            if !is_signal || is_none || signal == libc::SIGBUS || shares_memory {
                return Action { sa_mask: without_fault(&asked.sa_mask), ..*asked };
            }
            signals::relay::relayed(signal, asked)
        });
        let mut before = action(SIG_DFL, 0, 0);
        let set = real!(sigaction: fn(c_int, *const Action, *mut Action) -> c_int);
        let outcome = set(signal, pointer(&wanted), &mut before);
        if outcome == 0
            && let Some(old) = old.as_mut()
        {
            let asked = asked_before.filter(|_| signals::relay::is_relay(&before));
            *old = asked.unwrap_or(before);
        }
        outcome
    }
}

/// `signal` and its kin: they block the signal itself in its handler, if anything.
fn handle(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    if handler == SIG_ERR {
        seam::set_errno(libc::EINVAL);
        return SIG_ERR;
    }
    let new = action(handler, flags, if flags & SA_RESETHAND == 0 { bit(signal) } else { 0 });
    let mut old = action(SIG_DFL, 0, 0);
    // SAFETY: both actions are on this stack.
    let outcome = unsafe { sigaction_for_program(signal, &new, &mut old) };
    if outcome == 0 { old.sa_sigaction } else { SIG_ERR }
}

/// As BSD means `signal`.
fn handle_and_restart(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0;
    handle(signal, handler, if interrupts { 0 } else { SA_RESTART })
}

/// `siginterrupt`: whether the signal interrupts system calls.
unsafe fn interrupt(signal: c_int, interrupts: bool) -> c_int {
    let mut changed = action(SIG_DFL, 0, 0);
    // SAFETY: an action on this stack.
    unsafe {
        if sigaction_for_program(signal, null(), &mut changed) != 0 {
            return -1;
        }
        if interrupts {
            INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
            changed.sa_flags &= !SA_RESTART;
        } else {
            INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
            changed.sa_flags |= SA_RESTART;
        }
        sigaction_for_program(signal, &changed, null_mut())
    }
}

/// `sigset`: blocks the signal, or sets its handler and lets it in; answers what was before.
unsafe fn hold_or_handle(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let (mut known, mut before) = (action(SIG_DFL, 0, 0), of_word(0));
    // The program never blocks SIGBUS.
    let changed = of_word(bit(signal) & !FAULT_BIT);
    // SAFETY: sets and an action on this stack.
    unsafe {
        let (how, handled) = if handler == SIG_HOLD {
            let is_known = sigaction_for_program(signal, null(), &mut known) == 0;
            (libc::SIG_BLOCK, if is_known { known.sa_sigaction } else { SIG_ERR })
        } else {
            (libc::SIG_UNBLOCK, handle(signal, handler, 0))
        };
        if handled == SIG_ERR {
            return SIG_ERR;
        }
        libc::sigprocmask(how, &changed, &mut before);
        if libc::sigismember(&before, signal) == 1 { SIG_HOLD } else { handled }
    }
}
