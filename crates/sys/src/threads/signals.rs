//! Signals: keep the program's signal handlers out while a thread is inside the runtime.
//!
//! Guarantees: `Blocked` puts the mask back as it was, on the same thread.
//! Never: blocks SIGBUS, SIGSEGV, SIGILL, SIGFPE, except for the few instructions under `every`:
//! while they are blocked they kill instead of being handled.
//! Threads: any, also in a signal handler. Calls go straight to the kernel, with no wrapper of libc
//! or preload between.

use crate::raw_call::raw_call;
use crate::threads::tls;
use core::marker::PhantomData;

/// A set of signals as the kernel keeps it: bit n-1 is signal n.
pub type Mask = u64;

/// The bit of a signal.
pub const fn bit(signal: i32) -> Mask {
    1 << (signal - 1)
}

/// The signals that an instruction of the thread itself can cause.
pub const SYNCHRONOUS: Mask =
    bit(libc::SIGBUS) | bit(libc::SIGSEGV) | bit(libc::SIGILL) | bit(libc::SIGFPE);

/// The two signals that libc keeps for itself. A worker that blocked 33 would hang the program's
/// setuid(2): there every thread changes its own identity in the handler of that signal, and libc
/// waits for all.
pub const LIBC_INTERNAL: Mask = bit(32) | bit(33);

/// Sets the calling thread's mask and answers the old one.
pub fn set_mask(mask: Mask) -> Mask {
    change(libc::SIG_SETMASK, &mask)
}

/// The calling thread's mask.
pub fn mask() -> Mask {
    change(libc::SIG_BLOCK, &0)
}

fn change(how: i32, mask: &Mask) -> Mask {
    let mut old: Mask = 0;
    // SAFETY: both masks are of the kernel's size, 8 bytes, and live across the call. It cannot
    // fail with valid pointers and a valid `how`.
    let _ = unsafe {
        let (mask, old) = (core::ptr::from_ref(mask), core::ptr::from_mut(&mut old));
        raw_call!(SYS_rt_sigprocmask, how, mask, old, size_of::<Mask>())
    };
    old
}

/// Opens SIGBUS for the calling thread, once: a program that links us may have blocked all signals,
/// and would die of its first fault. Signals that it blocks later are its own affair.
#[inline]
pub fn open_fault_signal() {
    // SAFETY: the calling thread's own area.
    unsafe {
        if !(*tls::area()).is_open {
            (*tls::area()).is_open = true;
            change(libc::SIG_UNBLOCK, &bit(libc::SIGBUS));
        }
    }
}

/// While it lives, no handler of the program interrupts this thread.
#[derive(Debug)]
#[must_use = "signals are let in again when the guard is dropped"]
pub struct Blocked {
    before: Mask,
    // The mask belongs to the thread: `*const ()` makes the guard !Send.
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks every signal but the synchronous ones and libc's own.
    pub fn all() -> Self {
        let before = change(libc::SIG_BLOCK, &!(SYNCHRONOUS | LIBC_INTERNAL));
        Blocked { before, _stays_on_its_thread: PhantomData }
    }

    /// Blocks every signal, the synchronous ones too: only around code that cannot fault.
    pub(crate) fn every() -> Self {
        let before = change(libc::SIG_BLOCK, &Mask::MAX);
        Blocked { before, _stays_on_its_thread: PhantomData }
    }

    /// The mask that was set before.
    pub fn before(&self) -> Mask {
        self.before
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// While it lives, a write of this thread beyond RLIMIT_FSIZE is answered with EFBIG and nothing
/// else: the SIGXFSZ that the kernel sends along never arrives. For what is written on behalf of
/// the runtime; a SIGXFSZ that was pending before stays so. It blocks the others as well: one that
/// came meanwhile and changed the mask for the rest of a fault (`faults::deferral`) would find it
/// changed back.
#[derive(Debug)]
#[must_use = "the signal is let in again when the guard is dropped"]
pub(crate) struct NoFileSizeSignal {
    was_pending: bool,
    _blocked: Blocked,
}

impl NoFileSizeSignal {
    /// Keeps the signal away from now on.
    pub(crate) fn new() -> Self {
        let blocked = Blocked::all();
        let was_pending = pending() & bit(libc::SIGXFSZ) != 0;
        NoFileSizeSignal { was_pending, _blocked: blocked }
    }
}

impl Drop for NoFileSizeSignal {
    fn drop(&mut self) {
        if !self.was_pending {
            take_pending(bit(libc::SIGXFSZ));
        }
    }
}

/// The pending signals.
fn pending() -> Mask {
    let mut pending: Mask = 0;
    // SAFETY: the kernel writes 8 bytes, of the size that it is told. It cannot fail.
    let _ = unsafe { raw_call!(SYS_rt_sigpending, &raw mut pending, size_of::<Mask>()) };
    pending
}

/// Takes one of these blocked signals back if it is pending.
fn take_pending(signals: Mask) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (signals, at_once) = (&raw const signals, &raw const at_once);
    // SAFETY: the kernel reads 8 bytes of mask and a timespec; there is nothing to be written. That
    // no signal waits is no error here.
    let _ = unsafe { raw_call!(SYS_rt_sigtimedwait, signals, 0, at_once, size_of::<Mask>()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_keeps_synchronous_signals_and_restores_the_rest() {
        let before = mask();
        {
            let blocked = Blocked::all();
            assert_eq!(blocked.before(), before);
            assert_ne!(mask() & bit(libc::SIGUSR1), 0);
            assert_eq!(mask() & SYNCHRONOUS, before & SYNCHRONOUS);
        }
        assert_eq!(mask(), before);
    }
}
