//! Publication: what may come between the publication of pages that were taken out and their
//! compression.

use deepheap_residency::ownership::Flag;

use super::*;
use crate::evict::context::EvictionContext;
use crate::patience::Patience;

#[test]
fn what_comes_between_publication_and_compression_finds_every_page_as_it_was() {
    let world = World::new(Kind::Ordinary);
    let pager = &world.pager;
    pager.residency.frames.page_buffer.set_limit(4 * PAGE_BUFFER);
    // Each touch as a thread of its own: none is a scan.
    let count = |number| world.count(&mut Sequences::default(), 0, number);
    let mut moves = Moves::default();
    const PAGES: usize = 8;
    let mut context = EvictionContext::new(2 * PAGES).expect("a pipe");
    let mut second = EvictionContext::new(2 * PAGES).expect("a pipe");
    (0..PAGES).for_each(count);
    let place = |number: usize| {
        let page = pager.residency.frames.page_at(world.things[number].address);
        pager.residency.ownership.place(page)
    };
    let is_compressed = |number: usize| match place(number) {
        Place::Cached(id) => pager.residency.ownership.descriptor(id).has(Flag::Compressed),
        place => panic!("{number} is {place:?}"),
    };
    let freed = world.allocate_object(PAGE);
    let mut sequences = Sequences::default();
    // SAFETY: a word of a live object, which is present.
    world.touch(&mut sequences, freed, |word| unsafe { word.write_volatile(1) });

    let passage = pager.gate.enter(Level::Mover);
    pager.take_out(&mut context, PAGES + 1, Patience::Waits, &mut moves).expect("room");
    assert_eq!(
        (moves.evicted(), pager.residency.frames.page_buffer.pages()),
        (PAGES as u32 + 1, 0)
    );
    assert!((0..PAGES).all(|number| !is_compressed(number)), "published as they are");
    world.check_invariants();
    // A fault finds the object at once.
    count(0);
    // A fault, and a second eviction, which compresses.
    count(1);
    pager.take_out(&mut second, 1, Patience::Waits, &mut moves).expect("room");
    pager.take_out(&mut second, 1, Patience::Waits, &mut moves).expect("room");
    second.press_batch(&pager.residency, &pager.compression);
    count(0);
    // A call that writes to the object in its slot.
    world.call_by_access(Operation::Write, 0, 2);
    // A free, after which the descriptor may serve another page.
    let mut cache = ThreadCache::new_in(world.heap).expect("cache");
    world.free(&mut cache, freed);
    count(PAGES);
    // The other pages are as they were.
    context.press_batch(&pager.residency, &pager.compression);
    drop(passage);
    world.heap.thread_exit(cache);
    world.check_invariants();
    assert!(matches!(place(0), Place::Busy(_)) && matches!(place(PAGES), Place::Busy(_)));
    assert!((1..PAGES).all(is_compressed));
    world.check();
}
