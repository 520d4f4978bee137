//! Edges: the places of a heap's objects, and one function for each edge between them.
//!
//! | to | function | consumes | frees |
//! |---|---|---|---|
//! | `Zero` | `to_zero`, `cached_to_zero`, `stored_to_zero` | `Owned` | promise, block, slot |
//! | `Resident` | `to_resident`, `cached_to_resident` | `Owned`, one `Reserved` page | slot |
//! | `Cached` | `to_cached`; `change_slot` within the cache | `Owned`, `Slot` | the slot before |
//! | `Stored` | `cached_to_stored`, `Ownership::stored` | `Owned` | slot |
//!
//! An object that goes back where it was claimed goes by a publisher of `Ownership`, which frees
//! nothing. A page of the page buffer that leaves is counted by the engine: a batch at a time.
//!
//! Guarantees: what an edge frees is free only after nobody can find the object there any more.
//! Never: allocates, waits, decides.
//! Threads: any, inside the gate, also in a signal handler.

use deepheap_heap::{Heap, PageNo};
use deepheap_policy::replacement::Rank;
use deepheap_store::{Block, PACKED_MAX, Store, cost};

use crate::codec::dense::DenseDecompressors;
use crate::counters::{Counted, Counters};
use crate::frames::Frames;
use crate::object_cache::{ObjectCache, Slot};
use crate::ownership::{Flag, Owned, Ownership};
use crate::page_buffer::Reserved;
use crate::promises::{NoPromise, Promises};
use crate::staging::StagingPools;
use crate::trace::{Happened, Trace};

/// The places of a heap's objects.
pub struct Residency {
    /// What is allocated where.
    pub heap: &'static Heap,
    /// Where stored objects are.
    pub store: Store,
    /// Which place each object is in, and who owns it.
    pub ownership: Ownership,
    /// Where resident objects are.
    pub frames: Frames,
    /// Where cached objects are.
    pub cache: ObjectCache,
    /// Room of the store for memory pages that hold something.
    pub promises: Promises,
    /// Makes pages of compressed bytes.
    pub decompressors: DenseDecompressors,
    /// Where objects are while they are on their way.
    pub staging: StagingPools,
    /// Notes what happens to objects.
    pub trace: Trace,
    /// Counts some of it.
    pub counters: Counters<{ Counted::ALL }>,
}

/// Room of the store for what a page is about to hold. Dropped, it goes back.
#[must_use]
pub struct Promise<'a> {
    residency: &'a Residency,
    page: PageNo,
}

impl Promise<'_> {
    /// The page that it is for.
    pub fn page(&self) -> PageNo {
        self.page
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.residency.end_promise(self.page);
    }
}

impl Residency {
    // What the object of a page is.

    /// Kept bytes of a page: those of its object. The rest of the page is nobody's.
    pub fn kept_bytes(&self, page: PageNo) -> usize {
        self.heap.kept_bytes(page)
    }

    /// Whether the object of a page shares its block with others.
    pub fn is_packed(&self, page: PageNo) -> bool {
        self.kept_bytes(page) <= PACKED_MAX
    }

    /// Counts so much more of something.
    pub fn count(&self, what: Counted, more: u64) {
        self.counters.add(what as usize, more);
    }

    /// The cost of a page's object in this block of the log, units.
    fn cost_in(&self, block: Block, page: PageNo) -> u32 {
        self.store.share_in(block).unwrap_or_else(|| cost(self.kept_bytes(page)))
    }

    // Promises.

    /// A promise for a page that is about to hold something. May wait for the device.
    pub fn promise(&self, page: PageNo) -> Result<Promise<'_>, NoPromise> {
        if self.promises.covers(page) {
            self.promises.take(&self.store)?;
        }
        Ok(Promise { residency: self, page })
    }

    /// As `promise`, but only if it needs no more than a look.
    pub fn try_promise(&self, page: PageNo) -> Option<Promise<'_>> {
        let is_promised = !self.promises.covers(page) || self.promises.try_take();
        is_promised.then(|| Promise { residency: self, page })
    }

    /// A promise for a page of memory that holds something already; owed, if there is none.
    pub fn promise_for_present(&self, page: PageNo) -> Promise<'_> {
        self.promises.take_for_present(&self.store);
        Promise { residency: self, page }
    }

    fn end_promise(&self, page: PageNo) {
        if self.promises.covers(page) {
            self.count_found();
            self.promises.give(&self.store);
        }
    }

    /// Counts the promises of memory pages that were stored when the heap was opened, and whose
    /// page of the object table has come to RAM since.
    pub fn count_found(&self) {
        match self.ownership.table.take_uncounted() {
            0 => {}
            found => self.promises.adopt(found),
        }
    }

    /// Claims a page that is `Zero`, which has the promise from then on. None: another thread was
    /// faster.
    pub fn claim_promised(&self, promise: Promise<'_>) -> Option<Owned> {
        let owned = self.ownership.claim_fresh(promise.page)?;
        core::mem::forget(promise);
        Some(owned)
    }

    /// As `claim_promised`, of a page that was present before it was managed. With `pinned`, no
    /// thread evicts it.
    pub fn claim_present(&self, promise: Promise<'_>, pinned: bool) -> Option<Owned> {
        let owned = self.ownership.claim_present(promise.page, pinned)?;
        core::mem::forget(promise);
        Some(owned)
    }

    // To Zero.

    /// An owned object that is in no slot reads as zeros from now on.
    pub fn to_zero(&self, owned: Owned) {
        self.drop_backing(&owned);
        let page = self.ownership.of(&owned).page();
        self.trace.note(Happened::Empty, page, 0);
        self.ownership.zero(owned);
        self.end_promise(page);
    }

    /// As `to_zero`, of one that was claimed in the cache.
    pub fn cached_to_zero(&self, owned: Owned) {
        drop(self.slot_of(&owned));
        self.to_zero(owned);
    }

    /// Ends an object that nobody owns; false if it is not stored in that block any more.
    #[must_use]
    pub fn stored_to_zero(&self, page: PageNo, block: Block) -> bool {
        let has_ended = self.ownership.end_stored(page, block);
        if has_ended {
            self.store.retire(block, self.cost_in(block, page));
            self.end_promise(page);
        }
        has_ended
    }

    /// Ends a stored object if no live allocation touches its page. Claim first, then ask:
    /// otherwise the heap could hand the page out between the answer and the claim.
    pub fn stored_to_zero_if_free(&self, page: PageNo, block: Block) -> bool {
        let Some(owned) = self.ownership.claim_stored(page, block) else { return false };
        let is_free = self.heap.page_is_free(page);
        match is_free {
            true => self.to_zero(owned),
            false => self.ownership.stored(owned, block),
        }
        is_free
    }

    // To Resident.

    /// An owned object that is in no slot has come to the page buffer.
    pub fn to_resident(&self, owned: Owned, rank: Rank, reserved: &mut Reserved<'_>) {
        self.ownership.arrive(owned, rank);
        reserved.install(1);
    }

    /// As `to_resident`, of one that was claimed in the cache.
    pub fn cached_to_resident(&self, owned: Owned, rank: Rank, reserved: &mut Reserved<'_>) {
        drop(self.slot_of(&owned));
        self.ownership.of(&owned).set(Flag::Compressed, false);
        self.to_resident(owned, rank, reserved);
    }

    // To Cached.

    /// An owned object, whose bytes are in the slot, is there from now on.
    pub fn to_cached(&self, owned: Owned, slot: Slot<'_>) {
        let slot = slot.keep();
        self.ownership.of(&owned).set_slot(slot);
        // List it first: once the place is published any thread may claim the object and move it
        // on.
        self.cache.set_owner(slot, owned.id());
        self.ownership.descriptors.enter_cache(owned.id());
        self.ownership.cached(owned);
    }

    /// The bytes of an owned object of the cache are in another slot from now on; answers the one
    /// before.
    pub fn change_slot(&self, owned: &Owned, slot: Slot<'_>) -> Slot<'_> {
        let (before, slot) = (self.slot_of(owned), slot.keep());
        self.ownership.of(owned).set_slot(slot);
        self.cache.set_owner(slot, owned.id());
        before
    }

    // To Stored.

    /// An object that was claimed in the cache, and whose bytes are in the block, is only there
    /// from now on.
    pub fn cached_to_stored(&self, owned: Owned, block: Block) {
        drop(self.slot_of(&owned));
        self.ownership.stored(owned, block);
    }

    /// Retires the backing block of an owned object: the stored copy is not needed any more.
    pub fn drop_backing(&self, owned: &Owned) {
        let descriptor = self.ownership.of(owned);
        if let Some(block) = descriptor.backing() {
            descriptor.set_backing(None);
            self.store.retire(block, self.cost_in(block, descriptor.page()));
        }
    }

    /// The slot of an owned object of the cache, which leaves it.
    fn slot_of(&self, owned: &Owned) -> Slot<'_> {
        self.cache.slot(self.ownership.of(owned).slot())
    }
}
