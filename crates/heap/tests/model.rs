//! Model: seeded and shrinking sequences of calls against a plain map of what is allocated.

#![allow(clippy::unwrap_used)]

mod region;

use std::collections::BTreeMap;

use deepheap_heap::{Freed, PAGE, Shrunk, ThreadCache};
use proptest::prelude::*;
use region::{Random, Recycling, Region, reads_as_zeros, stamp, stamp_holds};

/// A live allocation: usable bytes and the tag they are stamped with.
struct Live {
    usable: usize,
    tag: u8,
}

struct Model {
    region: Region,
    cache: ThreadCache,
    live: BTreeMap<usize, Live>,
    next_tag: u8,
}

impl Model {
    fn new(spans: usize, recycling: Recycling) -> Model {
        let region = Region::new(spans, recycling);
        let cache = region.cache();
        Model { region, cache, live: BTreeMap::new(), next_tag: 1 }
    }

    fn allocate(&mut self, size: usize, align: usize) {
        let Some(allocated) = self.region.allocate(&mut self.cache, size, align) else {
            return;
        };
        let ptr = allocated.ptr;
        assert_eq!(ptr % align.max(16), 0, "alignment {align} of {size} bytes");
        let usable = self.region.heap.usable_size(ptr).unwrap();
        assert_eq!(self.region.heap.allocation_size(ptr), Some(usable));
        assert!(usable >= size);
        if let Some((below, live)) = self.live.range(..=ptr).next_back() {
            assert!(below + live.usable <= ptr, "{ptr:#x} overlaps {below:#x}");
        }
        if let Some((above, _)) = self.live.range(ptr..).next() {
            assert!(ptr + usable <= *above, "{ptr:#x} overlaps {above:#x}");
        }
        if allocated.zeroed {
            assert!(reads_as_zeros(ptr, usable), "zeroed, but not zero: {size} bytes at {ptr:#x}");
        }
        for page in [ptr, ptr + usable - 1].map(|byte| self.region.page_of(byte)) {
            assert!(!self.region.heap.page_is_free(page.into()), "page of a live allocation");
        }
        let tag = self.tag();
        stamp(ptr, usable, tag);
        self.live.insert(ptr, Live { usable, tag });
    }

    fn tag(&mut self) -> u8 {
        self.next_tag = self.next_tag % 255 + 1;
        self.next_tag
    }

    fn pick(&self, choice: usize) -> Option<usize> {
        let count = self.live.len();
        (count > 0).then(|| *self.live.keys().nth(choice % count).unwrap())
    }

    fn free(&mut self, choice: usize) {
        if let Some(ptr) = self.pick(choice) {
            let live = self.live.remove(&ptr).unwrap();
            assert!(stamp_holds(ptr, live.usable, live.tag), "{ptr:#x} was overwritten");
            self.region.free(&mut self.cache, ptr);
            let again = self.region.heap.free(&mut self.cache, ptr);
            assert_eq!(again, Freed::NotAllocated, "an immediate second free is refused");
        }
    }

    fn free_inside(&mut self, choice: usize, offset: usize) {
        if let Some(ptr) = self.pick(choice) {
            let inside = ptr + 1 + offset % (self.live[&ptr].usable - 1);
            assert_eq!(self.region.heap.free(&mut self.cache, inside), Freed::NotAllocated);
            assert_eq!(self.region.heap.usable_size(inside), None);
        }
    }

    fn resize(&mut self, choice: usize, size: usize) {
        let Some(ptr) = self.pick(choice) else {
            return;
        };
        let heap = self.region.heap;
        let old = self.live[&ptr].usable;
        if size > old {
            if heap.grow_in_place(ptr, size) == Ok(true) {
                assert!(heap.usable_size(ptr).unwrap() >= size);
            } else {
                assert_eq!(heap.usable_size(ptr), Some(old));
            }
        } else {
            match heap.shrink_in_place(ptr, size) {
                Shrunk::Run(run) => self.region.recycle(run),
                Shrunk::Done => {}
                Shrunk::Wasteful => assert!(size < old / 2),
                Shrunk::NotAllocated => panic!("{ptr:#x} is live"),
            }
            assert!(heap.usable_size(ptr).unwrap() >= size);
        }
        let usable = heap.usable_size(ptr).unwrap();
        if let Some((above, _)) = self.live.range(ptr + 1..).next() {
            assert!(ptr + usable <= *above, "{ptr:#x} grew into {above:#x}");
        }
        let tag = self.tag();
        stamp(ptr, usable, tag);
        self.live.insert(ptr, Live { usable, tag });
    }

    fn purge(&mut self, max: usize) {
        while let Some(run) = self.region.heap.take_purgeable(max) {
            self.region.discard(run);
            self.region.heap.recycle(run, false);
        }
    }

    fn check(&self) {
        let bytes: usize = self.live.values().map(|live| live.usable).sum();
        assert_eq!(self.region.heap.allocated_bytes(), bytes);
        let heap = self.region.heap;
        assert!(heap.committed_pages() * PAGE >= bytes);
        assert!(heap.committed_pages() <= heap.granted_pages());
        self.region.check();
    }

    fn end(mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
        self.check();
        self.region.heap.thread_exit(self.cache);
        self.region.drain_freed();
        assert_eq!(self.region.heap.allocated_bytes(), 0);
        assert_eq!(self.region.heap.cached_bytes(), 0);
        self.region.check();
        while let Some(run) = self.region.heap.take_purgeable(0) {
            self.region.discard(run);
            self.region.heap.recycle(run, false);
        }
        // What is left are the empty slabs that classes keep.
        assert!(self.region.heap.committed_pages() <= 64 * 2 * 16);
        self.region.check();
    }
}

fn random_sequence(seed: u64, recycling: Recycling, steps: usize) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut model = Model::new(16, recycling);
    for step in 0..steps {
        let choice = random.below(1 << 20);
        match random.below(100) {
            0..50 => model.allocate(random.size(), 1),
            50..55 => {
                let align = 1 << random.below(17);
                model.allocate(random.size(), align);
            }
            55..90 => model.free(choice),
            90..93 => model.free_inside(choice, random.below(1 << 22)),
            93..98 => model.resize(choice, random.size()),
            98 => model.purge(random.below(2000)),
            _ => model.region.drain_freed(),
        }
        if step % 2000 == 0 {
            model.check();
        }
        if step % 10_000 == 9_999 {
            while model.live.len() > 10 {
                model.free(random.below(1 << 20));
            }
        }
    }
    model.check();
    model.end();
}

#[test]
fn random_sequences_agree_with_the_model() {
    for seed in 0..4 {
        random_sequence(seed, Recycling::Keep, 25_000);
        random_sequence(seed + 100, Recycling::Discard, 25_000);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize, u32),
    Free(usize),
    FreeInside(usize, usize),
    Resize(usize, usize),
    Purge(usize),
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0..200usize,
        8 => 200..20_000usize,
        8 => 20_000..2_000_000usize,
        1 => 60 << 20..140usize << 20,
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (sizes(), 0..27u32).prop_map(|(size, align)| Step::Allocate(size, align)),
        4 => sizes().prop_map(|size| Step::Allocate(size, 0)),
        5 => any::<usize>().prop_map(Step::Free),
        1 => any::<(usize, usize)>().prop_map(|(choice, at)| Step::FreeInside(choice, at)),
        3 => (any::<usize>(), sizes()).prop_map(|(choice, size)| Step::Resize(choice, size)),
        1 => (0..5000usize).prop_map(Step::Purge),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_agrees_with_the_model(steps in steps(), keep in any::<bool>()) {
        let recycling = if keep { Recycling::Keep } else { Recycling::Discard };
        let mut model = Model::new(12, recycling);
        for step in steps {
            match step {
                Step::Allocate(size, align) => model.allocate(size, 1 << align),
                Step::Free(choice) => model.free(choice),
                Step::FreeInside(choice, offset) => model.free_inside(choice, offset),
                Step::Resize(choice, size) => model.resize(choice, size),
                Step::Purge(max) => model.purge(max),
            }
            model.check();
        }
        model.end();
    }
}
