//! Collect: empties a half-dead segment so that the log can use it again.
//!
//! Guarantees: every block of the victim that is still somebody's stored copy is moved or let go
//! before the segment is freed; a block that no longer matches its checksum is moved with the
//! checksum it ought to have, so that reading it goes on failing.
//! Never: touches managed memory, allocates.
//! Threads: the collector, inside its gate. It may wait for an object that is on its way, whose
//! owner never waits for the collector (`reclaim` secures its room in the log first).

use deepheap_heap::PageNo;
use deepheap_store::{
    BLOCK_UNITS, Block, ContentHash, Head, StoreError, VictimObject, WholeObject,
};

use crate::descriptor::State;
use crate::gate::Level;
use crate::object_table::Place;
use crate::pager::Pager;

/// What emptying one segment did, in objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collected {
    /// Moved to the survivors' head of the log.
    pub moved: u32,
    /// In DRAM as well: the stored copy was let go instead of moved.
    pub let_go: u32,
    /// Dead already, or belonging to no live allocation.
    pub dead: u32,
}

impl Pager {
    /// Collector: empties one segment if the store wants it. `buffer` is one segment long. None
    /// when there is nothing to collect.
    pub fn collect(&self, buffer: &mut [u8]) -> Result<Option<Collected>, StoreError> {
        let Some(victim) = self.store.victim() else { return Ok(None) };
        let mut collected = Collected::default();
        for object in victim.load(buffer)? {
            // Other blocks, none of ours being packed, were not readable now: they stay.
            let VictimObject::Whole(object) = object else { continue };
            let _passage = self.gate.enter(Level::Collector);
            self.relocate(&object, &mut collected)?;
        }
        self.store.release(victim);
        Ok(Some(collected))
    }

    fn relocate(
        &self,
        object: &WholeObject<'_>,
        collected: &mut Collected,
    ) -> Result<(), StoreError> {
        let page = PageNo(object.name as u32);
        loop {
            let place = self.table.load(page);
            match place {
                Place::Stored(block) if block == object.block => {
                    if self.heap.page_is_free(page) && self.drop_stored_if_free(page, block) {
                        collected.dead += 1;
                        return Ok(());
                    }
                    let to = object.append_to(&mut self.store.writer(Head::Survivor)?);
                    if self.table.replace(page, place, Place::Stored(to)) {
                        self.store.retire(block, BLOCK_UNITS);
                        collected.moved += 1;
                        return Ok(());
                    }
                    self.store.retire(to, BLOCK_UNITS);
                }
                Place::Busy(id) => {
                    let descriptor = self.descriptors.get(id);
                    let seen = descriptor.state();
                    let home = descriptor.home();
                    if self.table.load(page) != place {
                        continue;
                    }
                    if home != Some(object.block) {
                        // Its owner set the home before claiming, and only ever drops it later.
                        collected.dead += 1;
                        return Ok(());
                    }
                    if seen.state() != State::Resident {
                        descriptor.wait_while(seen);
                    } else if descriptor.claim(State::Resident, State::Moving) {
                        let ours = self.table.load(page) == place
                            && descriptor.home() == Some(object.block);
                        if ours {
                            self.drop_home(descriptor);
                            collected.let_go += 1;
                        }
                        descriptor.change(State::Resident);
                        if ours {
                            return Ok(());
                        }
                    }
                }
                Place::Cached(id) => {
                    if !self.table.replace(page, place, Place::Busy(id)) {
                        continue;
                    }
                    let descriptor = self.descriptors.get(id);
                    if descriptor.home() == Some(object.block) {
                        self.drop_home(descriptor);
                        collected.let_go += 1;
                    } else {
                        collected.dead += 1;
                    }
                    self.publish_cached(id);
                    return Ok(());
                }
                Place::Zero | Place::Stored(_) => {
                    collected.dead += 1;
                    return Ok(());
                }
            }
        }
    }

    /// Claims a stored object and ends it if no live allocation touches its page. The claim comes
    /// before the question: an allocation made after the answer finds the object owned, and then
    /// zero; its first bytes are anybody's.
    pub(crate) fn drop_stored_if_free(&self, page: PageNo, block: Block) -> bool {
        let Some(id) = self.descriptors.take(page.0 as usize) else { return false };
        let descriptor = self.descriptors.get(id);
        descriptor.begin(page, State::Moving, Some(block), ContentHash(0));
        if !self.table.replace(page, Place::Stored(block), Place::Busy(id)) {
            self.descriptors.release(id);
            return false;
        }
        if self.heap.page_is_free(page) {
            self.end_as_zero(id);
            return true;
        }
        self.table.publish(page, Place::Stored(block));
        self.descriptors.release(id);
        false
    }
}
