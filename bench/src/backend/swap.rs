//! Swap: anonymous memory of 4 KiB pages that the kernel swaps out at the limit of the cgroup.

use core::ptr;

use crate::failure::Failure;

/// Maps `bytes` of anonymous memory without huge pages.
pub fn map(bytes: u64) -> Result<*mut u8, Failure> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes as usize, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(Failure::last_os(format!("mmap of {bytes} bytes")));
    }
    // Fails on kernels without huge pages, where there is nothing to switch off.
    // SAFETY: exactly the mapping made above.
    unsafe { libc::madvise(base, bytes as usize, libc::MADV_NOHUGEPAGE) };
    Ok(base.cast())
}
