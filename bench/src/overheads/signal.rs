//! Signal: the round trip of a synchronous fault signal, without anything done about it.
//!
//! A load from a page without permissions; the handler moves the program counter behind the load
//! and returns.
//!
//! Guarantees: a fault anywhere else meets what was installed before; it is installed again at the
//! end.
//! Threads: one measurement at a time in a process.

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::failure::Failure;
use crate::gauges;

const PAGE: usize = 4096;
const TRIPS: u64 = 200_000;
/// Bytes of `mov al, [rdi]`.
const LOAD_BYTES: i64 = 2;

/// The page that may fault.
static FORBIDDEN: AtomicUsize = AtomicUsize::new(0);

/// CPU time from the load to the instruction behind it, microseconds.
pub fn round_trip_us() -> Result<f64, Failure> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(Failure::last_os("mmap of a page"));
    }
    FORBIDDEN.store(page as usize, Ordering::SeqCst);
    // SAFETY: a sigaction of zeros is valid: no flags, empty mask.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_flags = libc::SA_SIGINFO;
    action.sa_sigaction =
        skip as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: valid actions; the handler is async-signal-safe.
    if unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) } != 0 {
        return Err(Failure::last_os("sigaction"));
    }
    for _ in 0..TRIPS / 10 {
        load(page as *const u8);
    }
    let started_ns = gauges::thread_cpu_ns();
    for _ in 0..TRIPS {
        load(page as *const u8);
    }
    let us = (gauges::thread_cpu_ns() - started_ns) as f64 / 1e3 / TRIPS as f64;
    // SAFETY: the action of before; the mapping made above, which nobody uses any more.
    unsafe {
        libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut());
        libc::munmap(page, PAGE);
    }
    Ok(us)
}

#[inline]
fn load(page: *const u8) {
    // SAFETY: `mov al, [rdi]`, as bytes so that its length is known; the fault it raises is
    // answered by `skip`, which continues behind it. It writes al only.
    unsafe { asm!(".byte 0x8a, 0x07", in("rdi") page, out("al") _, options(nostack)) };
}

extern "C" fn skip(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo of a fault to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    if address != FORBIDDEN.load(Ordering::Relaxed) {
        // A fault of something else: let it happen again as if we were not here.
        // SAFETY: signal is async-signal-safe.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the kernel hands a valid context; the program counter is at the load of `load`.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += LOAD_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_its_time_and_comes_back() {
        assert!(round_trip_us().is_ok_and(|us| us > 0.05 && us < 1000.0));
    }
}
