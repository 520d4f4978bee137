//! Sequence: tells scans from random access by the faults of one thread.
//!
//! A scan's next fault falls on the page after the last one that was fetched, upwards or downwards,
//! or a little further if pages between are in DRAM already. Each such fault doubles the window,
//! the number of pages fetched together; any other fault starts over with one page. At full window
//! the scan asks ahead for the next windows.
//!
//! A thread can be in several scans at once (`c[i] = a[i] + b[i]` is three), and between their
//! faults touch pages at random. So each fault is compared with the last few known scans, and with
//! the last few faults that may begin one; the latter do not push out the former.
//!
//! Never: keeps anything between calls other than what the caller stores for the thread.

use core::ops::Range;

use crate::stride::Walks;
use crate::trail::Trails;

/// Pages fetched together at most.
pub const WINDOW_MAX: u32 = WINDOW_FULL as u32;
/// The same, as a sequence keeps it.
const WINDOW_FULL: u8 = 64;
/// Stretches asked for ahead at most.
pub const AHEAD_MAX: u32 = 3;

/// Scans of one thread that are known at a time.
const KNOWN: usize = 8;
/// Remembered faults of one thread that may begin a scan: so many on stored objects, and so many on
/// those in DRAM, which can be far more frequent.
const YOUNG: usize = KNOWN;
const YOUNG_IN_DRAM: usize = 4;
const SCANS: usize = KNOWN + YOUNG + YOUNG_IN_DRAM;
/// A scan is known once it expects this window, at its third fault: an object across two pages is
/// not a scan.
const KNOWN_WINDOW: u8 = 8;

/// The most pages that a scan may pass without a fault and still be recognised.
const SKIPPED_MAX: u32 = 8;
/// `Sequence::continues` looks at no page further away.
const NEAR: u32 = AHEAD_MAX * WINDOW_MAX;
const _: () = assert!(NEAR >= SKIPPED_MAX && NEAR >= FIRST_STEP_MAX);
/// Two faults at most so many pages apart may begin a scan.
const FIRST_STEP_MAX: u32 = 2;

/// Where a scan goes, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To higher addresses.
    Up,
    /// To lower ones.
    Down,
}

impl Direction {
    /// The page `count` pages further on. Wraps around.
    pub fn after(self, page: u32, count: u32) -> u32 {
        match self {
            Direction::Up => page.wrapping_add(count),
            Direction::Down => page.wrapping_sub(count),
        }
    }

    /// So many pages, at most a few windows, as a number that is negative downwards.
    #[expect(clippy::cast_possible_truncation, reason = "a few windows are a few hundred pages")]
    pub fn signed(self, pages: u32) -> i16 {
        i16::from(self.sign()) * pages as i16
    }

    fn sign(self) -> i8 {
        match self {
            Direction::Up => 1,
            Direction::Down => -1,
        }
    }

    /// How many pages further on than `from` `page` is. Wraps around.
    pub fn distance(self, from: u32, page: u32) -> u32 {
        match self {
            Direction::Up => page.wrapping_sub(from),
            Direction::Down => from.wrapping_sub(page),
        }
    }
}

/// A scan, or the one fault that may begin one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sequence {
    /// The page on which the next fault falls if this is a scan; without a direction, the page on
    /// which the last one fell.
    expected: u32,
    /// Pages to fetch then. 0: nothing is expected.
    window: u8,
    /// 1: up, -1: down; 0: it is not known.
    step: i8,
    /// The pages before the expected one were asked for ahead.
    asks: bool,
}

impl Sequence {
    fn direction(self) -> Option<Direction> {
        match self.step {
            0 => None,
            1 => Some(Direction::Up),
            _ => Some(Direction::Down),
        }
    }

    /// How many pages to fetch for a fault on `page`, itself included, and in which direction.
    pub fn window(self, page: u32) -> (u32, Direction) {
        self.continues(page).map_or((1, Direction::Up), |direction| (self.window.into(), direction))
    }

    /// The direction of the scan, if a fault on `page` continues it: on the expected page, a little
    /// after it, or on a page that was asked for ahead.
    fn continues(self, page: u32) -> Option<Direction> {
        if self.window == 0 {
            return None;
        }
        let Some(direction) = self.direction() else {
            let steps = 1..=FIRST_STEP_MAX;
            let goes = |way: &Direction| steps.contains(&way.distance(self.expected, page));
            return [Direction::Up, Direction::Down].into_iter().find(goes);
        };
        let goes_on = direction.distance(self.expected, page) <= SKIPPED_MAX;
        let is_asked = || direction.distance(page, self.expected) <= AHEAD_MAX * WINDOW_MAX;
        (goes_on || self.asks && is_asked()).then_some(direction)
    }

    /// Whether `page` is among those that were asked for ahead.
    pub fn was_asked_for(self, page: u32) -> bool {
        self.asks
            && self
                .direction()
                .is_some_and(|direction| direction.distance(self.expected, page) > SKIPPED_MAX)
            && self.continues(page).is_some()
    }

    /// If a fault on `page`, which is in DRAM or arriving, belongs to a scan that asks ahead: the
    /// first page that was not asked for yet, and the direction.
    pub fn asked_until(self, page: u32) -> Option<(u32, Direction)> {
        let direction = self.continues(page)?;
        self.asks.then_some((self.expected, direction))
    }

    /// Notes that pages up to `end` were asked for ahead.
    pub fn ask_until(self, end: u32) -> Sequence {
        Sequence { expected: end, window: WINDOW_FULL, asks: true, ..self }
    }

    /// Notes that `fetched` pages from `page` on were installed.
    pub fn advance(self, page: u32, fetched: u32) -> Sequence {
        match self.continues(page) {
            // A page that was asked for did not come. If that happens more than a few times, it is
            // no scan any more.
            Some(_) if self.was_asked_for(page) => {
                let window = self.window / 2;
                Sequence { window, asks: window >= KNOWN_WINDOW, ..self }
            }
            Some(direction) => {
                // A random fault may fall near the expected page, but seldom exactly on it.
                let is_exact = self.step == 0 || page == self.expected;
                let window = if is_exact { self.window * 2 } else { self.window / 2 };
                Sequence {
                    expected: direction.after(page, fetched),
                    window: window.clamp(2, WINDOW_FULL),
                    step: direction.sign(),
                    asks: false,
                }
            }
            None => Sequence {
                expected: if fetched > 1 { page.wrapping_add(fetched) } else { page },
                window: 2,
                step: i8::from(fetched > 1),
                asks: false,
            },
        }
    }
}

/// The pattern of a thread's faults so far. Made of integers and bools, all of them 0 for a new
/// thread, so that a record for each thread can hold it.
#[derive(Clone, Debug, Default)]
pub struct Sequences {
    /// Known scans; faults on stored objects that may begin one; the same for objects in DRAM; each
    /// with the last used first.
    scans: [Sequence; SCANS],
    /// The sequence of faults on objects that were never written.
    pub fresh: Sequence,
    /// The thread's walks in equal steps.
    pub walks: Walks,
    /// The thread's trails in the history.
    pub trails: Trails,
}

impl Sequences {
    /// The scan to which a fault on `page` belongs; a new one if there is none.
    pub fn of(&self, page: u32) -> Sequence {
        self.find(page).map_or(Sequence::default(), |at| self.scans[at])
    }

    /// How many scans ask ahead.
    pub fn asking(&self) -> usize {
        self.scans[..KNOWN].iter().filter(|scan| scan.asks).count()
    }

    /// Notes what `of(page)` has become through a fault on a stored object.
    pub fn note(&mut self, page: u32, sequence: Sequence) {
        self.put(page, sequence, KNOWN..KNOWN + YOUNG);
    }

    /// Notes that a fault on `page` found its object in DRAM, and that `passed` pages from it on
    /// are there now.
    pub fn pass(&mut self, page: u32, passed: u32) {
        let sequence = self.of(page);
        if !sequence.was_asked_for(page) {
            self.put(page, sequence.advance(page, passed), KNOWN + YOUNG..SCANS);
        }
    }

    /// Puts the new state of the scan to which `page` belongs in front of its kind; a scan that was
    /// not there is of the kind `new`.
    fn put(&mut self, page: u32, sequence: Sequence, new: Range<usize>) {
        let at = self.find(page).unwrap_or(new.end - 1);
        let kinds = [0..KNOWN, KNOWN..KNOWN + YOUNG, KNOWN + YOUNG..SCANS];
        let mut kind = kinds.into_iter().find(|kind| kind.contains(&at)).unwrap_or(new);
        kind.end = at + 1;
        if kind.start > 0 && sequence.window >= KNOWN_WINDOW {
            self.scans[at] = Sequence::default();
            kind = 0..KNOWN;
        }
        self.scans[kind.clone()].rotate_right(1);
        self.scans[kind.start] = sequence;
    }

    fn find(&self, page: u32) -> Option<usize> {
        // Every fault comes here, and few pages are near an expected one.
        let is_near =
            |scan: &Sequence| page.wrapping_sub(scan.expected).wrapping_add(NEAR) <= 2 * NEAR;
        self.scans.iter().position(|scan| is_near(scan) && scan.continues(page).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves a fault as the pager does; returns how many pages it fetched.
    fn fault(sequences: &mut Sequences, page: u32) -> u32 {
        let sequence = sequences.of(page);
        let (window, _) = sequence.window(page);
        sequences.note(page, sequence.advance(page, window));
        window
    }

    #[test]
    fn a_scan_grows_its_window_in_either_direction_and_random_access_does_not() {
        for direction in [Direction::Up, Direction::Down] {
            let mut sequences = Sequences::default();
            let mut page = 1000;
            let mut windows = Vec::new();
            for _ in 0..8 {
                windows.push(fault(&mut sequences, page));
                page = direction.after(page, windows[windows.len() - 1]);
            }
            assert_eq!(windows, [1, 2, 4, 8, 16, 32, 64, 64]);
            let skips = |count| sequences.of(direction.after(page, count)) != Sequence::default();
            assert!(skips(SKIPPED_MAX) && !skips(SKIPPED_MAX + 1));
            assert!(!skips(u32::MAX), "behind the scan");
        }
        let mut sequences = Sequences::default();
        let pages = (0..1000u32).map(|at| at.wrapping_mul(2_654_435_761) >> 4);
        assert!(pages.into_iter().all(|page| fault(&mut sequences, page) == 1));
    }

    #[test]
    fn a_scan_is_known_where_it_asked_ahead_until_that_fails_it() {
        for direction in [Direction::Up, Direction::Down] {
            let after = |page, count| direction.after(page, count);
            let mut sequences = Sequences::default();
            let mut page = 1000;
            for window in [1, 2, 4, 8, 16, 32, 64] {
                assert_eq!(fault(&mut sequences, page), window);
                page = after(page, window);
            }
            assert_eq!(sequences.of(page).asked_until(page), None);
            let end = after(page, AHEAD_MAX * WINDOW_MAX);
            sequences.note(page, sequences.of(page).ask_until(end));
            assert_eq!(sequences.asking(), 1);
            assert_eq!(sequences.of(page).asked_until(page), Some((end, direction)));
            sequences.pass(after(page, WINDOW_MAX), 1);
            assert_eq!(sequences.of(page).asked_until(page), Some((end, direction)), "as before");
            for window in [64, 32, 16] {
                assert_eq!(fault(&mut sequences, page), window, "what is ahead did not come");
                page = after(page, window);
            }
            assert_eq!(fault(&mut sequences, page), 8);
            assert_eq!(fault(&mut sequences, after(page, 8)), 1);
            assert_eq!(fault(&mut sequences, end), 4, "but where it was to end it would go on");
        }
    }

    #[test]
    fn scans_that_take_turns_are_told_apart() {
        let mut sequences = Sequences::default();
        let mut scans: [_; KNOWN] = core::array::from_fn(|at| {
            ((1 + at as u32) << 20, if at % 2 == 0 { Direction::Up } else { Direction::Down })
        });
        let mut round = |sequences: &mut Sequences, expected| {
            for (page, direction) in &mut scans {
                assert_eq!(fault(sequences, *page), expected);
                *page = direction.after(*page, expected);
            }
        };
        [1, 2, 4, 8, 16, 32, 64, 64].iter().for_each(|&window| round(&mut sequences, window));
        let new = [1, 2, 4, 8].map(|window| fault(&mut sequences, (40 << 20) + window - 1));
        assert_eq!(new, [1, 2, 4, 8], "a new one takes the place of one");
        let mut known = 0;
        for (page, _) in scans {
            known += u32::from(sequences.of(page) != Sequence::default());
        }
        assert_eq!(known, KNOWN as u32 - 1);
    }

    #[test]
    fn a_scan_amid_random_access_goes_on() {
        let mut sequences = Sequences::default();
        for page in [1000, 1001, 1003] {
            fault(&mut sequences, page);
        }
        let random = (0..100u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 4) | 1 << 29);
        for page in random {
            assert_eq!(fault(&mut sequences, page), 1);
            sequences.pass(page ^ 1 << 28, 1);
        }
        assert_eq!(fault(&mut sequences, 1007), 8);
        sequences.pass(1015, 1);
        assert_eq!(fault(&mut sequences, 1016), 32);
    }
}
