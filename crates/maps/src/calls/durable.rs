//! Durable: pages that were changed in RAM are written to the file, and stay in RAM.
//!
//! Guarantees: when `sync` answers Ok, every byte of the range that was stored before the call, by
//! any process, is durable in the file.
//! Never: retries a sync of the device that has failed: nobody knows what it had lost.
//! Threads: any, with all signals blocked, not in a signal handler.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;

use crate::error::SyncError;
use crate::moves::staging::{BUFFER_PAGES, Buffer};
use crate::region::{Hash, Region};
use crate::tables::control::{BATCH, CHUNK_PAGES, ENTRIES};
use crate::tables::ownership::Owned;

impl Region {
    /// Writes those of these pages that were changed.
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
        self.sync_device().map_err(SyncError::Sync)
    }

    /// Err: a sync has failed before, and nobody knows what is durable.
    pub(crate) fn check_synced(&self) -> Result<(), Errno> {
        match self.tables.header().sync_error.load(Relaxed) {
            0 => Ok(()),
            errno => Err(Errno::from_raw(errno as i32)),
        }
    }

    /// Has the device make durable what was written.
    pub(crate) fn sync_device(&self) -> Result<(), Errno> {
        self.check_synced()?;
        let failed = &self.tables.header().sync_error;
        self.backing.sync().inspect_err(|errno| failed.store(errno.raw() as u32, Relaxed))
    }

    /// Has these pages leave RAM, as far as they can.
    pub(crate) fn evict_range(&self, pages: &Range<u32>) {
        for owned in self.shards_of(pages.clone()) {
            let mut places = [0; ENTRIES];
            for some in owned.pages_in(pages, &mut places).chunks_mut(BATCH) {
                let count = self.tables.unpinned(some);
                owned.evict(&mut some[..count]);
            }
        }
    }

    /// Each shard that has pages of the range, owned one after the other; a shard may come again.
    pub(crate) fn shards_of(&self, pages: Range<u32>) -> impl Iterator<Item = Owned<'_>> {
        let chunks = pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES);
        let is_small = chunks.len() < self.tables.shards() as usize;
        let count = if is_small { chunks.len() as u32 } else { self.tables.shards() };
        (0..count).map(move |index| match is_small {
            true => self.own(self.tables.shard_of((chunks.start + index) * CHUNK_PAGES)),
            false => self.own(index),
        })
    }
}

impl Owned<'_> {
    /// The pages of the range that are in RAM, in ascending order.
    fn pages_in<'a>(&self, range: &Range<u32>, places: &'a mut [u32; ENTRIES]) -> &'a mut [u32] {
        let pages = (0..ENTRIES).filter_map(|entry| self.page(entry));
        let mut count = 0;
        for page in pages.filter(|page| range.contains(page)) {
            places[count] = page;
            count += 1;
        }
        places[..count].sort_unstable();
        &mut places[..count]
    }

    /// Copies an entry's page; answers its hash if that is not what the file has of it. A hole has
    /// been dropped by the program, and is not zeros.
    ///
    /// # Safety
    /// `into` is a page that can be written and that nobody else uses.
    pub(crate) unsafe fn read_changed(
        &self,
        entry: usize,
        page: u32,
        into: *mut u8,
    ) -> Result<Option<Hash>, Errno> {
        // SAFETY: the caller's promise.
        let hash = unsafe {
            self.region.memory.read_page(into, Region::offset_of(page))?;
            self.region.hash(into)
        };
        Ok((self.hash(entry) != hash && self.region.is_in_memory(page)).then_some(hash))
    }

    fn write_changed(&self, pages: &Range<u32>, buffer: &Buffer) -> Result<(), SyncError> {
        // A run of changed neighbours, in the buffer.
        let (mut first, mut run) = (0, 0);
        for &mut page in self.pages_in(pages, &mut [0; ENTRIES]) {
            if page != first + run as u32 || run == BUFFER_PAGES {
                self.write_run(first, run, buffer)?;
                (first, run) = (page, 0);
            }
            let Some(entry) = self.find(page) else { continue };
            // SAFETY: a page of the buffer, which is ours.
            let changed = unsafe { self.read_changed(entry, page, buffer.page(run)) };
            run += usize::from(changed.map_err(SyncError::Write)?.is_some());
        }
        self.write_run(first, run, buffer)
    }

    fn write_run(&self, first: u32, run: usize, buffer: &Buffer) -> Result<(), SyncError> {
        if run == 0 {
            return Ok(());
        }
        let header = self.region.tables.header();
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
