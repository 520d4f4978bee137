//! Recover: the thread that takes over the shard of a dead owner makes it whole again.
//!
//! | journal | then |
//! |---|---|
//! | `IDLE` | entries without a page end: it came no further |
//! | `SPLICING` | the pipe is emptied; no page has left RAM |
//! | `TAKEN` | the eviction is brought to its end (`settle`) |
//!
//! Guarantees: may be begun again by the next one if this process dies as well.
//! Never: allocates | waits for another shard.
//! Threads: any, also in a signal handler, with all signals blocked.

use core::sync::atomic::Ordering::Relaxed;

use crate::region::Region;
use crate::tables::control::{ENTRIES, journal};
use crate::tables::member::Held;
use crate::tables::ownership::Owned;

impl Region {
    /// Waits for a shard; whole.
    pub(crate) fn own(&self, index: u32) -> Owned<'_> {
        self.owned(index, self.tables.hold(&self.tables.shard(index).lock))
    }

    /// A shard that nobody has now; whole.
    pub(crate) fn try_own(&self, index: u32) -> Option<Owned<'_>> {
        Some(self.owned(index, self.tables.try_hold(&self.tables.shard(index).lock)?))
    }

    fn owned<'a>(&'a self, index: u32, held: Held<'a>) -> Owned<'a> {
        let owned = Owned { region: self, shard: self.tables.shard(index), index, held };
        if owned.held.is_inherited {
            owned.repair();
        }
        owned
    }

    /// Ends the evictions of dead processes, whose pipes others wait for.
    pub(crate) fn reap_pipes(&self) {
        for user in &self.tables.header().pipe_users {
            let user = user.load(Relaxed);
            if user != 0 {
                drop(self.try_own((user - 1).min(self.tables.shards() - 1)));
            }
        }
    }
}

impl Owned<'_> {
    fn repair(&self) {
        let header = self.region.tables.header();
        header.counts.repairs.fetch_add(1, Relaxed);
        // The dead may have died between the two.
        self.recount();
        self.distrust_all();
        if self.journal.load(Relaxed) == journal::TAKEN {
            self.settle(true);
        }
        for (pipe, user) in header.pipe_users.iter().enumerate() {
            if user.load(Relaxed) == self.index + 1 {
                self.drop_pipe(pipe);
            }
        }
        for entry in 0..ENTRIES {
            if self.page(entry).is_some_and(|page| !self.region.is_in_memory(page)) {
                self.remove(entry);
            }
        }
        self.recount();
        self.region.recount();
    }
}
