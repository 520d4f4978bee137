//! Reclaim: makes room in the object cache; cold objects leave it for the log.
//!
//! Guarantees: a clean object goes back to the block it has; a changed one is appended first and
//! published only then. Room in the log is secured before an object is claimed, so that nobody who
//! waits for the object, the collector among them, waits for space.
//! Never: allocates, touches managed memory.
//! Threads: whoever evicts, inside the mover's gate.

use deepheap_heap::PageNo;
use deepheap_store::{Head, StoreError, Writer};

use deepheap_sys::page_extractor::BATCH_MAX;

use crate::PAGE;
use crate::descriptor::DescriptorId;
use crate::evict::Moves;
use crate::object_table::Place;
use crate::pager::Pager;

impl Pager {
    /// Frees up to `want` cache slots (one batch at most); returns how many. An error means that
    /// changed objects cannot be written and no clean ones were found either.
    pub(crate) fn reclaim(&self, want: usize, moves: &mut Moves) -> Result<usize, StoreError> {
        if self.compact() {
            return Ok(1);
        }
        let mut leaving = [(PageNo(0), DescriptorId(0)); BATCH_MAX];
        let mut count = 0;
        let all_patience = 4 * want as u32 + 64;
        let mut patience = all_patience;
        while count < want.min(BATCH_MAX) {
            let Some(id) = self.descriptors.next_to_leave(count, &mut patience) else { break };
            leaving[count] = (self.descriptors.get(id).page(), id);
            count += 1;
        }
        moves.second_chances += all_patience - patience;
        // In address order, so that neighbours of one age become neighbours in the log, and a scan
        // reads them with one request.
        let leaving = &mut leaving[..count];
        leaving.sort_unstable_by_key(|(page, _)| page.0);
        let mut writer: Option<Writer<'_>> = None;
        let mut failure = None;
        let mut freed = 0;
        for &(page, id) in leaving.iter() {
            if self.descriptors.get(id).home().is_none()
                && failure.is_none()
                && writer.as_ref().is_none_or(|writer| writer.room() == 0)
            {
                drop(writer.take());
                match self.store.writer(Head::Fresh) {
                    Ok(ready) => writer = Some(ready),
                    Err(error) => failure = Some(error),
                }
            }
            if !self.table.replace(page, Place::Cached(id), Place::Busy(id)) {
                // Touched, freed or held for a moment: its owner may have listed it.
                self.descriptors.stays(id);
                continue;
            }
            if self.leave_cache(id, writer.as_mut(), moves) {
                freed += 1;
            } else {
                self.publish_cached(id);
                self.descriptors.stays(id);
            }
        }
        match failure {
            Some(error) if freed == 0 => Err(error),
            // None of them was still there to take: that is progress all the same.
            _ if freed == 0 && count > 0 => Ok(usize::from(self.cache.has_room(PAGE))),
            _ => Ok(freed),
        }
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
        let slot = descriptor.slot();
        if self.heap.page_is_free(page) {
            moves.free += 1;
            self.cache.give_back(slot);
            self.end_as_zero(id);
            return true;
        }
        let block = match (descriptor.home(), writer) {
            (Some(home), _) => {
                moves.reclaimed_clean += 1;
                home
            }
            (None, Some(writer)) if writer.room() > 0 => {
                moves.reclaimed_dirty += 1;
                // SAFETY: the slot is ours alone and holds a page.
                let data = unsafe { core::slice::from_raw_parts(self.cache.address(slot), PAGE) };
                let (name, hash) = (u64::from(page.0), descriptor.hash());
                let block = writer.append(name, data, hash);
                self.table.set_checksum(page, hash.checksum(name));
                block
            }
            _ => return false,
        };
        self.cache.give_back(slot);
        self.table.publish(page, Place::Stored(block));
        self.descriptors.release(id);
        true
    }
}
