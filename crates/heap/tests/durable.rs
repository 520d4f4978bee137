//! Durable: what is saved and loaded is the same heap, and goes on; spoilt tables never panic.

#![allow(clippy::unwrap_used)]

mod region;

use std::collections::BTreeMap;

use deepheap_heap::{
    BadTables, Freed, FreedObjects, FreedRun, Heap, PAGE, SPAN, Shrunk, ThreadCache, stride,
};
use region::{Random, Recycling, Region, reads_as_zeros, stamp, stamp_holds};

const SPANS: usize = 24;
const HEAD: u32 = 0x100;

/// Saved pages by table and page.
type Saved = BTreeMap<(u32, u32), Vec<u8>>;

/// A live allocation: `count` elements of `size` usable bytes, `stride` bytes apart.
struct Live {
    count: usize,
    stride: usize,
    size: usize,
    tag: u8,
}

impl Live {
    fn elements(&self, ptr: usize) -> impl Iterator<Item = usize> + use<> {
        let stride = self.stride;
        (0..self.count).map(move |element| ptr + element * stride)
    }

    fn holds(&self, ptr: usize) -> bool {
        self.elements(ptr).all(|element| stamp_holds(element, self.size, self.tag))
    }
}

/// A heap, what lives in it, and what is in quarantine.
struct Model {
    region: Region,
    cache: ThreadCache,
    live: BTreeMap<usize, Live>,
    runs: Vec<FreedRun>,
    objects: Vec<FreedObjects>,
    next_tag: u8,
}

fn save(heap: &'static Heap) -> Saved {
    let mut saved = Saved::new();
    let mut last = None;
    heap.fork_prepare();
    heap.save(&mut |table, page, bytes| {
        assert!(last < Some((table, page)), "tables and pages ascend");
        last = Some((table, page));
        saved.insert((table, page), bytes.to_vec());
    });
    heap.after_fork();
    saved
}

fn load(saved: &Saved, base: usize, spans: usize) -> Result<Heap, BadTables> {
    let heap = Heap::new(base, spans * SPAN).unwrap();
    let shapes = Heap::table_shapes(spans * SPAN);
    for ((table, page), bytes) in saved {
        assert!(shapes.iter().any(|shape| shape.id == *table && *page < shape.pages));
        // A page of zeros need not be kept.
        if bytes.iter().any(|byte| *byte != 0) {
            assert!(heap.load(*table, *page, bytes));
        }
    }
    heap.loaded()?;
    Ok(heap)
}

impl Model {
    fn new(recycling: Recycling) -> Model {
        let region = Region::new(SPANS, recycling);
        let cache = region.cache();
        let (runs, objects) = (Vec::new(), Vec::new());
        Model { region, cache, live: BTreeMap::new(), runs, objects, next_tag: 1 }
    }

    /// The same heap, saved and loaded, over the same memory.
    fn reopened(self) -> Model {
        let old = self.region.heap;
        old.flush(&self.cache);
        assert_eq!(old.cached_bytes(), 0);
        self.region.check();
        let saved = save(old);
        assert_eq!(save(old), saved, "saving changes nothing");
        let region = self.region.under(load(&saved, self.region.base, SPANS).unwrap());
        let heap = region.heap;
        assert_eq!(heap.allocated_bytes(), old.allocated_bytes());
        assert_eq!(heap.objects_live(), old.objects_live());
        assert_eq!(heap.committed_pages(), old.committed_pages());
        assert_eq!(heap.granted_pages(), heap.committed_pages());
        assert_eq!(heap.used_object_blocks(), old.used_object_blocks());
        assert_eq!(heap.revoke_object_blocks(u64::MAX), 0, "all that is granted is used");
        assert_eq!(heap.spans_begun(), old.spans_begun());
        region.check();
        for page in (0..heap.spans_begun() * SPAN / PAGE).step_by(5) {
            let page = page.into();
            assert_eq!(heap.page_is_free(page), old.page_is_free(page));
            assert_eq!(heap.is_handed_out(page), old.is_handed_out(page));
            assert_eq!(heap.kept_bytes(page), old.kept_bytes(page));
            assert_eq!(heap.is_object_page(page), old.is_object_page(page));
        }
        while let Some(freed) = heap.take_idle_objects() {
            region.end_objects(freed);
        }
        region.check();
        let cache = region.cache();
        let (runs, objects) = (Vec::new(), Vec::new());
        let model = Model { region, cache, runs, objects, ..self };
        model.check();
        model
    }

    fn enter(&mut self, ptr: usize, zeroed: bool, mut live: Live) {
        self.next_tag = self.next_tag % 255 + 1;
        live.tag = self.next_tag;
        let end = live.elements(ptr).last().unwrap() + live.size;
        if let Some((below, other)) = self.live.range(..=ptr).next_back() {
            let end_below = other.elements(*below).last().unwrap() + other.size;
            assert!(end_below <= ptr, "{ptr:#x} overlaps {below:#x}");
        }
        if let Some((above, _)) = self.live.range(ptr..).next() {
            assert!(end <= *above, "{ptr:#x} overlaps {above:#x}");
        }
        for element in live.elements(ptr) {
            assert!(!zeroed || reads_as_zeros(element, live.size), "zeroed, but not zero");
            stamp(element, live.size, live.tag);
        }
        self.live.insert(ptr, live);
    }

    fn allocate(&mut self, size: usize, align: usize) {
        let allocated = self.region.allocate(&mut self.cache, size, align);
        let Some(allocated) = allocated else { return };
        assert!(allocated.ptr.is_multiple_of(align));
        let size = self.region.heap.usable_size(allocated.ptr).unwrap();
        let live = Live { count: 1, stride: 0, size, tag: 0 };
        self.enter(allocated.ptr, allocated.zeroed, live);
    }

    fn allocate_objects(&mut self, count: usize, size: usize) {
        let Some(allocated) = self.region.allocate_objects(count, size) else { return };
        let live = Live { count, stride: stride(size), size: size.max(1), tag: 0 };
        self.enter(allocated.ptr, allocated.zeroed, live);
    }

    fn pick(&self, random: &mut Random) -> Option<usize> {
        let count = self.live.len();
        (count > 0).then(|| *self.live.keys().nth(random.below(count)).unwrap())
    }

    fn free(&mut self, random: &mut Random) {
        let Some(ptr) = self.pick(random) else { return };
        let live = self.live.remove(&ptr).unwrap();
        assert!(live.holds(ptr), "{ptr:#x} was overwritten");
        let delay = random.below(4) == 0;
        match self.region.heap.free(&mut self.cache, ptr) {
            Freed::Run(run) if delay => self.runs.push(run),
            Freed::Run(run) => self.region.recycle(run),
            Freed::Objects(freed) if delay => self.objects.push(freed),
            Freed::Objects(freed) => self.region.end_objects(freed),
            Freed::Done | Freed::Pages(_) => {}
            Freed::NotAllocated => panic!("free of {ptr:#x} refused"),
        }
        assert_eq!(self.region.heap.free(&mut self.cache, ptr), Freed::NotAllocated);
    }

    fn resize(&mut self, random: &mut Random, size: usize) {
        let Some(ptr) = self.pick(random) else { return };
        let heap = self.region.heap;
        if heap.object_at(ptr).is_some() {
            return;
        }
        if size > self.live[&ptr].size {
            let _grown = heap.grow_in_place(ptr, size);
        } else if let Shrunk::Run(run) = heap.shrink_in_place(ptr, size) {
            self.runs.push(run);
        }
        let live = self.live.get_mut(&ptr).unwrap();
        live.size = heap.usable_size(ptr).unwrap();
        stamp(ptr, live.size, live.tag);
    }

    fn end_quarantine(&mut self) {
        self.runs.drain(..).for_each(|run| self.region.recycle(run));
        self.objects.drain(..).for_each(|freed| self.region.end_objects(freed));
        self.region.drain_freed();
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(1000) {
            0..300 => self.allocate(random.size(), 1),
            300..330 => self.allocate(random.size(), 1 << random.below(17)),
            330..334 => self.allocate((40 << 20) + random.below(100 << 20), 1),
            334..500 => self.allocate_objects(1, random.below(128)),
            500..550 => self.allocate_objects(1, 128 + random.below(3 * PAGE)),
            550..560 => self.allocate_objects(1, random.below(1 << 20)),
            560..570 => self.allocate_objects(2 + random.below(40), 128 + random.below(3 * PAGE)),
            570..571 if random.below(3) == 0 => {
                self.allocate_objects(17_000 + random.below(5000), 128)
            }
            570..940 => self.free(random),
            940..980 => {
                let size = random.size();
                self.resize(random, size);
            }
            980..990 => {
                let size = random.below(120 << 20);
                self.resize(random, size);
            }
            _ => self.end_quarantine(),
        }
    }

    fn check(&self) {
        let heap = self.region.heap;
        let bytes: usize = self.live.values().map(|live| live.count * live.size).sum();
        // Objects are counted in steps of 8 bytes.
        assert!((bytes..=bytes + 8 * heap.objects_live()).contains(&heap.allocated_bytes()));
        for (&ptr, live) in &self.live {
            let size = heap.allocation_size(ptr).expect("it lives");
            assert!((live.size..live.size + 8).contains(&size));
            assert!(live.holds(ptr), "{ptr:#x} was overwritten");
        }
        self.region.check();
    }

    fn end(mut self, random: &mut Random) {
        while !self.live.is_empty() {
            self.free(random);
        }
        self.end_quarantine();
        self.region.heap.flush(&self.cache);
        self.region.drain_freed();
        let heap = self.region.heap;
        heap.retire_empty_pools();
        while let Some(freed) = heap.take_idle_objects() {
            self.region.end_objects(freed);
        }
        assert_eq!((heap.allocated_bytes(), heap.used_object_blocks()), (0, 0));
        self.region.check();
    }
}

fn random_sequence(seed: u64, recycling: Recycling, rounds: usize) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut model = Model::new(recycling);
    for _ in 0..rounds {
        for _ in 0..random.below(3000) {
            model.step(&mut random);
        }
        model = model.reopened();
        if random.below(4) == 0 {
            while model.live.len() > 10 {
                model.free(&mut random);
            }
        }
    }
    model.end(&mut random);
}

#[test]
fn a_loaded_heap_is_the_saved_one_and_goes_on() {
    for seed in 0..3 {
        random_sequence(seed, Recycling::Keep, 8);
        random_sequence(seed + 100, Recycling::Discard, 8);
    }
}

#[test]
fn an_untouched_heap_can_be_saved_and_loaded() {
    let model = Model::new(Recycling::Keep).reopened();
    let mut random = Random::new(7);
    let mut model = model.reopened();
    model.allocate(100, 1);
    model.reopened().end(&mut random);
}

#[test]
fn what_was_in_quarantine_is_free_with_its_old_bytes() {
    let mut model = Model::new(Recycling::Keep);
    let region = &model.region;
    let mut cache = region.cache();
    let run = region.allocate(&mut cache, 30 << 20, 1).unwrap().ptr;
    let huge = region.allocate(&mut cache, 100 << 20, 1).unwrap().ptr;
    let object = region.allocate_objects(1, 4000).unwrap().ptr;
    let array = region.allocate_objects(40, 4000).unwrap().ptr;
    for ptr in [run, huge, object, array] {
        stamp(ptr, 4000, 77);
        let freed = region.heap.free(&mut cache, ptr);
        assert!(matches!(freed, Freed::Run(_) | Freed::Objects(_)), "{freed:?}");
    }
    model = model.reopened();
    for (size, ptr) in [(30 << 20, run), (100 << 20, huge)] {
        let again = model.region.allocate(&mut model.cache, size, 1).unwrap();
        assert_eq!((again.ptr, again.zeroed), (ptr, false));
    }
    let again = model.region.allocate_objects(1, 4000).unwrap();
    assert_eq!((again.ptr, again.zeroed), (object, false));
    assert!(model.region.allocate_objects(40, 4000).is_some());
    model.region.check();
}

#[test]
fn two_heaps_of_one_process_do_not_know_each_other() {
    let mut random = Random::new(3);
    let mut models = [Model::new(Recycling::Keep), Model::new(Recycling::Discard)];
    for _ in 0..4000 {
        let model = &mut models[random.below(2)];
        model.step(&mut random);
    }
    let [first, second] = models;
    let mut first = first.reopened();
    second.check();
    for _ in 0..500 {
        first.step(&mut random);
    }
    second.check();
    first.end(&mut random);
    second.end(&mut random);
}

#[test]
fn tables_of_another_heap_are_refused_by_name() {
    let model = Model::new(Recycling::Keep);
    let base = model.region.base;
    let saved = save(model.region.heap);
    let refusal = |saved: &Saved, base, spans| match load(saved, base, spans) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    };
    let elsewhere = refusal(&saved, base + SPAN, SPANS);
    assert_eq!(elsewhere, format!("the tables are of a heap at address {base}"));
    let longer = refusal(&saved, base, SPANS + 1);
    assert_eq!(longer, format!("the tables are of a region with bytes {}", SPANS * SPAN));
    assert_eq!(refusal(&Saved::new(), base, SPANS), "missing: head page 0");
    let mut newer = saved.clone();
    newer.get_mut(&(HEAD, 0)).unwrap()[8] = 2;
    assert_eq!(refusal(&newer, base, SPANS), "tables have the unknown version 2");
}

#[test]
#[should_panic(expected = "areas are not saved")]
fn a_heap_with_areas_is_not_saved() {
    let region = Region::new(2, Recycling::Keep);
    let spans = region.heap.begin_spans(1).unwrap();
    region.heap.publish_spans(spans);
    let (area, _) = region.heap.allocate_area(3).unwrap();
    region.heap.free_area(area);
    region.heap.save(&mut |_, _, _| {});
}

/// Spoils some of what was saved: bits, bytes, words, whole pages.
fn spoil(saved: &mut Saved, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let pick = |saved: &Saved, random: &mut Random| {
            saved.iter().nth(random.below(saved.len())).map(|(key, page)| (*key, page.clone()))
        };
        let (Some((key, mut page)), Some((_, other))) = (pick(saved, random), pick(saved, random))
        else {
            return;
        };
        // Mostly where something is.
        let used: Vec<usize> = (0..PAGE).filter(|&at| page[at] != 0).collect();
        let at = match random.below(4) {
            0 => random.below(PAGE),
            _ => used.get(random.below(used.len().max(1))).copied().unwrap_or(0),
        };
        match random.below(16) {
            0..5 => page[at] ^= 1 << random.below(8),
            5..8 => page[at] = random.next() as u8,
            8..13 => {
                let small = random.below(20) as u32;
                let values = [small, small << 10, u32::MAX - small, (small << 29) + 16 * small];
                let value = values[random.below(values.len())];
                page[at / 4 * 4..][..4].copy_from_slice(&value.to_le_bytes());
            }
            13 => page[at / 8 * 8..][..8].fill(random.next() as u8),
            14 => page = other,
            _ => page.fill(0),
        }
        saved.insert(key, page);
    }
}

#[test]
fn spoilt_tables_are_refused_or_loaded_but_never_panic() {
    let seed = 11;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut model = Model::new(Recycling::Keep);
    let (mut refused, mut loaded) = (0, 0);
    for _ in 0..12 {
        for _ in 0..400 {
            model.step(&mut random);
        }
        model.region.heap.flush(&model.cache);
        let saved = save(model.region.heap);
        for _ in 0..60 {
            let mut spoilt = saved.clone();
            spoil(&mut spoilt, &mut random);
            match load(&spoilt, model.region.base, SPANS) {
                Ok(_) => loaded += 1,
                Err(_) => refused += 1,
            }
        }
    }
    println!("{refused} refused, {loaded} loaded");
    assert!(refused > loaded / 4, "{refused} refused, {loaded} loaded");
}
