//! Tests of the object cache: how much it wastes, and that a slot belongs to one owner.

use std::collections::VecDeque;

use deepheap_sim::Random;
use deepheap_sys::memory::mapping;

use super::*;

/// Bytes that the heap keeps as one object: smaller objects in batches of at least 128.
fn kept_bytes(object: usize) -> usize {
    let size = object.next_multiple_of(8);
    size * 128usize.div_ceil(size).max(1)
}

/// A cache full of objects that come and go, as the pager uses it.
struct Model {
    cache: ObjectCache,
    /// Slot and bytes of every object, by descriptor.
    objects: Vec<(u32, usize)>,
    free: Vec<u32>,
    /// Descriptors in order of arrival.
    queue: VecDeque<u32>,
    bytes: usize,
    evicted: usize,
    moved: usize,
}

impl Model {
    fn new(limit: usize) -> Model {
        Model {
            cache: ObjectCache::new(limit).unwrap(),
            objects: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            bytes: 0,
            evicted: 0,
            moved: 0,
        }
    }

    fn insert(&mut self, bytes: usize) {
        let slot = loop {
            if let Some(slot) = self.cache.take(bytes).map(Slot::keep) {
                break slot;
            }
            if !self.compact() {
                self.evict();
            }
        };
        assert!(self.cache.slot_bytes(slot) >= bytes);
        let id = self.free.pop().unwrap_or(self.objects.len() as u32);
        if id as usize == self.objects.len() {
            self.objects.push((0, 0));
        }
        self.objects[id as usize] = (slot, bytes);
        self.cache.set_owner(slot, DescriptorId(id));
        self.mark(slot, id);
        self.queue.push_back(id);
        self.bytes += bytes;
    }

    fn mark(&self, slot: u32, id: u32) {
        // SAFETY: the slot is held by this test; both writes are inside it.
        unsafe {
            let end = self.cache.address(slot).add(self.cache.slot_bytes(slot) - 4);
            self.cache.address(slot).cast::<u32>().write(id);
            end.cast::<u32>().write(id);
        }
    }

    fn check(&self, slot: u32, id: u32) {
        // SAFETY: as in `mark`.
        unsafe {
            let end = self.cache.address(slot).add(self.cache.slot_bytes(slot) - 4);
            assert_eq!(self.cache.address(slot).cast::<u32>().read(), id);
            assert_eq!(end.cast::<u32>().read(), id);
        }
    }

    fn evict(&mut self) {
        let id = self.queue.pop_front().expect("something to evict");
        let (slot, bytes) = self.objects[id as usize];
        self.check(slot, id);
        self.cache.give_back(slot);
        self.free.push(id);
        self.bytes -= bytes;
        self.evicted += 1;
    }

    fn compact(&mut self) -> bool {
        let (objects, moved) = (&mut self.objects, &mut self.moved);
        let cache = &self.cache;
        cache.compact(|id, from, to| {
            let object = &mut objects[id.0 as usize];
            if object.0 != from {
                return false;
            }
            assert_eq!(cache.slot_bytes(from), cache.slot_bytes(to));
            // SAFETY: both slots are held by this test and equally long.
            unsafe {
                let length = cache.slot_bytes(from);
                cache.address(from).copy_to_nonoverlapping(cache.address(to), length);
            }
            object.0 = to;
            *moved += 1;
            true
        })
    }

    /// Every object still has its bytes, and the counts agree.
    fn objects_are_whole(&self) -> bool {
        for id in &self.queue {
            self.check(self.objects[*id as usize].0, *id);
        }
        self.cache.objects() == self.queue.len()
    }

    fn waste(&self) -> f64 {
        100.0 - 100.0 * self.bytes as f64 / self.cache.held_bytes() as f64
    }
}

#[test]
fn waste_of_random_sizes_is_under_a_tenth_of_a_full_cache() {
    println!("waste in per cent of the memory held, 8 B to 4 KiB, units of 128 bytes and more");
    for mebibytes in [4, 16, 32, 64, 128] {
        let mut model = Model::new(mebibytes << 20);
        let mut random = Random::new(7);
        let inserts = (mebibytes << 20) / 2000 * 12;
        let (mut worst, mut sum, mut count) = (0f64, 0f64, 0);
        for index in 0..inserts {
            // The mix of sizes drifts from all sizes to small and large ones, and back.
            let (from, to) = match index * 6 / inserts {
                0 | 1 => (8, 4096),
                2 => (8, 600),
                3 => (8, 4096),
                4 => (2000, 4096),
                _ => (8, 4096),
            };
            let size = from + random.below(to - from + 1);
            model.insert(kept_bytes(size as usize));
            if index > inserts / 5 {
                worst = worst.max(model.waste());
                sum += model.waste();
                count += 1;
            }
        }
        let (mean, end) = (sum / f64::from(count), model.waste());
        let moves = model.moved as f64 / inserts as f64;
        let over = model.evicted as f64 / inserts as f64;
        println!(
            "{mebibytes:4} MiB: mean {mean:.1}, worst {worst:.1}, end {end:.1}; moves an insertion \
             {moves:.2}, evictions an insertion {over:.2}"
        );
        assert!(mebibytes < 32 || mean < 10.0, "{mean} % of {mebibytes} MiB are wasted");
        assert!(model.objects_are_whole());
    }
}

#[test]
fn memory_pages_fill_their_slabs_and_a_lowered_limit_is_reached_by_moving() {
    let mut model = Model::new(8 << 20);
    for _ in 0..2048 {
        model.insert(4096);
    }
    assert_eq!(model.cache.held_bytes(), 8 << 20);
    assert_eq!((model.evicted, model.cache.take(4096).map(Slot::keep)), (0, None));
    assert!(!model.compact());
    model.cache.set_limit(6 << 20);
    assert!(model.cache.is_over_limit());
    // Free every fourth object, from all slabs alike, so that no slab becomes empty.
    for _ in 0..2048 / 4 {
        for _ in 0..3 {
            let id = model.queue.pop_front().unwrap();
            model.queue.push_back(id);
        }
        model.evict();
    }
    assert_eq!(model.cache.held_bytes(), 8 << 20);
    assert!(model.cache.take(4096).is_none());
    while model.cache.is_over_limit() {
        assert!(model.compact());
    }
    assert_eq!((model.waste(), model.cache.limit()), (0.0, 6 << 20));
    assert!(model.objects_are_whole());
}

#[test]
fn a_slab_changes_its_class_when_it_is_empty() {
    let mut model = Model::new(1 << 20);
    for round in 0..4 {
        let (bytes, slots) = if round % 2 == 0 { (128, 496) } else { (4096, 16) };
        for _ in 0..16 * slots {
            model.insert(bytes);
        }
        assert_eq!(model.queue.len(), 16 * slots);
        assert!(model.objects_are_whole());
        while !model.queue.is_empty() {
            model.evict();
        }
        assert_eq!((model.cache.held_bytes(), model.cache.objects()), (0, 0));
    }
}

#[test]
fn few_sizes_keep_their_exact_classes_in_a_small_cache() {
    let mut model = Model::new(2 << 20);
    for index in 0..20_000 {
        model.insert([136, 520, 4096][index % 3]);
    }
    let waste = model.waste();
    println!("three sizes in 2 MiB: {waste:.1} % wasted");
    assert!(waste < 15.0);
}

#[test]
fn memory_of_free_slabs_is_given_back() {
    let cache = ObjectCache::new(4 << 20).unwrap();
    let slots: Vec<u32> = std::iter::from_fn(|| cache.take(4096).map(Slot::keep)).collect();
    assert_eq!(slots.len(), 1024);
    for slot in &slots {
        // SAFETY: the slot is held here.
        unsafe { cache.address(*slot).write_bytes(1, 4096) };
    }
    let resident = || mapping::resident_bytes(cache.pool.address(0), 4 << 20).unwrap();
    assert_eq!(resident(), 4 << 20);
    slots.iter().for_each(|slot| cache.give_back(*slot));
    assert_eq!((resident(), cache.held_bytes()), (4 << 20, 0));
    assert_eq!(cache.backed_bytes(), 4 << 20);
    cache.set_limit(1 << 20);
    assert_eq!((resident(), cache.backed_bytes()), (1 << 20, 1 << 20));
    let again: Vec<u32> = std::iter::from_fn(|| cache.take(4096).map(Slot::keep)).collect();
    assert_eq!((again.len(), cache.backed_bytes()), (256, 1 << 20));
}

/// Threads take, mark, check and give back slots of a few classes while another one compacts; it
/// claims objects as the pager does. They fill and empty the cache in turns, so that there is
/// something to move, until enough was moved.
#[test]
fn slots_have_one_owner_while_slabs_are_emptied() {
    [1, 4].into_iter().for_each(take_and_compact);
}

fn take_and_compact(parts: usize) {
    const THREADS: u32 = 4;
    const OBJECTS: usize = 600;
    const MOVES: u32 = 20_000;
    const ROUNDS_MAX: usize = 50_000_000;
    const NOWHERE: u32 = u32::MAX;
    const CLAIMED: u32 = u32::MAX - 1;
    let cache = ObjectCache::in_parts(2 << 20, parts).unwrap();
    let slot_of: Vec<AtomicU32> =
        (0..THREADS as usize * OBJECTS).map(|_| AtomicU32::new(NOWHERE)).collect();
    let over = AtomicU32::new(0);
    let moved = AtomicU32::new(0);
    let word = |slot: u32| cache.address(slot).cast::<u32>();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, slot_of, over, moved, word) = (&cache, &slot_of, &over, &moved, &word);
            scope.spawn(move || {
                let mut random = Random::new(u64::from(thread) + 1);
                for round in 0..ROUNDS_MAX {
                    let fills = round / 2000 % 2 == 0;
                    if moved.load(Ordering::Relaxed) >= MOVES {
                        break;
                    }
                    if round % 2000 == 0 {
                        // Let the one that compacts run, however few processors there are.
                        std::thread::yield_now();
                    }
                    let id = thread as usize * OBJECTS + random.below(OBJECTS as u64) as usize;
                    let place = &slot_of[id];
                    let slot = place.load(Ordering::Acquire);
                    if slot == NOWHERE && fills {
                        let bytes = [200, 700, 4096][random.below(3) as usize];
                        let Some(slot) = cache.take(bytes).map(Slot::keep) else { continue };
                        // SAFETY: the slot was taken for us.
                        unsafe { word(slot).write(id as u32) };
                        cache.set_owner(slot, DescriptorId(id as u32));
                        place.store(slot, Ordering::Release);
                    } else if slot < CLAIMED
                        && (!fills || random.once_in(4))
                        && place
                            .compare_exchange(slot, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
                            .is_ok()
                    {
                        // SAFETY: the slot is ours from the exchange on.
                        assert_eq!(unsafe { word(slot).read() }, id as u32);
                        cache.give_back(slot);
                        place.store(NOWHERE, Ordering::Release);
                    }
                }
                over.fetch_add(1, Ordering::Release);
            });
        }
        scope.spawn(|| {
            while over.load(Ordering::Acquire) < THREADS {
                cache.compact(|id, from, to| {
                    let slot = &slot_of[id.0 as usize];
                    let claim =
                        slot.compare_exchange(from, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
                    if claim.is_err() {
                        return false;
                    }
                    // SAFETY: claimed by the exchange; `to` was taken for us.
                    unsafe { word(to).write(word(from).read()) };
                    moved.fetch_add(1, Ordering::Relaxed);
                    slot.store(to, Ordering::Release);
                    true
                });
            }
        });
    });
    assert!(moved.load(Ordering::Relaxed) >= MOVES);
    for slot in slot_of.iter().map(|slot| slot.load(Ordering::Relaxed)) {
        if slot != NOWHERE {
            cache.give_back(slot);
        }
    }
    assert_eq!((cache.objects(), cache.held_bytes()), (0, 0));
}

#[test]
fn threads_use_the_slots_that_others_left_before_they_open_a_slab() {
    const SLOTS: usize = 16;
    let cache = ObjectCache::in_parts(4 << 20, 4).unwrap();
    let take = || cache.take(4096).map(Slot::keep).expect("room");
    let slots: Vec<u32> = (0..SLOTS).map(|_| take()).collect();
    assert_eq!(cache.held_bytes(), SLAB_BYTES);
    slots[1..].iter().for_each(|slot| cache.give_back(*slot));
    // Threads of all parts.
    std::thread::scope(|scope| {
        for _ in 1..SLOTS {
            scope.spawn(take);
        }
    });
    assert_eq!((cache.objects(), cache.held_bytes()), (SLOTS, SLAB_BYTES));
}

#[test]
fn slabs_are_emptied_into_slots_of_all_parts() {
    let cache = ObjectCache::in_parts(4 << 20, 4).unwrap();
    // Four threads of different parts fill a slab each; then half of each is free.
    let fill = || (0..16).map(|_| cache.take(4096).map(Slot::keep).unwrap()).collect::<Vec<_>>();
    let slots = std::thread::scope(|scope| {
        (0..4).map(|_| scope.spawn(fill).join().unwrap()).collect::<Vec<_>>()
    });
    let before = cache.held_bytes();
    for (thread, slots) in slots.iter().enumerate() {
        for (index, &slot) in slots.iter().enumerate() {
            let id = (thread * 16 + index) as u32;
            cache.set_owner(slot, DescriptorId(id));
            if index % 2 == 0 {
                cache.give_back(slot);
            }
        }
    }
    while cache.compact(|_, _, _| true) {}
    assert_eq!((before, cache.held_bytes()), (4 * SLAB_BYTES, 2 * SLAB_BYTES));
    assert_eq!(cache.objects(), 32);
}

#[test]
fn a_class_has_more_parts_on_larger_machines_with_larger_caches() {
    const GIB: usize = 1 << 30;
    let parts = [1, 2, 4, 8, 16, 64].map(|cpus| parts_for(cpus, 2 * GIB / SLAB_BYTES));
    assert_eq!(parts, [1, 1, 2, 4, 8, 16]);
    let parts = [32 << 20, 128 << 20, 512 << 20].map(|bytes| parts_for(64, bytes / SLAB_BYTES));
    assert_eq!(parts, [1, 2, 8]);
}
