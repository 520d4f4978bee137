//! Replacement: which cached object leaves, and which stays.
//!
//! Nobody sees the accesses to pages in the page buffer, so the oldest leaves first. A cached
//! object is *touched* when a fault finds it. It then goes back to the page buffer, its reuse count
//! is one higher, and it enters the cache with that count when it leaves the page buffer the next
//! time.
//!
//! An object that comes back soon is *hot*: it was out of reach while it was in use. As often as
//! its reuse count says it is passed over when it is the oldest in the page buffer.
//!
//! The policy is S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP
//! 2023, section 4). A new object enters a small queue. If it leaves that queue untouched, the
//! ghost remembers its page (`ghost`). An object that was touched, or that comes again while the
//! ghost knows it, enters the main queue. At the head of the main queue an object with a count
//! above 0 gets a second chance, for one of its count. The ghost remembers what leaves the main
//! queue, too, but such an object begins in the small queue again: only the balancer asks for it.
//!
//! Never: keeps state; the queues are the caller's.

/// The cache's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// New objects.
    Small,
    /// Objects that were touched, or came again.
    Main,
}

/// What happens to the object at the head of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtHead {
    /// It leaves the cache.
    Leaves {
        /// Whether the ghost remembers it, and the queue that it left.
        remembered: bool,
    },
    /// It goes to the tail of this queue with this count.
    Goes(Queue, u8),
}

/// Highest reuse count kept.
pub const REUSE_MAX: u8 = 3;
/// In place of a count: the program said that it will use the object once more. Before and after
/// that use the object counts as not used again. If it leaves the cache before, the ghost does not
/// remember it.
pub const ONCE: u8 = REUSE_MAX + 1;
/// The small queue, in 256ths of the cached objects.
const SMALL_PART: u32 = 3;

/// For each page that leaves the page buffer so many hot ones may be passed over.
pub const PASSED_MAX: usize = 4;

/// How hot an object comes back to the page buffer: its reuse count, if it came back `soon`, that
/// is if since it left no more pages left than the page buffer holds. As often it will be passed
/// over.
pub fn heat(reuse: u8, soon: bool) -> u8 {
    if soon { reuse } else { 0 }
}

/// The reuse count after a touch.
pub fn touched(reuse: u8) -> u8 {
    if reuse == ONCE { 0 } else { (reuse + 1).min(REUSE_MAX) }
}

/// How many pages the ghost should remember when `cached` objects are cached.
pub fn ghost_length(cached: usize) -> usize {
    cached + cached / 2
}

/// Whether the ghost is asked about an object that comes with this count.
pub fn asks_ghost(reuse: u8) -> bool {
    reuse == 0
}

/// The queue that an object enters, by its reuse count and the queue that it left, if the ghost
/// knew that.
pub fn enters(reuse: u8, left: Option<Queue>) -> Queue {
    match reuse {
        ONCE => Queue::Small,
        0 if left != Some(Queue::Small) => Queue::Small,
        _ => Queue::Main,
    }
}

/// The queue whose head is judged next, by the lengths of both; one of them is not empty.
pub fn next(small: u32, main: u32) -> Queue {
    next_above(SMALL_PART, small, main)
}

/// As `next`, for a small queue of `small_part` 256ths.
fn next_above(small_part: u32, small: u32, main: u32) -> Queue {
    let share = (u64::from(small) + u64::from(main)) * u64::from(small_part) / 256;
    if main == 0 || u64::from(small) > share { Queue::Small } else { Queue::Main }
}

/// What becomes of the head of a queue.
pub fn at_head(queue: Queue, reuse: u8) -> AtHead {
    match (queue, reuse) {
        (_, ONCE) => AtHead::Leaves { remembered: false },
        (_, 0) => AtHead::Leaves { remembered: true },
        (Queue::Small, n) => AtHead::Goes(Queue::Main, n),
        (Queue::Main, n) => AtHead::Goes(Queue::Main, n - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_once_leaves_first_after_that_use_and_is_not_remembered_before() {
        assert_eq!(enters(ONCE, None), Queue::Small);
        for queue in [Queue::Small, Queue::Main] {
            assert_eq!(at_head(queue, ONCE), AtHead::Leaves { remembered: false });
        }
        let used = touched(ONCE);
        assert_eq!(enters(used, None), Queue::Small);
        assert_ne!(enters(touched(used), None), Queue::Small);
    }
}

#[cfg(test)]
mod simulation;
