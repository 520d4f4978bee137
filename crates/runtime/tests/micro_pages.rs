//! Micro-pages: objects of up to 512 bytes share frames of RAM, and nobody notices but by speed.

mod scene;

use std::arch::asm;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deepheap::objects;
use scene::memory::{PAGE, Random, seed};
use scene::play;
use scene::process::{fork, kill, must_succeed};

const CONF: &str = "ram:24M,store_size:400M,micro_pages:on";
/// Frames of the lanes under that budget, and so the pages after which a lane comes again.
const FRAMES: usize = 1024;
const AGAIN: usize = 8 * FRAMES * PAGE;

/// Objects of 512 bytes, each filled with its number, of which each lane has several.
fn filled(count: usize) -> Vec<*mut u8> {
    let fill = |number: usize| {
        let at = objects::allocate(1, 512);
        assert!(!at.is_null());
        // SAFETY: a fresh object of that size.
        (0..64).for_each(|word| unsafe { at.cast::<u64>().add(word).write(number as u64) });
        at
    };
    (0..count).map(fill).collect()
}

/// SAFETY of all that is read and written here: words of live objects.
fn word(at: *mut u8, word: usize) -> u64 {
    // SAFETY: see above.
    unsafe { at.cast::<u64>().add(word).read_volatile() }
}

fn check(objects: &[*mut u8]) {
    for (number, &at) in objects.iter().enumerate() {
        assert!((0..64).all(|index| word(at, index) == number as u64), "object {number} at {at:?}");
    }
}

/// Two of the objects that have one lane.
fn rivals(objects: &[*mut u8]) -> [*mut u8; 2] {
    let pair = objects.iter().find_map(|&one| {
        let other = objects.iter().find(|other| other.addr() == one.addr() + AGAIN)?;
        Some([one, *other])
    });
    pair.expect("there are more objects than lanes")
}

#[test]
fn objects_that_share_frames_keep_their_bytes() {
    play("objects_that_share_frames_keep_their_bytes", CONF, || {
        let mut random = Random::new(seed());
        let objects = filled(30_000);
        check(&objects);
        for _ in 0..60_000 {
            let number = random.below(objects.len());
            let at = objects[number];
            assert_eq!(word(at, random.below(64)), number as u64);
            // SAFETY: a word of a live object.
            unsafe { at.cast::<u64>().add(random.below(64)).write_volatile(number as u64) };
        }
        check(&objects);
        let lanes: std::collections::HashSet<_> =
            objects.iter().map(|at| at.addr() % PAGE / 512).collect();
        assert!(lanes.len() > 1, "they lie side by side");
        for &at in &objects {
            // SAFETY: live until now.
            unsafe { deepheap::free(at) };
        }
    });
}

#[test]
fn one_instruction_reaches_two_objects_of_one_lane() {
    play("one_instruction_reaches_two_objects_of_one_lane", CONF, || {
        let objects = filled(20_000);
        let [one, other] = rivals(&objects);
        for round in 0..100u64 {
            // SAFETY: both are 512 bytes long.
            unsafe {
                one.cast::<u64>().write_volatile(round);
                asm!("rep movsb", inout("rcx") 512usize => _, inout("rsi") one => _,
                    inout("rdi") other => _);
                assert_eq!(word(other, 0), round);
                other.cast::<u64>().write_volatile(round + 1);
                asm!("movsq", inout("rsi") other => _, inout("rdi") one => _);
                assert_eq!(word(one, 0), round + 1);
                asm!("cmpsb", inout("rsi") one => _, inout("rdi") other => _);
            }
        }
    });
}

#[test]
fn one_system_call_reaches_two_objects_of_one_lane() {
    play("one_system_call_reaches_two_objects_of_one_lane", CONF, || {
        let objects = filled(20_000);
        let [one, other] = rivals(&objects);
        for at in [one, other] {
            objects::pin(at).expect("pinned");
        }
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        // SAFETY: both are 512 bytes long, and pinned.
        unsafe {
            let bytes = |at: *mut u8| std::slice::from_raw_parts_mut(at, 512);
            let parts = [one, other].map(|at| std::io::IoSlice::new(bytes(at)));
            assert_eq!(writer.write_vectored(&parts).expect("written"), 1024);
            let mut parts = [other, one].map(|at| std::io::IoSliceMut::new(bytes(at)));
            assert_eq!(reader.read_vectored(&mut parts).expect("read"), 1024);
        }
        let number = |at| objects.iter().position(|&object| object == at).expect("one of them");
        assert_eq!(word(one, 63), number(other) as u64);
        assert_eq!(word(other, 63), number(one) as u64);
        for at in [one, other] {
            objects::unpin(at).expect("pinned before");
        }
    });
}

#[test]
fn a_forked_child_has_its_own_objects_in_lanes() {
    play("a_forked_child_has_its_own_objects_in_lanes", CONF, || {
        let objects = filled(20_000);
        let pinned = objects[17];
        objects::pin(pinned).expect("pinned");
        let (stop, counted) = (AtomicBool::new(false), AtomicU64::new(0));
        let counter = filled(1)[0];
        let counter_address = counter.addr();
        std::thread::scope(|scope| {
            // A thread writes all the time.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let at = counter_address as *mut u64;
                    // SAFETY: a word of a live object, which this thread alone writes.
                    unsafe { at.write_volatile(counted.fetch_add(1, Ordering::Relaxed) + 1) };
                }
            });
            for _ in 0..5 {
                let child = fork(|| {
                    check(&objects);
                    for &at in &objects {
                        // SAFETY: words of live objects.
                        unsafe { at.cast::<u64>().add(5).write_volatile(u64::MAX) };
                    }
                    assert!(objects.iter().all(|&at| word(at, 5) == u64::MAX));
                });
                check(&objects);
                must_succeed(child);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(word(counter, 0), counted.load(Ordering::Relaxed));
        check(&objects);
    });
}

#[test]
fn objects_in_lanes_wait_for_space_that_a_forked_child_keeps_until_it_ends() {
    let name = "objects_in_lanes_wait_for_space_that_a_forked_child_keeps_until_it_ends";
    play(name, "ram:16M,store_size:96M,micro_pages:on", || {
        const THREADS: usize = 4;
        const ROUNDS: u64 = 3;
        let objects = filled(120_000);
        let addresses: Vec<usize> = objects.iter().map(|at| at.addr()).collect();
        let written = AtomicU64::new(0);
        let all = ROUNDS * addresses.len() as u64;
        let child = fork(|| std::thread::sleep(Duration::from_secs(1000)));
        // More is written than the store has room for beside what the child keeps.
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (share, written) = (addresses.iter().skip(thread).step_by(THREADS), &written);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        for &address in share.clone() {
                            // SAFETY: a word of a live object that this thread alone writes.
                            unsafe { (address as *mut u64).add(7).write_volatile(round) };
                            written.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            // The child ends when all threads wait.
            let (mut before, mut looks) = (0, 0);
            while looks < 10 && before < all {
                std::thread::sleep(Duration::from_millis(100));
                let now = written.load(Ordering::Relaxed);
                looks = if now == before { looks + 1 } else { 0 };
                before = now;
            }
            kill(child);
            assert!(before < all, "what the child keeps was not wanted");
        });
        for (number, &at) in objects.iter().enumerate() {
            assert_eq!((word(at, 6), word(at, 7)), (number as u64, ROUNDS - 1), "object {number}");
        }
    });
}
