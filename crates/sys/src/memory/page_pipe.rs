//! Page pipe: holds pages that were taken out of a sparse file, for as long as one process has it
//! open.
//!
//! A page goes in as a reference, so stores by others show in it until the page is a hole in the
//! file. Pages in the pipe outlive the process that put them there.
//!
//! Guarantees: a page is in it whole or not at all; `held_bytes` is exact, whenever a process dies.
//! Never: blocks | allocates, but for `create` and `of_process`.
//! Threads: one at a time, of all processes; the callers see to that.

use crate::PAGE;
use crate::errno::{Errno, Result};
use crate::files::file_status::FileId;
use crate::files::own_descriptor::OwnDescriptor;
use crate::files::sparse_file::{SparseFile, open_of_process};
use crate::raw_call::{Descriptor, raw_call, raw_call_again};
use core::sync::atomic::{AtomicU8, Ordering};
use std::os::fd::{AsRawFd, RawFd};

/// Pages that a pipe holds.
pub const PIPE_PAGES: usize = 16;

/// See the file's header.
#[derive(Debug)]
pub struct PagePipe(OwnDescriptor);

impl PagePipe {
    /// An empty pipe. ENFILE: the user's pipes have used up what an administrator allows
    /// (fs.pipe-user-pages-soft).
    pub fn create() -> Result<PagePipe> {
        let (reader, _writer) = Descriptor::pipe()?;
        // One descriptor for both ends.
        let both = Descriptor::reopen(reader.as_raw_fd(), libc::O_RDWR | libc::O_NONBLOCK)?;
        let pipe = PagePipe(OwnDescriptor::adopt(both));
        // SAFETY: fcntl without a memory argument.
        let granted = unsafe { raw_call!(SYS_fcntl, pipe.as_raw_fd(), libc::F_GETPIPE_SZ) }?;
        if granted >= PIPE_PAGES * PAGE { Ok(pipe) } else { Err(Errno::ENFILE) }
    }

    /// The pipe that process `pid` has under this number, if it is `id`.
    pub fn of_process(pid: u32, number: RawFd, id: FileId) -> Result<PagePipe> {
        Ok(PagePipe(open_of_process(pid, number, id)?))
    }

    /// Which pipe it is.
    pub fn id(&self) -> Result<FileId> {
        FileId::of(self.as_raw_fd())
    }

    /// Puts `pages` consecutive pages of the file in, all of them there; answers how many went in.
    pub fn put(&self, file: &SparseFile, offset: u64, pages: usize) -> Result<usize> {
        let mut done = 0;
        while done < pages * PAGE {
            let mut from = offset as i64 + done as i64;
            let (to, left) = (self.as_raw_fd(), pages * PAGE - done);
            let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
            // SAFETY: the offset is ours; the kernel takes references to pages.
            let moved = unsafe {
                raw_call!(SYS_splice, file.as_raw_fd(), &raw mut from, to, 0, left, flags)
            };
            match moved {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::EINTR) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        // The kernel moves whole pages; a part of one would be found by `held_bytes`.
        Ok(done / PAGE)
    }

    /// Bytes that are in it.
    pub fn held_bytes(&self) -> Result<usize> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: FIONREAD writes an int.
        unsafe { raw_call!(SYS_ioctl, self.as_raw_fd(), libc::FIONREAD, &raw mut bytes) }?;
        Ok(bytes as usize)
    }

    /// Takes `bytes` bytes out of it, all of which are in it.
    ///
    /// # Safety
    /// `into` is so long, can be written, and nobody else uses it.
    pub unsafe fn take(&self, into: *mut u8, bytes: usize) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let at = into.wrapping_add(done);
            // SAFETY: the caller's promise.
            match unsafe { raw_call!(SYS_read, self.as_raw_fd(), at, bytes - done) } {
                Ok(0) => return Err(Errno::EPIPE),
                Ok(count) => done += count,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Empties it.
    ///
    /// # Safety
    /// `scratch` is `PIPE_PAGES` pages, can be written, and nobody else uses it.
    pub unsafe fn discard(&self, scratch: *mut u8) -> Result<()> {
        loop {
            match self.held_bytes()? {
                0 => return Ok(()),
                // SAFETY: the caller's promise.
                bytes => unsafe { self.take(scratch, bytes.min(PIPE_PAGES * PAGE)) }?,
            }
        }
    }
}

impl AsRawFd for PagePipe {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Whether this kernel lets pages of a sparse file be taken out without a loss: a page in the pipe
/// shows stores that were made after it went in.
pub fn pipe_sees_stores() -> Result<bool> {
    let file = SparseFile::create(c"deepheap-probe", PAGE as u64)?;
    let at = file.map(PAGE)?;
    // SAFETY: mapped above; nobody else knows of it.
    let byte = unsafe { AtomicU8::from_ptr(at) };
    byte.store(1, Ordering::SeqCst);
    let pipe = PagePipe::create()?;
    let put = pipe.put(&file, 0, 1);
    byte.store(2, Ordering::SeqCst);
    let mut seen = [0u8; PAGE];
    let taken = put.and_then(|pages| match pages {
        // SAFETY: a page of room.
        1 => unsafe { pipe.take(seen.as_mut_ptr(), PAGE) },
        _ => Err(Errno::EIO),
    });
    // SAFETY: mapped above and used here only.
    unsafe { raw_call_again!(SYS_munmap, at, PAGE) }?;
    taken.map(|()| seen[0] == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_before_the_punch_comes_out() {
        assert_eq!(pipe_sees_stores(), Ok(true));
        let file = SparseFile::create(c"test", 4 * PAGE as u64).unwrap();
        let at = file.map(4 * PAGE).unwrap();
        let pipe = PagePipe::create().unwrap();
        let id = pipe.id().unwrap();
        let pid = std::process::id();
        let again = PagePipe::of_process(pid, pipe.as_raw_fd(), id).unwrap();
        // SAFETY: mapped above.
        unsafe {
            at.write(1);
            at.add(PAGE).write(2);
            assert_eq!(pipe.put(&file, 0, 2), Ok(2));
            at.write(3);
        }
        file.punch(0, 2 * PAGE).unwrap();
        drop(pipe);
        assert_eq!(again.held_bytes(), Ok(2 * PAGE));
        let mut pages = vec![0u8; PIPE_PAGES * PAGE];
        // SAFETY: room enough; the mapping is used no more.
        unsafe {
            again.take(pages.as_mut_ptr(), PAGE).unwrap();
            assert_eq!((pages[0], again.held_bytes()), (3, Ok(PAGE)));
            again.discard(pages.as_mut_ptr()).unwrap();
            assert_eq!((pages[0], again.held_bytes()), (2, Ok(0)));
            crate::memory::mapping::unmap(at, 4 * PAGE).unwrap();
        }
    }
}
