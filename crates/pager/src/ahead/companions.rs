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
use deepheap_residency::Residency;
use deepheap_residency::ownership::{CameBy, Flag, Place};
use deepheap_store::packed::{self, Content};

use crate::ahead::neighbours::Neighbours;
use crate::budget::balancer::Balancer;
use crate::fault::flight::Reads;

/// Keeps the companions of objects that were read and that the caller still owns.
pub(crate) fn keep<const N: usize>(
    residency: &Residency,
    neighbours: &Neighbours,
    balancer: &Balancer,
    reads: &Reads<'_, N>,
) {
    for (block, bytes) in reads.good() {
        if residency.store.share_in(block).is_none() || !neighbours.are_wanted() {
            continue;
        }
        let mut kept = 0;
        for (name, page_bytes) in packed::objects(bytes, Content::Pages) {
            let page = PageNo(name);
            // One whose page of the table is not in RAM is not wanted soon.
            if residency.ownership.peek(page) != Some(Place::Stored(block)) {
                continue;
            }
            let Some(slot) = residency.cache.take_compressed(page_bytes) else { break };
            let claimed = residency.ownership.claim_stored(page, block);
            let Some(owned) = claimed else { continue };
            let descriptor = residency.ownership.of(&owned);
            descriptor.set(Flag::Compressed, true);
            descriptor.set_came_by(CameBy::Neighbour);
            balancer.leaves(descriptor);
            residency.to_cached(owned, slot);
            kept += 1;
        }
        neighbours.bring(kept);
    }
}
