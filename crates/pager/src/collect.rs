//! Collect: empties a half-dead segment so that the log can use it again.
//!
//! Guarantees: every block of the victim that is still somebody's stored copy is moved or let go
//! before the segment is freed; a block that no longer matches its checksum is moved with the
//! checksum it ought to have, so that reading it goes on failing.
//! Never: touches managed memory, allocates.
//! Threads: the collector, inside its gate. It may wait for an object that is on its way, whose
//! owner never waits for the collector (`reclaim` secures its room in the log first).

use deepheap_heap::PageNo;
use deepheap_store::pack::BATCH_MAX;
use deepheap_store::{
    BLOCK_UNITS, Block, ContentHash, Head, PackedBlock, PackedObject, Plan, StoreError,
    VictimObject, WholeObject,
};

use crate::PAGE;
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

/// Packed objects of a victim that are to move. They are packed as well as reclaim packs them, not
/// as they come: or collection might win nothing.
struct Survivors<'b> {
    plan: Plan,
    objects: [Option<PackedObject<'b>>; BATCH_MAX],
    sizes: [u16; BATCH_MAX],
    count: usize,
}

impl<'b> Survivors<'b> {
    fn new() -> Self {
        Survivors {
            plan: Plan::new(),
            objects: [const { None }; _],
            sizes: [0; BATCH_MAX],
            count: 0,
        }
    }

    fn push(&mut self, object: PackedObject<'b>) {
        self.sizes[self.count] = object.data.len() as u16;
        self.objects[self.count] = Some(object);
        self.count += 1;
    }
}

/// What is to become of a block's object.
enum Fate {
    /// Its stored copy counts: it moves.
    Moves,
    /// Nobody wants this copy any more.
    Settled,
}

impl Pager {
    /// Collector: empties one segment if the store wants it. `buffer` is one segment long. None
    /// when there is nothing to collect.
    pub fn collect(&self, buffer: &mut [u8]) -> Result<Option<Collected>, StoreError> {
        let Some(victim) = self.store.victim() else { return Ok(None) };
        let mut collected = Collected::default();
        let mut survivors = Survivors::new();
        for object in victim.load(buffer)? {
            let _passage = self.gate.enter(Level::Collector);
            match object {
                VictimObject::Whole(object) => {
                    let page = PageNo(object.name as u32);
                    self.move_whole(page, &object, &mut collected)?;
                }
                VictimObject::Packed(object) => {
                    let page = PageNo(object.name);
                    if matches!(self.judge(page, object.block, &mut collected), Fate::Moves) {
                        survivors.push(object);
                    }
                    if survivors.count == BATCH_MAX {
                        self.move_packed(&mut survivors, &mut collected)?;
                    }
                }
                // The segment keeps what cannot be read now; its objects go on failing.
                VictimObject::Unreadable { .. } => {}
            }
        }
        let passage = self.gate.enter(Level::Collector);
        self.move_packed(&mut survivors, &mut collected)?;
        drop(passage);
        self.store.release(victim);
        Ok(Some(collected))
    }

    fn move_whole(
        &self,
        page: PageNo,
        object: &WholeObject<'_>,
        collected: &mut Collected,
    ) -> Result<(), StoreError> {
        while matches!(self.judge(page, object.block, collected), Fate::Moves) {
            let to = object.append_to(&mut self.store.writer(Head::Survivor)?);
            if self.switch(page, object.block, to, BLOCK_UNITS, collected) {
                break;
            }
        }
        Ok(())
    }

    /// Writes the survivors, and moves those that are still where they were. The others have been
    /// read or freed meanwhile: what is asked of them is done without a copy.
    fn move_packed(
        &self,
        survivors: &mut Survivors<'_>,
        collected: &mut Collected,
    ) -> Result<(), StoreError> {
        let blocks = survivors.plan.assign(&survivors.sizes[..survivors.count]);
        let staging = self.pages_staging.take(PAGE);
        for number in 0..blocks {
            // SAFETY: the staging page is this thread's alone, and the block made of it before has
            // gone.
            let buf = unsafe { core::slice::from_raw_parts_mut(staging.address(), PAGE) };
            let mut block = PackedBlock::begin(buf);
            let members = || {
                let places = survivors.plan.objects(number);
                places.filter_map(|place| survivors.objects[place].as_ref())
            };
            members().for_each(|object| block.push(object.name, object.data));
            let cost = members().map(|object| object.cost).sum();
            let mut writer = self.store.writer(Head::Survivor)?;
            let to = writer.append_packed(block.finish(), cost);
            drop(writer);
            for object in members() {
                let (page, from) = (PageNo(object.name), object.block);
                if !self.switch(page, from, to, object.cost, collected) {
                    // It was read meanwhile, and lets go of its home; or it has even come back to
                    // the very block: then the segment stays, and is collected another time.
                    self.judge(page, from, collected);
                }
            }
        }
        survivors.count = 0;
        Ok(())
    }

    /// Switches a stored object from its block to the copy in another one; false, and the copy is
    /// dead, if it is not stored there any more.
    fn switch(
        &self,
        page: PageNo,
        from: Block,
        to: Block,
        cost: u32,
        collected: &mut Collected,
    ) -> bool {
        let moved = self.table.replace(page, Place::Stored(from), Place::Stored(to));
        self.store.retire(if moved { from } else { to }, cost);
        collected.moved += u32::from(moved);
        moved
    }

    /// Lets go of the stored copy `block` of the page's object where nobody needs it, waiting for
    /// an owner if need be; or tells that it must move.
    fn judge(&self, page: PageNo, block: Block, collected: &mut Collected) -> Fate {
        loop {
            let place = self.table.load(page);
            match place {
                Place::Stored(at) if at == block => {
                    if self.heap.page_is_free(page) && self.drop_stored_if_free(page, block) {
                        collected.dead += 1;
                        return Fate::Settled;
                    }
                    return Fate::Moves;
                }
                Place::Busy(id) => {
                    let descriptor = self.descriptors.get(id);
                    let seen = descriptor.state();
                    let home = descriptor.home();
                    if self.table.load(page) != place {
                        continue;
                    }
                    if home != Some(block) {
                        // Its owner set the home before claiming, and only ever drops it later.
                        collected.dead += 1;
                        return Fate::Settled;
                    }
                    if seen.state() != State::Resident {
                        descriptor.wait_while(seen);
                    } else if descriptor.claim(State::Moving) {
                        let ours =
                            self.table.load(page) == place && descriptor.home() == Some(block);
                        if ours {
                            self.drop_home(descriptor);
                            collected.let_go += 1;
                        }
                        descriptor.change(State::Resident);
                        if ours {
                            return Fate::Settled;
                        }
                    }
                }
                Place::Cached(id) => {
                    if !self.table.replace(page, place, Place::Busy(id)) {
                        continue;
                    }
                    let descriptor = self.descriptors.get(id);
                    if descriptor.home() == Some(block) {
                        self.drop_home(descriptor);
                        collected.let_go += 1;
                    } else {
                        collected.dead += 1;
                    }
                    self.publish_cached(id);
                    return Fate::Settled;
                }
                Place::Zero | Place::Stored(_) => {
                    collected.dead += 1;
                    return Fate::Settled;
                }
            }
        }
    }

    /// Claims a stored object and ends it if no live allocation touches its page. The claim comes
    /// before the question: an allocation made after the answer finds the object owned, and then
    /// zero; its first bytes are anybody's.
    pub(crate) fn drop_stored_if_free(&self, page: PageNo, block: Block) -> bool {
        let Some(id) = self.descriptors.take(page) else { return false };
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
