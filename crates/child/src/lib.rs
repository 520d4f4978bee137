//! Child: a forked process of a test.
//!
//! Guarantees: a child that panics says so on stderr, though the test harness keeps what is printed
//! in memory that ends with the child; it ends without the clean-up of its parent.
//! Never: in a product. A child has one thread, and needs no lock of another: glibc makes malloc
//! and stdio usable in it, and the harness's other thread only waits.
//! Threads: any.

pub mod traced;

use std::io::{Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

/// Exit status of a child that panicked.
pub const PANICKED: i32 = 101;

/// Runs `body` in a child, which ends with status 0, or `PANICKED`. Its process id.
#[track_caller]
pub fn fork(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child does what the test does, on the one thread it has, and leaves by _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", Error::last_os_error());
    if child == 0 {
        end(body)
    }
    child
}

/// As `fork`, in a child that is there already: runs `body` and ends this process.
pub fn end(body: impl FnOnce()) -> ! {
    set_hook(Box::new(|panic| {
        let text = format!("in child {} of the test: {panic}\n", std::process::id());
        // SAFETY: the bytes of the text. Nobody can be told of a failure.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }));
    let panicked = catch_unwind(AssertUnwindSafe(body)).is_err();
    // SAFETY: ends this process.
    unsafe { libc::_exit(if panicked { PANICKED } else { 0 }) }
}

/// Waits for a child; its status, as waitpid(2) tells it.
#[track_caller]
pub fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: a place for the status.
        if unsafe { libc::waitpid(child, &mut status, 0) } == child {
            return status;
        }
        let error = Error::last_os_error();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "waitpid: {error}");
    }
}

/// That a child ended well.
#[track_caller]
pub fn must_succeed(child: libc::pid_t) {
    assert_eq!(wait(child), 0, "the status of child {child}");
}

/// Sends SIGKILL to a child that nobody has waited for.
pub fn kill(child: libc::pid_t) {
    // SAFETY: no memory arguments.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_tells_why_it_panicked() {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let child = fork(|| {
            // SAFETY: descriptors of this process.
            unsafe { libc::dup2(ends[1], libc::STDERR_FILENO) };
            panic!("the reason");
        });
        assert_eq!(wait(child), PANICKED << 8);
        let mut text = [0u8; 512];
        // SAFETY: room for so many bytes; the child has written before it ended.
        let length = unsafe { libc::read(ends[0], text.as_mut_ptr().cast(), text.len()) };
        let text = String::from_utf8_lossy(&text[..length.max(0) as usize]);
        assert!(text.contains("in child") && text.contains("the reason"), "{text}");
    }

    #[test]
    fn a_child_that_does_not_panic_ends_well_and_one_that_is_killed_does_not() {
        must_succeed(fork(|| ()));
        // SAFETY: no memory arguments.
        let sleeper = fork(|| while unsafe { libc::pause() } == -1 {});
        kill(sleeper);
        assert_eq!(wait(sleeper), libc::SIGKILL);
    }
}
