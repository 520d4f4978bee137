//! Token: what one of several processes can take: those that a process has forked off, and itself.
//!
//! Guarantees: it is taken once, however many try at the same time.
//! Never: blocks | allocates.
//! Threads: any.

use std::os::fd::AsRawFd;

use crate::errno::Result;
use crate::files::own_descriptor::OwnDescriptor;
use crate::raw_call::{Descriptor, raw_call, raw_call_again};

/// See the file's header: an eventfd that counts 1.
pub struct Token(OwnDescriptor);

impl Token {
    /// One that nobody has taken. EMFILE: too many descriptors are open.
    pub fn new() -> Result<Token> {
        // SAFETY: no memory arguments; the new descriptor is nobody's but ours.
        unsafe {
            let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
            let made = raw_call!(SYS_eventfd2, 1, flags)?;
            Ok(Token(OwnDescriptor::adopt(Descriptor::new(made))))
        }
    }

    /// Whether it was there to be taken.
    pub fn take(&self) -> bool {
        let mut count = 0u64;
        let (fd, at, len) = (self.0.as_raw_fd(), &raw mut count, size_of::<u64>());
        // SAFETY: room for the 8 bytes that the kernel writes.
        unsafe { raw_call_again!(SYS_read, fd, at, len) }.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it() {
        let token = Token::new().expect("a descriptor");
        assert_eq!([token.take(), token.take()], [true, false]);
    }
}
