//! Recovery meets damaged and forged heaps: it refuses them with a reason, or serves right bytes.
//! It never panics, hangs, or takes damage for data.
//!
//! DEEPHEAP_FUZZ_SECONDS says for how long, STORE_SEED replays a run. `make fuzz` plays the same
//! rounds with choices that are guided by coverage.

mod forged_heap;
mod model;
mod saved_heap;

use std::time::{Duration, Instant};

use deepheap_sim::Random;
use forged_heap::{Good, Kind, Outcomes, good};

#[test]
fn damaged_and_forged_heaps_are_refused_or_right() {
    let seconds = std::env::var("DEEPHEAP_FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(5, |it| it.parse().expect("DEEPHEAP_FUZZ_SECONDS is a number"));
    let seed = model::seed(41);
    // One of these was full before its second checkpoint, which `make soak` found.
    let _full = [4_300_004, 4_300_012, 4_300_024].map(good);
    let heaps: Vec<Good> = (0..4).map(|number| good(seed + number)).collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut all = [const { Outcomes::NONE }; Kind::ALL.len()];
    let mut number = 0;
    while Instant::now() < end || number < 300 {
        let mut random = Random::new(seed ^ number << 20);
        let kind = number as usize % Kind::ALL.len();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            forged_heap::round(&heaps, Kind::ALL[kind], &mut random, &mut all[kind]);
        }))
        .unwrap_or_else(|_| panic!("round {number} of STORE_SEED={seed}"));
        number += 1;
    }
    println!("{number} rounds: damage {:?}\nsuperblocks {:?}\ntables {:?}", all[0], all[1], all[2]);
    for outcomes in &all {
        assert!(outcomes.refused > 0 && outcomes.opened > 0, "{outcomes:?}");
    }
    assert!(all[0].blocks_refused > 0 && all[0].blocks_right > 0);
}
