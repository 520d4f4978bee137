//! Kept slots: slots that the object cache keeps without an object go to threads that need one.

use super::{Kind, World};
use crate::PAGE;
use crate::gate::Level;
use crate::moves::Moves;

/// Of each of these size classes one slot is kept, and with it a slab: all slabs that there are.
const KEPT: [usize; 3] = [128, 256, PAGE];

#[test]
fn slots_without_an_object_give_way_to_an_object_of_another_class() {
    let world = World::new(Kind::Ordinary);
    let pager = &world.pager;
    let number = world.things.len() - 7;
    let page = pager.residency.frames.page_at(world.things[number].address);
    let bytes = pager.residency.kept_bytes(page);
    assert!(!KEPT.contains(&bytes), "{bytes}");

    let _passage = pager.gate.enter(Level::Mover);
    let mut moves = Moves::default();
    let [first, second, landing] =
        KEPT.map(|bytes| pager.residency.cache.take(bytes).expect("a slot"));
    for slot in [first, second] {
        let number = slot.keep();
        pager.residency.cache.provide_spare(number);
        drop(pager.residency.cache.slot(number));
    }
    pager.contexts[0].lock().keep_landing(&pager.residency.cache, landing);
    assert_eq!(
        (pager.residency.cache.objects(), pager.residency.cache.has_room(bytes)),
        (0, false)
    );
    // An eviction, which holds its context, has none of its own to give.
    let context = pager.contexts[1].lock();
    let slot = pager.slot_for(page, &mut moves).expect("the log has room").expect("a slot");
    drop(context);
    drop(slot);
    assert_eq!(pager.residency.cache.held_bytes(), 0, "all slots came back");
}
