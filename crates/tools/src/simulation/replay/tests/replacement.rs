//! Replacement: its hit rates on traces.
//!
//! A page buffer with its two lists, and a cache of as many objects.
//! Together they hold a sixteenth of the data, unless a test says otherwise.
//! `cargo test -p deepheap-tools replacement -- --nocapture` prints the rates.

use super::super::*;

const OBJECTS: usize = 1 << 16;
const IN_RAM: usize = OBJECTS / 16;
const ACCESSES: usize = 1_600_000;
/// Accesses before counting begins.
const WARM_UP: usize = 500_000;

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
fn play(small_part: u32, trace: &[u32], page_buffer: usize, cache: usize) -> Replay {
    let share = Some(Share::Bytes(page_buffer * PAGE));
    let terms = Terms { scans: false, share, ..Terms::new(page_buffer + cache) };
    let mut pager = Replay::new(terms);
    // Sizes that no budget gives.
    let split = Split { page_buffer, object_cache: cache };
    pager.limits = Limits { split, page_buffer: 0, cache: (cache * PAGE) as u64, small_part };
    pager.limits.lend(&terms, 0);
    for (index, &page) in trace.iter().enumerate() {
        if index == WARM_UP {
            pager.counts = Counts::default();
            pager.seen.ghost_reads = 0;
        }
        pager.touch(&Touch {
            object: page,
            page,
            bytes: PAGE as u16,
            leaves: Leaves::Clean,
            is_new: false,
            is_led: false,
            lane: 0,
        });
    }
    pager
}

fn rates(small_part: u32, trace: &[u32], page_buffer: usize) -> Rates {
    let counts = play(small_part, trace, page_buffer, IN_RAM - page_buffer).counts();
    let all = counts.touches as f64 / 100.0;
    Rates { page_buffer: counts.resident as f64 / all, cache: counts.cached as f64 / all }
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
    let mut resident = Vec::new();
    let [zipf, mild, drifting, uniform, scan, round, _] = traces.map(|(name, trace)| {
        let rates = rates(SMALL_PART, &trace, IN_RAM / 2);
        let (page_buffer, cache, hit) = (rates.page_buffer, rates.cache, rates.hit());
        println!("{name:>20}: {page_buffer:.1} + {cache:.1} = {hit:.1}");
        resident.push(page_buffer);
        hit
    });
    // 54.8, 27.4, 54.7, 3.1, 15.8, 0 and 84.9 where the oldest leaves.
    let least = [64.5, 39.5, 63.5, 3.0, 30.5, 0.0, 96.0];
    let stays_resident = resident.iter().zip(least).all(|(&hits, least)| hits >= least);
    assert!(stays_resident, "what is used stays in the page buffer: {resident:?}");
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
            let told = now.seen.ghost_reads as f64 / now.ghost.recent() as f64;
            let missed = |pager: &Replay| pager.counts().missed + pager.counts().new;
            let saved = (missed(&now) - missed(&larger)) as f64 / (cache / 4) as f64;
            println!("{name:>20} page buffer of {page_buffer}: {told:.1} told, {saved:.1} saved");
            assert!(expected.contains(&(told / saved)), "{name}: {told} told, {saved} saved");
        }
    }
}
