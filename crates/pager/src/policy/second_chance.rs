//! Second chance: which cached object leaves, and which goes round once more.
//!
//! The page buffer tells nothing of accesses, so it is first in, first out. An object touched
//! again while it is cached counts that (up to 3) and takes the count along; each time it comes to
//! the head of the cache's queue with a count left, it pays one and goes to the tail (the main
//! queue of S3-FIFO; the page buffer is its small queue).

/// Highest count kept.
pub const REUSE_MAX: u8 = 3;

/// What happens to the object at the head of the cache's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It leaves the cache.
    Leaves,
    /// It goes to the tail with this count.
    Stays(u8),
}

/// The count after a touch while cached.
pub fn touched(reuse: u8) -> u8 {
    (reuse + 1).min(REUSE_MAX)
}

/// The verdict on the head of the queue.
pub fn at_head(reuse: u8) -> Verdict {
    match reuse {
        0 => Verdict::Leaves,
        n => Verdict::Stays(n - 1),
    }
}
