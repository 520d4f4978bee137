//! Replacement: which page leaves the page buffer, and which object the cache.
//!
//! Accesses to pages in the page buffer cannot be seen. But a page that comes back soon after it
//! has left was in use. So the page buffer has two lists, each first in, first
//! out. A page comes in *on probation*. If it comes back from the cache soon it is *protected* from
//! then on. While more than a sixteenth of the page buffer is on probation, only pages on probation
//! leave. So what is used now and then passes through, and does not drive out what is used all the
//! time, which would have to come back by a fault, and would drive out the next one. (The two lists
//! are those of 2Q and of segmented LRU; the cache behind them serves as what 2Q calls `A1out`.)
//!
//! A cached object is *touched* when a fault finds it. It then goes back to the page buffer, its
//! reuse count is one higher, and it enters the cache with that count when it leaves the page
//! buffer the next time.
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

/// The fate of the object at the head of a queue.
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
pub const SMALL_PART: u32 = 3;

/// The dense objects, in 256ths of the cached ones, from which on they leave. The others are
/// touched more, and cost less to bring back.
const DENSE_PART: u64 = 224;
/// As `DENSE_PART`, while it does not pay to make objects dense: some are, to see whether it would.
const DENSE_SAMPLE_PART: u64 = 16;
/// One slab in so many is made dense then. With the part above, what is in it stays about as long
/// as if all were.
pub const DENSE_SAMPLE: u32 = 1024;

/// The page buffer's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    /// Pages that were not seen in use.
    Probation,
    /// Pages that came back soon.
    Protected,
}

/// The part of the page buffer that is on probation, ...
const PROBATION_PART: usize = 16;
/// ... and its least, in pages, in a page buffer of twice as many: what scans bring along, and what
/// an instruction needs, must stay until it is used.
const PROBATION_MIN: usize = 256;

/// The list of the page buffer that a touched object comes to, by its reuse count after the touch.
/// `soon`: since it left, no more pages left than the page buffer holds.
pub fn rank(reuse: u8, soon: bool) -> Rank {
    if soon && reuse > 0 { Rank::Protected } else { Rank::Probation }
}

/// How many of `count` pages that are to leave the page buffer are on probation, and how many are
/// protected, by how many there are.
pub fn to_evict(count: usize, probation: usize, protected: usize) -> (usize, usize) {
    let all = probation + protected;
    let stays = (all / PROBATION_PART).max(PROBATION_MIN.min(all / 2));
    let too_many = probation.saturating_sub(stays);
    let of_protected = count.saturating_sub(too_many).min(protected);
    (count - of_protected, of_protected)
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
pub fn next_above(small_part: u32, small: u32, main: u32) -> Queue {
    let share = (u64::from(small) + u64::from(main)) * u64::from(small_part) / 256;
    if main == 0 || u64::from(small) > share { Queue::Small } else { Queue::Main }
}

/// Whether the next object to leave the cache is a dense one, by how many are in the queues and how
/// many are dense; and whether that pays. Else the head of a queue is to become dense, which frees
/// room as well, or to leave.
pub fn dense_leaves(queued: u32, dense: u32, pays: bool) -> bool {
    let part = if pays { DENSE_PART } else { DENSE_SAMPLE_PART };
    queued == 0 || u64::from(dense) > (u64::from(queued) + u64::from(dense)) * part / 256
}

/// Decides about the head of a queue.
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
    fn protected_pages_leave_only_when_few_are_on_probation() {
        assert_eq!(to_evict(64, 16_000, 0), (64, 0));
        assert_eq!(to_evict(64, 1064, 14_936), (64, 0));
        assert_eq!(to_evict(64, 1000, 15_000), (0, 64));
        assert_eq!(to_evict(64, 1020, 14_980), (20, 44), "part of a batch");
        assert_eq!(to_evict(64, 256, 256), (0, 64), "small page buffers keep as many of both");
        assert_eq!(to_evict(64, 300, 100), (64, 0));
        assert_eq!(to_evict(64, 40, 10), (54, 10), "there are no more");
        assert_eq!(rank(touched(ONCE), true), Rank::Probation, "its last use was that");
    }

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
