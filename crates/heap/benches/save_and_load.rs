//! Save and load: how long the tables of a large heap take, and how many bytes they are.
//!
//! `cargo bench -p deepheap-heap --bench save_and_load`. No memory of the heap is touched: its
//! region is not even mapped.

use std::time::Instant;

use deepheap_heap::{Freed, Heap, PAGE, SPAN, Shortage, ThreadCache};

const BASE: usize = 1 << 44;
/// As the runtime has it: 4 TiB.
const SPANS: usize = 1 << 16;
const OBJECTS: usize = 32 << 20;
const PAGES: usize = 1 << 20;

fn new_heap() -> &'static Heap {
    Box::leak(Box::new(Heap::new(BASE, SPANS * SPAN).expect("address space")))
}

fn provide(heap: &Heap, shortage: Shortage) {
    match shortage {
        Shortage::Pages(pages) => heap.grant(pages.max(1 << 16)),
        Shortage::ObjectBlocks(blocks) => heap.grant_object_blocks(blocks.max(1 << 16) as u64),
        Shortage::Spans(count) => {
            heap.publish_spans(heap.begin_spans(count).expect("room in the region"));
        }
        Shortage::ObjectSpans(count) => {
            heap.add_object_spans(heap.begin_spans(count).expect("room in the region"));
        }
        Shortage::LaneSpans(_) => panic!("no lanes"),
        Shortage::TooLarge => panic!("too large"),
    }
}

fn allocate(heap: &Heap, cache: &mut ThreadCache, size: usize) -> usize {
    loop {
        match heap.allocate(cache, size, 1) {
            Ok(allocated) => return allocated.ptr,
            Err(shortage) => provide(heap, shortage),
        }
    }
}

fn objects(heap: &Heap, count: usize, size: usize) {
    for _ in 0..count {
        while let Err(shortage) = heap.allocate_object(size) {
            provide(heap, shortage);
        }
    }
}

/// 4 GiB of allocations of `size` bytes each; of runs every other one is freed again.
fn memory(heap: &Heap, size: usize, holes: bool) {
    let mut cache = ThreadCache::new_in(heap).expect("pinned memory");
    let mut holes_at = Vec::new();
    for number in 0..PAGES * PAGE / size {
        let ptr = allocate(heap, &mut cache, size);
        if holes && number % 2 == 0 {
            holes_at.push(ptr);
        }
    }
    for ptr in holes_at {
        if let Freed::Run(run) = heap.free(&mut cache, ptr) {
            heap.recycle(run, false);
        }
    }
    heap.flush(&cache);
    while let Some(run) = heap.take_freed() {
        heap.recycle(run, false);
    }
}

fn measure(name: &str, fill: impl FnOnce(&Heap)) {
    let heap = new_heap();
    fill(heap);
    heap.fork_prepare();
    let mut pages = Vec::new();
    // The first time makes room for the pages, so that the second one measures only the heap.
    heap.save(&mut |table, page, bytes| pages.push((table, page, bytes.to_vec())));
    let start = Instant::now();
    let mut sum = 0usize;
    heap.save(&mut |_, _, bytes| sum += usize::from(std::hint::black_box(bytes)[0]));
    let save = start.elapsed();
    heap.after_fork();
    let start = Instant::now();
    let again = Heap::new(BASE, SPANS * SPAN).expect("address space");
    let made = start.elapsed();
    let start = Instant::now();
    assert!(pages.iter().all(|(table, page, bytes)| again.load(*table, *page, bytes)));
    let load = start.elapsed();
    let start = Instant::now();
    again.loaded().expect("good tables");
    let loaded = start.elapsed();
    assert_eq!(again.allocated_bytes(), heap.allocated_bytes());
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    println!(
        "{name:<36} {:>8.1} MiB saved in {:>6.1} ms; new {:.1} + load {:.1} + loaded {:.1} ms",
        (pages.len() * PAGE) as f64 / f64::from(1 << 20),
        ms(save),
        ms(made),
        ms(load),
        ms(loaded),
    );
    std::hint::black_box(sum);
}

fn main() {
    for _ in 0..2 {
        measure("32 M objects of 128 bytes", |heap| objects(heap, OBJECTS, 128));
        measure("32 M objects of 64 bytes", |heap| objects(heap, OBJECTS, 64));
        measure("4 GiB in blocks of 16 bytes", |heap| memory(heap, 16, false));
        measure("4 GiB in blocks of 128 bytes", |heap| memory(heap, 128, false));
        measure("4 GiB in blocks of 20 KiB, half free", |heap| memory(heap, 20 << 10, true));
        measure("4 GiB in blocks of 4 MiB", |heap| memory(heap, 4 << 20, false));
    }
}
