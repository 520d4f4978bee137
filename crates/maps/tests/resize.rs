//! Resize: files that become longer and shorter while processes map them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scene;

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use deepheap_maps::{self as maps, MapError};
use scene::{
    Mapped, PAGE, Random, Scratch, WORDS, alone, ended, number_at, process, seed, shared_words,
};

const RAM: u64 = 4 << 20;

fn resize(map: &mut Mapped, bytes: usize) {
    // SAFETY: the test uses it by `map` alone.
    map.at = unsafe { maps::resize(map.at, bytes as u64) }.unwrap();
}

fn length(file: &Scratch) -> usize {
    std::fs::metadata(&file.0).unwrap().len() as usize
}

/// Whether an access ends the process that makes it by SIGBUS.
fn stops(act: impl FnOnce()) -> bool {
    ended(process(act)) & 0x7f == libc::SIGBUS
}

#[test]
fn what_a_file_gains_is_zeros_and_what_it_loses_is_gone_for_all() {
    let _alone = alone();
    let file = Scratch::numbered(100 * PAGE);
    let turn = shared_words::<1>();
    let wait = |until| {
        while turn[0].load(SeqCst) < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    // Another process, which has mapped more than there is.
    let other = process(|| {
        let request =
            maps::Request { path: &file.0, length: 1 << 20, writes: true, budget_bytes: RAM };
        let map = Mapped { at: maps::open(&request, maps::Writes::InPlace).unwrap() };
        assert!(stops(|| assert_eq!(map.word(150, 0).load(SeqCst), 0)), "behind the end");
        turn[0].store(1, SeqCst);
        wait(2);
        assert_eq!(map.word(150, 0).load(SeqCst), 7, "it is longer for all");
        map.word(151, 0).store(8, SeqCst);
        turn[0].store(3, SeqCst);
        wait(4);
        assert_eq!(map.word(49, 3).load(SeqCst), number_at(49, 3));
        assert!(stops(|| assert_eq!(map.word(51, 0).load(SeqCst), 0)), "it is shorter for all");
        core::mem::forget(map);
    });
    let mut map = Mapped::new(&file, RAM, true);
    wait(1);
    resize(&mut map, 200 * PAGE);
    map.word(150, 0).store(7, SeqCst);
    turn[0].store(2, SeqCst);
    wait(3);
    assert_eq!(map.word(151, 0).load(SeqCst), 8);
    assert_eq!(map.word(99, 1).load(SeqCst), number_at(99, 1));
    map.sync();
    assert_eq!((file.word(151, 0), length(&file)), (8, 200 * PAGE));
    // To the middle of page 50, of which the rest was changed.
    map.word(50, 300).store(9, SeqCst);
    map.word(50, 1).store(5, SeqCst);
    resize(&mut map, 50 * PAGE + 1000);
    assert_eq!(length(&file), 50 * PAGE + 1000);
    assert_eq!(map.word(50, 1).load(SeqCst), 5);
    turn[0].store(4, SeqCst);
    assert_eq!(ended(other), 0);
    // Within the same page.
    resize(&mut map, 50 * PAGE + 1008);
    assert_eq!((map.word(50, 125).load(SeqCst), length(&file)), (0, 50 * PAGE + 1008));
    resize(&mut map, 90 * PAGE);
    for page in 50..90 {
        for word in [300, 511] {
            assert_eq!(map.word(page, word).load(SeqCst), 0, "{page}");
        }
    }
    assert_eq!(map.word(50, 1).load(SeqCst), 5);
    map.check();
    map.sync();
    assert_eq!((file.word(50, 1), file.word(50, 300), file.word(89, 0)), (5, 0, 0));
}

#[test]
fn no_store_is_lost_while_the_end_comes_and_goes() {
    const STEADY: usize = 1500;
    let _alone = alone();
    let file = Scratch::zeros(STEADY * PAGE);
    let seed = seed();
    let ends = shared_words::<1>();
    let workers: Vec<_> = (0..2)
        .map(|number| {
            process(|| {
                let map = Mapped::new(&file, RAM, true);
                let mut random = Random(seed + number);
                for _ in 0..4000 {
                    map.word(random.below(STEADY), random.below(WORDS)).fetch_add(1, Relaxed);
                }
                ends[0].fetch_add(1, SeqCst);
                maps::sync(map.at, 0).unwrap();
            })
        })
        .collect();
    let mut map = Mapped::new(&file, RAM, true);
    let mut random = Random(seed + 9);
    while ends[0].load(SeqCst) < 2 {
        let more = 1 + random.below(900);
        resize(&mut map, (STEADY + more) * PAGE - random.below(PAGE / 8) * 8);
        for _ in 0..50 {
            let page = STEADY + random.below(more);
            let word = map.word(page, 0);
            assert_eq!(word.load(SeqCst), 0, "what is new is zeros");
            word.store(0, SeqCst);
            if page + 1 < STEADY + more {
                word.store(1, SeqCst);
            }
            word.store(0, SeqCst);
        }
        for page in STEADY..STEADY + more - 1 {
            map.word(page, 7).store(3, Relaxed);
        }
        resize(&mut map, STEADY * PAGE);
    }
    assert!(workers.into_iter().all(|worker| ended(worker) == 0));
    map.check();
    map.sync();
    assert_eq!((file.sum(), length(&file)), (8000, STEADY * PAGE));
}

#[test]
fn a_file_that_somebody_else_cut_stops_accesses_behind_its_end_and_no_others() {
    let _alone = alone();
    let file = Scratch::numbered(3000 * PAGE);
    let mut map = Mapped::new(&file, RAM, true);
    map.word(2000, 0).store(1, SeqCst);
    map.word(10, 0).store(2, SeqCst);
    file.open().set_len(1000 * PAGE as u64).unwrap();
    assert!(stops(|| assert_eq!(map.word(1500, 0).load(SeqCst), 0)));
    assert_eq!(map.word(999, 3).load(SeqCst), number_at(999, 3));
    // What was changed behind the end has no place; the rest is synced, and the file stays short.
    map.sync();
    assert_eq!((file.word(10, 0), length(&file)), (2, 1000 * PAGE));
    resize(&mut map, 0);
    assert_eq!(maps::bytes_from(map.at), Some(1000 * PAGE));
    map.check();
    // And one that somebody made longer.
    file.open().set_len(1200 * PAGE as u64).unwrap();
    resize(&mut map, 0);
    assert_eq!(map.word(1199, 0).load(SeqCst), 0);
    assert_eq!(map.word(10, 0).load(SeqCst), 2);
    map.check();
}

#[test]
fn holes_read_as_zeros_and_take_no_blocks_until_they_are_written() {
    let _alone = alone();
    let file = Scratch::zeros(4000 * PAGE);
    let map = Mapped::new(&file, RAM, true);
    for page in 0..4000 {
        assert_eq!(map.word(page, 1).load(Relaxed), 0);
    }
    for page in 100..110 {
        map.word(page, 1).store(1, Relaxed);
    }
    map.sync();
    let blocks = std::fs::metadata(&file.0).unwrap().blocks() as usize * 512;
    assert!((10 * PAGE..20 * PAGE).contains(&blocks), "{blocks}");
    assert_eq!(map.stats().pages_written, 10);
}

#[test]
fn a_length_that_cannot_be_is_refused_and_harms_nothing() {
    let _alone = alone();
    let file = Scratch::numbered(10 * PAGE);
    let map = Mapped::new(&file, RAM, false);
    let other = process(|| {
        // SAFETY: not used meanwhile.
        let refused = |at, length| unsafe { maps::resize(at, length) }.unwrap_err();
        assert_eq!(refused(map.at.wrapping_add(PAGE), 1), MapError::NotAMap);
        assert_eq!(refused(map.at, 1 << 50), MapError::TooLong);
        assert_eq!(map.word(9, 1).load(SeqCst), number_at(9, 1));
    });
    assert_eq!(ended(other), 0);
}
