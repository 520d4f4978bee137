//! Sparse file: pages of RAM that processes share by their offset; a page that nobody filled is a
//! hole.
//!
//! It is a memfd. Another process of the same user opens it by a descriptor of one that has it. A
//! page that is there is mapped by the kernel itself, in every process; a hole in a mapping that is
//! registered with userfaultfd raises SIGBUS. A page in swap is no hole.
//!
//! A page comes by `UFFDIO_COPY` in one of the mappings, or by `copy_pages`, and then the kernel
//! maps it at a touch. Only the latter leaves a page-table entry clean that is not written,
//! and at a dirty one the kernel flushes the TLB when it drops it.
//!
//! Guarantees: close-on-exec; when `punch` answers Ok no process can touch the pages through an old
//! mapping.
//! Never: allocates, but for `of_process`, `create` and `can_copy_pages`.
//! Threads: any, also in a signal handler.

use crate::PAGE;
use crate::errno::{Errno, Result};
use crate::files::file_status::{self, FileId};
use crate::files::own_descriptor::OwnDescriptor;
use crate::memory::mapping::{self, Advice};
use crate::raw_call::{Descriptor, c_string, raw_call, raw_call_again};
use core::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

/// Where a mapping goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the kernel likes.
    Anywhere,
    /// There, if nothing is there; else EEXIST.
    At(usize),
}

/// See the file's header.
#[derive(Debug)]
pub struct SparseFile(OwnDescriptor);

impl SparseFile {
    /// A file of `bytes` bytes, all holes.
    pub fn create(name: &CStr, bytes: u64) -> Result<SparseFile> {
        // SAFETY: the name ends with NUL; only we have the descriptor.
        let file = unsafe {
            let file = raw_call!(SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC)?;
            SparseFile(OwnDescriptor::adopt(Descriptor::new(file)))
        };
        file.grow(bytes)?;
        Ok(file)
    }

    /// The file that process `pid` has under this number, if it is `id`. ESTALE-like answers are
    /// ENOENT: it is another file.
    pub fn of_process(pid: u32, number: RawFd, id: FileId) -> Result<SparseFile> {
        Ok(SparseFile(open_of_process(pid, number, id)?))
    }

    /// Which file it is.
    pub fn id(&self) -> Result<FileId> {
        FileId::of(self.as_raw_fd())
    }

    /// Makes it so long; it is never made shorter.
    pub fn grow(&self, bytes: u64) -> Result<()> {
        if file_status::of(self.as_raw_fd())?.st_size as u64 >= bytes {
            return Ok(());
        }
        // SAFETY: no memory arguments.
        unsafe { raw_call_again!(SYS_ftruncate, self.as_raw_fd(), bytes) }?;
        Ok(())
    }

    /// Bytes of all pages that are there.
    pub fn resident_bytes(&self) -> Result<u64> {
        Ok(file_status::of(self.as_raw_fd())?.st_blocks as u64 * 512)
    }

    /// Whether the page at this offset is there.
    pub fn has_page(&self, offset: u64) -> Result<bool> {
        // SAFETY: no memory arguments.
        match unsafe { raw_call!(SYS_lseek, self.as_raw_fd(), offset, libc::SEEK_DATA) } {
            Ok(found) => Ok(found as u64 == offset),
            Err(Errno::ENXIO) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Fills pages from this offset on with those from `from_offset` on of another file, which do
    /// not change meanwhile; answers how many, from the first on. For processes of
    /// `can_copy_pages`.
    ///
    /// A thread that touches a page meanwhile waits for all of it, also if this process is killed:
    /// the kernel locks the new page, copies from the other file's page, which is in its own hands
    /// and cannot be missing, and only then says that it is there. `pwrite` copies from the
    /// caller's mapping; if the page is not in there at that moment, zeros are there for a while.
    pub fn copy_pages(
        &self,
        offset: u64,
        from: &SparseFile,
        from_offset: u64,
        pages: usize,
    ) -> usize {
        let (mut into, mut out_of) = (offset, from_offset);
        let (from, to) = (from.as_raw_fd(), self.as_raw_fd());
        let mut done = 0;
        while done < pages * PAGE {
            let left = pages * PAGE - done;
            let (out_of, into) = (&raw mut out_of, &raw mut into);
            // SAFETY: the offsets are ours.
            let copied = unsafe { raw_call!(SYS_copy_file_range, from, out_of, to, into, left, 0) };
            match copied {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        done / PAGE
    }

    /// Makes holes of whole pages; parts of pages become zeros.
    pub fn punch(&self, offset: u64, bytes: usize) -> Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no memory arguments.
        unsafe { raw_call_again!(SYS_fallocate, self.as_raw_fd(), mode, offset, bytes) }?;
        Ok(())
    }

    /// Copies the page at this offset. A hole gives zeros, and stays one.
    ///
    /// # Safety
    /// `into` is a page that can be written and that nobody else uses.
    pub unsafe fn read_page(&self, into: *mut u8, offset: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { raw_call_again!(SYS_pread64, self.as_raw_fd(), into, PAGE, offset) }? {
            PAGE => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    /// Fills the page at this offset; a thread that touches it meanwhile waits for all of it.
    ///
    /// # Safety
    /// `from` is a page that can be read and does not change meanwhile.
    pub unsafe fn write_page(&self, from: *const u8, offset: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { raw_call_again!(SYS_pwrite64, self.as_raw_fd(), from, PAGE, offset) }? {
            PAGE => Ok(()),
            _ => Err(Errno::ENOSPC),
        }
    }

    /// Maps its first `bytes` bytes, readable and writable, shared with all that map it.
    pub fn map(&self, bytes: usize) -> Result<*mut u8> {
        self.map_part(0, bytes, libc::PROT_READ | libc::PROT_WRITE, Placement::Anywhere)
    }

    /// Maps `bytes` bytes from this offset on, shared with all that map them.
    pub fn map_part(
        &self,
        offset: u64,
        bytes: usize,
        protection: i32,
        placement: Placement,
    ) -> Result<*mut u8> {
        let (address, fixed) = match placement {
            Placement::Anywhere => (0, 0),
            Placement::At(address) => (address, libc::MAP_FIXED_NOREPLACE),
        };
        // SAFETY: in place of nothing.
        unsafe { self.map_as(offset, bytes, protection, (address, fixed)) }
    }

    /// Maps `bytes` bytes from this offset on at an address, readable and writable, in place of
    /// whatever is there.
    ///
    /// # Safety
    /// The caller owns what is there, and nobody needs it any more.
    pub unsafe fn map_over(&self, offset: u64, bytes: usize, address: usize) -> Result<()> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the caller's promise.
        unsafe { self.map_as(offset, bytes, protection, (address, libc::MAP_FIXED)) }?;
        Ok(())
    }

    /// # Safety
    /// With MAP_FIXED as for `map_over`.
    unsafe fn map_as(
        &self,
        offset: u64,
        bytes: usize,
        protection: i32,
        (address, fixed): (usize, i32),
    ) -> Result<*mut u8> {
        let (fd, flags) = (self.as_raw_fd(), libc::MAP_SHARED | libc::MAP_NORESERVE | fixed);
        // SAFETY: a new mapping; the caller's promise for what was there.
        let at = unsafe { raw_call!(SYS_mmap, address, bytes, protection, flags, fd, offset) }?;
        let at = at as *mut u8;
        // A kernel without huge pages refuses, and gives none. SAFETY: just mapped.
        let _ = unsafe { mapping::advise(at, bytes, Advice::NoHugePage) };
        Ok(at)
    }
}

impl AsRawFd for SparseFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Whether `copy_pages` fills these pages, and no others: not before Linux 5.3, nor where memory
/// files get huge pages by themselves, nor in a process whose files have a limit, for the kernel
/// ends it by SIGXFSZ.
pub fn can_copy_pages() -> bool {
    const PAGES: usize = 3;
    // SAFETY: zeroed is a valid rlimit, which the call fills in.
    let limit = unsafe {
        let mut limit: libc::rlimit = core::mem::zeroed();
        raw_call!(SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit)
            .is_ok()
            .then_some(limit.rlim_cur)
    };
    let probe = || -> Result<bool> {
        let from = SparseFile::create(c"deepheap-probe", 4 << 20)?;
        let into = SparseFile::create(c"deepheap-probe", 4 << 20)?;
        let (given, mut found) = ([7u8; PAGE], [0u8; PAGE]);
        for page in 0..PAGES {
            // SAFETY: a page of ours.
            unsafe { from.write_page(given.as_ptr(), (page * PAGE) as u64) }?;
        }
        let copied = into.copy_pages(3 * PAGE as u64, &from, 0, PAGES);
        // SAFETY: as above.
        unsafe { into.read_page(found.as_mut_ptr(), 5 * PAGE as u64) }?;
        Ok(copied == PAGES && found == given && into.resident_bytes()? == (PAGES * PAGE) as u64)
    };
    limit == Some(libc::RLIM_INFINITY) && !has_huge_pages_by_itself() && probe().unwrap_or(false)
}

/// Whether a memory file may get huge pages that nobody has asked for. In doubt it may.
fn has_huge_pages_by_itself() -> bool {
    let file = c"/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let mut text = [0u8; 128];
    let read = Descriptor::open(file, libc::O_RDONLY, 0).and_then(|file| {
        // SAFETY: the buffer is so long.
        unsafe { raw_call_again!(SYS_read, file.as_raw_fd(), text.as_mut_ptr(), text.len()) }
    });
    match read {
        Ok(bytes) => {
            let has = |word: &[u8]| text[..bytes].windows(word.len()).any(|part| part == word);
            !(has(b"[never]") || has(b"[advise]") || has(b"[deny]"))
        }
        // A kernel without huge pages.
        Err(errno) => errno != Errno::ENOENT,
    }
}

/// Opens what a process has under a number, to read and write; ENOENT if it is not `id`.
pub(crate) fn open_of_process(pid: u32, number: RawFd, id: FileId) -> Result<OwnDescriptor> {
    let path = c_string(format!("/proc/{pid}/fd/{number}"))?;
    // Look before opening: the number may by now be a terminal or a device.
    if FileId::from(file_status::at(&path)?) != id {
        return Err(Errno::ENOENT);
    }
    let opened = Descriptor::open(&path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOCTTY, 0)?;
    if FileId::of(opened.as_raw_fd())? != id {
        return Err(Errno::ENOENT);
    }
    Ok(OwnDescriptor::adopt(opened))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_there_from_the_first_byte_until_they_are_punched() {
        let file = SparseFile::create(c"test", 8 * PAGE as u64).unwrap();
        let at = file.map(8 * PAGE).unwrap();
        let third = 3 * PAGE as u64;
        assert!(!file.has_page(third).unwrap());
        // SAFETY: mapped above.
        unsafe { at.add(3 * PAGE).write(7) };
        assert!(file.has_page(third).unwrap() && !file.has_page(third - PAGE as u64).unwrap());
        assert_eq!(file.resident_bytes().unwrap(), PAGE as u64);
        let mut page = vec![0u8; PAGE];
        // SAFETY: a page of room.
        unsafe { file.read_page(page.as_mut_ptr(), third) }.unwrap();
        assert_eq!(page[0], 7);
        file.punch(third, PAGE).unwrap();
        assert_eq!(file.resident_bytes().unwrap(), 0);
        // SAFETY: as above.
        unsafe { file.write_page(page.as_ptr(), 0) }.unwrap();
        // SAFETY: mapped above.
        assert_eq!(unsafe { at.read() }, 7);
        // SAFETY: mapped above, used no more.
        unsafe { mapping::unmap(at, 8 * PAGE) }.unwrap();
    }

    #[test]
    fn copied_pages_are_there_alone_and_whole() {
        const PAGES: usize = 40;
        assert!(can_copy_pages(), "this kernel copies pages between memory files");
        let from = SparseFile::create(c"test", 64 * PAGE as u64).unwrap();
        let into = SparseFile::create(c"test", 64 * PAGE as u64).unwrap();
        let page_of = |number: usize| -> Vec<u8> {
            (0..PAGE).map(|index| (index + number * 7) as u8).collect()
        };
        for page in 0..PAGES {
            // SAFETY: a page.
            unsafe { from.write_page(page_of(page).as_ptr(), ((page + 1) * PAGE) as u64) }.unwrap();
        }
        assert_eq!(into.copy_pages(3 * PAGE as u64, &from, PAGE as u64, PAGES), PAGES);
        assert!(!into.has_page(2 * PAGE as u64).unwrap());
        assert_eq!(into.resident_bytes().unwrap(), (PAGES * PAGE) as u64);
        let mut found = vec![0u8; PAGE];
        for page in 0..PAGES {
            // SAFETY: a page of room.
            unsafe { into.read_page(found.as_mut_ptr(), ((page + 3) * PAGE) as u64) }.unwrap();
            assert_eq!(found, page_of(page));
        }
        // Beyond the end of the other file there is nothing to copy.
        assert_eq!(into.copy_pages(50 * PAGE as u64, &from, 62 * PAGE as u64, 5), 2);
        assert!(!into.has_page(52 * PAGE as u64).unwrap());
    }

    #[test]
    fn another_process_opens_it_by_number_and_nothing_else() {
        let file = SparseFile::create(c"test", PAGE as u64).unwrap();
        let id = file.id().unwrap();
        let pid = std::process::id();
        let again = SparseFile::of_process(pid, file.as_raw_fd(), id).unwrap();
        assert_eq!(again.id().unwrap(), id);
        let other = FileId { inode: id.inode + 1, ..id };
        let refused = SparseFile::of_process(pid, file.as_raw_fd(), other);
        assert_eq!(refused.unwrap_err(), Errno::ENOENT);
    }
}
