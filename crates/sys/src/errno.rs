//! Errno: the kernel's reason for an error, and the guard that keeps the program's own errno.
//!
//! Guarantees: `Saved` gives the thread's errno back on drop; displaying an `Errno` needs no
//! locale.
//! Never: allocates | blocks | takes a lock.
//! Threads: any, also in a signal handler.

use core::fmt;

/// Why a system call failed: a Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

/// The result of a wrapper of a system call.
pub type Result<T> = core::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident: $text:literal,)*) => {
        #[allow(missing_docs)] // the names are those of errno(3)
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*
        }

        fn describe(raw: i32) -> Option<(&'static str, &'static str)> {
            match raw {
                $(libc::$name => Some((stringify!($name), $text)),)*
                _ => None,
            }
        }
    };
}

errnos! {
    E2BIG: "Argument list too long",
    EACCES: "Permission denied",
    EAGAIN: "Resource temporarily unavailable",
    EBADF: "Bad file descriptor",
    EBUSY: "Device or resource busy",
    ECHILD: "No child processes",
    ECONNREFUSED: "Connection refused",
    EDEADLK: "Resource deadlock avoided",
    EDQUOT: "Disk quota exceeded",
    EEXIST: "File exists",
    EFAULT: "Bad address",
    EFBIG: "File too large",
    EHWPOISON: "Memory page has hardware error",
    EINTR: "Interrupted system call",
    EINVAL: "Invalid argument",
    EIO: "Input/output error",
    EISDIR: "Is a directory",
    ELOOP: "Too many levels of symbolic links",
    EMFILE: "Too many open files",
    ENAMETOOLONG: "File name too long",
    ENFILE: "Too many open files in system",
    ENODATA: "No data available",
    ENODEV: "No such device",
    ENOENT: "No such file or directory",
    ENOLCK: "No locks available",
    ENOMEM: "Cannot allocate memory",
    ENOSPC: "No space left on device",
    ENOSYS: "Function not implemented",
    ENOTBLK: "Block device required",
    ENOTDIR: "Not a directory",
    ENOTSUP: "Operation not supported",
    ENOTTY: "Inappropriate ioctl for device",
    ENXIO: "No such device or address",
    EOVERFLOW: "Value too large for defined data type",
    EPERM: "Operation not permitted",
    EPIPE: "Broken pipe",
    ERANGE: "Numerical result out of range",
    EROFS: "Read-only file system",
    ESPIPE: "Illegal seek",
    ESRCH: "No such process",
    ETIMEDOUT: "Connection timed out",
    ETXTBSY: "Text file busy",
    EXDEV: "Invalid cross-device link",
}

impl Errno {
    /// The error of the calling thread's last failed system call.
    pub fn last() -> Self {
        // SAFETY: __errno_location returns the calling thread's own errno, valid while it lives.
        Errno(unsafe { *libc::__errno_location() })
    }

    /// The error with this (positive) number.
    pub const fn from_raw(raw: i32) -> Self {
        Errno(raw)
    }

    /// The (positive) number.
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// The symbolic name, such as `"ENOSPC"`; `"errno"` for numbers that deepheap has no name for.
    pub fn name(self) -> &'static str {
        describe(self.0).map_or("errno", |(name, _)| name)
    }

    /// The meaning of the number, in words.
    pub fn text(self) -> &'static str {
        describe(self.0).map_or("unnamed error", |(_, text)| text)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match describe(self.0) {
            Some((name, text)) => write!(f, "{name} ({text})"),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Keeps the calling thread's errno as it was: saved now, put back on drop.
#[derive(Debug)]
pub struct Saved {
    raw: i32,
    // Dropping it on another thread would write that thread's errno: `*const ()` makes it !Send.
    _stays_on_its_thread: core::marker::PhantomData<*const ()>,
}

impl Saved {
    /// Saves errno.
    #[inline]
    #[must_use = "errno is put back when the guard is dropped"]
    pub fn new() -> Self {
        Saved { raw: Errno::last().0, _stays_on_its_thread: core::marker::PhantomData }
    }
}

impl Default for Saved {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Saved {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard is !Send, so this is still the saving thread's own errno.
        unsafe { *libc::__errno_location() = self.raw };
    }
}

/// `Ok` with a non-negative answer, otherwise errno.
#[inline]
pub(crate) fn check(answer: libc::c_long) -> Result<usize> {
    if answer < 0 { Err(Errno::last()) } else { Ok(answer as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_says_its_name_and_its_meaning() {
        assert_eq!(Errno::ENOSPC.to_string(), "ENOSPC (No space left on device)");
        assert_eq!(Errno::from_raw(4095).to_string(), "errno 4095");
    }

    #[test]
    fn saved_gives_errno_back() {
        // SAFETY: closing an impossible descriptor only sets errno.
        unsafe { libc::close(-1) };
        {
            let _saved = Saved::new();
            // SAFETY: this thread's errno.
            unsafe { *libc::__errno_location() = libc::ENOSPC };
        }
        assert_eq!(Errno::last(), Errno::EBADF);
    }
}
