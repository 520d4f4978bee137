//! Evict: takes the oldest pages out of the page buffer, a batch at a time, into the object cache.
//!
//! Guarantees: the bytes that reach the cache are final (`page_extractor` has the argument; pages
//! that the zero page, a fork or a plain past may have left shared are marked and made exclusive
//! first). A page whose hash is unchanged keeps its home block: it is clean. A page of zeros, or
//! one that no live allocation touches, is not kept at all.
//! Never: allocates, touches managed memory, waits for space in the log while owning an object.
//! Threads: the evictor, and faulting threads at the ceiling; each batch under one eviction
//! context.

use deepheap_heap::PageNo;
use deepheap_store::{ContentHash, StoreError};
use deepheap_sys::errno::Errno;
use deepheap_sys::page_extractor::{BATCH_MAX, PageExtractor, RANGE, Taken, Victim};

use crate::PAGE;
use crate::balancer::Balancer;
use crate::budget;
use crate::descriptor::{Descriptor, DescriptorId, List, State};
use crate::gate::Level;
use crate::object_table::Place;
use crate::pager::Pager;
use crate::ranges::RangeNo;

/// DRAM that a context uses beside the pages of a batch.
pub(crate) const LISTS_BYTES: usize = 64 * 1024;

/// Pages that a faulting thread evicts at a time, at most.
pub(crate) const DIRECT_PAGES: usize = BATCH_MAX / 4;

/// While some pages cannot be evicted, so many others stay: an instruction and what it works on
/// must fit at the same time.
const EVICTABLE_MIN: usize = 32;

/// Page tables up to this part of the budget are left alone, and up to as much as the page buffer.
const PAGE_TABLES_PART: usize = 32;

/// What eviction and reclaim did, in objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moves {
    /// Left the page buffer unchanged since it was installed.
    pub clean: u32,
    /// Left it changed.
    pub dirty: u32,
    /// Left it as a page of zeros.
    pub zero: u32,
    /// Left it untouched by any live allocation, or taken away by the program.
    pub free: u32,
    /// Left the cache for the block it already has.
    pub reclaimed_clean: u32,
    /// Left the cache for a new block.
    pub reclaimed_dirty: u32,
    /// Came to the head of the cache's queue, had been touched again, and stayed.
    pub second_chances: u32,
    /// Batches that a faulting thread evicted by itself.
    pub direct: u32,
    /// Nanoseconds that a faulting thread waited, or worked, for room in the page buffer.
    pub stall_ns: u64,
}

impl Moves {
    /// Objects that left the page buffer.
    pub fn evicted(&self) -> u32 {
        self.clean + self.dirty + self.zero + self.free
    }
}

/// What one eviction needs: a pipe and its lists. One thread at a time.
pub(crate) struct EvictContext {
    extractor: PageExtractor,
    /// How many of the pages that could not be evicted the next batch tries: more while they can.
    probes: usize,
    ids: [DescriptorId; BATCH_MAX],
    victims: [Victim; BATCH_MAX],
    slots: [u32; BATCH_MAX],
    into: [*mut u8; BATCH_MAX],
    taken: [Taken; BATCH_MAX],
}

// SAFETY: the pointers are addresses of cache slots, which may be used from any thread.
unsafe impl Send for EvictContext {}

impl EvictContext {
    pub(crate) fn new() -> Result<EvictContext, Errno> {
        Ok(EvictContext {
            extractor: PageExtractor::new()?,
            probes: 1,
            ids: [DescriptorId(0); BATCH_MAX],
            victims: [Victim { addr: 0, len: PAGE, may_be_shared: false, clears_range: false };
                BATCH_MAX],
            slots: [0; BATCH_MAX],
            into: [core::ptr::null_mut(); BATCH_MAX],
            taken: [Taken::Missing; BATCH_MAX],
        })
    }

    /// The pipe is shared with the parent until this has run in a forked child.
    pub(crate) fn after_fork(&mut self) -> Result<(), Errno> {
        self.extractor.after_fork()
    }
}

impl Pager {
    /// Evictor: takes out one batch if the page buffer is above its mark. False when no page left
    /// it: there was nothing to take, or all that there is cannot be taken.
    pub fn evict(&self, moves: &mut Moves) -> Result<bool, StoreError> {
        if self.page_buffer.excess(true) == 0 {
            return Ok(false);
        }
        let mut context = self.contexts[0].lock();
        self.evict_batch(&mut context, budget::batch_pages(self.budget.bytes()), moves)
    }

    /// A faulting thread at the ceiling: takes out a batch itself, unless another one has
    /// meanwhile.
    pub(crate) fn evict_directly(&self, moves: &mut Moves) -> Result<bool, StoreError> {
        self.wake_evictor();
        let free = self.contexts.iter().find_map(|context| context.try_lock());
        let mut context = match free {
            Some(context) => context,
            None => self.contexts[self.contexts.len() - 1].lock(),
        };
        if self.page_buffer.pages() < self.page_buffer.limit() {
            return Ok(true);
        }
        moves.direct += 1;
        self.evict_batch(&mut context, DIRECT_PAGES, moves)
    }

    fn evict_batch(
        &self,
        context: &mut EvictContext,
        want: usize,
        moves: &mut Moves,
    ) -> Result<bool, StoreError> {
        if self.has_plain_spans() {
            self.take_over_span();
        }
        let _passage = self.gate.enter(Level::Mover);
        // A forked child may have been granted a smaller pipe than its parent.
        let want = want.min(context.extractor.batch());
        let (before, set_aside) = (moves.evicted(), self.descriptors.unevictable());
        let candidates = self.find_candidates(context, want);
        let with_slots = self.take_slots(context, candidates, moves)?;
        let victims = self.claim_victims(context, with_slots);
        if victims > 0 {
            self.close_ranges(&mut context.victims[..victims]);
            // SAFETY: the pages are owned (Leaving), lie in registered spans, and each slot has
            // room for its object and no other owner. A range to be cleared is closed, and holds
            // victims of this batch only.
            let extracted = unsafe {
                context.extractor.extract(
                    self.zapper.get(),
                    &context.victims[..victims],
                    &context.into[..victims],
                    &mut context.taken[..victims],
                )
            };
            if extracted.is_err() {
                // The kernel refused before anything was zapped: all stay.
                context.taken[..victims].fill(Taken::Unreadable);
            }
            self.leave_ranges(&context.victims[..victims], &context.taken[..victims]);
        }
        for index in 0..victims {
            self.settle(context.ids[index], context.slots[index], context.taken[index], moves);
        }
        // Others set aside and evict as well: a hint.
        let unevictable = self.descriptors.unevictable();
        context.probes = (2 * set_aside.saturating_sub(unevictable)).clamp(1, BATCH_MAX / 2);
        if unevictable != self.page_buffer.unevictable() {
            self.page_buffer.set_unevictable(unevictable);
        }
        let evicted = moves.evicted() - before;
        self.balancer.left(evicted as usize, self.page_buffer.limit());
        Ok(evicted > 0)
    }

    /// Looks up to `want` of the oldest pages up, in address order; they belong to nobody yet.
    fn find_candidates(&self, context: &mut EvictContext, want: usize) -> usize {
        let mut found = [(PageNo(0), DescriptorId(0)); BATCH_MAX];
        let mut count = 0;
        let pages = self.page_buffer.pages();
        let probes = self.descriptors.unevictable().min(context.probes).min(want);
        let oldest = (want - probes).min(self.evictable());
        for (list, most) in [(List::Unevictable, probes), (List::PageBuffer, oldest)] {
            if most == 0 {
                continue;
            }
            let mut round = self.descriptors.round(list, pages, most);
            for _ in 0..most {
                let Some(id) = self.descriptors.next_to_evict(&mut round, list) else { break };
                found[count] = (self.descriptors.get(id).page(), id);
                count += 1;
            }
        }
        found[..count].sort_unstable_by_key(|(page, _)| page.0);
        for (index, &(page, id)) in found[..count].iter().enumerate() {
            context.ids[index] = id;
            context.victims[index].addr = self.address_of(page);
        }
        count
    }

    /// Pages that may be evicted: all, or if some cannot be, all others but the last few.
    pub(crate) fn evictable(&self) -> usize {
        match self.page_buffer.unevictable() {
            0 => self.page_buffer.pages(),
            _ => {
                let kept = EVICTABLE_MIN.min(self.page_buffer.limit() / 4);
                self.descriptors.length(List::PageBuffer).saturating_sub(kept)
            }
        }
    }

    /// An owned page that cannot be evicted stands aside from now on, and is owned no more.
    fn set_aside(&self, id: DescriptorId) {
        self.descriptors.move_to(id, List::Unevictable);
        self.descriptors.get(id).change(State::Resident);
    }

    /// Gives each of the first `count` candidates a cache slot of its size, reclaiming for them;
    /// returns how many got one. Done before anything is owned: reclaim may wait for the log.
    fn take_slots(
        &self,
        context: &mut EvictContext,
        count: usize,
        moves: &mut Moves,
    ) -> Result<usize, StoreError> {
        let mut got = 0;
        while got < count {
            let bytes = self.bytes_to_take(self.page_at(context.victims[got].addr));
            if let Some(slot) = self.cache.take(bytes) {
                context.slots[got] = slot;
                got += 1;
                continue;
            }
            match self.reclaim(count - got, moves) {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) if got > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }

    /// Bytes to take out of a page: its object. All of it if it is free: an allocation of larger
    /// objects may come to it, and be written to, before it is unmapped. A page that is not free
    /// keeps its shape as long as we own it: who frees it waits.
    fn bytes_to_take(&self, page: PageNo) -> usize {
        if self.heap.page_is_free(page) { PAGE } else { self.unit_bytes(page) }
    }

    /// Claims those of the first `count` candidates that are still what they were, at the front of
    /// the context's lists; the slots of the others are given back.
    fn claim_victims(&self, context: &mut EvictContext, count: usize) -> usize {
        let mut chosen = 0;
        for index in 0..count {
            let (id, slot) = (context.ids[index], context.slots[index]);
            let descriptor = self.descriptors.get(id);
            let addr = context.victims[index].addr;
            if !descriptor.claim(State::Leaving) {
                self.cache.give_back(slot); // someone owns it for a moment
                continue;
            }
            let len = self.bytes_to_take(descriptor.page());
            // Another object, of another size, may have come to the page since.
            let is_other =
                self.address_of(descriptor.page()) != addr || len > self.cache.slot_bytes(slot);
            if descriptor.is_pinned() || is_other {
                descriptor.change(State::Resident);
                self.cache.give_back(slot);
                continue;
            }
            context.ids[chosen] = id;
            context.slots[chosen] = slot;
            context.victims[chosen] = Victim {
                addr,
                len,
                may_be_shared: descriptor.may_be_shared(),
                clears_range: false,
            };
            context.into[chosen] = self.cache.address(slot);
            chosen += 1;
        }
        chosen
    }

    /// Closes the ranges whose last pages these victims are; the last of each clears it. While the
    /// page tables are small they may stay: a fault then need not wait for a closed range, nor have
    /// the kernel make a new table.
    fn close_ranges(&self, victims: &mut [Victim]) {
        // Pages of spans that the take-over has not looked at are in no count.
        if self.has_plain_spans() || !self.zapper.get().frees_page_tables() {
            return;
        }
        let most = self.budget.bytes() / PAGE_TABLES_PART;
        if self.ranges.page_table_bytes() <= most.min(self.page_buffer.limit() * PAGE) {
            return;
        }
        for group in victims.chunk_by_mut(same_range) {
            let count = group.len();
            if let Some(last) = group.last_mut() {
                last.clears_range = self.ranges.close(self.range_of(last), count);
            }
        }
    }

    /// Counts those that were taken out of their ranges, and opens the ranges that were closed.
    fn leave_ranges(&self, victims: &[Victim], taken: &[Taken]) {
        let mut first = 0;
        for group in victims.chunk_by(same_range) {
            let taken = &taken[first..first + group.len()];
            first += group.len();
            let left = taken.iter().filter(|&&taken| taken == Taken::Unreadable).count();
            let closed = group.last().filter(|last| last.clears_range);
            match (closed, group.first()) {
                (Some(last), _) => self.ranges.open(self.range_of(last), left),
                (None, Some(one)) => {
                    self.ranges.leave_many(self.range_of(one), group.len() - left);
                }
                (None, None) => {}
            }
        }
    }

    fn range_of(&self, victim: &Victim) -> RangeNo {
        RangeNo::of(self.page_at(victim.addr))
    }

    /// Decides what becomes of one extracted object and publishes it.
    fn settle(&self, id: DescriptorId, slot: u32, taken: Taken, moves: &mut Moves) {
        let descriptor = self.descriptors.get(id);
        match taken {
            Taken::Unreadable => {
                // Protected or locked by the program. What is pinned is not set aside: looking at
                // it costs little, most pins end soon, and long ones are of half a buffer at most.
                self.cache.give_back(slot);
                self.set_aside(id);
                return;
            }
            Taken::Missing => {
                moves.free += 1;
                self.forget(id, slot);
            }
            Taken::Copied if self.heap.page_is_free(descriptor.page()) => {
                moves.free += 1;
                self.forget(id, slot);
            }
            Taken::Copied => {
                let bytes = self.unit_bytes(descriptor.page());
                // SAFETY: the slot is ours alone and holds the object.
                let data = unsafe { core::slice::from_raw_parts(self.cache.address(slot), bytes) };
                let hash = ContentHash::of(data);
                let is_zero = match bytes {
                    PAGE => hash == self.zero_hash,
                    _ => data.iter().all(|&byte| byte == 0),
                };
                if is_zero {
                    moves.zero += 1;
                    self.forget(id, slot);
                } else {
                    self.cache_object(id, slot, hash, moves);
                }
            }
        }
        self.page_buffer.unreserve(1);
    }

    fn cache_object(&self, id: DescriptorId, slot: u32, hash: ContentHash, moves: &mut Moves) {
        let descriptor = self.descriptors.get(id);
        if hash == descriptor.hash() && descriptor.home().is_some() {
            moves.clean += 1;
        } else {
            moves.dirty += 1;
            self.drop_home(descriptor);
        }
        descriptor.set_hash(hash);
        self.put_in_cache(id, slot, Balancer::leaves);
    }

    /// The owned object, whose bytes are in the slot, is a cached one from now on; the balancer is
    /// told by `note` where it came from.
    pub(crate) fn put_in_cache(
        &self,
        id: DescriptorId,
        slot: u32,
        note: impl FnOnce(&Balancer, &Descriptor, bool),
    ) {
        let descriptor = self.descriptors.get(id);
        descriptor.set_slot(slot);
        // In the list first: once the place is published anyone may claim the object and move it
        // on.
        self.cache.set_owner(slot, id);
        let known = self.descriptors.enter_cache(id);
        note(&self.balancer, descriptor, known);
        self.publish_cached(id);
    }

    /// Publishes an owned object as cached; it stands in the cache's list already.
    pub(crate) fn publish_cached(&self, id: DescriptorId) {
        let descriptor = self.descriptors.get(id);
        descriptor.change(State::Moving);
        self.table.publish(descriptor.page(), Place::Cached(id));
        // Not ours any more: only who waited for what we did must learn of it.
        descriptor.pass_on();
    }

    /// Ends an owned object that is in DRAM and worth nothing: its page reads as zeros from now on.
    fn forget(&self, id: DescriptorId, slot: u32) {
        self.cache.give_back(slot);
        self.end_as_zero(id);
    }

    /// The owned object becomes `Zero`; its descriptor and its home block are free again.
    pub(crate) fn end_as_zero(&self, id: DescriptorId) {
        let descriptor = self.descriptors.get(id);
        self.drop_home(descriptor);
        self.table.publish(descriptor.page(), Place::Zero);
        self.descriptors.release(id);
    }

    /// The stored copy of an owned object is worth nothing any more.
    pub(crate) fn drop_home(&self, descriptor: &Descriptor) {
        if let Some(block) = descriptor.home() {
            descriptor.set_home(None);
            self.store.retire(block, self.cost_of(descriptor.page()));
        }
    }
}

fn same_range(one: &Victim, other: &Victim) -> bool {
    one.addr / RANGE == other.addr / RANGE
}
