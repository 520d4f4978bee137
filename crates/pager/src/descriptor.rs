//! Descriptor: everything known of one object that is in DRAM.
//!
//! An object keeps its descriptor while it moves between page buffer and object cache, so a
//! transition allocates nothing. The stored copy of an object in DRAM, its home block, is noted
//! here and not in the object table (design: the per-slot array).
//!
//! ```text
//!   Free ─► Arriving ─► Resident ─► Leaving ─► Moving (= cached, or on its way to the log) ─► Free
//!                          │  ▲                   │
//!                          ▼  │                   └─► Resident (the way back in)
//!                         Moving (collect, discard, verify)
//! ```
//!
//! Guarantees: the state word carries a generation that grows with every change, so that a waiter
//! never sleeps through a change and never mistakes a later use of the descriptor for its own.
//! Never: allocates.
//! Threads: fields other than the state belong to the owner of the object (see `object_table`);
//! list membership belongs to the lock of the shard.

mod lists;

use deepheap_heap::PageNo;
use deepheap_store::{Block, ContentHash};
use deepheap_sys::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use deepheap_sys::futex;
use deepheap_sys::mapping::Zeroed;

pub use lists::{Descriptors, List};

/// Index of a descriptor, below 2^30.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorId(pub u32);

/// No block: the object has no stored copy that is worth anything.
pub const NO_HOME: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

/// What the owner of an object is doing with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Not in use.
    Free = 0,
    /// Being installed in the page buffer.
    Arriving = 1,
    /// In the page buffer; the program may touch it.
    Resident = 2,
    /// Being taken out of the page buffer.
    Leaving = 3,
    /// In the object cache, or held for a moment by a worker.
    Moving = 4,
}

/// Flags: the page may be shared.
const SHARED: u8 = 1;
/// Flags: the object came as a neighbour.
const NEIGHBOUR: u8 = 2;

const STATE_MASK: u32 = 7;
const WAITERS: u32 = 8;
const GENERATION: u32 = 16;

/// A state word as read at one instant; comparable, waitable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateWord(u32);

impl StateWord {
    /// The state in it.
    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Free,
            1 => State::Arriving,
            2 => State::Resident,
            3 => State::Leaving,
            _ => State::Moving,
        }
    }
}

/// One object in DRAM. 48 bytes.
#[repr(C)]
pub struct Descriptor {
    hash_low: AtomicU64,
    hash_high: AtomicU64,
    page: AtomicU32,
    home: AtomicU32,
    state: AtomicU32,
    slot: AtomicU32,
    next: AtomicU32,
    previous: AtomicU32,
    pins: AtomicU32,
    list: AtomicU8,
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
    pub fn home(&self) -> Option<Block> {
        match self.home.load(Ordering::Acquire) {
            NO_HOME => None,
            block => Some(Block(block)),
        }
    }

    /// Sets or drops the home block. Owner only.
    pub fn set_home(&self, home: Option<Block>) {
        self.home.store(home.map_or(NO_HOME, |block| block.0), Ordering::Release);
    }

    /// Hash of the content as installed, or as last seen when cached.
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
        self.slot.load(Ordering::Relaxed)
    }

    /// Sets the cache slot. Owner only.
    pub fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// How often the object was touched again while cached, up to 3.
    pub fn reuse(&self) -> u8 {
        self.reuse.load(Ordering::Relaxed)
    }

    /// Sets the reuse count. Owner only, or under the shard's lock.
    pub fn set_reuse(&self, reuse: u8) {
        self.reuse.store(reuse, Ordering::Relaxed);
    }

    /// When it left the page buffer, or came as a neighbour, in epochs of the balancer.
    pub fn epoch(&self) -> u8 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Sets when it left the page buffer. Owner only.
    pub fn set_epoch(&self, epoch: u8) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Whether the page may be mapped by someone else as well (the zero page, a forked process).
    pub fn may_be_shared(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & SHARED != 0
    }

    /// Notes whether the page, of an object that is or will be in the page buffer, may be shared.
    pub fn set_may_be_shared(&self, shared: bool) {
        self.flags.store(if shared { SHARED } else { 0 }, Ordering::Relaxed);
    }

    /// Whether the object, a cached one, came as the neighbour of another.
    pub fn is_neighbour(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & NEIGHBOUR != 0
    }

    /// Notes that the object comes as a neighbour. Owner only.
    pub fn set_neighbour(&self) {
        self.flags.store(NEIGHBOUR, Ordering::Relaxed);
    }

    /// Fills a fresh descriptor. The caller got it from the free list.
    pub fn begin(&self, page: PageNo, state: State, home: Option<Block>, hash: ContentHash) {
        self.page.store(page.0, Ordering::Relaxed);
        self.set_home(home);
        self.set_hash(hash);
        self.set_reuse(0);
        self.set_may_be_shared(false);
        self.change(state);
    }

    /// The state word at this instant.
    pub fn state(&self) -> StateWord {
        // Sequentially consistent for the sake of `pin`; on x86_64 that costs nothing.
        StateWord(self.state.load(Ordering::SeqCst))
    }

    /// Owner only: the next state. Wakes whoever waited for it.
    pub fn change(&self, to: State) {
        // The owner is the only one to change the state; others set WAITERS, or pass it on.
        let mut old = self.state.load(Ordering::Relaxed);
        loop {
            let generation = (old & !(GENERATION - 1)).wrapping_add(GENERATION);
            let new = generation | to as u32;
            match self.state.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        if old & WAITERS != 0 {
            futex::wake(&self.state, i32::MAX as u32);
        }
    }

    /// For who has just published a place that others may claim: wakes whoever waited for that.
    /// There may be a later owner by now, and even one who waits for that one: so only the
    /// generation goes on, whatever the state is. That harms nobody: who changes, claims or waits
    /// meanwhile looks again.
    pub fn pass_on(&self) {
        let mut old = self.state.load(Ordering::Relaxed);
        loop {
            let new = (old & !(GENERATION - 1)).wrapping_add(GENERATION) | (old & STATE_MASK);
            match self.state.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        if old & WAITERS != 0 {
            futex::wake(&self.state, i32::MAX as u32);
        }
    }

    /// Claims a resident object; at most one thread succeeds. Sequentially consistent: `pin` relies
    /// on it.
    #[must_use]
    pub fn claim(&self, to: State) -> bool {
        let old = self.state.load(Ordering::Relaxed);
        if old & STATE_MASK != State::Resident as u32 {
            return false;
        }
        // Nobody waits for a resident object to be another (`wait_while`).
        let new = (old & !(GENERATION - 1)).wrapping_add(GENERATION) | to as u32;
        self.state.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Sleeps until the state word is no longer `seen`, that of an object on its way.
    pub fn wait_while(&self, seen: StateWord) {
        let marked = seen.0 | WAITERS;
        if seen.0 != marked
            && self
                .state
                .compare_exchange(seen.0, marked, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        futex::wait(&self.state, marked, None);
    }

    /// Keeps the object in the page buffer. The caller re-checks residency afterwards.
    pub fn add_pin(&self) {
        self.pins.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets go of one pin; a pin that was never taken is not an error here.
    pub fn drop_pin(&self) {
        let _ = self.pins.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    }

    /// Whether anyone keeps the object in the page buffer. Asked after claiming it.
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepheap_sys::mapping::PinnedArray;

    #[test]
    fn who_waits_is_woken_though_an_earlier_owner_passes_it_on_late() {
        let descriptor = PinnedArray::<Descriptor>::new(1).expect("memory");
        let descriptor = &descriptor[0];
        descriptor.begin(PageNo(7), State::Moving, None, ContentHash(0));
        // The earlier owner has published, another has claimed the object since, and now:
        descriptor.pass_on();
        std::thread::scope(|scope| {
            let seen = descriptor.state();
            scope.spawn(move || descriptor.wait_while(seen));
            while descriptor.state() == seen {
                std::thread::yield_now();
            }
            descriptor.pass_on();
        });
        assert_eq!(descriptor.state().state(), State::Moving);
    }
}
