//! Object table: for every page of the region, where its object is now.
//!
//! One 32-bit entry a page serves as page table and as flash translation at once (FlashMap,
//! section 3): 2 bits of state and 30 bits of payload. 1024 entries are a page of the table. Pages
//! come to RAM when one of their entries is first wanted, and can leave it (FlashMap, 3.5).
//!
//! An entry of 0 says that its page is not here: a look at it costs no more than a look at any
//! other. A thread that meets a 0 brings the page, under the page's lock (`table/directory`).
//!
//! `table/eviction` says why no change of an entry is lost when its page leaves.
//!
//! Guarantees: a thread that moves an entry out of `Zero`, `Stored` or `Cached` by `replace` owns
//! the object until it publishes a new place; no other thread changes the entry meanwhile.
//! Never: allocates. A look at a page that is not here waits for the device, and for no object.
//! Threads: any, inside the gate, also in a signal handler; `peek` outside of it, too.

mod directory;
mod eviction;
mod homes;
mod saving;

use deepheap_heap::PageNo;
use deepheap_store::device::table_file::TOGETHER_MAX;
use deepheap_store::{Block, SavedTable, TableFile};
use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::waits::{Cause, Wait};

use super::descriptor::DescriptorId;
use crate::PAGE;
use directory::{Directory, Home, Locked};
use homes::Homes;

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
    /// Nobody knows: the page of the table could not be read again. It stays so.
    Lost,
}

/// The page of the entry is not here.
const ABSENT: u32 = 0;
const ZERO: u32 = 1;
const LOST: u32 = 2;

impl Place {
    fn encode(self) -> u32 {
        match self {
            Place::Zero => ZERO,
            Place::Lost => LOST,
            Place::Stored(block) => (1 << STATE_SHIFT) | block.0,
            Place::Cached(id) => (2 << STATE_SHIFT) | id.0,
            Place::Busy(id) => (3 << STATE_SHIFT) | id.0,
        }
    }

    /// Of an entry that is not `ABSENT`.
    fn decode(entry: u32) -> Place {
        let payload = entry & PAYLOAD;
        match entry >> STATE_SHIFT {
            0 if payload == ZERO => Place::Zero,
            0 => Place::Lost,
            1 => Place::Stored(Block(payload)),
            2 => Place::Cached(DescriptorId(payload)),
            _ => Place::Busy(DescriptorId(payload)),
        }
    }

    /// As it is kept outside of RAM: 0 for zeros, else 1 more than the number of the block. None of
    /// an object in RAM.
    fn to_bytes(self) -> Option<[u8; BYTES]> {
        match self {
            Place::Zero => Some([0; BYTES]),
            Place::Stored(block) => Some((block.0 + 1).to_le_bytes()),
            Place::Cached(_) | Place::Busy(_) | Place::Lost => None,
        }
    }

    fn of_bytes(bytes: [u8; BYTES]) -> Place {
        match u32::from_le_bytes(bytes).checked_sub(1) {
            Some(block) => Place::Stored(Block(block)),
            None => Place::Zero,
        }
    }
}

const BYTES: usize = ObjectTable::BYTES_PER_PAGE;
/// Entries in a page of the table.
#[cfg(not(feature = "schedules"))]
const ENTRIES: usize = PAGE / BYTES;
/// So few that schedules find pages without an object in RAM. Their RAM is not dropped.
#[cfg(feature = "schedules")]
const ENTRIES: usize = 4;
/// Pages that are noted as cold, at most: two batches of reclaim.
#[cfg(not(feature = "schedules"))]
const COLD_MAX: usize = 256;
#[cfg(feature = "schedules")]
const COLD_MAX: usize = 4;
const NO_PAGE: u32 = u32::MAX;

/// The entries of a whole region. Costs 4 bytes of DRAM a page while that is wanted.
pub struct ObjectTable {
    entries: PinnedArray<AtomicU32>,
    directory: Directory,
    homes: Homes,
    /// Blocks that the store has.
    blocks: AtomicU32,
    /// Pages that may be in RAM.
    limit: AtomicUsize,
    /// Stored memory pages in pages of the table that came to RAM for the first time since the heap
    /// was opened, and that nobody took note of.
    uncounted: AtomicUsize,
    evicting: Lock<Evicting>,
    /// Pages of which an object left RAM lately: they may be able to leave.
    cold: [AtomicU32; COLD_MAX],
    next_cold: AtomicUsize,
    /// Bytes that its copies take, once a page has left.
    evicting_bytes: usize,
    /// Bytes that the entries of the saved table take.
    saved_bytes: AtomicUsize,
    /// Counts since the process began: see `TableTraffic`.
    read: AtomicU64,
    evicted: AtomicU64,
    written: AtomicU64,
}

/// The traffic of the table, in pages of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableTraffic {
    /// Read again.
    pub read: u64,
    /// Taken out of RAM.
    pub evicted: u64,
    /// Written, for they had changed.
    pub written: u64,
}

/// The clock's hand, and copies of the pages that leave.
struct Evicting {
    hand: usize,
    copies: PinnedArray<u8>,
}

impl ObjectTable {
    /// Bytes of DRAM that the table takes for a page of the region.
    pub const BYTES_PER_PAGE: usize = 4;

    /// A table for `pages` pages, all `Zero`.
    pub(super) fn new(pages: usize) -> Result<ObjectTable> {
        let copies: PinnedArray<u8> = PinnedArray::new(TOGETHER_MAX * PAGE)?;
        Ok(ObjectTable {
            entries: PinnedArray::new(pages.next_multiple_of(ENTRIES))?,
            directory: Directory::new(pages.div_ceil(ENTRIES))?,
            homes: Homes::new()?,
            blocks: AtomicU32::new(u32::MAX),
            limit: AtomicUsize::new(usize::MAX),
            uncounted: AtomicUsize::new(0),
            saved_bytes: AtomicUsize::new(0),
            cold: [const { AtomicU32::new(NO_PAGE) }; COLD_MAX],
            next_cold: AtomicUsize::new(0),
            evicting_bytes: copies.mapped_bytes(),
            evicting: Lock::new(Evicting { hand: 0, copies }),
            read: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    /// Where the object of this page is at this instant.
    pub(super) fn load(&self, page: PageNo) -> Place {
        match self.entries[page.0 as usize].load(Ordering::Acquire) {
            ABSENT => self.load_absent(page),
            entry => Place::decode(entry),
        }
    }

    #[cold]
    #[inline(never)]
    fn load_absent(&self, page: PageNo) -> Place {
        let wait = Wait::begin();
        let entry = loop {
            self.bring(page.0 as usize / ENTRIES);
            let entry = self.entries[page.0 as usize].load(Ordering::Acquire);
            if entry != ABSENT {
                break entry;
            }
        };
        wait.end(Cause::Table);
        Place::decode(entry)
    }

    /// As `load`, but only what is known at once; no object in RAM is in a page that is not here.
    pub(super) fn peek(&self, page: PageNo) -> Option<Place> {
        match self.entries[page.0 as usize].load(Ordering::Acquire) {
            ABSENT => None,
            entry => Some(Place::decode(entry)),
        }
    }

    /// Bytes of DRAM that the table takes.
    pub fn used_bytes(&self) -> usize {
        let evicts = self.evicted.load(Ordering::Relaxed) > 0;
        let copies = if evicts { self.evicting_bytes } else { 0 };
        self.directory.pages_here() * PAGE
            + self.directory.bytes()
            + copies
            + self.homes.buffer_bytes()
            + self.saved_bytes.load(Ordering::Relaxed)
    }

    /// Whether the object may be stored, by what is known at once.
    pub fn may_be_stored(&self, page: PageNo) -> bool {
        match self.peek(page) {
            Some(place) => matches!(place, Place::Stored(_)),
            None => !self.directory.is_zero(page.0 as usize / ENTRIES),
        }
    }

    /// The first page from `page` on, below `end`, whose object is not `Zero` at this instant.
    /// Pages of the table that are all `Zero` are not brought for it.
    pub fn next_object(&self, page: usize, end: usize) -> Option<usize> {
        self.next_by(page, end, |page| self.load(page) != Place::Zero)
    }

    /// As `next_object`, but waits for nothing: an object whose page of the table is not in RAM
    /// counts as one.
    pub fn next_known(&self, page: usize, end: usize) -> Option<usize> {
        self.next_by(page, end, |page| self.peek(page) != Some(Place::Zero))
    }

    fn next_by(
        &self,
        page: usize,
        end: usize,
        is_object: impl Fn(PageNo) -> bool,
    ) -> Option<usize> {
        let mut next = page;
        while next < end {
            let at = self.directory.next_used(next / ENTRIES, end.div_ceil(ENTRIES))?;
            let first = next.max(at * ENTRIES);
            next = (at + 1) * ENTRIES;
            if self.directory.is_zero(at) {
                continue;
            }
            let found = (first..next.min(end)).find(|&page| is_object(PageNo(page as u32)));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Replaces one place of the object by another, if the entry still has the first.
    #[must_use]
    pub(super) fn replace(&self, page: PageNo, from: Place, to: Place) -> bool {
        let entry = &self.entries[page.0 as usize];
        loop {
            let (from, to) = (from.encode(), to.encode());
            match entry.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(ABSENT) => self.bring(page.0 as usize / ENTRIES),
                Err(_) => return false,
            }
        }
    }

    /// Publishes the place of an object that the caller owns (its entry is `Busy`).
    pub(super) fn publish(&self, page: PageNo, to: Place) {
        self.entries[page.0 as usize].store(to.encode(), Ordering::Release);
    }

    // Coming.

    /// Brings a page of the table to RAM, unless another thread did.
    #[cold]
    #[inline(never)]
    fn bring(&self, at: usize) {
        let mut locked = self.directory.lock(at);
        if locked.is_here() {
            return;
        }
        locked.set_used();
        match locked.home() {
            Home::NOWHERE => self.fill(at, |_| ZERO),
            _ => self.read(&mut locked, at),
        }
        locked.set_here();
    }

    fn read(&self, locked: &mut Locked<'_>, at: usize) {
        let mut buffer = self.homes.buffer();
        let bytes = buffer.page();
        let blocks = self.blocks.load(Ordering::Relaxed);
        let found = self.homes.read(locked.home(), at, locked.checksum(), bytes);
        let places = bytes.as_chunks::<BYTES>().0;
        let can_be = |place: &[u8; BYTES]| u32::from_le_bytes(*place) <= blocks;
        if found.is_err() || !places.iter().all(can_be) {
            return self.fill(at, |_| LOST);
        }
        self.read.fetch_add(1, Ordering::Relaxed);
        if locked.take_uncounted() {
            let stored = places.iter().filter(|place| **place != [0; BYTES]).count();
            self.uncounted.fetch_add(stored, Ordering::Relaxed);
        }
        if locked.home() == Homes::SAVED
            && let Some(checksum) = self.homes.checksum(at, bytes)
        {
            locked.set_home(Homes::SAVED, checksum);
        }
        self.fill(at, |index| Place::of_bytes(bytes.as_chunks::<BYTES>().0[index]).encode());
    }

    /// Stores the entries of a page that is not here. Its lock is held.
    fn fill(&self, at: usize, entry: impl Fn(usize) -> u32) {
        for (index, to) in self.page(at).iter().enumerate() {
            to.store(entry(index), Ordering::Release);
        }
    }

    fn page(&self, at: usize) -> &[AtomicU32] {
        &self.entries[at * ENTRIES..][..ENTRIES]
    }

    // Leaving: `table/eviction`.

    /// How many pages may be in RAM.
    pub fn set_limit(&self, pages: usize) {
        self.limit.store(pages, Ordering::Relaxed);
    }

    /// How many pages more are in RAM than may be.
    pub fn excess(&self) -> usize {
        self.directory.pages_here().saturating_sub(self.limit.load(Ordering::Relaxed))
    }

    /// An object has left RAM: perhaps its page of the table can, too. Where there are too many
    /// pages and few objects on each, a hand that goes over all of them would look for long.
    pub(super) fn note_cold(&self, page: PageNo) {
        if self.excess() > 0 {
            let at = self.next_cold.fetch_add(1, Ordering::Relaxed) % COLD_MAX;
            self.cold[at].store(page.0 / ENTRIES as u32, Ordering::Relaxed);
        }
    }

    /// The page that was noted last and not taken.
    fn take_cold(&self) -> Option<usize> {
        let last = self.next_cold.load(Ordering::Relaxed);
        let page = (1..=COLD_MAX).find_map(|back| {
            let page = &self.cold[last.wrapping_sub(back) % COLD_MAX];
            let is_noted = page.load(Ordering::Relaxed) != NO_PAGE;
            is_noted.then(|| page.swap(NO_PAGE, Ordering::Relaxed))
        });
        page.filter(|&page| page != NO_PAGE).map(|page| page as usize)
    }

    /// Whether pages that have changed can leave.
    pub fn can_leave(&self) -> bool {
        self.homes.has_file()
    }

    /// The traffic of the table.
    pub fn traffic(&self) -> TableTraffic {
        let [read, evicted, written] =
            [&self.read, &self.evicted, &self.written].map(|count| count.load(Ordering::Relaxed));
        TableTraffic { read, evicted, written }
    }

    // Forks. While the gate is closed.

    /// Pages that changed are written to this file from now on.
    pub fn add_file(&self, file: TableFile) {
        self.homes.add_file(file);
    }

    /// Before a fork: whether parent and child need files of their own from now on. The parent
    /// needs none if nothing was written to the one that it has.
    pub fn freeze(&self) -> bool {
        let needs = self.homes.has_file() && self.homes.is_written();
        if needs {
            self.give_up_file();
        }
        needs
    }

    /// Nothing more is written to the file that was.
    pub fn give_up_file(&self) {
        self.homes.freeze(|home| {
            let (mut at, end) = (0, self.directory.pages());
            while let Some(page) = self.directory.next_used(at, end) {
                // A child may inherit no lock: the gate is closed.
                if self.directory.lock(page).home() == home {
                    return true;
                }
                at = page + 1;
            }
            false
        });
    }

    // Loading. Saving: `table/saving`.

    /// The pages of the table are those of a checkpoint, to be read when they are wanted; which
    /// blocks the store has. Nobody has looked at any of them. `is_counted` says of which pages the
    /// stored objects are counted when they are found.
    pub fn set_saved(
        &self,
        saved: SavedTable,
        blocks: u32,
        is_counted: impl Fn(PageNo) -> bool,
    ) -> bool {
        self.blocks.store(blocks, Ordering::Relaxed);
        let end = self.entries.len() / ENTRIES;
        for page in saved.pages() {
            if page as usize >= end {
                return false;
            }
            let mut locked = self.directory.lock(page as usize);
            if !locked.set_used() {
                return false;
            }
            locked.set_home(Homes::SAVED, 0);
            if is_counted(PageNo(page * ENTRIES as u32)) {
                locked.set_uncounted();
            }
        }
        self.saved_bytes.store(saved.memory_bytes() as usize, Ordering::Relaxed);
        self.homes.set_saved(saved);
        true
    }

    /// Stored memory pages that were found since this was last asked.
    pub(crate) fn take_uncounted(&self) -> usize {
        match self.uncounted.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.uncounted.swap(0, Ordering::Relaxed),
        }
    }

    /// Fills a page of the table of a heap that nobody uses yet: `places` as `save` has handed them
    /// out. False if a place is no block below `blocks`, or the table has no such page. `stored` is
    /// called with each page whose object is stored.
    #[must_use]
    pub fn load_page(
        &self,
        page: u32,
        places: &[u8],
        blocks: u32,
        mut stored: impl FnMut(PageNo),
    ) -> bool {
        let first = page as usize * ENTRIES;
        let all = places.as_chunks::<BYTES>().0.iter().enumerate();
        for (index, place) in all {
            let Some(block) = u32::from_le_bytes(*place).checked_sub(1) else { continue };
            if first + index >= self.entries.len() || block >= blocks {
                return false;
            }
            let page = PageNo((first + index) as u32);
            if !self.replace(page, Place::Zero, Place::Stored(Block(block))) {
                return false;
            }
            stored(page);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_were_touched_are_looked_at_and_paid_for() {
        let table = ObjectTable::new(1 << 28).expect("address space");
        assert_eq!((table.used_bytes(), table.next_object(0, 1 << 28)), (0, None));
        for page in [5, 6, 200_000, (1 << 28) - 1] {
            let to = Place::Stored(Block(page));
            assert!(table.replace(PageNo(page), Place::Zero, to));
        }
        assert_eq!(table.used_bytes(), 3 * (PAGE + 12));
        for objects in [ObjectTable::next_object, ObjectTable::next_known] {
            let objects = |page, end| objects(&table, page, end);
            assert_eq!((objects(0, 1 << 28), objects(6, 1 << 28)), (Some(5), Some(6)));
            assert_eq!((objects(7, 1 << 28), objects(7, 200_000)), (Some(200_000), None));
            assert_eq!(objects(200_001, 1 << 28), Some((1 << 28) - 1));
        }
        assert_eq!(table.used_bytes(), 3 * (PAGE + 12), "a look at the others brings none");
        assert!(table.may_be_stored(PageNo(5)) && !table.may_be_stored(PageNo(7)));
        assert!(!table.may_be_stored(PageNo(100_000)));
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
