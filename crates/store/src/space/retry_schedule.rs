//! Retry schedule: when the segments that the device refused are written again.
//!
//! A refused segment waits; the pause doubles with every refusal, up to a second. A device that has
//! taken no segment for about ten seconds is dead.
//!
//! Guarantees: a segment that is being tried is not due.
//! Never: allocates, blocks, does I/O, reads a clock.
//! Threads: under the lock of the space.

use crate::log::options::BUFFERS_MAX;

/// The pause after the first refusal; each one is twice as long as the one before, up to
/// `PAUSE_MAX_NS`.
const PAUSE_MIN_NS: u64 = 10_000_000;

/// The longest pause.
const PAUSE_MAX_NS: u64 = 1_000_000_000;

/// Refusals of one segment, while the device takes nothing else either, after which the device is
/// dead: with the pauses above, after ten seconds.
const REFUSALS_DEAD: u8 = 17;

/// Buffers, as bits.
pub(crate) type Buffers = u64;

const _: () = assert!(BUFFERS_MAX == Buffers::BITS as usize);

/// The segments that the device refused, by buffer.
pub(crate) struct RetrySchedule {
    /// Those that wait for the next try.
    waiting: Buffers,
    /// How often the segment in the buffer was refused.
    refusals: [u8; BUFFERS_MAX],
    /// How often since the device took any segment.
    in_vain: [u8; BUFFERS_MAX],
    due_ns: [u64; BUFFERS_MAX],
}

impl RetrySchedule {
    pub(crate) const fn new() -> Self {
        Self {
            waiting: 0,
            refusals: [0; BUFFERS_MAX],
            in_vain: [0; BUFFERS_MAX],
            due_ns: [0; BUFFERS_MAX],
        }
    }

    /// The device refused the segment in the buffer.
    pub(crate) fn refused(&mut self, buffer: usize, now_ns: u64) {
        let refusals = self.refusals[buffer];
        let pause_ns = PAUSE_MIN_NS << refusals.min(16);
        self.waiting |= 1 << buffer;
        self.refusals[buffer] = refusals.saturating_add(1);
        self.in_vain[buffer] = self.in_vain[buffer].saturating_add(1);
        self.due_ns[buffer] = now_ns + pause_ns.min(PAUSE_MAX_NS);
    }

    /// The device took the segment in the buffer.
    pub(crate) fn taken(&mut self, buffer: usize) {
        self.forget(buffer);
        self.in_vain = [0; BUFFERS_MAX];
    }

    /// The segment in the buffer is dead: nobody needs it written.
    pub(crate) fn forget(&mut self, buffer: usize) {
        self.waiting &= !(1 << buffer);
        self.refusals[buffer] = 0;
        self.in_vain[buffer] = 0;
    }

    /// Whether none of these buffers will be free, as far as one can tell.
    pub(crate) fn are_stuck(&self, buffers: Buffers) -> bool {
        self.waiting & buffers == buffers && self.is_dead()
    }

    /// Whether the device takes nothing any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.waiting().any(|buffer| self.in_vain[buffer] >= REFUSALS_DEAD)
    }

    fn waiting(&self) -> impl Iterator<Item = usize> {
        let waiting = self.waiting;
        (0..BUFFERS_MAX).filter(move |buffer| waiting & (1 << buffer) != 0)
    }

    /// When the next try is due; none if there is nothing to try.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.waiting().map(|buffer| self.due_ns[buffer]).min()
    }

    /// The buffers whose time has come.
    pub(crate) fn due(&self, now_ns: u64) -> Buffers {
        let due = self.waiting().filter(|&buffer| self.due_ns[buffer] <= now_ns);
        due.fold(0, |due, buffer| due | 1 << buffer)
    }

    /// Takes out one of these buffers, to be tried; and how often it was refused.
    pub(crate) fn take(&mut self, of: Buffers) -> Option<(usize, u8)> {
        let buffer = self.waiting().find(|buffer| of & (1 << buffer) != 0)?;
        self.waiting &= !(1 << buffer);
        Some((buffer, self.refusals[buffer]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a segment is tried that is always refused, until the device counts as dead.
    #[test]
    fn pauses_double_up_to_a_second_and_ten_seconds_in_vain_are_death() {
        let mut retries = RetrySchedule::new();
        let (mut now_ns, mut pauses_ms) = (0, Vec::new());
        retries.refused(3, now_ns);
        while !retries.is_dead() {
            let due_ns = retries.next_due_ns().expect("it waits");
            assert_eq!((retries.due(due_ns - 1), retries.due(due_ns)), (0, 1 << 3));
            pauses_ms.push((due_ns - now_ns) / 1_000_000);
            now_ns = due_ns;
            assert!(retries.take(1 << 3).is_some());
            assert_eq!(retries.next_due_ns(), None, "it is being tried");
            retries.refused(3, now_ns);
        }
        assert_eq!(pauses_ms[..8], [10, 20, 40, 80, 160, 320, 640, 1000]);
        assert!((10_000..11_000).contains(&(now_ns / 1_000_000)), "{now_ns}");
    }

    #[test]
    fn a_device_that_takes_anything_is_not_dead_however_often_it_refuses_one_place() {
        let mut retries = RetrySchedule::new();
        for _ in 0..100 {
            retries.refused(1, 0);
            retries.taken(2);
            assert!(!retries.is_dead());
        }
        assert!(!retries.are_stuck(0b10));
        (0..REFUSALS_DEAD).for_each(|_| retries.refused(1, 0));
        assert!(retries.are_stuck(0b10) && !retries.are_stuck(0b110));
        retries.forget(1);
        assert!(!retries.is_dead() && retries.next_due_ns().is_none());
    }
}
