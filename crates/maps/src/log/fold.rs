//! Fold: what is committed goes from the log into the base, so that the log can begin later.
//!
//! ```text
//!   nothing to do -> target [begin]    the other generation begins; records before are old
//!   target        -> target [fold_old] pages with old records, all committed, go into the base
//!   target        -> nothing [finish]  no page has old records: the log begins at the target
//! ```
//!
//! A page with changes that are not committed is left for the pass after the next commit. If it is
//! changed all the time, the next commit logs all of it anew (`sync`).
//!
//! Guarantees: what the log begins behind is in the durable base, or was never committed. A process
//! that dies at any point leaves what the next one goes on with.
//! Never: allocates, but for a superblock at the end | waits for a shard while owning one.
//! Threads: any, with all signals blocked and no shard owned; one at a time, of all processes.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use deepheap_store::device::{Read, Write};
use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;

use crate::error::SyncError;
use crate::log::append::RECORD_PAGES;
use crate::log::tables::{FoldState, INDEX, Tail};
use crate::log::{Log, OwnedLog};
use crate::moves::staging::{BUFFER_PAGES, Buffer};

/// Bytes of the log in use from which on it is folded.
const FOLDED_FROM: u64 = 64 << 20;
/// Pages that are folded at once: each has its own pages of the buffer, and those of its record.
const BATCH: usize = BUFFER_PAGES / (1 + RECORD_PAGES);

/// The findings of a pass over the log.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Pass {
    folded: u64,
    /// Pages that could not be.
    left: u64,
}

impl Log<'_> {
    /// Whether the log is long enough, or the index full enough, and there may be something to do.
    pub(crate) fn wants_folding(&self) -> bool {
        let words = self.words;
        let is_due = self.used_bytes() > FOLDED_FROM || words.is_pressed.load(Relaxed) != 0;
        is_due && words.commits.load(Relaxed) != words.commits_folded.load(Relaxed)
    }

    /// Folds what can be, once. True: something was.
    pub(crate) fn fold_all(&self) -> bool {
        if !self.region.backing.can_write() {
            return false;
        }
        let before = self.words.pages_folded.load(Relaxed);
        let _held = self.region.tables.hold(&self.words.fold_lock);
        // Another thread was at it, and has made room.
        if self.words.pages_folded.load(Relaxed) != before {
            return true;
        }
        let commits = self.words.commits.load(Acquire);
        let folded = self.fold();
        self.words.commits_folded.store(commits, Release);
        match folded {
            Ok(did) => did,
            Err(errno) => {
                self.region.tables.header().counts.write_errors.fetch_add(1, Relaxed);
                deepheap_sys::say!("a map's log cannot be brought into its pages now: ", errno);
                false
            }
        }
    }

    fn fold(&self) -> Result<bool, Errno> {
        let target = self.begin()?;
        let mut all = Pass::default();
        {
            let buffer = Buffer::take();
            for shard in 0..self.region.tables.shards() {
                let owned = self.region.own(shard);
                owned.log().map_or(Ok(()), |log| log.fold_old(&buffer, &mut all))?;
            }
        }
        self.words.pages_folded.fetch_add(all.folded, Relaxed);
        self.words.is_pressed.store(0, Relaxed);
        let has_finished = all.left == 0 && self.finish(target)?;
        Ok(all.folded > 0 || has_finished)
    }

    /// The target, of now or of a pass before.
    fn begin(&self) -> Result<u64, Errno> {
        let state = FoldState::of(self.words);
        if let Some(target) = state.target {
            return Ok(target);
        }
        let mut frame = self.frame();
        if !frame.tail().is_empty() {
            frame.seal(None)?;
        }
        // A thread that reads the new generation appends behind the target: the frame is ours until
        // then.
        let target = frame.tail().position;
        FoldState { target: Some(target), generation: !state.generation }.store(self.words);
        Ok(target)
    }

    /// The log begins at the target. False: it does so already, or a commit that logged pages anew
    /// has not ended well.
    fn finish(&self, target: u64) -> Result<bool, Errno> {
        if target == self.words.start.load(Relaxed) {
            FoldState { target: None, ..FoldState::of(self.words) }.store(self.words);
            return Ok(false);
        }
        {
            // A commit that is under way ends first. One that begins later finds no old page.
            let _held = self.region.tables.hold(&self.words.commit_lock);
            if self.words.is_relogging.load(Acquire) != 0 {
                return Ok(false);
            }
        }
        if self.region.check_synced().is_err() {
            return Ok(false);
        }
        self.region.sync_device()?;
        self.file.begin_at(self.words, target, false)?;
        self.region.sync_device()?;
        let start = self.words.start.swap(target, Release);
        FoldState { target: None, ..FoldState::of(self.words) }.store(self.words);
        self.discard(start, target);
        Ok(true)
    }

    /// Gives back the space of the log between two positions. Where that cannot be it stays.
    fn discard(&self, from: u64, to: u64) {
        let shape = self.file.shape();
        let mut at = from;
        while at < to {
            let left = shape.log_bytes - at % shape.log_bytes;
            let length = left.min(to - at);
            let _ = self.file.device().discard(shape.place_of(at), length);
            at += length;
        }
    }

    /// Everything is committed and in the base, and the superblock says so: the last process ends.
    pub(crate) fn close(&self) -> Result<(), SyncError> {
        self.region.log_sync(self, 0..self.region.file_pages())?;
        // The second time with a target behind what the first one had.
        for _ in 0..2 {
            self.fold_all();
        }
        let _held = self.region.tables.hold(&self.words.fold_lock);
        let start = self.words.start.load(Relaxed);
        let tail = Tail::of(self.words);
        if tail.is_empty() && tail.position == start {
            self.file.begin_at(self.words, start, true).map_err(SyncError::Write)?;
            self.region.sync_device().map_err(SyncError::Sync)?;
        }
        Ok(())
    }
}

impl OwnedLog<'_> {
    /// Writes pages with old records into the base, as far as they are committed.
    fn fold_old(&self, buffer: &Buffer, pass: &mut Pass) -> Result<(), Errno> {
        let (mut batch, mut count) = ([0u32; BATCH], 0);
        let generation = FoldState::of(self.log.words).generation;
        for place in 0..INDEX {
            let Some((page, logged)) = self.shard.logged_at(place) else { continue };
            if logged.generation == generation {
                continue;
            }
            if !self.log.is_committed(page, logged.position) {
                pass.left += 1;
                continue;
            }
            if self.owned.find(page).is_some() {
                match self.fold_present(page, buffer)? {
                    true => pass.folded += 1,
                    false => pass.left += 1,
                }
                continue;
            }
            batch[count] = page;
            count += 1;
            if count == BATCH {
                pass.folded += self.fold_absent(&batch, buffer)?;
                count = 0;
            }
        }
        pass.folded += self.fold_absent(&batch[..count], buffer)?;
        Ok(())
    }

    /// A page in RAM. False: it has changes that were not logged.
    fn fold_present(&self, page: u32, buffer: &Buffer) -> Result<bool, Errno> {
        let Some(entry) = self.owned.find(page) else { return Ok(false) };
        // SAFETY: a page of the buffer, which is ours.
        let (changed, bytes) = unsafe {
            let changed = self.owned.read_changed(entry, page, buffer.page(0))?.is_some();
            (changed, core::slice::from_raw_parts(buffer.page(0), PAGE))
        };
        if changed || !self.owned.region.is_in_memory(page) {
            return Ok(false);
        }
        self.log.write_base(page, bytes)?;
        self.shard.forget_logged(page);
        Ok(true)
    }

    /// Pages that are not in RAM, `BATCH` at most; answers how many they are.
    fn fold_absent(&self, pages: &[u32], buffer: &Buffer) -> Result<u64, Errno> {
        if pages.is_empty() {
            return Ok(0);
        }
        let shape = *self.log.file.shape();
        let all = buffer.page(0);
        // SAFETY: the buffer is ours.
        let all = unsafe { core::slice::from_raw_parts_mut(all, BUFFER_PAGES * PAGE) };
        let (bases, scratch) = all.split_at_mut(BATCH * PAGE);
        let mut offsets = [0; BATCH];
        for (offset, page) in offsets.iter_mut().zip(pages) {
            *offset = shape.place_of_page(*page);
        }
        {
            let mut bases = bases.chunks_mut(PAGE);
            let mut reads: [Read<'_>; BATCH] =
                core::array::from_fn(|at| Read::new(offsets[at], bases.next().unwrap_or(&mut [])));
            let reads = &mut reads[..pages.len()];
            self.log.file.device().read(reads);
            reads.iter().try_for_each(|read| read.result)?;
        }
        for (page, into) in pages.iter().zip(bases.chunks_mut(PAGE)) {
            let Some(logged) = self.shard.logged(*page) else { continue };
            let scratch = &mut scratch[..RECORD_PAGES * PAGE];
            self.log.apply(*page, logged, into, scratch).map_err(|_| Errno::EIO)?;
        }
        let mut bases = bases.chunks(PAGE);
        let mut writes: [Write<'_>; BATCH] =
            core::array::from_fn(|at| Write::new(offsets[at], bases.next().unwrap_or(&[])));
        let writes = &mut writes[..pages.len()];
        self.log.file.device().write(writes);
        writes.iter().try_for_each(|write| write.result)?;
        self.owned
            .region
            .tables
            .header()
            .counts
            .pages_written
            .fetch_add(pages.len() as u64, Relaxed);
        for page in pages {
            self.shard.forget_logged(*page);
        }
        Ok(pages.len() as u64)
    }
}
