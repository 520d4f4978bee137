//! Own descriptor: a file descriptor of deepheap's in a program that believes it knows all of its
//! own.
//!
//! Daemons close every descriptor, shells move theirs about with dup2. If that hit the store's file
//! or the userfaultfd, memory would be lost. So ours live high up, where programs rarely look, and
//! are known: whoever wraps `close` and its kin asks `is_own`.
//!
//! Guarantees: close-on-exec; `is_own` is exact for descriptors below 65536.
//! Never: allocates. `is_own` also in a signal handler.

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Descriptors that can be known.
const KNOWN_MAX: usize = 65_536;
/// Where ours begin, if the limit on open files allows.
const FLOOR: u64 = 900;

static OWN: [AtomicU64; KNOWN_MAX / 64] = [const { AtomicU64::new(0) }; KNOWN_MAX / 64];

/// A descriptor that the program must leave alone. Closed when dropped.
#[derive(Debug)]
pub struct OwnDescriptor(OwnedFd);

impl OwnDescriptor {
    /// Makes a descriptor ours, and moves it up if there is room.
    pub fn adopt(descriptor: OwnedFd) -> OwnDescriptor {
        // The one below is closed by its drop.
        let descriptor = high_duplicate(descriptor.as_raw_fd()).unwrap_or(descriptor);
        mark(descriptor.as_raw_fd(), true);
        OwnDescriptor(descriptor)
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

/// Notes a descriptor that something else owns for us (a library's ring).
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

/// A second descriptor of the same file, high up.
pub(crate) fn high_duplicate(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: duplicating a descriptor of ours; no memory arguments.
    let high = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, floor()) };
    // SAFETY: a fresh descriptor, nobody else's.
    (high >= 0).then(|| unsafe { OwnedFd::from_raw_fd(high) })
}

fn floor() -> i32 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for one rlimit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    FLOOR.min(limit.rlim_cur / 4 * 3) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_known_from_adoption_to_drop() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null"));
        let own = OwnDescriptor::adopt(file);
        let number = own.as_raw_fd();
        assert!(number >= floor(), "moved up");
        assert!(is_own(number));
        assert!(!is_own(-1) && !is_own(0));
        drop(own);
        assert!(!is_own(number));
    }
}
