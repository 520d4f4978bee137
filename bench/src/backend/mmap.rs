//! mmap: an unlinked file under --dir, mapped MAP_SHARED, advised for the pattern of the run.

use core::ptr;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::failure::Failure;
use crate::workload::{Pattern, Workload};

/// Makes the file, without a name, with all its blocks allocated, and maps it.
pub fn map(workload: &Workload) -> Result<*mut u8, Failure> {
    let bytes = workload.dense_bytes() as usize;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(&workload.dir)
        .map_err(|error| {
            Failure::os(format!("file without a name in {}", workload.dir.display()), &error)
        })?;
    // SAFETY: an open descriptor; plain numbers.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) } != 0 {
        return Err(Failure::last_os(format!("{bytes} bytes in {}", workload.dir.display())));
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, of a file of that length that
    // nobody else can open or shorten.
    let base = unsafe {
        libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if base == libc::MAP_FAILED {
        return Err(Failure::last_os(format!("mmap of {bytes} bytes")));
    }
    let advice = match workload.pattern {
        Pattern::Sequential => libc::MADV_SEQUENTIAL,
        Pattern::Scans(_) | Pattern::Stride(_) => libc::MADV_NORMAL,
        Pattern::Uniform | Pattern::Zipf(_) | Pattern::Chase | Pattern::Hot => libc::MADV_RANDOM,
    };
    // SAFETY: exactly the mapping made above.
    if unsafe { libc::madvise(base, bytes, advice) } != 0 {
        return Err(Failure::last_os("madvise"));
    }
    Ok(base.cast())
}
