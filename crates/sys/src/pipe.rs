//! Lifeline: tells one process that another is gone, or runs another program.
//!
//! A close-on-exec pipe with nothing in it. The one that is watched holds the link; when its last
//! copy is closed, by exit or exec, the line is cut.
//!
//! Never: blocks, allocates.

use crate::errno::{Errno, Result, check};
use crate::own_descriptor::OwnDescriptor;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The watching end.
#[derive(Debug)]
pub struct Lifeline(OwnDescriptor);

/// The end that the watched process holds.
#[derive(Debug)]
pub struct Lifelink(#[expect(dead_code, reason = "held to be closed")] OwnDescriptor);

/// A line and its link.
pub fn lifeline() -> Result<(Lifeline, Lifelink)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) }.into())?;
    // SAFETY: fresh descriptors, nobody else's.
    let [line, link] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let (line, link) = (OwnDescriptor::adopt(line), OwnDescriptor::adopt(link));
    Ok((Lifeline(line), Lifelink(link)))
}

impl Lifeline {
    /// Whether every copy of the link is closed.
    pub fn is_cut(&self) -> bool {
        let mut byte = 0u8;
        loop {
            // SAFETY: one byte of room.
            match unsafe { libc::read(self.0.as_raw_fd(), (&raw mut byte).cast(), 1) } {
                0 => return true,
                n if n < 0 && Errno::last() == Errno::EINTR => {}
                _ => return false,
            }
        }
    }
}

impl Lifelink {
    /// Holds the link until the process ends or execs.
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_cut_when_the_last_link_goes() {
        let (line, link) = lifeline().expect("pipe");
        assert!(!line.is_cut());
        drop(link);
        assert!(line.is_cut());
    }
}
