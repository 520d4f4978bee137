//! Log: what a sync has committed is there whatever is killed when, all of it or nothing.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scene;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use deepheap_maps::{self as maps, MapError, Request, Writes};
use scene::{
    Mapped, PAGE, Random, Scratch, WORDS, alone, ended, kill, process, seed, shared_words,
};

const RAM: u64 = 3 << 20;
const PAGES: usize = 2500;

/// A path where there is no file yet; what comes to be there is removed with it.
fn nowhere() -> Scratch {
    let scratch = Scratch::zeros(0);
    std::fs::remove_file(&scratch.0).unwrap();
    scratch
}

fn open(path: &Path, length: usize, writes: bool) -> Result<Mapped, MapError> {
    let request = Request { path, length: length as u64, writes, budget_bytes: RAM };
    maps::open(&request, Writes::Log).map(|at| Mapped { at })
}

fn mapped(file: &Scratch) -> Mapped {
    open(&file.0, PAGES * PAGE, true).unwrap()
}

/// The sum of this word of all pages.
fn sum(map: &Mapped, word: usize) -> u64 {
    (0..PAGES).map(|page| map.word(page, word).load(SeqCst)).sum()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(240), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_was_committed_is_there_when_the_process_was_killed_and_nothing_else() {
    let _alone = alone();
    let file = nowhere();
    let done = shared_words::<1>();
    for round in 1..=4u64 {
        let child = process(|| {
            let map = mapped(&file);
            for page in 0..PAGES {
                assert_eq!(map.word(page, 0).load(Relaxed), round - 1, "{page}");
                map.word(page, 0).store(round, Relaxed);
            }
            map.sync();
            // Not committed, and far more than RAM: it leaves RAM, and must not count.
            for page in 0..PAGES {
                map.word(page, 0).store(99, Relaxed);
                map.word(page, page % WORDS).store(100, Relaxed);
            }
            done[0].store(round, SeqCst);
            let mut random = Random(round);
            loop {
                map.word(random.below(PAGES), 1).fetch_add(1, Relaxed);
            }
        });
        wait_until("the sync does not end", || done[0].load(SeqCst) == round);
        kill(child);
        ended(child);
    }
    let map = mapped(&file);
    for page in 0..PAGES {
        assert_eq!(map.word(page, 0).load(Relaxed), 4);
        let expected = if page % WORDS == 0 { 4 } else { 0 };
        assert_eq!(map.word(page, page % WORDS).load(Relaxed) % 100, expected, "{page}");
    }
    map.check();
}

#[test]
fn three_processes_lose_no_store_while_pages_leave_and_come_and_all_commit() {
    const PROCESSES: u64 = 3;
    const THREADS: u64 = 2;
    const ROUNDS: usize = 2_000;
    let _alone = alone();
    let file = nowhere();
    let seed = seed();
    {
        let map = mapped(&file);
        let processes: Vec<_> = (0..PROCESSES)
            .map(|number| {
                process(|| {
                    let map = mapped(&file);
                    std::thread::scope(|scope| {
                        for thread in 0..THREADS {
                            let map = &map;
                            scope.spawn(move || {
                                let mut random = Random(seed + number * 100 + thread);
                                for round in 0..ROUNDS {
                                    let (page, word) = (random.below(PAGES), random.below(WORDS));
                                    map.word(page, word).fetch_add(1, Relaxed);
                                    if round % 400 == 100 {
                                        map.sync();
                                    }
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
    }
    // The last one that ended has committed all.
    let map = mapped(&file);
    let all: u64 = (0..WORDS).map(|word| sum(&map, word)).sum();
    assert_eq!(all, PROCESSES * THREADS * ROUNDS as u64);
}

/// Words of a transaction, each on a page of its own.
const WORDS_TOGETHER: usize = 40;

#[test]
fn a_commit_is_there_as_a_whole_or_not_when_all_processes_are_killed_in_the_middle() {
    const ROUNDS: usize = 12;
    let _alone = alone();
    let kills = std::env::var("DEEPHEAP_KILLS").map_or(ROUNDS, |text| text.parse().unwrap());
    let file = nowhere();
    let mut random = Random(seed());
    // Who has the right to change and commit; what was begun, and what was committed.
    let [lock, begun, committed] = shared_words::<3>();
    let place = |index: usize| (index * 61 + 7) % PAGES;
    for round in 0..kills {
        lock.store(0, SeqCst);
        let before = committed.load(SeqCst);
        let children: Vec<_> = (0..3)
            .map(|number| {
                let seed = random.0 + number;
                process(|| {
                    let map = mapped(&file);
                    let mut random = Random(seed);
                    loop {
                        // Evictions of what was changed, in between.
                        for _ in 0..60 {
                            map.word(random.below(PAGES), 9).fetch_add(1, Relaxed);
                        }
                        if lock.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
                            continue;
                        }
                        let next = begun.fetch_add(1, SeqCst) + 1;
                        for index in 0..WORDS_TOGETHER {
                            map.word(place(index), 3).store(next, SeqCst);
                        }
                        map.sync();
                        committed.store(next, SeqCst);
                        lock.store(0, SeqCst);
                    }
                })
            })
            .collect();
        // Every other time there was a commit, however slow the machine is.
        if round % 2 == 0 {
            wait_until("nobody commits", || committed.load(SeqCst) > before);
        }
        std::thread::sleep(Duration::from_micros(20_000 + random.below(60_000) as u64));
        children.iter().for_each(|child| kill(*child));
        children.into_iter().for_each(|child| assert_eq!(ended(child) & 0x7f, libc::SIGKILL));
        let map = mapped(&file);
        let found = map.word(place(0), 3).load(SeqCst);
        for index in 0..WORDS_TOGETHER {
            assert_eq!(map.word(place(index), 3).load(SeqCst), found, "word {index}");
        }
        let (begun, committed) = (begun.load(SeqCst), committed.load(SeqCst));
        assert!((committed..=begun).contains(&found), "{committed} {found} {begun}");
        map.check();
    }
    println!("{} commits", committed.load(SeqCst));
    assert!(committed.load(SeqCst) > 0);
}

#[test]
fn a_process_that_is_killed_in_a_commit_harms_no_other() {
    let _alone = alone();
    let kills = std::env::var("DEEPHEAP_KILLS").map_or(15, |text| text.parse().unwrap());
    let file = nowhere();
    let mut random = Random(seed());
    let made = shared_words::<2>();
    let total = {
        let map = mapped(&file);
        let worker = |number: usize, seed: u64, pause: usize| {
            process(|| {
                let map = mapped(&file);
                let mut random = Random(seed);
                for round in 1.. {
                    map.word(random.below(PAGES), number).fetch_add(1, Relaxed);
                    made[number].fetch_add(1, SeqCst);
                    if round % pause == 0 {
                        map.sync();
                    }
                }
            })
        };
        let steady = worker(0, 7, 500);
        for _ in 0..kills {
            let victim = worker(1, random.0, 50);
            std::thread::sleep(Duration::from_micros(5_000 + random.below(40_000) as u64));
            kill(victim);
            assert_eq!(ended(victim) & 0x7f, libc::SIGKILL);
            let before = made[0].load(SeqCst);
            wait_until("a lock stays held", || made[0].load(SeqCst) > before + 50);
        }
        kill(steady);
        ended(steady);
        let (steadily, hastily) = (sum(&map, 0), sum(&map, 1));
        assert!((made[0].load(SeqCst)..=made[0].load(SeqCst) + 1).contains(&steadily));
        let told = made[1].load(SeqCst);
        assert!((told..=told + kills as u64).contains(&hastily), "{told} {hastily}");
        map.check();
        println!("{:?}", map.stats());
        (steadily, hastily)
    };
    // All of it was committed by the end of the map.
    let map = mapped(&file);
    assert_eq!((sum(&map, 0), sum(&map, 1)), total);
}

#[test]
fn a_sync_of_a_part_commits_that_part_alone() {
    let _alone = alone();
    let file = nowhere();
    let ready = shared_words::<1>();
    let child = process(|| {
        let map = mapped(&file);
        for page in 0..PAGES {
            map.word(page, 0).store(5, Relaxed);
        }
        let part = map.at.wrapping_add(1000 * PAGE);
        maps::sync(part, 300 * PAGE).unwrap();
        ready[0].store(1, SeqCst);
        std::thread::sleep(Duration::from_secs(60));
    });
    wait_until("the sync does not end", || ready[0].load(SeqCst) == 1);
    kill(child);
    ended(child);
    let map = mapped(&file);
    for page in 0..PAGES {
        let expected = if (1000..1300).contains(&page) { 5 } else { 0 };
        assert_eq!(map.word(page, 0).load(Relaxed), expected, "{page}");
    }
}

#[test]
fn commits_make_room_for_changes_and_what_finds_none_stops() {
    const MANY: usize = 24_000;
    let _alone = alone();
    let file = nowhere();
    let stored = shared_words::<1>();
    let store = |commits: bool| {
        let status = ended(process(|| {
            let request = Request {
                path: &file.0,
                length: (MANY * PAGE) as u64,
                writes: true,
                budget_bytes: maps::BUDGET_MIN,
            };
            let map = Mapped { at: maps::open(&request, Writes::Log).unwrap() };
            for page in 0..MANY {
                map.word(page, 0).fetch_add(1, SeqCst);
                stored[0].store(page as u64, SeqCst);
                if commits && page % 2000 == 0 {
                    map.sync();
                }
            }
            map.check();
        }));
        (status & 0x7f, stored[0].load(SeqCst) as usize)
    };
    assert_eq!(store(true), (0, MANY - 1));
    // Without commits far more than RAM fits, and then no more: the access stops.
    let (signal, last) = store(false);
    assert!(signal == libc::SIGBUS && last > 3000, "{signal} {last}");
    let map = open(&file.0, 0, true).unwrap();
    for page in (0..MANY).step_by(7) {
        assert_eq!(map.word(page, 0).load(SeqCst), 1, "{page}");
    }
}

#[test]
fn a_forked_child_shares_the_map_and_can_commit() {
    let _alone = alone();
    let file = nowhere();
    let map = mapped(&file);
    for page in 0..PAGES {
        map.word(page, 0).store(1, Relaxed);
    }
    let child = process(|| {
        for page in 0..PAGES {
            assert_eq!(map.word(page, 0).fetch_add(1, Relaxed), 1);
        }
        map.sync();
    });
    assert_eq!(ended(child), 0);
    assert_eq!(sum(&map, 0), 2 * PAGES as u64);
    map.check();
}

#[test]
fn files_that_are_no_such_maps_are_refused_and_such_maps_are_not_mapped_in_place() {
    let _alone = alone();
    let refused = |file: &Scratch, writes| open(&file.0, 0, writes).err().unwrap().to_string();
    let foreign = Scratch::numbered(4 * PAGE);
    assert!(refused(&foreign, true).contains("no map with a log"));
    assert!(refused(&nowhere(), true).contains("no bytes"));
    assert!(refused(&nowhere(), false).contains("No such file"));
    let file = nowhere();
    drop(mapped(&file));
    let in_place = Mapped::of(&file.0, RAM, true).err().unwrap();
    assert_eq!(in_place, MapError::HasLog);
    assert!(in_place.to_string().contains("DH_MAP_LOG"));
    // All of it is in the base by now: who only reads changes nothing.
    let map = open(&file.0, 0, false).unwrap();
    assert_eq!((map.stats().file_bytes, map.word(9, 9).load(Relaxed)), ((PAGES * PAGE) as u64, 0));
    drop(map);
    let length = std::fs::metadata(&file.0).unwrap().len();
    file.open().set_len(length - PAGE as u64).unwrap();
    assert!(refused(&file, true).contains("has been cut"));
    file.open().set_len(length).unwrap();
    for place in [0, 64 << 10] {
        file.open().write_all_at(&[0xff; 8], place + 3000).unwrap();
    }
    assert!(refused(&file, true).contains("damaged"));
}
