//! Cancel: `pthread_cancel` and asynchronous cancellation, whose signal is libc's own.
//!
//! libc's handler of that signal ends the thread where it is, and it does not go through the relay.
//! So from the first call on the kernel blocks all signals for the fault handler. (A thread that is
//! in a cancellation point can be cancelled like that, too: libc makes it asynchronous meanwhile,
//! and a stack of the heap may fault there.)
//!
//! Never: allocates.
//! Threads: any.

use core::ffi::c_int;

use libc::pthread_t;

use crate::calls::{Opaque, calls};
use crate::seam;

const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

calls! {
    fn pthread_cancel(thread: pthread_t) -> c_int = by(|real| {
        seam::keep_all_signals_out();
        real(thread)
    });
    fn pthread_setcanceltype(kind: c_int, old: Opaque) -> c_int = by(|real| {
        if kind == PTHREAD_CANCEL_ASYNCHRONOUS {
            seam::keep_all_signals_out();
        }
        real(kind, old)
    });
}
