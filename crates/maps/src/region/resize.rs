//! Resize: a mapped file becomes longer or shorter, for all of its processes.
//!
//! The header has the length of the file, and every fault, eviction and sync looks there. A
//! shorter file is made so in three steps: the new length is noted; every shard is owned once, and
//! its pages behind the end leave RAM, unwritten; the file is cut. A thread that had taken the old
//! length while owning a shard has ended before the file is cut, so nobody writes behind its new
//! end. A page that the file ends in leaves RAM, too: what is behind the end in RAM is nobody's,
//! and must not become the file's.
//!
//! Guarantees: what is behind the end faults for ever, in every process, until the file is longer
//! again; then it is zeros.
//! Never: runs in a signal handler.
//! Threads: one at a time in a process (`table`), one process at a time (the door); other processes
//! use the map meanwhile, this one does not.

use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;

use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;
use deepheap_sys::files::sparse_file::Placement;
use deepheap_sys::memory::mapping;
use deepheap_sys::threads::thread;

use crate::error::{MapError, SyncError};
use crate::region::Region;
use crate::region::join::PAGES_MAX;
use crate::tables::control::ENTRIES;

/// Between two tries to have the page leave RAM that the file ends in, and how many: it may be
/// pinned for a call.
const PAUSE: Duration = Duration::from_millis(1);
const TRIES: u32 = 1000;

impl Region {
    /// Makes the file `length` bytes long, or takes the length that it has (0), and maps all of it
    /// here: where it was, if there is room. After an error the map is as it was, but for the
    /// length of the file.
    pub(crate) fn resize(&mut self, length: u64) -> Result<(), MapError> {
        let now = self.backing.bytes().map_err(MapError::Resources)?;
        let length = if length == 0 { now } else { length };
        if length == 0 {
            return Err(MapError::Empty);
        }
        if length.div_ceil(PAGE as u64) > PAGES_MAX {
            return Err(MapError::TooLong);
        }
        if self.log().is_some() {
            return if length == now { Ok(()) } else { Err(MapError::FixedLength) };
        }
        if length != now && !self.backing.can_write() {
            return Err(MapError::Sync(SyncError::ReadOnly));
        }
        if length != now && self.backing.file().is_device() {
            return Err(MapError::FixedLength);
        }
        let rendezvous = self.tables.rendezvous.reopened().map_err(MapError::Folder)?;
        // Nobody joins meanwhile.
        let door = rendezvous.door().map_err(MapError::Folder)?;
        let noted = self.file_bytes();
        if length < noted {
            self.note_length(noted, length)?;
            self.drop_behind(length);
        }
        if length != now {
            self.backing.file().set_len(length).map_err(MapError::Length)?;
        }
        if length > noted {
            let pages = length.next_multiple_of(PAGE as u64);
            self.memory.grow(pages).map_err(MapError::Resources)?;
            self.note_length(noted, length)?;
        }
        drop(door);
        self.map_anew(length.next_multiple_of(PAGE as u64) as usize)
    }

    /// Notes the new length. A page that the shorter of the two ends in is not in RAM then: it has
    /// been written as far as it reached, and comes back with what the file has behind that.
    fn note_length(&self, noted: u64, length: u64) -> Result<(), MapError> {
        let end = noted.min(length);
        if end.is_multiple_of(PAGE as u64) {
            self.tables.header().file_bytes.store(length, SeqCst);
            return Ok(());
        }
        let page = (end / PAGE as u64) as u32;
        for _ in 0..TRIES {
            let owned = self.own(self.tables.shard_of(page));
            let mut last = [page];
            let is_out = owned.find(page).is_none()
                || self.tables.unpinned(&mut last) == 1 && owned.evict(&mut last).gone == 1;
            if is_out {
                self.tables.header().file_bytes.store(length, SeqCst);
                return Ok(());
            }
            drop(owned);
            thread::sleep(PAUSE);
        }
        Err(MapError::Length(Errno::EBUSY))
    }

    /// Has every page behind the end leave RAM.
    fn drop_behind(&self, length: u64) {
        let end = length.div_ceil(PAGE as u64) as u32;
        for shard in 0..self.tables.shards() {
            let owned = self.own(shard);
            for entry in 0..ENTRIES {
                let Some(page) = owned.page(entry).filter(|page| *page >= end) else { continue };
                if self.memory.punch(Self::offset_of(page), PAGE).is_ok() {
                    owned.remove(entry);
                    self.uncount(1);
                }
            }
        }
    }

    /// Maps the first `bytes` bytes: at the same address, if there is room.
    fn map_anew(&mut self, bytes: usize) -> Result<(), MapError> {
        let (base, old) = (self.base, self.bytes);
        if bytes == old {
            return Ok(());
        }
        if bytes < old {
            // SAFETY: the end of the mapping; the program uses it no more.
            let unmapped = unsafe { mapping::unmap((base + bytes) as *mut u8, old - bytes) };
            self.bytes = bytes;
            return unmapped.map_err(MapError::Resources);
        }
        let (memory, writes) = (&self.memory, self.is_writer());
        let behind = Placement::At(base + old);
        match self.watch.map(memory, old, bytes - old, writes, behind) {
            Err(MapError::Resources(Errno::EEXIST)) => {
                self.base = self.watch.map(memory, 0, bytes, writes, Placement::Anywhere)?;
                // SAFETY: the old mapping, which the program uses no more.
                let _ = unsafe { mapping::unmap(base as *mut u8, old) };
            }
            mapped => drop(mapped?),
        }
        self.bytes = bytes;
        Ok(())
    }
}
