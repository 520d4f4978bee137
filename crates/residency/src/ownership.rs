//! Ownership: the right to move an object, as a type.
//!
//! The object table says where every object is; a descriptor says what is known of one that is in
//! RAM. Both change only in this room. A claim makes an `Owned`; only a publisher consumes it. So
//! an object never has two owners, and its entry is never `Busy` without one, except while it is
//! resident.
//!
//! ```text
//!   the entry was     claim              owned (entry Busy)   publish       the entry becomes
//!   Zero              claim_fresh    ──► Arriving ──┐   ┌──►  arrive        Busy, Resident
//!   Stored(block)     claim_stored   ──► Arriving ──┤   ├──►  put_back      Busy, Resident
//!   Cached(id)        claim_cached   ──► Cached   ──┼───┼──►  cached        Cached(id)
//!   Busy, Resident    claim_resident ──► Leaving  ──┘   ├──►  stored        Stored(block)
//!                                                       └──►  zero          Zero
//!   Stored(block)     move_stored, end_stored: one compare-exchange, without an owner
//!   Cached(id)        glimpse, then is_current or exchange_slot: without an owner
//! ```
//!
//! Guarantees: while an `Owned` exists no other thread changes the entry, the descriptor or the
//! slot of its object. A cached object that nobody owns can be read by any thread that looks
//! afterwards whether it was; and changed by giving it a slot with other bytes. In debug builds an
//! `Owned` that is dropped without a publisher, and a transition of the descriptor that its table
//! does not allow, stop the process.
//! Never: waits while it owns; allocates.
//! Threads: any, inside the gate, also in a signal handler.

mod descriptor;
mod lists;
mod table;

use deepheap_heap::PageNo;
use deepheap_policy::replacement::Rank;
use deepheap_store::{Block, ContentHash};
use deepheap_sys::errno::Result;
use deepheap_sys::threads::atomic::{Ordering, fence};
use deepheap_sys::threads::thread;
use deepheap_sys::threads::waits::{Cause, Wait};

pub use descriptor::{CameBy, Descriptor, DescriptorId, Flag, Pin, State};
pub use lists::{Descriptors, List};
pub use table::TableTraffic;
pub use table::{ObjectTable, Place};

use descriptor::Word;

/// Stands for a hash that was not computed. No content has it, so any content counts as changed.
pub const UNKNOWN_HASH: ContentHash = ContentHash(0);

/// The right to move one object. Its entry is `Busy`.
#[must_use = "an object that stays owned hangs every thread that touches it"]
#[derive(Debug)]
pub struct Owned(DescriptorId);

impl Owned {
    /// The object's descriptor.
    pub fn id(&self) -> DescriptorId {
        self.0
    }

    /// Ends the right. Only publishers call it.
    fn end(self) -> DescriptorId {
        let id = self.0;
        core::mem::forget(self);
        id
    }
}

#[cfg(debug_assertions)]
impl Drop for Owned {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "{:?} stays owned", self.0);
    }
}

/// Up to `N` owned objects, in the order of their claims. An object that is taken out leaves a gap.
pub struct OwnedList<const N: usize> {
    ids: [DescriptorId; N],
    length: usize,
    left: usize,
}

const TAKEN: DescriptorId = DescriptorId(u32::MAX);

impl<const N: usize> OwnedList<N> {
    /// An empty list.
    pub const fn empty() -> Self {
        OwnedList { ids: [TAKEN; N], length: 0, left: 0 }
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// How many were put in since the list was empty.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Puts an object at the end.
    pub fn push(&mut self, owned: Owned) {
        self.ids[self.length] = owned.end();
        self.length += 1;
        self.left += 1;
    }

    /// The descriptor of the object at `index`, which must still be in the list.
    pub fn id(&self, index: usize) -> DescriptorId {
        debug_assert_ne!(self.ids[index], TAKEN);
        self.ids[index]
    }

    /// Takes the object at `index` out. The list is empty again when the last one is taken.
    pub fn take(&mut self, index: usize) -> Owned {
        let id = core::mem::replace(&mut self.ids[index], TAKEN);
        assert!(id != TAKEN, "an object is taken out of a list of owned ones twice");
        self.left -= 1;
        if self.left == 0 {
            self.length = 0;
        }
        Owned(id)
    }

    /// Reverses the order. Nothing may have been taken out before.
    pub fn reverse(&mut self) {
        debug_assert_eq!(self.left, self.length);
        self.ids[..self.length].reverse();
    }
}

#[cfg(debug_assertions)]
impl<const N: usize> Drop for OwnedList<N> {
    fn drop(&mut self) {
        assert!(self.left == 0 || std::thread::panicking(), "{} objects stay owned", self.left);
    }
}

/// Where the object of a page was at one instant.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// Nowhere: it reads as zeros.
    Zero,
    /// In this block.
    Stored(Block),
    /// In the object cache.
    Cached(DescriptorId),
    /// In the page buffer.
    Resident(Seen),
    /// Owned by a thread.
    OnItsWay(Seen),
    /// Nobody knows, and nobody ever will: its page of the table cannot be read.
    Lost,
}

/// The descriptor of a page's object, as it was at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    id: DescriptorId,
    word: Word,
    /// Its backing block then.
    pub backing: Option<Block>,
}

impl Seen {
    /// The object's descriptor then.
    pub fn id(self) -> DescriptorId {
        self.id
    }

    /// The slot of a cached object.
    pub fn slot(self) -> u32 {
        self.word.slot()
    }

    /// Asked by a thread that has claimed it as a cached one: whether ours is the only claim since
    /// it was seen, and it has the slot of then. Then what was copied of the slot in between is the
    /// object. If a thread waits for us already it may say no all the same.
    pub fn is_claimed(self, descriptor: &Descriptor) -> bool {
        descriptor.word() == self.word.claimed()
    }
}

/// An object as a thread sees it that does not own it (`glimpse`).
#[derive(Clone, Copy, Debug)]
pub enum Glimpse {
    /// Nowhere: it reads as zeros.
    Zero,
    /// In the object cache. Reads of descriptor and slot from now on belong together, and to this
    /// object, if `is_current` says so afterwards.
    Cached(Seen),
    /// In the page buffer.
    Resident,
    /// In a block, or owned by a thread.
    Away,
}

/// The object table and the descriptors.
pub struct Ownership {
    /// Public for what it tells, and for its pages, which come to RAM and leave it.
    pub table: ObjectTable,
    /// Public for their lists, and for hints.
    pub descriptors: Descriptors,
}

impl Ownership {
    /// A table for `pages` pages, all zero, and `objects_max` descriptors.
    pub fn new(pages: usize, objects_max: usize) -> Result<Ownership> {
        let table = ObjectTable::new(pages)?;
        Ok(Ownership { table, descriptors: Descriptors::new(objects_max)? })
    }

    // Looking.

    /// Where the object of a page is at this instant: only a hint unless the caller owns it.
    pub fn place(&self, page: PageNo) -> Place {
        self.table.load(page)
    }

    /// As `place`, but only what is known without waiting; an object in RAM is always known. For
    /// threads outside the gate.
    pub fn peek(&self, page: PageNo) -> Option<Place> {
        self.table.peek(page)
    }

    /// As `place`, and tells resident objects from owned ones.
    pub fn look(&self, page: PageNo) -> Found {
        loop {
            let place = self.table.load(page);
            let id = match place {
                Place::Zero => return Found::Zero,
                Place::Stored(block) => return Found::Stored(block),
                Place::Cached(id) => return Found::Cached(id),
                Place::Lost => return Found::Lost,
                Place::Busy(id) => id,
            };
            if let Some(seen) = self.see(page, place, id) {
                return match seen.word.state() {
                    State::Resident => Found::Resident(seen),
                    _ => Found::OnItsWay(seen),
                };
            }
        }
    }

    /// The descriptor that the entry of a page names; none if the entry has changed.
    fn see(&self, page: PageNo, place: Place, id: DescriptorId) -> Option<Seen> {
        let descriptor = self.descriptors.get(id);
        // Load the word first. If the entry still names the descriptor afterwards, the word was
        // that of this object: the entry changes before the descriptor leaves the page.
        let (word, backing) = (descriptor.word(), descriptor.backing());
        (self.table.peek(page) == Some(place)).then_some(Seen { id, word, backing })
    }

    /// As `look`, for a thread that wants to copy the object without owning it.
    pub fn glimpse(&self, page: PageNo) -> Glimpse {
        // It is outside the gate, so it brings no page of the table.
        let Some(place) = self.table.peek(page) else { return Glimpse::Away };
        let (id, is_cached) = match place {
            Place::Zero => return Glimpse::Zero,
            Place::Cached(id) => (id, true),
            Place::Busy(id) => (id, false),
            Place::Stored(_) | Place::Lost => return Glimpse::Away,
        };
        // The object is the descriptor's for as long as the word stays the same.
        let seen = self.see(page, place, id);
        match seen.map(|seen| (seen, seen.word.state())) {
            Some((seen, State::Cached)) if is_cached => Glimpse::Cached(seen),
            Some((_, State::Resident)) => Glimpse::Resident,
            _ => Glimpse::Away,
        }
    }

    /// Whether no thread has claimed the object, or given it another slot, since it was seen. Then
    /// what was copied of its slot meanwhile is the object, and what its descriptor said is true.
    ///
    /// The argument: a thread that claims a cached object counts the generation up before it
    /// changes slot, descriptor or bytes (`claim_cached`); one that exchanges the slot writes to
    /// the old one only afterwards (`exchange_slot`). So a thread that has read something newer
    /// than the word it saw finds another word here: the change of the word comes before the new
    /// bytes, by the fences behind it (`note_claim`, `replace_slot`), which cost nothing on x86_64;
    /// and the fence here keeps our reading of the bytes before our second reading of the word. A
    /// slab whose memory went
    /// back to the system reads as zeros, and the slot had left the object before that. The
    /// generation has 28 bits: a thread would have to sleep in its copy while the one object
    /// changes exactly 2^28 times.
    pub fn is_current(&self, seen: Seen) -> bool {
        fence(Ordering::Acquire);
        self.descriptors.get(seen.id).word() == seen.word
    }

    /// Gives an unowned cached object another slot, in which its bytes are already; false if it has
    /// changed since it was seen. The caller has the old slot then.
    #[must_use]
    pub fn exchange_slot(&self, seen: Seen, slot: u32) -> bool {
        self.descriptors.get(seen.id).replace_slot(seen.word, slot)
    }

    /// The object, if it is owned at this instant. For threads outside the gate.
    pub fn seen_on_its_way(&self, page: PageNo) -> Option<Seen> {
        loop {
            let place @ Place::Busy(id) = self.table.peek(page)? else { return None };
            if let Some(seen) = self.see(page, place, id) {
                return Some(seen).filter(|seen| seen.word.state() != State::Resident);
            }
        }
    }

    /// Sleeps until the object that was seen owned has changed its state.
    pub fn wait(&self, seen: Seen) {
        let wait = Wait::begin();
        self.descriptors.get(seen.id).wait_while(seen.word);
        // Its owner brings a stored object: that waits for the device.
        wait.end(match seen.word.state() {
            State::Arriving if seen.backing.is_some() => Cause::Device,
            _ => Cause::Owner,
        });
    }

    /// The descriptor of an object: for its owner; only a hint for others.
    pub fn descriptor(&self, id: DescriptorId) -> &Descriptor {
        self.descriptors.get(id)
    }

    /// The descriptor of an owned object.
    pub fn of(&self, owned: &Owned) -> &Descriptor {
        self.descriptors.get(owned.0)
    }

    // Claiming. None: another thread was faster.

    /// Claims an object whose entry is `Zero`.
    pub fn claim_fresh(&self, page: PageNo) -> Option<Owned> {
        if self.table.load(page) != Place::Zero {
            return None;
        }
        let id = self.begin_descriptor(page, None);
        self.claim_new(page, Place::Zero, id)
    }

    /// Claims a stored object.
    pub fn claim_stored(&self, page: PageNo, block: Block) -> Option<Owned> {
        // Set the backing block before the claim: the collector looks there when it finds the entry
        // `Busy`.
        let id = self.begin_descriptor(page, Some(block));
        self.claim_new(page, Place::Stored(block), id)
    }

    /// Claims a page that was present before it was managed. With `pinned`, no thread evicts it.
    pub(crate) fn claim_present(&self, page: PageNo, pinned: bool) -> Option<Owned> {
        let id = self.begin_descriptor(page, None);
        let descriptor = self.descriptors.get(id);
        // It may be the zero page. Or it was written while its span was plain, and a fork may have
        // shared it. Either way it is not known to be exclusive.
        descriptor.set(Flag::Shared, true);
        if pinned {
            descriptor.add_pin(Pin::Call);
        }
        let claimed = self.claim_new(page, Place::Zero, id);
        if pinned && claimed.is_none() {
            descriptor.drop_pin(Pin::Call);
        }
        claimed
    }

    /// Claims a cached object.
    pub fn claim_cached(&self, page: PageNo, id: DescriptorId) -> Option<Owned> {
        let claimed = self.table.replace(page, Place::Cached(id), Place::Busy(id));
        claimed.then(|| {
            // Now `replace_slot` of another thread fails, and a glimpse is found to be old.
            self.descriptors.get(id).note_claim();
            Owned(id)
        })
    }

    /// Claims a resident object. It may be pinned: a caller that wants to take it out of the page
    /// buffer looks at the pins after the claim, since a pin and a claim are the two halves of a
    /// Dekker pair (`pin`).
    pub fn claim_resident(&self, page: PageNo, id: DescriptorId) -> Option<Owned> {
        if !self.descriptors.get(id).claim_leaving() {
            return None;
        }
        let owned = Owned(id);
        if self.table.load(page) == Place::Busy(id) {
            return Some(owned);
        }
        self.put_back(owned); // it is another page's by now
        None
    }

    fn claim_new(&self, page: PageNo, from: Place, id: DescriptorId) -> Option<Owned> {
        if self.table.replace(page, from, Place::Busy(id)) {
            return Some(Owned(id));
        }
        self.descriptors.release(id);
        None
    }

    /// A descriptor for one more object. There is one for each of the smallest objects that the
    /// whole budget could hold, and 4096 more for what has no memory of its own: reads that found
    /// no cache slot, and pages that another thread may be faster with. So one is free, or will be
    /// soon: no thread holds more than a window of the latter, and none longer than a read takes.
    fn begin_descriptor(&self, page: PageNo, backing: Option<Block>) -> DescriptorId {
        loop {
            if let Some(id) = self.descriptors.take(page) {
                self.descriptors.get(id).begin(page, backing);
                return id;
            }
            thread::yield_now();
        }
    }

    // Publishing: the right ends, and threads that waited look again.

    /// The object has come to the page buffer, to the list of its rank.
    pub fn arrive(&self, owned: Owned, rank: Rank) {
        let id = owned.end();
        self.descriptors.move_to(id, rank.into());
        self.descriptors.get(id).change(State::Resident);
    }

    /// The object has come to its lane.
    pub fn arrive_in_lane(&self, owned: Owned) {
        let id = owned.end();
        self.descriptors.move_to(id, List::InLane);
        self.descriptors.get(id).change(State::Resident);
    }

    /// The object stays in the page buffer, or in its lane, where it was.
    pub fn put_back(&self, owned: Owned) {
        self.descriptors.get(owned.end()).change(State::Resident);
    }

    /// The object stays in the page buffer and cannot be evicted: it goes to the `Unevictable`
    /// list.
    pub fn set_aside(&self, owned: Owned) {
        let id = owned.end();
        self.descriptors.move_to(id, List::Unevictable);
        self.descriptors.get(id).change(State::Resident);
    }

    /// The object is in the cache: in its slot, and in the cache's lists already.
    pub fn cached(&self, owned: Owned) {
        let id = owned.end();
        let descriptor = self.descriptors.get(id);
        descriptor.change(State::Cached);
        self.table.publish(descriptor.page(), Place::Cached(id));
        // It is not ours any more: only wake the threads that waited for us.
        descriptor.pass_on();
    }

    /// The object is in this block, and nowhere in RAM.
    pub fn stored(&self, owned: Owned, block: Block) {
        let id = owned.end();
        let page = self.descriptors.get(id).page();
        self.table.publish(page, Place::Stored(block));
        self.table.note_cold(page);
        self.descriptors.release(id);
    }

    /// The object reads as zeros, and is stored nowhere.
    pub fn zero(&self, owned: Owned) {
        let id = owned.end();
        self.table.publish(self.descriptors.get(id).page(), Place::Zero);
        self.descriptors.release(id);
    }

    // Without an owner.

    /// Switches a stored object to another block; false if it is not stored in the first one any
    /// more.
    #[must_use]
    pub fn move_stored(&self, page: PageNo, from: Block, to: Block) -> bool {
        self.table.replace(page, Place::Stored(from), Place::Stored(to))
    }

    /// Makes a stored object `Zero`; false if it is not stored in that block any more.
    #[must_use]
    pub(crate) fn end_stored(&self, page: PageNo, block: Block) -> bool {
        self.table.replace(page, Place::Stored(block), Place::Zero)
    }

    // Pinning.

    /// Pins a page that is resident. Dekker with the evictor: we pin, then look at the state; it
    /// claims, then looks at the pins. Both are sequentially consistent, so one of us sees the
    /// other. Answers the descriptor that has the pin.
    pub fn try_pin(&self, page: PageNo, kind: Pin) -> Option<DescriptorId> {
        let Some(Place::Busy(id)) = self.table.peek(page) else { return None };
        let descriptor = self.descriptors.get(id);
        descriptor.add_pin(kind);
        // In any other state the object may be leaving, or not be in yet.
        let here = descriptor.state() == State::Resident;
        if here && self.table.peek(page) == Some(Place::Busy(id)) {
            return Some(id);
        }
        descriptor.drop_pin(kind);
        None
    }

    /// Drops one pin of this kind of the page, if it has any.
    pub fn unpin(&self, page: PageNo, kind: Pin) {
        if let Some(Place::Busy(id)) = self.table.peek(page) {
            self.descriptors.get(id).drop_pin(kind);
        }
    }

    // The table's pages, in RAM and out of it.

    /// Hands out pages of the table as a later process finds the objects: in their stored copies.
    /// Those in RAM, unless `only_cold`, while no thread moves an object; and those that were
    /// evicted since they were handed out. `page` answers whether it wrote the page.
    ///
    /// Errors: the number of a page that is lost.
    pub fn save(
        &self,
        only_cold: bool,
        page: &mut dyn FnMut(u32, &[u8]) -> bool,
    ) -> core::result::Result<(), u32> {
        self.table.save(only_cold, page, |id| self.descriptors.get(id).backing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ownership() -> Ownership {
        Ownership::new(64, 64).expect("memory")
    }

    #[test]
    fn only_one_of_many_threads_claims_an_object() {
        let ownership = ownership();
        let wins = core::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for page in (0..32).map(PageNo) {
                        if let Some(owned) = ownership.claim_fresh(page) {
                            wins.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
                            ownership.arrive(owned, Rank::Probation);
                        }
                    }
                });
            }
        });
        assert_eq!(wins.into_inner(), 32);
    }

    #[test]
    fn an_object_is_what_its_publisher_says() {
        let ownership = ownership();
        let page = PageNo(7);
        let fresh = ownership.claim_fresh(page).expect("nowhere");
        assert!(ownership.claim_fresh(page).is_none(), "it is owned");
        assert!(matches!(ownership.look(page), Found::OnItsWay(_)));
        ownership.arrive(fresh, Rank::Protected);
        let Found::Resident(seen) = ownership.look(page) else { panic!("not resident") };
        let held = ownership.claim_resident(page, seen.id()).expect("resident");
        assert!(ownership.claim_resident(page, seen.id()).is_none(), "it is owned");
        ownership.cached(held);
        let Found::Cached(id) = ownership.look(page) else { panic!("not cached") };
        let cached = ownership.claim_cached(page, id).expect("cached");
        ownership.stored(cached, Block(9));
        assert!(ownership.move_stored(page, Block(9), Block(11)));
        assert!(!ownership.end_stored(page, Block(9)));
        assert!(ownership.claim_stored(page, Block(9)).is_none());
        let stored = ownership.claim_stored(page, Block(11)).expect("stored");
        ownership.zero(stored);
        assert!(matches!(ownership.look(page), Found::Zero));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn canary_an_object_that_stays_owned_is_caught() {
        let ownership = ownership();
        let lose = || drop(ownership.claim_fresh(PageNo(1)));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(lose)).is_err());
    }
}
