//! Sequence: tells a scan from random access by the faults of one thread.
//!
//! A scan's next fault falls on the page after the last one that was fetched. Each such fault
//! doubles the number of pages fetched together; any other fault starts over with one. At full
//! window the stretches after it, of a window each, are asked for ahead.
//!
//! Never: keeps anything between calls other than the 64 bits the caller stores for the thread.

/// Pages fetched together at most.
pub const WINDOW_MAX: u32 = 64;
/// Stretches asked for ahead at most.
pub const AHEAD_MAX: u32 = 3;

/// What one thread's faults looked like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sequence {
    /// The page on which the next fault falls if this is a scan.
    expected: u32,
    /// Pages to fetch then.
    window: u32,
}

/// What a thread's faults looked like so far: those that read, and those on fresh objects.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sequences {
    /// Faults on stored objects.
    pub stored: Sequence,
    /// Faults on objects that were never written.
    pub fresh: Sequence,
}

impl Sequence {
    /// From the word kept for the thread; zero for a new one.
    pub fn from_word(word: usize) -> Sequence {
        Sequence { expected: word as u32, window: (word >> 32) as u32 }
    }

    /// The word to keep for the thread.
    pub fn to_word(self) -> usize {
        self.expected as usize | ((self.window as usize) << 32)
    }

    /// How many pages to fetch for a fault on `page`, itself included.
    pub fn window(self, page: u32) -> u32 {
        if self.continues(page) { self.window } else { 1 }
    }

    /// A scan goes on where it was expected to, or earlier where it comes to what was asked for
    /// ahead.
    fn continues(self, page: u32) -> bool {
        let full = u32::from(self.window == WINDOW_MAX);
        self.window != 0 && self.expected.wrapping_sub(page) <= AHEAD_MAX * WINDOW_MAX * full
    }

    /// The first page that was not asked for yet, if a fault on `page`, which is here or on its
    /// way, belongs to a scan that is at full window.
    pub fn asked_until(self, page: u32) -> Option<u32> {
        (self.window == WINDOW_MAX && self.continues(page)).then_some(self.expected)
    }

    /// Notes that pages up to `end` were asked for ahead.
    pub fn ask_until(self, end: u32) -> Sequence {
        Sequence { expected: end, ..self }
    }

    /// Notes that `page` was here before the scan came to it.
    pub fn pass(self, page: u32) -> Sequence {
        let goes_on = self.expected == page && self.window < WINDOW_MAX;
        if goes_on { self.advance(page, 1) } else { self }
    }

    /// Notes that `fetched` pages from `page` on were installed.
    pub fn advance(self, page: u32, fetched: u32) -> Sequence {
        let window = if self.continues(page) { (self.window * 2).min(WINDOW_MAX) } else { 2 };
        Sequence { expected: page.wrapping_add(fetched), window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_grows_its_window_and_random_access_does_not() {
        let mut sequence = Sequence::default();
        let mut page = 10;
        let mut windows = Vec::new();
        for _ in 0..8 {
            let window = sequence.window(page);
            sequence = Sequence::from_word(sequence.advance(page, window).to_word());
            windows.push(window);
            page += window;
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 32, 64, 64]);
        assert_eq!(sequence.asked_until(page), Some(page));
        assert_eq!(sequence.asked_until(page + 1), None);
        sequence = sequence.ask_until(page + AHEAD_MAX * WINDOW_MAX);
        assert_eq!(sequence.asked_until(page), Some(page + AHEAD_MAX * WINDOW_MAX));
        assert_eq!(sequence.window(page), WINDOW_MAX, "the part ahead did not come");
        assert_eq!(sequence.window(page - 1), 1);
        page += AHEAD_MAX * WINDOW_MAX;
        assert_eq!(sequence.window(page + 5), 1);
        assert_eq!(sequence.advance(page + 5, 1).window(page + 6), 2);
    }
}
