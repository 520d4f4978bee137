//! Promised blocks: what the heap promises for objects covers what the store charges for them.
//!
//! The layout of a packed block is the store's, and the heap, which must not know the store,
//! promises by the same numbers (the pager's `lib.rs` asserts that). Here the two meet in full.

use std::collections::HashSet;

use deepheap_heap::{Heap, PAGE, PageNo, SPAN, Shortage, stride};
use deepheap_store::{BLOCK_UNITS, PACKED_MAX, Plan, cost};

/// Nothing is there: the heap never touches what it hands out.
const REGION: usize = 1 << 45;
const SPANS: usize = 256;

/// Sizes of objects, each as it is kept: up to a page all there are, then some of several pages.
fn sizes() -> impl Iterator<Item = usize> {
    (8..=PAGE).step_by(8).chain([PAGE + 8, PAGE + 128, 2 * PAGE - 8, 2 * PAGE, 3 * PAGE + 136])
}

fn heap() -> Heap {
    Heap::new(REGION, SPANS * SPAN).expect("address space for the tables")
}

/// The first address of `count` objects; what is short is granted, and no more.
fn allocate(heap: &Heap, count: usize, size: usize) -> usize {
    loop {
        match heap.allocate_object_array(count, size) {
            Ok(allocated) => return allocated.ptr,
            Err(Shortage::ObjectBlocks(blocks)) => heap.grant_object_blocks(blocks as u64),
            Err(Shortage::ObjectSpans(count)) => {
                heap.add_object_spans(
                    heap.begin_spans(count).expect("a region that is long enough"),
                );
            }
            Err(shortage) => panic!("{count} objects of {size} bytes: {shortage:?}"),
        }
    }
}

/// What the pages of some objects take in the store when all of them are written.
#[derive(Default)]
struct Charge {
    pages: HashSet<usize>,
    units: u64,
    /// Pages that have a block to themselves, and the bytes of those that share one.
    whole: u64,
    packed: Vec<u16>,
}

impl Charge {
    /// Adds the pages of an object that are not in it yet.
    fn add(&mut self, heap: &Heap, object: usize, size: usize) {
        for page in (object - REGION) / PAGE..=(object + size - 1 - REGION) / PAGE {
            if !self.pages.insert(page) {
                continue;
            }
            let bytes = heap.kept_bytes(PageNo::from(page));
            self.units += u64::from(cost(bytes));
            match u16::try_from(bytes) {
                Ok(small) if bytes <= PACKED_MAX => self.packed.push(small),
                _ => self.whole += 1,
            }
        }
    }

    fn is_covered_by(&self, promised: u64) -> bool {
        let blocks = self.whole + Plan::new().assign(&self.packed) as u64;
        promised >= blocks && promised * u64::from(BLOCK_UNITS) >= self.units
    }
}

#[test]
fn what_is_promised_for_an_array_covers_what_its_elements_cost() {
    let heap = heap();
    for size in sizes().filter(|&size| stride(size) >= PAGE) {
        for count in [2, 3, 7, 30, 31, 100, 255, 1000] {
            let before = heap.used_object_blocks();
            let array = allocate(&heap, count, size);
            let mut charge = Charge::default();
            for element in 0..count {
                charge.add(&heap, array + element * stride(size), size);
            }
            let promised = heap.used_object_blocks() - before;
            assert!(charge.is_covered_by(promised), "{count} of {size} bytes: {promised} blocks");
        }
    }
}

#[test]
fn what_is_promised_for_a_pool_covers_what_its_objects_cost() {
    const OBJECTS: usize = 600;
    let heap = heap();
    for size in sizes() {
        let before = heap.used_object_blocks();
        let mut charge = Charge::default();
        let mut promised = 0;
        for count in 0..OBJECTS {
            let object = allocate(&heap, 1, size);
            let now = heap.used_object_blocks() - before;
            if now > promised {
                // The pool was full before it grew.
                assert!(charge.is_covered_by(promised), "{count} of {size}: {promised} blocks");
                promised = now;
            }
            charge.add(&heap, object, size);
        }
        assert!(charge.is_covered_by(promised), "{OBJECTS} of {size}: {promised} blocks");
    }
}
