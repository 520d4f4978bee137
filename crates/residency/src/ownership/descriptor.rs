//! Descriptor: what is known of one object that is in DRAM.
//!
//! An object keeps its descriptor while it moves between page buffer and object cache, so such a
//! move allocates nothing. The backing block of an object in DRAM, which holds its stored copy, is
//! noted here and not in the object table.
//!
//! ```text
//!   Free ─► Arriving ─► Resident ─► Leaving ─► Cached ─► Free
//!               │          ▲  ▲        │  │     │ ▲ │
//!               │          │  └────────┘  │     │ └─┘ held for a moment
//!               │          └──────────────┼─────┘ faulted in
//!               └─► Cached, Free          └─► Free
//! ```
//!
//! State and slot are one word of 64 bits, the slot in its lower half. So one compare-exchange
//! gives a cached object that nobody owns another slot (`direct`).
//!
//! Guarantees: the state carries a generation that grows with every change, every claim, and every
//! change of the slot by a thread that does not own the object. So a waiter never sleeps through a
//! change and never mistakes a later use of the descriptor for its own.
//! Never: allocates.
//! Threads: fields other than the state belong to the owner of the object (`Owned`);
//! list membership belongs to the lock of the shard.

use deepheap_heap::PageNo;
use deepheap_store::{Block, ContentHash};
use deepheap_sys::memory::pinned_array::Zeroed;
use deepheap_sys::threads::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use deepheap_sys::threads::futex;

use super::UNKNOWN_HASH;

/// Index of a descriptor, below 2^30.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorId(pub u32);

/// No backing block: the object has no stored copy, or an outdated one.
const NO_BACKING: u32 = u32::MAX;
/// In a link of a list: no descriptor.
pub(super) const NONE: u32 = u32::MAX;

/// The kinds of pins of an object. A count of each is in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Pin {
    /// A call, until it returns.
    Call = 1,
    /// The program, for as long as it likes.
    Long = 1 << 20,
}

/// The states of an object that is in RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Not in use.
    Free = 0,
    /// Claimed; on its way into RAM.
    Arriving = 1,
    /// In the page buffer; the program may touch it.
    Resident = 2,
    /// Claimed; in the page buffer, and perhaps on its way out.
    Leaving = 3,
    /// In the object cache. Its entry says whether a thread has claimed it.
    Cached = 4,
}

/// Every transition of a descriptor, with the functions of `ownership` that make it.
const TRANSITIONS: [(State, State); 10] = [
    (State::Free, State::Arriving), // claim_fresh, claim_stored, claim_present
    (State::Arriving, State::Resident), // arrive
    (State::Arriving, State::Cached), // cached: a call, or a fetcher, brings it to the cache
    (State::Arriving, State::Free), // stored, zero; or another thread was faster
    (State::Resident, State::Leaving), // claim_resident
    (State::Leaving, State::Resident), // put_back, set_aside
    (State::Leaving, State::Cached), // cached: evicted
    (State::Leaving, State::Free),  // zero
    (State::Cached, State::Resident), // arrive: faulted in
    (State::Cached, State::Free),   // stored, zero
];

/// Whether a descriptor may go from one state to another.
fn is_allowed(from: State, to: State) -> bool {
    TRANSITIONS.contains(&(from, to)) || (from, to) == (State::Cached, State::Cached)
}

/// Notes on an object, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Flag {
    /// The page may be mapped by someone else as well: it may be the zero page, or a forked process
    /// has it.
    Shared = 1,
    /// The cached object lies compressed in its slot.
    Compressed = 2,
    /// The cut that is under way has what the resident object was at its instant.
    Captured = 4,
}

/// What brought an object to RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CameBy {
    /// The program wanted it.
    Itself = 0,
    /// It lies beside what was wanted, and no fault has found it yet.
    Neighbour = 1,
    /// A scan, together with others.
    Scan = 2,
    /// A trail comes to it, and no fault has found it yet.
    Trail = 3,
    /// A trail came to it, and then a fault has found it there.
    Followed = 4,
}

/// The flags have `CameBy` from here on.
const CAME_SHIFT: u32 = 5;

const STATE_MASK: u32 = 7;
const WAITERS: u32 = 8;
const GENERATION: u32 = 16;

/// In `Descriptor::word`: where the state begins. A generation that overflows falls off the top.
const STATE_SHIFT: u32 = 32;

/// State and slot as read at one instant: two can be compared, and a thread can wait for a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(u64);

impl Word {
    fn of(half: u32, slot: u32) -> Word {
        Word(u64::from(half) << STATE_SHIFT | u64::from(slot))
    }

    /// The state in it.
    pub fn state(self) -> State {
        match self.half() & STATE_MASK {
            0 => State::Free,
            1 => State::Arriving,
            2 => State::Resident,
            3 => State::Leaving,
            _ => State::Cached,
        }
    }

    /// The slot in it.
    pub fn slot(self) -> u32 {
        self.0 as u32
    }

    /// The half of it that has the state.
    fn half(self) -> u32 {
        (self.0 >> STATE_SHIFT) as u32
    }

    fn generation(self) -> u32 {
        self.half() & !(GENERATION - 1)
    }

    /// What `note_claim` makes of it.
    pub(super) fn claimed(self) -> Word {
        Word(self.0.wrapping_add(u64::from(GENERATION) << STATE_SHIFT))
    }

    /// The next generation, in this state, and nobody waiting.
    fn next(self, state: State) -> Word {
        Word::of(self.generation().wrapping_add(GENERATION) | state as u32, self.slot())
    }
}

/// One object in DRAM. 48 bytes.
#[repr(C)]
pub struct Descriptor {
    hash_low: AtomicU64,
    hash_high: AtomicU64,
    page: AtomicU32,
    backing: AtomicU32,
    word: AtomicU64,
    pub(super) next: AtomicU32,
    pub(super) previous: AtomicU32,
    pins: AtomicU32,
    pub(super) list: AtomicU8,
    /// The reuse count. Only a hint: if two threads change it at once, one change is lost, and the
    /// policy misjudges the object once.
    reuse: AtomicU8,
    flags: AtomicU8,
    epoch: AtomicU8,
}

const _: () = assert!(core::mem::size_of::<Descriptor>() == 48);

// SAFETY: made of atomics only, for which all zero bytes are a value.
unsafe impl Zeroed for Descriptor {}

impl Descriptor {
    /// The page whose object this is.
    pub fn page(&self) -> PageNo {
        PageNo(self.page.load(Ordering::Relaxed))
    }

    /// The block that holds the content as it was installed, if there is one.
    pub fn backing(&self) -> Option<Block> {
        match self.backing.load(Ordering::Acquire) {
            NO_BACKING => None,
            block => Some(Block(block)),
        }
    }

    /// Sets or drops the backing block. Owner only.
    pub fn set_backing(&self, backing: Option<Block>) {
        self.backing.store(backing.map_or(NO_BACKING, |block| block.0), Ordering::Release);
    }

    /// Hash of the content as it was installed, or as last seen in the cache. It may be unknown if
    /// there is no backing block.
    pub fn hash(&self) -> ContentHash {
        let low = self.hash_low.load(Ordering::Relaxed) as u128;
        let high = self.hash_high.load(Ordering::Relaxed) as u128;
        ContentHash(low | (high << 64))
    }

    /// Sets the hash of the content. Owner only.
    pub fn set_hash(&self, hash: ContentHash) {
        self.hash_low.store(hash.0 as u64, Ordering::Relaxed);
        self.hash_high.store((hash.0 >> 64) as u64, Ordering::Relaxed);
    }

    /// The cache slot of a cached object.
    pub fn slot(&self) -> u32 {
        self.word().slot()
    }

    /// Sets the cache slot. Owner only.
    pub fn set_slot(&self, slot: u32) {
        self.update(|word| Word::of(word.half(), slot));
    }

    /// Gives a cached object another slot, if nothing has changed since `seen`; the caller does not
    /// own it. The bytes in the new slot come before.
    #[must_use]
    pub(super) fn replace_slot(&self, seen: Word, slot: u32) -> bool {
        let new = Word::of(seen.half().wrapping_add(GENERATION), slot);
        let is_done =
            self.word.compare_exchange(seen.0, new.0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Before anything that the caller writes to the old slot (`Ownership::is_current`).
        fence(Ordering::Release);
        is_done
    }

    /// Counts the generation up: the caller has claimed the object and is about to change it, its
    /// slot, or the fields of the owner. A thread that waits for the object goes on waiting. The
    /// word becomes what `Word::claimed` tells.
    pub(super) fn note_claim(&self) {
        self.word.fetch_add(u64::from(GENERATION) << STATE_SHIFT, Ordering::AcqRel);
        // Before anything that the owner writes to the slot (`Ownership::is_current`).
        fence(Ordering::Release);
    }

    /// Changes the word; answers what it was.
    fn update(&self, change: impl Fn(Word) -> Word) -> Word {
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            let new = change(Word(old)).0;
            match self.word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Word(old),
                Err(now) => old = now,
            }
        }
    }

    /// How often the object was touched again while cached, up to 3.
    pub fn reuse(&self) -> u8 {
        self.reuse.load(Ordering::Relaxed)
    }

    /// Sets the reuse count. Owner only, or under the shard's lock; or as a wish of the program.
    pub fn set_reuse(&self, reuse: u8) {
        self.reuse.store(reuse, Ordering::Relaxed);
    }

    /// The epoch of the balancer in which it left the page buffer, or came as a neighbour.
    pub fn epoch(&self) -> u8 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Sets when it left the page buffer. Owner only.
    pub fn set_epoch(&self, epoch: u8) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Whether this is noted of the object. A hint for others than the owner.
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.load(Ordering::Relaxed) & flag as u8 != 0
    }

    /// Notes it, or that it is not so. Owner only, or while no thread moves an object.
    pub fn set(&self, flag: Flag, on: bool) {
        self.change_flags(flag as u8, if on { flag as u8 } else { 0 });
    }

    /// What brought the object. A hint for others than the owner.
    pub fn came_by(&self) -> CameBy {
        match self.flags.load(Ordering::Relaxed) >> CAME_SHIFT {
            0 => CameBy::Itself,
            1 => CameBy::Neighbour,
            2 => CameBy::Scan,
            3 => CameBy::Trail,
            _ => CameBy::Followed,
        }
    }

    /// Notes what brought it. Owner only.
    pub fn set_came_by(&self, came_by: CameBy) {
        self.change_flags(u8::MAX << CAME_SHIFT, (came_by as u8) << CAME_SHIFT);
    }

    fn change_flags(&self, mask: u8, flags: u8) {
        self.flags.store(self.flags.load(Ordering::Relaxed) & !mask | flags, Ordering::Relaxed);
    }

    /// Fills a fresh descriptor. The caller got it from the free list.
    pub(super) fn begin(&self, page: PageNo, backing: Option<Block>) {
        self.page.store(page.0, Ordering::Relaxed);
        self.set_backing(backing);
        self.set_hash(UNKNOWN_HASH);
        self.reuse.store(0, Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
        self.change(State::Arriving);
    }

    /// Makes the generation of a free descriptor later than `last`, which is later than all that
    /// those had whose RAM was dropped. The descriptor may be one of them, and a thread that passes
    /// it on late may have counted it up since.
    pub(super) fn begin_generation(&self, last: u32) {
        if self.generation() <= last {
            let later = |old: Word| Word::of(last, old.slot()).next(State::Free);
            self.wake_after(self.update(later));
        }
    }

    /// Its generation at this instant, without state and waiters.
    pub(super) fn generation(&self) -> u32 {
        self.word().generation()
    }

    /// State and slot at this instant.
    pub fn word(&self) -> Word {
        // Sequentially consistent for the sake of `pin`; on x86_64 that costs nothing.
        Word(self.word.load(Ordering::SeqCst))
    }

    /// The state at this instant.
    pub fn state(&self) -> State {
        self.word().state()
    }

    /// The half of the word that has the state, for the kernel to look at.
    fn futex(&self) -> &AtomicU32 {
        // SAFETY: the upper half of the word, which lives as long; aligned. Here it is only waited
        // on and woken: no code of ours loads or stores a half.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr().cast::<u32>().add(1)) }
    }

    /// Sets the next state and wakes the threads that wait for it. Owner only.
    pub(super) fn change(&self, to: State) {
        // Only the owner changes the state; others set WAITERS, or count up the generation
        // (`pass_on`).
        self.wake_after(self.update(|old| {
            debug_assert!(is_allowed(old.state(), to), "{:?} -> {to:?}", old.state());
            old.next(to)
        }));
    }

    /// Wakes the threads that waited for the caller's publication, which has been made. Another
    /// thread may own the object by now, and a third may wait for that one. So this only counts the
    /// generation up, whatever the state is. That harms no thread: one that changes, claims or
    /// waits meanwhile looks again.
    pub(super) fn pass_on(&self) {
        self.wake_after(self.update(|old| old.next(old.state())));
    }

    fn wake_after(&self, old: Word) {
        if old.half() & WAITERS != 0 {
            futex::wake(self.futex(), i32::MAX as u32);
        }
    }

    /// Claims a resident object; at most one thread succeeds. Sequentially consistent: `try_pin`
    /// relies on it.
    #[must_use]
    pub(super) fn claim_leaving(&self) -> bool {
        let old = Word(self.word.load(Ordering::Relaxed));
        if old.state() != State::Resident {
            return false;
        }
        // No thread waits for a resident object to change (`wait_while`).
        let new = old.next(State::Leaving);
        self.word.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Sleeps until state and generation are no longer those that were `seen`, of an owned object.
    pub fn wait_while(&self, seen: Word) {
        let mut old = Word(self.word.load(Ordering::Relaxed));
        let marked = seen.half() | WAITERS;
        while old.half() != marked {
            if old.half() != seen.half() {
                return;
            }
            // The owner may set the slot meanwhile.
            let new = Word::of(marked, old.slot()).0;
            match self.word.compare_exchange(old.0, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = Word(now),
            }
        }
        futex::wait(self.futex(), marked, None);
    }

    /// Keeps the object in the page buffer. The caller re-checks residency afterwards.
    pub fn add_pin(&self, kind: Pin) {
        self.pins.fetch_add(kind as u32, Ordering::SeqCst);
    }

    /// Drops one pin of a kind. Without one it does nothing.
    pub fn drop_pin(&self, kind: Pin) {
        let less = |pins: u32| match kind {
            Pin::Call if pins.is_multiple_of(Pin::Long as u32) => None,
            _ => pins.checked_sub(kind as u32),
        };
        let _ = self.pins.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Whether a system call may use the object.
    pub fn is_pinned_for_a_call(&self) -> bool {
        !self.pins.load(Ordering::SeqCst).is_multiple_of(Pin::Long as u32)
    }

    /// Whether the object is pinned in the page buffer. Ask after claiming it.
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepheap_sys::memory::pinned_array::PinnedArray;

    #[test]
    fn who_waits_is_woken_though_an_earlier_owner_passes_it_on_late() {
        let descriptor = PinnedArray::<Descriptor>::new(1).expect("memory");
        let descriptor = &descriptor[0];
        descriptor.begin(PageNo(7), None);
        // The earlier owner has published, another has claimed the object since, and now:
        descriptor.pass_on();
        std::thread::scope(|scope| {
            let seen = descriptor.word();
            scope.spawn(move || descriptor.wait_while(seen));
            while descriptor.word() == seen {
                std::thread::yield_now();
            }
            descriptor.pass_on();
        });
        assert_eq!(descriptor.state(), State::Arriving);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn canary_a_transition_that_the_table_does_not_allow_is_caught() {
        let descriptor = PinnedArray::<Descriptor>::new(1).expect("memory");
        let descriptor = std::panic::AssertUnwindSafe(&descriptor[0]);
        descriptor.begin(PageNo(7), None);
        let skip = || descriptor.change(State::Leaving);
        assert!(std::panic::catch_unwind(skip).is_err());
    }
}
