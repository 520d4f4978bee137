//! Polling: `poll`, `select`, `epoll`, and waits for signals.
//!
//! Guarantees: as `calls` says of each row. The small arrays that these calls write when they wake
//! are pinned while they wait. SIGBUS is never waited for, and never blocked meanwhile. An evicted
//! buffer never loses a signal that was taken.
//! Threads: any.

use core::ffi::{c_int, c_void};

use libc::{epoll_event, nfds_t, pollfd, siginfo_t, sigset_t, size_t, timespec, timeval};

use crate::calls::calls;

calls! {
    fn poll(list: *mut pollfd [count], count: nfds_t, timeout_ms: c_int) -> c_int = pin;
    fn __poll_chk(list: *mut pollfd [count], count: nfds_t, timeout_ms: c_int, size: size_t)
        -> c_int = pin;
    fn select(
        count: c_int, read: *mut c_void [set_bytes(count)], write: *mut c_void [set_bytes(count)],
        other: *mut c_void [set_bytes(count)], timeout: *mut timeval,
    ) -> c_int = pin;
    fn epoll_wait(epoll: c_int, events: *mut epoll_event [room], room: c_int, timeout_ms: c_int)
        -> c_int = pin;
    fn epoll_ctl(epoll: c_int, operation: c_int, descriptor: c_int, event: *mut epoll_event)
        -> c_int = pin;
    fn ppoll(
        list: *mut pollfd [count], count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int = pin(open mask);
    fn __ppoll_chk(
        list: *mut pollfd [count], count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        size: size_t,
    ) -> c_int = pin(open mask);
    fn pselect(
        count: c_int, read: *mut c_void [set_bytes(count)], write: *mut c_void [set_bytes(count)],
        other: *mut c_void [set_bytes(count)], timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int = pin(open mask);
    fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event [room], room: c_int, timeout_ms: c_int,
        mask: *const sigset_t,
    ) -> c_int = pin(open mask);
    fn epoll_pwait2(
        epoll: c_int, events: *mut epoll_event [room], room: c_int, timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int = pin(open mask);

    fn sigpending(set: *mut sigset_t) -> c_int = pin;
    fn sigsuspend(mask: *const sigset_t) -> c_int = hold(open mask);
    fn sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int = hold(open set);
    fn sigwaitinfo(set: *const sigset_t, information: *mut siginfo_t) -> c_int = hold(open set);
    fn sigtimedwait(set: *const sigset_t, information: *mut siginfo_t, time: *const timespec)
        -> c_int = hold(open set);
    fn signalfd(descriptor: c_int, mask: *const sigset_t, flags: c_int) -> c_int
        = hold(open mask);
}

/// Bytes of a descriptor set with `count` descriptors, in the kernel's words.
fn set_bytes(count: c_int) -> usize {
    usize::try_from(count).unwrap_or(0).div_ceil(64) * 8
}
