//! Log: a map whose changes go out of place, so that a sync is atomic over all of them.
//!
//! ```text
//!   sync ──┬─► evict ─► append ─► index ─► log (file and words)
//!   fold ──┘                                file, tables
//! ```
//!
//! The file has the *base*, one place for each page, and the log. A record in the log has the
//! pieces of a page that were changed. Everything that leaves RAM or is synced goes to the log; a
//! frame that commits makes count what is before it. The index tells, for a page that has records
//! which the base lacks, where the last one is; so a page is the base's bytes, and its record over
//! them. Committed records are *folded* into the base later, in the background.
//!
//! | | base | log | index |
//! |---|---|---|---|
//! | a page leaves RAM changed | | its record | where it is |
//! | `sync` | | records of what was changed in RAM; a frame that commits | the same |
//! | folding | pages whose records are all committed | begins later | forgets them |
//! | recovery | every committed record | begins anew | is empty |
//!
//! Guarantees: the base never has a byte that was not committed. A committed byte that is not in
//! the durable base is in the durable log.
//! Never: allocates after the map was opened.
//! Threads: any. Locks, outer to inner: folding, commits, a shard, the frame.

mod append;
pub(crate) mod create;
mod evict;
pub(crate) mod file;
mod fold;
mod index;
pub(crate) mod look;
mod sync;
pub(crate) mod tables;
mod tracking;

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use deepheap_store::format::map_log::{LogKey, PIECE_BYTES, PIECES};
use deepheap_sys::PAGE;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::log::file::LogFile;
use crate::log::tables::{LogShard, LogWords, PARTS, Tail};
use crate::region::{Hash, Region};
use crate::tables::control::ENTRIES;
use crate::tables::ownership::Owned;

/// The log of a map.
#[derive(Clone, Copy)]
pub(crate) struct Log<'a> {
    pub(crate) region: &'a Region,
    pub(crate) file: &'a LogFile,
    pub(crate) words: &'a LogWords,
}

impl Region {
    /// The log, if the map has one.
    #[inline]
    pub(crate) fn log(&self) -> Option<Log<'_>> {
        let file = self.backing.log()?;
        Some(Log { region: self, file, words: self.tables.log_words()? })
    }
}

impl<'a> Log<'a> {
    pub(crate) fn key(&self) -> LogKey {
        self.file.key(self.words)
    }

    /// Hashes of the pieces of a page.
    pub(crate) fn piece_hashes(&self, page: &[u8]) -> PieceHashes {
        let seed = self.region.tables.header().seed.load(Relaxed);
        let mut hashes = [0; PIECES];
        for (hash, piece) in hashes.iter_mut().zip(page.chunks(PIECE_BYTES)) {
            // 0 is none.
            *hash = xxh3_64_with_seed(piece, seed).max(1);
        }
        hashes
    }

    /// Bytes of the log that are in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        let start = self.words.start.load(Relaxed);
        Tail::of(self.words).position.saturating_sub(start)
    }

    /// Whether a page's record at this position is committed. In doubt it is not.
    pub(crate) fn is_committed(&self, page: u32, position: u64) -> bool {
        position < self.words.committed.load(Acquire)
            || self.words.parts.iter().any(|part| {
                // The end first: it is cleared before the pages change, and set after that.
                let end = part.end.load(Acquire);
                let pages = part.pages.load(Acquire);
                let is_same = part.end.load(Acquire) == end;
                position < end
                    && is_same
                    && (pages >> 32..pages & 0xffff_ffff).contains(&u64::from(page))
            })
    }

    /// Notes a commit of all pages, or of a part. The caller has the lock of commits.
    pub(crate) fn note_commit(&self, pages: Option<Range<u32>>, end: u64) {
        match pages {
            None => {
                self.words.committed.store(end, Release);
                for part in &self.words.parts {
                    part.end.store(0, Release);
                }
            }
            Some(pages) => {
                let pages = u64::from(pages.start) << 32 | u64::from(pages.end);
                let same = self.words.parts.iter().find(|part| part.pages.load(Relaxed) == pages);
                let part = same.unwrap_or_else(|| {
                    let next = self.words.next_part.fetch_add(1, Relaxed) as usize % PARTS;
                    &self.words.parts[next]
                });
                part.end.store(0, Release);
                part.pages.store(pages, Release);
                part.end.store(end, Release);
            }
        }
        self.words.commits.fetch_add(1, Release);
    }
}

/// A hash that no page has.
pub(crate) const DISTRUSTED: Hash = Hash(0, 0);

/// Hashes of the pieces of a page.
pub(crate) type PieceHashes = [u64; PIECES];

/// The log's part of a shard that this thread owns.
#[derive(Clone, Copy)]
pub(crate) struct OwnedLog<'a> {
    pub(crate) log: Log<'a>,
    pub(crate) owned: &'a Owned<'a>,
    pub(crate) shard: &'a LogShard,
}

impl Owned<'_> {
    /// The log's part of the shard, if the map has a log.
    pub(crate) fn log(&self) -> Option<OwnedLog<'_>> {
        let shard = self.region.tables.log_shard(self.index)?;
        Some(OwnedLog { log: self.region.log()?, owned: self, shard })
    }

    /// Whether a page that is as it was logged must be written all the same before it leaves.
    pub(crate) fn is_logged_in_parts(&self, page: u32) -> bool {
        let logged = self.log().and_then(|log| log.shard.logged(page));
        logged.is_some_and(|logged| !logged.is_whole)
    }

    /// Notes that a page of the log came with these bytes, as log and base have them.
    ///
    /// # Safety
    /// `bytes` is a page that can be read and does not change meanwhile.
    pub(crate) unsafe fn note_pieces(&self, page: u32, bytes: *const u8) {
        let Some(log) = self.log() else { return };
        if let Some(entry) = self.find(page) {
            // SAFETY: the caller's promise.
            let bytes = unsafe { core::slice::from_raw_parts(bytes, PAGE) };
            log.shard.set_pieces(entry, &log.log.piece_hashes(bytes));
        }
    }

    /// Nobody knows what log and base have of an entry's page: it counts as changed, all of it.
    pub(crate) fn distrust(&self, entry: usize) {
        self.set_hash(entry, DISTRUSTED);
        if let Some(log) = self.log() {
            log.shard.set_pieces(entry, &[0; PIECES]);
        }
    }

    /// A process has died with the shard: the log may have records of its pages that the entries do
    /// not know of, and that a later commit would make count. So each page is logged again.
    pub(crate) fn distrust_all(&self) {
        if self.log().is_some() {
            (0..ENTRIES).for_each(|entry| self.distrust(entry));
        }
    }
}

impl LogShard {
    /// Which pieces of an entry's page, with these hashes, are not what log and base have.
    pub(crate) fn changed_pieces(&self, entry: usize, hashes: &PieceHashes) -> u16 {
        let pairs = hashes.iter().zip(&self.pieces[entry]).enumerate();
        let changed = pairs.filter(|(_, (new, old))| **new != old.load(Relaxed));
        changed.fold(0, |pieces, (piece, _)| pieces | 1 << piece)
    }

    /// Notes what log and base have of an entry's page.
    pub(crate) fn set_pieces(&self, entry: usize, hashes: &PieceHashes) {
        for (word, hash) in self.pieces[entry].iter().zip(hashes) {
            word.store(*hash, Relaxed);
        }
    }
}
