//! Raw call: a system call made straight to the kernel, past libc and past any wrapper of its.
//!
//! libc's own functions are cancellation points: a thread that has a `pthread_cancel` pending
//! unwinds out of `pread`, `write`, `close` and the like, and what it held (an object that moves, a
//! lock, pages that are only in the pipe) is lost. The fault handler, eviction and the store run in
//! the program's threads, so they must not call one. `crates/checks/tests/cancellation.rs` lists
//! the functions that are not called.
//!
//! A signal of libc ends a thread whose cancellation is asynchronous. In a process with such a
//! thread the fault handler runs with all signals blocked, that one too, so the thread ends after
//! the handler's return. `malloc` and the `dh_` functions are not safe for such threads, as in
//! POSIX.
//!
//! Guarantees: it is no cancellation point and does not change errno; it returns the kernel's
//! answer.
//! Never: allocates | takes a lock.
//! Threads: any, also in a signal handler.

use crate::errno::{Errno, Result};
use core::arch::asm;
use std::ffi::CString;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

/// The largest number of an error that the kernel answers.
const ERROR_MAX: isize = 4095;

/// Makes a system call: `raw_call!(SYS_read, fd, buffer, len)`. Arguments are integers or pointers.
/// Unsafe: what the kernel does with the memory that they name is the caller's promise.
macro_rules! raw_call {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        $crate::raw_call::make(libc::$number, &[$($argument as usize),*])
    };
}
pub(crate) use raw_call;

/// Makes the call of that number with up to six arguments.
///
/// # Safety
/// What the kernel does with the memory that the arguments name is allowed.
#[inline(always)]
pub(crate) unsafe fn make(number: libc::c_long, arguments: &[usize]) -> Result<usize> {
    let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let answer: isize;
    // SAFETY: the kernel's convention on x86_64: it takes six registers, answers in rax and changes
    // rcx and r11 besides. The rest is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") argument(0),
            in("rsi") argument(1),
            in("rdx") argument(2),
            in("r10") argument(3),
            in("r8") argument(4),
            in("r9") argument(5),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if (-ERROR_MAX..0).contains(&answer) {
        return Err(Errno::from_raw(-answer as i32));
    }
    Ok(answer as usize)
}

/// As `make`, made again while a signal interrupts it.
macro_rules! raw_call_again {
    ($($call:tt)*) => {
        loop {
            match $crate::raw_call::raw_call!($($call)*) {
                Err($crate::errno::Errno::EINTR) => {}
                answer => break answer,
            }
        }
    };
}
pub(crate) use raw_call_again;

/// Writes all of the bytes to a descriptor. EIO: it takes nothing and gives no reason.
pub(crate) fn write_all(descriptor: RawFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads the borrowed bytes.
        match unsafe { raw_call_again!(SYS_write, descriptor, bytes.as_ptr(), bytes.len()) }? {
            0 => return Err(Errno::EIO),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

/// A string for the kernel. EINVAL: it has a NUL.
pub(crate) fn c_string(bytes: impl Into<Vec<u8>>) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}

/// An open descriptor; closed when dropped, by a raw call.
#[derive(Debug)]
pub struct Descriptor(RawFd);

impl Descriptor {
    /// Takes a descriptor that a system call has just answered.
    ///
    /// # Safety
    /// It is open, and nobody else closes it.
    pub(crate) unsafe fn new(number: usize) -> Descriptor {
        Descriptor(number as RawFd)
    }

    /// Opens a file; close-on-exec. `mode` is that of a new file.
    pub(crate) fn open(path: &core::ffi::CStr, flags: i32, mode: u32) -> Result<Descriptor> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: the path ends with NUL; the new descriptor is nobody's but ours.
        unsafe {
            let opened = raw_call_again!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode)?;
            Ok(Descriptor::new(opened))
        }
    }

    /// Opens the file behind a descriptor of this process anew.
    pub(crate) fn reopen(descriptor: RawFd, flags: i32) -> Result<Descriptor> {
        Self::open(&c_string(format!("/proc/self/fd/{descriptor}"))?, flags, 0)
    }

    /// A close-on-exec pipe that never blocks: the end to read from, and the one to write to.
    pub(crate) fn pipe() -> Result<(Descriptor, Descriptor)> {
        let mut ends = [0 as RawFd; 2];
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: room for two descriptors.
        unsafe { raw_call!(SYS_pipe2, ends.as_mut_ptr(), flags) }?;
        Ok((Descriptor(ends[0]), Descriptor(ends[1])))
    }

    /// Gives the number away: the receiver closes it.
    pub(crate) fn into_raw(self) -> RawFd {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl IntoRawFd for Descriptor {
    fn into_raw_fd(self) -> RawFd {
        let number = self.0;
        core::mem::forget(self);
        number
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // The number is free even if the kernel answers an error: never close it twice. SAFETY: it
        // is ours, by the promise of `new`.
        let _ = unsafe { raw_call!(SYS_close, self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_told_and_errno_stays() {
        let before = Errno::last();
        // SAFETY: no memory arguments.
        unsafe {
            assert_eq!(raw_call!(SYS_close, -1i32), Err(Errno::EBADF));
            assert_eq!(raw_call!(SYS_getpid), Ok(std::process::id() as usize));
        }
        assert_eq!(Errno::last(), before);
    }

    #[test]
    fn six_arguments_arrive() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let file = Descriptor::open(c"/proc/self/exe", libc::O_RDONLY, 0).expect("this program");
        let map = |fd: RawFd, flags, offset: i64| {
            // SAFETY: a new mapping wherever the kernel likes; it stays.
            unsafe { raw_call!(SYS_mmap, 0, crate::PAGE, libc::PROT_READ, flags, fd, offset) }
        };
        assert!(map(-1, flags, 0).is_ok());
        assert_eq!(map(-1, libc::MAP_PRIVATE, 0), Err(Errno::EBADF), "the fifth");
        let first = map(file.as_raw_fd(), libc::MAP_PRIVATE, 0).expect("a mapping");
        // SAFETY: a page of this program.
        let magic = unsafe { (first as *const [u8; 4]).read() };
        assert_eq!(&magic, b"\x7fELF");
        assert_eq!(map(file.as_raw_fd(), libc::MAP_PRIVATE, 1), Err(Errno::EINVAL), "the sixth");
    }
}
