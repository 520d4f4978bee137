//! The log of a map meets damaged and forged bytes: it gives what was committed, or a reason. It
//! never panics, and never puts a piece into a page that no record of that page had.
//!
//! `DEEPHEAP_FUZZ=1000000` plays more rounds, `STORE_SEED` replays a run. `make fuzz` plays the
//! same rounds with choices that are guided by coverage.

mod damaged_log;

use deepheap_sim::Random;

fn setting(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|text| text.parse().ok());
    println!("{name}={}", given.unwrap_or(default));
    given.unwrap_or(default)
}

#[test]
fn of_any_log_only_what_its_records_say_comes_into_a_page() {
    let (rounds, seed) = (setting("DEEPHEAP_FUZZ", 1500), setting("STORE_SEED", 91));
    let (mut recovered, mut refused) = (0, 0);
    for round in 0..rounds {
        let mut random = Random::new(seed + round);
        println!("round {round}");
        match damaged_log::round(&mut random) {
            true => recovered += 1,
            false => refused += 1,
        }
    }
    println!("{recovered} recovered, {refused} refused");
    assert!(recovered > rounds / 4 && refused > rounds / 50, "a test of nothing");
}
