//! Signals: keep the program's signal handlers out while a thread is inside the runtime.
//!
//! Guarantees: `Blocked` puts the mask back as it was, on the same thread.
//! Never: blocks SIGBUS, SIGSEGV, SIGILL, SIGFPE: blocked, those kill instead of being handled; but
//! for the few instructions of `every`.
//! Threads: any, also in a signal handler. Straight to the kernel: no libc or preload wrapper
//! between.

use crate::errno::Saved;
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
/// setuid(2): libc has every thread change its own identity in a handler of it, and waits for all.
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
    let _errno = Saved::new();
    let mut old: Mask = 0;
    // SAFETY: both masks are of the kernel's size, 8 bytes, and live across the call. It cannot
    // fail with valid pointers and a valid `how`.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            core::ptr::from_ref(mask),
            core::ptr::from_mut(&mut old),
            size_of::<Mask>(),
        )
    };
    old
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

    /// The mask from before.
    pub fn before(&self) -> Mask {
        self.before
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(self.before);
    }
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
