//! Clock: time for latencies.
//!
//! Never: allocates; enters the kernel only where the vdso cannot answer. Also in a signal handler.

/// Nanoseconds since some fixed instant; never goes back.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since the machine started, also those that it slept: the same in all processes.
pub fn boot_ns() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

/// Nanoseconds of CPU time that all threads of the process have used.
pub fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Nanoseconds of CPU time that this thread has used.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for one timespec; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
