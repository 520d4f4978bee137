//! Durable: what was changed in RAM goes to the file while it stays in RAM.
//!
//! Guarantees: when `sync` answers Ok, every byte of the range that was stored before the call, by
//! any process, is durable in the file.
//! Never: retries a sync of the device that has failed: nobody knows what it had lost.
//! Threads: any, with all signals blocked, not in a signal handler.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;

use crate::control::{BATCH, CHUNK_PAGES, ENTRIES};
use crate::error::SyncError;
use crate::ownership::Owned;
use crate::region::Region;
use crate::staging::{BUFFER_PAGES, Buffer};

impl Region {
    /// Writes what was changed in these pages.
    pub(crate) fn write_changed(&self, pages: Range<u32>) -> Result<(), SyncError> {
        debug_assert!(self.log().is_none(), "what was changed goes to the log");
        if !self.backing.can_write() {
            return Err(SyncError::ReadOnly);
        }
        let buffer = Buffer::take();
        for owned in self.shards_of(pages.clone()) {
            owned.write_changed(&pages, &buffer)?;
        }
        Ok(())
    }

    /// Makes these pages durable.
    pub(crate) fn sync(&self, pages: Range<u32>) -> Result<(), SyncError> {
        if let Some(log) = self.log() {
            return self.log_sync(&log, pages);
        }
        self.write_changed(pages)?;
        let failed = &self.control.header().sync_error;
        match failed.load(Relaxed) {
            0 => {}
            errno => return Err(SyncError::Sync(Errno::from_raw(errno as i32))),
        }
        self.backing.sync().map_err(|errno| {
            failed.store(errno.raw() as u32, Relaxed);
            SyncError::Sync(errno)
        })
    }

    /// Has these pages leave RAM, as far as they can.
    pub(crate) fn evict_range(&self, pages: &Range<u32>) {
        for owned in self.shards_of(pages.clone()) {
            let mut wanted = owned.entries_in(pages);
            for some in wanted.pages().chunks_mut(BATCH) {
                let count = self.unpinned(some);
                owned.evict(&mut some[..count]);
            }
        }
    }

    /// Each shard that has pages of the range, owned one after the other; a shard may come again.
    pub(crate) fn shards_of(&self, pages: Range<u32>) -> impl Iterator<Item = Owned<'_>> {
        let chunks = pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES);
        let is_small = chunks.len() < self.control.shards() as usize;
        let count = if is_small { chunks.len() as u32 } else { self.control.shards() };
        (0..count).map(move |index| match is_small {
            true => self.own(self.control.shard_of((chunks.start + index) * CHUNK_PAGES)),
            false => self.own(index),
        })
    }
}

/// Pages of a shard.
struct Present {
    pages: [u32; ENTRIES],
    count: usize,
}

impl Present {
    fn pages(&mut self) -> &mut [u32] {
        &mut self.pages[..self.count]
    }
}

impl Owned<'_> {
    /// The pages of the range that are in RAM, in ascending order.
    fn entries_in(&self, pages: &Range<u32>) -> Present {
        let mut some = Present { pages: [0; ENTRIES], count: 0 };
        for page in (0..ENTRIES).filter_map(|entry| self.page(entry)) {
            if pages.contains(&page) {
                some.pages[some.count] = page;
                some.count += 1;
            }
        }
        some.pages().sort_unstable();
        some
    }

    fn write_changed(&self, pages: &Range<u32>, buffer: &Buffer) -> Result<(), SyncError> {
        let mut wanted = self.entries_in(pages);
        // A run of changed neighbours, in the buffer.
        let (mut first, mut run) = (0, 0);
        for &page in wanted.pages().iter() {
            if run > 0 && (page != first + run as u32 || run == BUFFER_PAGES) {
                self.write_run(first, run, buffer)?;
                run = 0;
            }
            let Some(entry) = self.find(page) else { continue };
            let into = buffer.page(run);
            let offset = Region::offset_of(page);
            // SAFETY: a page of the buffer, which is ours.
            let hash = unsafe {
                self.region.memory.read_page(into, offset).map_err(SyncError::Write)?;
                self.region.hash(into)
            };
            if self.hash(entry) != hash && self.region.is_in_memory(page) {
                if run == 0 {
                    first = page;
                }
                run += 1;
            } else if run > 0 {
                self.write_run(first, run, buffer)?;
                run = 0;
            }
        }
        if run > 0 {
            self.write_run(first, run, buffer)?;
        }
        Ok(())
    }

    fn write_run(&self, first: u32, run: usize, buffer: &Buffer) -> Result<(), SyncError> {
        let header = self.region.control.header();
        let offset = Region::offset_of(first);
        let file_bytes = self.region.file_bytes();
        // SAFETY: pages of the buffer, which is ours.
        let written = unsafe { self.region.backing.write(buffer.page(0), run, offset, file_bytes) };
        if let Err(errno) = written {
            header.counts.write_errors.fetch_add(1, Relaxed);
            return Err(SyncError::Write(errno));
        }
        header.counts.pages_written.fetch_add(run as u64, Relaxed);
        for index in 0..run {
            if let Some(entry) = self.find(first + index as u32) {
                // SAFETY: as above.
                let hash = unsafe { self.region.hash(buffer.page(0).add(index * PAGE)) };
                self.set_hash(entry, hash);
            }
        }
        Ok(())
    }
}
