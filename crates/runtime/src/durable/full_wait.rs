//! Full wait: accesses that wait because the file of a durable heap is full of what the last
//! checkpoint needs. Only another checkpoint lets go of that.
//!
//! Guarantees: an access waits for as long as a checkpoint is being made, and for `PATIENCE` beside
//! that; then it ends. The last checkpoint is what it was.
//! Never: blocks, allocates.
//! Threads: any, also in the fault handler.

use core::time::Duration;

use deepheap_sys::threads::atomic::{AtomicU64, Ordering::Relaxed};

/// How long accesses wait for somebody to make a checkpoint.
const PATIENCE: Duration = Duration::from_secs(10);
/// Accesses that wait look again all the time: after such a gap nobody was waiting any more.
const GAP: Duration = Duration::from_secs(1);

/// How long accesses have waited, all of them together.
#[derive(Default)]
pub(crate) struct FullWait {
    /// When the first of them began; 0: none waits.
    since_ns: AtomicU64,
    /// When the last of them looked.
    seen_ns: AtomicU64,
}

/// What an access that finds no room is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// It is the first one that waits.
    Begins,
    /// It waits on.
    GoesOn,
    /// It must end.
    Ends,
}

impl FullWait {
    /// An access finds no room at this time. The words are hints: of two accesses that begin at
    /// once both may be the first, and none waits for longer than it may.
    pub(crate) fn note(&self, now_ns: u64) -> Turn {
        let seen_ns = self.seen_ns.swap(now_ns, Relaxed);
        let since_ns = self.since_ns.load(Relaxed);
        if since_ns == 0 || now_ns.saturating_sub(seen_ns) > GAP.as_nanos() as u64 {
            self.since_ns.store(now_ns, Relaxed);
            return Turn::Begins;
        }
        let waited_ns = now_ns.saturating_sub(since_ns);
        if waited_ns > PATIENCE.as_nanos() as u64 { Turn::Ends } else { Turn::GoesOn }
    }

    /// A checkpoint is being made, or was: patience begins anew.
    pub(crate) fn begin_anew(&self) {
        self.since_ns.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn who_waits_for_a_checkpoint_waits_ten_seconds_and_ends() {
        let wait = FullWait::default();
        assert_eq!(wait.note(SECOND), Turn::Begins);
        for tenth in 1..=100 {
            assert_eq!(wait.note(SECOND + tenth * SECOND / 10), Turn::GoesOn);
        }
        assert_eq!(wait.note(11 * SECOND + 1), Turn::Ends);
    }

    #[test]
    fn a_checkpoint_and_a_pause_begin_the_patience_anew() {
        let wait = FullWait::default();
        assert_eq!(wait.note(SECOND), Turn::Begins);
        wait.begin_anew();
        assert_eq!(wait.note(SECOND + 1), Turn::Begins);
        assert_eq!(wait.note(3 * SECOND), Turn::Begins);
        assert_eq!(wait.note(3 * SECOND + 1), Turn::GoesOn);
    }
}
