//! Press: whole pages lie compressed in the object cache and in the log.
//!
//! A page of 4096 bytes that leaves the page buffer is compressed if that makes it clearly smaller.
//! It is taken out into a slot of its full size and published there. Only then, page by page, it is
//! claimed again and moves to a slot of its compressed size. So there is always room for a page
//! that does not compress, nobody waits for room while it owns an object, and who touches a page of
//! the batch waits for the compression of that page at most. The full slots stay with the eviction
//! context, for its next batch (*landing*).
//!
//! ```text
//!   page buffer ── extract ──► landing slot ── publish ──► claim, compress ──► small slot
//!                                 │  │                └── it does not, or no small slot is free:
//!                                 │  └── faulted in: copied from there       stays there
//!                                 └── freed, moved, reclaimed: as any cached object
//! ```
//!
//! Between publication and compression the object is as any other of the cache. What may have
//! happened when it is claimed again:
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
//! compare-exchange with acquire. So who claims sees the bytes of the slot, and the descriptor's
//! relaxed fields, as the publisher before left them: we those of a call that wrote to the slot,
//! and the fault after us the compressed bytes with the slot and the flag that belong to them.
//! Threads that look without a claim (`reclaim`) may see slot and flag of different times. They
//! take both as hints, and look again once they own the object.
//!
//! Guarantees: the hash of an object is that of its uncompressed bytes. Where the hash of a cached
//! page with a backing block is not known (it came compressed from the log) it is made when the
//! page is next decompressed.
//! Never: allocates; waits while it owns an object; owns more than one object at a time.
//! Threads: any, inside the mover's gate.

use deepheap_residency::codec;
use deepheap_residency::ownership::{Flag, Owned, UNKNOWN_HASH};
use deepheap_store::{Block, StoreError};
use deepheap_sys::process::clock;

use crate::PAGE;
use crate::counters::Counted;
use crate::evict::context::EvictionContext;
use crate::pager::Pager;
use crate::trace::Happened;

impl Pager {
    /// Compresses the pages of the batch that was published last, if they are still in the cache
    /// as they are.
    pub(crate) fn press_batch(&self, context: &mut EvictionContext) {
        for index in (0..context.whole).rev() {
            let id = context.ids[index];
            let page = self.residency.ownership.descriptor(id).page();
            if !self.compression.is_tried(page) {
                continue;
            }
            let Some(owned) = self.residency.ownership.claim_cached(page, id) else { continue };
            self.press(context, &owned);
            self.residency.ownership.cached(owned);
        }
        self.shrink_landing(context);
    }

    /// Compresses an owned page of the cache, if that is worth it, and puts it in a smaller slot.
    fn press(&self, context: &mut EvictionContext, owned: &Owned) {
        let descriptor = self.residency.ownership.of(owned);
        let (page, slot) = (descriptor.page(), descriptor.slot());
        let is_whole = !descriptor.has(Flag::Compressed)
            && !self.residency.heap.page_is_free(page)
            && self.residency.kept_bytes(page) == PAGE
            && self.residency.cache.slot_bytes(slot) == PAGE;
        if !is_whole {
            return;
        }
        let start_ns = clock::monotonic_ns();
        // SAFETY: the slot is the owner's alone and holds a page.
        let data = unsafe { self.residency.cache.object(slot, PAGE) };
        let most = self.compression.most_bytes();
        let compressed = context.compressor.compress(data, most);
        self.compression.note_trial(page, compressed.is_some());
        let small = compressed.and_then(|bytes| self.residency.cache.take_compressed(bytes));
        let taken = compressed.map_or(PAGE, <[u8]>::len);
        self.count(Counted::GivenUp, compressed.is_none().into());
        context.expect(taken);
        self.count(Counted::CompressNs, clock::monotonic_ns() - start_ns);
        let Some(small) = small else { return };
        self.count(Counted::Compressed, 1);
        self.count(Counted::CompressedBytes, taken as u64);
        self.residency.trace.note(Happened::Pressed, page, taken);
        descriptor.set(Flag::Compressed, true);
        let whole = self.residency.change_slot(owned, small);
        if !self.residency.cache.is_over_limit() {
            context.keep_landing(&self.residency.cache, whole);
        }
    }

    /// Makes the page of a cached object that is compressed. Its hash is known then if it has a
    /// backing block.
    pub(crate) fn unpress(&self, owned: &Owned, page: &mut [u8; PAGE]) -> Result<(), StoreError> {
        let descriptor = self.residency.ownership.of(owned);
        // SAFETY: the slot is the owner's alone and holds a compressed page.
        let bytes = unsafe { self.residency.cache.compressed(descriptor.slot()) };
        let backing = descriptor.backing();
        if !self.decompress(bytes, page) {
            // RAM that has changed by itself: there is nothing to serve.
            return Err(StoreError::Corrupt(backing.unwrap_or(Block(u32::MAX))));
        }
        if backing.is_some() && descriptor.hash() == UNKNOWN_HASH {
            descriptor.set_hash(self.residency.store.hash(page));
        }
        Ok(())
    }

    /// Makes a page of compressed bytes; false if they are not those of one.
    #[must_use]
    pub(crate) fn decompress(&self, bytes: &[u8], page: &mut [u8; PAGE]) -> bool {
        let start_ns = clock::monotonic_ns();
        let is_page = codec::decompress(bytes, page);
        self.count(Counted::CompressNs, clock::monotonic_ns() - start_ns);
        self.count(Counted::Decompressed, 1);
        is_page
    }

    /// Gives the landing slots back that the context keeps, if the cache is to shrink.
    fn shrink_landing(&self, context: &mut EvictionContext) {
        while self.residency.cache.is_over_limit()
            && context.take_landing(&self.residency.cache).is_some()
        {}
    }
}
