//! Evict: moves pages from the page buffer to the object cache, a batch at a time.
//!
//! Guarantees: the bytes that reach the cache are final (`page_extractor` has the argument). A page
//! that may be shared, because it may be the zero page, or because of a fork or of writes while its
//! span was plain, is marked and made exclusive first. A page whose hash is unchanged keeps its
//! backing block: it is clean. A page of zeros, or one that no live allocation touches, is not kept
//! at all, nor is one that a file has. Pages are published in the cache before they are compressed
//! (`press`), so nobody waits for the compression of a whole batch.
//! Never: allocates, touches managed memory, waits for space in the log while owning an object.
//! Threads: the evictor, and faulting threads at the ceiling; each batch under one eviction
//! context.

pub(crate) mod compression;
pub(crate) mod context;
pub(crate) mod press;

use deepheap_heap::{LANE_BYTES, PageNo};
use deepheap_policy::replacement;
use deepheap_residency::object_cache::Slot;
use deepheap_residency::ownership::{DescriptorId, Flag, List, Owned, UNKNOWN_HASH};
use deepheap_residency::ranges::RangeNo;
use deepheap_store::StoreError;
use deepheap_sys::memory::page_extractor::{BATCH_MAX, RANGE, Taken, Victim};
use deepheap_sys::process::clock;
use deepheap_sys::threads::tls;

use crate::PAGE;
use crate::budget;
use crate::evict::context::{DIRECT_PAGES, EvictionContext};
use crate::gate::Level;
use crate::moves::Moves;
use crate::pager::Pager;
use crate::patience::Patience;
use crate::trace::Happened;

/// While some pages cannot be evicted, so many others stay: an instruction and all its operands
/// must fit at the same time.
const EVICTABLE_MIN: usize = 32;

/// How often one eviction makes room in the cache. The pages of the largest batch, compressed, take
/// no more than the objects that leave in four.
const RECLAIMS_MAX: u32 = 8;
/// The same for a thread of the program, which has 64 pages and waits for nobody.
const RECLAIMS_AT_ONCE: u32 = 2;
/// If it finds no room for so many pages, it takes none: each flush of TLBs interrupts all
/// processors, and others that have the log make room.
const AT_ONCE_LEAST: usize = DIRECT_PAGES / 4;
/// For each page that it takes out, an eviction makes at most so many objects of the cache dense.
/// One that becomes half as large makes room for half of another.
const DENSE_PER_PAGE: usize = 4;
/// An eviction makes at most so many objects dense, which takes 6 ms: others wait for it. What else
/// has to leave the cache leaves as it is.
pub(crate) const DENSE_MAX: usize = 512;

/// Page tables are left alone up to this part of the budget, or up to the size of the page buffer.
const PAGE_TABLES_PART: usize = 32;

/// The outcome for a page that was to leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Became {
    /// It stays in the page buffer.
    Resident,
    /// It has left.
    Gone,
    /// It has left; its object, a whole page, is in the cache as it is.
    CachedPage,
}

impl Pager {
    /// One step of the evictor with this number: takes out one batch if the page buffer is above
    /// its mark. False if no page left: there was nothing to evict, or nothing that can be evicted.
    /// Its context is its own; a thread that found it idle has it for one piece at most.
    pub fn evict(&self, evictor: usize, moves: &mut Moves) -> Result<bool, StoreError> {
        if self.residency.frames.page_buffer.excess(true) == 0 {
            return Ok(false);
        }
        let mut context = self.contexts[evictor % self.contexts.len()].lock();
        let want = budget::batch_pages(self.budget.bytes());
        let evicted = self.evict_batch(&mut context, want, Patience::Waits, moves);
        drop(context);
        self.residency.frames.page_buffer.note_end();
        evicted
    }

    /// For a faulting thread at the ceiling: evicts a few pages itself, unless another thread has
    /// made room meanwhile. None if as many threads evict as may at a time.
    pub(crate) fn evict_directly(
        &self,
        patience: Patience,
        moves: &mut Moves,
    ) -> Option<Result<bool, StoreError>> {
        self.signal_eviction();
        // The first evictor may be busy with something else.
        self.workers.call_helper();
        // Each thread tries another context first, and those of the evictors last.
        let (of_evictors, others) = self.contexts.split_at(budget::evictors(self.contexts.len()));
        let (others, skipped) = (others.iter().cycle(), tls::lane() % others.len().max(1));
        let rest = others.skip(skipped).take(self.contexts.len() - of_evictors.len());
        let mut context = rest.chain(of_evictors).find_map(|context| context.try_lock())?;
        let has_room =
            self.residency.frames.page_buffer.pages() < self.residency.frames.page_buffer.limit();
        let evicted = if has_room {
            Ok(true)
        } else {
            moves.direct += 1;
            self.evict_batch(&mut context, DIRECT_PAGES, patience, moves)
        };
        drop(context);
        self.residency.frames.page_buffer.note_end();
        Some(evicted)
    }

    fn evict_batch(
        &self,
        context: &mut EvictionContext,
        want: usize,
        patience: Patience,
        moves: &mut Moves,
    ) -> Result<bool, StoreError> {
        // The evictor takes the others over. A thread that faults does so only if there would be
        // nothing to evict: one thread at a time takes a piece over.
        if self.plain_spans.any() && self.residency.ownership.descriptors.evictable() == (0, 0) {
            self.take_over_piece();
        }
        let _passage = self.gate.enter(Level::Mover);
        let (before, set_aside) =
            (moves.evicted(), self.residency.ownership.descriptors.length(List::Unevictable));
        // A thread that waits for nobody holds a head of the log while it reclaims: no zstd then,
        // and no more reclaims than for its slots.
        let may_wait = patience == Patience::Waits;
        moves.may_press = if may_wait { (want * DENSE_PER_PAGE).min(DENSE_MAX) as u32 } else { 0 };
        let start_ns = self.take_out(context, want, patience, moves)?;
        context.press_batch(&self.residency, &self.compression, || {
            may_wait && matches!(self.reclaim(1, patience, moves), Ok(true))
        });
        let evict_ns = clock::monotonic_ns() - start_ns;
        // Other threads change these counts as well: a hint.
        let unevictable = self.residency.ownership.descriptors.length(List::Unevictable);
        context.probes = (2 * set_aside.saturating_sub(unevictable)).clamp(1, BATCH_MAX / 2);
        if unevictable != self.residency.frames.page_buffer.unevictable() {
            self.residency.frames.page_buffer.set_unevictable(unevictable);
        }
        let evicted = moves.evicted() - before;
        self.balancer.left(evicted as usize, evict_ns, self.residency.frames.page_buffer.limit());
        Ok(evicted > 0)
    }

    /// Moves up to `want` of the oldest pages to the cache, as they are; `press_batch` comes next.
    /// Returns when there were slots for them.
    pub(crate) fn take_out(
        &self,
        context: &mut EvictionContext,
        want: usize,
        patience: Patience,
        moves: &mut Moves,
    ) -> Result<u64, StoreError> {
        // A forked child may have been granted a smaller pipe than its parent.
        let want = want.min(context.extractor.batch());
        let candidates = self.find_candidates(context, want);
        let with_slots = self.take_slots(context, candidates, patience, moves)?;
        let start_ns = clock::monotonic_ns();
        let victims = self.claim_victims(context, with_slots);
        if victims > 0 {
            self.close_ranges(&mut context.victims[..victims]);
            // SAFETY: the pages are owned (Leaving), lie in registered spans, and each slot has
            // room for its object and no other owner. A range to be cleared is closed, and holds
            // victims of this batch only.
            let extracted = unsafe {
                context.extractor.extract(
                    self.residency.frames.zapper(),
                    &context.victims[..victims],
                    &context.into[..victims],
                    &mut context.taken[..victims],
                )
            };
            if extracted.is_err() {
                // The kernel refused before anything was zapped: all pages stay.
                context.taken[..victims].fill(Taken::Unreadable);
            }
            self.leave_ranges(&context.victims[..victims], &context.taken[..victims]);
        }
        self.publish_batch(context, victims, moves);
        Ok(start_ns)
    }

    /// Publishes the extracted objects, and ends the reservations of those that have left: from
    /// here on faults find room, and find the objects in the cache. Lists the whole pages among
    /// them, which `press_batch` then compresses.
    fn publish_batch(&self, context: &mut EvictionContext, victims: usize, moves: &mut Moves) {
        let mut left = 0;
        context.whole = 0;
        for index in 0..victims {
            let (owned, taken) = (context.owned.take(index), context.taken[index]);
            let id = owned.id();
            let slot = self.residency.cache.slot(context.slots[index]);
            let became = self.publish_evicted(owned, slot, taken, moves);
            left += usize::from(became != Became::Resident);
            if became == Became::CachedPage {
                context.ids[context.whole] = id;
                context.whole += 1;
            }
        }
        // Once for the whole batch: every fault reads this count.
        self.residency.frames.page_buffer.hand_out(left);
    }

    /// Finds up to `want` of the oldest pages of the lists that the policy names, in address order.
    /// They are not owned yet.
    fn find_candidates(&self, context: &mut EvictionContext, want: usize) -> usize {
        let mut found = [(PageNo(0), DescriptorId(0)); BATCH_MAX];
        let ids = &mut context.ids;
        let mut count = 0;
        let pages = self.residency.frames.page_buffer.pages();
        let probes = self
            .residency
            .ownership
            .descriptors
            .length(List::Unevictable)
            .min(context.probes)
            .min(want);
        let oldest = (want - probes).min(self.evictable());
        let (on_probation, protected) = self.residency.ownership.descriptors.evictable();
        let (on_probation, protected) = replacement::to_evict(oldest, on_probation, protected);
        let lists = [
            (List::Unevictable, probes),
            (List::Probation, on_probation),
            (List::Protected, protected),
        ];
        for (list, most) in lists {
            if most == 0 {
                continue;
            }
            let mut round = self.residency.ownership.descriptors.round(list, pages, most);
            let end = count + most;
            while count < end {
                let ids = &mut ids[..end - count];
                let descriptors = &self.residency.ownership.descriptors;
                let run = descriptors.next_to_evict(&mut round, list, ids);
                if run == 0 {
                    break;
                }
                for &id in &ids[..run] {
                    found[count] = (self.residency.ownership.descriptor(id).page(), id);
                    count += 1;
                }
            }
        }
        found[..count].sort_unstable_by_key(|(page, _)| page.0);
        for (index, &(page, id)) in found[..count].iter().enumerate() {
            context.ids[index] = id;
            context.victims[index].addr = self.residency.frames.address_of(page);
        }
        count
    }

    /// How many pages may be evicted: all, or if some cannot be, all others but the last few.
    pub(crate) fn evictable(&self) -> usize {
        match self.residency.frames.page_buffer.unevictable() {
            0 => self.residency.frames.page_buffer.pages(),
            _ => {
                let kept = EVICTABLE_MIN.min(self.residency.frames.page_buffer.limit() / 4);
                let (on_probation, protected) = self.residency.ownership.descriptors.evictable();
                (on_probation + protected).saturating_sub(kept)
            }
        }
    }

    /// Takes a cache slot for each of the first `count` candidates, reclaiming if need be; returns
    /// how many got one. Done before anything is owned, since reclaim may wait for the log. What it
    /// frees others may take: it does not do their work for ever.
    fn take_slots(
        &self,
        context: &mut EvictionContext,
        count: usize,
        patience: Patience,
        moves: &mut Moves,
    ) -> Result<usize, StoreError> {
        let residency = &self.residency;
        let mut got = 0;
        let mut reclaims = match patience {
            Patience::Waits => RECLAIMS_MAX,
            Patience::AtOnce => RECLAIMS_AT_ONCE,
        };
        while got < count {
            let bytes = self.bytes_to_take(residency.frames.page_at(context.victims[got].addr));
            let landing = if bytes == PAGE { context.take_landing(&residency.cache) } else { None };
            if let Some(slot) = landing.or_else(|| residency.cache.take(bytes)) {
                context.slots[got] = slot.keep();
                got += 1;
                continue;
            }
            if reclaims == 0 && (got > 0 || patience == Patience::AtOnce) {
                break;
            }
            reclaims = reclaims.saturating_sub(1);
            match self.reclaim(count - got, patience, moves) {
                Ok(false) if !context.free_landings(&residency.cache) => break,
                Ok(_) => {}
                Err(_) if got > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if patience == Patience::AtOnce && got < count.min(AT_ONCE_LEAST) {
            for &slot in &context.slots[..got] {
                drop(residency.cache.slot(slot));
            }
            return Ok(0);
        }
        // Room for them compressed: slots a little smaller than the mean serve many. If there is
        // none they stay as they are.
        while self.compression.is_on()
            && reclaims > 0
            && residency.cache.free_bytes(context.expected() * 7 / 8) < got * context.expected()
            && matches!(self.reclaim(got, patience, moves), Ok(true))
        {
            reclaims -= 1;
        }
        Ok(got)
    }

    /// How many bytes to take out of a page: those of its object. All of the page if it is free: a
    /// larger object may be allocated on it, and written to, before we unmap it. A page that is not
    /// free keeps its shape while we own it: a thread that frees it waits.
    fn bytes_to_take(&self, page: PageNo) -> usize {
        match self.residency.heap.page_is_free(page) {
            true if self.residency.heap.is_lane_page(page) => LANE_BYTES,
            true => PAGE,
            false => self.residency.kept_bytes(page),
        }
    }

    /// Claims those of the first `count` candidates that have not changed, and moves them to the
    /// front of the context's lists; gives the slots of the others back.
    fn claim_victims(&self, context: &mut EvictionContext, count: usize) -> usize {
        // Pages that calls have pinned may be most of the page buffer. A fault that looks for room
        // must not meet them again and again. Few of them cost little, and most pins end soon.
        let sets_aside = self.pins.are_many(self.residency.frames.page_buffer.limit());
        for index in 0..count {
            let (id, slot) = (context.ids[index], self.residency.cache.slot(context.slots[index]));
            let addr = context.victims[index].addr;
            let page = self.residency.frames.page_at(addr);
            let Some(owned) = self.residency.ownership.claim_resident(page, id) else {
                continue; // someone owns it for a moment
            };
            let descriptor = self.residency.ownership.of(&owned);
            let len = self.bytes_to_take(page);
            // The page may hold another object by now, of another size; or its object has left the
            // page buffer and come to its lane.
            let is_another = self.is_in_lane(page) || len > slot.bytes();
            if is_another || descriptor.is_pinned() {
                match !is_another && sets_aside {
                    true => self.residency.ownership.set_aside(owned),
                    false => self.residency.ownership.put_back(owned),
                }
                continue;
            }
            let chosen = context.owned.len();
            context.victims[chosen] = Victim {
                addr,
                offset: self.residency.heap.kept_offset(page),
                len,
                may_be_shared: descriptor.has(Flag::Shared),
                clears_range: false,
            };
            context.into[chosen] = slot.address();
            context.slots[chosen] = slot.keep();
            context.owned.push(owned);
        }
        context.owned.len()
    }

    /// Closes the ranges whose last pages are among these victims; the last victim of a range
    /// clears it. Small page tables may stay: then no fault waits for a closed range, and the
    /// kernel makes no new table.
    fn close_ranges(&self, victims: &mut [Victim]) {
        // Pages of spans that were not taken over yet are not counted in their ranges.
        if self.plain_spans.any() || !self.residency.frames.zapper().frees_page_tables() {
            return;
        }
        let most = self.budget.bytes() / PAGE_TABLES_PART;
        if self.residency.frames.ranges.page_table_bytes()
            <= most.min(self.residency.frames.page_buffer.limit() * PAGE)
        {
            return;
        }
        for group in victims.chunk_by_mut(same_range) {
            let count = group.len();
            // Objects in lanes may be mapped there.
            let is_of_lanes = group.first().is_some_and(|victim| {
                self.residency.heap.is_lane_page(self.residency.frames.page_at(victim.addr))
            });
            if is_of_lanes {
                continue;
            }
            if let Some(last) = group.last_mut() {
                last.clears_range = self.residency.frames.ranges.close(self.range_of(last), count);
            }
        }
    }

    /// Subtracts the victims that were taken out from their ranges, and opens the closed ranges.
    fn leave_ranges(&self, victims: &[Victim], taken: &[Taken]) {
        let mut first = 0;
        for group in victims.chunk_by(same_range) {
            let taken = &taken[first..first + group.len()];
            first += group.len();
            let left = taken.iter().filter(|&&taken| taken == Taken::Unreadable).count();
            let closed = group.last().filter(|last| last.clears_range);
            match (closed, group.first()) {
                (Some(last), _) => self.residency.frames.ranges.open(self.range_of(last), left),
                (None, Some(one)) => {
                    self.residency.frames.ranges.leave_many(self.range_of(one), group.len() - left);
                }
                (None, None) => {}
            }
        }
    }

    fn range_of(&self, victim: &Victim) -> RangeNo {
        RangeNo::of(self.residency.frames.page_at(victim.addr))
    }

    /// Decides what becomes of one extracted object and publishes it. If its page has left, the
    /// caller ends its reservation.
    fn publish_evicted(
        &self,
        owned: Owned,
        slot: Slot<'_>,
        taken: Taken,
        moves: &mut Moves,
    ) -> Became {
        let page = self.residency.ownership.of(&owned).page();
        let was_copy = taken != Taken::Unreadable && self.sources.end_copy(page);
        match taken {
            Taken::Unreadable => {
                // The program has protected or locked the page.
                self.residency.ownership.set_aside(owned);
                return Became::Resident;
            }
            Taken::Missing => {
                moves.free += 1;
                self.residency.to_zero(owned);
            }
            Taken::Copied if self.residency.heap.page_is_free(page) => {
                moves.free += 1;
                self.residency.to_zero(owned);
            }
            Taken::Copied => {
                let bytes = self.residency.kept_bytes(page);
                // SAFETY: the slot is ours alone and holds the object.
                let data = unsafe { core::slice::from_raw_parts(slot.address(), bytes) };
                if was_copy && self.is_as_read(&owned, data) {
                    moves.clean += 1;
                    self.sources.give_back(page);
                    self.residency.to_zero(owned);
                    return Became::Gone;
                }
                if !is_all_zero(data) {
                    self.cache_object(owned, slot, data, moves);
                    return if bytes == PAGE { Became::CachedPage } else { Became::Gone };
                }
                moves.zero += 1;
                self.residency.to_zero(owned);
            }
        }
        Became::Gone
    }

    /// Whether the object holds what its file had when it was read.
    fn is_as_read(&self, owned: &Owned, data: &[u8]) -> bool {
        let descriptor = self.residency.ownership.of(owned);
        let hash = descriptor.hash();
        descriptor.backing().is_none()
            && hash != UNKNOWN_HASH
            && hash == self.residency.store.hash(data)
    }

    /// Publishes an object that has left the page buffer, or its lane, and whose bytes, `data`, are
    /// in the slot.
    pub(crate) fn cache_object(
        &self,
        owned: Owned,
        slot: Slot<'_>,
        data: &[u8],
        moves: &mut Moves,
    ) {
        let descriptor = self.residency.ownership.of(&owned);
        // Without a backing block there is nothing to compare with.
        let hash = descriptor.backing().map_or(UNKNOWN_HASH, |_| self.residency.store.hash(data));
        if hash != UNKNOWN_HASH && hash == descriptor.hash() {
            moves.clean += 1;
            self.residency.trace.note(Happened::Clean, descriptor.page(), data.len());
            self.tier().promote(&owned);
        } else {
            moves.dirty += 1;
            self.residency.trace.note(Happened::Dirty, descriptor.page(), data.len());
            self.residency.drop_backing(&owned);
        }
        descriptor.set_hash(hash);
        self.balancer.leaves(descriptor);
        self.residency.to_cached(owned, slot);
    }
}

/// Looks at the first bytes alone first: in most objects they are not all zero.
pub(crate) fn is_all_zero(bytes: &[u8]) -> bool {
    const FIRST: usize = 64;
    const CHUNK: usize = 512;
    // An `or` of many bytes at a time: the compiler makes vector instructions of it.
    let is_zero = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all | byte) == 0;
    let (first, rest) = bytes.split_at(bytes.len().min(FIRST));
    is_zero(first) && rest.chunks(CHUNK).all(is_zero)
}

fn same_range(one: &Victim, other: &Victim) -> bool {
    one.addr / RANGE == other.addr / RANGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_zero_only_if_every_byte_of_it_is() {
        for length in [1, 63, 64, 65, 128, 575, 576, 577, 4000, PAGE] {
            let mut bytes = vec![0; length];
            assert!(is_all_zero(&bytes), "{length}");
            for at in 0..length {
                bytes[at] = 0x80;
                assert!(!is_all_zero(&bytes), "byte {at} of {length}");
                bytes[at] = 0;
            }
        }
    }
}
