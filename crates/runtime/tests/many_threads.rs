//! Many more threads than processors fault at once: all make progress, asleep while they wait, and
//! what they take for themselves is counted and goes back.

mod scene;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deepheap_sys::faults::handler_stack;
use deepheap_sys::threads::thread;
use scene::memory::{Collection, PAGE, Random, seed};
use scene::play;
use scene::process::soon;

const BUDGET: usize = 64 << 20;
const CONF: &str = "ram:64M,store_size:512M";
const THREADS: usize = 256;
const ROUNDS: usize = 200;
/// Threads of Rust's library have an alternate signal stack of 8 KiB.
const STACK_BYTES: usize = 64 << 10;
/// Until what is not used is given back: some seconds.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn threads_that_fault_at_once_make_progress_without_spinning_and_give_back_what_they_took() {
    const NAME: &str =
        "threads_that_fault_at_once_make_progress_without_spinning_and_give_back_what_they_took";
    play(NAME, CONF, || {
        let seed = seed();
        // Twice the budget, so that a fault is served by the cache or by the store.
        let data = Collection::filled(seed, 2 * BUDGET / PAGE, PAGE);
        let other = || deepheap::stats().expect("stats").other_bytes as usize;
        let at_rest = || !handler_stack::is_touched();
        assert!(soon(PATIENCE, at_rest), "what the fill took is given back");
        let (before, yields) = (other(), thread::yields());
        let faults = || deepheap::stats().expect("stats").faults();
        let faults_before = faults();
        let (begin, most) = (Barrier::new(THREADS), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let (data, begin, most) = (&data, &begin, &most);
                let run = move || {
                    let mut random = Random::new(seed + number as u64);
                    begin.wait();
                    for _ in 0..ROUNDS {
                        let object = &data.objects[random.below(data.objects.len())];
                        assert_ne!(object.get(random.below(PAGE / 8)), 0);
                    }
                    let stats = deepheap::stats().expect("stats");
                    most.fetch_max(stats.other_bytes as usize, Ordering::Relaxed);
                    let ceiling = BUDGET + BUDGET / 256;
                    assert!(stats.used_bytes() as usize <= ceiling, "{stats:?}");
                };
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, run).expect("a thread");
            }
        });
        let (faults, yields) = (faults() - faults_before, thread::yields() - yields);
        eprintln!("{faults} faults, {yields} yields, {before} bytes, then {most:?}");
        assert!(faults as usize > THREADS * ROUNDS / 4, "{faults} faults");
        assert!(yields < faults / 100, "{yields} yields for {faults} faults");
        let most = most.into_inner();
        assert!(most > before, "their stacks are counted");
        // Tables that have grown meanwhile stay.
        let is_given_back = || other() < before + (most - before) / 4;
        assert!(soon(PATIENCE, is_given_back), "{} of {before} to {most}", other());
        data.check();
    });
}
