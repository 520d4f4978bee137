//! Userfaultfd: missing pages become SIGBUS in the thread that touches them, and we fill them in.
//!
//! Guarantees: opened without privilege (user-mode faults only) where the kernel knows how; every
//! answer of the kernel is told: done, exists already, done in part, or why not.
//! Never: allocates | takes a deepheap lock. Debian 12's headers are too old: definitions are ours.
//! Threads: any, also in a signal handler. A child of a fork must open and register its own.

use crate::errno::{Errno, Result, check};
use crate::own_descriptor::OwnDescriptor;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const API: u64 = 0xAA;
const IOCTL_API: libc::c_ulong = 0xc018_aa3f;
const IOCTL_REGISTER: libc::c_ulong = 0xc020_aa00;
const IOCTL_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const IOCTL_COPY: libc::c_ulong = 0xc028_aa03;
const IOCTL_POISON: libc::c_ulong = 0xc020_aa08;
const IOCTL_DEVICE_NEW: libc::c_ulong = 0xaa00;

const USER_MODE_ONLY: i32 = 1;
const REGISTER_MODE_MISSING: u64 = 1;
const COPY_MODE_DONTWAKE: u64 = 1;

/// What the kernel's userfaultfd can do: bits of `features()`.
pub mod feature {
    /// Missing pages raise SIGBUS in the touching thread (4.14). Always on.
    pub const SIGBUS: u64 = 1 << 7;
    /// The exact address is reported, not the page (5.18).
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    /// Pages can be poisoned: an access gets SIGBUS (6.6).
    pub const POISON: u64 = 1 << 14;
    /// Write protection that needs no answer (6.7).
    pub const WP_ASYNC: u64 = 1 << 15;
    /// Pages can be moved (6.8).
    pub const MOVE: u64 = 1 << 16;
}

#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArgument {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyArgument {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    /// Out: bytes copied, or a negative errno.
    copied: i64,
}

#[repr(C)]
struct PoisonArgument {
    range: Range,
    mode: u64,
    /// Out: bytes poisoned, or a negative errno.
    updated: i64,
}

const _: () = assert!(size_of::<CopyArgument>() == 40 && size_of::<RegisterArgument>() == 32);

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// All bytes are installed.
    Done,
    /// Nothing was installed: the first page is there already.
    Exists,
    /// So many bytes (whole pages, less than all) are installed; the next page exists or failed:
    /// ask again from there to learn which.
    Partial(usize),
}

/// A userfaultfd in SIGBUS mode. Dropping it unregisters everything: missing pages read as zeros
/// then.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnDescriptor,
    features: u64,
}

impl Userfaultfd {
    /// Opens it. EPERM: the administrator forbids it; ENOSYS: no such kernel or a seccomp filter;
    /// EOPNOTSUPP: too old for SIGBUS mode.
    pub fn open() -> Result<Self> {
        let fd = OwnDescriptor::adopt(open_descriptor()?);
        let mut argument = ApiArgument { api: API, features: feature::SIGBUS, ioctls: 0 };
        match ioctl(&fd, IOCTL_API, &mut argument) {
            // The kernel answers with all it has, not with what was asked for.
            Ok(()) if argument.features & feature::SIGBUS != 0 => {
                Ok(Userfaultfd { fd, features: argument.features })
            }
            Ok(()) | Err(Errno::EINVAL) => Err(Errno::ENOTSUP),
            Err(errno) => Err(errno),
        }
    }

    /// What this kernel can do: bits of `feature`.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// From now on a touch of a missing page of the range raises SIGBUS; a system call gets EFAULT.
    /// Pages that are present stay as they are.
    pub fn register_missing(&self, addr: usize, len: usize) -> Result<()> {
        let range = Range { start: addr as u64, len: len as u64 };
        let mut argument = RegisterArgument { range, mode: REGISTER_MODE_MISSING, ioctls: 0 };
        ioctl(&self.fd, IOCTL_REGISTER, &mut argument)
    }

    /// From now on missing pages of the range read as zeros again.
    pub fn unregister(&self, addr: usize, len: usize) -> Result<()> {
        let mut range = Range { start: addr as u64, len: len as u64 };
        ioctl(&self.fd, IOCTL_UNREGISTER, &mut range)
    }

    /// Installs `len` bytes (whole pages) from `src` at `dst`, each page at once and never over a
    /// page that is there. Retries EAGAIN. ENOENT: `dst` is not registered; EFAULT: `src` is not
    /// readable; ENOSPC, ENOMEM: no memory.
    ///
    /// # Safety
    /// `dst` is registered memory of the caller's; `src` is readable, `len` bytes long, does not
    /// change meanwhile, and is no managed memory.
    pub unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<Copy> {
        let mut done = 0;
        loop {
            let mut argument = CopyArgument {
                dst: (dst + done) as u64,
                src: src as u64 + done as u64,
                len: (len - done) as u64,
                mode: COPY_MODE_DONTWAKE, // in SIGBUS mode nobody waits on the descriptor
                copied: 0,
            };
            let answer = ioctl(&self.fd, IOCTL_COPY, &mut argument);
            if answer.is_ok() {
                return Ok(Copy::Done);
            }
            match (answer, usize::try_from(argument.copied)) {
                (Err(Errno::EAGAIN), Ok(bytes)) => done += bytes,
                // The address space is changing under us (a fork, an mremap): soon it will not.
                (Err(Errno::EAGAIN), Err(_)) => {
                    // SAFETY: no arguments.
                    unsafe { libc::sched_yield() };
                }
                _ if done > 0 => return Ok(Copy::Partial(done)),
                (Err(Errno::EEXIST), _) => return Ok(Copy::Exists),
                (Err(errno), _) => return Err(errno),
                (Ok(()), _) => return Ok(Copy::Done),
            }
        }
    }

    /// Makes every access to the missing pages of the range raise SIGBUS for good, in every process
    /// that forks off. ENOTSUP where the kernel cannot. Ok also where a page is present: it stays.
    ///
    /// # Safety
    /// The range is registered memory of the caller's.
    pub unsafe fn poison(&self, addr: usize, len: usize) -> Result<()> {
        if self.features & feature::POISON == 0 {
            return Err(Errno::ENOTSUP);
        }
        let mut done = 0;
        while done < len {
            let range = Range { start: (addr + done) as u64, len: (len - done) as u64 };
            let mut argument = PoisonArgument { range, mode: 0, updated: 0 };
            match (ioctl(&self.fd, IOCTL_POISON, &mut argument), argument.updated) {
                (Ok(()), _) => return Ok(()),
                (Err(Errno::EAGAIN), bytes) if bytes > 0 => done += bytes as usize,
                (Err(Errno::EAGAIN), _) => {}
                (Err(Errno::EEXIST), _) => done += crate::PAGE,
                (Err(errno), _) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl AsRawFd for Userfaultfd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn open_descriptor() -> Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let plain = match userfaultfd(flags | USER_MODE_ONLY) {
        // Before 5.11 the flag is unknown.
        Err(Errno::EINVAL) => userfaultfd(flags),
        answer => answer,
    };
    match plain {
        Err(Errno::EPERM) => open_by_device(flags).map_err(|_| Errno::EPERM),
        answer => answer,
    }
}

fn userfaultfd(flags: i32) -> Result<OwnedFd> {
    // SAFETY: no memory arguments; a new descriptor is nobody's but ours.
    let fd = check(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The way of 6.1: whoever may open /dev/userfaultfd may have one.
fn open_by_device(flags: i32) -> Result<OwnedFd> {
    // SAFETY: a literal with its NUL.
    let device =
        unsafe { libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    // SAFETY: a new descriptor of ours.
    let device = unsafe { OwnedFd::from_raw_fd(check(device.into())? as RawFd) };
    // SAFETY: the argument is a number.
    let fd = check(unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_DEVICE_NEW, flags) }.into())?;
    // SAFETY: a new descriptor of ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn ioctl<T>(fd: &OwnDescriptor, request: libc::c_ulong, argument: &mut T) -> Result<()> {
    loop {
        // SAFETY: every caller pairs a request with the argument whose size the request encodes.
        let answer = unsafe { libc::ioctl(fd.as_raw_fd(), request, core::ptr::from_mut(argument)) };
        match check(answer.into()) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::pinned_array::PinnedArray;

    fn registered(pages: usize) -> (Userfaultfd, PinnedArray<u8>) {
        let uffd = Userfaultfd::open().unwrap();
        let memory = PinnedArray::<u8>::new(pages * PAGE).unwrap();
        uffd.register_missing(memory.as_ptr() as usize, pages * PAGE).unwrap();
        (uffd, memory)
    }

    #[test]
    fn copy_tells_done_exists_and_partial() {
        let (uffd, memory) = registered(8);
        let at = memory.as_ptr() as usize;
        let source = vec![7u8; 8 * PAGE];
        let copy = |page: usize, pages: usize| {
            // SAFETY: `memory` is registered, `source` is eight pages long.
            unsafe { uffd.copy(at + page * PAGE, source.as_ptr(), pages * PAGE) }
        };
        assert_eq!(copy(2, 1), Ok(Copy::Done));
        assert_eq!(copy(2, 1), Ok(Copy::Exists));
        assert_eq!(copy(0, 8), Ok(Copy::Partial(2 * PAGE)));
        assert_eq!(copy(3, 5), Ok(Copy::Done));
        assert!(memory.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn errors_are_told() {
        let (uffd, memory) = registered(2);
        let elsewhere = PinnedArray::<u8>::new(PAGE).unwrap();
        let at = memory.as_ptr() as usize;
        // SAFETY: nothing is installed by any of these.
        unsafe {
            assert_eq!(uffd.copy(at, 0x1000 as *const u8, PAGE), Err(Errno::EFAULT));
            assert_eq!(
                uffd.copy(elsewhere.as_ptr() as usize, memory.as_ptr(), PAGE),
                Err(Errno::ENOENT)
            );
            assert_eq!(uffd.copy(at + 1, elsewhere.as_ptr(), PAGE), Err(Errno::EINVAL));
        }
    }

    /// A system call that writes one byte to `at`.
    fn kernel_writes(at: *mut u8) -> Result<()> {
        let mut pipe = [0; 2];
        // SAFETY: two descriptors fit; the byte written is a literal's; `at` is the test's own
        // memory.
        unsafe {
            assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC), 0);
            assert_eq!(libc::write(pipe[1], c"x".as_ptr().cast(), 1), 1);
            let answer = check(libc::read(pipe[0], at.cast(), 1) as libc::c_long);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            answer.map(|_| ())
        }
    }

    #[test]
    fn system_calls_get_efault_on_missing_and_on_poisoned_pages() {
        let (uffd, memory) = registered(2);
        assert_eq!(kernel_writes(memory.as_ptr()), Err(Errno::EFAULT));
        uffd.unregister(memory.as_ptr() as usize, PAGE).unwrap();
        assert_eq!(kernel_writes(memory.as_ptr()), Ok(()));
        if uffd.features() & feature::POISON != 0 {
            let second = memory.as_ptr().wrapping_add(PAGE);
            // SAFETY: the second page is still registered.
            unsafe { uffd.poison(second as usize, PAGE) }.unwrap();
            assert_eq!(kernel_writes(second), Err(Errno::EFAULT));
        }
    }
}
