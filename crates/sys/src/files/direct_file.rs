//! Direct file: reads and writes a file or block device past the page cache.
//!
//! Guarantees: a read or write that answers Ok did all its bytes; EINTR and short counts are
//! handled here. The end of the file is an error (ENODATA), and so is the limit on the size of
//! files (EFBIG), without its signal. Other processes' data is not overwritten by accident.
//! Never: allocates after opening | retries a failed sync. Buffers, lengths and offsets must be
//! multiples of `alignment()`; otherwise the kernel answers EINVAL if the file is direct.
//! Threads: any, all operations are `&self`.

use crate::errno::{Errno, Result};
use crate::files::file_status::{self, FileId, filled};
use crate::files::own_descriptor::OwnDescriptor;
use crate::memory::pinned_array::PinnedArray;
use crate::raw_call::{Descriptor, c_string, raw_call, raw_call_again};
use crate::signature;
use crate::threads::signals::NoFileSizeSignal;
use core::ffi::CStr;
use core::fmt;
use std::ffi::CString;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BLOCK_DISCARD: libc::c_ulong = 0x1277;
const BLOCK_SIZE_64: libc::c_ulong = 0x8008_1272;
const BLOCK_LOGICAL_SIZE: libc::c_ulong = 0x1268;
/// The alignment if the kernel does not tell it.
const ALIGNMENT_DEFAULT: usize = 4096;
const NAMES_TRIED_MAX: u32 = 100;

/// The treatment of existing data by `open_path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuse if the first 68 KiB are neither zero nor an earlier store.
    Refuse,
    /// The user insists: overwrite. (But never a device that is mounted or in use.)
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
    /// Makes a file without a name in `dir`, with mode 0600; it is gone when it is closed.
    pub fn open_unlinked(dir: &Path) -> Result<Self> {
        let flags = libc::O_RDWR;
        let name = c_path(dir)?;
        let (fd, is_direct) = match open_direct(&name, flags | libc::O_TMPFILE) {
            // These errors say that the file system has no such files; others (EACCES, ENOSPC) are
            // final.
            Err(Errno::ENOTSUP | Errno::EISDIR | Errno::EINVAL) => create_and_unlink(dir, flags)?,
            answer => answer?,
        };
        Self::finish(fd, is_direct, false)
    }

    /// Opens an existing regular file or block device. Locks it against other processes; a device
    /// also against mounting.
    pub fn open_path(path: &Path, existing: Existing) -> core::result::Result<Self, OpenError> {
        let name = c_path(path)?;
        let is_device = is_device(&name)?;
        // O_EXCL on a device: refuses if it is mounted or claimed.
        let exclusive = if is_device { libc::O_EXCL } else { 0 };
        let file = Self::open_locked(&name, libc::O_RDWR | exclusive, is_device, libc::LOCK_EX)?;
        if existing == Existing::Refuse
            && let Some(what) = file.contents()?
        {
            return Err(OpenError::Holds(what));
        }
        Ok(file)
    }

    /// Makes an empty regular file for its owner alone (mode 0600). EEXIST: the name is taken.
    pub fn create(path: &Path) -> Result<Self> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        Self::finish(open(&c_path(path)?, flags)?, false, false)
    }

    /// Opens an existing regular file for reading alone, without a lock.
    pub fn open_to_read(path: &Path) -> core::result::Result<Self, OpenError> {
        let name = c_path(path)?;
        if is_device(&name)? {
            return Err(OpenError::WrongKind);
        }
        let (fd, is_direct) = open_direct(&name, libc::O_RDONLY)?;
        Ok(Self::finish(fd, is_direct, false)?)
    }

    /// Opens an existing regular file or block device whose bytes stay what they are, beside others
    /// that do the same; `writes`: to write as well. Nobody makes a store of it meanwhile.
    pub fn open_in_place(path: &Path, writes: bool) -> core::result::Result<Self, OpenError> {
        let name = c_path(path)?;
        let is_device = is_device(&name)?;
        let access = if writes { libc::O_RDWR } else { libc::O_RDONLY };
        Self::open_locked(&name, access, is_device, libc::LOCK_SH)
    }

    fn open_locked(
        name: &CStr,
        flags: i32,
        is_device: bool,
        kind: i32,
    ) -> core::result::Result<Self, OpenError> {
        let (fd, is_direct) = match open_direct(name, flags) {
            Err(Errno::EBUSY | Errno::ETXTBSY) => return Err(OpenError::InUse),
            answer => answer?,
        };
        lock(&fd, kind)?;
        Ok(Self::finish(fd, is_direct, is_device)?)
    }

    /// The same file through the page cache: for what is no multiple of `alignment()`.
    pub fn buffered(&self) -> Result<Self> {
        let fd = Descriptor::reopen(self.as_raw_fd(), libc::O_RDWR)?;
        let (fd, is_device) = (OwnDescriptor::adopt(fd), self.is_device);
        Ok(DirectFile { fd, is_direct: false, is_device, alignment: 1 })
    }

    /// Which file or device it is, whatever its name.
    pub fn id(&self) -> Result<FileId> {
        let stat = file_status::of(self.as_raw_fd())?;
        Ok(match self.is_device {
            true => FileId { device: stat.st_rdev, inode: 0 },
            false => stat.into(),
        })
    }

    fn finish(fd: Descriptor, is_direct: bool, is_device: bool) -> Result<Self> {
        let alignment = alignment(&fd, is_device);
        let fd = OwnDescriptor::adopt(fd);
        let mut file = DirectFile { fd, is_direct, is_device, alignment };
        if file.is_direct && !file.direct_works()? {
            // SAFETY: no memory arguments.
            let _ = unsafe { raw_call!(SYS_fcntl, file.as_raw_fd(), libc::F_SETFL, 0) };
            file.is_direct = false;
        }
        Ok(file)
    }

    /// Some file systems take O_DIRECT when opening and refuse it when reading.
    fn direct_works(&self) -> Result<bool> {
        let mut page = PinnedArray::<u8>::new(self.alignment.max(crate::PAGE))?;
        // SAFETY: a mutable borrow of so many bytes.
        match unsafe { self.read_up_to(page.as_mut_ptr(), page.len(), 0) } {
            Err(Errno::EINVAL) => Ok(false),
            answer => answer.map(|_| true),
        }
    }

    /// The content that the first bytes name; None: nothing that we must not overwrite.
    fn contents(&self) -> Result<Option<&'static str>> {
        let mut head = PinnedArray::<u8>::new(signature::HEAD_BYTES)?;
        // SAFETY: a mutable borrow of so many bytes.
        let done = unsafe { self.read_up_to(head.as_mut_ptr(), head.len(), 0) }?;
        Ok(signature::recognise(&head[..done]))
    }

    /// Fills `buf` from `offset`. ENODATA: the file ends before that.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // SAFETY: a mutable borrow of so many bytes.
        let read = unsafe { self.read_up_to(buf.as_mut_ptr(), buf.len(), offset) }?;
        if read == buf.len() { Ok(()) } else { Err(Errno::ENODATA) }
    }

    /// Fills up to `len` bytes at `buf` from `offset`, fewer only at the end of the file; answers
    /// how many.
    ///
    /// # Safety
    /// The bytes are writable and used by nobody else.
    pub unsafe fn read_up_to(&self, buf: *mut u8, len: usize, offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < len {
            let (fd, at) = (self.as_raw_fd(), offset + done as u64);
            // SAFETY: the caller's promise; the kernel writes `len - done` bytes at most.
            match unsafe { raw_call_again!(SYS_pread64, fd, buf.add(done), len - done, at) }? {
                0 => break,
                bytes => done += bytes,
            }
            // Only the end of the file is no whole block.
            if !done.is_multiple_of(self.alignment) {
                break;
            }
        }
        self.drop_cached(offset, len);
        Ok(done)
    }

    /// Fills the buffers one after the other from `offset`, in one request of the device if it can.
    /// ENODATA: the file ends before that. At most 1024 buffers.
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let (fd, first) = (self.as_raw_fd(), bufs.as_mut_ptr());
        // The kernel takes the offset as two halves, of which the first is whole on 64 bits.
        // SAFETY: IoSliceMut is laid out as iovec, and the borrows allow the kernel to write.
        let answer = unsafe { raw_call!(SYS_preadv, fd, first, bufs.len(), offset, 0) };
        // Bytes that one call left over, for whatever reason, are read piece by piece: the pieces
        // tell the reason.
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

    /// Writes `buf` at `offset`. ENOSPC, EIO, EFBIG (RLIMIT_FSIZE) and the like: a part may be
    /// written.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let _no_signal = NoFileSizeSignal::new();
        let mut done = 0;
        while done < buf.len() {
            let rest = &buf[done..];
            let (fd, at) = (self.as_raw_fd(), offset + done as u64);
            // SAFETY: the kernel reads the borrowed bytes.
            match unsafe { raw_call!(SYS_pwrite64, fd, rest.as_ptr(), rest.len(), at) } {
                Ok(0) => return Err(Errno::EIO), // takes nothing and gives no reason
                Ok(bytes) => done += bytes,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        if !self.is_direct {
            let (fd, len) = (self.as_raw_fd(), buf.len());
            let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // Only so that the cache can be dropped: `sync` gives durability. SAFETY: no memory
            // arguments.
            let _ = unsafe { raw_call!(SYS_sync_file_range, fd, offset, len, flags) };
            self.drop_cached(offset, len);
        }
        Ok(())
    }

    /// Makes sure that `offset..offset+len` has space, growing the file. ENOSPC: there is none.
    /// ENOTSUP: the file system cannot promise space.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if self.is_device {
            let device = self.len()?;
            let fits = offset.checked_add(len).is_some_and(|end| end <= device);
            return if fits { Ok(()) } else { Err(Errno::ENOSPC) };
        }
        self.fallocate(0, offset, len)
    }

    /// Tells the device that `offset..offset+len` is not needed any more; afterwards it may read as
    /// anything. ENOTSUP: the device has no such call.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        if !self.is_device {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            return self.fallocate(mode, offset, len);
        }
        let range = [offset, len];
        // SAFETY: BLKDISCARD reads two u64.
        unsafe { raw_call!(SYS_ioctl, self.as_raw_fd(), BLOCK_DISCARD, range.as_ptr()) }?;
        Ok(())
    }

    /// Bytes of the file or device.
    pub fn len(&self) -> Result<u64> {
        if self.is_device {
            return device_len(&self.fd);
        }
        Ok(file_status::of(self.as_raw_fd())?.st_size as u64)
    }

    /// Makes the file so long; what it gains is zeros.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        let _no_signal = NoFileSizeSignal::new();
        // SAFETY: no memory arguments.
        unsafe { raw_call_again!(SYS_ftruncate, self.as_raw_fd(), bytes) }?;
        Ok(())
    }

    /// Bytes of the file system that the file is on: free for this user, and in all.
    pub fn file_system_bytes(&self) -> Result<(u64, u64)> {
        let fd = self.as_raw_fd();
        // SAFETY: zeros are a statfs, and the kernel writes one.
        let statfs = unsafe { filled(|it: *mut libc::statfs| raw_call!(SYS_fstatfs, fd, it)) }?;
        let bytes = |blocks: u64| blocks.saturating_mul(statfs.f_frsize as u64);
        Ok((bytes(statfs.f_bavail), bytes(statfs.f_blocks)))
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Makes all writes that answered Ok durable. An error is final: nobody knows which writes are
    /// durable.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: no memory arguments.
        unsafe { raw_call!(SYS_fdatasync, self.as_raw_fd()) }?;
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

    /// Offsets, lengths and buffer addresses must be multiples of this: a power of two of bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    fn fallocate(&self, mode: i32, offset: u64, len: u64) -> Result<()> {
        let _no_signal = NoFileSizeSignal::new();
        // SAFETY: no memory arguments.
        unsafe { raw_call_again!(SYS_fallocate, self.as_raw_fd(), mode, offset, len) }?;
        Ok(())
    }

    fn drop_cached(&self, offset: u64, len: usize) {
        if !self.is_direct {
            let (fd, advice) = (self.as_raw_fd(), libc::POSIX_FADV_DONTNEED);
            // SAFETY: no memory arguments; advice may be ignored.
            let _ = unsafe { raw_call!(SYS_fadvise64, fd, offset, len, advice) };
        }
    }
}

impl AsRawFd for DirectFile {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Whether it is a block device; WrongKind if it is no regular file either. Looks before anybody
/// opens: opening a FIFO or a tape can have effects.
fn is_device(name: &CStr) -> core::result::Result<bool, OpenError> {
    match file_status::at(name)?.st_mode & libc::S_IFMT {
        libc::S_IFREG => Ok(false),
        libc::S_IFBLK => Ok(true),
        _ => Err(OpenError::WrongKind),
    }
}

/// Locks a file against other processes (flock).
fn lock(fd: &Descriptor, kind: i32) -> core::result::Result<(), OpenError> {
    // SAFETY: no memory arguments.
    match unsafe { raw_call!(SYS_flock, fd.as_raw_fd(), kind | libc::LOCK_NB) } {
        Err(Errno::EAGAIN) => Err(OpenError::InUse),
        // These errors come from a file system without locks.
        Err(Errno::ENOLCK | Errno::ENOTSUP | Errno::EINVAL | Errno::ENOSYS) | Ok(_) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// True if files at `path` are in RAM: tmpfs, ramfs, hugetlbfs.
pub fn file_system_is_memory(path: &Path) -> Result<bool> {
    const MAGICS: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    let name = c_path(path)?;
    // SAFETY: zeros are a statfs, and the kernel writes one; the name ends with NUL.
    let statfs =
        unsafe { filled(|it: *mut libc::statfs| raw_call!(SYS_statfs, name.as_ptr(), it)) }?;
    Ok(MAGICS.contains(&(statfs.f_type as u64 & 0xffff_ffff)))
}

/// Makes durable that a file has its name.
pub fn sync_name(path: &Path) -> Result<()> {
    // A name may lead to a file in another folder.
    let path = path.canonicalize()?;
    let folder = c_path(path.parent().unwrap_or(&path))?;
    // SAFETY: no memory arguments.
    unsafe {
        match open(&folder, libc::O_RDONLY | libc::O_DIRECTORY) {
            // Not every folder in which a user may have files can be opened.
            Err(Errno::EACCES) => {
                let file = open(&c_path(&path)?, libc::O_RDONLY)?;
                raw_call!(SYS_syncfs, file.as_raw_fd())
            }
            folder => raw_call!(SYS_fsync, folder?.as_raw_fd()),
        }
    }?;
    Ok(())
}

fn c_path(path: &Path) -> Result<CString> {
    c_string(path.as_os_str().as_bytes())
}

/// Opens with O_DIRECT, or without if only that is refused.
fn open_direct(name: &CStr, flags: i32) -> Result<(Descriptor, bool)> {
    match open(name, flags | libc::O_DIRECT) {
        Err(Errno::EINVAL) => Ok((open(name, flags)?, false)),
        answer => Ok((answer?, true)),
    }
}

fn open(name: &CStr, flags: i32) -> Result<Descriptor> {
    Descriptor::open(name, flags, 0o600)
}

/// For file systems without O_TMPFILE: creates a file with a unique name and removes the name at
/// once.
fn create_and_unlink(dir: &Path, flags: i32) -> Result<(Descriptor, bool)> {
    for attempt in 0..NAMES_TRIED_MAX {
        let name = format!(".deepheap-{}-{attempt}", std::process::id());
        let name = c_path(&dir.join(name))?;
        // Create it without O_DIRECT first: if that were refused after creating, the name would
        // stay.
        let flags = flags | libc::O_NOFOLLOW;
        let created = match open(&name, flags | libc::O_CREAT | libc::O_EXCL) {
            Err(Errno::EEXIST) => continue,
            answer => answer?,
        };
        let direct = open(&name, flags | libc::O_DIRECT);
        // SAFETY: `name` ends with NUL.
        unsafe { raw_call!(SYS_unlink, name.as_ptr()) }?;
        return Ok(direct.map_or((created, false), |fd| (fd, true)));
    }
    Err(Errno::EEXIST)
}

fn device_len(fd: &impl AsRawFd) -> Result<u64> {
    let mut bytes = 0u64;
    // SAFETY: BLKGETSIZE64 writes a u64.
    unsafe { raw_call!(SYS_ioctl, fd.as_raw_fd(), BLOCK_SIZE_64, &raw mut bytes) }?;
    Ok(bytes)
}

/// The kernel's alignment for direct I/O (statx, Linux 6.1; devices: their logical block).
fn alignment(fd: &Descriptor, is_device: bool) -> usize {
    if is_device {
        let mut bytes: libc::c_int = 0;
        // SAFETY: BLKSSZGET writes an int.
        let answer =
            unsafe { raw_call!(SYS_ioctl, fd.as_raw_fd(), BLOCK_LOGICAL_SIZE, &raw mut bytes) };
        return match usize::try_from(bytes) {
            Ok(bytes) if answer.is_ok() && bytes.is_power_of_two() => bytes.max(512),
            _ => ALIGNMENT_DEFAULT,
        };
    }
    let (fd, path, mask) = (fd.as_raw_fd(), c"".as_ptr(), libc::STATX_DIOALIGN);
    // SAFETY: an empty path names the descriptor; zeros are a statx, and the kernel writes one.
    let told = unsafe {
        filled(|it: *mut libc::statx| raw_call!(SYS_statx, fd, path, libc::AT_EMPTY_PATH, mask, it))
    };
    let known = told.ok().filter(|told| told.stx_mask & mask != 0);
    let most = known.map(|told| told.stx_dio_mem_align.max(told.stx_dio_offset_align) as usize);
    most.filter(|most| most.is_power_of_two()).map_or(ALIGNMENT_DEFAULT, |most| most.max(512))
}
