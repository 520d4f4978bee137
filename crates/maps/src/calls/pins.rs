//! Pins: pages that stay in RAM while the kernel, or the program, needs them there.
//!
//! A system call on a page that is not in RAM answers EFAULT, and a device that reads into a page
//! (O_DIRECT) writes to the RAM that it had when the call began. So a thread that makes such a call
//! pins the pages before it and unpins them after it. A pin is a slot in the shared tables: whose
//! it is, and which pages.
//!
//! Why no pinned page leaves: `pin` fills its slot in, then owns the shard of each page, and has
//! the page come if it is not there. An eviction owns the shard, too, and looks at the slots before
//! it takes anything out. Whichever is the owner first: either the eviction has ended, and `pin`
//! sees that the page is missing; or the eviction sees the slot.
//!
//! | slot's owner | means |
//! |---|---|
//! | 0 | free |
//! | mark of a participant | it fills the slot in, or has pinned these pages |
//! | mark of one that is dead | free; a search for a slot, or for a pinned page, clears it |
//!
//! A pin for which there is no room waits, and gives the other pins of its thread's calls back
//! until there is room for all of them: the call that they are for has not begun.
//!
//! Guarantees: no eviction, by any process, takes a pinned page; a pin ends with its process. No
//! thread waits for room while a call of its own has pages of the same map pinned.
//! Never: allocates.
//! Threads: any, outside the fault path, with all signals blocked; `unpinned` also in it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;

use deepheap_sys::threads::{thread, tls};

use crate::moves::fill::FillError;
use crate::region::Region;
use crate::tables::control::{PINS_MAX, PinSlot};
use crate::tables::member::Member;
use crate::tables::streams::WINDOW_MAX;

/// Pins that wait for room together, all of one thread's: more than a call has buffers.
const TOGETHER_MAX: usize = 64;
/// Between two tries of a pin for which there is no room.
const PAUSE: Duration = Duration::from_millis(1);

/// The purpose of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinKind {
    /// A system call of this thread: waits until there is room, which is half of the map's RAM and
    /// all slots. Ends with the thread, if that is cancelled within the call.
    Call,
    /// An object that the kernel knows, until that is destroyed; waits as a call does.
    Object,
    /// The program's wish: a quarter of the RAM, half of the slots, and no waiting.
    Wish,
}

/// A pin of the program's own that would take too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch;

/// The pages of a slot: how many in the lower half, the first one in the upper.
fn word_of(first: u32, count: u32) -> u64 {
    u64::from(first) << 32 | u64::from(count)
}

/// The pages that a slot's word names: the first, and how many.
fn pages_of(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Region {
    /// Has `count` pages from `first` on come, and keeps them until `unpin` of the same ones. A
    /// page that cannot come is behind the end or cannot be read: then a call finds the same as in
    /// a mapping of the kernel's.
    pub(crate) fn pin(&self, first: u32, count: u32, kind: PinKind) -> Result<(), TooMuch> {
        // This one, and behind it those of the thread's calls that were given back for it.
        let (mut pins, mut len) = ([word_of(first, count); TOGETHER_MAX], 1);
        while !self.tables.try_pin(&pins[..len], kind) {
            if kind == PinKind::Wish {
                return Err(TooMuch);
            }
            // A thread that waits has nothing pinned. Otherwise two threads could wait for each
            // other, and a call of several buffers for itself.
            let given_back = len;
            for slot in self.tables.slots_of_thread() {
                let word = slot.pages.load(Relaxed);
                if len < TOGETHER_MAX && slot.end(word) {
                    pins[len] = word;
                    len += 1;
                }
            }
            if len == given_back {
                thread::sleep(PAUSE);
            }
        }
        for (first, count) in pins[..len].iter().map(|word| pages_of(*word)) {
            let (mut page, end) = (first, first + count);
            while page < end {
                match self.fill(page, (end - page).min(WINDOW_MAX)) {
                    Ok(came) => page += came.max(1),
                    Err(FillError::Beyond) => break,
                    Err(_) => page += 1,
                }
            }
        }
        Ok(())
    }
}

impl Member {
    /// Fills slots in for all of these pins, the first one of this kind and the others of calls, or
    /// for none: there is no room.
    fn try_pin(&self, pins: &[u64], kind: PinKind) -> bool {
        let pages = self.header().budget_pages.load(Relaxed);
        let (slots, most) = match kind {
            PinKind::Call | PinKind::Object => (PINS_MAX, pages / 2),
            PinKind::Wish => (PINS_MAX / 2, pages / 4),
        };
        let mut taken = [None; TOGETHER_MAX];
        let mut count = 0;
        while let Some(slot) = pins.get(count).and_then(|_| self.take_slot(slots)) {
            let is_of_thread = count > 0 || kind == PinKind::Call;
            slot.thread.store(if is_of_thread { tls::area() as u64 } else { 0 }, Relaxed);
            slot.pages.store(pins[count], SeqCst);
            taken[count] = Some(slot);
            count += 1;
        }
        let wanted: u64 = pins.iter().map(|word| u64::from(pages_of(*word).1)).sum();
        let all = self.pinned_pages();
        // A thread that is alone may take what it needs, so that no call waits for itself.
        let is_alone = kind != PinKind::Wish && all == wanted;
        let is_pinned = count == pins.len() && (all <= most || is_alone);
        if !is_pinned {
            for (slot, word) in taken.iter().flatten().zip(pins) {
                slot.end(*word);
            }
        }
        is_pinned
    }

    /// Ends one pin of this process's, of the same pages: the thread's own, if it has one, so that
    /// no other thread gives back what it does not have.
    pub(crate) fn unpin(&self, first: u32, count: u32) {
        let word = word_of(first, count);
        if !self.slots_of_thread().any(|slot| slot.end(word)) {
            // Another thread may end its pin of the same pages at the same time.
            self.own_slots().any(|slot| slot.end(word));
        }
    }

    /// Ends the pins that this thread never ended: it has been cancelled within a call.
    pub(crate) fn unpin_thread(&self) {
        for slot in self.slots_of_thread() {
            slot.end(slot.pages.load(Relaxed));
        }
    }

    /// The slots of this thread's calls.
    fn slots_of_thread(&self) -> impl Iterator<Item = &PinSlot> {
        let thread = tls::area() as u64;
        self.own_slots().filter(move |slot| slot.thread.load(Relaxed) == thread)
    }

    fn own_slots(&self) -> impl Iterator<Item = &PinSlot> {
        self.used_slots().filter(|slot| slot.owner.load(Acquire) == self.mark)
    }

    /// All slots that were ever used.
    fn used_slots(&self) -> impl Iterator<Item = &PinSlot> {
        let used = self.header().pins_used.load(SeqCst) as usize;
        self.pins()[..used.min(PINS_MAX)].iter()
    }

    /// A slot that nobody has, or that a dead process has, among the first ones; without pages.
    fn take_slot(&self, among: usize) -> Option<&PinSlot> {
        let slots = &self.pins()[..among];
        let is_taken = |from: u32, slot: &PinSlot| {
            slot.owner.compare_exchange(from, self.mark, Acquire, Relaxed).is_ok()
        };
        let free = slots.iter().position(|slot| slot.owner.load(Relaxed) == 0 && is_taken(0, slot));
        let index = free.or_else(|| {
            slots.iter().position(|slot| {
                let owner = slot.owner.load(Relaxed);
                !self.is_alive(owner) && is_taken(owner, slot)
            })
        })?;
        slots[index].pages.store(0, Release);
        self.header().pins_used.fetch_max(index as u32 + 1, SeqCst);
        Some(&slots[index])
    }

    /// The pages of a slot whose owner lives: first and how many. A slot of the dead is cleared.
    fn pages_of_slot(&self, slot: &PinSlot) -> Option<(u32, u32)> {
        let word = slot.pages.load(SeqCst);
        let owner = slot.owner.load(Acquire);
        if word == 0 || owner == 0 {
            return None;
        }
        if owner != self.mark && !self.is_alive(owner) {
            // Only a slot that still is the dead one's: its next user has another mark.
            let _ = slot.owner.compare_exchange(owner, 0, Relaxed, Relaxed);
            return None;
        }
        Some(pages_of(word))
    }

    fn pinned_pages(&self) -> u64 {
        let counts = self.used_slots().filter_map(|slot| self.pages_of_slot(slot));
        counts.map(|(_, count)| u64::from(count)).sum()
    }

    /// Moves the pages that nobody has pinned to the front; answers how many there are. The caller
    /// owns their shard.
    pub(crate) fn unpinned(&self, victims: &mut [u32]) -> usize {
        let mut count = victims.len();
        for slot in self.used_slots() {
            let (first, pages) = pages_of(slot.pages.load(SeqCst));
            let is_named = |page: &u32| page.wrapping_sub(first) < pages;
            // Asking whether its owner lives is dear, and mostly no page is named.
            if !victims[..count].iter().any(is_named) || self.pages_of_slot(slot).is_none() {
                continue;
            }
            let mut kept = 0;
            for index in 0..count {
                if !is_named(&victims[index]) {
                    victims[kept] = victims[index];
                    kept += 1;
                }
            }
            count = kept;
        }
        count
    }
}

impl PinSlot {
    /// Ends a pin of the caller's own; false if it has ended.
    fn end(&self, word: u64) -> bool {
        let is_ended = self.pages.compare_exchange(word, 0, Release, Relaxed).is_ok();
        if is_ended {
            self.owner.store(0, Release);
        }
        is_ended
    }
}
