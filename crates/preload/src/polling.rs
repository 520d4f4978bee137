//! Polling: `poll`, `select`, `epoll`.
//!
//! Guarantees: as `guarded`; the small arrays these calls write when they wake are pinned while
//! they wait. The signal masks of `ppoll`, `pselect` and `epoll_pwait` never block SIGBUS.
//!
//! Threads: any.

use core::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::guarded::guarded;
use crate::real::real;
use crate::signal_mask::Unblocked;

/// Bytes of a descriptor set with `count` descriptors, in the kernel's words.
fn set_bytes(count: c_int) -> usize {
    usize::try_from(count).unwrap_or(0).div_ceil(64) * 8
}

guarded! {
    fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int
        = |pins| pins.array(list, count as usize);
    fn __poll_chk(list: *mut pollfd, count: nfds_t, timeout_ms: c_int, size: size_t) -> c_int
        = |pins| pins.array(list, count as usize);
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int = |pins| {
        pins.bytes(read, set_bytes(count));
        pins.bytes(write, set_bytes(count));
        pins.bytes(other, set_bytes(count));
        pins.value(timeout)
    };
    fn epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int
        = |pins| pins.array(events, usize::try_from(room).unwrap_or(0));
    fn epoll_ctl(epoll: c_int, operation: c_int, descriptor: c_int, event: *mut epoll_event)
        -> c_int = |pins| pins.value(event);
}

/// As `guarded!`, with the signal mask `$mask` replaced by one that leaves SIGBUS open.
macro_rules! masked {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?), $mask:ident
        = |$pins:ident| $buffers:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let real = real!($name: unsafe extern "C" fn($($type),*) -> c_int);
            // SAFETY: the program's own mask, or null.
            let open = unsafe { Unblocked::of($mask) };
            let $mask = open.pointer();
            crate::guarded::guard(
                |$pins: &mut crate::pins::Pins| { $buffers; },
                // SAFETY: the program's own arguments, and a mask on this stack.
                || unsafe { real($($argument),*) },
            )
        }
    )*};
}

masked! {
    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t),
        mask = |pins| { pins.array(list, count as usize); pins.value(timeout) };
    fn __ppoll_chk(
        list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        size: size_t,
    ), mask = |pins| { pins.array(list, count as usize); pins.value(timeout) };
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ), mask = |pins| {
        pins.bytes(read, set_bytes(count));
        pins.bytes(write, set_bytes(count));
        pins.bytes(other, set_bytes(count));
        pins.value(timeout)
    };
    fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int,
        mask: *const sigset_t,
    ), mask = |pins| pins.array(events, usize::try_from(room).unwrap_or(0));
    fn epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec,
        mask: *const sigset_t,
    ), mask = |pins| {
        pins.array(events, usize::try_from(room).unwrap_or(0));
        pins.value(timeout)
    };
}
