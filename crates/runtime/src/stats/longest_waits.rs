//! Longest waits: the longest fault of the last minute, for each cause of waiting.
//!
//! For each cause there are some words, one for ten seconds each. A word has the time it is about,
//! in its upper bits, and below it the longest fault, so `fetch_max` begins a new time and keeps
//! the longest fault of one in the same step.
//!
//! Guarantees: `note` is wait-free. A fault is told for a minute at least, and for ten seconds more
//! at most.
//! Never: allocates, blocks, locks.
//! Threads: any, also in a signal handler, and readers of a copy in other processes.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use deepheap_sys::threads::waits::Cause;

/// Nanoseconds that a word is about.
const TIME_NS: u64 = 10_000_000_000;
/// Times that make up a minute, and the one that has begun.
const TIMES: usize = 7;
/// The longest fault is kept in microseconds, up to four hours.
const LONGEST_BITS: u32 = 34;

/// A page of zeros has none.
#[repr(C)]
pub(crate) struct LongestWaits([[AtomicU64; TIMES]; Cause::ALL.len()]);

impl LongestWaits {
    /// A shorter fault is none that anybody waits for.
    pub(crate) const LEAST_NS: u64 = 1_000_000;

    /// A fault of so many nanoseconds ended now, by CLOCK_MONOTONIC.
    pub(crate) fn note(&self, cause: Cause, ns: u64, now_ns: u64) {
        let time = now_ns / TIME_NS;
        let longest = (ns / 1000).min((1 << LONGEST_BITS) - 1);
        let word = &self.0[cause as usize][time as usize % TIMES];
        word.fetch_max(time << LONGEST_BITS | longest, Relaxed);
    }

    /// The longest of the last minute, in nanoseconds; 0 if none was long.
    pub(crate) fn longest_ns(&self, cause: Cause, now_ns: u64) -> u64 {
        let oldest = (now_ns / TIME_NS).saturating_sub(TIMES as u64 - 1);
        let words = self.0[cause as usize].iter().map(|word| word.load(Relaxed));
        let recent = words.filter(|word| word >> LONGEST_BITS >= oldest);
        recent.map(|word| word & ((1 << LONGEST_BITS) - 1)).max().unwrap_or(0) * 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MS;

    fn none() -> LongestWaits {
        LongestWaits([const { [const { AtomicU64::new(0) }; TIMES] }; Cause::ALL.len()])
    }

    #[test]
    fn the_longest_of_a_minute_is_told_by_its_cause_and_then_forgotten() {
        let waits = none();
        let begin = 1_000_003 * SECOND;
        waits.note(Cause::Room, 20 * MS, begin);
        waits.note(Cause::Room, 70 * MS, begin + SECOND);
        waits.note(Cause::Room, 30 * MS, begin + 2 * SECOND);
        waits.note(Cause::Fork, 40 * MS, begin + 30 * SECOND);
        let told = |cause, seconds| waits.longest_ns(cause, begin + seconds * SECOND) / MS;
        assert_eq!((told(Cause::Room, 2), told(Cause::Fork, 2)), (70, 40));
        assert_eq!((told(Cause::Room, 61), told(Cause::Fork, 61)), (70, 40));
        assert_eq!((told(Cause::Room, 72), told(Cause::Fork, 72)), (0, 40));
        assert_eq!((told(Cause::Room, 200), told(Cause::Fork, 200)), (0, 0));
        // The same word again, for a later time: a shorter fault takes the place of a longer one.
        waits.note(Cause::Room, 5 * MS, begin + TIMES as u64 * 10 * SECOND);
        assert_eq!(told(Cause::Room, 70), 5);
        assert_eq!(told(Cause::Device, 70), 0);
    }

    #[test]
    fn of_many_threads_the_longest_fault_is_kept() {
        let waits = none();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let waits = &waits;
                scope.spawn(move || {
                    (0..1000).for_each(|n| waits.note(Cause::Owner, (n * 8 + thread) * MS, SECOND));
                });
            }
        });
        assert_eq!(waits.longest_ns(Cause::Owner, SECOND), 7999 * MS);
        waits.note(Cause::Owner, u64::MAX, SECOND);
        assert!(waits.longest_ns(Cause::Owner, SECOND) > 4 * 3600 * SECOND);
    }
}
