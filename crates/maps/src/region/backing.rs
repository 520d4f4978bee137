//! Backing: the file that is mapped; its pages are read and written where they are.
//!
//! In a file with a log (`log`) these are the pages of the base, which begins behind the log. The
//! base alone is neither current nor what a sync makes durable: `Log::apply`, `log_evicted` and
//! `log_sync` do the rest.
//!
//! Guarantees: bytes behind the end of the file are zeros and are never written; the page cache is
//! passed by where the file system can do that.
//! Never: makes the file longer | allocates after `open`.
//! Threads: any.

use std::os::fd::AsRawFd;
use std::path::Path;

use deepheap_sys::PAGE;
use deepheap_sys::errno::{self, Errno};
use deepheap_sys::files::direct_file::{DirectFile, OpenError};
use deepheap_sys::files::joint_writes::{JointWrite, JointWriter};

use crate::error::MapError;
use crate::log::file::LogFile;

/// Why a page cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// The file is shorter than it was.
    Truncated,
    /// The device says so.
    Io(Errno),
    /// A record of the log is damaged.
    Damaged,
}

/// See the file's header.
pub(crate) struct Backing {
    file: DirectFile,
    /// For a last page that is no whole block; none if the file cannot be written.
    tail: Option<DirectFile>,
    log: Option<LogFile>,
}

impl Backing {
    /// Opens it; also to write, if that is allowed. EACCES if `must_write` and it is not.
    pub(crate) fn open(path: &Path, must_write: bool) -> Result<Backing, OpenError> {
        match DirectFile::open_in_place(path, true) {
            Ok(file) => {
                let tail = Some(file.buffered()?);
                Ok(Backing { file, tail, log: None })
            }
            Err(OpenError::System(Errno::EACCES | Errno::EROFS | Errno::EPERM))
            | Err(OpenError::InUse)
                if !must_write =>
            {
                let file = DirectFile::open_in_place(path, false)?;
                Ok(Backing { file, tail: None, log: None })
            }
            Err(error) => Err(error),
        }
    }

    /// The same file, as one that has a log.
    pub(crate) fn with_log(self, path: &Path) -> Result<Backing, MapError> {
        let bytes = self.file.len().map_err(MapError::Resources)?;
        let log = Some(LogFile::open(path, bytes, self.can_write())?);
        Ok(Backing { log, ..self })
    }

    /// Its log.
    pub(crate) fn log(&self) -> Option<&LogFile> {
        self.log.as_ref()
    }

    /// Where in the file a page is that begins at this offset of the map.
    pub(crate) fn place_of(&self, offset: u64) -> u64 {
        self.log.as_ref().map_or(0, |log| log.shape().base_start()) + offset
    }

    /// Whether it can be written.
    pub(crate) fn can_write(&self) -> bool {
        self.tail.is_some()
    }

    /// Bytes that can be mapped now.
    pub(crate) fn bytes(&self) -> errno::Result<u64> {
        match &self.log {
            Some(log) => Ok(log.shape().data_bytes),
            None => self.file.len(),
        }
    }

    /// The file itself.
    pub(crate) fn file(&self) -> &DirectFile {
        &self.file
    }

    /// Whether so many bytes at this offset, of a file that was `file_bytes` long, are as many as
    /// there must be. Fills what is behind the end with zeros.
    ///
    /// # Safety
    /// `into` has room for `pages` pages, of which `got` bytes were read.
    pub(crate) unsafe fn check(
        into: *mut u8,
        pages: usize,
        got: usize,
        offset: u64,
        file_bytes: u64,
    ) -> Result<(), ReadError> {
        let wanted = file_bytes.saturating_sub(offset).min((pages * PAGE) as u64) as usize;
        if got < wanted {
            return Err(ReadError::Truncated);
        }
        // SAFETY: the caller's promise. A file that has grown has other bytes there.
        unsafe { into.add(wanted).write_bytes(0, pages * PAGE - wanted) };
        Ok(())
    }

    /// Reads pages of a file that was `file_bytes` long.
    ///
    /// # Safety
    /// `into` has room for `pages` pages, is aligned to one, and nobody else uses it.
    pub(crate) unsafe fn read(
        &self,
        into: *mut u8,
        pages: usize,
        offset: u64,
        file_bytes: u64,
    ) -> Result<(), ReadError> {
        // SAFETY: the caller's promise.
        let got = unsafe { self.file.read_up_to(into, pages * PAGE, self.place_of(offset)) };
        let got = got.map_err(ReadError::Io)?;
        // SAFETY: as above.
        unsafe { Self::check(into, pages, got, offset, file_bytes) }
    }

    /// Writes pages, as far as the file reaches: bytes behind its end, now or when it was mapped,
    /// belong to nobody.
    ///
    /// # Safety
    /// `from` has `pages` pages, is aligned to one, and nobody changes it meanwhile.
    pub(crate) unsafe fn write(
        &self,
        from: *const u8,
        pages: usize,
        offset: u64,
        file_bytes: u64,
    ) -> errno::Result<()> {
        debug_assert!(self.log.is_none(), "a log is appended to");
        let Some(tail) = &self.tail else { return Err(Errno::EBADF) };
        let end = self.file.len()?.min(file_bytes);
        let bytes = end.saturating_sub(offset).min((pages * PAGE) as u64) as usize;
        let blocks = bytes - bytes % self.file.alignment().max(1);
        // SAFETY: the caller's promise.
        let all = unsafe { core::slice::from_raw_parts(from, bytes) };
        if blocks > 0 {
            self.file.write_at(&all[..blocks], offset)?;
        }
        if blocks < bytes {
            tail.write_at(&all[blocks..], offset + blocks as u64)?;
        }
        Ok(())
    }

    /// Writes pages side by side, all of which are in the file; answers which were written, a bit
    /// for each. The others may be written by `write`, which tells why they were not.
    ///
    /// # Safety
    /// As for `write`, of each.
    pub(crate) unsafe fn write_together(
        &self,
        writer: &mut JointWriter,
        writes: &[JointWrite],
        file_bytes: u64,
    ) -> u32 {
        // Through the page cache they would be written one by one.
        if self.tail.is_none() || self.log.is_some() || !self.file.is_direct() {
            return 0;
        }
        let end = self.file.len().map_or(0, |bytes| bytes.min(file_bytes));
        let is_inside = |write: &JointWrite| write.offset + write.bytes as u64 <= end;
        if !PAGE.is_multiple_of(self.file.alignment()) || !writes.iter().all(is_inside) {
            return 0;
        }
        // SAFETY: the caller's promise.
        unsafe { writer.write(self.file.as_raw_fd(), writes) }
    }

    /// Makes durable what any process has written.
    pub(crate) fn sync(&self) -> errno::Result<()> {
        match &self.log {
            Some(log) => log.device().sync(),
            None => self.file.sync(),
        }
    }
}
