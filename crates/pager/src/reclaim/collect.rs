//! Collect: empties a half-dead segment so that the log can use it again.
//!
//! Guarantees: every live block of the victim, that is, every one that still holds an object's
//! stored copy, is moved or retired before the segment is freed. A block that does not match its
//! checksum any more is moved with the checksum that it should have, so that reading it goes on
//! failing.
//! Never: touches managed memory, allocates.
//! Threads: the collector, inside its gate. It may wait for an owned object: the owner never waits
//! for the collector (`reclaim` secures its room in the log first).

use deepheap_heap::PageNo;
use deepheap_residency::Residency;
use deepheap_residency::ownership::{Found, Owned};
use deepheap_store::block::pack::BATCH_MAX;
use deepheap_store::{
    BLOCK_UNITS, Block, Content, Head, PackedObject, Store, StoreError, VictimObject, WholeObject,
    share,
};

use crate::PAGE;
use crate::gate::Level;
use crate::pager::Pager;
use crate::reclaim::packer::{Builder, Packing};

/// Packed objects of a victim that are to move. They are packed as tightly as reclaim packs, not in
/// the order in which they come: otherwise collection might win no space.
struct Survivors<'b> {
    /// Where they are from, and go to.
    tier: &'b Store,
    objects: [Option<PackedObject<'b>>; BATCH_MAX],
    count: usize,
    packing: Packing<BATCH_MAX>,
}

impl<'b> Survivors<'b> {
    fn new(tier: &'b Store) -> Self {
        let packing = Packing::new();
        Survivors { tier, objects: [const { None }; _], count: 0, packing }
    }

    fn push(&mut self, object: PackedObject<'b>) {
        self.packing.push(object.content, self.count, object.data.len());
        self.objects[self.count] = Some(object);
        self.count += 1;
    }

    /// The objects of a planned block of this content.
    fn members(&self, content: Content, block: usize) -> impl Iterator<Item = &PackedObject<'b>> {
        self.packing.members(content, block).filter_map(|index| self.objects[index].as_ref())
    }
}

impl Pager {
    /// One step of the collector of a tier: empties one segment if the store asks for it; what
    /// lives stays in its tier. `buffer` is one segment long. False if there is nothing to collect.
    pub fn collect(&self, tier: &Store, buffer: &mut [u8]) -> Result<bool, StoreError> {
        let Some(victim) = tier.victim() else { return Ok(false) };
        let mut survivors = Survivors::new(tier);
        for object in victim.load(buffer)? {
            let _passage = self.gate.enter(Level::Collector);
            self.limit_table_inside();
            match object {
                VictimObject::Whole(object) => {
                    let page = PageNo(object.name as u32);
                    move_whole(&self.residency, tier, page, &object)?;
                }
                VictimObject::Packed(object) => {
                    let page = PageNo(object.name);
                    if must_move(&self.residency, page, object.block) {
                        survivors.push(object);
                    }
                    if survivors.count == BATCH_MAX {
                        move_packed(&self.residency, &mut survivors)?;
                    }
                }
                // Blocks that cannot be read now stay in the segment; their objects go on failing.
                VictimObject::Unreadable { .. } => {}
            }
        }
        let passage = self.gate.enter(Level::Collector);
        move_packed(&self.residency, &mut survivors)?;
        drop(passage);
        tier.release(victim);
        Ok(true)
    }
}

fn move_whole(
    residency: &Residency,
    tier: &Store,
    page: PageNo,
    object: &WholeObject<'_>,
) -> Result<(), StoreError> {
    while must_move(residency, page, object.block) {
        let to = object.append_to(&mut tier.writer(Head::Survivor)?);
        if switch(residency, page, (object.block, BLOCK_UNITS), (to, BLOCK_UNITS)) {
            break;
        }
    }
    Ok(())
}

/// Writes the survivors, and switches those that are still stored in their old block to the new
/// one. The others have been read or freed meanwhile: they are judged again, without a copy.
fn move_packed(residency: &Residency, survivors: &mut Survivors<'_>) -> Result<(), StoreError> {
    let mut staging = residency.take_staging(PAGE);
    for content in [Content::Objects, Content::Pages] {
        for number in 0..survivors.packing.plan(content) {
            let mut block = Builder::new(staging.page(), content);
            let members = || survivors.members(content, number);
            members().for_each(|object| block.push(PageNo(object.name), object.data));
            let to = block.append(&mut survivors.tier.writer(Head::Survivor)?);
            for object in members() {
                let (page, from) = (PageNo(object.name), object.block);
                let cost_there = match content {
                    Content::Pages => share(members().count()),
                    Content::Objects => object.cost,
                };
                if !switch(residency, page, (from, object.cost), (to, cost_there)) {
                    // It was read meanwhile, and its backing block is dropped now. Or it has
                    // even come back to this very block: then the segment stays, and is
                    // collected another time.
                    must_move(residency, page, from);
                }
            }
        }
    }
    survivors.count = 0;
    survivors.packing.clear();
    Ok(())
}

/// Switches a stored object from its block to the copy in another one; false, and the copy is
/// dead, if it is not stored there any more. With each block comes what the object costs there.
fn switch(residency: &Residency, page: PageNo, from: (Block, u32), to: (Block, u32)) -> bool {
    let moved = residency.ownership.move_stored(page, from.0, to.0);
    let (block, cost) = if moved { from } else { to };
    residency.store.retire(block, cost);
    moved
}

/// Drops the stored copy `block` of the page's object if nobody needs it, waiting for an owner
/// if need be; true if it is needed, and must move.
fn must_move(residency: &Residency, page: PageNo, block: Block) -> bool {
    loop {
        match residency.ownership.look(page) {
            Found::Stored(at) if at == block => {
                let is_dead = residency.heap.page_is_free(page);
                return !(is_dead && residency.stored_to_zero_if_free(page, block));
            }
            // Its owner set the backing block before the claim, and can only drop it later.
            Found::Resident(seen) | Found::OnItsWay(seen) if seen.backing != Some(block) => {
                return false;
            }
            Found::OnItsWay(seen) => residency.ownership.wait(seen),
            Found::Resident(seen) => {
                let Some(owned) = residency.ownership.claim_resident(page, seen.id()) else {
                    continue;
                };
                let ours = let_go(residency, &owned, block);
                residency.ownership.put_back(owned);
                if ours {
                    return false;
                }
            }
            Found::Cached(id) => {
                let Some(owned) = residency.ownership.claim_cached(page, id) else {
                    continue;
                };
                let_go(residency, &owned, block);
                residency.ownership.cached(owned);
                return false;
            }
            // Of a lost one nobody can ask for this copy.
            Found::Zero | Found::Stored(_) | Found::Lost => return false,
        }
    }
}

/// Drops the backing block of an owned object if it is `block`; returns whether it was.
fn let_go(residency: &Residency, owned: &Owned, block: Block) -> bool {
    let ours = residency.ownership.of(owned).backing() == Some(block);
    if ours {
        residency.drop_backing(owned);
    }
    ours
}
