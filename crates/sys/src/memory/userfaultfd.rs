//! Userfaultfd: a thread that touches a missing page gets SIGBUS, and we fill the page in.
//!
//! Guarantees: opened without privilege (user-mode faults only) if the kernel can; every answer of
//! the kernel is reported: done, exists already, done in part, or an error.
//! Never: allocates | takes a deepheap lock. Debian 12's headers are too old: definitions are ours.
//! Threads: any, also in a signal handler. A child of a fork must open and register its own.

use crate::errno::{Errno, Result};
use crate::files::own_descriptor::OwnDescriptor;
use crate::raw_call::{Descriptor, raw_call, raw_call_again};
use std::os::fd::{AsRawFd, RawFd};

const API: u64 = 0xAA;
const IOCTL_API: libc::c_ulong = 0xc018_aa3f;
const IOCTL_REGISTER: libc::c_ulong = 0xc020_aa00;
const IOCTL_COPY: libc::c_ulong = 0xc028_aa03;
const IOCTL_MOVE: libc::c_ulong = 0xc028_aa05;
const IOCTL_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const IOCTL_CONTINUE: libc::c_ulong = 0xc020_aa07;
const IOCTL_DEVICE_NEW: libc::c_ulong = 0xaa00;

const USER_MODE_ONLY: i32 = 1;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_PROTECTED: u64 = 2;
const REGISTER_MODE_MINOR: u64 = 4;
const COPY_MODE_DONTWAKE: u64 = 1;
const MOVE_MODE_DONTWAKE: u64 = 1;
const CONTINUE_MODE_DONTWAKE: u64 = 1;
const PROTECT_MODE_ON: u64 = 1;
const PROTECT_MODE_DONTWAKE: u64 = 2;

/// Features of the kernel's userfaultfd: bits of `features()`.
pub mod feature {
    /// Writes to pages that we protect are reported (5.7).
    pub const PROTECTS: u64 = 1 << 0;
    /// Missing pages of shared memory are reported (4.11).
    pub const MISSING_SHARED: u64 = 1 << 5;
    /// Missing pages raise SIGBUS in the touching thread (4.14). Always on.
    pub const SIGBUS: u64 = 1 << 7;
    /// Pages of shared memory that are there and not mapped are reported (5.14).
    pub const MINOR_SHARED: u64 = 1 << 10;
    /// The exact address is reported, not the page (5.18).
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    /// Pages of shared memory can be protected (5.19).
    pub const PROTECTS_SHARED: u64 = 1 << 12;
    /// Pages can be poisoned: an access gets SIGBUS (6.6).
    pub const POISON: u64 = 1 << 14;
    /// Write protection that needs no answer (6.7).
    pub const WP_ASYNC: u64 = 1 << 15;
    /// Pages can be moved (6.8).
    pub const MOVE: u64 = 1 << 16;
    /// It can be told which pages were accessed (7.3); not used yet.
    pub const TRACKS_ACCESS: u64 = 1 << 17;

    /// For shared memory of which page-table entries stay clean until it is written: registered by
    /// `register_protectable`, the kernel maps a page that is read so that the first write is a
    /// fault, which it resolves by itself (5.19).
    pub const CLEAN_SHARED: u64 = MISSING_SHARED | PROTECTS | PROTECTS_SHARED;
    /// For shared memory of which is to be known what was written (`pagemap::untouched_pages`;
    /// 6.7).
    pub const TRACKS_SHARED: u64 = CLEAN_SHARED | WP_ASYNC;
}

#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[derive(Clone, Copy)]
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

#[derive(Clone)]
#[repr(C)]
struct ProtectArgument {
    range: Range,
    mode: u64,
}

#[derive(Clone)]
#[repr(C)]
struct ContinueArgument {
    range: Range,
    mode: u64,
    /// Out: bytes mapped, or a negative errno.
    mapped: i64,
}

const _: () = assert!(size_of::<CopyArgument>() == 40 && size_of::<RegisterArgument>() == 32);

#[repr(C)]
struct MoveArgument {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    /// Out: bytes moved, or a negative errno.
    moved: i64,
}

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// All bytes are installed.
    Done,
    /// Nothing was installed: the first page is present already.
    Exists,
    /// So many bytes (whole pages, less than all) are installed. The next page exists or failed:
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
        Self::open_with(0)
    }

    /// As `open`, for shared memory of which no page is mapped but by `map_present`. ENOTSUP before
    /// Linux 5.14.
    pub fn open_sharing_frames() -> Result<Self> {
        Self::open_with(feature::MISSING_SHARED | feature::MINOR_SHARED)
    }

    /// As `open`, with these features besides. ENOTSUP: the kernel lacks one of them.
    pub fn open_with(features: u64) -> Result<Self> {
        let features = features | feature::SIGBUS;
        let fd = OwnDescriptor::adopt(open_descriptor()?);
        let mut argument = ApiArgument { api: API, features, ioctls: 0 };
        match ioctl(&fd, IOCTL_API, &mut argument) {
            // The kernel answers with all features that it has, not with those asked for.
            Ok(()) if argument.features & features == features => {
                Ok(Userfaultfd { fd, features: argument.features })
            }
            Ok(()) | Err(Errno::EINVAL) => Err(Errno::ENOTSUP),
            Err(errno) => Err(errno),
        }
    }

    /// The features of this kernel: bits of `feature`.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// From now on a touch of a missing page of the range raises SIGBUS; a system call gets EFAULT.
    /// Pages that are present stay as they are.
    pub fn register_missing(&self, addr: usize, len: usize) -> Result<()> {
        self.register(addr, len, REGISTER_MODE_MISSING)
    }

    /// As `register_missing`, and the range can be protected.
    pub fn register_protectable(&self, addr: usize, len: usize) -> Result<()> {
        self.register(addr, len, REGISTER_MODE_MISSING | REGISTER_MODE_PROTECTED)
    }

    /// From now on a touch of a page of the range that is not mapped raises SIGBUS, whether the
    /// file behind it has the page or not.
    pub fn register_unmapped(&self, addr: usize, len: usize) -> Result<()> {
        self.register(addr, len, REGISTER_MODE_MISSING | REGISTER_MODE_MINOR)
    }

    /// Maps a page that the file behind it has. EFAULT: it has not.
    pub fn map_present(&self, addr: usize) -> Result<Copy> {
        let range = Range { start: addr as u64, len: crate::PAGE as u64 };
        let argument = ContinueArgument { range, mode: CONTINUE_MODE_DONTWAKE, mapped: 0 };
        match ioctl_again(&self.fd, IOCTL_CONTINUE, argument) {
            Ok(()) => Ok(Copy::Done),
            Err(Errno::EEXIST) => Ok(Copy::Exists),
            Err(errno) => Err(errno),
        }
    }

    fn register(&self, addr: usize, len: usize, mode: u64) -> Result<()> {
        let range = Range { start: addr as u64, len: len as u64 };
        let mut argument = RegisterArgument { range, mode, ioctls: 0 };
        ioctl(&self.fd, IOCTL_REGISTER, &mut argument)
    }

    /// Protects the pages that are present in a range against writes, or ends that. While they are
    /// protected a write raises SIGBUS, and a system call that would write gets EFAULT. When this
    /// returns no thread writes there any more. It walks the page tables of the range once.
    pub fn protect(&self, addr: usize, len: usize, on: bool) -> Result<()> {
        let range = Range { start: addr as u64, len: len as u64 };
        let mode = if on { PROTECT_MODE_ON } else { PROTECT_MODE_DONTWAKE };
        match ioctl_again(&self.fd, IOCTL_WRITEPROTECT, ProtectArgument { range, mode }) {
            // Linux 6.1 takes a range of one mapping only, and `mprotect` makes several of it.
            Err(Errno::ENOENT) if len > crate::PAGE => {
                let half = (len / 2).next_multiple_of(crate::PAGE);
                self.protect(addr, half, on)?;
                self.protect(addr + half, len - half, on)
            }
            done => done,
        }
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
                (Err(Errno::EAGAIN), Err(_)) => let_it_change(),
                _ if done > 0 => return Ok(Copy::Partial(done)),
                (Err(Errno::EEXIST), _) => return Ok(Copy::Exists),
                (Err(errno), _) => return Err(errno),
                (Ok(()), _) => return Ok(Copy::Done),
            }
        }
    }

    /// Takes `len` bytes (whole pages) of private memory from `src` to `dst`: the physical pages
    /// themselves, the first ones of them if not all. Answers how many bytes. When it returns no
    /// thread has `src` in its TLB. Errors are those of the first page: ENOENT, it is missing;
    /// EBUSY, it is shared or pinned; EINVAL, it may not be written, or is locked, or another
    /// mapping begins before `len`.
    ///
    /// # Safety
    /// `dst` is registered memory of the caller's, and missing; `src` is the caller's to take.
    pub unsafe fn take(&self, dst: usize, src: usize, len: usize) -> Result<usize> {
        loop {
            let (dst, src, len) = (dst as u64, src as u64, len as u64);
            let mut argument = MoveArgument { dst, src, len, mode: MOVE_MODE_DONTWAKE, moved: 0 };
            match (ioctl(&self.fd, IOCTL_MOVE, &mut argument), argument.moved) {
                (Ok(()), _) => return Ok(len as usize),
                (Err(_), 1..) => return Ok(argument.moved as usize),
                (Err(Errno::EAGAIN), _) => let_it_change(),
                (Err(errno), _) => return Err(errno),
            }
        }
    }
}

impl AsRawFd for Userfaultfd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn open_descriptor() -> Result<Descriptor> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let plain = match userfaultfd(flags | USER_MODE_ONLY) {
        // Before 5.11 the flag is unknown.
        Err(Errno::EINVAL) => userfaultfd(flags),
        answer => answer,
    };
    match plain {
        // A seccomp filter answers one or the other; the device is no business of filters.
        Err(refusal @ (Errno::EPERM | Errno::ENOSYS)) => open_by_device(flags).map_err(|_| refusal),
        answer => answer,
    }
}

fn userfaultfd(flags: i32) -> Result<Descriptor> {
    // SAFETY: no memory arguments; a new descriptor is nobody's but ours.
    unsafe { Ok(Descriptor::new(raw_call!(SYS_userfaultfd, flags)?)) }
}

/// Since 6.1: a process that may open /dev/userfaultfd gets one from it.
fn open_by_device(flags: i32) -> Result<Descriptor> {
    let device = Descriptor::open(c"/dev/userfaultfd", libc::O_RDWR, 0)?;
    // SAFETY: the argument is a number; a new descriptor is nobody's but ours.
    unsafe {
        let opened = raw_call!(SYS_ioctl, device.as_raw_fd(), IOCTL_DEVICE_NEW, flags)?;
        Ok(Descriptor::new(opened))
    }
}

fn ioctl<T>(fd: &OwnDescriptor, request: libc::c_ulong, argument: &mut T) -> Result<()> {
    let argument = core::ptr::from_mut(argument);
    // SAFETY: every caller pairs a request with the argument whose size the request encodes.
    unsafe { raw_call_again!(SYS_ioctl, fd.as_raw_fd(), request, argument) }?;
    Ok(())
}

/// As `ioctl`, and again as long as the address space is changing.
fn ioctl_again<T: Clone>(fd: &OwnDescriptor, request: libc::c_ulong, argument: T) -> Result<()> {
    loop {
        match ioctl(fd, request, &mut argument.clone()) {
            Err(Errno::EAGAIN) => let_it_change(),
            answer => return answer,
        }
    }
}

/// The address space is changing (a fork, an mremap): that will soon be over.
fn let_it_change() {
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::memory::pinned_array::PinnedArray;

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
    fn protection_reaches_every_mapping_of_a_range() {
        const PAGES: usize = 9;
        let memory = PinnedArray::<u8>::new(PAGES * PAGE).unwrap();
        let uffd = Userfaultfd::open().unwrap();
        let at = memory.as_ptr() as usize;
        uffd.register_protectable(at, PAGES * PAGE).unwrap();
        let source = [7u8; PAGES * PAGE];
        // SAFETY: `memory` is registered, `source` as long; its pages are nobody else's.
        unsafe { uffd.copy(at, source.as_ptr(), PAGES * PAGE) }.unwrap();
        let page = |number: usize| (at + number * PAGE) as *mut u8;
        // SAFETY: as above.
        unsafe { crate::memory::mapping::protect(page(4), PAGE, libc::PROT_READ) }.unwrap();
        for on in [true, false] {
            uffd.protect(at, PAGES * PAGE, on).unwrap();
            for number in (0..PAGES).filter(|number| *number != 4) {
                let written = kernel_writes(page(number));
                assert_eq!(written, if on { Err(Errno::EFAULT) } else { Ok(()) }, "{number}");
            }
        }
        let elsewhere = PinnedArray::<u8>::new(4 * PAGE).unwrap();
        let refused = uffd.protect(elsewhere.as_ptr() as usize, 4 * PAGE, true);
        assert_eq!(refused, Err(Errno::ENOENT));
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

    #[test]
    fn pages_of_two_windows_share_a_frame_and_each_is_mapped_by_itself() {
        const FRAMES: usize = 8;
        let bytes = FRAMES * PAGE;
        let uffd = match Userfaultfd::open_sharing_frames() {
            Err(Errno::ENOTSUP) => return, // an older kernel
            opened => opened.unwrap(),
        };
        let file = crate::files::sparse_file::SparseFile::create(c"test", bytes as u64).unwrap();
        let map = || file.map(bytes).unwrap();
        let (alias, one, other) = (map(), map(), map());
        for window in [one, other] {
            uffd.register_unmapped(window as usize, bytes).unwrap();
        }
        assert_eq!(uffd.map_present(one as usize), Err(Errno::EFAULT), "a hole");
        assert_eq!(kernel_writes(one), Err(Errno::EFAULT));
        // SAFETY: mapped above, and nobody else's; what is touched through a window is mapped.
        unsafe {
            alias.write(7);
            assert_eq!(kernel_writes(one), Err(Errno::EFAULT), "there, but not mapped");
            assert_eq!(uffd.map_present(one as usize), Ok(Copy::Done));
            assert_eq!(uffd.map_present(one as usize), Ok(Copy::Exists));
            assert_eq!(one.read(), 7);
            one.add(1).write(8);
            assert_eq!(alias.add(1).read(), 8);
            assert_eq!(kernel_writes(other), Err(Errno::EFAULT));
            crate::memory::mapping::advise(one, PAGE, crate::memory::mapping::Advice::DontNeed)
                .unwrap();
            assert_eq!(kernel_writes(one), Err(Errno::EFAULT), "unmapped again");
            assert_eq!(alias.add(1).read(), 8, "and nothing is lost");
            for window in [alias, one, other] {
                crate::memory::mapping::unmap(window, bytes).unwrap();
            }
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
            let answer = raw_call!(SYS_read, pipe[0], at, 1);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            answer.map(|_| ())
        }
    }

    #[test]
    fn system_calls_get_efault_on_missing_pages() {
        let (uffd, memory) = registered(2);
        assert_eq!(kernel_writes(memory.as_ptr()), Err(Errno::EFAULT));
        // SAFETY: registered above; a page of bytes.
        let copied = unsafe { uffd.copy(memory.as_ptr() as usize, [7; PAGE].as_ptr(), PAGE) };
        assert_eq!(copied, Ok(Copy::Done));
        assert_eq!(kernel_writes(memory.as_ptr()), Ok(()));
    }
}
