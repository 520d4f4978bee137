//! Reclaim: makes room in the object cache by moving cold objects to the log.
//!
//! A compressed page that would leave is made dense first, if that pays, and stays (`dense`).
//!
//! Guarantees: a clean object goes back to its backing block; a changed one is appended first and
//! published only then. A thread secures room in the log before it claims an object. So no thread
//! that waits for the object, the collector among them, waits for space.
//! Never: allocates, touches managed memory.
//! Threads: any that evicts or wants a cache slot, inside the mover's gate; each with a packer.

pub(crate) mod collect;
pub(crate) mod compact;
pub(crate) mod dense;
pub(crate) mod packer;
pub(crate) mod stand_in;

use deepheap_heap::PageNo;
use deepheap_residency::contents::fill_page;
use deepheap_residency::counters::Counted;
use deepheap_residency::ownership::{CameBy, DescriptorId, Flag, List, Owned, UNKNOWN_HASH};
use deepheap_store::{Block, Content, ContentHash, Head, PACKED_MAX, Store, StoreError, Writer};
use deepheap_sys::memory::page_extractor::BATCH_MAX;
use deepheap_sys::threads::lock::Guard;
use deepheap_sys::threads::tls;

use crate::PAGE;
use crate::budget::rebalance::raise_cache_limit;
use crate::moves::Moves;
use crate::pager::Pager;
use crate::patience::Patience;
use crate::reclaim::compact::compact;
use crate::reclaim::dense::make_dense;
use crate::reclaim::packer::{Builder, Packer};
use crate::tier::Chosen;
use crate::trace::Happened;

/// The least number of objects that leave together: a few blocks of small ones.
const RECLAIM_LEAST: usize = 128;

/// The way to room in a log.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// The thread waits for it.
    Waits(&'a Pager),
    /// It may wait for the head, and for the device to give space.
    Tries,
    /// It waits for nothing.
    AtOnce,
}

/// The path to a tier: a writer, or why there is none. A thread has one at a time: a writer has the
/// head of its tier, and the other tier's may have to be waited for.
struct Log<'a> {
    tier: &'a Store,
    way: Way<'a>,
    writer: Option<Writer<'a>>,
    failure: Option<StoreError>,
}

impl<'a> Log<'a> {
    fn of(tier: &'a Store, way: Way<'a>) -> Log<'a> {
        Log { tier, way, writer: None, failure: None }
    }

    /// Secures room for one block, waiting for it if need be; the caller owns nothing.
    fn secure(&mut self) {
        let has_room = self.writer.as_ref().is_some_and(|writer| writer.room() > 0);
        if has_room || self.failure.is_some() {
            return;
        }
        drop(self.writer.take());
        let writer = match self.way {
            Way::Waits(pager) => pager.fresh_writer(self.tier).map(Some),
            Way::Tries => self.tier.try_writer(Head::Fresh),
            Way::AtOnce => Writer::at_once(self.tier, Head::Fresh),
        };
        match writer {
            Ok(ready) => self.writer = ready,
            Err(error) => self.failure = Some(error),
        }
    }

    fn with_room(&mut self) -> Option<&mut Writer<'a>> {
        self.writer.as_mut().filter(|writer| writer.room() > 0)
    }
}

impl Pager {
    /// Frees about `want` cache slots (one batch at most); false if none. An error means that
    /// changed objects cannot be written and no clean ones were found either.
    pub(crate) fn reclaim(
        &self,
        want: usize,
        patience: Patience,
        moves: &mut Moves,
    ) -> Result<bool, StoreError> {
        Ok(compact(&self.residency)
            || raise_cache_limit(self)
            || self.reclaim_objects(want, patience, moves)?
            || patience == Patience::Waits && self.free_kept_slots())
    }

    /// Frees the slots that are kept without an object: spares, and landing slots of evictions that
    /// are not running. False if there were none. One such slot keeps a whole slab for its size
    /// class: in a small cache they could keep all of it, and a thread that wants a slot of another
    /// class would wait for ever.
    fn free_kept_slots(&self) -> bool {
        let mut had_some = self.residency.cache.has_spares();
        self.residency.cache.end_spares();
        for mut context in self.contexts.iter().filter_map(|context| context.try_lock()) {
            had_some |= context.free_landings(&self.residency.cache);
        }
        had_some
    }

    /// As `reclaim`, but objects leave RAM.
    pub(crate) fn reclaim_objects(
        &self,
        want: usize,
        patience: Patience,
        moves: &mut Moves,
    ) -> Result<bool, StoreError> {
        // What goes to a second tier is chosen without the head of the first one.
        let at_once =
            patience == Patience::AtOnce && self.residency.store.second_tier_to_fill().is_none();
        let Some(mut packer) = self.packer(at_once) else { return Ok(false) };
        let packer = &mut *packer;
        let way = if at_once { Way::AtOnce } else { Way::Waits(self) };
        let mut log = Log::of(&self.residency.store, way);
        if at_once {
            // Before any object is chosen: one that is chosen and then stays counts as used.
            log.secure();
            if log.with_room().is_none() && log.failure.is_none() {
                return Ok(false);
            }
        }
        // Few objects would fill no block.
        let want = want.clamp(RECLAIM_LEAST, BATCH_MAX);
        let (mut count, mut stay) = (0, 0);
        let all_patience = 4 * want as u32 + 64;
        let mut patience = all_patience;
        let mut round = self.residency.ownership.descriptors.round(
            List::CacheLeaving,
            self.residency.cache.objects(),
            want,
        );
        let (descriptors, second) =
            (&self.residency.ownership.descriptors, &self.compression.second);
        let pays = second.pays();
        while count + stay < want {
            let Some(id) = descriptors.next_to_leave(&mut round, &mut patience, pays) else {
                break;
            };
            let made = packer.compressor(pays).map_or(0, |compressor| {
                make_dense(&self.residency, &second.trials, compressor, id, &mut moves.may_press)
            });
            stay += made;
            if made == 0 {
                packer.leaving[count] = (self.residency.ownership.descriptor(id).page(), id);
                count += 1;
            }
        }
        moves.second_chances += all_patience - patience;
        if count == 0 {
            return Ok(stay > 0);
        }
        let sequence = self.tier().first_in_sequence(&packer.leaving[..count]);
        // In address order, so that neighbours of one age become neighbours in the log, and a scan
        // reads them with one request.
        packer.leaving[..count].sort_unstable_by_key(|(page, _)| page.0);
        let before = moves.reclaimed();
        let mut chosen = self.tier().choose_sequence(packer, count, sequence);
        let mut freed = stay + self.reclaim_sequence(packer, count, &mut chosen, moves);
        packer.packing.clear();
        for index in (0..count).chain(BATCH_MAX..BATCH_MAX + chosen.to_store) {
            if index < count && packer.is_sequence[index] {
                continue;
            }
            freed += usize::from(self.leave_or_list(packer, index, &mut log, moves));
        }
        for content in [Content::Objects, Content::Pages] {
            freed += self.pack(packer, content, freed > 0, &mut log, moves);
        }
        self.balancer.note_departures(moves.reclaimed() - before);
        match log.failure {
            Some(error) if freed == 0 => Err(error),
            // If all of them were claimed by others meanwhile, that is progress, too.
            _ => Ok(freed > 0 || count > 0 && self.residency.cache.has_room(PAGE)),
        }
    }

    /// Moves what was chosen for the second tier there, as long as that has room at once; returns
    /// how many left the cache. If none did, they go to the store. An object that is marked in
    /// `is_sequence` does not go on to the store: it has left, leaves with its sequence later, or
    /// stays.
    fn reclaim_sequence(
        &self,
        packer: &mut Packer,
        count: usize,
        chosen: &mut Chosen,
        moves: &mut Moves,
    ) -> usize {
        let Some(second) = self.residency.store.second_tier() else { return 0 };
        let mut log = Log::of(second, Way::Tries);
        packer.packing.clear();
        let first = BATCH_MAX + chosen.to_store;
        let mut freed = 0;
        for index in first..first + chosen.to_second {
            log.secure();
            if log.with_room().is_none() {
                break;
            }
            freed += usize::from(self.leave_or_list(packer, index, &mut log, moves));
        }
        freed += self.pack(packer, Content::Pages, true, &mut log, moves);
        self.tier_mix.pay(freed);
        if freed == 0 {
            chosen.to_store += chosen.to_second;
        }
        let waiting = packer.is_sequence[..count].iter().filter(|is_sequence| **is_sequence);
        // All that goes to the store now fits one batch.
        chosen.to_store = chosen.to_store.min(BATCH_MAX - (count - waiting.count()));
        for index in (0..count).filter(|&index| packer.is_sequence[index]) {
            self.residency.ownership.descriptors.keep_in_cache(packer.leaving[index].1);
        }
        freed
    }

    /// Moves an object that leaves out of the cache, and answers whether it has left; or lists it
    /// to be packed.
    fn leave_or_list<'a>(
        &'a self,
        packer: &mut Packer,
        index: usize,
        log: &mut Log<'a>,
        moves: &mut Moves,
    ) -> bool {
        let (page, id) = packer.leaving[index];
        if self.residency.ownership.descriptor(id).backing().is_none() {
            // Asked once: the object is not owned, so the answer may change.
            let (content, bytes) = self.packed_as(page, id);
            if bytes <= PACKED_MAX && !self.residency.heap.page_is_free(page) {
                packer.packing.push(content, index, bytes);
                return false;
            }
            log.secure();
        }
        // None: the object was touched or freed, or another thread owns it for a moment and may
        // have listed it elsewhere.
        let owned = self.residency.ownership.claim_cached(page, id);
        let has_left = owned.is_some_and(|owned| self.leave_cache(owned, log.with_room(), moves));
        if !has_left {
            self.residency.ownership.descriptors.keep_in_cache(id);
        }
        has_left
    }

    /// In which blocks a cached object would be packed, and how many bytes of it.
    fn packed_as(&self, page: PageNo, id: DescriptorId) -> (Content, usize) {
        let descriptor = self.residency.ownership.descriptor(id);
        match descriptor.has(Flag::Compressed) {
            true => (Content::Pages, self.residency.cache.compressed_bytes(descriptor.slot())),
            false => (Content::Objects, self.residency.kept_bytes(page)),
        }
    }

    /// A packer that no thread uses; none if there is none `at_once`.
    pub(crate) fn packer(&self, at_once: bool) -> Option<Guard<'_, Packer>> {
        let free = self.packers.iter().find_map(|packer| packer.try_lock());
        free.or_else(|| (!at_once).then(|| self.packers[tls::lane() % self.packers.len()].lock()))
    }

    /// Moves one owned object out of the cache. False if it must be written and cannot be now: then
    /// the object is published as cached again.
    fn leave_cache(
        &self,
        owned: Owned,
        writer: Option<&mut Writer<'_>>,
        moves: &mut Moves,
    ) -> bool {
        let descriptor = self.residency.ownership.of(&owned);
        let page = descriptor.page();
        if self.residency.heap.page_is_free(page) {
            moves.free += 1;
            self.residency.cached_to_zero(owned);
            return true;
        }
        let block = match (descriptor.backing(), writer) {
            (Some(backing), _) => {
                moves.reclaimed_clean += 1;
                self.residency.trace.note(Happened::Dropped, page, 0);
                backing
            }
            (None, Some(writer))
                if !self.residency.is_packed(page) && !descriptor.has(Flag::Compressed) =>
            {
                moves.reclaimed_dirty += 1;
                self.residency.trace.note(Happened::Written, page, PAGE);
                // SAFETY: the slot is the owner's alone and holds the object.
                let object = unsafe {
                    self.residency.cache.object(descriptor.slot(), self.residency.kept_bytes(page))
                };
                self.append_whole(page, object, descriptor.hash(), writer)
            }
            // It was clean when we looked, and must be packed now: next time.
            _ => {
                self.residency.ownership.cached(owned);
                return false;
            }
        };
        self.leave_for(owned, block);
        true
    }

    /// Appends an object that has a block of its own; its hash, if it is known.
    pub(crate) fn append_whole(
        &self,
        page: PageNo,
        object: &[u8],
        hash: ContentHash,
        writer: &mut Writer<'_>,
    ) -> Block {
        let name = u64::from(page.0);
        if object.len() == PAGE {
            let hash = if hash == UNKNOWN_HASH { self.residency.store.hash(object) } else { hash };
            return writer.append(name, object, hash);
        }
        let mut staging = self.residency.take_staging(PAGE);
        fill_page(staging.page(), object);
        let data = staging.page();
        writer.append(name, data, self.residency.store.hash(data))
    }

    /// Publishes the owned object, whose bytes are in the block, as stored, and frees its slot.
    fn leave_for(&self, owned: Owned, block: Block) {
        let descriptor = self.residency.ownership.of(&owned);
        self.residency.count(Counted::DenseLeft, self.residency.is_dense(&owned).into());
        if descriptor.came_by() == CameBy::Trail {
            self.residency.count(Counted::TrailDropped, 1);
        }
        self.residency.cached_to_stored(owned, block);
    }

    /// Writes what is to be packed into blocks of this content; returns how many objects left the
    /// cache. Objects that would not fill a block wait for the next batch, unless
    /// nothing else left (`progress` is false).
    fn pack<'a>(
        &'a self,
        packer: &mut Packer,
        content: Content,
        progress: bool,
        log: &mut Log<'a>,
        moves: &mut Moves,
    ) -> usize {
        let blocks = packer.packing.plan(content);
        let mut left = 0;
        for well_filled in [true, false] {
            if !well_filled && (progress || left > 0) {
                break;
            }
            for block in 0..blocks {
                if packer.packing.is_well_filled(block) == well_filled {
                    left += self.pack_block(packer, content, block, log, moves);
                }
            }
        }
        for index in packer.packing.all(content) {
            self.residency.ownership.descriptors.keep_in_cache(packer.leaving[index].1);
        }
        left
    }

    fn pack_block<'a>(
        &'a self,
        packer: &mut Packer,
        content: Content,
        block: usize,
        log: &mut Log<'a>,
        moves: &mut Moves,
    ) -> usize {
        log.secure();
        let Some(writer) = log.with_room() else { return 0 };
        let mut staging = self.residency.take_staging(PAGE);
        let mut builder = Builder::new(staging.page(), content);
        let Packer { packing, leaving, owned: members, .. } = packer;
        for index in packing.members(content, block) {
            let (page, id) = leaving[index];
            let Some(owned) = self.residency.ownership.claim_cached(page, id) else {
                // It was touched or freed, and its owner may have listed it elsewhere.
                self.residency.ownership.descriptors.keep_in_cache(id);
                continue;
            };
            let descriptor = self.residency.ownership.of(&owned);
            let (now, bytes) = self.packed_as(page, id);
            // The page may hold another object by now, of another size.
            if descriptor.backing().is_some() || now != content || !builder.fits(bytes) {
                self.residency.ownership.cached(owned);
                self.residency.ownership.descriptors.keep_in_cache(id);
                continue;
            }
            // SAFETY: the slot is ours alone and holds the object, as that.
            let object = unsafe {
                match content {
                    Content::Pages => self.residency.cache.compressed(descriptor.slot()),
                    Content::Objects => self.residency.cache.object(descriptor.slot(), bytes),
                }
            };
            builder.push(page, object);
            self.residency.trace.note(Happened::Written, page, bytes);
            members.push(owned);
        }
        let count = members.len();
        if count == 0 {
            return 0;
        }
        let block = builder.append(writer);
        for index in 0..count {
            self.leave_for(members.take(index), block);
        }
        moves.reclaimed_dirty += count as u32;
        count
    }
}
