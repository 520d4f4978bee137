//! Gate: lets fork wait until no thread is moving an object.
//!
//! Two levels. Movers (faults, eviction, discard) pass the first, the collector the second. Fork
//! closes the first and waits for it to empty while the collector still runs, because a mover may
//! be waiting for space that only the collector can make; then it closes the second.
//!
//! Guarantees: after `close`, every descriptor is free, resident or cached, and every lock that is
//! taken inside the gate is free, until `open` (`tests/invariants` checks it).
//!
//! A lock that threads take outside the gate may be held at a fork by a thread that the child does
//! not have. This table lists all of them, and why the child can go on:
//!
//! | lock | why it is safe |
//! |---|---|
//! | an eviction context | `fork_child` frees it: outside the gate its value is whole |
//! | the list of plain spans, in `begin_take_over` | its caller has `growth`, as a fork has |
//! | heads, space and buffers of the store | `Store::freeze` takes them after the gate is closed |
//! | a place of the store's recent blocks | only tried: the child does without a locked one |
//! | a ring of the store's device | only tried, and a child does not use its parent's rings |
//! | the zapper's own descriptor | taken at construction, and by the child |
//! | the heap's, the pinned allocator's | a fork takes them: the heap's before the gate |
//! | the runtime's list of children | the child frees it, and empties the list |
//!
//! Buffers that were taken outside the gate (`staging`) are free again in the child. All other code
//! that looks at the pager outside the gate reads atomics.
//!
//! Never: allocates. The thread that closed the gate passes it freely.
//! Threads: any. Costs two atomic additions on a line shared by few threads.

use deepheap_sys::memory::padded::Padded;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::threads::futex;
use deepheap_sys::threads::tls;
use deepheap_sys::threads::waits::{Cause, Wait};

use crate::lanes::LeftInLanes;

/// Counters of the threads inside, each in cache lines of its own; a thread always uses the same
/// one.
const LANES: usize = 64;

/// Which threads pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Faults, eviction, discard.
    Mover = 0,
    /// The collector.
    Collector = 1,
}

/// In `Gate::closed`: it is open.
const OPEN: u32 = 0;

/// A two-level gate.
pub(crate) struct Gate {
    /// `OPEN`, or 1 and the number of the cause for which it is closed.
    closed: [AtomicU32; 2],
    /// Which thread closed it, or 0.
    owner: AtomicUsize,
    inside: [[Padded<AtomicU32>; LANES]; 2],
}

/// Proof of having passed the gate; dropping it leaves the gate.
pub(crate) struct Passage<'a> {
    gate: &'a Gate,
    level: Level,
    lane: usize,
}

/// What is noted while a fork is under way.
#[derive(Default)]
pub(crate) struct Forking {
    pub(crate) left_in_lanes: Option<LeftInLanes>,
    /// The object table needs another file.
    pub(crate) table_is_frozen: bool,
}

impl Gate {
    /// An open gate.
    pub(crate) const fn new() -> Gate {
        Gate {
            closed: [const { AtomicU32::new(0) }; 2],
            owner: AtomicUsize::new(0),
            inside: [const { [const { Padded(AtomicU32::new(0)) }; LANES] }; 2],
        }
    }

    /// Passes the gate, waiting while it is closed by another thread.
    pub(crate) fn enter(&self, level: Level) -> Passage<'_> {
        let lane = tls::lane_of::<LANES>();
        let counter = &*self.inside[level as usize][lane];
        let closed = &self.closed[level as usize];
        loop {
            // Dekker with `close`: we announce ourselves, then look; it closes, then looks.
            counter.fetch_add(1, Ordering::SeqCst);
            let seen = closed.load(Ordering::SeqCst);
            if seen == OPEN || self.owner.load(Ordering::Relaxed) == tls::thread_number() {
                return Passage { gate: self, level, lane };
            }
            self.leave(level, lane);
            let wait = Wait::begin();
            futex::wait(closed, seen, None);
            wait.end(Cause::of(seen - 1));
        }
    }

    /// Whether another thread has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed[Level::Mover as usize].load(Ordering::SeqCst) != OPEN
            && self.owner.load(Ordering::Relaxed) != tls::thread_number()
    }

    /// Closes both levels, one after the other, and waits until nobody is inside. In between, when
    /// no mover is, calls `between`. Threads that come meanwhile wait for this `cause`.
    pub(crate) fn close(&self, cause: Cause, between: impl FnOnce()) {
        self.owner.store(tls::thread_number(), Ordering::Relaxed);
        self.close_level(Level::Mover, cause);
        between();
        self.close_level(Level::Collector, cause);
    }

    fn close_level(&self, level: Level, cause: Cause) {
        self.closed[level as usize].store(1 + cause as u32, Ordering::SeqCst);
        for lane in &self.inside[level as usize] {
            loop {
                let inside = lane.load(Ordering::SeqCst);
                if inside == 0 {
                    break;
                }
                futex::wait(lane, inside, None);
            }
        }
    }

    /// Opens both levels.
    pub(crate) fn open(&self) {
        self.owner.store(0, Ordering::Relaxed);
        for closed in &self.closed {
            closed.store(OPEN, Ordering::SeqCst);
            futex::wake(closed, i32::MAX as u32);
        }
    }

    /// In a forked child: forgets the parent's threads that waited at the closed gate.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub(crate) unsafe fn forget_others(&self) {
        for lane in self.inside.iter().flatten() {
            lane.store(0, Ordering::Relaxed);
        }
    }

    fn leave(&self, level: Level, lane: usize) {
        let counter = &*self.inside[level as usize][lane];
        let before = counter.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.closed[level as usize].load(Ordering::SeqCst) != OPEN {
            futex::wake(counter, 1);
        }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.level, self.lane);
    }
}

#[cfg(test)]
mod tests {
    use deepheap_sys::threads::waits;

    use super::*;

    #[test]
    fn a_thread_at_a_closed_gate_knows_what_it_waits_for() {
        let gate = Gate::new();
        let has_waited = |cause| {
            gate.close(cause, || {});
            let is_near = AtomicU32::new(0);
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    waits::begin_to_look();
                    is_near.store(1, Ordering::SeqCst);
                    drop(gate.enter(Level::Mover));
                    waits::cause_since(0)
                });
                while is_near.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                std::thread::yield_now();
                gate.open();
                waiter.join().expect("no panic") == cause
            })
        };
        // It may come when the gate is open again.
        for cause in [Cause::Fork, Cause::Checkpoint] {
            assert!((0..10_000).any(|_| has_waited(cause)), "{cause:?}");
        }
    }

    #[test]
    fn nobody_is_inside_a_closed_gate() {
        let gate = Gate::new();
        let inside = AtomicU32::new(0);
        let stop = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while stop.load(Ordering::Relaxed) == 0 {
                        let _passage = gate.enter(Level::Mover);
                        inside.fetch_add(1, Ordering::SeqCst);
                        core::hint::spin_loop();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..2000 {
                gate.close(Cause::Fork, || {});
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                drop(gate.enter(Level::Mover)); // the owner passes
                gate.open();
            }
            stop.store(1, Ordering::Relaxed);
        });
    }
}
