//! Signal action: `sigaction` and `signal`, with SIGBUS kept for the fault handler.
//!
//! Guarantees: no handler of the program runs with SIGBUS blocked, and each is called by the relay
//! (`signal_relay`), of which the program sees nothing. Once the runtime has its own handler for
//! SIGBUS, it keeps the program's action, shows it to the program, and calls it for faults that are
//! not ours. A child that shares our memory (`vfork`) changes the kernel's actions, which are its
//! own, and nothing that we remember.
//! Never: allocates; safe in signal handlers.
//!
//! Threads: any.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{
    SA_NODEFER, SA_RESETHAND, SA_RESTART, SIG_DFL, SIG_ERR, SIG_IGN, sigaction as Action,
    sighandler_t,
};

use crate::calls::calls;
use crate::real::real;
use crate::signal_set::{without_fault, word};
use crate::{own_process, seam, signal_relay};

type SetAction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

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
        // What the runtime keeps is the parent's in a child that shares our memory.
        let kept = if own_process::shares_memory() { null() } else { new };
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
    let is_signal = (1..signal_relay::SIGNALS as c_int).contains(&signal);
    // SAFETY: the program's own arguments; copies on this stack go to the kernel.
    unsafe {
        let asked_before = is_signal.then(|| signal_relay::asked(signal));
        let wanted = new.as_ref().map(|asked| {
            // SIGBUS comes to the runtime's own handler as soon as there are faults.
            let is_none = [SIG_DFL, SIG_IGN].contains(&asked.sa_sigaction);
            if !is_signal || is_none || signal == libc::SIGBUS || own_process::shares_memory() {
                return Action { sa_mask: without_fault(&asked.sa_mask), ..*asked };
            }
            signal_relay::relayed(signal, asked)
        });
        let wanted = wanted.as_ref().map_or(null(), core::ptr::from_ref);
        let mut before = MaybeUninit::<Action>::zeroed();
        let outcome = real!(sigaction: SetAction)(signal, wanted, before.as_mut_ptr());
        if outcome == 0
            && let Some(old) = old.as_mut()
        {
            let before = before.assume_init();
            let asked = asked_before.filter(|_| signal_relay::is_relay(&before));
            *old = asked.unwrap_or(before);
        }
        outcome
    }
}

/// `signal` and its kin: they block the signal itself in its handler, if anything.
fn handle(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: zeroed is a valid action; both actions are on this stack.
    unsafe {
        let mut new: Action = MaybeUninit::zeroed().assume_init();
        let mut old: Action = MaybeUninit::zeroed().assume_init();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if flags & SA_RESETHAND == 0 {
            libc::sigaddset(&mut new.sa_mask, signal);
        }
        if handler == SIG_ERR {
            seam::set_errno(libc::EINVAL);
            return SIG_ERR;
        }
        if sigaction_for_program(signal, &new, &mut old) != 0 {
            return SIG_ERR;
        }
        old.sa_sigaction
    }
}

/// As BSD means `signal`.
fn handle_and_restart(signal: c_int, handler: sighandler_t) -> sighandler_t {
    handle(
        signal,
        handler,
        if INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0 { 0 } else { SA_RESTART },
    )
}

/// `siginterrupt`: whether the signal interrupts system calls.
unsafe fn interrupt(signal: c_int, interrupts: bool) -> c_int {
    // SAFETY: zeroed is a valid action, on this stack.
    unsafe {
        let mut action: Action = MaybeUninit::zeroed().assume_init();
        if sigaction_for_program(signal, null(), &mut action) != 0 {
            return -1;
        }
        if interrupts {
            INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
            action.sa_flags &= !SA_RESTART;
        } else {
            INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
            action.sa_flags |= SA_RESTART;
        }
        sigaction_for_program(signal, &action, null_mut())
    }
}

/// `sigset`: blocks the signal, or sets its handler and lets it in; answers what was before.
unsafe fn hold_or_handle(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: zeroed is a valid set and a valid action, all on this stack.
    unsafe {
        let mut action: Action = MaybeUninit::zeroed().assume_init();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        let mut changed = before;
        let (how, handled) = if handler == SIG_HOLD {
            let known = sigaction_for_program(signal, null(), &mut action) == 0;
            (libc::SIG_BLOCK, if known { action.sa_sigaction } else { SIG_ERR })
        } else {
            (libc::SIG_UNBLOCK, handle(signal, handler, 0))
        };
        if handled == SIG_ERR {
            return SIG_ERR;
        }
        // The program never blocks SIGBUS.
        libc::sigaddset(&mut changed, if signal == libc::SIGBUS { 0 } else { signal });
        libc::sigprocmask(how, &changed, &mut before);
        if libc::sigismember(&before, signal) == 1 { SIG_HOLD } else { handled }
    }
}
