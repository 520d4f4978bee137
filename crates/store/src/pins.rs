//! Pins: which fillings are kept for forked children, or for checkpoints: the last one, those that
//! are snapshots, those that somebody reads.
//!
//! A pin keeps what lives when it is taken. What had died before is kept by earlier pins only.
//!
//! Guarantees: `newest` is the last filling that any pin covers, `newest_of` the last one that any
//! of the pins covers which were there at a moment.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: under the lock of the space.

/// Pins that can be held at the same time.
pub(crate) const PINS_MAX: usize = 1024;

/// The pins that are held: for each the last filling that it covers.
pub(crate) struct Pins {
    covered: Box<[u64]>,
    /// For each the moment at which it was taken.
    taken_at: Box<[u64]>,
    /// For each whether it is that of a snapshot.
    is_named: Box<[bool]>,
    newest: u64,
    /// The moment of the last pin: so many were taken.
    now: u64,
}

/// Marks a free slot; a pin covers at least this many fillings, and one more for the marking.
const FREE: u64 = 0;

impl Pins {
    pub(crate) fn new() -> Self {
        let of_each = || vec![FREE; PINS_MAX].into_boxed_slice();
        let is_named = vec![false; PINS_MAX].into_boxed_slice();
        Self { covered: of_each(), taken_at: of_each(), is_named, newest: 0, now: 0 }
    }

    /// Covers the fillings up to `sequence`; none if there are too many pins.
    pub(crate) fn add(&mut self, sequence: u64) -> Option<u32> {
        let slot = self.covered.iter().position(|&covered| covered == FREE)?;
        self.now += 1;
        self.covered[slot] = sequence + 1;
        self.taken_at[slot] = self.now;
        self.newest = self.newest.max(sequence);
        Some(slot as u32)
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.covered[slot as usize] = FREE;
        self.is_named[slot as usize] = false;
        self.newest = self.covered.iter().fold(1, |max, &covered| max.max(covered)) - 1;
    }

    /// No pin is left.
    pub(crate) fn clear(&mut self) {
        self.covered.fill(FREE);
        self.is_named.fill(false);
        self.newest = 0;
    }

    /// Whether anyone holds a pin.
    pub(crate) fn any(&self) -> bool {
        self.covered.iter().any(|&covered| covered != FREE)
    }

    /// The last filling that any pin covers; 0 if none does.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The pin is that of a snapshot from now on, or not any more.
    pub(crate) fn set_named(&mut self, slot: u32, is_named: bool) {
        self.is_named[slot as usize] = is_named;
    }

    /// The last filling that the pin of a snapshot covers; 0 if none does.
    pub(crate) fn newest_named(&self) -> u64 {
        self.newest_named_of(u64::MAX)
    }

    /// The same, of those that were there at `moment`.
    pub(crate) fn newest_named_of(&self, moment: u64) -> u64 {
        let pins = self.covered.iter().zip(&self.taken_at).zip(&self.is_named);
        let named = pins.filter(|((_, taken_at), is_named)| **is_named && **taken_at <= moment);
        named.fold(1, |max, ((&covered, _), _)| max.max(covered)) - 1
    }

    /// The moment, for `newest_of`.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The last filling that any pin covers that was there at `moment`; 0 if none does.
    pub(crate) fn newest_of(&self, moment: u64) -> u64 {
        let pins = self.covered.iter().zip(&self.taken_at);
        let there = pins.filter(|(_, taken_at)| **taken_at <= moment);
        there.fold(1, |max, (&covered, _)| max.max(covered)) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_pin_covers_until_it_is_removed() {
        let mut pins = Pins::new();
        assert_eq!(pins.newest(), 0);
        let zero = pins.add(0).expect("room");
        assert_eq!(pins.newest(), 0, "nothing was filled yet");
        let (old, new) = (pins.add(5).expect("room"), pins.add(9).expect("room"));
        assert_eq!(pins.newest(), 9);
        pins.remove(new);
        assert_eq!(pins.newest(), 5);
        pins.remove(zero);
        pins.remove(old);
        assert_eq!(pins.newest(), 0);
    }

    #[test]
    fn a_pin_keeps_nothing_that_was_gone_before_it() {
        let mut pins = Pins::new();
        let old = pins.add(5).expect("room");
        let between = pins.now();
        let new = pins.add(9).expect("room");
        assert_eq!((pins.newest_of(between), pins.newest_of(pins.now())), (5, 9));
        pins.remove(old);
        assert_eq!((pins.newest_of(between), pins.newest_of(pins.now())), (0, 9));
        pins.remove(new);
        assert_eq!(pins.newest_of(pins.now()), 0);
    }

    #[test]
    fn pins_are_bounded() {
        let mut pins = Pins::new();
        for _ in 0..PINS_MAX {
            assert!(pins.add(1).is_some());
        }
        assert_eq!(pins.add(1), None);
        pins.clear();
        assert!(pins.add(1).is_some());
    }
}
