//! Signal wait: `sigwait`, `sigsuspend`, `signalfd` and their kin.
//!
//! Guarantees: SIGBUS is never waited for and never blocked meanwhile; a signal that was taken is
//! not lost to an evicted buffer.
//!
//! Threads: any.

use core::ffi::c_int;

use libc::{siginfo_t, sigset_t, timespec};

use crate::guarded::guarded;
use crate::real::real;
use crate::signal_mask::Unblocked;
use crate::waiting::hold;

guarded! {
    fn sigpending(set: *mut sigset_t) -> c_int = |pins| pins.value(set);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsuspend(mask: *const sigset_t) -> c_int {
    let real = real!(sigsuspend: unsafe extern "C" fn(*const sigset_t) -> c_int);
    // SAFETY: the program's own mask, copied.
    unsafe {
        let open = Unblocked::of(mask);
        real(open.pointer())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int {
    let real = real!(sigwait: unsafe extern "C" fn(*const sigset_t, *mut c_int) -> c_int);
    // SAFETY: the program's own set, copied.
    let open = unsafe { Unblocked::of(set) };
    let _held = hold(signal);
    // SAFETY: the program's own place for the answer.
    unsafe { real(open.pointer(), signal) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwaitinfo(set: *const sigset_t, information: *mut siginfo_t) -> c_int {
    let real = real!(sigwaitinfo: unsafe extern "C" fn(*const sigset_t, *mut siginfo_t) -> c_int);
    // SAFETY: the program's own set, copied.
    let open = unsafe { Unblocked::of(set) };
    let _held = hold(information);
    // SAFETY: the program's own place for the answer.
    unsafe { real(open.pointer(), information) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigtimedwait(
    set: *const sigset_t,
    information: *mut siginfo_t,
    time: *const timespec,
) -> c_int {
    let real = real!(
        sigtimedwait: unsafe extern "C" fn(
            *const sigset_t, *mut siginfo_t, *const timespec,
        ) -> c_int
    );
    // SAFETY: the program's own set, copied.
    let open = unsafe { Unblocked::of(set) };
    let _held = (hold(information), hold(time));
    // SAFETY: the program's own arguments.
    unsafe { real(open.pointer(), information, time) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn signalfd(descriptor: c_int, mask: *const sigset_t, flags: c_int) -> c_int {
    let real = real!(signalfd: unsafe extern "C" fn(c_int, *const sigset_t, c_int) -> c_int);
    // SAFETY: the program's own mask, copied.
    unsafe {
        let open = Unblocked::of(mask);
        real(descriptor, open.pointer(), flags)
    }
}
