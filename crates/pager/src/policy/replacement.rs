//! Replacement: which cached object leaves, and which stays.
//!
//! The page buffer tells nothing of accesses, so it is first in, first out. A cached object is
//! *touched* when a fault finds it: it goes back to the page buffer, takes its reuse count along,
//! one higher, and enters the cache anew when it leaves the page buffer the next time.
//!
//! - **S3-FIFO** (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023,
//!   section 4): first-comers wait in a small queue; what leaves it untouched is remembered by page
//!   (`ghost`), and goes to the main queue if it comes again, as does what was touched. In the main
//!   queue a count left buys one more round.
//! - **LRU**: one queue. What is touched leaves it and comes back to its tail.
//! - **Clock**: the two first-in-first-out lists of SSDRAM ("Micro-Page Management", section 3.3):
//!   what was accessed goes to the tail of the active list; the active list's heads that were not
//!   accessed again refill the inactive one, from which objects leave. The paper's accessed bit is
//!   a count of one here, and "not enough" is a share of all cached objects.
//!
//! Never: keeps state; the queues are the caller's.

/// How the object cache chooses what leaves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CachePolicy {
    /// Scan-resistant: a small queue before the main one, and a memory of what left it.
    #[default]
    S3Fifo,
    /// The least recently used one leaves.
    Lru,
    /// SSDRAM's two-FIFO clock.
    Clock,
}

/// The cache's queues. LRU uses the main one only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// S3-FIFO's small queue, the clock's inactive list.
    Small,
    /// S3-FIFO's main queue, the clock's active list.
    Main,
}

/// What happens to the object at the head of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It leaves the cache.
    Leaves {
        /// The ghost queue remembers it.
        remembered: bool,
    },
    /// It goes to the tail of this queue with this count.
    Goes(Queue, u8),
}

/// Highest reuse count kept.
pub const REUSE_MAX: u8 = 3;
/// In place of a count: the program said that one use is left. Before and after it, the object
/// counts as not used again, and is not remembered when it leaves.
pub const ONCE: u8 = REUSE_MAX + 1;
/// S3-FIFO's small queue, in 256ths of the cached objects.
const SMALL_PART: u32 = 3;
/// The clock's inactive list, likewise.
const INACTIVE_PART: u32 = 85;

/// The reuse count after a touch.
pub fn touched(reuse: u8) -> u8 {
    if reuse == ONCE { 0 } else { (reuse + 1).min(REUSE_MAX) }
}

/// Pages that the ghost is to remember when so many objects are cached.
pub fn ghost_length(cached: usize) -> usize {
    cached + cached / 2
}

/// A policy with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    policy: CachePolicy,
    /// Share of the small queue above which objects leave from there, in 256ths.
    small_part: u32,
}

impl Replacement {
    /// The policy as it was tuned (docs/decisions/0005-cache-replacement.md).
    pub fn new(policy: CachePolicy) -> Replacement {
        let small_part = match policy {
            CachePolicy::S3Fifo => SMALL_PART,
            CachePolicy::Lru => 0,
            CachePolicy::Clock => INACTIVE_PART,
        };
        Replacement { policy, small_part }
    }

    /// Whether it asks the ghost about an object that comes with this count.
    pub fn asks_ghost(&self, reuse: u8) -> bool {
        self.policy == CachePolicy::S3Fifo && reuse == 0
    }

    /// The queue that an object enters with its reuse count, and whether the ghost knew it.
    pub fn enters(&self, reuse: u8, known_to_ghost: bool) -> Queue {
        match self.policy {
            CachePolicy::Lru => Queue::Main,
            _ if reuse == ONCE => Queue::Small,
            _ if reuse > 0 || known_to_ghost => Queue::Main,
            _ => Queue::Small,
        }
    }

    /// The queue whose head is next to be judged, of the lengths; one of them is not empty.
    pub fn next(&self, small: u32, main: u32) -> Queue {
        let share = (u64::from(small) + u64::from(main)) * u64::from(self.small_part) / 256;
        if main == 0 || u64::from(small) > share { Queue::Small } else { Queue::Main }
    }

    /// The verdict on the head of a queue.
    pub fn at_head(&self, queue: Queue, reuse: u8) -> Verdict {
        match (self.policy, queue, reuse) {
            (CachePolicy::Lru, ..) | (_, _, ONCE) => Verdict::Leaves { remembered: false },
            (CachePolicy::S3Fifo, Queue::Small, 0) => Verdict::Leaves { remembered: true },
            (CachePolicy::S3Fifo, Queue::Small, n) => Verdict::Goes(Queue::Main, n),
            (CachePolicy::S3Fifo, Queue::Main, 0) => Verdict::Leaves { remembered: false },
            (CachePolicy::S3Fifo, Queue::Main, n) => Verdict::Goes(Queue::Main, n - 1),
            (CachePolicy::Clock, Queue::Small, 0) => Verdict::Leaves { remembered: false },
            (CachePolicy::Clock, Queue::Main, 0) => Verdict::Goes(Queue::Small, 0),
            (CachePolicy::Clock, ..) => Verdict::Goes(Queue::Main, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_once_leaves_first_after_that_use_and_is_not_remembered_before() {
        for policy in [CachePolicy::S3Fifo, CachePolicy::Clock] {
            let replacement = Replacement::new(policy);
            assert_eq!(replacement.enters(ONCE, false), Queue::Small);
            for queue in [Queue::Small, Queue::Main] {
                let verdict = replacement.at_head(queue, ONCE);
                assert_eq!(verdict, Verdict::Leaves { remembered: false });
            }
            let used = touched(ONCE);
            assert_eq!(replacement.enters(used, false), Queue::Small);
            assert_ne!(replacement.enters(touched(used), false), Queue::Small);
        }
    }
}

#[cfg(test)]
mod simulation;
