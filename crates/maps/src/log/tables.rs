//! Tables: what the processes of a map with a log share beside the tables of every map.
//!
//! ```text
//!   ... | the frame that is being filled | for each shard: pieces of its entries, index of the log
//! ```
//!
//! The *index* tells for a page whose logged content is not the base's which pieces differ, and
//! where its last record is. It has `INDEX` places a shard: so many pages of a shard may differ.
//!
//! Guarantees: every word is an atomic, for a process may die between any two stores.
//! Never: decides anything.
//! Threads: any, of any process.

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use deepheap_store::format::map_log::{FRAME_BYTES, FRAME_HEADER, PIECES};

/// Entries of a shard (`control`).
pub(crate) const ENTRIES: usize = 128;
/// Pages of a shard whose content may be in the log alone.
pub(crate) const INDEX: usize = 1024;
/// Commits of parts that are remembered, each of another part.
pub(crate) const PARTS: usize = 16;

/// The words that there are once.
#[repr(C)]
pub(crate) struct LogWords {
    /// Locks, as those of shards: of the frame, of commits, of folding.
    pub frame_lock: AtomicU32,
    pub commit_lock: AtomicU32,
    pub fold_lock: AtomicU32,
    /// Not 0: the log was recovered, and may be written.
    pub is_ready: AtomicU32,
    /// Where the frame begins that is being filled, and how far it is; see `Tail`.
    pub tail: AtomicU64,
    /// The position of the oldest frame.
    pub start: AtomicU64,
    /// Every record before is committed, of whatever page.
    pub committed: AtomicU64,
    /// Every frame before is durable.
    pub acknowledged: AtomicU64,
    /// Commits of parts, since.
    pub parts: [PartCommit; PARTS],
    pub next_part: AtomicU32,
    /// Not 0: a sync has begun to log pages anew, and has not committed them.
    pub is_relogging: AtomicU32,
    /// The knowledge of commits about pages that were not written; see `tracking`.
    pub tracked: AtomicU64,
    /// Which half of the log is being made needless; see `FoldState`.
    pub fold: AtomicU64,
    /// Commits so far, and how many there were when folding found no more to do.
    pub commits: AtomicU64,
    pub commits_folded: AtomicU64,
    /// Not 0: an index is nearly full.
    pub is_pressed: AtomicU32,
    /// Of the superblock that counts.
    pub sequence: AtomicU64,
    pub epoch: AtomicU64,
    /// Pages that folding wrote into the base.
    pub pages_folded: AtomicU64,
}

/// A commit of a part of the pages.
#[repr(C)]
pub(crate) struct PartCommit {
    /// The first page in the upper half, the end in the lower.
    pub pages: AtomicU64,
    pub end: AtomicU64,
}

/// The further words of a shard.
#[repr(C, align(64))]
pub(crate) struct LogShard {
    /// Hashes of the pieces of each entry's page, as log and base have them; 0: unknown.
    pub pieces: [[AtomicU64; PIECES]; ENTRIES],
    /// Not 0: the kernel may write the entry's page, or have written it, without telling.
    pub doubts: [AtomicU8; ENTRIES],
    /// The page of each place of the index plus one; 0: free.
    pub keys: [AtomicU32; INDEX],
    /// See `Logged`.
    pub places: [AtomicU64; INDEX],
}

/// Where the frame begins that is being filled, and how many bytes of it are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub position: u64,
    pub fill: usize,
}

const FILL_BITS: u32 = 24;
const _: () = assert!(FRAME_BYTES < 1 << FILL_BITS);

impl Tail {
    /// An empty frame.
    pub(crate) fn empty(position: u64) -> Tail {
        Tail { position, fill: FRAME_HEADER }
    }

    pub(crate) fn of(words: &LogWords) -> Tail {
        let word = words.tail.load(Relaxed);
        let fill = (word & ((1 << FILL_BITS) - 1)) as usize;
        Tail { position: word >> FILL_BITS << 12, fill: fill.min(FRAME_BYTES) }
    }

    pub(crate) fn store(self, words: &LogWords) {
        words.tail.store(self.position >> 12 << FILL_BITS | self.fill as u64, Release);
    }

    /// The position of what comes next.
    pub(crate) fn end(self) -> u64 {
        self.position + self.fill as u64
    }

    pub(crate) fn is_empty(self) -> bool {
        self.fill == FRAME_HEADER
    }
}

/// An entry of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    /// Of the page's last record.
    pub position: u64,
    /// Whether that has all pieces that differ from the base.
    pub is_whole: bool,
    /// The generation of the page's first record that the base lacks.
    pub generation: bool,
    /// The pieces that differ from the base.
    pub pieces: u16,
}

impl Logged {
    pub(crate) fn of(word: u64) -> Logged {
        Logged {
            position: word >> 18 << 4,
            is_whole: word & 1 << 17 != 0,
            generation: word & 1 << 16 != 0,
            pieces: word as u16,
        }
    }

    pub(crate) fn word(self) -> u64 {
        let flags = u64::from(self.is_whole) << 17 | u64::from(self.generation) << 16;
        self.position >> 4 << 18 | flags | u64::from(self.pieces)
    }
}

/// Folding, in one word: what comes into the index now is of `generation`; if `target` is there,
/// the pages of the other generation are written into the base, so that the log can begin at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoldState {
    pub target: Option<u64>,
    pub generation: bool,
}

impl FoldState {
    pub(crate) fn of(words: &LogWords) -> FoldState {
        let word = words.fold.load(Relaxed);
        let target = (word & 2 != 0).then_some(word >> 2 << 12);
        FoldState { target, generation: word & 1 != 0 }
    }

    pub(crate) fn store(self, words: &LogWords) {
        let target = self.target.map_or(0, |target| target >> 12 << 2 | 2);
        words.fold.store(target | u64::from(self.generation), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_give_back_what_was_put_into_them() {
        for position in [0, 4160, 1 << 45] {
            for (is_whole, generation) in [(false, true), (true, false)] {
                let logged = Logged { position, is_whole, generation, pieces: 0x8001 };
                assert_eq!(Logged::of(logged.word()), logged);
            }
        }
        // SAFETY: words, of which zeros are values.
        let words: LogWords = unsafe { core::mem::zeroed() };
        for target in [None, Some(0), Some(1 << 44)] {
            let state = FoldState { target, generation: true };
            state.store(&words);
            assert_eq!(FoldState::of(&words), state);
        }
        let tail = Tail { position: 1 << 44, fill: FRAME_BYTES };
        tail.store(&words);
        assert_eq!(Tail::of(&words), tail);
    }
}
