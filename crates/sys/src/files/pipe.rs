//! Lifeline: tells one process that another has ended, or runs another program.
//!
//! A lifeline is a close-on-exec pipe with nothing in it. The watched process holds the link; when
//! the last copy of the link is closed, by exit or exec, the line is cut.
//!
//! Never: blocks, allocates.

use crate::errno::Result;
use crate::files::own_descriptor::OwnDescriptor;
use crate::raw_call::{Descriptor, raw_call_again};
use std::os::fd::AsRawFd;

/// The watching end.
#[derive(Debug)]
pub struct Lifeline(OwnDescriptor);

/// The end that the watched process holds.
#[derive(Debug)]
pub struct Lifelink(#[expect(dead_code, reason = "held to be closed")] OwnDescriptor);

/// A line and its link.
pub fn lifeline() -> Result<(Lifeline, Lifelink)> {
    let (line, link) = Descriptor::pipe()?;
    let (line, link) = (OwnDescriptor::adopt(line), OwnDescriptor::adopt(link));
    Ok((Lifeline(line), Lifelink(link)))
}

impl Lifeline {
    /// Whether every copy of the link is closed.
    pub fn is_cut(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: one byte of room.
        unsafe { raw_call_again!(SYS_read, self.0.as_raw_fd(), &raw mut byte, 1) == Ok(0) }
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
