//! Pins: pages that stay in RAM while the kernel, or the program, needs them there.
//!
//! A system call on a page that is not in RAM answers EFAULT, and a device that reads into a page
//! (O_DIRECT) writes to the RAM that it had when the call began. So whoever makes such a call pins
//! the pages before and unpins them after it. A pin is a slot in the shared tables: whose it is,
//! and which pages.
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
//! Guarantees: no eviction, by any process, takes a pinned page; a pin ends with its process.
//! Never: allocates.
//! Threads: any, outside the fault path, with all signals blocked; `unpinned` also in it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;

use deepheap_sys::threads::{thread, tls};

use crate::moves::fill::FillError;
use crate::region::Region;
use crate::tables::control::{PINS_MAX, PinSlot};
use crate::tables::streams::WINDOW_MAX;

/// Between two tries of a pin for which there is no room.
const PAUSE: Duration = Duration::from_millis(1);

/// What pages are pinned for.
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

impl Region {
    /// Has `count` pages from `first` on come, and keeps them until `unpin` of the same ones. What
    /// cannot come is behind the end or cannot be read: then a call finds what it finds in a
    /// mapping of the kernel's.
    pub(crate) fn pin(&self, first: u32, count: u32, kind: PinKind) -> Result<(), TooMuch> {
        let pages = self.control.header().budget_pages.load(Relaxed);
        let (slots, most) = match kind {
            PinKind::Call | PinKind::Object => (PINS_MAX, pages / 2),
            PinKind::Wish => (PINS_MAX / 2, pages / 4),
        };
        let thread_of_pin = if kind == PinKind::Call { tls::area() as u64 } else { 0 };
        loop {
            if let Some(slot) = self.take_slot(slots) {
                slot.thread.store(thread_of_pin, Relaxed);
                slot.pages.store(word_of(first, count), SeqCst);
                let all = self.pinned_pages();
                // One that is alone may take what it needs, so that no call waits for itself.
                let is_alone = kind != PinKind::Wish && all == u64::from(count);
                if all <= most || is_alone {
                    break;
                }
                slot.end(word_of(first, count));
            }
            if kind == PinKind::Wish {
                return Err(TooMuch);
            }
            thread::sleep(PAUSE);
        }
        let mut page = first;
        while page < first + count {
            match self.fill(page, (first + count - page).min(WINDOW_MAX)) {
                Ok(came) => page += came.max(1),
                Err(FillError::Beyond) => break,
                Err(_) => page += 1,
            }
        }
        Ok(())
    }

    /// Ends one pin of this process's, of the same pages.
    pub(crate) fn unpin(&self, first: u32, count: u32) {
        let word = word_of(first, count);
        // Another thread may end its pin of the same pages at the same time.
        self.own_slots().any(|slot| slot.end(word));
    }

    /// Ends the pins that this thread never ended: it has been cancelled within a call.
    pub(crate) fn unpin_thread(&self) {
        let thread = tls::area() as u64;
        for slot in self.own_slots().filter(|slot| slot.thread.load(Relaxed) == thread) {
            slot.end(slot.pages.load(Relaxed));
        }
    }

    fn own_slots(&self) -> impl Iterator<Item = &PinSlot> {
        self.used_slots().filter(|slot| slot.owner.load(Acquire) == self.mark)
    }

    /// All slots that were ever used.
    fn used_slots(&self) -> impl Iterator<Item = &PinSlot> {
        let used = self.control.header().pins_used.load(SeqCst) as usize;
        self.control.pins()[..used.min(PINS_MAX)].iter()
    }

    /// A slot that nobody has, or that a dead process has, among the first ones; without pages.
    fn take_slot(&self, among: usize) -> Option<&PinSlot> {
        let slots = &self.control.pins()[..among];
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
        self.control.header().pins_used.fetch_max(index as u32 + 1, SeqCst);
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
        Some(((word >> 32) as u32, word as u32))
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
            let word = slot.pages.load(SeqCst);
            let (first, pages) = ((word >> 32) as u32, word as u32);
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
