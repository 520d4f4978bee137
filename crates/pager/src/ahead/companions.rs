//! Companions: the other pages of a block that was read come to the object cache, as they are:
//! compressed. They left RAM together, and cost no further read.
//!
//! They come where neighbours pay (`neighbours`), and only into slots that are free.
//!
//! Guarantees: a page comes from the block that it is stored in: the caller owns an object of that
//! block, so the block is not filled anew meanwhile.
//! Never: allocates, waits, reclaims.
//! Threads: faulting ones in their signal handler, and the fetchers, inside the gate.

use deepheap_heap::PageNo;
use deepheap_residency::ownership::{CameBy, Flag, Place};
use deepheap_store::packed::{self, Content};

use crate::fault::flight::Reads;
use crate::pager::Pager;

impl Pager {
    /// Keeps the companions of objects that were read and that the caller still owns.
    pub(crate) fn keep_companions<const N: usize>(&self, reads: &Reads<'_, N>) {
        for (block, bytes) in reads.good() {
            if self.residency.store.share_in(block).is_none() || !self.neighbours.are_wanted() {
                continue;
            }
            let mut kept = 0;
            for (name, page_bytes) in packed::objects(bytes, Content::Pages) {
                let page = PageNo(name);
                // One whose page of the table is not in RAM is not wanted soon.
                if self.residency.ownership.peek(page) != Some(Place::Stored(block)) {
                    continue;
                }
                let Some(slot) = self.residency.cache.take_compressed(page_bytes) else { break };
                let claimed = self.residency.ownership.claim_stored(page, block);
                let Some(owned) = claimed else { continue };
                let descriptor = self.residency.ownership.of(&owned);
                descriptor.set(Flag::Compressed, true);
                descriptor.set_came_by(CameBy::Neighbour);
                self.balancer.leaves(descriptor);
                self.residency.to_cached(owned, slot);
                kept += 1;
            }
            self.neighbours.bring(kept);
        }
    }
}
