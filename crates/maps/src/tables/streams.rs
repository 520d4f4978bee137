//! Streams: tells scans from random access by the faults of a few threads together.
//!
//! A fault on the page that a stream expects next continues it, and doubles how many pages are read
//! together. Behind a full window more pages are asked for ahead: then the stream expects the page
//! behind those. A fault before it belongs to the stream as well: the scan was faster than the
//! threads that read ahead. Threads share 16 sets of a few streams; those of one set may disturb
//! each other, at a cost of speed alone.
//!
//! Never: allocates | locks.
//! Threads: any, also in a signal handler.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use deepheap_sys::threads::tls;

use crate::moves::staging::BUFFER_PAGES;
use crate::tables::control::CHUNK_PAGES;

/// Sets of streams; threads are spread over them.
const SETS: usize = 16;
/// Streams of a set.
const STREAMS: usize = 4;
/// Pages that are read together at the second fault of a stream.
const WINDOW_FIRST: u32 = 4;
/// Pages that are read together at most.
pub(crate) const WINDOW_MAX: u32 = BUFFER_PAGES as u32;
/// Pages that are asked for behind a full window, so that the device is kept busy.
pub(crate) const AHEAD: u32 = 6 * WINDOW_MAX;

#[derive(Default)]
struct Set {
    /// The expected page, and from bit 32 on the window.
    streams: [AtomicU64; STREAMS],
    next: AtomicU32,
    /// A page that was there already and faulted all the same, and from bit 32 on how often.
    repeat: AtomicU64,
}

/// The streams of one map.
#[derive(Default)]
pub(crate) struct Streams {
    sets: [Set; SETS],
    /// The window that the program wants; 0: faults tell.
    fixed: AtomicU32,
}

impl Streams {
    /// How many pages to read for a fault on this one.
    pub(crate) fn window(&self, page: u32) -> u32 {
        match self.fixed.load(Relaxed) {
            0 => {}
            window => return window,
        }
        let set = &self.sets[tls::lane()];
        // How many pages come before the expected one.
        let before = |word: u64| (word as u32).wrapping_sub(page);
        let is_ahead = |word: u64| (word >> 32) as u32 == WINDOW_MAX && before(word) <= AHEAD;
        let is_of = |word: u64| word >> 32 != 0 && (before(word) == 0 || is_ahead(word));
        let words = set.streams.iter().map(|stream| (stream, stream.load(Relaxed)));
        let (stream, window) = match words.into_iter().find(|(_, word)| is_of(*word)) {
            Some((_, word)) if before(word) > 0 => return before(word).min(WINDOW_MAX),
            Some((stream, word)) => {
                let window = (word >> 32) as u32;
                (stream, aligned(page, (window * 2).clamp(WINDOW_FIRST, WINDOW_MAX)))
            }
            None => {
                let next = set.next.fetch_add(1, Relaxed) as usize;
                (&set.streams[next % STREAMS], 1)
            }
        };
        stream.store(word_of(page.wrapping_add(window), window), Relaxed);
        window
    }

    /// Whether a fault on this page, which reads a full window, is the foremost of its scan: then
    /// nothing behind the window was asked for yet.
    pub(crate) fn is_foremost(&self, page: u32) -> bool {
        let word = word_of(page.wrapping_add(WINDOW_MAX), WINDOW_MAX);
        let set = &self.sets[tls::lane()];
        self.fixed.load(Relaxed) == WINDOW_MAX
            || set.streams.iter().any(|stream| stream.load(Relaxed) == word)
    }

    /// The stream that read this window goes on so many pages behind this one: fewer than asked
    /// were read, or those behind the window were asked for ahead.
    pub(crate) fn goes_on(&self, page: u32, window: u32, pages: u32) {
        let set = &self.sets[tls::lane()];
        let word = word_of(page.wrapping_add(window), window);
        let other = word_of(page.wrapping_add(pages), window);
        for stream in &set.streams {
            let _ = stream.compare_exchange(word, other, Relaxed, Relaxed);
        }
    }

    /// From now on so many pages are read for each fault, `WINDOW_MAX` at most.
    pub(crate) fn fix(&self, window: u32) {
        self.fixed.store(window, Relaxed);
    }

    /// Counts a fault on a page that was there; answers how many there were in a row.
    pub(crate) fn repeats(&self, page: u32) -> u32 {
        let set = &self.sets[tls::lane()];
        let word = set.repeat.load(Relaxed);
        let count = if word as u32 == page { (word >> 32) as u32 + 1 } else { 1 };
        set.repeat.store(word_of(page, count), Relaxed);
        count
    }
}

/// A large window ends with a chunk: a thread that reads the next one at the same time does not
/// find the chunk owned.
fn aligned(page: u32, window: u32) -> u32 {
    match window {
        ..WINDOW_MAX => window,
        _ => window - page.wrapping_add(window) % CHUNK_PAGES,
    }
}

fn word_of(page: u32, count: u32) -> u64 {
    u64::from(count) << 32 | u64::from(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_read_in_growing_pieces_and_a_jump_is_not() {
        let streams = Streams::default();
        let mut page = 100;
        let mut windows = Vec::new();
        for _ in 0..7 {
            let window = streams.window(page);
            windows.push(window);
            page += window;
        }
        assert_eq!(windows, [1, 4, 8, 16, 32, 63, 64], "the sixth ends with a chunk");
        assert_eq!(streams.window(7000), 1);
        assert_eq!(streams.window(page), 64, "the scan goes on beside it");
        streams.goes_on(page, 64, 10);
        assert_eq!(streams.window(page + 10), 54, "to the end of a chunk again");
        let page = page + 64;
        assert_eq!(streams.window(page), 64);
        assert!(streams.is_foremost(page));
        streams.goes_on(page, 64, 64 + AHEAD);
        assert_eq!(streams.window(page + 70), 64, "faster than the threads that read ahead");
        assert!(!streams.is_foremost(page + 70));
        assert_eq!(streams.window(page + 64 + AHEAD - 5), 5);
        assert_eq!(streams.window(page + 64 + AHEAD), 64, "the scan goes on behind it");
        streams.fix(1);
        assert_eq!(streams.window(page + 74), 1);
    }
}
