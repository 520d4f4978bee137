//! Tests of the descriptor lists.

use super::*;

const SHARDS: usize = 16;
/// Two runs of descriptors in each shard.
const OBJECTS: u32 = (2 * RUN * SHARDS) as u32;

fn cached(reuse: impl Fn(u32) -> u8) -> Descriptors {
    let descriptors = Descriptors::in_shards(OBJECTS as usize, SHARDS).unwrap();
    descriptors.ghost.grow(replacement::ghost_length(OBJECTS as usize));
    for page in 0..OBJECTS {
        let id = descriptors.take(PageNo(page)).unwrap();
        descriptors.get(id).begin(PageNo(page), None);
        descriptors.get(id).set_reuse(reuse(page));
        descriptors.enter_cache(id);
    }
    assert_eq!(descriptors.take(PageNo(0)), None);
    descriptors
}

fn leave(descriptors: &Descriptors, count: u32, patience: u32) -> Vec<u32> {
    let mut patience = patience;
    let mut round = descriptors.round(List::CacheLeaving, OBJECTS as usize, count as usize);
    (0..count)
        .filter_map(|_| {
            let id = descriptors.next_to_leave(&mut round, &mut patience, true)?;
            let page = descriptors.get(id).page().0;
            descriptors.release(id);
            Some(page)
        })
        .collect()
}

fn enter_again(descriptors: &Descriptors, page: u32) -> DescriptorId {
    let id = descriptors.take(PageNo(page)).unwrap();
    descriptors.get(id).begin(PageNo(page), None);
    descriptors.enter_cache(id);
    id
}

#[test]
fn touched_objects_outlive_first_comers_and_the_ghost_knows_who_left() {
    let descriptors = cached(|page| u8::from(page / 16 % 4 == 0));
    let left = leave(&descriptors, OBJECTS / 2, u32::MAX);
    assert_eq!(left.len(), OBJECTS as usize / 2);
    assert!(left.iter().all(|page| page / 16 % 4 != 0), "a touched one left");
    for page in &left {
        enter_again(&descriptors, *page);
    }
    // They came again: they are in the main queue now, behind the touched ones, and those
    // have a round to go.
    let next = leave(&descriptors, OBJECTS / 8, u32::MAX);
    assert!(next.iter().all(|page| page / 16 % 4 != 0 && !left.contains(page)));
    assert_eq!(leave(&descriptors, 2 * OBJECTS, u32::MAX).len(), OBJECTS as usize * 7 / 8);
    assert_eq!(leave(&descriptors, 1, u32::MAX), []);
}

#[test]
fn without_patience_the_head_leaves_whatever_its_count() {
    let descriptors = cached(|_| 3);
    assert_eq!(leave(&descriptors, 2 * OBJECTS, 0).len(), OBJECTS as usize);
}

#[test]
fn the_oldest_of_each_shard_leave_side_by_side() {
    let descriptors = cached(|_| 0);
    // A sixteenth of each shard's 128, then of the next shard's.
    let oldest: Vec<u32> = (0..16).flat_map(|shard| 64 * shard..64 * shard + 8).collect();
    assert_eq!(leave(&descriptors, 128, u32::MAX), oldest);
}

#[test]
fn what_was_chosen_is_not_chosen_again_until_it_stays() {
    let descriptors = cached(|_| 0);
    let mut patience = u32::MAX;
    let mut round = descriptors.round(List::CacheLeaving, OBJECTS as usize, 1);
    let mut choose = || descriptors.next_to_leave(&mut round, &mut patience, true).unwrap();
    let mut chosen: Vec<u32> = (0..OBJECTS).map(|_| choose().0).collect();
    chosen.sort_unstable();
    assert!(chosen.iter().copied().eq(0..OBJECTS));
    // All are chosen already: then any will do, for those who chose them may be gone.
    let again = choose();
    descriptors.keep_in_cache(DescriptorId(again.0 + 16));
    assert_eq!(choose(), DescriptorId(again.0 + 16));
    // One that was brought back meanwhile is left where it is.
    descriptors.move_to(again, List::Probation);
    descriptors.keep_in_cache(again);
    let mut round = descriptors.round(List::Probation, 1, 1);
    let mut found = [DescriptorId(0); 2];
    assert_eq!(descriptors.next_to_evict(&mut round, List::Probation, &mut found), 1);
    assert_eq!(found[0], again);
}

#[test]
fn runs_are_taken_in_order_of_arrival_and_all_of_them_come_round_again() {
    let descriptors = Descriptors::in_shards(OBJECTS as usize, SHARDS).unwrap();
    for page in 0..OBJECTS {
        let id = descriptors.take(PageNo(page)).unwrap();
        descriptors.get(id).begin(PageNo(page), None);
        descriptors.move_to(id, List::Probation);
    }
    let take = |most: usize| {
        let mut round = descriptors.round(List::Probation, OBJECTS as usize, most);
        let (mut all, mut found) = (Vec::new(), [DescriptorId(0); 5]);
        while all.len() < most {
            let places = found.len().min(most - all.len());
            let found = &mut found[..places];
            let count = descriptors.next_to_evict(&mut round, List::Probation, found);
            assert!((1..=places).contains(&count));
            all.extend(found[..count].iter().map(|id| id.0));
        }
        all
    };
    // A sixteenth of each shard's 128, then of the next shard's.
    let first = take(128);
    assert!(first.iter().copied().eq((0..16).flat_map(|shard| 64 * shard..64 * shard + 8)));
    let mut others: Vec<u32> = (0..15).flat_map(|_| take(128)).collect();
    assert!(others[..128].iter().all(|id| !first.contains(id)), "nobody is taken twice");
    others.extend(&first);
    others.sort_unstable();
    assert!(others.iter().copied().eq(0..OBJECTS));
    assert_eq!(take(128), first, "they went to the tail in their order");
    assert_eq!(descriptors.evictable(), (OBJECTS as usize, 0));
    descriptors.move_to(DescriptorId(first[0]), List::Protected);
    assert_eq!(descriptors.evictable(), (OBJECTS as usize - 1, 1));
    descriptors.check_invariants(|_, _, _| ());
}

/// Objects come and go beside `trim`: each descriptor is one object's, and none that had its
/// RAM dropped looks as it did before.
#[test]
fn free_descriptors_give_their_ram_back_and_nobody_takes_one_for_what_it_was() {
    [SHARDS, SHARDS_MAX].into_iter().for_each(come_and_go_beside_trim);
}

fn come_and_go_beside_trim(shards: usize) {
    const COUNT: u32 = 64 << 10;
    let (zapper, begin) = (Zapper::new(), |descriptors: &Descriptors, page: u32| {
        let id = descriptors.take(PageNo(page)).unwrap();
        descriptors.get(id).begin(PageNo(page), None);
        descriptors.move_to(id, List::Probation);
        id
    });
    let descriptors = Descriptors::in_shards(COUNT as usize, shards).unwrap();
    let all: Vec<_> = (0..COUNT).map(|page| begin(&descriptors, page)).collect();
    assert_eq!(descriptors.take(PageNo(0)), None, "there are no more");
    let before = descriptors.free.bytes();
    assert_eq!(before, COUNT as usize * core::mem::size_of::<Descriptor>());
    let words: Vec<_> = (0..COUNT).map(|id| descriptors.get(DescriptorId(id)).word()).collect();
    for id in &all[COUNT as usize / 16..] {
        descriptors.release(*id);
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..3)
            .map(|thread| {
                let (descriptors, begin) = (&descriptors, &begin);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let pages = (0..64).map(|page| COUNT + thread * 64 * 64 + page);
                        let mine: Vec<_> =
                            pages.map(|page| (begin(descriptors, page), page)).collect();
                        for (id, page) in mine {
                            let found = descriptors.get(id).page();
                            assert_eq!(found, PageNo(page), "{id:?} in round {round}");
                            descriptors.release(id);
                        }
                    }
                })
            })
            .collect();
        while !others.iter().all(|other| other.is_finished()) {
            descriptors.trim(&zapper);
        }
    });
    (0..COUNT).for_each(|_| descriptors.trim(&zapper));
    let after = descriptors.free.bytes();
    assert!(after < before / 8, "{after} of {before}");
    descriptors.check_invariants(|id, descriptor, _| {
        assert_eq!(all[descriptor.page().0 as usize], id, "one that stayed");
    });
    let again: Vec<_> = (COUNT / 16..COUNT).map(|page| begin(&descriptors, page)).collect();
    for id in again {
        let (word, was) = (descriptors.get(id).word(), words[id.0 as usize]);
        assert!(word != was, "{id:?} looks as it did before: {word:?}");
    }
    assert_eq!(descriptors.take(PageNo(0)), None, "there are no more");
    descriptors.check_invariants(|_, _, _| ());
}
