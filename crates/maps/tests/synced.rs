//! Synced: what a sync has answered for is right, in RAM and in the file, whoever is killed when.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scene;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use scene::{Mapped, Random, Scratch, alone, ended, kill, process, seed, shared_words};

/// The file is three times as large as the RAM of both.
const RAM: u64 = 3 << 20;
const PAGES: usize = 2200;
/// Pages that are changed between two syncs.
const CHANGES: usize = 30;
/// How many are killed, in the form for CI.
const KILLS: usize = 25;
/// The word of a page that the writer changes.
const WORD: usize = 8;

#[test]
fn every_synced_byte_is_right_though_the_reader_or_the_writer_is_killed() {
    let _alone = alone();
    let kills = std::env::var("DEEPHEAP_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let mut random = Random(seed());
    let file = Scratch::zeros(PAGES * 4096);
    // What each page has at least, since a sync has returned; and what has begun to be written.
    let synced = shared_words::<PAGES>();
    let begun = shared_words::<1>();
    let rounds = shared_words::<1>();
    let is_right = |page: usize, floor: u64, found: u64| {
        let last = begun[0].load(SeqCst);
        assert!((floor..=last).contains(&found), "page {page}: {found}, not {floor} to {last}");
    };
    let writer = |seed| {
        process(|| {
            let map = Mapped::new(&file, RAM, true);
            let mut random = Random(seed);
            loop {
                let number = begun[0].fetch_add(1, SeqCst) + 1;
                let pages: Vec<usize> = (0..CHANGES).map(|_| random.below(PAGES)).collect();
                for &page in &pages {
                    map.word(page, WORD).store(number, Relaxed);
                }
                map.sync();
                for &page in &pages {
                    synced[page].store(number, SeqCst);
                }
                rounds[0].fetch_add(1, SeqCst);
            }
        })
    };
    let reader = |seed| {
        process(|| {
            let map = Mapped::new(&file, RAM, false);
            let mut random = Random(seed);
            loop {
                let page = random.below(PAGES);
                let floor = synced[page].load(SeqCst);
                is_right(page, floor, map.word(page, WORD).load(SeqCst));
            }
        })
    };
    let mut both = [writer(random.0), reader(random.0)];
    for round in 0..kills {
        std::thread::sleep(Duration::from_micros(2_000 + random.below(30_000) as u64));
        // Sometimes both: then RAM is gone, and only the file is left.
        let which = match random.below(5) {
            0 => 0..2,
            number => number % 2..number % 2 + 1,
        };
        for index in which.clone() {
            kill(both[index]);
        }
        for index in which.clone() {
            assert_eq!(ended(both[index]) & 0x7f, libc::SIGKILL, "it found a wrong word");
        }
        for _ in 0..100 {
            let page = random.below(PAGES);
            let floor = synced[page].load(SeqCst);
            is_right(page, floor, file.word(page, WORD));
        }
        for index in which {
            both[index] = if index == 0 { writer(random.0) } else { reader(random.0) };
        }
        // It goes on: no lock stays held.
        let (before, began) = (rounds[0].load(SeqCst), Instant::now());
        while round % 8 == 0 && rounds[0].load(SeqCst) == before {
            assert!(began.elapsed() < Duration::from_secs(240), "the writer does not go on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for process in both {
        kill(process);
        assert_eq!(ended(process) & 0x7f, libc::SIGKILL);
    }
    let map = Mapped::new(&file, RAM, true);
    for (page, floor) in synced.iter().enumerate() {
        let (floor, found) = (floor.load(SeqCst), file.word(page, WORD));
        is_right(page, floor, found);
        assert_eq!(map.word(page, WORD).load(SeqCst), found);
    }
    map.check();
    println!("{kills} killed, {} syncs", rounds[0].load(SeqCst));
}
