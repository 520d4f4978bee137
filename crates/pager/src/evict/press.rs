//! Press: whole pages lie compressed in the object cache and in the log.
//!
//! A page of 4096 bytes that leaves the page buffer is compressed if that makes it clearly smaller.
//! It is taken out into a slot of its full size and published there. Only then, page by page, it is
//! claimed again and moves to a slot of its compressed size. So there is always room for a page
//! that does not compress, nobody waits for room while it owns an object, and a thread that touches
//! a page of the batch waits for the compression of that page at most. The full slots stay with the
//! eviction context, for its next batch (*landing*).
//!
//! ```text
//!   page buffer ── extract ──► landing slot ── publish ──► claim, compress ──► small slot
//!                                 │  │                └── it does not, or there is no small slot:
//!                                 │  └── faulted in: copied from there       stays there
//!                                 └── freed, moved, reclaimed: as any cached object
//! ```
//!
//! Between publication and compression the object is as any other of the cache. When it is claimed
//! again, this may have happened:
//!
//! - A fault or a free took it: the entry is no longer `Cached` with this descriptor, and the claim
//!   fails. If the descriptor serves another cached page by now, that one is compressed instead.
//! - It was faulted in and evicted again, with the same descriptor, or `compact` moved it: the
//!   claim succeeds. The slot is read after the claim, so it is the one that the object is in now.
//!   It may be compressed already.
//! - A call wrote to it in its slot: the claim comes after that thread's publication.
//! - Its page was freed, or is about to be: it is left alone.
//! - A fork cannot come between: the whole batch is inside the mover's gate.
//!
//! Memory order: a publisher stores the entry with release (`ObjectTable::publish`), a claim is a
//! compare-exchange with acquire. So a thread that claims sees the bytes of the slot, and the
//! descriptor's relaxed fields, as the publisher before left them: we those of a call that wrote to
//! the slot, and the fault after us the compressed bytes with the slot and the flag that belong to
//! them. Threads that look without a claim (`reclaim`) may see slot and flag of different times.
//! They take both as hints, and look again once they own the object.
//!
//! Guarantees: the hash of an object is that of its uncompressed bytes. Where the hash of a cached
//! page with a backing block is not known (it came compressed from the log) it is made when the
//! page is next decompressed.
//! Never: allocates; waits while it owns an object; owns more than one object at a time.
//! Threads: any, inside the mover's gate.

use deepheap_residency::Residency;
use deepheap_residency::counters::Counted;
use deepheap_residency::ownership::{Flag, Owned};
use deepheap_sys::process::clock;

use crate::PAGE;
use crate::evict::compression::Compression;
use crate::evict::context::EvictionContext;
use crate::trace::Happened;

/// How often one batch makes room for a compressed page: a time gives room for many pages. Where it
/// does not, more tries would only take time.
const MAKES_ROOM_MAX: u32 = 4;

/// The outcome for a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pressed {
    /// It is compressed, or stays as it is.
    Done,
    /// It compresses, and no slot of that size is free.
    WantsSlot,
}

impl EvictionContext {
    /// Compresses the pages of the batch that was published last, if they are still in the cache
    /// as they are. Where there is no slot for one, `make_room` is called, a few times at most, and
    /// it is tried once more.
    pub(crate) fn press_batch(
        &mut self,
        residency: &Residency,
        compression: &Compression,
        mut make_room: impl FnMut() -> bool,
    ) {
        let mut tries_left = MAKES_ROOM_MAX;
        for index in (0..self.whole).rev() {
            let id = self.ids[index];
            let page = residency.ownership.descriptor(id).page();
            if !compression.is_tried(page) {
                continue;
            }
            let mut press = || {
                let owned = residency.ownership.claim_cached(page, id)?;
                let pressed = self.press(residency, compression, &owned);
                residency.ownership.cached(owned);
                Some(pressed)
            };
            if press() == Some(Pressed::WantsSlot) && tries_left > 0 {
                tries_left -= 1;
                if make_room() {
                    press();
                }
            }
        }
        // The landing slots go back if the cache is to shrink.
        while residency.cache.is_over_limit() && self.take_landing(&residency.cache).is_some() {}
    }

    /// Compresses an owned page of the cache, if that is worth it, and puts it in a smaller slot.
    fn press(
        &mut self,
        residency: &Residency,
        compression: &Compression,
        owned: &Owned,
    ) -> Pressed {
        let descriptor = residency.ownership.of(owned);
        let (page, slot) = (descriptor.page(), descriptor.slot());
        let is_whole = !descriptor.has(Flag::Compressed)
            && !residency.heap.page_is_free(page)
            && residency.kept_bytes(page) == PAGE
            && residency.cache.slot_bytes(slot) == PAGE;
        if !is_whole {
            return Pressed::Done;
        }
        let start_ns = clock::monotonic_ns();
        // SAFETY: the slot is the owner's alone and holds a page.
        let data = unsafe { residency.cache.object(slot, PAGE) };
        let most = compression.most_bytes();
        let compressed = self.compressor.compress(data, most);
        compression.first.note(page, compressed.is_some());
        let small = compressed.map(|bytes| residency.cache.take_compressed(bytes));
        let taken = compressed.map_or(PAGE, <[u8]>::len);
        residency.count(Counted::GivenUp, compressed.is_none().into());
        self.expect(taken);
        residency.count(Counted::CompressNs, clock::monotonic_ns() - start_ns);
        let small = match small {
            None => return Pressed::Done,
            Some(None) => return Pressed::WantsSlot,
            Some(Some(small)) => small,
        };
        residency.count(Counted::Compressed, 1);
        residency.count(Counted::CompressedBytes, taken as u64);
        residency.trace.note(Happened::Pressed, page, taken);
        descriptor.set(Flag::Compressed, true);
        let whole = residency.change_slot(owned, small);
        if !residency.cache.is_over_limit() {
            self.keep_landing(&residency.cache, whole);
        }
        Pressed::Done
    }
}
