//! Waits: what a thread waits in, and the longest of what it has waited in since it began to look.
//!
//! Where a thread sleeps, or does work that its program waits for, it makes a `Wait` and ends it
//! with the cause. A wait within another one is the cause of the outer one if it was at least half
//! of it: a thread that makes room and waits for the log meanwhile waits for the log.
//!
//! Never: allocates, blocks.
//! Threads: each has its own longest wait; also in a signal handler. A handler that interrupts a
//! wait and begins to look loses the waits before: only their cause becomes unknown.

use crate::process::clock;
use crate::threads::tls;

/// What a thread waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Cause {
    /// It computed, or waited for a processor, or for what has no cause here.
    Other,
    /// Room in RAM: it evicted, or others did.
    Room,
    /// A span that was plain memory came under management.
    TakeOver,
    /// Another thread that was moving the object between places in RAM.
    Owner,
    /// A fork, while which no object moves.
    Fork,
    /// The cut of a checkpoint.
    Checkpoint,
    /// A read of the device, its own or that of another thread that brought the object.
    Device,
    /// Room in the log: buffers that were being written, the collector, or more of the device.
    Log,
    /// Pages of the object table.
    Table,
}

impl Cause {
    /// All of them, in order.
    pub const ALL: [Cause; 9] = [
        Cause::Other,
        Cause::Room,
        Cause::TakeOver,
        Cause::Owner,
        Cause::Fork,
        Cause::Checkpoint,
        Cause::Device,
        Cause::Log,
        Cause::Table,
    ];

    /// That of this number.
    pub fn of(number: u32) -> Cause {
        Cause::ALL.get(number as usize).copied().unwrap_or(Cause::Other)
    }
}

/// Bits of a cause in the word of a thread; above them are nanoseconds.
const CAUSE_BITS: u32 = 4;

const _: () = assert!(Cause::ALL.len() <= 1 << CAUSE_BITS);

/// A wait under way.
pub struct Wait {
    start_ns: u64,
    before: u64,
}

impl Wait {
    /// A wait for as long as `work` takes.
    #[inline]
    pub fn during<T>(cause: Cause, work: impl FnOnce() -> T) -> T {
        let wait = Wait::begin();
        let done = work();
        wait.end(cause);
        done
    }

    /// Begins one.
    #[inline]
    pub fn begin() -> Wait {
        Wait { before: replace(0), start_ns: clock::monotonic_ns() }
    }

    /// Ends it; returns how many nanoseconds it took.
    #[inline]
    pub fn end(self, cause: Cause) -> u64 {
        let ns = clock::monotonic_ns().saturating_sub(self.start_ns);
        let longest = packed(cause_of(longest(), ns, cause), ns).max(self.before);
        replace(longest);
        ns
    }
}

/// From now on the calling thread has not waited.
#[inline]
pub fn begin_to_look() {
    replace(0);
}

/// The cause of a time of so many nanoseconds that ends now and began with `begin_to_look`.
pub fn cause_since(ns: u64) -> Cause {
    cause_of(longest(), ns, Cause::Other)
}

/// The cause of the longest wait within a time of so many nanoseconds, if that was half of it.
fn cause_of(longest: u64, ns: u64, otherwise: Cause) -> Cause {
    match longest >> CAUSE_BITS {
        0 => otherwise,
        inner_ns if inner_ns >= ns / 2 => Cause::of(longest as u32 & ((1 << CAUSE_BITS) - 1)),
        _ => otherwise,
    }
}

fn packed(cause: Cause, ns: u64) -> u64 {
    ns << CAUSE_BITS | cause as u64
}

fn longest() -> u64 {
    // SAFETY: the calling thread's own area.
    unsafe { (*tls::area()).longest_wait }
}

fn replace(longest: u64) -> u64 {
    // SAFETY: as above.
    unsafe { core::mem::replace(&mut (*tls::area()).longest_wait, longest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest_after(longest: u64, ns: u64, cause: Cause) -> u64 {
        replace(longest);
        Wait { before: 0, start_ns: clock::monotonic_ns() - ns }.end(cause);
        super::longest()
    }

    #[test]
    fn what_was_most_of_a_wait_is_its_cause() {
        const MS: u64 = 1_000_000;
        let cause = |longest: u64| Cause::of(longest as u32 & 15);
        let log = packed(Cause::Log, 40 * MS);
        assert_eq!(cause(longest_after(log, 60 * MS, Cause::Room)), Cause::Log);
        assert_eq!(cause(longest_after(log, 600 * MS, Cause::Room)), Cause::Room);
        assert_eq!(cause(longest_after(0, 0, Cause::Room)), Cause::Room);
        replace(log);
        assert_eq!(cause_since(79 * MS), Cause::Log);
        assert_eq!(cause_since(81 * MS), Cause::Other);
        begin_to_look();
        assert_eq!(cause_since(MS), Cause::Other);
    }

    #[test]
    fn of_two_waits_the_longer_one_is_kept() {
        begin_to_look();
        let start_ns = clock::monotonic_ns();
        for (cause, ns) in [(Cause::Owner, 3 << 30), (Cause::Device, 5 << 30), (Cause::Fork, 1)] {
            let before = replace(0);
            Wait { before, start_ns: start_ns - ns }.end(cause);
        }
        assert_eq!(cause_since(5 << 30), Cause::Device);
    }

    #[test]
    fn each_cause_has_its_number() {
        for (number, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!((cause as usize, Cause::of(number as u32)), (number, cause));
        }
    }
}
