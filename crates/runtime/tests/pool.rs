//! Pool: what processes that share RAM are promised.

mod scene;

use std::time::{Duration, Instant};

use deepheap::Stats;
use scene::memory::{Collection, PAGE, Random, seed};
use scene::process::{fork, kill, must_succeed};
use scene::{is_played, play};

const MIB: u64 = 1 << 20;
const RAM: u64 = 128 * MIB;
/// More than half of the RAM, but not all of it.
const OBJECTS: usize = 24_000;
const PATIENCE: Duration = Duration::from_secs(120);

fn stats() -> Stats {
    deepheap::stats().expect("stats")
}

/// Settings with a pool that only the processes of this scene know.
fn conf(test: &str) -> String {
    let own = std::process::id();
    let of = if is_played(test) { std::os::unix::process::parent_id() } else { own };
    format!("ram:128M,pool:test-{of}-{},store_size:1G,compress:off", test.len())
}

/// Removes the pool's file, however the test ends.
struct PoolFile(String);

impl Drop for PoolFile {
    fn drop(&mut self) {
        let name = self.0.split_once("pool:").expect("a pool").1;
        let name = name.split_once(',').expect("more settings").0;
        let folder = deepheap_sys::threads::rendezvous::folder().expect("folder");
        let _ = std::fs::remove_file(format!("{}/pool-{name}", folder.to_string_lossy()));
    }
}

/// The files of pools whose names end like this.
fn pool_files(end: &str) -> Vec<String> {
    let names = deepheap_sys::threads::rendezvous_list::names("pool-").expect("a folder");
    names.into_iter().filter(|name| name.ends_with(end)).collect()
}

#[test]
fn the_file_of_a_pool_goes_with_its_last_member_or_with_the_next_who_joins_any() {
    const NAME: &str =
        "the_file_of_a_pool_goes_with_its_last_member_or_with_the_next_who_joins_any";
    let conf = conf(NAME);
    let _file = PoolFile(conf.clone());
    let own = conf.split([':', ',']).nth(3).expect("a pool").to_owned();
    let (mine, killed) = (format!("{own}-mine"), format!("{own}-killed"));
    let with = |pool: &str| conf.replace(&own, pool);
    let is_in = |s: &Stats| s.pool_members > 0;
    if !is_played(NAME) {
        // One that is killed: as if its file had been left.
        let file = deepheap_sys::threads::rendezvous::Rendezvous::open(&format!("pool-{killed}"));
        drop(file.expect("a file"));
        assert_eq!(pool_files(&killed).len(), 1);
    }
    play(NAME, &with(&mine), || {
        let data = Collection::filled(seed(), OBJECTS, PAGE);
        assert!(touch_until(&data, is_in), "{:?}", stats());
        assert_eq!(pool_files(&mine).len(), 1);
        // A member that ends before the last one takes nothing with it.
        must_succeed(fork(|| assert!(touch_until(&data, |s| s.pool_members == 2))));
        assert_eq!(pool_files(&mine).len(), 1);
    });
    assert_eq!([pool_files(&mine), pool_files(&killed)], [const { Vec::<String>::new() }; 2]);
}

/// Touches all of these until something holds; false if it does not for long.
fn touch_until(data: &Collection, mut holds: impl FnMut(&Stats) -> bool) -> bool {
    let mut random = Random::new(7);
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        for _ in 0..2_000 {
            let object = &data.objects[random.below(data.objects.len())];
            object.set(5, object.get(5));
        }
        if holds(&stats()) {
            return true;
        }
    }
    false
}

#[test]
fn programs_that_want_all_have_half_each_and_what_the_dead_had_is_taken() {
    const NAME: &str = "programs_that_want_all_have_half_each_and_what_the_dead_had_is_taken";
    let conf = conf(NAME);
    let _file = PoolFile(conf.clone());
    play(NAME, &conf, || {
        let seed = seed();
        let child = fork(|| {
            let data = Collection::filled(seed, OBJECTS, PAGE);
            touch_until(&data, |_| false);
        });
        let data = Collection::filled(seed, OBJECTS, PAGE);
        let is_half = |s: &Stats| {
            s.pool_members == 2 && (RAM * 2 / 5..=RAM * 3 / 5).contains(&s.budget_bytes)
        };
        // Twice, for a share that is passed on the way up is no share.
        for _ in 0..2 {
            assert!(touch_until(&data, is_half), "{:?}", stats());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(stats().pool_bytes, RAM);
        kill(child);
        let has_most = |s: &Stats| s.pool_members == 1 && s.budget_bytes > RAM * 3 / 4;
        assert!(touch_until(&data, has_most), "{:?}", stats());
        // A child that is forked off a member is one of its own.
        must_succeed(fork(|| {
            let is_second = |s: &Stats| s.pool_members == 2;
            assert!(touch_until(&data, is_second), "{:?}", stats());
            data.check();
        }));
        data.check();
    });
}

#[test]
fn what_a_program_at_rest_has_goes_to_one_that_wants_it_and_comes_back() {
    const NAME: &str = "what_a_program_at_rest_has_goes_to_one_that_wants_it_and_comes_back";
    let conf = conf(NAME);
    let _file = PoolFile(conf.clone());
    play(NAME, &conf, || {
        let seed = seed();
        let data = Collection::filled(seed, OBJECTS, PAGE);
        let has_most = |s: &Stats| s.budget_bytes > RAM * 5 / 8;
        assert!(touch_until(&data, has_most), "{:?}", stats());
        // This one rests while the other one runs.
        must_succeed(fork(|| {
            let own = Collection::filled(seed + 1, OBJECTS, PAGE);
            let has_most = |s: &Stats| s.pool_members == 2 && has_most(s);
            assert!(touch_until(&own, has_most), "{:?}", stats());
            own.check();
        }));
        let rested = stats();
        assert!(rested.budget_bytes < RAM * 3 / 8, "{rested:?}");
        assert!(touch_until(&data, has_most), "{:?}", stats());
        data.check();
    });
}
