//! Objects: pools and arrays against a plain map of what is allocated, and their edges.

#![allow(clippy::unwrap_used)]

mod region;

use std::collections::BTreeMap;

use deepheap_heap::{
    Freed, FreedObjects, LANE_BYTES, LANES, ObjectShape, PAGE, PageNo, SPAN, Shortage, Shrunk,
    ThreadCache, stride,
};
use region::{Random, Recycling, Region, reads_as_zeros, stamp, stamp_holds};

/// A live object or array.
struct Live {
    count: usize,
    size: usize,
    tag: u8,
}

struct Model {
    region: Region,
    cache: ThreadCache,
    live: BTreeMap<usize, Live>,
    quarantine: Vec<FreedObjects>,
    next_tag: u8,
    has_lanes: bool,
}

/// Frames that pages in lanes share.
const FRAMES: usize = 64;

impl Model {
    fn new(spans: usize, recycling: Recycling) -> Model {
        let region = Region::new(spans, recycling);
        let cache = region.cache();
        let (live, quarantine) = (BTreeMap::new(), Vec::new());
        Model { region, cache, live, quarantine, next_tag: 1, has_lanes: false }
    }

    /// As `new`, with objects in lanes.
    fn with_lanes(spans: usize, recycling: Recycling) -> Model {
        let model = Model::new(spans, recycling);
        model.region.heap.set_lanes(FRAMES.trailing_zeros());
        Model { has_lanes: true, ..model }
    }

    fn in_lane(&self, live: &Live) -> bool {
        self.has_lanes && live.count == 1 && live.size <= LANE_BYTES
    }

    fn elements(ptr: usize, live: &Live) -> impl Iterator<Item = usize> + use<> {
        let stride = if live.count > 1 { stride(live.size) } else { 0 };
        (0..live.count).map(move |element| ptr + element * stride)
    }

    /// Where an object or array ends.
    fn end_of(ptr: usize, live: &Live) -> usize {
        Self::elements(ptr, live).last().unwrap() + live.size
    }

    fn allocate(&mut self, count: usize, asked: usize) {
        let Some(allocated) = self.region.allocate_objects(count, asked) else {
            return;
        };
        let heap = self.region.heap;
        let ptr = allocated.ptr;
        let size = asked.max(1).next_multiple_of(8);
        self.next_tag = self.next_tag % 255 + 1;
        let live = Live { count, size, tag: self.next_tag };
        let align = match size {
            _ if self.in_lane(&live) => (1 << size.trailing_zeros()).min(LANE_BYTES),
            128.. => PAGE,
            _ => 1 << size.trailing_zeros(),
        };
        assert!(ptr.is_multiple_of(align), "{size} bytes at {ptr:#x}");
        if let Some((below, other)) = self.live.range(..=ptr).next_back() {
            assert!(Self::end_of(*below, other) <= ptr, "{ptr:#x} overlaps {below:#x}");
        }
        if let Some((above, _)) = self.live.range(ptr..).next() {
            assert!(Self::end_of(ptr, &live) <= *above, "{ptr:#x} overlaps {above:#x}");
        }
        assert_eq!((heap.usable_size(ptr), heap.allocation_size(ptr)), (Some(size), Some(size)));
        for (index, element) in Self::elements(ptr, &live).enumerate() {
            let shape = heap.object_at(element).unwrap();
            let pages = size.next_multiple_of(PAGE);
            assert_eq!(shape, ObjectShape { size, count, index, stride: pages });
            if allocated.zeroed {
                assert!(reads_as_zeros(element, size), "zeroed, but not zero: {size} bytes");
            }
            let end = element + size;
            for start in (element / PAGE * PAGE..end).step_by(PAGE) {
                let page = PageNo::from(self.region.page_of(start));
                assert!(heap.is_object_page(page) && !heap.page_is_free(page));
                let begin = start + heap.kept_offset(page);
                assert!(begin <= element.max(start), "from the first byte on");
                let kept = begin + heap.kept_bytes(page);
                assert!(kept >= end.min(start + PAGE), "every byte is kept");
                let is_alone = size >= 128 && !self.in_lane(&live);
                assert!(!is_alone || kept == end.min(start + PAGE), "and none beyond");
                if self.in_lane(&live) {
                    let (frame, lane) = (page.index() % FRAMES, page.index() / FRAMES % LANES);
                    assert_eq!(begin - start, lane * LANE_BYTES, "page {page:?}, frame {frame}");
                    assert!(heap.is_lane_page(page) && kept <= begin + LANE_BYTES);
                }
            }
            stamp(element, size, live.tag);
        }
        self.live.insert(ptr, live);
    }

    fn pick(&self, choice: usize) -> Option<usize> {
        let count = self.live.len();
        (count > 0).then(|| *self.live.keys().nth(choice % count).unwrap())
    }

    fn free(&mut self, choice: usize, delay: bool) {
        let Some(ptr) = self.pick(choice) else {
            return;
        };
        let live = self.live.remove(&ptr).unwrap();
        for element in Self::elements(ptr, &live) {
            assert!(stamp_holds(element, live.size, live.tag), "{element:#x} was overwritten");
        }
        let heap = self.region.heap;
        match heap.free(&mut self.cache, ptr) {
            Freed::Objects(freed) => {
                let first = freed.first.index();
                assert_eq!(first, self.region.page_of(ptr));
                let pages = live.count * live.size.div_ceil(PAGE);
                assert_eq!(freed.pages, pages);
                assert!((first..first + pages).all(|page| heap.page_is_free(page.into())));
                if delay {
                    self.quarantine.push(freed);
                } else {
                    self.region.end_objects(freed);
                }
            }
            Freed::Done => {
                assert!(
                    live.size < 128 || self.in_lane(&live),
                    "only batched objects leave their page in use"
                );
                assert!(!heap.page_is_free(self.region.page_of(ptr).into()));
            }
            other => panic!("{other:?} for a live object"),
        }
        assert_eq!(heap.free(&mut self.cache, ptr), Freed::NotAllocated, "a second free");
        assert_eq!((heap.allocation_size(ptr), heap.object_at(ptr)), (None, None));
    }

    fn end_quarantine(&mut self) {
        for freed in self.quarantine.drain(..) {
            self.region.end_objects(freed);
        }
    }

    fn ask_inside(&mut self, choice: usize, offset: usize) {
        let Some(ptr) = self.pick(choice) else {
            return;
        };
        let heap = self.region.heap;
        let (size, count) = (self.live[&ptr].size, self.live[&ptr].count);
        let inside = ptr + 1 + offset % (size - 1);
        assert_eq!(heap.free(&mut self.cache, inside), Freed::NotAllocated);
        assert_eq!((heap.usable_size(inside), heap.object_at(inside)), (None, None));
        assert_eq!(heap.shrink_in_place(inside, 1), Shrunk::NotAllocated);
        if count > 1 {
            let element = ptr + stride(size) * (1 + offset % (count - 1));
            assert_eq!(heap.free(&mut self.cache, element), Freed::NotAllocated, "an element");
            assert!(heap.object_at(element).is_some() && heap.allocation_size(element).is_none());
        }
        assert_eq!(heap.grow_in_place(ptr, size), Ok(true));
        assert_eq!(heap.grow_in_place(ptr, size + 1), Ok(false));
        assert_eq!(heap.shrink_in_place(ptr, size.div_ceil(2)), Shrunk::Done);
    }

    fn check(&self) {
        let heap = self.region.heap;
        let bytes: usize = self.live.values().map(|live| live.size * live.count).sum();
        let objects: usize = self.live.values().map(|live| live.count).sum();
        assert_eq!((heap.object_bytes(), heap.objects_live()), (bytes, objects));
        assert_eq!(heap.allocated_bytes(), bytes);
        assert_eq!((heap.committed_pages(), heap.granted_pages()), (0, 0));
        let data_blocks = bytes.div_ceil(4096) as u64;
        assert!(data_blocks <= heap.used_object_blocks(), "what lives could be stored");
        self.region.check();
    }

    fn end(mut self) {
        while !self.live.is_empty() {
            self.free(0, false);
        }
        self.end_quarantine();
        self.check();
        let heap = self.region.heap;
        heap.retire_empty_pools();
        while let Some(freed) = heap.take_idle_objects() {
            self.region.end_objects(freed);
        }
        assert_eq!(heap.used_object_blocks(), 0, "all store space has come back");
        heap.revoke_object_blocks(u64::MAX);
        assert_eq!(heap.allocate_object(4096), Err(Shortage::ObjectBlocks(17)), "none is left");
        self.check();
    }
}

/// Mostly what a page holds; sometimes larger than any pool's.
fn size(random: &mut Random) -> usize {
    match random.below(20) {
        0..10 => random.below(128),
        10..16 => random.below(PAGE + 1),
        16..19 => random.below(20 * PAGE),
        _ => random.below(1 << 20),
    }
}

fn random_sequence(seed: u64, mut model: Model, steps: usize, sizes: usize) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let some: Vec<usize> = (0..sizes).map(|_| size(&mut random)).collect();
    for step in 0..steps {
        let choice = random.below(1 << 20);
        match random.below(100) {
            0..50 => model.allocate(1, some[random.below(sizes)]),
            50..53 => {
                let size = 128 + random.below(3 * PAGE);
                model.allocate(2 + random.below(40), size);
            }
            53..95 => model.free(choice, random.below(4) == 0),
            95..98 => model.ask_inside(choice, random.below(1 << 22)),
            _ => model.end_quarantine(),
        }
        if step % 500 == 0 {
            model.check();
        }
        if step % 5000 == 4999 {
            while model.live.len() > 10 {
                model.free(random.below(1 << 20), false);
            }
        }
    }
    model.end();
}

#[test]
fn small_objects_beyond_sixteen_to_a_lane_have_pages_of_their_own() {
    let region = Region::new(8, Recycling::Discard);
    region.heap.set_lanes(FRAMES.trailing_zeros());
    let mut in_lanes = 0;
    let (first, last) = loop {
        let ptr = region.allocate_objects(1, LANE_BYTES).unwrap().ptr;
        let page = PageNo::from(region.page_of(ptr));
        if !region.heap.is_lane_page(page) {
            break (ptr, page);
        }
        in_lanes += 1;
    };
    // Lanes come by whole spans; the rest of the last one may be too short for a chunk.
    let most = (FRAMES * LANES * 16).max(SPAN / PAGE);
    assert!((most / 2..=most).contains(&in_lanes), "{in_lanes} of {most}");
    assert_eq!((first % PAGE, region.heap.kept_bytes(last)), (0, LANE_BYTES));
    stamp(first, LANE_BYTES, 7);
    assert!(stamp_holds(first, LANE_BYTES, 7));
}

#[test]
fn random_sequences_of_objects_agree_with_the_model() {
    for (seed, sizes) in [(0, 3), (1, 20), (2, 1000)] {
        random_sequence(seed, Model::new(24, Recycling::Keep), 15_000, sizes);
        random_sequence(seed + 100, Model::new(24, Recycling::Discard), 15_000, sizes);
    }
}

#[test]
fn random_sequences_of_objects_in_lanes_agree_with_the_model() {
    for (seed, sizes) in [(200, 3), (201, 20), (202, 1000)] {
        random_sequence(seed, Model::with_lanes(24, Recycling::Keep), 15_000, sizes);
        random_sequence(seed + 100, Model::with_lanes(24, Recycling::Discard), 15_000, sizes);
    }
}

#[test]
fn foreign_pointers_are_refused_in_object_spans_too() {
    let region = Region::new(4, Recycling::Keep);
    let mut cache = region.cache();
    let batched = region.allocate_objects(1, 24).unwrap().ptr;
    let single = region.allocate_objects(1, 200).unwrap().ptr;
    let large = region.allocate_objects(1, 10_000).unwrap().ptr;
    let array = region.allocate_objects(20, 5000).unwrap().ptr;
    let memory = region.allocate(&mut cache, 100, 1).unwrap().ptr;
    let never = [
        batched + 8,
        batched + 24,
        batched + 5 * 24,
        batched + 6 * 24,
        batched + PAGE,
        single + 8,
        single + 200,
        single + PAGE,
        large + PAGE,
        large + 2 * PAGE,
        large + 3 * PAGE,
        array + PAGE,
        array + 2 * PAGE,
        array + 19 * 2 * PAGE,
        array + 40 * PAGE,
        region.base + SPAN - PAGE,
        region.base + 4 * SPAN,
        usize::MAX,
        0,
    ];
    for ptr in never {
        assert_eq!(region.heap.free(&mut cache, ptr), Freed::NotAllocated, "{ptr:#x}");
        assert_eq!(region.heap.usable_size(ptr), None, "{ptr:#x}");
        assert_eq!(region.heap.grow_in_place(ptr, 1), Ok(false), "{ptr:#x}");
    }
    assert_eq!(region.heap.object_at(memory), None);
    let page = PageNo::from(region.page_of(memory));
    assert!(!region.heap.is_object_page(page) && region.heap.kept_bytes(page) == PAGE);
    assert!(!region.heap.is_object_page(PageNo(u32::MAX)));
    for ptr in [batched, single, large, array, memory] {
        region.free(&mut cache, ptr);
    }
    assert_eq!(region.heap.objects_live(), 0);
    region.check();
}

#[test]
fn a_freed_object_is_not_handed_out_before_its_bytes_are_ended() {
    let region = Region::new(4, Recycling::Keep);
    let mut cache = region.cache();
    for size in [120, 128, 4096, 9000] {
        // All of a page, where several share it.
        let mates: Vec<usize> = (0..128usize.div_ceil(size))
            .map(|_| region.allocate_objects(1, size).unwrap().ptr)
            .collect();
        let mut freed = None;
        for &ptr in &mates {
            if let Freed::Objects(objects) = region.heap.free(&mut cache, ptr) {
                assert!(freed.replace(objects).is_none());
            }
        }
        let others: Vec<usize> =
            (0..500).map(|_| region.allocate_objects(1, size).unwrap().ptr).collect();
        assert!(others.iter().all(|ptr| !mates.contains(ptr)), "in quarantine");
        let freed = freed.unwrap();
        assert!(region.heap.page_is_free(freed.first));
        region.heap.recycle_objects(freed, true);
        let mut more = (0..2000).map(|_| region.allocate_objects(1, size).unwrap());
        let again = more.find(|again| again.ptr == mates[0]).expect("it is used again");
        assert!(!again.zeroed, "with its old bytes");
        region.check();
    }
}

#[test]
fn fresh_objects_are_neighbours_in_ascending_order() {
    let region = Region::new(4, Recycling::Keep);
    region.heap.grant_object_blocks(1 << 16);
    for (size, distance) in [(128, PAGE), (3000, PAGE), (5000, 2 * PAGE)] {
        let first = region.allocate_objects(1, size).unwrap().ptr;
        for object in 1..60 {
            assert_eq!(region.allocate_objects(1, size).unwrap().ptr, first + object * distance);
        }
    }
    let first = region.allocate_objects(1, 8).unwrap().ptr;
    let next: Vec<usize> = (1..33).map(|_| region.allocate_objects(1, 8).unwrap().ptr).collect();
    assert_eq!((next[14], next[15]), (first + 15 * 8, first + PAGE), "sixteen of 8 bytes a page");
    assert_eq!(region.heap.kept_bytes(region.page_of(first).into()), 128);
}

#[test]
fn shortages_say_what_is_missing_and_change_nothing() {
    let region = Region::new(4, Recycling::Keep);
    let mut cache = region.cache();
    let heap = region.heap;
    for size in [usize::MAX, usize::MAX - 8, 5 * SPAN] {
        assert_eq!(heap.allocate_object(size), Err(Shortage::TooLarge));
        assert_eq!(heap.allocate_object_array(3, size), Err(Shortage::TooLarge));
    }
    assert_eq!(heap.allocate_object_array(usize::MAX, 4096), Err(Shortage::TooLarge));
    assert_eq!(heap.allocate_object_array(2, 120), Err(Shortage::TooLarge));
    // A group of 16 objects of 4096 bytes is the least step.
    assert_eq!(heap.allocate_object(4096), Err(Shortage::ObjectBlocks(17)));
    heap.grant_object_blocks(10);
    assert_eq!(heap.allocate_object(4096), Err(Shortage::ObjectBlocks(7)));
    heap.grant_object_blocks(7);
    assert_eq!(heap.allocate_object(4096), Err(Shortage::ObjectSpans(1)));
    let spans = heap.begin_spans(1).unwrap();
    heap.add_object_spans(spans);
    assert_eq!(heap.used_object_blocks(), 0);
    for _ in 0..16 {
        assert!(heap.allocate_object(4096).is_ok());
    }
    assert_eq!(heap.used_object_blocks(), 17);
    assert_eq!(heap.allocate_object(4096), Err(Shortage::ObjectBlocks(17)));
    assert_eq!(heap.revoke_object_blocks(100), 0);
    heap.grant_object_blocks(1 << 20);
    let huge = heap.allocate_object(2 * SPAN + 100);
    assert_eq!(huge, Err(Shortage::ObjectSpans(3)));
    let spans = heap.begin_spans(3).unwrap();
    heap.add_object_spans(spans);
    let used = heap.used_object_blocks();
    let huge = heap.allocate_object(2 * SPAN + 100).unwrap();
    assert!(huge.zeroed);
    assert_eq!(heap.usable_size(huge.ptr), Some(2 * SPAN + 104));
    let Freed::Objects(freed) = heap.free(&mut cache, huge.ptr) else { panic!("an object") };
    assert_eq!((freed.pages, freed.reshaped), (2 * SPAN / PAGE + 1, true));
    // Not taken out of the page buffer yet: it comes back for another try.
    heap.recycle_objects(freed, true);
    assert!(heap.used_object_blocks() > used);
    assert_eq!(heap.allocate_object(2 * SPAN), Err(Shortage::ObjectSpans(2)));
    assert_eq!(heap.take_idle_objects(), Some(freed));
    assert_eq!(heap.take_idle_objects(), None);
    heap.recycle_objects(freed, false);
    assert_eq!(heap.used_object_blocks(), used);
    assert!(heap.allocate_object(2 * SPAN).is_ok());
    region.check();
}

#[test]
fn pools_grow_by_128_then_double_then_step() {
    let region = Region::new(8, Recycling::Keep);
    let heap = region.heap;
    heap.grant_object_blocks(1 << 20);
    let steps_of = |size: usize, objects: usize| {
        let mut steps = Vec::new();
        let mut used = heap.used_object_blocks();
        for object in 0..objects {
            region.allocate_objects(1, size).unwrap();
            if heap.used_object_blocks() > used {
                used = heap.used_object_blocks();
                steps.push(object);
            }
        }
        steps
    };
    // A chunk is promised whole: of larger objects the first one is as many bytes, not objects.
    assert_eq!(steps_of(4096, 100), [0, 16, 32, 64]);
    let steps = steps_of(512, 60_000);
    let doubling = [0, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
    assert_eq!(steps[..8], doubling[..8]);
    // Steps of 10,000 follow, and shorter ones where they fill up a span.
    let steps: Vec<usize> = steps[8..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps.iter().all(|step| (625..=10_000).contains(step)), "{steps:?}");
    assert!(steps.contains(&10_000));
    region.check();
}

#[test]
fn one_pool_fills_its_address_space_but_for_a_fiftieth() {
    // The pager keeps a table entry for each page of it, used or not.
    const SPANS: usize = 8;
    let region = Region::new(SPANS, Recycling::Keep);
    region.heap.grant_object_blocks(1 << 20);
    let mut objects = 0;
    while region.allocate_objects(1, 512).is_some() {
        objects += 1;
    }
    assert!(objects >= SPANS * (SPAN / PAGE) * 49 / 50, "{objects}");
    region.check();
}

#[test]
fn a_million_objects_of_128_bytes_cost_under_2_bytes_of_metadata_each() {
    const OBJECTS: usize = 1 << 20;
    let region = Region::new(80, Recycling::Keep);
    let before = region.heap.metadata_bytes();
    for _ in 0..OBJECTS {
        region.allocate_objects(1, 128).unwrap();
    }
    let each = (region.heap.metadata_bytes() - before) as f64 / OBJECTS as f64;
    println!("{each:.3} bytes of metadata an object");
    assert!(each < 2.0, "{each}");
    assert_eq!(region.heap.objects_live(), OBJECTS);
}

#[test]
fn space_of_one_size_serves_another_after_its_objects_are_gone() {
    let region = Region::new(2, Recycling::Keep);
    let mut cache = region.cache();
    for size in [128, 2000, 24, 9000, 64] {
        let mut held = Vec::new();
        // More than half of the address space, so that the next size needs what this one had.
        let pages = 20_000;
        let objects = pages * 128usize.div_ceil(size) / size.div_ceil(PAGE);
        for _ in 0..objects {
            held.push(region.allocate_objects(1, size).expect("there is room").ptr);
        }
        for ptr in held {
            region.free(&mut cache, ptr);
        }
        region.check();
        region.heap.retire_empty_pools();
        while let Some(freed) = region.heap.take_idle_objects() {
            region.end_objects(freed);
        }
    }
}
