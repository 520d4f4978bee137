//! Direct file: a file or block device read and written past the page cache.
//!
//! Guarantees: a read or write that answers Ok did all its bytes; EINTR and short counts are
//! handled here, an end of file is an error (ENODATA). Other processes' data is not overwritten by
//! accident.
//! Never: allocates after opening | retries a failed sync. Buffers, lengths and offsets must be
//! multiples of `alignment()`: else EINVAL from the kernel where the file is direct.
//! Threads: any, all operations are `&self`.

use crate::errno::{Errno, Result, Saved, check};
use crate::own_descriptor::OwnDescriptor;
use crate::pinned_array::PinnedArray;
use crate::signature;
use core::fmt;
use std::ffi::CString;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BLOCK_DISCARD: libc::c_ulong = 0x1277;
const BLOCK_SIZE_64: libc::c_ulong = 0x8008_1272;
const BLOCK_LOGICAL_SIZE: libc::c_ulong = 0x1268;
/// The alignment where the kernel does not tell.
const ALIGNMENT_DEFAULT: usize = 4096;
const NAMES_TRIED_MAX: u32 = 100;

/// What `open_path` does about what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuse if the first 68 KiB are neither zero nor an earlier store.
    Refuse,
    /// The user insists: overwrite. (Never what is mounted or in use.)
    Overwrite,
}

/// Why a path cannot be the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The system call failed.
    System(Errno),
    /// It holds what is named here; `Existing::Overwrite` would overwrite it.
    Holds(&'static str),
    /// It is mounted, or another process has it.
    InUse,
    /// It is neither a regular file nor a block device.
    WrongKind,
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        OpenError::System(errno)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::System(errno) => errno.fmt(f),
            OpenError::Holds(what) => write!(f, "it holds {what}"),
            OpenError::InUse => f.write_str("it is mounted or in use by another process"),
            OpenError::WrongKind => f.write_str("it is neither a regular file nor a block device"),
        }
    }
}

impl core::error::Error for OpenError {}

/// An open file or block device.
#[derive(Debug)]
pub struct DirectFile {
    fd: OwnDescriptor,
    is_direct: bool,
    is_device: bool,
    alignment: usize,
}

impl DirectFile {
    /// A new file without a name in `dir`, readable by nobody else (0600), gone when it is closed.
    pub fn open_unlinked(dir: &Path) -> Result<Self> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        let name = c_path(dir)?;
        let (fd, is_direct) = match open_direct(&name, flags | libc::O_TMPFILE) {
            // These say that the file system cannot; others (EACCES, ENOSPC) say why we may not.
            Err(Errno::ENOTSUP | Errno::EISDIR | Errno::EINVAL) => create_and_unlink(dir, flags)?,
            answer => answer?,
        };
        Self::finish(fd, is_direct, false)
    }

    /// An existing regular file or block device. Locked against other processes; a device also
    /// against mounting.
    pub fn open_path(path: &Path, existing: Existing) -> core::result::Result<Self, OpenError> {
        let name = c_path(path)?;
        // Look before opening: opening a FIFO or a tape can have effects.
        // SAFETY: `name` ends with NUL, and stat fills in the zeroed struct.
        let mode = unsafe {
            let mut stat: libc::stat = core::mem::zeroed();
            check(libc::stat(name.as_ptr(), &mut stat).into())?;
            stat.st_mode & libc::S_IFMT
        };
        let is_device = match mode {
            libc::S_IFREG => false,
            libc::S_IFBLK => true,
            _ => return Err(OpenError::WrongKind),
        };
        // O_EXCL on a device: nobody else has it mounted or claimed.
        let exclusive = if is_device { libc::O_EXCL } else { 0 };
        let (fd, is_direct) = match open_direct(&name, libc::O_RDWR | libc::O_CLOEXEC | exclusive) {
            Err(Errno::EBUSY | Errno::ETXTBSY) => return Err(OpenError::InUse),
            answer => answer?,
        };
        // SAFETY: no memory arguments.
        match check(unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }.into()) {
            Err(Errno::EAGAIN) => return Err(OpenError::InUse),
            // A file system without locks.
            Err(Errno::ENOLCK | Errno::ENOTSUP | Errno::EINVAL | Errno::ENOSYS) | Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let file = Self::finish(fd, is_direct, is_device)?;
        if existing == Existing::Refuse
            && let Some(what) = file.contents()?
        {
            return Err(OpenError::Holds(what));
        }
        Ok(file)
    }

    fn finish(fd: OwnedFd, is_direct: bool, is_device: bool) -> Result<Self> {
        let alignment = alignment(&fd, is_device);
        let fd = OwnDescriptor::adopt(fd);
        let mut file = DirectFile { fd, is_direct, is_device, alignment };
        if file.is_direct && !file.direct_works()? {
            // SAFETY: no memory arguments.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) };
            file.is_direct = false;
        }
        Ok(file)
    }

    /// Some file systems take O_DIRECT when opening and refuse it when reading.
    fn direct_works(&self) -> Result<bool> {
        let mut page = PinnedArray::<u8>::new(self.alignment.max(crate::PAGE))?;
        match self.read_some(&mut page, 0) {
            Err(Errno::EINVAL) => Ok(false),
            answer => answer.map(|_| true),
        }
    }

    /// What the first bytes say that it holds; None: nothing of anybody else's.
    fn contents(&self) -> Result<Option<&'static str>> {
        let mut head = PinnedArray::<u8>::new(signature::HEAD_BYTES)?;
        let mut done = 0;
        while done < head.len() {
            match self.read_some(&mut head[done..], done as u64)? {
                0 => break,
                bytes => done += bytes,
            }
            if !done.is_multiple_of(self.alignment) {
                break; // the end of a file
            }
        }
        Ok(signature::recognise(&head[..done]))
    }

    /// Fills `buf` from `offset`. ENODATA: the file ends before that.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // SAFETY: a mutable borrow is as much as the contract asks.
        unsafe { self.read_raw_at(buf.as_mut_ptr(), buf.len(), offset) }
    }

    /// Fills `len` bytes at `buf` from `offset`. ENODATA: the file ends before that.
    ///
    /// # Safety
    /// The bytes are writable and used by nobody else.
    pub unsafe fn read_raw_at(&self, buf: *mut u8, len: usize, offset: u64) -> Result<()> {
        let _errno = Saved::new();
        let mut done = 0;
        while done < len {
            // SAFETY: the caller's promise; the kernel writes `len - done` bytes at most.
            match unsafe { self.pread(buf.add(done), len - done, offset + done as u64) } {
                Ok(0) => return Err(Errno::ENODATA),
                Ok(bytes) => done += bytes,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.drop_cached(offset, len);
        Ok(())
    }

    /// Fills the buffers one after the other from `offset`, in one request of the device if it can.
    /// ENODATA: the file ends before that. At most 1024 buffers.
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let answer = {
            let _errno = Saved::new();
            // SAFETY: IoSliceMut is laid out as iovec, and the borrows allow the kernel to write.
            check(unsafe {
                libc::preadv(
                    self.as_raw_fd(),
                    bufs.as_mut_ptr().cast(),
                    bufs.len() as i32,
                    offset as libc::off_t,
                )
            } as libc::c_long)
        };
        // What one call left over, whatever the reason, is read piece by piece: the pieces tell.
        let mut done = answer.unwrap_or(0);
        let mut at = offset;
        for buf in bufs {
            if done < buf.len() {
                self.read_at(buf, at)?;
            }
            done = done.saturating_sub(buf.len());
            at += buf.len() as u64;
        }
        self.drop_cached(offset, (at - offset) as usize);
        Ok(())
    }

    /// Writes `buf` at `offset`. ENOSPC, EIO and the like: a part may be written.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let _errno = Saved::new();
        let mut done = 0;
        while done < buf.len() {
            let rest = &buf[done..];
            let at = (offset + done as u64) as libc::off_t;
            // SAFETY: the kernel reads the borrowed bytes.
            let answer =
                unsafe { libc::pwrite(self.as_raw_fd(), rest.as_ptr().cast(), rest.len(), at) };
            match check(answer as libc::c_long) {
                Ok(0) => return Err(Errno::EIO), // takes nothing and gives no reason
                Ok(bytes) => done += bytes,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        if !self.is_direct {
            let (at, len) = (offset as libc::off_t, buf.len() as libc::off_t);
            let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // Only so that the cache can be dropped: durability is `sync`'s.
            // SAFETY: no memory arguments.
            unsafe { libc::sync_file_range(self.as_raw_fd(), at, len, flags) };
            self.drop_cached(offset, buf.len());
        }
        Ok(())
    }

    /// Makes sure that `offset..offset+len` has room, growing the file. ENOSPC: it has not.
    /// ENOTSUP: the file system cannot promise room.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if self.is_device {
            let device = self.len()?;
            let fits = offset.checked_add(len).is_some_and(|end| end <= device);
            return if fits { Ok(()) } else { Err(Errno::ENOSPC) };
        }
        self.fallocate(0, offset, len)
    }

    /// Tells the device that nobody needs `offset..offset+len` any more; it reads as anything.
    /// ENOTSUP: it does not care.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        if !self.is_device {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            return self.fallocate(mode, offset, len);
        }
        let range = [offset, len];
        // SAFETY: BLKDISCARD reads two u64.
        check(unsafe { libc::ioctl(self.as_raw_fd(), BLOCK_DISCARD, range.as_ptr()) }.into())?;
        Ok(())
    }

    /// Bytes of the file or device.
    pub fn len(&self) -> Result<u64> {
        if self.is_device {
            return device_len(&self.fd);
        }
        // SAFETY: fstat fills in the zeroed struct.
        unsafe {
            let mut stat: libc::stat = core::mem::zeroed();
            check(libc::fstat(self.as_raw_fd(), &mut stat).into())?;
            Ok(stat.st_size as u64)
        }
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Makes all writes that answered Ok durable. An error is final: what was written before is
    /// unknown.
    pub fn sync(&self) -> Result<()> {
        let _errno = Saved::new();
        // SAFETY: no memory arguments.
        check(unsafe { libc::fdatasync(self.as_raw_fd()) }.into())?;
        Ok(())
    }

    /// True if the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// True for a block device.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// What offsets, lengths and buffer addresses must be multiples of: a power of two of bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    fn fallocate(&self, mode: i32, offset: u64, len: u64) -> Result<()> {
        let _errno = Saved::new();
        let (at, len) = (offset as libc::off_t, len as libc::off_t);
        loop {
            // SAFETY: no memory arguments.
            match check(unsafe { libc::fallocate(self.as_raw_fd(), mode, at, len) }.into()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn read_some(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        loop {
            // SAFETY: the buffer is borrowed mutably for the call.
            match unsafe { self.pread(buf.as_mut_ptr(), buf.len(), offset) } {
                Err(Errno::EINTR) => {}
                answer => return answer,
            }
        }
    }

    /// # Safety
    /// `len` bytes at `buf` are writable and used by nobody else.
    unsafe fn pread(&self, buf: *mut u8, len: usize, offset: u64) -> Result<usize> {
        let fd = self.as_raw_fd();
        // SAFETY: the caller's promise.
        let answer = unsafe { libc::pread(fd, buf.cast(), len, offset as libc::off_t) };
        check(answer as libc::c_long)
    }

    fn drop_cached(&self, offset: u64, len: usize) {
        if !self.is_direct {
            let (at, len) = (offset as libc::off_t, len as libc::off_t);
            // SAFETY: no memory arguments; advice may be ignored.
            unsafe { libc::posix_fadvise(self.as_raw_fd(), at, len, libc::POSIX_FADV_DONTNEED) };
        }
    }
}

impl AsRawFd for DirectFile {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// True if what is stored at `path` takes RAM: tmpfs, ramfs, hugetlbfs.
pub fn file_system_is_memory(path: &Path) -> Result<bool> {
    const MAGICS: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    let name = c_path(path)?;
    // SAFETY: `name` ends with NUL, and statfs fills in the zeroed struct.
    let magic = unsafe {
        let mut statfs: libc::statfs = core::mem::zeroed();
        check(libc::statfs(name.as_ptr(), &mut statfs).into())?;
        statfs.f_type as u64
    };
    Ok(MAGICS.contains(&(magic & 0xffff_ffff)))
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Opens with O_DIRECT, or without if only that is refused.
fn open_direct(name: &CString, flags: i32) -> Result<(OwnedFd, bool)> {
    match open(name, flags | libc::O_DIRECT) {
        Err(Errno::EINVAL) => Ok((open(name, flags)?, false)),
        answer => Ok((answer?, true)),
    }
}

fn open(name: &CString, flags: i32) -> Result<OwnedFd> {
    loop {
        // SAFETY: `name` ends with NUL.
        match check(unsafe { libc::open(name.as_ptr(), flags, 0o600) }.into()) {
            // SAFETY: a new descriptor of ours.
            Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// For file systems without O_TMPFILE: a name that nobody else has, removed at once.
fn create_and_unlink(dir: &Path, flags: i32) -> Result<(OwnedFd, bool)> {
    for attempt in 0..NAMES_TRIED_MAX {
        let name = format!(".deepheap-{}-{attempt}", std::process::id());
        let name = c_path(&dir.join(name))?;
        // Created without O_DIRECT first: a refusal of it after creating would leave the name
        // behind.
        let flags = flags | libc::O_NOFOLLOW;
        let created = match open(&name, flags | libc::O_CREAT | libc::O_EXCL) {
            Err(Errno::EEXIST) => continue,
            answer => answer?,
        };
        let direct = open(&name, flags | libc::O_DIRECT);
        // SAFETY: `name` ends with NUL.
        check(unsafe { libc::unlink(name.as_ptr()) }.into())?;
        return Ok(direct.map_or((created, false), |fd| (fd, true)));
    }
    Err(Errno::EEXIST)
}

fn device_len(fd: &impl AsRawFd) -> Result<u64> {
    let mut bytes = 0u64;
    // SAFETY: BLKGETSIZE64 writes a u64.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLOCK_SIZE_64, &raw mut bytes) }.into())?;
    Ok(bytes)
}

/// What the kernel demands of direct I/O (statx, Linux 6.1; devices: their logical block).
fn alignment(fd: &OwnedFd, is_device: bool) -> usize {
    if is_device {
        let mut bytes: libc::c_int = 0;
        // SAFETY: BLKSSZGET writes an int.
        let answer = unsafe { libc::ioctl(fd.as_raw_fd(), BLOCK_LOGICAL_SIZE, &raw mut bytes) };
        return match usize::try_from(bytes) {
            Ok(bytes) if answer == 0 && bytes.is_power_of_two() => bytes.max(512),
            _ => ALIGNMENT_DEFAULT,
        };
    }
    // SAFETY: an empty path names the descriptor; statx fills in the zeroed struct.
    let (answer, statx) = unsafe {
        let mut statx: libc::statx = core::mem::zeroed();
        let (path, mask) = (c"".as_ptr(), libc::STATX_DIOALIGN);
        let answer = libc::statx(fd.as_raw_fd(), path, libc::AT_EMPTY_PATH, mask, &mut statx);
        (answer, statx)
    };
    let told = statx.stx_dio_mem_align.max(statx.stx_dio_offset_align) as usize;
    let known = answer == 0 && statx.stx_mask & libc::STATX_DIOALIGN != 0;
    if known && told.is_power_of_two() { told.max(512) } else { ALIGNMENT_DEFAULT }
}
