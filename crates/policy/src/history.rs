//! History: which fault came after which, for a program that repeats a sequence.
//!
//! A ring of page numbers in the order of their faults, cut into pieces. A thread fills a piece of
//! its own. When that is full it takes the next one of the ring and links the full one to it, so
//! the sequences of threads do not mix. An index says where a page stands in the ring last. It
//! knows one page in `INDEXED_PART`: a search that has found one follows the ring from there on,
//! and needs no more.
//!
//! The ring ends where it was overwritten: what is further back than its length is not known.
//!
//! Guarantees: takes the bytes that it was given, and no page table's worth for what is not used.
//! Whatever threads do at once, every place that it answers is one of the ring. The entry there may
//! be wrong: a place of the index may be another page's by now, and a piece may be overwritten
//! while it is read, by a thread that has taken it anew. Then pages are asked for that nobody
//! wants, and nothing else happens: they are brought as they are, or not at all. So all loads and
//! stores are relaxed.
//! Never: allocates after `new`, takes a lock, waits.
//! Threads: any, each with a `Writer` of its own.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::Memory;

/// Entries of a piece, the last of which is the link to the next one.
const PIECE: u32 = 64;
const LINK: u32 = PIECE - 1;
/// One page in so many is in the index.
const INDEXED_PART: u32 = 4;
/// Entries of the index that lie side by side: those of a MiB. And those of a page of it.
const BLOCK: u32 = 64;
const INDEX_PAGE: usize = 1024;
/// Bytes of an entry, and its part of the index.
const ENTRY_BYTES: usize = 4 + 4 / INDEXED_PART as usize;
/// The history takes this part of the budget.
const BUDGET_PART: usize = 200;
/// So many pieces in all.
const PIECES_MIN: usize = BLOCK as usize * INDEXED_PART as usize / PIECE as usize;
const PIECES_MAX: usize = 1 << 24;
const _: () = assert!(PIECES_MAX as u64 * PIECE as u64 <= u32::MAX as u64 / 2);

/// Bytes of the history for a budget of so many.
pub fn bytes(budget: usize) -> usize {
    budget / BUDGET_PART
}

/// How much memory `History::new` needs for a history of so many bytes, or a little less.
pub fn lengths(bytes: usize) -> [usize; 3] {
    let pieces = bytes / (PIECE as usize * ENTRY_BYTES);
    let entries = pieces.clamp(PIECES_MIN, PIECES_MAX) * PIECE as usize;
    let indexed = entries / INDEXED_PART as usize;
    [entries, indexed, indexed.div_ceil(INDEX_PAGE)]
}

/// A counter with cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicU32);

/// The ring and its index.
pub struct History<M> {
    /// A page's number and 1, or in the last place of a piece a place and 1. 0: nothing yet.
    ring: M,
    /// A place of the ring and 1.
    index: M,
    /// Pieces that were ever taken. It wraps around.
    taken: Padded,
    /// Which pages of the index were written, and how many.
    written: M,
    index_pages: Padded,
}

/// Where a thread writes. Zeros for a new thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writer {
    /// The next place and 1. 0: it has none yet.
    next: u32,
    /// `History::taken` when it took its piece.
    taken: u32,
}

impl<M: Memory> History<M> {
    /// An empty one, in memory of `lengths`.
    pub fn new([ring, index, written]: [M; 3]) -> History<M> {
        let [taken, index_pages] = [Padded::default(), Padded::default()];
        History { ring, index, taken, written, index_pages }
    }

    /// Bytes that it takes: those of pieces that were taken, and the pages of the index that were
    /// written.
    pub fn bytes(&self) -> usize {
        let taken = self.taken.0.load(Ordering::Relaxed).min(self.pieces()) as usize;
        let index = self.index_pages.0.load(Ordering::Relaxed) as usize * INDEX_PAGE;
        (taken * PIECE as usize + index.min(self.index.len())) * 4
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most `PIECES_MAX`, asserted above")]
    fn pieces(&self) -> u32 {
        self.ring.len() as u32 / PIECE
    }

    /// Notes a fault on `page`, of the thread with this writer.
    pub fn record(&self, writer: &mut Writer, page: u32) {
        let next = writer.next.checked_sub(1).filter(|&at| self.is_current(at, writer.taken));
        let at = next.filter(|at| at % PIECE < LINK).unwrap_or_else(|| self.take(writer, next));
        self.put(at, page.wrapping_add(1));
        if let Some((place, index)) = self.indexed(page) {
            place.store(at + 1, Ordering::Relaxed);
            let written = &self.written[index / INDEX_PAGE];
            if written.load(Ordering::Relaxed) == 0 && written.swap(1, Ordering::Relaxed) == 0 {
                self.index_pages.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        writer.next = at + 2;
    }

    /// Whether the piece of a place was not given to another thread since it was taken.
    fn is_current(&self, at: u32, taken: u32) -> bool {
        let since = self.taken.0.load(Ordering::Relaxed).wrapping_sub(taken);
        since < self.pieces() && (at as usize) < self.ring.len()
    }

    /// Takes a piece for the writer, and links the full one to it, which ends at `full`. Answers
    /// its first place.
    fn take(&self, writer: &mut Writer, full: Option<u32>) -> u32 {
        writer.taken = self.taken.0.fetch_add(1, Ordering::Relaxed);
        let at = writer.taken % self.pieces() * PIECE;
        (at..at + PIECE).for_each(|place| self.put(place, 0));
        if let Some(full) = full {
            self.put(full, at + 1);
        }
        at
    }

    /// The place after the last one of `page`, if it is known.
    pub fn find(&self, page: u32) -> Option<u32> {
        let at = self.indexed(page)?.0.load(Ordering::Relaxed).checked_sub(1)?;
        (self.get(at)? == page.wrapping_add(1)).then_some(at + 1)
    }

    /// A place of the sequence that leads to this one, one piece before or two, as far as known.
    pub fn before(&self, at: u32) -> u32 {
        let piece = at.saturating_sub(1) / PIECE * PIECE;
        let before = piece.saturating_sub(PIECE);
        if self.get(before + LINK) == Some(piece + 1) { before } else { piece }
    }

    /// The pages from this place on, each with the place after it, as far as they are known. It
    /// may go round for ever.
    pub fn from(&self, at: u32) -> impl Iterator<Item = (u32, u32)> {
        let mut at = at;
        core::iter::from_fn(move || {
            if at % PIECE == LINK {
                at = self.get(at)?.checked_sub(1)?;
            }
            let page = self.get(at)?.checked_sub(1)?;
            at += 1;
            Some((page, at))
        })
    }

    fn put(&self, at: u32, entry: u32) {
        if let Some(place) = self.ring.get(at as usize) {
            place.store(entry, Ordering::Relaxed);
        }
    }

    fn get(&self, at: u32) -> Option<u32> {
        self.ring.get(at as usize).map(|place| place.load(Ordering::Relaxed))
    }

    /// The page's place in the index, and which one that is, if it is one of those that have one.
    fn indexed(&self, page: u32) -> Option<(&AtomicU32, usize)> {
        let mix = |number: u32| {
            (u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> u32::BITS) as u32
        };
        let (group, index) = (page / INDEXED_PART, page % INDEXED_PART);
        // Which one of a group differs, for those who go in equal steps.
        if mix(group) % INDEXED_PART != index {
            return None;
        }
        // Those that are near lie near, so that the index of a small heap takes little RAM.
        let (block, entry) = (group / BLOCK, group % BLOCK);
        let blocks = self.index.len() as u64 / u64::from(BLOCK);
        let block = ((u64::from(mix(block)) * blocks) >> u32::BITS) as usize;
        let at = block * BLOCK as usize + entry as usize;
        Some((self.index.get(at)?, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zeros;

    type Of = History<Box<[AtomicU32]>>;

    fn history(bytes: usize) -> Of {
        History::new(lengths(bytes).map(zeros))
    }

    fn pages(history: &Of, at: u32, count: usize) -> Vec<u32> {
        history.from(at).take(count).map(|(page, _)| page).collect()
    }

    /// Pages of which the index knows the first.
    fn some(history: &Of, from: u32, count: u32) -> Vec<u32> {
        let first = (from..).find(|&page| history.indexed(page).is_some()).expect("a page");
        [first].into_iter().chain(from + 1000..from + 1000 + count).collect()
    }

    #[test]
    fn what_came_after_a_page_is_found_across_pieces() {
        let history = history(64 << 10);
        assert_eq!(history.bytes(), 0);
        let (mut writer, way) = (Writer::default(), some(&history, 77, 1000));
        way.iter().for_each(|&page| history.record(&mut writer, page));
        let at = history.find(way[0]).expect("it is known");
        assert_eq!(pages(&history, at, 2000), way[1..]);
        assert_eq!(history.find(way[0] + 100), None);
        assert!(history.bytes() > 4000 && history.bytes() < 64 << 10, "{}", history.bytes());
        // The same sequence again: the last time counts.
        way[..9].iter().for_each(|&page| history.record(&mut writer, page));
        let again = history.find(way[0]).expect("it is known");
        assert_eq!(pages(&history, again, 2000), way[1..9]);
        assert_eq!(pages(&history, at, 2000)[1000..], way[..9], "it goes on where it ended");
    }

    #[test]
    fn the_ways_of_threads_do_not_mix() {
        let history = history(256 << 10);
        let ways: Vec<Vec<u32>> = (0..5).map(|it| some(&history, it << 20, 2000)).collect();
        let mut writers = [Writer::default(); 5];
        for step in 0..ways[0].len() {
            for (way, writer) in ways.iter().zip(&mut writers) {
                history.record(writer, way[step]);
            }
        }
        for way in &ways {
            // Another page may have the place of one in the index.
            let found =
                way.iter().enumerate().find_map(|(at, &page)| Some((at, history.find(page)?)));
            let (first, place) = found.expect("one is known");
            assert!(first < 50, "{first}");
            assert_eq!(pages(&history, place, 5000), way[first + 1..]);
        }
    }

    #[test]
    fn the_ring_forgets_what_is_oldest_and_no_thread_writes_in_a_piece_that_another_has_taken() {
        let history = history(20 << 10);
        let entries = history.ring.len() as u32;
        let (mut slow, old) = (Writer::default(), some(&history, 1 << 24, 5));
        old.iter().for_each(|&page| history.record(&mut slow, page));
        let (mut writer, way) = (Writer::default(), some(&history, 77, 3 * entries));
        way.iter().for_each(|&page| history.record(&mut writer, page));
        assert_eq!(history.find(old[0]), None);
        assert_eq!(history.find(way[0]), None);
        assert!(history.bytes() <= 20 << 10, "{}", history.bytes());
        let known = |pages: &[u32]| {
            let (mut indexed, mut known) = (0, 0);
            for &page in pages.iter().filter(|page| history.indexed(**page).is_some()) {
                indexed += 1;
                known += usize::from(history.find(page).is_some());
            }
            (indexed, known)
        };
        let (last, before) = (way.len() - entries as usize / 2, way.len() - entries as usize);
        let (indexed, found) = known(&way[last..]);
        assert!(found > indexed / 2, "{found} of {indexed}");
        assert_eq!(known(&way[..before]).1, 0);
        history.record(&mut slow, old[1]);
        let late = way.iter().rev().filter_map(|&page| history.find(page)).last().expect("one");
        let seen = pages(&history, late, 2 * entries as usize);
        assert!(seen.iter().all(|page| !old.contains(page)), "they mix");
    }

    /// Places are checked, whatever stands in a writer or in the ring.
    #[test]
    fn a_writer_of_another_history_does_no_harm() {
        let large = history(1 << 20);
        let small = history(0);
        let (mut writer, way) = (Writer::default(), some(&large, 5, 10_000));
        way.iter().for_each(|&page| large.record(&mut writer, page));
        small.record(&mut writer, 7);
        assert_eq!(pages(&small, u32::MAX - 1, 9), []);
        assert_eq!(pages(&small, large.find(way[0]).expect("it is known") + (1 << 16), 9), []);
    }

    #[test]
    fn threads_that_write_at_once_read_only_pages_that_one_of_them_wrote() {
        let history = history(64 << 10);
        std::thread::scope(|scope| {
            for thread in 1..5u32 {
                let history = &history;
                scope.spawn(move || {
                    let mut writer = Writer::default();
                    for step in 0..200_000 {
                        history.record(&mut writer, thread << 20 | step);
                        if let Some(at) = history.find((thread << 20) + step / 2) {
                            let seen = history.from(at).take(100).all(|(page, _)| page >> 20 < 5);
                            assert!(seen);
                        }
                    }
                });
            }
        });
    }
}
