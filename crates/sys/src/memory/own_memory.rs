//! Own memory: copies bytes of this process that a plain load could fault on.
//!
//! The kernel copies, and stops where a load would raise a signal: at a page that is missing from
//! registered memory, or that the program has protected. Other threads may write meanwhile; then
//! the copy is a mix of old and new bytes.
//!
//! Never: allocates | raises a signal.
//! Threads: any.

use crate::errno::{Errno, Result};
use crate::raw_call::raw_call;

/// Parts that one call copies.
pub const PARTS_MAX: usize = 64;

/// Bytes to copy.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Where they are.
    pub from: usize,
    /// Where they go.
    pub to: *mut u8,
    /// How many.
    pub length: usize,
}

/// Copies the parts, at most `PARTS_MAX`, one after the other; returns how many were copied whole.
///
/// # Errors
/// ENOSYS, EPERM: a seccomp filter forbids process_vm_readv(2).
///
/// # Safety
/// The target of each copy is the caller's, that long, and can be written without a fault.
pub unsafe fn copy(parts: &[Part]) -> Result<usize> {
    const NONE: libc::iovec = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
    let (mut to, mut from) = ([NONE; PARTS_MAX], [NONE; PARTS_MAX]);
    let count = parts.len().min(PARTS_MAX);
    for (index, part) in parts[..count].iter().enumerate() {
        to[index] = libc::iovec { iov_base: part.to.cast(), iov_len: part.length };
        let address = core::ptr::without_provenance_mut(part.from);
        from[index] = libc::iovec { iov_base: address, iov_len: part.length };
    }
    // SAFETY: the lists are ours, and what is written to is the caller's promise.
    let copied = unsafe {
        let own = raw_call!(SYS_getpid)?;
        let (to, from) = (to.as_ptr(), from.as_ptr());
        raw_call!(SYS_process_vm_readv, own, to, count, from, count, 0)
    };
    let mut left = match copied {
        Ok(bytes) => bytes,
        Err(Errno::EFAULT) => 0,
        Err(errno) => return Err(errno),
    };
    let whole = parts[..count].iter().take_while(|part| {
        let is_whole = part.length <= left;
        left = left.saturating_sub(part.length);
        is_whole
    });
    Ok(whole.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::memory::mapping::{self, Advice};
    use crate::memory::pinned_array::PinnedArray;
    use crate::memory::userfaultfd::Userfaultfd;

    #[test]
    fn it_copies_up_to_what_is_missing_or_protected() {
        let uffd = Userfaultfd::open().expect("userfaultfd");
        let memory = PinnedArray::<u8>::new(4 * PAGE).expect("memory");
        let at = memory.as_ptr() as usize;
        // SAFETY: memory of the test's own.
        unsafe { memory.as_ptr().write_bytes(7, 4 * PAGE) };
        uffd.register_missing(at, 4 * PAGE).expect("registered");
        let mut bytes = vec![0u8; 4 * PAGE];
        let to = bytes.as_mut_ptr();
        let part = |page: usize| {
            // SAFETY: so long.
            let to = unsafe { to.add(page * PAGE) };
            Part { from: at + page * PAGE, to, length: PAGE }
        };
        // SAFETY: the parts are ours.
        unsafe {
            assert_eq!(copy(&[part(0), part(1), part(2), part(3)]), Ok(4));
            assert!(bytes.iter().all(|&byte| byte == 7));
            mapping::advise((at + 2 * PAGE) as *mut u8, PAGE, Advice::DontNeed).expect("memory");
            assert_eq!(copy(&[part(0), part(1), part(2), part(3)]), Ok(2));
            assert_eq!(libc::mprotect((at + PAGE) as *mut _, PAGE, libc::PROT_NONE), 0);
            assert_eq!(copy(&[part(1)]), Ok(0));
            assert_eq!(copy(&[part(3)]), Ok(1));
            assert_eq!(libc::mprotect((at + PAGE) as *mut _, PAGE, libc::PROT_READ), 0);
        }
    }
}
