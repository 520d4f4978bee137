//! What a bound on stalls promises: RAM that is not needed goes back, what is needed stays, and the
//! RAM budget is a ceiling at each moment.

mod scene;

use std::time::{Duration, Instant};

use deepheap::Stats;
use scene::memory::{Collection, PAGE, Random, seed};
use scene::play;
use scene::process::must_rest;

const MIB: u64 = 1 << 20;
/// A generous bound finds its way within seconds, on a busy machine, too.
const CONF: &str = "ram:512M,stall:20%,store_size:1G";

fn stats() -> Stats {
    deepheap::stats().expect("stats")
}

/// RAM of the process by the kernel's word.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("Rss");
    line.trim().strip_suffix("kB").expect("kB").trim().parse::<u64>().expect("a number") << 10
}

/// How long an event is waited for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Touches these objects until something holds; false if it does not for long.
fn touch_until(data: &Collection, objects: usize, mut holds: impl FnMut() -> bool) -> bool {
    let mut random = Random::new(7);
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        for _ in 0..20_000 {
            let object = &data.objects[random.below(objects)];
            object.set(5, object.get(5));
        }
        if holds() {
            return true;
        }
    }
    false
}

#[test]
fn ram_that_is_not_used_goes_back_to_the_machine_and_comes_again_when_it_is() {
    const NAME: &str = "ram_that_is_not_used_goes_back_to_the_machine_and_comes_again_when_it_is";
    play(NAME, CONF, || {
        const OBJECTS: usize = 30_000;
        const USED: usize = 3_000;
        let data = Collection::filled(seed(), OBJECTS, PAGE);
        let filled = resident_bytes();
        assert!(filled > 100 * MIB, "{filled} bytes of RAM: {:?}", stats());
        let is_less = || resident_bytes() < filled - 50 * MIB;
        assert!(
            touch_until(&data, USED, is_less),
            "{} of {filled} bytes: {:?}",
            resident_bytes(),
            stats()
        );
        let less = stats();
        assert!(less.budget_bytes < less.budget_most_bytes, "{less:?}");
        assert_eq!((less.stall_bound_ppm, less.budget_most_bytes), (200_000, 512 * MIB));
        // All of it is wanted again.
        let is_more = || stats().budget_bytes >= filled;
        assert!(touch_until(&data, OBJECTS, is_more), "{:?}", stats());
        let again = stats();
        assert!(again.touched_mean_bytes > 100 * MIB && again.used_mean_bytes > 0, "{again:?}");
        data.check();
    });
}

#[test]
fn the_budget_is_never_passed_while_less_of_it_is_used_and_while_more_is() {
    const NAME: &str = "the_budget_is_never_passed_while_less_of_it_is_used_and_while_more_is";
    play(NAME, "ram:48M,stall:20%,store_size:1G", || {
        let data = Collection::filled(seed(), 30_000, PAGE);
        let begin = Instant::now();
        let (mut objects, mut most) = (200, 0);
        let is_over = || {
            most = most.max(stats().used_bytes());
            begin.elapsed() > Duration::from_secs(3)
        };
        touch_until(&data, objects, is_over);
        objects = data.objects.len();
        let until = begin.elapsed() + Duration::from_secs(2);
        touch_until(&data, objects, || {
            most = most.max(stats().used_bytes());
            begin.elapsed() > until
        });
        assert!(most <= 48 * MIB, "{most} bytes: {:?}", stats());
        data.check();
    });
}

#[test]
fn a_small_heap_stays_plain() {
    play("a_small_heap_stays_plain", CONF, || {
        let data = Collection::filled(seed(), 4_000, PAGE);
        let told = stats();
        assert_eq!((told.managing, told.saved()), (0, None), "{told:?}");
        data.check();
    });
}

#[test]
fn a_program_at_rest_keeps_its_ram_and_costs_next_to_nothing() {
    play("a_program_at_rest_keeps_its_ram_and_costs_next_to_nothing", CONF, || {
        let data = Collection::filled(seed(), 20_000, PAGE);
        let own = std::process::id();
        must_rest(own);
        let before = resident_bytes();
        must_rest(own);
        assert!(resident_bytes() + MIB >= before, "{before} and {}", resident_bytes());
        data.check();
    });
}
