//! Against glibc: what a malloc + free pair costs here and in glibc, in one run.
//!
//! `cargo bench -p deepheap-heap [rounds]`. Prints nanoseconds of CPU time a pair
//! (least of seven tries, so that a busy machine shows little) and their ratio. Memory is
//! not touched beyond what the allocators themselves touch; freed runs are recycled as resident,
//! as the runtime does while everything fits in RAM.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

use deepheap_heap::{Freed, Heap, PAGES_PER_SPAN, SPAN, Shortage, ThreadCache};

/// Nothing is mapped there; the heap never looks.
const REGION: usize = 0x2000_0000_0000;

trait Subject {
    fn malloc(&mut self, size: usize) -> usize;
    fn free(&mut self, ptr: usize, size: usize);
}

struct Deepheap<'a> {
    heap: &'a Heap,
    cache: ThreadCache,
}

impl Deepheap<'_> {
    #[inline(never)]
    #[cold]
    fn provide(&mut self, shortage: Shortage) {
        match shortage {
            Shortage::Pages(pages) => self.heap.grant(pages.max(PAGES_PER_SPAN)),
            Shortage::Spans(count) => {
                let spans = self.heap.begin_spans(count).expect("region is large enough");
                self.heap.publish_spans(spans);
            }
            _ => panic!("benchmark asks for too much"),
        }
    }
}

impl Subject for Deepheap<'_> {
    #[inline(always)]
    fn malloc(&mut self, size: usize) -> usize {
        loop {
            match self.heap.allocate(&mut self.cache, size, 1) {
                Ok(allocated) => return allocated.ptr,
                Err(shortage) => self.provide(shortage),
            }
        }
    }

    #[inline(always)]
    fn free(&mut self, ptr: usize, _size: usize) {
        match self.heap.free(&mut self.cache, ptr) {
            Freed::Done | Freed::Pages(_) => {}
            Freed::Run(run) => {
                self.heap.recycle(run, true);
                while let Some(run) = self.heap.take_freed() {
                    self.heap.recycle(run, true);
                }
            }
            Freed::Objects(freed) => {
                let mut next = Some(freed);
                while let Some(freed) = next {
                    self.heap.recycle_objects(freed, !freed.reshaped);
                    next = self.heap.take_idle_objects();
                }
            }
            Freed::NotAllocated => panic!("free of {ptr:#x} refused"),
        }
    }
}

struct Glibc;

impl Subject for Glibc {
    #[inline(always)]
    fn malloc(&mut self, size: usize) -> usize {
        let layout = Layout::from_size_align(size, 16).expect("sane layout");
        // SAFETY: every size used here is above zero.
        unsafe { System.alloc(layout) as usize }
    }

    #[inline(always)]
    fn free(&mut self, ptr: usize, size: usize) {
        let layout = Layout::from_size_align(size, 16).expect("sane layout");
        // SAFETY: `ptr` came from `malloc` above with the same size, and is freed once.
        unsafe { System.dealloc(ptr as *mut u8, layout) }
    }
}

/// Allocate one, free it.
fn pairs(subject: &mut impl Subject, size: usize, rounds: usize) -> usize {
    for _ in 0..rounds {
        let ptr = black_box(subject.malloc(black_box(size)));
        subject.free(ptr, size);
    }
    rounds
}

/// Allocate `live` of a size, then free them all, again and again.
fn waves(subject: &mut impl Subject, size: usize, live: usize, rounds: usize) -> usize {
    let mut held = Vec::with_capacity(live);
    let waves = (rounds / live).max(2);
    for _ in 0..waves {
        for _ in 0..live {
            held.push(black_box(subject.malloc(black_box(size))));
        }
        for ptr in held.drain(..) {
            subject.free(ptr, size);
        }
    }
    waves * live
}

/// Replace a random one of `live` objects of random sizes below `most`.
fn churn(subject: &mut impl Subject, most: usize, live: usize, rounds: usize) -> usize {
    let mut seed = 1u64;
    let mut next = |bound: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % bound
    };
    let mut held: Vec<(usize, usize)> = Vec::with_capacity(live);
    for _ in 0..live {
        let size = 1 + next(most);
        held.push((subject.malloc(size), size));
    }
    for _ in 0..rounds {
        let victim = next(live);
        let size = 1 + next(most);
        subject.free(held[victim].0, held[victim].1);
        held[victim] = (black_box(subject.malloc(size)), size);
    }
    for (ptr, size) in held {
        subject.free(ptr, size);
    }
    rounds
}

/// What `usable_size` costs, by what it is asked about; caches ask at every malloc and free.
fn usable_size(subject: &mut Deepheap<'_>, rounds: usize) {
    for size in [64, 1000, 20 << 10, 4 << 20] {
        let asked: Vec<usize> = (0..64).map(|_| subject.malloc(size)).collect();
        let heap = subject.heap;
        let answer = |what: &str, of: &dyn Fn(usize) -> Option<usize>| {
            let ns = ns(|| {
                let sum: usize = (0..rounds).map(|at| of(asked[at % 64]).unwrap_or(0)).sum();
                black_box(sum);
                rounds
            });
            println!("{:<34}{ns:>10.1}", format!("{what} of {size} B"));
        };
        answer("usable_size", &|ptr| heap.usable_size(black_box(ptr)));
        answer("allocation_size", &|ptr| heap.allocation_size(black_box(ptr)));
        for ptr in asked {
            subject.free(ptr, size);
        }
    }
}

/// What objects cost: filling fresh ones in address order, freeing all, and replacing random ones.
fn objects(subject: &mut Deepheap<'_>, count: usize) {
    let heap = subject.heap;
    let allocate = |size: usize| loop {
        match heap.allocate_object(size) {
            Ok(allocated) => return allocated.ptr,
            Err(Shortage::ObjectBlocks(blocks)) => {
                heap.grant_object_blocks(blocks.max(1 << 16) as u64)
            }
            Err(Shortage::ObjectSpans(count)) => {
                let spans = heap.begin_spans(count).expect("region is large enough");
                heap.add_object_spans(spans);
            }
            Err(_) => panic!("benchmark asks for too much"),
        }
    };
    println!("{:<34}{:>10}{:>10}{:>10}", "ns an object", "fill", "churn", "free");
    for size in [16, 64, 128, 500, 4000, 9000] {
        let mut times = [f64::INFINITY; 3];
        let mut least = |at: usize, since: f64, count: usize| {
            times[at] = times[at].min((thread_time_ns() - since) / count as f64);
        };
        for _ in 0..3 {
            let mut held = vec![0; count];
            let start = thread_time_ns();
            held.iter_mut().for_each(|ptr| *ptr = allocate(size));
            least(0, start, count);
            let start = thread_time_ns();
            let mut at = 1;
            for _ in 0..count {
                at = (at * 25_214_903_917 + 11) % (1 << 48);
                let victim = (at >> 16) % count;
                subject.free(held[victim], size);
                held[victim] = allocate(size);
            }
            least(1, start, count);
            let start = thread_time_ns();
            held.iter().for_each(|&ptr| subject.free(ptr, size));
            least(2, start, count);
        }
        let [fill, churn, free] = times;
        println!("{:<34}{fill:>10.1}{churn:>10.1}{free:>10.1}", format!("objects of {size} B"));
    }
}

fn thread_time_ns() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that outlives the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    assert_eq!(failed, 0);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn ns(run: impl Fn() -> usize) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = thread_time_ns();
        let pairs = run();
        best = best.min((thread_time_ns() - start) / pairs as f64);
    }
    best
}

fn main() {
    let rounds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(2_000_000);
    let heap = Heap::new(REGION, 4096 * SPAN).expect("pinned memory");
    let ours = || Deepheap { heap: &heap, cache: ThreadCache::new_in(&heap).expect("memory") };
    println!("{:<34}{:>10}{:>10}{:>8}", "ns a malloc + free pair", "deepheap", "glibc", "ratio");
    let line = |name: String, deepheap: f64, glibc: f64| {
        println!("{name:<34}{deepheap:>10.1}{glibc:>10.1}{:>8.2}", deepheap / glibc);
    };
    let on_heap = |body: &dyn Fn(&mut Deepheap<'_>) -> usize| {
        let mut subject = ours();
        let pairs = body(&mut subject);
        heap.thread_exit(subject.cache);
        while let Some(run) = heap.take_freed() {
            heap.recycle(run, true);
        }
        pairs
    };
    for size in [16, 64, 128, 500, 1000, 4000, 16000] {
        let a = ns(|| on_heap(&|subject| pairs(subject, size, rounds)));
        let b = ns(|| pairs(&mut Glibc, size, rounds));
        line(format!("pair of {size} B"), a, b);
    }
    for size in [20 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20] {
        let a = ns(|| on_heap(&|subject| pairs(subject, size, rounds / 20)));
        let b = ns(|| pairs(&mut Glibc, size, rounds / 20));
        line(format!("pair of {} KiB", size >> 10), a, b);
    }
    for (size, live) in [(64, 5), (64, 1000), (64, 100_000), (1000, 10_000), (64 << 10, 500)] {
        let rounds = if size > 16 << 10 { rounds / 20 } else { rounds };
        let a = ns(|| on_heap(&|subject| waves(subject, size, live, rounds)));
        let b = ns(|| waves(&mut Glibc, size, live, rounds));
        line(format!("waves of {live} x {size} B"), a, b);
    }
    for (most, live) in [(256, 10_000), (1000, 100_000), (16 << 10, 2_000), (256 << 10, 500)] {
        let rounds = if most > 16 << 10 { rounds / 20 } else { rounds };
        let a = ns(|| on_heap(&|subject| churn(subject, most, live, rounds)));
        let b = ns(|| churn(&mut Glibc, most, live, rounds));
        line(format!("churn of {live} up to {most} B"), a, b);
    }
    usable_size(&mut ours(), rounds);
    objects(&mut ours(), rounds / 2);
    println!(
        "committed {} MiB, metadata {} KiB, cached {} KiB",
        heap.committed_pages() >> 8,
        heap.metadata_bytes() >> 10,
        heap.cached_bytes() >> 10
    );
}
