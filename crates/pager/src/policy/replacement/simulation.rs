//! Simulation: what the replacement policies make of traces, in a pager of numbers only.
//!
//! A page buffer, first in, first out, and a cache of as many objects, together a sixteenth of the
//! data unless said. `cargo test -p deepheap-pager simulation -- --nocapture` prints the rates.

use std::collections::VecDeque;

use super::super::ghost::Ghost;
use super::{CachePolicy, Queue, Replacement, Verdict, ghost_length, touched};

const OBJECTS: usize = 1 << 16;
const IN_RAM: usize = OBJECTS / 16;
const ACCESSES: usize = 1_600_000;
/// Accesses before counting begins.
const WARM_UP: usize = 500_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Away,
    PageBuffer,
    Cached(Queue),
}

#[derive(Clone, Copy)]
struct Object {
    place: Place,
    reuse: u8,
    /// Grows with every move: an older entry of a queue is stale.
    moves: u32,
}

/// A queue of pages; entries that are not current any more are passed over.
#[derive(Default)]
struct Fifo {
    entries: VecDeque<(u32, u32)>,
    length: u32,
}

struct Pager {
    replacement: Replacement,
    ghost: Ghost,
    objects: Vec<Object>,
    page_buffer: Fifo,
    small: Fifo,
    main: Fifo,
    page_buffer_max: u32,
    cache_max: u32,
    hits: [u64; 2],
    misses: u64,
}

impl Pager {
    fn new(replacement: Replacement, page_buffer_max: usize, cache_max: usize) -> Pager {
        let remembered = ghost_length(cache_max);
        let ghost = Ghost::new(remembered).unwrap();
        ghost.grow(remembered);
        let away = Object { place: Place::Away, reuse: 0, moves: 0 };
        Pager {
            replacement,
            ghost,
            objects: vec![away; OBJECTS],
            page_buffer: Fifo::default(),
            small: Fifo::default(),
            main: Fifo::default(),
            page_buffer_max: page_buffer_max as u32,
            cache_max: cache_max as u32,
            hits: [0; 2],
            misses: 0,
        }
    }

    fn fifo(&mut self, place: Place) -> Option<&mut Fifo> {
        match place {
            Place::Away => None,
            Place::PageBuffer => Some(&mut self.page_buffer),
            Place::Cached(Queue::Small) => Some(&mut self.small),
            Place::Cached(Queue::Main) => Some(&mut self.main),
        }
    }

    fn put(&mut self, page: u32, place: Place) {
        let object = &mut self.objects[page as usize];
        let old = core::mem::replace(&mut object.place, place);
        object.moves += 1;
        let moves = object.moves;
        if let Some(fifo) = self.fifo(old) {
            fifo.length -= 1;
        }
        if let Some(fifo) = self.fifo(place) {
            fifo.length += 1;
            fifo.entries.push_back((page, moves));
        }
    }

    fn head(&mut self, place: Place) -> u32 {
        loop {
            let fifo = self.fifo(place).expect("a queue");
            let (page, moves) = fifo.entries.pop_front().expect("a queue that is not empty");
            if self.objects[page as usize].moves == moves {
                return page;
            }
        }
    }

    fn access(&mut self, page: u32) {
        let object = &mut self.objects[page as usize];
        match object.place {
            Place::PageBuffer => {
                self.hits[0] += 1;
                return;
            }
            Place::Cached(_) => {
                self.hits[1] += 1;
                object.reuse = touched(object.reuse);
            }
            Place::Away => {
                self.misses += 1;
                object.reuse = 0;
            }
        }
        self.put(page, Place::PageBuffer);
        if self.page_buffer.length > self.page_buffer_max {
            let oldest = self.head(Place::PageBuffer);
            let reuse = self.objects[oldest as usize].reuse;
            let known = self.replacement.asks_ghost(reuse) && self.ghost.take(oldest);
            self.put(oldest, Place::Cached(self.replacement.enters(reuse, known)));
        }
        while self.small.length + self.main.length > self.cache_max {
            self.one_leaves();
        }
    }

    fn one_leaves(&mut self) {
        let queue = self.replacement.next(self.small.length, self.main.length);
        let page = self.head(Place::Cached(queue));
        match self.replacement.at_head(queue, self.objects[page as usize].reuse) {
            Verdict::Leaves { remembered } => {
                if remembered {
                    self.ghost.insert(page);
                }
                self.put(page, Place::Away);
            }
            Verdict::Goes(queue, reuse) => {
                self.objects[page as usize].reuse = reuse;
                self.put(page, Place::Cached(queue));
            }
        }
    }
}

/// Shares of all accesses, in per cent.
#[derive(Clone, Copy)]
struct Rates {
    page_buffer: f64,
    cache: f64,
}

impl Rates {
    fn hit(self) -> f64 {
        self.page_buffer + self.cache
    }
}

fn rates(replacement: Replacement, trace: &[u32], page_buffer: usize) -> Rates {
    let mut pager = Pager::new(replacement, page_buffer, IN_RAM - page_buffer);
    for (index, page) in trace.iter().enumerate() {
        if index == WARM_UP {
            (pager.hits, pager.misses) = ([0; 2], 0);
        }
        pager.access(*page);
    }
    let all = (pager.hits[0] + pager.hits[1] + pager.misses) as f64 / 100.0;
    Rates { page_buffer: pager.hits[0] as f64 / all, cache: pager.hits[1] as f64 / all }
}

/// Draws from xorshift64*, which is enough here.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> u32 {
        ((u128::from(self.next()) * bound as u128) >> 64) as u32
    }
}

struct Zipf(Vec<f64>);

impl Zipf {
    fn new(exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=OBJECTS).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(sums.collect())
    }

    fn draw(&self, draw: &mut Draw) -> u32 {
        let at = (draw.next() >> 11) as f64 / (1u64 << 53) as f64 * self.0[OBJECTS - 1];
        self.0.partition_point(|sum| *sum < at) as u32
    }

    /// What a cache hits that knows the ranks.
    fn best(&self, in_ram: usize) -> f64 {
        self.0[in_ram - 1] / self.0[OBJECTS - 1] * 100.0
    }
}

fn zipf(exponent: f64) -> Vec<u32> {
    let (zipf, mut draw) = (Zipf::new(exponent), Draw(1));
    (0..ACCESSES).map(|_| zipf.draw(&mut draw)).collect()
}

/// As zipf 0.99, but the ranks belong to other objects every quarter of the trace.
fn drifting_zipf() -> Vec<u32> {
    let mut trace = zipf(0.99);
    for (index, page) in trace.iter_mut().enumerate() {
        *page = (*page + (index / (ACCESSES / 4) * 20_011) as u32) % OBJECTS as u32;
    }
    trace
}

fn uniform() -> Vec<u32> {
    let mut draw = Draw(2);
    (0..ACCESSES).map(|_| draw.below(OBJECTS)).collect()
}

/// Every second access goes round the whole data, the others to a hot set of three quarters of RAM.
fn scan_and_hot_set() -> Vec<u32> {
    let (mut draw, mut scan) = (Draw(3), 0);
    let next = |index: usize| {
        if index.is_multiple_of(2) {
            return draw.below(IN_RAM * 3 / 4);
        }
        scan = (scan + 1) % OBJECTS as u32;
        scan
    };
    (0..ACCESSES).map(next).collect()
}

/// Round and round a little more than RAM holds.
fn looping() -> Vec<u32> {
    (0..ACCESSES).map(|index| (index % (IN_RAM * 5 / 4)) as u32).collect()
}

const POLICIES: [CachePolicy; 3] = [CachePolicy::S3Fifo, CachePolicy::Lru, CachePolicy::Clock];

#[test]
fn policies_keep_the_order_that_must_hold() {
    let traces: [(&str, Vec<u32>); 6] = [
        ("zipf 0.99", zipf(0.99)),
        ("zipf 0.8", zipf(0.8)),
        ("zipf 0.99, drifting", drifting_zipf()),
        ("uniform", uniform()),
        ("scan + hot set", scan_and_hot_set()),
        ("loop of 5/4 of RAM", looping()),
    ];
    println!("hits in per cent of accesses: page buffer + cache = all");
    println!("the best possible for zipf 0.99: {:.1}", Zipf::new(0.99).best(IN_RAM));
    let [zipf, mild, drifting, uniform, scan, round] = traces.map(|(name, trace)| {
        POLICIES.map(|policy| {
            let rates = rates(Replacement::new(policy), &trace, IN_RAM / 2);
            let (page_buffer, cache, hit) = (rates.page_buffer, rates.cache, rates.hit());
            println!("{name:>20} {policy:?}: {page_buffer:.1} + {cache:.1} = {hit:.1}");
            hit
        })
    });
    for [s3_fifo, lru, clock] in [zipf, mild, drifting, scan] {
        assert!(s3_fifo > lru && s3_fifo >= clock && clock > lru);
    }
    assert!(Zipf::new(0.99).best(IN_RAM) - zipf[0] < 4.0, "zipf: nearly the best possible");
    assert!(scan[0] > 1.5 * scan[1], "a scan does not drive the hot set out");
    assert!(round[0] > 25.0 && round[1] == 0.0, "a loop does not drive itself out");
    assert!(uniform.iter().all(|hit| (hit - 6.25).abs() < 0.1), "nothing to be had: {uniform:?}");
}

#[test]
fn small_queue_is_small_because_the_page_buffer_does_its_work() {
    let traces = [
        ("zipf 0.99", zipf(0.99)),
        ("zipf 0.99, drifting", drifting_zipf()),
        ("scan + hot set", scan_and_hot_set()),
    ];
    println!("hits in per cent, small queue (inactive list) of so many 256ths of the cache");
    for (name, trace) in &traces {
        for page_buffer in [IN_RAM / 2, IN_RAM / 8] {
            for policy in [CachePolicy::S3Fifo, CachePolicy::Clock] {
                let hits = [0, 3, 26, 85, 128].map(|small_part| {
                    let replacement = Replacement { policy, small_part };
                    let hit = rates(replacement, trace, page_buffer).hit();
                    (small_part, (hit * 10.0).round() / 10.0)
                });
                println!("{name:>20} page buffer of {page_buffer}, {policy:?}: {hits:?}");
                let falls = hits.windows(2).all(|pair| pair[0].1 >= pair[1].1 - 0.1);
                assert!(falls || policy == CachePolicy::Clock);
            }
        }
    }
}
