//! Moves: what eviction and reclaim did, counted in objects.

/// The work of eviction and reclaim, in objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moves {
    /// Left the page buffer unchanged since it was installed.
    pub clean: u32,
    /// Left it changed.
    pub dirty: u32,
    /// Left it as a page of zeros.
    pub zero: u32,
    /// Left it because no live allocation touches it, or because the program took the page away.
    pub free: u32,
    /// Left the cache for its backing block.
    pub reclaimed_clean: u32,
    /// Left the cache for a new block.
    pub reclaimed_dirty: u32,
    /// Came to the head of a queue of the cache, had been touched again, and got a second chance.
    pub second_chances: u32,
    /// How many more objects of the cache may be made dense: what bounds the time of an eviction.
    pub may_press: u32,
    /// Batches that a faulting thread evicted by itself.
    pub direct: u32,
    /// Nanoseconds that a faulting thread waited, or worked, for room in the page buffer.
    pub stall_ns: u64,
}

impl Moves {
    /// Objects that left the cache for the store.
    pub(crate) fn reclaimed(&self) -> u32 {
        self.reclaimed_clean + self.reclaimed_dirty
    }

    /// Objects that left the page buffer.
    pub fn evicted(&self) -> u32 {
        self.clean + self.dirty + self.zero + self.free
    }
}
