//! Memory file: shared memory with a name, which other processes find and open.
//!
//! Guarantees: close-on-exec, of its full size, and sealed against shrinking and growing if the
//! kernel can do that.
//! Never: allocates.
//! Threads: any.

use crate::errno::Result;
use crate::files::own_descriptor::OwnDescriptor;
use crate::raw_call::{Descriptor, raw_call};
use core::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

/// Makes a file of `bytes` zero bytes.
pub fn create(name: &CStr, bytes: usize) -> Result<OwnDescriptor> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the name ends with NUL; only we have the descriptor.
    unsafe {
        let file = Descriptor::new(raw_call!(SYS_memfd_create, name.as_ptr(), flags)?);
        raw_call!(SYS_ftruncate, file.as_raw_fd(), bytes)?;
        // A failure does no harm: seals only keep others from shrinking the file.
        let _ = raw_call!(SYS_fcntl, file.as_raw_fd(), libc::F_ADD_SEALS, seals);
        Ok(OwnDescriptor::adopt(file))
    }
}

/// Whether nobody can make the file behind a descriptor shorter.
pub fn keeps_length(descriptor: RawFd) -> bool {
    // SAFETY: no memory arguments.
    let seals = unsafe { raw_call!(SYS_fcntl, descriptor, libc::F_GET_SEALS) };
    seals.is_ok_and(|seals| seals & libc::F_SEAL_SHRINK as usize != 0)
}
