//! Publication: what may come between the publication of pages that were taken out and their
//! compression; and pages that are compressed once more.

use deepheap_residency::codec::{self, dense::DenseCompressor};
use deepheap_residency::counters::Counted;
use deepheap_residency::ownership::{DescriptorId, Flag};

use super::*;
use crate::evict::context::EvictionContext;
use crate::patience::Patience;
use crate::reclaim::dense::make_dense;

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
    second.press_batch(&pager.residency, &pager.compression, || false);
    count(0);
    // A call that writes to the object in its slot.
    world.call_by_access(Operation::Write, 0, 2);
    // A free, after which the descriptor may serve another page.
    let mut cache = ThreadCache::new_in(world.heap).expect("cache");
    world.free(&mut cache, freed);
    count(PAGES);
    // The other pages are as they were.
    context.press_batch(&pager.residency, &pager.compression, || false);
    drop(passage);
    world.heap.thread_exit(cache);
    world.check_invariants();
    assert!(matches!(place(0), Place::Busy(_)) && matches!(place(PAGES), Place::Busy(_)));
    assert!((1..PAGES).all(is_compressed));
    world.check();
}

/// Bytes that LZ4 makes smaller, and zstd clearly smaller than that: words of a small vocabulary.
fn text(number: usize) -> [u8; PAGE / 2] {
    let mut random = Random::new(51 + number as u64);
    let vocabulary: [[u8; 8]; 60] =
        core::array::from_fn(|_| core::array::from_fn(|_| b'a' + random.below(16) as u8));
    let mut text = [0; PAGE / 2];
    for word in text.chunks_mut(8) {
        word.copy_from_slice(&vocabulary[random.below(60) as usize]);
    }
    text
}

#[test]
fn pages_become_dense_leave_the_cache_so_and_come_back_as_they_were() {
    const PAGES: usize = 12;
    let world = World::new(Kind::Ordinary);
    let pager = &world.pager;
    pager.residency.cache.set_limit(8 << 20);
    pager.residency.frames.page_buffer.set_limit(4 * PAGE_BUFFER);
    let mut moves = Moves::default();
    let mut context = EvictionContext::new(2 * PAGES).expect("a pipe");
    // Each touch as a thread of its own: none is a scan.
    let count = |number| world.count(&mut Sequences::default(), 0, number);
    let with_text = |number: usize, act: &dyn Fn(*mut [u8; PAGE / 2])| {
        let address = world.things[number].address + PAGE / 2;
        world.touch(&mut Sequences::default(), address, |word| act(word.cast()));
    };
    for number in 0..PAGES {
        // SAFETY: half a page of a live object, which is present.
        with_text(number, &|half| unsafe { half.write_unaligned(text(number)) });
        count(number);
    }
    let id_of = |number: usize| -> Option<DescriptorId> {
        let page = pager.residency.frames.page_at(world.things[number].address);
        match pager.residency.ownership.place(page) {
            Place::Cached(id) => Some(id),
            _ => None,
        }
    };
    let is_dense = |id: DescriptorId| {
        let slot = pager.residency.ownership.descriptor(id).slot();
        // SAFETY: no other thread runs, and the page is compressed.
        codec::is_dense(unsafe { pager.residency.cache.compressed(slot) })
    };

    let mut compressor = DenseCompressor::new().expect("memory");
    let mut make_one = |id| {
        make_dense(
            &pager.residency,
            &pager.compression.second.trials,
            &mut compressor,
            id,
            &mut 100,
        )
    };
    let passage = pager.gate.enter(Level::Mover);
    pager.take_out(&mut context, PAGES, Patience::Waits, &mut moves).expect("room");
    context.press_batch(&pager.residency, &pager.compression, || false);
    let ids: Vec<_> = (0..PAGES).filter_map(id_of).collect();
    assert!(ids.len() == PAGES && !ids.iter().any(|&id| is_dense(id)), "by LZ4");
    let made: usize = ids.iter().map(|&id| make_one(id)).sum();
    assert_eq!((made, pager.counted(Counted::Dense)), (PAGES, PAGES as u64));
    assert!(ids.iter().all(|&id| is_dense(id)));
    world.check_invariants();
    // Two come back from the cache, and are changed.
    count(0);
    count(1);
    // One that is dense stays as it is.
    assert_eq!(make_one(ids[2]), 0);
    // The others leave as they are.
    while (0..PAGES).any(|number| id_of(number).is_some()) {
        assert!(
            pager.reclaim_objects(PAGES, Patience::Waits, &mut moves).expect("the log has room")
        );
    }
    assert_eq!(moves.reclaimed_dirty as usize, PAGES - 2);
    drop(passage);
    for number in 0..PAGES {
        count(number);
        // SAFETY: half a page of a live object, which is present.
        with_text(number, &|half| unsafe { assert!(half.read_unaligned() == text(number)) });
    }
    world.check();
}
