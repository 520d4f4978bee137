//! Clocks: time, sleeping and timers.
//!
//! Guarantees: as `calls` says of each row. The rest of an interrupted sleep is never lost.
//! Threads: any.

use core::ffi::{c_int, c_void};

use libc::{clock_t, clockid_t, itimerspec, itimerval, timespec, timeval, timex, tms};

use crate::buffers::guarded::{Code, guard};
use crate::calls::{Opaque, calls};

calls! {
    // Deepheap reads the clock below a pin, and with locks held that a pin takes.
    fn clock_gettime(clock: clockid_t, now: *mut timespec) -> c_int
        = program(|real| guard(|pins| pins.value(now), || real(clock, now)));
    fn clock_getres(clock: clockid_t, step: *mut timespec) -> c_int = pin;
    fn clock_settime(clock: clockid_t, now: *const timespec) -> c_int = pin;
    fn gettimeofday(now: *mut timeval, zone: *mut c_void [8]) -> c_int = pin;
    fn settimeofday(now: *const timeval, zone: *const c_void [8]) -> c_int = pin;
    fn times(used: *mut tms) -> clock_t = pin;
    fn adjtimex, ntp_adjtime(state: *mut timex) -> c_int = pin;
    fn clock_adjtime(clock: clockid_t, state: *mut timex) -> c_int = pin;
    fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int = pin;
    fn getitimer(which: c_int, value: *mut itimerval) -> c_int = pin;
    fn setitimer(which: c_int, value: *const itimerval, old: *mut itimerval) -> c_int = pin;
    fn timer_settime @ c"GLIBC_2.3.3"(
        timer: Opaque, flags: c_int, value: *const itimerspec, old: *mut itimerspec,
    ) -> c_int = pin;
    fn timer_gettime @ c"GLIBC_2.3.3"(timer: Opaque, value: *mut itimerspec) -> c_int = pin;
    fn timerfd_settime(timer: c_int, flags: c_int, value: *const itimerspec, old: *mut itimerspec)
        -> c_int = pin;
    fn timerfd_gettime(timer: c_int, value: *mut itimerspec) -> c_int = pin;
    // Held, for they say no errno.
    fn timespec_get(now: *mut timespec, base: c_int) -> c_int = hold;
    fn timespec_getres(step: *mut timespec, base: c_int) -> c_int = hold;
    fn thrd_sleep(time: *const timespec, left: *mut timespec) -> c_int = hold;
    fn clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec)
        -> Code = pin;
}
