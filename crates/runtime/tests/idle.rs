//! P7: a program that rests costs no CPU, whatever it did before.

mod scene;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use scene::memory::{Collection, Object, PAGE, Random, seed};
use scene::play;
use scene::process::{self, REST, fork, must_rest, ticks};

const CONF: &str = "ram:24M,store_size:256M";

fn activity(data: &Collection, seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..20_000 {
        let object = &data.objects[random.below(data.objects.len())];
        object.set(3, object.get(3));
    }
}

fn own_pid() -> u32 {
    std::process::id()
}

#[test]
fn after_activity_nothing_runs() {
    play("after_activity_nothing_runs", CONF, || {
        let seed = seed();
        let mut data = Collection::filled(seed, 20_000, PAGE);
        activity(&data, seed);
        must_rest(own_pid());
        data.objects.drain(1000..).for_each(Object::free);
        must_rest(own_pid());
        data.check();
    });
}

#[test]
fn with_a_full_store_nothing_runs() {
    play("with_a_full_store_nothing_runs", "ram:16M,store_size:64M", || {
        let seed = seed();
        let data = Collection::until_full(seed, PAGE);
        activity(&data, seed);
        for (index, object) in data.objects.iter().enumerate() {
            object.fill(seed + index as u64);
        }
        must_rest(own_pid());
        data.check();
    });
}

#[test]
fn while_a_child_lives_and_after_it_died_nothing_runs() {
    play("while_a_child_lives_and_after_it_died_nothing_runs", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 20_000, PAGE);
        let child = fork(|| {
            data.check();
            loop {
                std::thread::sleep(Duration::from_secs(1000));
            }
        });
        activity(&data, seed);
        data.check();
        must_rest(own_pid());
        must_rest(child as u32);
        process::kill(child);
        must_rest(own_pid());
        data.check();
    });
}

#[test]
fn while_a_child_withholds_the_whole_store_nothing_runs() {
    play("while_a_child_withholds_the_whole_store_nothing_runs", "ram:16M,store_size:64M", || {
        let seed = seed();
        let data = Collection::filled(seed, 11_500, PAGE);
        let child = fork(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1000));
            }
        });
        // Rewriting everything needs as much store again, which the child keeps: the writer waits.
        let written = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (index, object) in data.objects.iter().enumerate() {
                    object.fill(!seed + index as u64);
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
            // A thread of the program is not at rest, but it must wait, not spin, once it gets no
            // further. Before that it may have to wait for a processor.
            let (mut used, mut waits) = (0, false);
            for _ in 0..40 {
                let (before, objects) = (ticks(own_pid()), written.load(Ordering::Relaxed));
                std::thread::sleep(REST);
                used = ticks(own_pid()) - before;
                waits = objects > 0 && objects == written.load(Ordering::Relaxed) && used <= 10;
                if waits {
                    break;
                }
            }
            eprintln!("{used} ticks while a thread waits for a child's end");
            let threads = process::threads_of(own_pid());
            let all = data.objects.len();
            assert!(
                written.load(Ordering::Relaxed) < all,
                "the child kept nothing from the writer"
            );
            process::kill(child);
            assert!(waits, "{used} ticks of 10 ms in 3 s\n{threads}");
        });
        for (index, object) in data.objects.iter().enumerate() {
            object.check(!seed + index as u64);
        }
        must_rest(own_pid());
    });
}
