//! Reclaim: makes room in the object cache; cold objects leave it for the log.
//!
//! Guarantees: a clean object goes back to the block it has; a changed one is appended first and
//! published only then. Room in the log is secured before an object is claimed, so that nobody who
//! waits for the object, the collector among them, waits for space.
//! Never: allocates, touches managed memory.
//! Threads: whoever evicts or wants a cache slot, inside the mover's gate; each with a packer.

use deepheap_heap::PageNo;
use deepheap_store::{Block, ContentHash, Head, PACKED_MAX, PackedBlock, Plan, StoreError, Writer};
use deepheap_sys::lock::Guard;
use deepheap_sys::page_extractor::BATCH_MAX;

use crate::PAGE;
use crate::descriptor::{DescriptorId, List};
use crate::evict::Moves;
use crate::fault::fill_page;
use crate::object_table::Place;
use crate::pager::Pager;

/// Objects that leave together at least: a few blocks of small ones.
const RECLAIM_LEAST: usize = 128;

/// What packing a batch needs, too much for a signal handler's stack.
pub(crate) struct Packer {
    plan: Plan,
    leaving: [(PageNo, DescriptorId); BATCH_MAX],
    /// Places in `leaving` of the objects that are to be packed, and their sizes.
    packed: [u16; BATCH_MAX],
    sizes: [u16; BATCH_MAX],
    /// Objects that are owned, and on their way into the block at hand.
    owned: [DescriptorId; BATCH_MAX],
}

impl Packer {
    pub(crate) fn new() -> Packer {
        let none = (PageNo(0), DescriptorId(0));
        Packer {
            plan: Plan::new(),
            leaving: [none; BATCH_MAX],
            packed: [0; BATCH_MAX],
            sizes: [0; BATCH_MAX],
            owned: [DescriptorId(0); BATCH_MAX],
        }
    }
}

/// The way to the log: a writer, and why there is none.
#[derive(Default)]
struct Log<'a> {
    writer: Option<Writer<'a>>,
    failure: Option<StoreError>,
}

impl<'a> Log<'a> {
    /// Secures room for one block, waiting for it if need be; the caller owns nothing.
    fn secure(&mut self, pager: &'a Pager) {
        let has_room = self.writer.as_ref().is_some_and(|writer| writer.room() > 0);
        if has_room || self.failure.is_some() {
            return;
        }
        drop(self.writer.take());
        match pager.store.writer(Head::Fresh) {
            Ok(ready) => self.writer = Some(ready),
            Err(error) => self.failure = Some(error),
        }
    }

    fn with_room(&mut self) -> Option<&mut Writer<'a>> {
        self.writer.as_mut().filter(|writer| writer.room() > 0)
    }
}

impl Pager {
    /// Frees about `want` cache slots (one batch at most); returns how many. An error means that
    /// changed objects cannot be written and no clean ones were found either.
    pub(crate) fn reclaim(&self, want: usize, moves: &mut Moves) -> Result<usize, StoreError> {
        if self.compact() {
            return Ok(1);
        }
        let mut packer = self.packer();
        let packer = &mut *packer;
        // Few objects would fill no block.
        let want = want.clamp(RECLAIM_LEAST, BATCH_MAX);
        let mut count = 0;
        let all_patience = 4 * want as u32 + 64;
        let mut patience = all_patience;
        let mut round = self.descriptors.round(List::CacheLeaving, self.cache.objects(), want);
        while count < want {
            let next = self.descriptors.next_to_leave(&mut round, &mut patience);
            let Some(id) = next else { break };
            packer.leaving[count] = (self.descriptors.get(id).page(), id);
            count += 1;
        }
        moves.second_chances += all_patience - patience;
        // In address order, so that neighbours of one age become neighbours in the log, and a scan
        // reads them with one request.
        packer.leaving[..count].sort_unstable_by_key(|(page, _)| page.0);
        let mut log = Log::default();
        let mut to_pack = 0;
        let mut freed = 0;
        for index in 0..count {
            let (page, id) = packer.leaving[index];
            if self.descriptors.get(id).home().is_none() {
                // Asked once: nobody owns it, and it may change.
                let bytes = self.unit_bytes(page);
                if bytes <= PACKED_MAX && !self.heap.page_is_free(page) {
                    packer.packed[to_pack] = index as u16;
                    packer.sizes[to_pack] = bytes as u16;
                    to_pack += 1;
                    continue;
                }
                log.secure(self);
            }
            if !self.table.replace(page, Place::Cached(id), Place::Busy(id)) {
                // Touched, freed or held for a moment: its owner may have listed it.
                self.descriptors.stays(id);
                continue;
            }
            if self.leave_cache(id, log.with_room(), moves) {
                freed += 1;
            } else {
                self.publish_cached(id);
                self.descriptors.stays(id);
            }
        }
        freed += self.pack(packer, to_pack, freed > 0, &mut log, moves);
        match log.failure {
            Some(error) if freed == 0 => Err(error),
            // None of them was still there to take: that is progress all the same.
            _ if freed == 0 && count > 0 => Ok(usize::from(self.cache.has_room(PAGE))),
            _ => Ok(freed),
        }
    }

    fn packer(&self) -> Guard<'_, Packer> {
        let free = self.packers.iter().find_map(|packer| packer.try_lock());
        free.unwrap_or_else(|| self.packers[0].lock())
    }

    /// Moves one owned object out of the cache; false if it must be written and cannot be now.
    fn leave_cache(
        &self,
        id: DescriptorId,
        writer: Option<&mut Writer<'_>>,
        moves: &mut Moves,
    ) -> bool {
        let descriptor = self.descriptors.get(id);
        let page = descriptor.page();
        if self.heap.page_is_free(page) {
            moves.free += 1;
            self.cache.give_back(descriptor.slot());
            self.end_as_zero(id);
            return true;
        }
        let block = match (descriptor.home(), writer) {
            (Some(home), _) => {
                moves.reclaimed_clean += 1;
                home
            }
            (None, Some(writer)) if !self.is_packed(page) => {
                moves.reclaimed_dirty += 1;
                self.append_whole(id, writer)
            }
            // It was clean when we looked, and is to be packed: next time.
            _ => return false,
        };
        self.leave_for(id, block);
        true
    }

    /// Appends an owned object that has a block of its own.
    fn append_whole(&self, id: DescriptorId, writer: &mut Writer<'_>) -> Block {
        let descriptor = self.descriptors.get(id);
        let page = descriptor.page();
        let (name, bytes) = (u64::from(page.0), self.unit_bytes(page));
        let object = self.cache.address(descriptor.slot());
        if bytes == PAGE {
            // SAFETY: the slot is the owner's alone and holds a page.
            let data = unsafe { core::slice::from_raw_parts(object, PAGE) };
            return writer.append(name, data, descriptor.hash());
        }
        let staging = self.pages_staging.take(PAGE);
        // SAFETY: the slot and the staging page are ours alone.
        let data = unsafe {
            fill_page(staging.address(), object, bytes);
            core::slice::from_raw_parts(staging.address(), PAGE)
        };
        writer.append(name, data, ContentHash::of(data))
    }

    /// The owned object, whose bytes are in the block, is in DRAM no longer.
    fn leave_for(&self, id: DescriptorId, block: Block) {
        let descriptor = self.descriptors.get(id);
        self.cache.give_back(descriptor.slot());
        self.table.publish(descriptor.page(), Place::Stored(block));
        self.descriptors.release(id);
    }

    /// Writes the first `count` objects that are to be packed, several in a block; returns how
    /// many left. Those that would not fill a block wait for the next batch, unless nothing else
    /// left (`progress` false).
    fn pack<'a>(
        &'a self,
        packer: &mut Packer,
        count: usize,
        progress: bool,
        log: &mut Log<'a>,
        moves: &mut Moves,
    ) -> usize {
        if count == 0 {
            return 0;
        }
        let blocks = packer.plan.assign(&packer.sizes[..count]);
        let mut left = 0;
        for well_filled in [true, false] {
            if !well_filled && (progress || left > 0) {
                break;
            }
            for block in 0..blocks {
                if packer.plan.is_well_filled(block) == well_filled {
                    left += self.pack_block(packer, block, log, moves);
                }
            }
        }
        for &index in &packer.packed[..count] {
            self.descriptors.stays(packer.leaving[usize::from(index)].1);
        }
        left
    }

    fn pack_block<'a>(
        &'a self,
        packer: &mut Packer,
        block: usize,
        log: &mut Log<'a>,
        moves: &mut Moves,
    ) -> usize {
        log.secure(self);
        let Some(writer) = log.with_room() else { return 0 };
        let staging = self.pages_staging.take(PAGE);
        // SAFETY: the staging page is ours alone.
        let buf = unsafe { core::slice::from_raw_parts_mut(staging.address(), PAGE) };
        let mut packed = PackedBlock::begin(buf);
        let (mut count, mut cost) = (0, 0);
        for member in packer.plan.objects(block) {
            let (page, id) = packer.leaving[usize::from(packer.packed[member])];
            if !self.table.replace(page, Place::Cached(id), Place::Busy(id)) {
                self.descriptors.stays(id); // touched or freed: its owner may have listed it
                continue;
            }
            let descriptor = self.descriptors.get(id);
            let bytes = self.unit_bytes(page);
            // Another object may have come to this page meanwhile, of another size.
            if descriptor.home().is_some() || !packed.fits(bytes) {
                self.publish_cached(id);
                self.descriptors.stays(id);
                continue;
            }
            // SAFETY: the slot is ours alone and holds the object.
            let object = unsafe {
                core::slice::from_raw_parts(self.cache.address(descriptor.slot()), bytes)
            };
            packed.push(page.0, object);
            cost += self.cost_of(page);
            packer.owned[count] = id;
            count += 1;
        }
        if count == 0 {
            return 0;
        }
        let block = writer.append_packed(packed.finish(), cost);
        for &id in &packer.owned[..count] {
            self.leave_for(id, block);
        }
        moves.reclaimed_dirty += count as u32;
        count
    }
}
