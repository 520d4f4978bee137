//! Processes: one copy in RAM for all, each with its own rights, and the death of any harms none.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scene;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use deepheap_maps::{self as maps, Advice};
use scene::{
    Mapped, PAGE, Random, Scratch, WORDS, alone, ended, kill, number_at, process, seed,
    shared_words,
};

const RAM: u64 = 4 << 20;
/// How long an event is waited for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

#[test]
fn a_store_of_one_process_is_seen_by_another_at_once() {
    let _alone = alone();
    let file = Scratch::zeros(100 * PAGE);
    let turn = shared_words::<2>();
    let other = process(|| {
        let map = Mapped::new(&file, RAM, true);
        while turn[0].load(SeqCst) == 0 {
            std::hint::spin_loop();
        }
        assert_eq!(map.word(50, 1).load(SeqCst), 77);
        map.word(50, 2).store(78, SeqCst);
        turn[1].store(1, SeqCst);
        core::mem::forget(map);
    });
    let map = Mapped::new(&file, RAM, true);
    map.word(50, 1).store(77, SeqCst);
    turn[0].store(1, SeqCst);
    assert_eq!(ended(other), 0);
    assert_eq!((turn[1].load(SeqCst), map.word(50, 2).load(SeqCst)), (1, 78));
    assert_eq!(map.stats().resident_bytes, PAGE as u64, "one copy");
    map.check();
}

#[test]
fn three_processes_with_threads_lose_no_store_while_pages_leave_and_come() {
    const PROCESSES: u64 = 3;
    const THREADS: u64 = 2;
    const ROUNDS: usize = 3_000;
    const PAGES: usize = 3000;
    let _alone = alone();
    let file = Scratch::zeros(PAGES * PAGE);
    let seed = seed();
    let map = Mapped::new(&file, RAM, true);
    let processes: Vec<_> = (0..PROCESSES)
        .map(|number| {
            process(|| {
                let map = Mapped::new(&file, RAM, true);
                std::thread::scope(|scope| {
                    for thread in 0..THREADS {
                        let map = &map;
                        scope.spawn(move || {
                            let mut random = Random(seed + number * 100 + thread);
                            for _ in 0..ROUNDS {
                                let (page, word) = (random.below(PAGES), random.below(WORDS));
                                map.word(page, word).fetch_add(1, Relaxed);
                            }
                        });
                    }
                });
            })
        })
        .collect();
    assert!(processes.into_iter().all(|child| ended(child) == 0));
    assert!(map.stats().resident_bytes <= RAM, "{:?}", map.stats());
    map.check();
    map.sync();
    assert_eq!(file.sum(), PROCESSES * THREADS * ROUNDS as u64);
}

/// Processes that are killed at any point while others go on: how many, in the form for CI.
const KILLS: usize = 20;

#[test]
fn a_killed_process_keeps_no_lock_and_takes_no_store_of_others_with_it() {
    const PAGES: usize = 2000;
    let _alone = alone();
    let kills = std::env::var("DEEPHEAP_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let mut random = Random(seed());
    let file = Scratch::zeros(PAGES * PAGE);
    let map = Mapped::new(&file, 3 << 20, true);
    // How many increments each of two processes has made; a killed one may have made one more.
    let made = shared_words::<4>();
    let worker = |number: usize, seed: u64| {
        process(|| {
            let map = Mapped::new(&file, 3 << 20, true);
            let mut random = Random(seed);
            loop {
                let page = random.below(PAGES);
                map.word(page, number).fetch_add(1, Relaxed);
                made[number].fetch_add(1, SeqCst);
            }
        })
    };
    // One that lives through all of it, and whose increments must all be there.
    let steady = worker(0, 7);
    let mut killed = 0u64;
    for _ in 0..kills {
        let victim = worker(1, random.0);
        std::thread::sleep(Duration::from_micros(3_000 + random.below(40_000) as u64));
        kill(victim);
        assert_eq!(ended(victim) & 0x7f, libc::SIGKILL);
        killed += 1;
        let before = made[0].load(SeqCst);
        let began = Instant::now();
        while made[0].load(SeqCst) < before + 50 {
            assert!(began.elapsed() < PATIENCE, "a lock stays held");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Every page can be had.
        let page = random.below(PAGES);
        map.word(page, 5).fetch_add(1, Relaxed);
    }
    kill(steady);
    ended(steady);
    let sum = |word| (0..PAGES).map(|page| map.word(page, word).load(SeqCst)).sum::<u64>();
    let (steadily, hastily) = (sum(0), sum(1));
    assert!(steadily == made[0].load(SeqCst) || steadily == made[0].load(SeqCst) + 1);
    let told = made[1].load(SeqCst);
    assert!((told..=told + killed).contains(&hastily), "{told} {hastily}");
    assert_eq!(sum(5), killed);
    map.check();
    map.sync();
    for page in 0..PAGES {
        assert_eq!(file.word(page, 0), map.word(page, 0).load(SeqCst));
    }
    println!("{killed} killed, {:?}", map.stats());
}

#[test]
fn what_was_synced_is_in_the_file_though_every_process_is_killed() {
    let _alone = alone();
    let file = Scratch::zeros(2000 * PAGE);
    let done = shared_words::<1>();
    for round in 1..=5u64 {
        let child = process(|| {
            let map = Mapped::new(&file, 3 << 20, true);
            for page in 0..2000 {
                map.word(page, 0).store(round, Relaxed);
            }
            map.sync();
            done[0].store(round, SeqCst);
            let mut random = Random(round);
            loop {
                map.word(random.below(2000), 1).fetch_add(1, Relaxed);
            }
        });
        let began = Instant::now();
        while done[0].load(SeqCst) != round {
            assert!(began.elapsed() < PATIENCE, "the sync does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(child);
        ended(child);
        assert!((0..2000).all(|page| file.word(page, 0) == round));
    }
    // The next one begins anew.
    let map = Mapped::new(&file, RAM, false);
    assert_eq!((map.word(3, 0).load(Relaxed), map.stats().processes), (5, 1));
}

#[test]
fn a_forked_child_has_the_map_and_outlives_its_parent() {
    let _alone = alone();
    let file = Scratch::numbered(2000 * PAGE);
    let (seen, parent) = (shared_words::<1>(), shared_words::<1>());
    let outer = process(|| {
        let map = Mapped::new(&file, RAM, true);
        map.word(0, 0).store(1, Relaxed);
        let grandchild = process(|| {
            // Not in RAM yet: without a registration of its own it would read zeros.
            for page in 1..2000 {
                assert_eq!(map.word(page, 9).load(Relaxed), number_at(page, 9));
            }
            map.word(1, 0).store(2, Relaxed);
            while parent[0].load(SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            for page in 1..2000 {
                assert_eq!(map.word(page, 9).load(Relaxed), number_at(page, 9));
            }
            assert_eq!((map.word(0, 0).load(Relaxed), map.stats().processes), (1, 1));
            map.sync();
            map.check();
            seen[0].store(1, SeqCst);
        });
        assert!(grandchild > 0);
        assert_eq!(map.word(1500, 9).load(Relaxed), number_at(1500, 9));
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: ends at once, as if killed.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    ended(outer);
    parent[0].store(1, SeqCst);
    let began = Instant::now();
    while seen[0].load(SeqCst) == 0 {
        assert!(began.elapsed() < PATIENCE, "the child does not go on");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((file.word(0, 0), file.word(1, 0)), (1, 2));
}

#[test]
fn parent_and_child_of_a_fork_bring_pages_at_a_time_and_all_are_whole() {
    const PAGES: usize = 3000;
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    let seed = seed();
    let map = Mapped::new(&file, RAM, true);
    let read = |seed: u64| {
        let mut random = Random(seed);
        for _ in 0..6_000 {
            let (page, word) = (random.below(PAGES), random.below(WORDS));
            assert_eq!(map.word(page, word).load(SeqCst), number_at(page, word));
        }
    };
    let children: Vec<_> = (1..4).map(|number| process(|| read(seed + number))).collect();
    read(seed);
    assert!(children.into_iter().all(|child| ended(child) == 0));
    map.check();
}

#[test]
fn who_maps_to_read_only_cannot_write_and_reads_what_others_write() {
    let _alone = alone();
    let file = Scratch::zeros(100 * PAGE);
    let writer = Mapped::new(&file, RAM, true);
    writer.word(3, 0).store(5, SeqCst);
    let reader = process(|| {
        let map = Mapped::new(&file, RAM, false);
        assert_eq!(map.word(3, 0).load(SeqCst), 5);
        map.word(3, 0).store(6, SeqCst);
    });
    assert_eq!(ended(reader) & 0x7f, libc::SIGSEGV);
    assert_eq!(writer.word(3, 0).load(SeqCst), 5);
    writer.check();
}

/// Makes the folder of a file read-only for this process alone. False: it may not.
fn see_read_only(file: &Scratch) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let folder = file.0.parent().unwrap().as_os_str().as_bytes();
    let folder = std::ffi::CString::new(folder).unwrap();
    let none = core::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let read_only = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY;
    let at = folder.as_ptr();
    // SAFETY: C strings; the mounts are those of a name space of this process, and end with it.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(c"none".as_ptr(), c"/".as_ptr(), none, private, none.cast()) == 0
            && libc::mount(at, at, none, libc::MS_BIND, none.cast()) == 0
            && libc::mount(c"none".as_ptr(), at, none, read_only, none.cast()) == 0
    }
}

#[test]
fn who_may_not_write_the_file_leaves_changed_pages_to_who_may() {
    let _alone = alone();
    let file = Scratch::zeros(2000 * PAGE);
    let (skipped, turn) = (shared_words::<1>(), shared_words::<1>());
    // Before there is a map: a child of the writer's could write.
    let reader = process(|| {
        if !see_read_only(&file) {
            skipped[0].store(1, SeqCst);
            return;
        }
        while turn[0].load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let map = Mapped::new(&file, RAM, false);
        assert!(maps::sync(map.at, 0).is_err(), "it can write");
        for page in (0..2000).chain(0..500) {
            let expected = if page < 500 { page as u64 } else { 0 };
            assert_eq!(map.word(page, 0).load(SeqCst), expected);
        }
        map.check();
        core::mem::forget(map);
    });
    let writer = Mapped::new(&file, RAM, true);
    for page in 0..500 {
        writer.word(page, 0).store(page as u64, SeqCst);
    }
    turn[0].store(1, SeqCst);
    assert_eq!(ended(reader), 0);
    writer.check();
    if skipped[0].load(SeqCst) != 0 {
        println!("skipped: only root makes a folder read-only for a process");
        return;
    }
    // How many of the changed ones the writer's own evictor wrote meanwhile is its affair.
    assert!(writer.stats().evicted_clean > 0, "nothing had to leave");
    writer.sync();
    assert!((0..500).all(|page| file.word(page, 0) == page as u64));
}

#[test]
fn behind_the_end_and_in_a_file_cut_short_there_is_sigbus() {
    let _alone = alone();
    let file = Scratch::numbered(100 * PAGE);
    let behind = process(|| {
        let path = file.0.as_path();
        let request = maps::Request { path, length: 200 << 12, writes: false, budget_bytes: RAM };
        let at = maps::open(&request, maps::Writes::InPlace).unwrap();
        // SAFETY: addresses of the map.
        unsafe {
            assert_eq!(at.add(99 * PAGE).cast::<u64>().read_volatile(), number_at(99, 0));
            at.add(100 * PAGE).read_volatile();
        }
    });
    assert_eq!(ended(behind) & 0x7f, libc::SIGBUS);
    let cut = process(|| {
        let map = Mapped::new(&file, RAM, true);
        assert_eq!(map.word(5, 0).load(SeqCst), number_at(5, 0));
        file.open().set_len(50 << 12).unwrap();
        assert_eq!(map.word(49, 0).load(SeqCst), number_at(49, 0));
        map.word(70, 0).load(SeqCst);
    });
    assert_eq!(ended(cut) & 0x7f, libc::SIGBUS);
    assert_eq!(std::fs::metadata(&file.0).unwrap().len(), 50 << 12);
}

#[test]
fn all_processes_find_their_files_in_the_list() {
    let _alone = alone();
    let file = Scratch::zeros(100 * PAGE);
    let map = Mapped::new(&file, RAM, true);
    map.word(1, 0).store(1, SeqCst);
    let path = file.0.canonicalize().unwrap();
    let listed = maps::list().unwrap().into_iter().find(|map| map.path == path).unwrap();
    assert_eq!((listed.file_bytes, listed.budget_bytes), (100 << 12, RAM));
    assert_eq!((listed.resident_bytes, listed.faults), (PAGE as u64, 1));
    assert_eq!(listed.processes.len(), 1);
    assert!(listed.processes[0].is_writer && listed.processes[0].pid == std::process::id());
    maps::advise(map.at, 0, Advice::DontNeed).unwrap();
    assert_eq!(file.word(1, 0), 1);
    drop(map);
    assert!(!maps::list().unwrap().iter().any(|map| map.path == path));
}
