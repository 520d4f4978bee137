//! Sync: a commit of the changes of all processes.
//!
//! 1. The changes in RAM are logged, shard by shard; pages that left RAM changed were logged then.
//! 2. A frame says that all of it, up to itself, is committed.
//! 3. The device makes it durable.
//!
//! A crash before the frame of 2 is whole on the device leaves what the commit before had made. A
//! process that dies in between leaves records that nothing commits yet: the next commit does.
//!
//! Guarantees: when `log_sync` answers Ok, every byte of the pages that was stored before the call,
//! by any process, is durable, and so it is for all of the pages or for none after a crash. A store
//! that runs at the same time, by whichever process, may be in it or not, each by itself: a program
//! that wants several to be together in it keeps others from storing, or from syncing, meanwhile.
//! Never: commits a page that is not among those asked for.
//! Threads: any, with all signals blocked, not in a signal handler.

use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, Release};

use deepheap_store::format::map_log::PIECES;
use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;

use crate::error::SyncError;
use crate::log::tables::{FoldState, Logged, Tail};
use crate::log::tracking::Tracking;
use crate::log::{DISTRUSTED, Log, OwnedLog};
use crate::moves::staging::Buffer;
use crate::region::Region;
use crate::tables::control::ENTRIES;

/// All pieces of a page.
const ALL_PIECES: u16 = ((1u32 << PIECES) - 1) as u16;
/// How often a sync that finds the log full has it folded, and begins anew.
const TRIES: u32 = 3;

impl Region {
    /// Commits these pages.
    pub(crate) fn log_sync(&self, log: &Log<'_>, pages: Range<u32>) -> Result<(), SyncError> {
        if !self.backing.can_write() {
            return Err(SyncError::ReadOnly);
        }
        let mut tries = 0;
        loop {
            match log.commit(pages.clone()) {
                // Folding takes committed records out of the log; those of this commit stay.
                Err(SyncError::Write(Errno::ENOSPC)) if tries < TRIES && log.fold_all() => {
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }
}

impl Log<'_> {
    fn commit(&self, pages: Range<u32>) -> Result<(), SyncError> {
        let _held = self.region.tables.hold(&self.words.commit_lock);
        self.region.check_synced().map_err(SyncError::Sync)?;
        let was_relogging = self.words.is_relogging.load(Relaxed) != 0;
        let is_all = pages.start == 0 && pages.end >= self.region.file_pages();
        {
            let buffer = Buffer::take();
            let tracking = self.track(&pages);
            for owned in self.region.shards_of(pages.clone()) {
                owned.log().map_or(Ok(()), |log| log.log_changed(&pages, &tracking, &buffer))?;
            }
            self.keep(&tracking, is_all);
        }
        let end = {
            let mut frame = self.frame();
            let tail = frame.tail();
            if tail.is_empty() && is_all && self.is_committed_up_to(tail) {
                return Ok(());
            }
            frame.seal(Some(pages.clone())).map_err(SyncError::Write)?
        };
        self.region.sync_device().map_err(SyncError::Sync)?;
        self.words.acknowledged.fetch_max(end, Release);
        self.note_commit((!is_all).then_some(pages), end);
        if is_all || !was_relogging {
            self.words.is_relogging.store(0, Release);
        }
        Ok(())
    }

    /// Whether the last frame before `tail` was one that committed everything.
    fn is_committed_up_to(&self, tail: Tail) -> bool {
        let committed = self.words.committed.load(Relaxed);
        self.file.shape().frame_after(committed) == tail.position
    }
}

impl OwnedLog<'_> {
    /// Logs what was changed in these pages of RAM.
    fn log_changed(
        &self,
        pages: &Range<u32>,
        tracking: &Tracking,
        buffer: &Buffer,
    ) -> Result<(), SyncError> {
        for entry in 0..ENTRIES {
            let Some(page) = self.owned.page(entry).filter(|page| pages.contains(page)) else {
                continue;
            };
            // A distrusted page is logged, whoever has written it.
            let is_distrusted =
                self.owned.hash(entry) == DISTRUSTED || self.shard.doubts[entry].load(Relaxed) != 0;
            if tracking.is_untouched(page) && !is_distrusted {
                continue;
            }
            // After the pages were protected: a device that writes to the page since before that
            // is not told of any more, and has it pinned until it has ended.
            let is_pinned = self.owned.region.tables.unpinned(&mut [page]) == 0;
            self.shard.doubts[entry].store(u8::from(is_pinned), Relaxed);
            let bytes = buffer.page(0);
            // SAFETY: a page of the buffer, which is ours.
            let (read, bytes) = unsafe {
                let read = self.owned.read_changed(entry, page, bytes);
                (read, core::slice::from_raw_parts(bytes, PAGE))
            };
            let Some(hash) = read.map_err(SyncError::Write)? else { continue };
            let hashes = self.log.piece_hashes(bytes);
            let changed = self.shard.changed_pieces(entry, &hashes);
            let fold = FoldState::of(self.log.words);
            let logged = self.shard.logged(page);
            let is_due = logged.is_some_and(|logged| logged.generation != fold.generation);
            let written = if fold.target.is_some() && is_due {
                self.log_anew(page, bytes, fold.generation)
            } else {
                self.log_pieces(page, bytes, changed)
            };
            if let Err(errno) = written {
                let counts = &self.owned.region.tables.header().counts;
                counts.write_errors.fetch_add(u64::from(errno != Errno::ENOSPC), Relaxed);
                return Err(SyncError::Write(errno));
            }
            self.owned.set_hash(entry, hash);
            self.shard.set_pieces(entry, &hashes);
        }
        Ok(())
    }

    /// Logs all of a page that is changed so often that it is never folded. Once that is committed
    /// its records before are not needed.
    fn log_anew(&self, page: u32, bytes: &[u8], generation: bool) -> Result<(), Errno> {
        // Until the commit they are: the log must not begin later (`fold`).
        self.log.words.is_relogging.store(1, Release);
        let position = self.log.append(page, ALL_PIECES, bytes)?;
        self.shard
            .set_logged(page, Logged { position, is_whole: true, generation, pieces: ALL_PIECES });
        Ok(())
    }
}
