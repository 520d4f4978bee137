//! Pins: which fillings are kept for forked children, or for checkpoints: the last one, those that
//! are snapshots, those that somebody reads.
//!
//! A pin keeps the objects that live when it is taken. Only earlier pins keep those that had died
//! before.
//!
//! Guarantees: `newest` is the last filling that any pin covers, `newest_of` the last one that any
//! of the pins covers which were there at a moment.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: under the lock of the space.

use deepheap_sys::narrow::Narrow;

/// Pins that can be held at the same time.
pub(crate) const PINS_MAX: usize = 1024;

/// A pin.
#[derive(Clone, Copy, Default)]
struct Pin {
    /// The first filling that it does not cover; 0: the slot is free.
    end: u64,
    /// The moment at which it was taken.
    taken_at: u64,
    /// Whether it is that of a snapshot.
    is_named: bool,
}

/// The pins that are held.
pub(crate) struct Pins {
    slots: Box<[Pin]>,
    newest: u64,
    /// The moment of the last pin: so many were taken.
    now: u64,
}

impl Pins {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Pin::default(); PINS_MAX].into_boxed_slice(), newest: 0, now: 0 }
    }

    /// Covers the fillings up to `sequence`; none if there are too many pins.
    pub(crate) fn add(&mut self, sequence: u64) -> Option<u32> {
        let slot = self.slots.iter().position(|pin| pin.end == 0)?;
        self.now += 1;
        self.slots[slot] = Pin { end: sequence + 1, taken_at: self.now, is_named: false };
        self.newest = self.newest.max(sequence);
        Some(slot.to_u32())
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.slots[slot as usize] = Pin::default();
        self.newest = self.newest_that(|_| true);
    }

    /// No pin is left.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(Pin::default());
        self.newest = 0;
    }

    /// Whether anyone holds a pin.
    pub(crate) fn any(&self) -> bool {
        self.slots.iter().any(|pin| pin.end > 0)
    }

    /// The last filling that any pin covers; 0 if none does.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The pin is that of a snapshot from now on, or not any more.
    pub(crate) fn set_named(&mut self, slot: u32, is_named: bool) {
        self.slots[slot as usize].is_named = is_named;
    }

    /// The last filling that the pin of a snapshot covers; 0 if none does.
    pub(crate) fn newest_named(&self) -> u64 {
        self.newest_named_of(u64::MAX)
    }

    /// The same, of those that were there at `moment`.
    pub(crate) fn newest_named_of(&self, moment: u64) -> u64 {
        self.newest_that(|pin| pin.is_named && pin.taken_at <= moment)
    }

    /// The moment, for `newest_of`.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The last filling that any pin covers that was there at `moment`; 0 if none does.
    pub(crate) fn newest_of(&self, moment: u64) -> u64 {
        self.newest_that(|pin| pin.taken_at <= moment)
    }

    fn newest_that(&self, counts: impl Fn(&Pin) -> bool) -> u64 {
        let counted = self.slots.iter().filter(|pin| counts(pin));
        counted.fold(1, |max, pin| max.max(pin.end)) - 1
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
