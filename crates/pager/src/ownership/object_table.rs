//! Object table: for every page of the region, where its object is now.
//!
//! One 32-bit entry a page serves as page table and as flash translation at once (FlashMap,
//! section 3): 2 bits of state and 30 bits of payload.
//!
//! Guarantees: a thread that moves an entry out of `Zero`, `Stored` or `Cached` by `replace` owns
//! the object until it publishes a new place; no other thread changes the entry meanwhile.
//! Never: allocates, blocks, does I/O.
//! Threads: any, any time, also in a signal handler.

use deepheap_heap::PageNo;
use deepheap_store::Block;
use deepheap_sys::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::pinned_array::PinnedArray;

use super::descriptor::DescriptorId;
use crate::PAGE;

const STATE_SHIFT: u32 = 30;
const PAYLOAD: u32 = (1 << STATE_SHIFT) - 1;

/// Where an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Never written, or all zero: its bytes are nowhere.
    Zero,
    /// In this block of the log, and nowhere in DRAM.
    Stored(Block),
    /// In the object cache; the descriptor names the slot.
    Cached(DescriptorId),
    /// Resident, or owned: the descriptor's state says which.
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

/// Entries in a page of the table.
const ENTRIES: usize = PAGE / ObjectTable::BYTES_PER_PAGE;

/// The entries of a whole region. Costs 4 bytes of DRAM a page once touched.
pub struct ObjectTable {
    entries: PinnedArray<AtomicU32>,
    /// A bit for each page of the table that is in use: in the others every entry is `Zero`.
    used: PinnedArray<AtomicU64>,
    used_pages: AtomicUsize,
}

impl ObjectTable {
    /// Bytes of DRAM that the table takes for a page of the region.
    pub const BYTES_PER_PAGE: usize = 4;

    /// A table for `pages` pages, all `Zero`.
    pub(super) fn new(pages: usize) -> Result<ObjectTable> {
        let words = pages.div_ceil(ENTRIES).div_ceil(64);
        Ok(ObjectTable {
            entries: PinnedArray::new(pages)?,
            used: PinnedArray::new(words)?,
            used_pages: AtomicUsize::new(0),
        })
    }

    /// Where the object of this page is at this instant.
    pub(super) fn load(&self, page: PageNo) -> Place {
        Place::decode(self.entries[page.0 as usize].load(Ordering::Acquire))
    }

    /// Bytes of DRAM that the table takes.
    pub(super) fn used_bytes(&self) -> usize {
        self.used_pages.load(Ordering::Relaxed) * PAGE
    }

    /// Counts the entry of this page as used. Before it leaves `Zero`.
    pub(super) fn expect(&self, page: PageNo) {
        let at = page.0 as usize / ENTRIES;
        let (word, bit) = (&self.used[at / 64], 1 << (at % 64));
        if word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.used_pages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The first page from `page` on, below `end`, that may be something else than `Zero`.
    pub(super) fn next_used(&self, page: usize, end: usize) -> Option<usize> {
        let mut at = page / ENTRIES;
        while at * ENTRIES < end {
            let word = self.used[at / 64].load(Ordering::Acquire) >> (at % 64);
            if word != 0 {
                let first = (at + word.trailing_zeros() as usize) * ENTRIES;
                return Some(first.max(page)).filter(|&first| first < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// The first page from `page` on, below `end`, whose object is not `Zero` at this instant.
    pub(super) fn next_object(&self, page: usize, end: usize) -> Option<usize> {
        let zero = Place::Zero.encode();
        let is_object = |page: &usize| self.entries[*page].load(Ordering::Acquire) != zero;
        let mut next = page;
        while let Some(first) = self.next_used(next, end) {
            next = (first / ENTRIES + 1) * ENTRIES;
            if let Some(found) = (first..next.min(end)).find(is_object) {
                return Some(found);
            }
        }
        None
    }

    /// Hands out the pages of the table that are in use. An object in RAM is in its backing block,
    /// if it has one, or else nowhere.
    pub(super) fn save(
        &self,
        page: &mut dyn FnMut(u32, &[u8]),
        backing: impl Fn(DescriptorId) -> Option<Block>,
    ) {
        let mut next = 0;
        while let Some(first) = self.next_used(next, self.entries.len()) {
            let mut places = [0; PAGE];
            for index in 0..ENTRIES.min(self.entries.len() - first) {
                let block = match self.load(PageNo((first + index) as u32)) {
                    Place::Zero => None,
                    Place::Stored(block) => Some(block),
                    Place::Cached(id) | Place::Busy(id) => backing(id),
                };
                let place = block.map_or(0, |block| block.0 + 1);
                places[index * Self::BYTES_PER_PAGE..][..Self::BYTES_PER_PAGE]
                    .copy_from_slice(&place.to_le_bytes());
            }
            page((first / ENTRIES) as u32, &places);
            next = first + ENTRIES;
        }
    }

    /// Fills a page of the table, which nobody uses yet.
    #[must_use]
    pub(super) fn fill(
        &self,
        page: u32,
        places: &[u8],
        blocks: u32,
        mut stored: impl FnMut(PageNo),
    ) -> bool {
        let first = page as usize * ENTRIES;
        let all = places.as_chunks::<{ Self::BYTES_PER_PAGE }>().0.iter().enumerate();
        for (index, place) in all {
            let Some(block) = u32::from_le_bytes(*place).checked_sub(1) else { continue };
            if first + index >= self.entries.len() || block >= blocks {
                return false;
            }
            let page = PageNo((first + index) as u32);
            self.expect(page);
            self.publish(page, Place::Stored(Block(block)));
            stored(page);
        }
        true
    }

    /// Replaces one place of the object by another, if the entry still has the first.
    #[must_use]
    pub(super) fn replace(&self, page: PageNo, from: Place, to: Place) -> bool {
        if from == Place::Zero {
            self.expect(page);
        }
        self.entries[page.0 as usize]
            .compare_exchange(from.encode(), to.encode(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Publishes the place of an object that the caller owns (its entry is `Busy`).
    pub(super) fn publish(&self, page: PageNo, to: Place) {
        self.entries[page.0 as usize].store(to.encode(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_were_touched_are_looked_at_and_paid_for() {
        let table = ObjectTable::new(1 << 28).expect("address space");
        assert_eq!((table.used_bytes(), table.next_used(0, 1 << 28)), (0, None));
        for page in [5, 6, 200_000, (1 << 28) - 1] {
            let to = Place::Stored(Block(page));
            assert!(table.replace(PageNo(page), Place::Zero, to));
        }
        assert_eq!(table.used_bytes(), 3 * PAGE);
        assert_eq!(table.next_used(0, 1 << 28), Some(0));
        assert_eq!(table.next_used(5, 1 << 28), Some(5));
        assert_eq!(table.next_used(1024, 200_000), Some(200_000 / ENTRIES * ENTRIES));
        assert_eq!(table.next_used(1024, 100_000), None);
        assert_eq!(table.next_used(1 << 20, 1 << 28), Some((1 << 28) - ENTRIES));
        let objects = |page, end| table.next_object(page, end);
        assert_eq!((objects(0, 1 << 28), objects(6, 1 << 28)), (Some(5), Some(6)));
        assert_eq!((objects(7, 1 << 28), objects(7, 200_000)), (Some(200_000), None));
        assert_eq!(objects(200_001, 1 << 28), Some((1 << 28) - 1));
    }

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
}
