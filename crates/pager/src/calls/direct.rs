//! Direct: reads and writes objects in RAM for the program without owning them.
//!
//! A read copies the bytes out of the object's slot and looks afterwards whether the object was
//! there all the time. A write makes the object anew, in a slot that its thread keeps for that, and
//! exchanges the slots by one compare-exchange; the old slot is its next spare. An object of the
//! page buffer is left to the caller, which reaches it as pointers do.
//!
//! ```text
//!   read     entry ► word ► entry ► copy from the slot ────────────────► word: the same?
//!   write    entry ► word ► entry ► copy, with the change, to a spare ► word: exchange the slots
//! ```
//!
//! So there is nothing that a signal handler of the program, a fork or a thread that stops in the
//! middle could find half done: the object is the old one until it is the new one. That is why
//! signals stay open here, and why the program's own bytes may lie in managed memory.
//!
//! Guarantees: what a read returns was the object's at one instant (`is_current` has the argument);
//! a write is seen whole or not at all, and is lost by nobody: it comes before or after any owner's
//! claim. Neither holds for an object that is `Mapped`: there the caller copies as memcpy(3) does,
//! which is all that the header promises. No system call, no lock, and no store to a line that
//! other threads read, but for the object that is written, and a count of touches that ends at
//! three.
//! Never: allocates, waits, owns an object. May fault, on the program's bytes only.
//! Threads: any, outside the fault path and outside the gate. The gate would keep out changes of
//! objects in RAM during a cut. In its place a clean object refuses here. A changed one does if
//! there is a cut when its bytes have been copied. If the cut begins only then, the write may
//! belong to it: all that the write was made from came before the cut.

use deepheap_policy::replacement;
use deepheap_residency::ownership::{Descriptor, Flag, Glimpse, Seen, UNKNOWN_HASH};
use deepheap_sys::memory::byte_copy;
use deepheap_sys::threads::signals::Blocked;

use crate::calls::access::Piece;
use crate::gate::Level;
use crate::pager::Pager;

/// How often an access that found the object changed begins anew.
const TRIES: usize = 4;

/// The outcome of a direct access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direct {
    /// It is done.
    Done,
    /// The object is in the page buffer: it can be reached through the mapping, as by a pointer.
    Mapped,
    /// Only `access` can do it.
    Refused,
}

impl Pager {
    /// Copies a piece of an object in RAM to `to`.
    ///
    /// # Safety
    /// `to` has room for the piece's bytes.
    pub unsafe fn read_directly(&self, piece: Piece, to: *mut u8) -> Direct {
        let Piece { address, length } = piece;
        let Some(page) = self.managed_page(address) else { return Direct::Refused };
        // The table knows pages of plain spans only once they are taken over.
        let offset = match self.offset_in_object(page, piece) {
            Some(offset) if !self.plain_spans.any() => offset,
            _ => return Direct::Refused,
        };
        for _ in 0..TRIES {
            let seen = match self.residency.ownership.glimpse(page) {
                // Maybe a file's: only an owner knows.
                Glimpse::Zero if self.sources.cover(page, 1) => return Direct::Refused,
                Glimpse::Zero => {
                    // SAFETY: the caller's promise.
                    unsafe { to.write_bytes(0, length) };
                    return Direct::Done;
                }
                Glimpse::Cached(seen) => seen,
                Glimpse::Resident => return Direct::Mapped,
                Glimpse::Away => return Direct::Refused,
            };
            let descriptor = self.residency.ownership.descriptor(seen.id());
            if descriptor.has(Flag::Compressed) {
                return Direct::Refused;
            }
            let Some(slot) = self.residency.cache.glimpse(seen.slot(), offset + length) else {
                continue;
            };
            // SAFETY: the caller's promise; slabs stay mapped, and what is wrong is thrown away.
            if !unsafe { byte_copy::copy(to, slot.add(offset), length) } {
                return Direct::Refused;
            }
            if self.residency.ownership.is_current(seen) {
                touch(descriptor);
                return Direct::Done;
            }
        }
        Direct::Refused
    }

    /// Copies `from` to a piece of an object in RAM that is not as it is in the store.
    ///
    /// # Safety
    /// `from` holds the piece's bytes.
    pub unsafe fn write_directly(&self, piece: Piece, from: *const u8) -> Direct {
        let Some(page) = self.managed_page(piece.address) else { return Direct::Refused };
        let kept = self.residency.kept_bytes(page);
        let offset = match self.offset_in_object(page, piece) {
            Some(offset) if !self.plain_spans.any() => offset,
            _ => return Direct::Refused,
        };
        for _ in 0..TRIES {
            let seen = match self.residency.ownership.glimpse(page) {
                Glimpse::Cached(seen) => seen,
                Glimpse::Resident => return Direct::Mapped,
                Glimpse::Zero | Glimpse::Away => return Direct::Refused,
            };
            let descriptor = self.residency.ownership.descriptor(seen.id());
            // An object with a stored copy has to be owned, to give that up. If one gets a copy
            // from now on, the exchange fails.
            if descriptor.has(Flag::Compressed)
                || descriptor.backing().is_some()
                || descriptor.hash() != UNKNOWN_HASH
            {
                return Direct::Refused;
            }
            let Some(slot) = self.residency.cache.glimpse(seen.slot(), kept) else { continue };
            let Some(spare) = self.residency.cache.take_spare(seen.slot(), kept) else {
                return Direct::Refused;
            };
            // SAFETY: the caller's promise; the spare has room for the object.
            let is_made =
                unsafe { self.make_anew(spare, slot, kept, offset..offset + piece.length, from) };
            let is_cut = self.capture.is_cut();
            let is_done = is_made && !is_cut && self.change_slot(seen, spare);
            self.keep_spare(if is_done { seen.slot() } else { spare });
            if is_done {
                touch(descriptor);
                return Direct::Done;
            }
            if !is_made || is_cut {
                return Direct::Refused;
            }
        }
        Direct::Refused
    }

    /// Puts the object of `kept` bytes that is in `slot`, with the piece changed, into a spare.
    /// False if the program's bytes cannot be read.
    ///
    /// # Safety
    /// `from` holds the piece's bytes, which lie in the object; `spare` is the caller's, and has
    /// room for the object; `slot` lies in the cache.
    unsafe fn make_anew(
        &self,
        spare: u32,
        slot: *const u8,
        kept: usize,
        piece: core::ops::Range<usize>,
        from: *const u8,
    ) -> bool {
        let to = self.residency.cache.address(spare);
        let (offset, end) = (piece.start, piece.end);
        // SAFETY: the caller's promise; if the slot holds something else by now, the exchange fails
        // and the spare is a spare as before.
        unsafe {
            byte_copy::copy(to, slot, offset)
                && byte_copy::copy(to.add(end), slot.add(end), kept - end)
                && byte_copy::copy(to.add(offset), from, end - offset)
        }
    }

    fn change_slot(&self, seen: Seen, spare: u32) -> bool {
        // Before the exchange: from then on a thread that empties the slab may look at the slot.
        self.residency.cache.set_owner(spare, seen.id());
        self.residency.ownership.exchange_slot(seen, spare)
    }

    /// Keeps a slot as this thread's spare, or gives it back: a signal handler, or a thread of the
    /// same lane, may have brought another one meanwhile.
    fn keep_spare(&self, slot: u32) {
        if !self.residency.cache.keep_spare(slot) {
            self.return_spare(slot);
        }
    }

    #[cold]
    fn return_spare(&self, slot: u32) {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        self.residency.cache.end_spare(slot);
    }
}

/// Counts a touch, up to the most that counts: then the line stays as it is.
fn touch(descriptor: &Descriptor) {
    let (reuse, touched) = (descriptor.reuse(), replacement::touched(descriptor.reuse()));
    if touched != reuse {
        // The descriptor may be another object's by now: a hint.
        descriptor.set_reuse(touched);
    }
}
