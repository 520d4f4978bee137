//! Clock: time for latencies.
//!
//! Never: allocates; enters the kernel only where the vdso cannot answer. Also in a signal handler.

/// Nanoseconds since some fixed instant; never goes back.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for one timespec; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
