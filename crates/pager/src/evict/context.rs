//! Eviction context: the pipe, the lists and the slots that one eviction works with.
//!
//! Never: allocates after `new`.
//! Threads: one at a time, under the lock of the context.

use deepheap_residency::codec::Compressor;
use deepheap_residency::object_cache::ObjectCache;
use deepheap_residency::object_cache::Slot;
use deepheap_residency::ownership::{DescriptorId, OwnedList};
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::page_extractor::{BATCH_MAX, PageExtractor, Taken, Victim};

use crate::PAGE;
use crate::reclaim::packer::Packer;

/// Bytes that the kernel keeps for a pipe of `BATCH_MAX` pages; measured.
const PIPE_BYTES: usize = 18 << 10;

/// RAM that a context and its packer take, bytes. The pages in the pipe count in the page buffer
/// until they have left the pipe.
pub(crate) const CONTEXT_BYTES: usize =
    size_of::<EvictionContext>() + size_of::<Packer>() + PIPE_BYTES;

/// Pages that a faulting thread evicts at a time, at most.
pub(crate) const DIRECT_PAGES: usize = BATCH_MAX / 4;

/// The memory of one eviction: a pipe and its lists. One thread at a time.
pub(crate) struct EvictionContext {
    pub(crate) extractor: PageExtractor,
    /// How many unevictable pages the next batch tries again: more of them while they can be
    /// evicted.
    pub(crate) probes: usize,
    /// Candidates, which are not owned. Later the whole pages that were published last, to be
    /// compressed: any thread may have moved them since.
    pub(crate) ids: [DescriptorId; BATCH_MAX],
    /// How many whole pages they are.
    pub(crate) whole: usize,
    /// The victims among them.
    pub(crate) owned: OwnedList<BATCH_MAX>,
    pub(crate) victims: [Victim; BATCH_MAX],
    pub(crate) slots: [u32; BATCH_MAX],
    pub(crate) into: [*mut u8; BATCH_MAX],
    pub(crate) taken: [Taken; BATCH_MAX],
    pub(crate) compressor: Compressor,
    /// Cache slots of a page each, free: pages are taken out into them (`press`).
    landing: [u32; BATCH_MAX],
    landings: usize,
    /// Bytes that a page takes in the cache: a moving average.
    expected: usize,
}

// SAFETY: the pointers are addresses of cache slots, which may be used from any thread.
unsafe impl Send for EvictionContext {}

impl EvictionContext {
    /// A context for so many pages at a time.
    pub(crate) fn new(pages: usize) -> Result<EvictionContext, Errno> {
        Ok(EvictionContext {
            extractor: PageExtractor::of(pages)?,
            probes: 1,
            ids: [DescriptorId(0); BATCH_MAX],
            whole: 0,
            owned: OwnedList::empty(),
            victims: [Victim {
                addr: 0,
                offset: 0,
                len: PAGE,
                may_be_shared: false,
                clears_range: false,
            }; BATCH_MAX],
            slots: [0; BATCH_MAX],
            into: [core::ptr::null_mut(); BATCH_MAX],
            taken: [Taken::Missing; BATCH_MAX],
            compressor: Compressor::default(),
            landing: [0; BATCH_MAX],
            landings: 0,
            expected: PAGE / 2,
        })
    }

    /// Keeps a free slot for the next batch, unless it has enough.
    pub(crate) fn keep_landing(&mut self, cache: &ObjectCache, slot: Slot<'_>) {
        if self.landings < BATCH_MAX {
            cache.lend();
            self.landing[self.landings] = slot.keep();
            self.landings += 1;
        }
    }

    /// A slot that was kept.
    pub(crate) fn take_landing<'a>(&mut self, cache: &'a ObjectCache) -> Option<Slot<'a>> {
        self.landings = self.landings.checked_sub(1)?;
        cache.unlend();
        Some(cache.slot(self.landing[self.landings]))
    }

    /// Gives all slots back that were kept; false if there were none.
    pub(crate) fn free_landings(&mut self, cache: &ObjectCache) -> bool {
        let had_some = self.landings > 0;
        while self.take_landing(cache).is_some() {}
        had_some
    }

    /// Bytes that a page will take in the cache.
    pub(crate) fn expected(&self) -> usize {
        self.expected
    }

    /// A page took so many bytes.
    pub(crate) fn expect(&mut self, bytes: usize) {
        self.expected = (self.expected * 31 + bytes) / 32;
    }

    /// In a forked child: opens a new pipe. Until then it shares its parent's.
    pub(crate) fn after_fork(&mut self) -> Result<(), Errno> {
        self.extractor.after_fork()
    }
}
