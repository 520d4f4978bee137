//! Object table: for every page of the region, where its object is now.
//!
//! One 32-bit entry a page serves as page table and as flash translation at once (FlashMap,
//! section 3): 2 bits of state and 30 bits of payload.
//!
//! ```text
//!            fault [fault.rs, fetch.rs]                    evict [evict.rs]
//!   Zero   ─────────────► Busy(Arriving) ─► Busy(Resident) ─► Busy(Leaving) ─► Zero | Cached
//!   Cached ─► Busy(Moving) ──►      "            │ discard [discard.rs] ─► Zero
//!   Stored ─────────────►      "                 │ collect [collect.rs]: home dropped
//!   Cached ─► Busy(Moving) ─► Stored | Zero | Cached   reclaim [reclaim.rs], collect, discard
//!   Stored ─► Stored                                   collect: the block moved
//! ```
//!
//! Guarantees: whoever moves an entry out of `Zero`, `Stored` or `Cached` by `replace` owns the
//! object until it publishes a new place; nobody else changes it meanwhile.
//! Never: allocates, blocks, does I/O.
//! Threads: any, any time, also in a signal handler.

use deepheap_heap::PageNo;
use deepheap_store::Block;
use deepheap_sys::atomic::{AtomicU32, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::mapping::PinnedArray;

use crate::descriptor::DescriptorId;

const STATE_SHIFT: u32 = 30;
const PAYLOAD: u32 = (1 << STATE_SHIFT) - 1;

/// Where an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Never written, or all zero: nowhere.
    Zero,
    /// In this block of the log, and nowhere in DRAM.
    Stored(Block),
    /// In the object cache; the descriptor names the slot.
    Cached(DescriptorId),
    /// Resident, arriving or leaving: the descriptor's state says which.
    Busy(DescriptorId),
}

impl Place {
    fn encode(self) -> u32 {
        match self {
            Place::Zero => 0,
            Place::Stored(block) => (1 << STATE_SHIFT) | block.0,
            Place::Cached(id) => (2 << STATE_SHIFT) | id.0,
            Place::Busy(id) => (3 << STATE_SHIFT) | id.0,
        }
    }

    fn decode(entry: u32) -> Place {
        let payload = entry & PAYLOAD;
        match entry >> STATE_SHIFT {
            0 => Place::Zero,
            1 => Place::Stored(Block(payload)),
            2 => Place::Cached(DescriptorId(payload)),
            _ => Place::Busy(DescriptorId(payload)),
        }
    }
}

/// The entries of a whole region. Costs 4 bytes of DRAM a page once touched.
pub struct ObjectTable {
    entries: PinnedArray<AtomicU32>,
}

impl ObjectTable {
    /// Bytes of DRAM a page of the region costs here.
    pub const BYTES_PER_PAGE: usize = 4;

    /// A table for `pages` pages, all `Zero`.
    pub fn new(pages: usize) -> Result<ObjectTable> {
        Ok(ObjectTable { entries: PinnedArray::new(pages)? })
    }

    /// Where the object of this page is at this instant.
    pub fn load(&self, page: PageNo) -> Place {
        Place::decode(self.entries[page.0 as usize].load(Ordering::Acquire))
    }

    /// Moves the object from one place to another, if it is still in the first.
    #[must_use]
    pub fn replace(&self, page: PageNo, from: Place, to: Place) -> bool {
        self.entries[page.0 as usize]
            .compare_exchange(from.encode(), to.encode(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Publishes the place of an object that the caller owns (its entry is `Busy`).
    pub fn publish(&self, page: PageNo, to: Place) {
        self.entries[page.0 as usize].store(to.encode(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_survives_its_encoding() {
        for payload in [0, 1, 77, PAYLOAD] {
            for place in [
                Place::Zero,
                Place::Stored(Block(payload)),
                Place::Cached(DescriptorId(payload)),
                Place::Busy(DescriptorId(payload)),
            ] {
                assert_eq!(Place::decode(place.encode()), place);
            }
        }
    }

    #[test]
    fn only_one_of_many_threads_claims_an_object() {
        let table = ObjectTable::new(64).expect("table");
        let wins = core::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8u32 {
                let (table, wins) = (&table, &wins);
                scope.spawn(move || {
                    for page in 0..64 {
                        let to = Place::Busy(DescriptorId(thread));
                        if table.replace(PageNo(page), Place::Zero, to) {
                            wins.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(wins.load(Ordering::Relaxed), 64);
    }
}
