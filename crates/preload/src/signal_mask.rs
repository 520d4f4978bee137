//! Signal mask: SIGBUS is never blocked, whatever the program asks for.
//!
//! A synchronous SIGBUS while it is blocked kills the process, so it is taken out of every mask on
//! its way to the kernel. What the program believes is remembered for each thread and shown to it
//! again.
//!
//! Guarantees: the kernel only ever sees sets on this stack, so a set on the heap cannot meet
//! EFAULT.
//! Never: allocates; safe in signal handlers.
//!
//! Threads: any, each for itself; one that libc made begins with `open_in_foreign_thread`. A mask
//! restored by `siglongjmp` or by returning from a handler does not change the belief.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::null;

use libc::{pthread_attr_t, sigset_t};

use crate::program_call::for_program;
use crate::real::real;
use crate::thread_state;

/// SIGBUS's bit in the first word of a set.
pub const FAULT_BIT: u64 = 1 << (libc::SIGBUS - 1);

/// The first word of a set: signals 1 to 64.
pub fn word(set: &sigset_t) -> u64 {
    // SAFETY: a sigset_t is an array of 64-bit words.
    unsafe { (&raw const *set).cast::<u64>().read() }
}

/// A copy of the set without SIGBUS.
pub fn without_fault(set: &sigset_t) -> sigset_t {
    let mut open = *set;
    // SAFETY: as `word`.
    unsafe { *(&raw mut open).cast::<u64>() &= !FAULT_BIT };
    open
}

fn with_fault(set: &mut sigset_t) {
    // SAFETY: as `word`.
    unsafe { *(&raw mut *set).cast::<u64>() |= FAULT_BIT };
}

/// A program's mask without SIGBUS, or none.
pub struct Unblocked {
    set: Option<sigset_t>,
}

impl Unblocked {
    /// Copies the mask.
    ///
    /// # Safety
    /// `mask` is null or points to a set.
    pub unsafe fn of(mask: *const sigset_t) -> Unblocked {
        // SAFETY: the caller's promise.
        Unblocked { set: unsafe { mask.as_ref() }.map(without_fault) }
    }

    /// The copy, or null.
    pub fn pointer(&self) -> *const sigset_t {
        self.set.as_ref().map_or(null(), |set| &raw const *set)
    }
}

type SetMask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// Changes the mask through `set_mask` and keeps the program's belief about SIGBUS.
unsafe fn change(set_mask: SetMask, how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    let mut before = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: the program's sets, copied; this thread's own block.
    unsafe {
        let state = thread_state::current();
        let asked = new.as_ref().map(word);
        let open = Unblocked::of(new);
        let outcome = set_mask(how, open.pointer(), before.as_mut_ptr());
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
            let mut shown = before.assume_init();
            if believed {
                with_fault(&mut shown);
            }
            // The kernel's sets have one word; libc leaves the others of the program's set alone.
            *old.cast::<u64>() = word(&shown);
        }
        outcome
    }
}

/// Lets SIGBUS through in a thread that libc made with a mask of its own; the program goes on
/// believing in that mask.
pub fn open_in_foreign_thread() {
    let set_mask = real!(pthread_sigmask: SetMask);
    let mut fault = MaybeUninit::<sigset_t>::zeroed();
    let mut before = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: sets on this stack, zeroed and so valid; this thread's own block.
    unsafe {
        with_fault(fault.assume_init_mut());
        if set_mask(libc::SIG_UNBLOCK, fault.as_ptr(), before.as_mut_ptr()) == 0 {
            let was_blocked = word(before.assume_init_ref()) & FAULT_BIT != 0;
            (*thread_state::current()).believes_blocked = was_blocked;
        }
    }
}

for_program! {
    fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int
        => sigprocmask_for_program;
    fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int
        => pthread_sigmask_for_program;
}

unsafe extern "C" fn sigprocmask_for_program(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { change(real!(sigprocmask: SetMask), how, new, old) }
}

unsafe extern "C" fn pthread_sigmask_for_program(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { change(real!(pthread_sigmask: SetMask), how, new, old) }
}

/// The system call, for programs that make it through `syscall`: sets of one word.
pub unsafe fn change_word(how: c_int, new: *const u64, old: *mut u64) -> c_int {
    let mut wanted = MaybeUninit::<sigset_t>::zeroed();
    let mut before = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: one-word sets of the program; zeroed is a valid set.
    unsafe {
        let mut asked = null();
        if !new.is_null() {
            *wanted.as_mut_ptr().cast::<u64>() = *new;
            asked = wanted.as_ptr();
        }
        let outcome = sigprocmask_for_program(how, asked, before.as_mut_ptr());
        if outcome == 0 && !old.is_null() {
            *old = word(&before.assume_init());
        }
        outcome
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_setsigmask_np(
    attributes: *mut pthread_attr_t,
    mask: *const sigset_t,
) -> c_int {
    let real = real!(
        pthread_attr_setsigmask_np: unsafe extern "C" fn(
            *mut pthread_attr_t, *const sigset_t,
        ) -> c_int
    );
    // SAFETY: the program's own arguments; the mask is copied by libc.
    unsafe {
        let open = Unblocked::of(mask);
        real(attributes, open.pointer())
    }
}

/// BSD's masks are the low word of a set.
type BsdMask = unsafe extern "C" fn(c_int) -> c_int;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigblock(mask: c_int) -> c_int {
    // SAFETY: a number.
    unsafe { real!(sigblock: BsdMask)(mask & !(FAULT_BIT as c_int)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsetmask(mask: c_int) -> c_int {
    // SAFETY: a number.
    unsafe { real!(sigsetmask: BsdMask)(mask & !(FAULT_BIT as c_int)) }
}

/// System V's `sighold`: blocks one signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sighold(signal: c_int) -> c_int {
    if signal == libc::SIGBUS {
        // SAFETY: this thread's own block.
        unsafe { (*thread_state::current()).believes_blocked = true };
        return 0;
    }
    // SAFETY: a number.
    unsafe { real!(sighold: BsdMask)(signal) }
}
