//! Pins: the kernel finds the pages of a call, whoever evicts; a pin ends with its process.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scene;

use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use deepheap_maps::{self as maps, PinKind};
use scene::{
    Mapped, PAGE, Random, Scratch, alone, ended, kill, number_at, process, seed, shared_words,
};

const RAM: u64 = 3 << 20;
const PAGES: usize = 3000;
/// Pages of one call.
const SOME: usize = 32;

fn pin(map: &Mapped, page: usize, kind: PinKind) -> bool {
    maps::pin(map.at as usize + page * PAGE, SOME * PAGE, kind).is_ok()
}

fn unpin(map: &Mapped, page: usize) {
    maps::unpin(map.at as usize + page * PAGE, SOME * PAGE);
}

/// A process that has pages come and go for as long as it lives.
fn presser(file: &Scratch, seed: u64) -> libc::pid_t {
    process(|| {
        let map = Mapped::new(file, RAM, true);
        let mut random = Random(seed);
        loop {
            map.word(random.below(PAGES), 3).fetch_add(1, Relaxed);
        }
    })
}

/// Reads pages of a numbered file into the map, past the page cache, again and again; answers how
/// often the kernel found a page missing.
fn read_into(map: &Mapped, pinned: bool, rounds: usize, random: &mut Random) -> usize {
    let source = Scratch::numbered(SOME * PAGE);
    let direct =
        std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&source.0).unwrap();
    let mut refused = 0;
    for _ in 0..rounds {
        let page = random.below(PAGES - SOME);
        assert!(!pinned || pin(map, page, PinKind::Call));
        let into = map.word(page, 0).as_ptr();
        // SAFETY: memory of the map; who else uses it uses words.
        let read = unsafe { libc::pread(direct.as_raw_fd(), into.cast(), SOME * PAGE, 0) };
        if read == (SOME * PAGE) as isize {
            // The words that the other process does not change.
            for index in 0..SOME {
                let found = map.word(page + index, 9).load(SeqCst);
                assert!(!pinned || found == number_at(index, 9), "{found} in {index}");
            }
        } else {
            refused += 1;
        }
        if pinned {
            unpin(map, page);
        }
    }
    refused
}

#[test]
fn a_device_reads_into_pinned_pages_though_others_evict() {
    let _alone = alone();
    let mut random = Random(seed());
    let file = Scratch::zeros(PAGES * PAGE);
    let others = [presser(&file, random.0), presser(&file, random.0 + 1)];
    let map = Mapped::new(&file, RAM, true);
    assert_eq!(read_into(&map, true, 150, &mut random), 0);
    // The canary: without pins some are missing.
    assert!(read_into(&map, false, 20, &mut random) > 0);
    for other in others {
        kill(other);
        ended(other);
    }
    map.check();
}

#[test]
fn what_a_process_had_pinned_may_leave_once_it_is_killed() {
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    let ready = shared_words::<1>();
    let map = Mapped::new(&file, RAM, true);
    let child = process(|| {
        let map = Mapped::new(&file, RAM, true);
        let mut pinned = 0;
        while pin(&map, pinned * SOME, PinKind::Wish) {
            pinned += 1;
        }
        ready[0].store(pinned as u64, SeqCst);
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    while ready[0].load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let pinned = ready[0].load(SeqCst) as usize;
    let quarter = (RAM as usize / PAGE) / 4;
    assert!((quarter / 2..=quarter).contains(&(pinned * SOME)), "{pinned}");
    // Not a second time, and not one page of it leaves.
    assert!(!pin(&map, 2000, PinKind::Wish));
    let press =
        || (0..PAGES).for_each(|page| assert!(map.word(page, 1).load(Relaxed) > 0 || page == 0));
    press();
    maps::advise(map.at, 0, maps::Advice::DontNeed).unwrap();
    assert_eq!(map.stats().resident_bytes as usize, pinned * SOME * PAGE);
    kill(child);
    ended(child);
    maps::advise(map.at, 0, maps::Advice::DontNeed).unwrap();
    assert_eq!(map.stats().resident_bytes, 0);
    assert!(pin(&map, 2000, PinKind::Wish));
    assert!(pin(&map, 2000, PinKind::Wish), "as often as it is asked for");
    maps::advise(map.at, 0, maps::Advice::DontNeed).unwrap();
    assert_eq!(map.stats().resident_bytes as usize, SOME * PAGE);
    unpin(&map, 2000);
    maps::advise(map.at, 0, maps::Advice::DontNeed).unwrap();
    assert_eq!(map.stats().resident_bytes as usize, SOME * PAGE, "one is left");
    unpin(&map, 2000);
    maps::advise(map.at, 0, maps::Advice::DontNeed).unwrap();
    assert_eq!(map.stats().resident_bytes, 0);
    map.check();
}

#[test]
fn calls_wait_for_room_and_those_of_a_thread_that_ended_are_over() {
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    let map = Mapped::new(&file, 2 << 20, true);
    // One call may take all that it needs, alone.
    let large = 300 * PAGE;
    maps::pin(map.at as usize, large, PinKind::Call).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pin(&map, 2000, PinKind::Object));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        maps::unpin(map.at as usize, large);
        assert!(waiting.join().unwrap());
        // As the end of a thread that was cancelled in a call has it.
        scope.spawn(|| {
            assert!(pin(&map, 1000, PinKind::Call));
            maps::unpin_thread();
        });
    });
    maps::advise(map.at, 0, maps::Advice::DontNeed).unwrap();
    assert_eq!(map.stats().resident_bytes as usize, SOME * PAGE);
    unpin(&map, 2000);
    map.check();
}

/// Runs threads that pin; false: one of them waits for ever.
fn all_end(threads: Vec<Box<dyn FnOnce() + Send>>) -> bool {
    let (done, is_done) = std::sync::mpsc::channel();
    let count = threads.len();
    for thread in threads {
        let done = done.clone();
        std::thread::spawn(move || {
            thread();
            done.send(()).unwrap();
        });
    }
    (0..count).all(|_| is_done.recv_timeout(Duration::from_secs(120)).is_ok())
}

#[test]
fn a_call_of_several_buffers_waits_neither_for_itself_nor_for_another_one_that_waits() {
    let _alone = alone();
    let file = Scratch::numbered(PAGES * PAGE);
    // It stays if a thread still waits for it.
    let map = std::mem::ManuallyDrop::new(Mapped::new(&file, 2 << 20, true));
    let at = map.at as usize;
    // More than half of the RAM, in two buffers.
    let (large, small) = (300 * PAGE, SOME * PAGE);
    let ended = all_end(vec![Box::new(move || {
        maps::pin(at, large, PinKind::Call).unwrap();
        maps::pin(at + 2000 * PAGE, small, PinKind::Call).unwrap();
        maps::unpin(at, large);
        maps::unpin(at + 2000 * PAGE, small);
    })]);
    assert!(ended, "a call waits for itself");
    // There is room for a buffer of each, and not for three.
    let part = 80 * PAGE;
    let call = |first: usize| -> Box<dyn FnOnce() + Send> {
        let copy = Scratch::zeros(part).open();
        Box::new(move || {
            for round in 0..30 {
                let buffers = [first + round, first + 500 + round].map(|page| at + page * PAGE);
                for buffer in buffers {
                    maps::pin(buffer, part, PinKind::Call).unwrap();
                    std::thread::sleep(Duration::from_millis(3));
                }
                maps::advise(at as *const u8, 0, maps::Advice::DontNeed).unwrap();
                // What it gave back while it waited it has again: the kernel finds every page.
                for buffer in buffers {
                    // SAFETY: memory of the map, which nobody stores to.
                    let wrote = unsafe {
                        libc::pwrite(copy.as_raw_fd(), buffer as *const libc::c_void, part, 0)
                    };
                    assert_eq!(wrote, part as isize);
                }
                buffers.iter().for_each(|buffer| maps::unpin(*buffer, part));
            }
        })
    };
    assert!(all_end(vec![call(0), call(1500)]), "two calls wait for each other");
    let map = std::mem::ManuallyDrop::into_inner(map);
    maps::advise(map.at, 0, maps::Advice::DontNeed).unwrap();
    assert_eq!(map.stats().resident_bytes, 0, "every pin has ended");
    map.check();
}
