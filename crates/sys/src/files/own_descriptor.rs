//! Own descriptor: a file descriptor of deepheap's in a program that believes it knows all of its
//! own.
//!
//! Daemons close every descriptor, and shells move theirs about with dup2. If that hit the store's
//! file or the userfaultfd, memory would be lost. So ours have high numbers, which programs rarely
//! use, and are marked: wrappers of `close` and similar calls ask `is_own`.
//!
//! Guarantees: close-on-exec; `is_own` is exact for descriptors below 65536.
//! Never: allocates. `is_own` also in a signal handler.

use crate::raw_call::{Descriptor, raw_call};
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, RawFd};

/// Descriptors below this number can be marked.
const KNOWN_MAX: usize = 65_536;
/// The first number of ours, if the limit on open files allows.
const FLOOR: u64 = 900;

static OWN: [AtomicU64; KNOWN_MAX / 64] = [const { AtomicU64::new(0) }; KNOWN_MAX / 64];

/// A descriptor that the program must leave alone. Closed when dropped.
#[derive(Debug)]
pub struct OwnDescriptor(Descriptor);

impl OwnDescriptor {
    /// Marks a descriptor as ours, and moves it to a high number if one is free.
    pub fn adopt(descriptor: Descriptor) -> OwnDescriptor {
        // Dropping the low one closes it.
        let descriptor = high_duplicate(descriptor.as_raw_fd()).unwrap_or(descriptor);
        mark(descriptor.as_raw_fd(), true);
        OwnDescriptor(descriptor)
    }

    /// A second descriptor of an open file. None if it is not open, or there are too many.
    pub fn duplicate(descriptor: RawFd) -> Option<OwnDescriptor> {
        high_duplicate(descriptor).map(OwnDescriptor::adopt)
    }

    /// Gives up the guard: the descriptor stays open, and marked, under its number.
    pub fn keep(self) -> RawFd {
        core::mem::ManuallyDrop::new(self).as_raw_fd()
    }

    /// Takes back what `keep` left open.
    ///
    /// # Safety
    /// `number` was answered by `keep` in this process, or in the parent that it forked off, has
    /// not been taken back, and nobody has closed it since.
    pub unsafe fn take_back(number: RawFd) -> OwnDescriptor {
        // SAFETY: the caller's promise.
        OwnDescriptor(unsafe { Descriptor::new(number as usize) })
    }
}

impl AsRawFd for OwnDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for OwnDescriptor {
    fn drop(&mut self) {
        mark(self.0.as_raw_fd(), false);
    }
}

/// Whether the descriptor is one of ours.
pub fn is_own(descriptor: RawFd) -> bool {
    let index = descriptor as usize;
    index < KNOWN_MAX && OWN[index / 64].load(Ordering::Relaxed) & (1 << (index % 64)) != 0
}

/// Whether a descriptor is open.
pub fn is_open(descriptor: RawFd) -> bool {
    // SAFETY: no memory arguments.
    unsafe { raw_call!(SYS_fcntl, descriptor, libc::F_GETFD, 0) }.is_ok()
}

/// Marks a descriptor that other code owns for us (a library's ring).
pub(crate) fn mark(descriptor: RawFd, own: bool) {
    let index = descriptor as usize;
    if index >= KNOWN_MAX {
        return;
    }
    let bit = 1 << (index % 64);
    if own {
        OWN[index / 64].fetch_or(bit, Ordering::Relaxed);
    } else {
        OWN[index / 64].fetch_and(!bit, Ordering::Relaxed);
    }
}

/// A second descriptor of the same file, with a high number.
pub(crate) fn high_duplicate(descriptor: RawFd) -> Option<Descriptor> {
    // SAFETY: no memory arguments; the new descriptor is nobody's but ours.
    unsafe {
        let high = raw_call!(SYS_fcntl, descriptor, libc::F_DUPFD_CLOEXEC, floor()).ok()?;
        Some(Descriptor::new(high))
    }
}

fn floor() -> i32 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for one rlimit.
    let _ = unsafe { raw_call!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit) };
    FLOOR.min(limit.rlim_cur / 4 * 3) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_known_from_adoption_to_drop() {
        let file = Descriptor::open(c"/dev/null", libc::O_RDONLY, 0).expect("/dev/null");
        let own = OwnDescriptor::adopt(file);
        let number = own.as_raw_fd();
        assert!(number >= floor(), "moved up");
        assert!(is_own(number));
        assert!(!is_own(-1) && !is_own(0));
        drop(own);
        assert!(!is_own(number));
    }
}
