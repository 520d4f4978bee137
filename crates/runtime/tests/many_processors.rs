//! Many processors: evictors come as they are needed, sleep when they are not, and a forked child
//! has its own.
//!
//! The process is told that it has sixteen processors, however many there are.

mod scene;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scene::memory::{Collection, PAGE, Random, seed};
use scene::play;
use scene::process::{fork, must_rest, must_succeed, soon};

const PROCESSORS: usize = 16;
const CONF: &str = "ram:128M,store_size:512M,page_buffer:16M";
const BUDGET: usize = 128 << 20;
/// A context for each 16 MiB, and an evictor for two of them.
const EVICTORS_MAX: usize = 4;
const FETCHERS: usize = 3;
const THREADS: usize = 12;
const ROUNDS: usize = 4;
/// How long an event is waited for, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// In place of libc's, for all of this program.
///
/// # Safety
/// As sched_getaffinity(2): `set` has room for `bytes`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sched_getaffinity(_: libc::pid_t, bytes: usize, set: *mut u8) -> libc::c_int {
    // SAFETY: the caller's promise, and more bytes than that.
    unsafe {
        set.write_bytes(0, bytes);
        set.write_bytes(0xff, PROCESSORS / 8);
    }
    0
}

/// Threads of this process with this name.
fn workers(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("the process's threads");
    let names =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

/// A worker has the name of the one that started it until it runs.
fn evictors() -> usize {
    workers("deepheap-evict")
}

fn are_others_there() -> bool {
    workers("deepheap-fetch") == FETCHERS && workers("deepheap-gc") == 1
}

/// That there are no more than there may be, once all of them run.
#[track_caller]
fn must_be_few() {
    assert!(soon(PATIENCE, || evictors() <= EVICTORS_MAX), "{} evictors", evictors());
}

/// Threads touch everything at random until `is_enough`, with a change here and there.
fn load(data: &Collection, seed: u64, is_enough: impl Fn() -> bool) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = Random::new(seed + number as u64);
                while !stop.load(Ordering::Relaxed) {
                    let object = &data.objects[random.below(data.objects.len())];
                    let word = random.below(PAGE / 8);
                    object.set(word, object.get(word));
                }
            });
        }
        let came = soon(PATIENCE, is_enough);
        stop.store(true, Ordering::Relaxed);
        assert!(came, "{} evictors", evictors());
    });
}

#[test]
fn evictors_follow_demand_and_rest_and_a_child_has_its_own() {
    play("evictors_follow_demand_and_rest_and_a_child_has_its_own", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 2 * BUDGET / PAGE, PAGE);
        let evicted = || deepheap::stats().expect("stats").evictions();
        for round in 0..ROUNDS {
            let before = evicted();
            load(&data, seed + round as u64, || evictors() > 1 && evicted() > before + 20_000);
            must_be_few();
            let child = fork(|| {
                assert!(evictors() <= 1, "those of the parent do not exist here");
                load(&data, seed ^ round as u64, || are_others_there() && evictors() > 1);
                must_be_few();
                data.check();
            });
            load(&data, seed - round as u64, || evicted() > before + 40_000);
            must_succeed(child);
        }
        // At rest all of them sleep.
        must_rest(std::process::id());
        data.check();
    });
}
