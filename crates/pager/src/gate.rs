//! Gate: lets fork wait until nobody is in the middle of moving an object.
//!
//! Two levels. Movers (faults, eviction, discard) pass the first, the collector the second. Fork
//! closes the first and waits for it to empty while the collector still runs, because a mover may
//! be waiting for space that only the collector can make; then it closes the second.
//!
//! Guarantees: after `close`, every descriptor is free, resident or cached, and every lock that is
//! taken inside the gate is free, until `open`.
//! Never: allocates. The thread that closed the gate passes it freely.
//! Threads: any. Costs two atomic additions on a line shared by few threads.

use deepheap_sys::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::futex;
use deepheap_sys::tls;

const LANES: usize = 16;

#[repr(align(64))]
struct Lane(AtomicU32);

/// Who passes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Faults, eviction, discard.
    Mover = 0,
    /// The collector.
    Collector = 1,
}

/// A two-level gate.
pub struct Gate {
    closed: [AtomicU32; 2],
    /// Which thread closed it: the address of its thread area.
    owner: AtomicUsize,
    inside: [[Lane; LANES]; 2],
}

/// Proof of having passed; leaving happens when it is dropped.
pub struct Passage<'a> {
    gate: &'a Gate,
    level: Level,
    lane: usize,
}

impl Gate {
    /// An open gate.
    pub const fn new() -> Gate {
        Gate {
            closed: [const { AtomicU32::new(0) }; 2],
            owner: AtomicUsize::new(0),
            inside: [const { [const { Lane(AtomicU32::new(0)) }; LANES] }; 2],
        }
    }

    /// Passes the gate, waiting while it is closed by another thread.
    pub fn enter(&self, level: Level) -> Passage<'_> {
        let lane = tls::lane();
        let counter = &self.inside[level as usize][lane].0;
        let closed = &self.closed[level as usize];
        loop {
            // Dekker with `close`: we announce ourselves, then look; it closes, then looks.
            counter.fetch_add(1, Ordering::SeqCst);
            if closed.load(Ordering::SeqCst) == 0
                || self.owner.load(Ordering::Relaxed) == this_thread()
            {
                return Passage { gate: self, level, lane };
            }
            self.leave(level, lane);
            futex::wait(closed, 1, None);
        }
    }

    /// Closes both levels, one after the other, and waits until nobody is inside.
    pub fn close(&self) {
        self.owner.store(this_thread(), Ordering::Relaxed);
        for level in [Level::Mover, Level::Collector] {
            self.closed[level as usize].store(1, Ordering::SeqCst);
            for lane in &self.inside[level as usize] {
                loop {
                    let inside = lane.0.load(Ordering::SeqCst);
                    if inside == 0 {
                        break;
                    }
                    futex::wait(&lane.0, inside, None);
                }
            }
        }
    }

    /// Opens both levels.
    pub fn open(&self) {
        self.owner.store(0, Ordering::Relaxed);
        for closed in &self.closed {
            closed.store(0, Ordering::SeqCst);
            futex::wake(closed, i32::MAX as u32);
        }
    }

    /// In a forked child: threads that looked at the closed gate at that moment are not here.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub unsafe fn forget_others(&self) {
        for lane in self.inside.iter().flatten() {
            lane.0.store(0, Ordering::Relaxed);
        }
    }

    fn leave(&self, level: Level, lane: usize) {
        let counter = &self.inside[level as usize][lane].0;
        let before = counter.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.closed[level as usize].load(Ordering::SeqCst) != 0 {
            futex::wake(counter, 1);
        }
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.level, self.lane);
    }
}

fn this_thread() -> usize {
    tls::area() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

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
                gate.close();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                drop(gate.enter(Level::Mover)); // the owner passes
                gate.open();
            }
            stop.store(1, Ordering::Relaxed);
        });
    }
}
