//! One process: a map reads what the file has, and the file gets what is stored.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scene;

use std::sync::atomic::Ordering::Relaxed;

use deepheap_maps::{self as maps, Advice};
use scene::{Mapped, PAGE, Random, Scratch, WORDS, alone, number_at, seed};

const RAM: u64 = 4 << 20;
/// Far more than RAM.
const PAGES: usize = 4096;

#[test]
fn every_byte_of_a_file_larger_than_ram_is_read_in_any_order() {
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    let map = Mapped::new(&file, RAM, false);
    for page in 0..PAGES {
        assert_eq!(map.word(page, page % WORDS).load(Relaxed), number_at(page, page % WORDS));
    }
    let mut random = Random(seed());
    for _ in 0..5_000 {
        let (page, word) = (random.below(PAGES), random.below(WORDS));
        assert_eq!(map.word(page, word).load(Relaxed), number_at(page, word));
    }
    let stats = map.stats();
    assert!(stats.resident_bytes <= RAM, "{stats:?}");
    assert!(stats.evicted_clean > 0 && stats.evicted_changed == 0, "{stats:?}");
    map.check();
}

#[test]
fn what_is_stored_comes_back_and_is_in_the_file_after_a_sync() {
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    let map = Mapped::new(&file, RAM, true);
    let mut random = Random(seed());
    let mut added = vec![0u64; PAGES];
    for _ in 0..8_000 {
        let page = random.below(PAGES);
        map.word(page, 7).fetch_add(1 << 40, Relaxed);
        added[page] += 1 << 40;
    }
    for (page, added) in added.iter().enumerate() {
        assert_eq!(map.word(page, 7).load(Relaxed), number_at(page, 7) + added, "{page}");
    }
    map.sync();
    map.check();
    for (page, added) in added.iter().enumerate() {
        assert_eq!(file.word(page, 7), number_at(page, 7) + added, "{page}");
        assert_eq!(file.word(page, 8), number_at(page, 8), "{page}");
    }
    assert!(map.stats().evicted_changed > 0);
}

#[test]
fn more_threads_than_ram_has_shards_find_room_while_others_write() {
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    let map = Mapped::new(&file, maps::BUDGET_MIN, true);
    let (map, seed) = (&map, seed());
    std::thread::scope(|scope| {
        for thread in 0..32 {
            scope.spawn(move || {
                let mut random = Random(seed + thread);
                let word = 8 + thread as usize;
                let mut added = vec![0u64; PAGES];
                for _ in 0..600 {
                    let page = random.below(PAGES);
                    map.word(page, word).fetch_add(1 << 40, Relaxed);
                    added[page] += 1 << 40;
                }
                for page in (0..600).map(|_| random.below(PAGES)) {
                    let expected = number_at(page, word) + added[page];
                    assert_eq!(map.word(page, word).load(Relaxed), expected, "{page}");
                }
            });
        }
    });
    let stats = map.stats();
    assert!(stats.resident_bytes <= maps::BUDGET_MIN, "{stats:?}");
    map.check();
}

#[test]
fn what_was_stored_is_in_the_file_when_the_map_has_ended() {
    let _alone = alone();
    let file = Scratch::numbered(100 * PAGE);
    let map = Mapped::new(&file, RAM, true);
    for page in 0..100 {
        map.word(page, 0).store(page as u64, Relaxed);
    }
    drop(map);
    for page in 0..100 {
        assert_eq!(file.word(page, 0), page as u64);
    }
}

#[test]
fn the_end_of_a_file_that_is_no_whole_page_keeps_its_length_and_is_zeros_behind() {
    let _alone = alone();
    for end in [8, 512, 1000, 4000] {
        let file = Scratch::numbered(9 * PAGE + end);
        let map = Mapped::new(&file, RAM, true);
        let last = end / 8 - 1;
        assert_eq!(map.word(9, last).load(Relaxed), number_at(9, last));
        assert_eq!(map.word(9, WORDS - 1).load(Relaxed), 0);
        map.word(9, 0).store(7, Relaxed);
        map.word(9, WORDS - 1).store(9, Relaxed);
        map.sync();
        assert_eq!(file.word(9, 0), 7);
        assert_eq!(std::fs::metadata(&file.0).unwrap().len(), (9 * PAGE + end) as u64);
        maps::advise(map.at, 0, Advice::DontNeed).unwrap();
        assert_eq!(map.stats().resident_bytes, 0);
        assert_eq!(map.word(9, 0).load(Relaxed), 7);
        map.check();
    }
}

#[test]
fn many_threads_lose_no_store() {
    const THREADS: u64 = 4;
    const ROUNDS: usize = 5_000;
    let _alone = alone();
    let file = Scratch::zeros(4000 * PAGE);
    let map = Mapped::new(&file, RAM, true);
    let seed = seed();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let map = &map;
            scope.spawn(move || {
                let mut random = Random(seed + thread);
                for _ in 0..ROUNDS {
                    map.word(random.below(4000), random.below(WORDS)).fetch_add(1, Relaxed);
                }
            });
        }
    });
    let in_map: u64 = (0..4000)
        .flat_map(|page| (0..WORDS).map(move |word| (page, word)))
        .map(|(page, word)| map.word(page, word).load(Relaxed))
        .sum();
    assert_eq!(in_map, THREADS * ROUNDS as u64);
    map.check();
    drop(map);
    assert_eq!(file.sum(), THREADS * ROUNDS as u64);
}

#[test]
fn pages_that_are_asked_for_ahead_are_there_without_a_fault() {
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    let map = Mapped::new(&file, 16 << 20, false);
    let pages: Vec<usize> = (0..64).map(|index| index * 37 % PAGES).collect();
    maps::bring_in(pages.iter().map(|page| map.at as usize + page * PAGE), 8);
    let stats = map.stats();
    assert_eq!((stats.resident_bytes, stats.faults), (64 * PAGE as u64, 0));
    for page in pages {
        assert_eq!(map.word(page, 3).load(Relaxed), number_at(page, 3));
    }
    assert_eq!(map.stats().faults, 0);
    let far = map.word(3000, 0).as_ptr().cast::<u8>();
    maps::advise(far, 100 * PAGE, Advice::WillNeed).unwrap();
    while map.stats().resident_bytes < 164 * PAGE as u64 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(map.word(3099, 3).load(Relaxed), number_at(3099, 3));
    assert_eq!(map.stats().faults, 0);
    map.check();
}

/// A page; every second time one of few.
fn often(random: &mut Random) -> usize {
    let few = random.below(2) == 0;
    random.below(if few { 64 } else { PAGES })
}

#[test]
fn rows_that_are_gathered_are_never_older_than_what_was_seen() {
    const GATHERED: usize = 48;
    const ROUNDS: usize = 3000;
    const ROW: usize = 16;
    let _alone = alone();
    let seed = seed();
    let file = Scratch::numbered(PAGES * PAGE);
    let map = Mapped::new(&file, RAM, true);
    let before = |page: usize, word: usize| number_at(page, word);
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (map, ends) = (&map, &ends);
            scope.spawn(move || {
                let mut random = Random(seed + thread);
                while !ends.load(Relaxed) {
                    let page = often(&mut random);
                    map.word(page, 1).fetch_add(1 << 20, Relaxed);
                }
            });
        }
        let mut random = Random(seed + 9);
        let mut seen: Vec<u64> = (0..PAGES).map(|page| before(page, 1)).collect();
        let mut absent = 0;
        for _ in 0..ROUNDS {
            let pages: Vec<usize> = (0..GATHERED).map(|_| often(&mut random)).collect();
            let addresses: Vec<usize> =
                pages.iter().map(|page| map.at as usize + page * PAGE).collect();
            let mut rows = [0; GATHERED * ROW];
            let copied = maps::gather_absent(&addresses, ROW, &mut rows);
            absent += copied.count_ones();
            for (index, &page) in pages.iter().enumerate().filter(|(at, _)| copied >> at & 1 != 0) {
                let word = |at: usize| u64::from_ne_bytes(rows[at..at + 8].try_into().unwrap());
                assert_eq!(word(index * ROW), before(page, 0), "seed {seed}: page {page}");
                let value = word(index * ROW + 8);
                assert!(value >= seen[page], "seed {seed}: page {page}: {value} < {}", seen[page]);
                seen[page] = value;
            }
            for &page in &pages {
                let value = map.word(page, 1).load(Relaxed);
                assert!(value >= seen[page], "seed {seed}: page {page}: {value} < {}", seen[page]);
                seen[page] = value;
            }
        }
        ends.store(true, Relaxed);
        assert!(absent as usize > ROUNDS, "{absent}");
    });
    map.check();
}

#[test]
fn a_list_that_is_gathered_once_takes_no_ram_and_one_that_comes_again_does() {
    const ROW: usize = 512;
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    let map = Mapped::new(&file, RAM, false);
    let mut random = Random(seed());
    for _ in 0..PAGES {
        let page = random.below(PAGES / 2);
        assert_eq!(map.word(page, 3).load(Relaxed), number_at(page, 3));
    }
    // The evictor makes room.
    while map.stats().resident_bytes > RAM - 16 * PAGE as u64 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let full = map.stats();
    let far: Vec<usize> = (0..16).map(|row| PAGES / 2 + row * 117).collect();
    let addresses: Vec<usize> = far.iter().map(|page| map.at as usize + page * PAGE).collect();
    let gather = || {
        let mut rows = vec![0; far.len() * ROW];
        let copied = maps::gather_absent(&addresses, ROW, &mut rows);
        for (index, &page) in far.iter().enumerate().filter(|(at, _)| copied >> at & 1 != 0) {
            let word = u64::from_ne_bytes(rows[index * ROW + 24..][..8].try_into().unwrap());
            assert_eq!(word, number_at(page, 3));
        }
        (copied.count_ones(), map.stats().resident_bytes)
    };
    let (first, once) = gather();
    assert!(first >= 12 && once <= full.resident_bytes, "{first} rows, {once} bytes, {full:?}");
    let (again, _) = gather();
    assert!(again >= 12, "{again} rows");
    // Others may leave RAM at the same time, so the bytes in RAM tell nothing.
    let (third, _) = gather();
    assert!(third < 12, "{third} rows were not in RAM");
    assert_eq!(map.stats().faults, full.faults);
    map.check();
}
