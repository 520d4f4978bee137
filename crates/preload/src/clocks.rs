//! Clocks: time, sleeping and timers.
//!
//! Guarantees: as `guarded`. What remains of an interrupted sleep is never lost.
//!
//! Threads: any.

use core::ffi::{c_int, c_void};

use libc::{clock_t, clockid_t, itimerspec, itimerval, timespec, timeval, timex, tms};

use crate::guarded::{guarded, guarded_code, held};
use crate::waiting::hold;

guarded! {
    fn clock_gettime(clock: clockid_t, now: *mut timespec) -> c_int = |pins| pins.value(now);
    fn clock_getres(clock: clockid_t, step: *mut timespec) -> c_int = |pins| pins.value(step);
    fn clock_settime(clock: clockid_t, now: *const timespec) -> c_int = |pins| pins.value(now);
    fn gettimeofday(now: *mut timeval, zone: *mut c_void) -> c_int
        = |pins| { pins.value(now); pins.bytes(zone, 8) };
    fn settimeofday(now: *const timeval, zone: *const c_void) -> c_int
        = |pins| { pins.value(now); pins.bytes(zone, 8) };
    fn times(used: *mut tms) -> clock_t = |pins| pins.value(used);
    fn adjtimex(state: *mut timex) -> c_int = |pins| pins.value(state);
    fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int
        = |pins| { pins.value(time); pins.value(left) };
    fn getitimer(which: c_int, value: *mut itimerval) -> c_int = |pins| pins.value(value);
    fn setitimer(which: c_int, value: *const itimerval, old: *mut itimerval) -> c_int
        = |pins| { pins.value(value); pins.value(old) };
    fn timer_settime @ c"GLIBC_2.3.3"(
        timer: *mut c_void, flags: c_int, value: *const itimerspec, old: *mut itimerspec,
    ) -> c_int = |pins| { pins.value(value); pins.value(old) };
    fn timer_gettime @ c"GLIBC_2.3.3"(timer: *mut c_void, value: *mut itimerspec) -> c_int
        = |pins| pins.value(value);
    fn timerfd_settime(
        timer: c_int, flags: c_int, value: *const itimerspec, old: *mut itimerspec,
    ) -> c_int = |pins| { pins.value(value); pins.value(old) };
    fn timerfd_gettime(timer: c_int, value: *mut itimerspec) -> c_int = |pins| pins.value(value);
}

held! {
    // Says no errno.
    fn thrd_sleep(time: *const timespec, left: *mut timespec) -> c_int = (hold(time), hold(left));
}

guarded_code! {
    fn clock_nanosleep(
        clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec,
    ) = |pins| { pins.value(time); pins.value(left) };
}
