//! Ownership: a shard that this thread owns, with its lock.
//!
//! Guarantees: one thread of one process owns a shard (`member`).
//! Never: is held while memory of a map is touched.
//! Threads: any, also in a signal handler, with all signals blocked.

use core::ops::Deref;

use crate::region::Region;
use crate::tables::control::Shard;
use crate::tables::member::Held;

/// A shard that this thread owns; free again on drop.
pub(crate) struct Owned<'a> {
    pub(crate) region: &'a Region,
    pub(crate) shard: &'a Shard,
    pub(crate) index: u32,
    pub(crate) held: Held<'a>,
}

impl Deref for Owned<'_> {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        self.shard
    }
}
