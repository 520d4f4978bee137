//! At once: a faulting thread that evicts leaves alone what another thread has.

use deepheap_store::Head;

use super::*;
use crate::patience::Patience;

#[test]
fn a_faulting_thread_neither_waits_for_a_busy_log_nor_for_busy_packers() {
    let world = World::new(Kind::Ordinary);
    let pager = &world.pager;
    // More than the cache has room for: something must be written.
    let count = |number| world.count(&mut Sequences::default(), 0, number);
    (0..MEMORY_PAGES).for_each(count);
    let cache = &pager.residency.cache;
    cache.set_limit(0);
    for context in &pager.contexts {
        context.lock().free_landings(cache);
    }
    let page_buffer = &pager.residency.frames.page_buffer;
    page_buffer.set_limit(page_buffer.pages());
    let mut moves = Moves::default();
    let mut evict = || pager.evict_directly(Patience::AtOnce, &mut moves);
    {
        // This very thread has the head: to wait for it would be for ever.
        let _head = pager.residency.store.writer(Head::Fresh).expect("room");
        assert_eq!(evict(), Some(Ok(false)));
    }
    {
        let _packers: Vec<_> = pager.packers.iter().map(|packer| packer.lock()).collect();
        assert_eq!(evict(), Some(Ok(false)));
    }
    let _contexts: Vec<_> = pager.contexts.iter().map(|context| context.lock()).collect();
    assert_eq!(evict(), None);
    assert_eq!(moves.evicted(), 0);
}
