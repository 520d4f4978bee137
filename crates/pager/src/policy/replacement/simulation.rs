//! Simulation: the hit rates of replacement on traces, in a pager that moves only numbers.
//!
//! A page buffer with its two lists, and a cache of as many objects.
//! Together they hold a sixteenth of the data, unless a test says otherwise.
//! `cargo test -p deepheap-pager simulation -- --nocapture` prints the rates.

use std::collections::VecDeque;

use super::super::ghost::Ghost;
use super::{
    AtHead, Queue, Rank, SMALL_PART, asks_ghost, at_head, enters, ghost_length, next_above, rank,
    to_evict, touched,
};

const OBJECTS: usize = 1 << 16;
const IN_RAM: usize = OBJECTS / 16;
const ACCESSES: usize = 1_600_000;
/// Accesses before counting begins.
const WARM_UP: usize = 500_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Away,
    PageBuffer(Rank),
    Cached(Queue),
}

#[derive(Clone, Copy)]
struct Object {
    place: Place,
    reuse: u8,
    /// Pages that had left the page buffer when this one did.
    left_at: u64,
    /// Grows with every move: an older entry of a queue is stale.
    moves: u32,
}

/// A queue of pages. Entries that are not current any more are skipped.
#[derive(Default)]
struct Fifo {
    entries: VecDeque<(u32, u32)>,
    length: u32,
}

struct Pager {
    /// Of the small queue, in 256ths.
    small_part: u32,
    ghost: Ghost,
    objects: Vec<Object>,
    probation: Fifo,
    protected: Fifo,
    small: Fifo,
    main: Fifo,
    page_buffer_max: u32,
    cache_max: u32,
    hits: [u64; 2],
    misses: u64,
    ghost_reads: u64,
    /// Pages that have left the page buffer.
    left: u64,
}

impl Pager {
    fn new(small_part: u32, page_buffer_max: usize, cache_max: usize) -> Pager {
        let remembered = ghost_length(cache_max);
        let ghost = Ghost::new(remembered).unwrap();
        ghost.grow(remembered);
        let away = Object { place: Place::Away, reuse: 0, left_at: 0, moves: 0 };
        Pager {
            small_part,
            ghost,
            objects: vec![away; OBJECTS],
            probation: Fifo::default(),
            protected: Fifo::default(),
            small: Fifo::default(),
            main: Fifo::default(),
            page_buffer_max: page_buffer_max as u32,
            cache_max: cache_max as u32,
            hits: [0; 2],
            misses: 0,
            ghost_reads: 0,
            left: 0,
        }
    }

    fn fifo(&mut self, place: Place) -> Option<&mut Fifo> {
        match place {
            Place::Away => None,
            Place::PageBuffer(Rank::Probation) => Some(&mut self.probation),
            Place::PageBuffer(Rank::Protected) => Some(&mut self.protected),
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
        let mut to = Rank::Probation;
        match object.place {
            Place::PageBuffer(_) => {
                self.hits[0] += 1;
                return;
            }
            Place::Cached(_) => {
                self.hits[1] += 1;
                object.reuse = touched(object.reuse);
                let soon = self.left - object.left_at < u64::from(self.page_buffer_max);
                to = rank(object.reuse, soon);
            }
            Place::Away => {
                self.misses += 1;
                self.ghost_reads += u64::from(self.ghost.left_recently(page));
                object.reuse = 0;
            }
        }
        self.put(page, Place::PageBuffer(to));
        if self.probation.length + self.protected.length > self.page_buffer_max {
            let oldest = self.oldest();
            let reuse = self.objects[oldest as usize].reuse;
            let left = if asks_ghost(reuse) { self.ghost.take(oldest) } else { None };
            self.put(oldest, Place::Cached(enters(reuse, left)));
        }
        while self.small.length + self.main.length > self.cache_max {
            self.one_leaves();
        }
    }

    /// The page that leaves the page buffer.
    fn oldest(&mut self) -> u32 {
        let (probation, protected) = (self.probation.length, self.protected.length);
        let from = match to_evict(1, probation as usize, protected as usize) {
            (0, _) => Rank::Protected,
            _ => Rank::Probation,
        };
        let page = self.head(Place::PageBuffer(from));
        self.left += 1;
        self.objects[page as usize].left_at = self.left;
        page
    }

    fn one_leaves(&mut self) {
        let queue = next_above(self.small_part, self.small.length, self.main.length);
        let page = self.head(Place::Cached(queue));
        match at_head(queue, self.objects[page as usize].reuse) {
            AtHead::Leaves { remembered } => {
                if remembered {
                    self.ghost.insert(page, queue);
                }
                self.put(page, Place::Away);
            }
            AtHead::Goes(queue, reuse) => {
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

/// The pager after a trace, with what it counted after the warm-up.
fn play(small_part: u32, trace: &[u32], page_buffer: usize, cache: usize) -> Pager {
    let mut pager = Pager::new(small_part, page_buffer, cache);
    for (index, page) in trace.iter().enumerate() {
        if index == WARM_UP {
            (pager.hits, pager.misses, pager.ghost_reads) = ([0; 2], 0, 0);
        }
        pager.access(*page);
    }
    pager
}

fn rates(small_part: u32, trace: &[u32], page_buffer: usize) -> Rates {
    let pager = play(small_part, trace, page_buffer, IN_RAM - page_buffer);
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

    /// The hit rate of a cache that knows the ranks.
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

/// One access in fifty goes anywhere, the others to a hot set of four fifths of the page buffer.
fn hot_set_and_strays() -> Vec<u32> {
    let mut draw = Draw(4);
    let next = |_| match draw.below(50) {
        0 => draw.below(OBJECTS),
        _ => draw.below(IN_RAM / 2 * 4 / 5),
    };
    (0..ACCESSES).map(next).collect()
}

#[test]
fn what_will_be_used_stays() {
    let traces: [(&str, Vec<u32>); 7] = [
        ("zipf 0.99", zipf(0.99)),
        ("zipf 0.8", zipf(0.8)),
        ("zipf 0.99, drifting", drifting_zipf()),
        ("uniform", uniform()),
        ("scan + hot set", scan_and_hot_set()),
        ("loop of 5/4 of RAM", looping()),
        ("hot set and strays", hot_set_and_strays()),
    ];
    println!("hits in per cent of accesses: page buffer + cache = all");
    println!("the best possible for zipf 0.99: {:.1}", Zipf::new(0.99).best(IN_RAM));
    let mut within_reach = Vec::new();
    let [zipf, mild, drifting, uniform, scan, round, _] = traces.map(|(name, trace)| {
        let rates = rates(SMALL_PART, &trace, IN_RAM / 2);
        let (page_buffer, cache, hit) = (rates.page_buffer, rates.cache, rates.hit());
        println!("{name:>20}: {page_buffer:.1} + {cache:.1} = {hit:.1}");
        within_reach.push(page_buffer);
        hit
    });
    // 54.8, 27.4, 54.7, 3.1, 15.8, 0 and 84.9 where the oldest leaves.
    let least = [64.5, 39.5, 63.5, 3.0, 30.5, 0.0, 96.0];
    let is_within_reach = within_reach.iter().zip(least).all(|(&hits, least)| hits >= least);
    assert!(is_within_reach, "what is used stays within reach: {within_reach:?}");
    // More than LRU and SSDRAM's clock reach (docs/decisions/0005-cache-replacement.md).
    assert!(mild > 46.0 && drifting > 69.5, "{mild}, {drifting}");
    assert!(Zipf::new(0.99).best(IN_RAM) - zipf < 4.0, "zipf: nearly the best possible");
    assert!(scan > 45.0, "a scan does not drive the hot set out: {scan}");
    assert!(round > 25.0, "a loop does not drive itself out: {round}");
    assert!((uniform - 6.25).abs() < 0.1, "nothing to be had: {uniform}");
}

#[test]
fn small_queue_is_small_because_the_page_buffer_does_its_work() {
    let traces = [
        ("zipf 0.99", zipf(0.99)),
        ("zipf 0.99, drifting", drifting_zipf()),
        ("scan + hot set", scan_and_hot_set()),
    ];
    println!("hits in per cent, small queue of so many 256ths of the cache");
    for (name, trace) in &traces {
        for page_buffer in [IN_RAM / 2, IN_RAM / 8] {
            let hits = [0, 3, 26, 85, 128].map(|small_part| {
                let hit = rates(small_part, trace, page_buffer).hit();
                (small_part, (hit * 10.0).round() / 10.0)
            });
            println!("{name:>20} page buffer of {page_buffer}: {hits:?}");
            assert!(hits.windows(2).all(|pair| pair[0].1 >= pair[1].1 - 0.1));
        }
    }
}

/// The balancer's estimate of what a larger cache would save, compared with what a cache larger by
/// a quarter does save.
#[test]
fn reads_that_the_ghost_knows_are_those_that_a_larger_cache_saves() {
    let traces = [
        // For uniform accesses the estimate is exact. For skewed ones a larger cache saves more: it
        // also knows better what is used often.
        ("uniform", uniform(), 0.9..1.1),
        ("zipf 0.8", zipf(0.8), 0.33..1.1),
        ("zipf 0.99, drifting", drifting_zipf(), 0.4..1.1),
    ];
    for (name, trace, expected) in &traces {
        for page_buffer in [IN_RAM / 2, IN_RAM / 8] {
            let cache = IN_RAM - page_buffer;
            let now = play(SMALL_PART, trace, page_buffer, cache);
            let larger = play(SMALL_PART, trace, page_buffer, cache + cache / 4);
            let told = now.ghost_reads as f64 / now.ghost.recent() as f64;
            let saved = (now.misses - larger.misses) as f64 / (cache / 4) as f64;
            println!("{name:>20} page buffer of {page_buffer}: {told:.1} told, {saved:.1} saved");
            assert!(expected.contains(&(told / saved)), "{name}: {told} told, {saved} saved");
        }
    }
}
