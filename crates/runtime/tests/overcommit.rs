//! Overcommit: memory that is allocated and not touched takes no room in the store; what is touched
//! has its room or is refused in so many words; with `overcommit:strict` all is promised at once.

mod scene;

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use scene::memory::{Collection, Object, PAGE, seed};
use scene::process::{fork, must_succeed};
use scene::{Folder, act, finish, is_played, play, spawn, this_binary, watch};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// Bytes that the store of this process takes on its disk.
fn disk_bytes() -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").expect("our files").flatten();
    let unlinked = files.filter_map(|file| std::fs::metadata(file.path()).ok());
    let unlinked = unlinked.filter(|status| status.is_file() && status.nlink() == 0);
    unlinked.map(|status| status.blocks() * 512).max().unwrap_or(0)
}

fn blocks(count: usize, size: usize) -> Vec<Object> {
    (0..count).map(|_| Object::new(size).expect("untouched memory costs nothing")).collect()
}

#[test]
fn five_untouched_blocks_of_a_gib_take_no_disk() {
    play("five_untouched_blocks_of_a_gib_take_no_disk", "ram:32M,store_size:6G", || {
        let all = blocks(5, GIB);
        assert!(deepheap::internal::is_managing());
        for block in &all {
            assert_eq!(block.get(GIB / 16), 0);
            block.set(GIB / 16, 7);
        }
        eprintln!("{} MiB of disk", disk_bytes() >> 20);
        assert!(disk_bytes() < 100 << 20, "{} bytes of disk", disk_bytes());
        assert!(all.iter().all(|block| block.get(GIB / 16) == 7));
        all.into_iter().for_each(Object::free);
    });
}

#[test]
fn what_strict_allocates_has_its_disk_or_is_refused() {
    let conf = "ram:32M,store_size:512M,overcommit:strict";
    play("what_strict_allocates_has_its_disk_or_is_refused", conf, || {
        let all = blocks(4, 100 * MIB);
        assert!(disk_bytes() > 400 << 20, "{} bytes of disk", disk_bytes());
        assert!(Object::new(100 * MIB).is_none());
        for (at, block) in all.iter().enumerate() {
            block.fill(at as u64);
        }
        all.iter().enumerate().for_each(|(at, block)| block.check(at as u64));
    });
}

#[test]
fn four_programs_with_far_more_than_the_store_that_they_do_not_touch_all_run() {
    const TEST: &str = "four_programs_with_far_more_than_the_store_that_they_do_not_touch_all_run";
    if is_played(TEST) {
        act("ram:32M,store_size:2G", || {
            let all = blocks(200, 100 * MIB);
            let seed = seed();
            // A share of the store, spread over the blocks.
            let shares: Vec<Object> =
                (0..50).map(|_| Object::new(6 * MIB).expect("room")).collect();
            for (at, share) in shares.iter().enumerate() {
                share.fill(seed + at as u64);
                all[at].set(at * PAGE, at as u64 + 1);
            }
            for (at, share) in shares.iter().enumerate() {
                share.check(seed + at as u64);
                assert_eq!(all[at].get(at * PAGE), at as u64 + 1);
            }
        });
    }
    let folder = Folder::new(TEST);
    let programs = [(); 4].map(|()| spawn(TEST, folder.path(), Command::new(this_binary())));
    for program in programs {
        let ending = finish(TEST, program);
        assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
    }
}

#[test]
fn a_touch_for_which_there_is_no_room_ends_the_program_with_a_sentence() {
    let name = "a_touch_for_which_there_is_no_room_ends_the_program_with_a_sentence";
    let ending = watch(name, "ram:16M,store_size:128M", || {
        let all = blocks(40, 10 * MIB);
        for (at, block) in all.iter().enumerate() {
            block.fill(at as u64);
            assert_eq!(block.wrong(at as u64), None);
        }
        unreachable!("400 MiB in a store of 128 MiB");
    });
    assert_eq!(ending.status.signal(), Some(libc::SIGBUS), "{}\n{}", ending.status, ending.said);
    let stops: Vec<_> = ending.said.lines().filter(|line| line.contains("stops")).collect();
    assert_eq!(stops.len(), 1, "{}", ending.said);
    for words in ["touched for the first time", "MiB are usable", "--store-size"] {
        assert!(stops[0].contains(words), "no '{words}' in {}", stops[0]);
    }
}

#[test]
fn a_touch_takes_the_room_of_free_pages_and_of_idle_objects() {
    let name = "a_touch_takes_the_room_of_free_pages_and_of_idle_objects";
    play(name, "ram:16M,store_size:128M", || {
        let seed = seed();
        let untouched = blocks(8, 10 * MIB);
        // What is free keeps its old bytes, in small runs and in pools.
        for round in 0..4 {
            Collection::filled(seed + round, 2000, 5 * PAGE).free();
            let objects: Vec<*mut u8> =
                (0..4000).map(|_| deepheap::objects::allocate(1, 2000)).collect();
            for &object in &objects {
                assert!(!object.is_null());
                // SAFETY: an object of 2000 bytes, which is freed here.
                unsafe {
                    object.write_bytes(1, 2000);
                    deepheap::free(object);
                }
            }
        }
        for (at, block) in untouched.iter().enumerate() {
            block.fill(seed + at as u64);
        }
        for (at, block) in untouched.iter().enumerate() {
            block.check(seed + at as u64);
        }
    });
}

#[test]
fn parent_and_child_touch_what_was_untouched_at_the_fork() {
    let name = "parent_and_child_touch_what_was_untouched_at_the_fork";
    play(name, "ram:16M,store_size:512M", || {
        let seed = seed();
        let before = Collection::filled(seed, 8000, PAGE);
        let untouched = blocks(30, 10 * MIB);
        let touch = |seed: u64, blocks: &[Object]| {
            for (at, block) in blocks.iter().enumerate() {
                block.fill(seed + at as u64);
            }
            for (at, block) in blocks.iter().enumerate() {
                block.check(seed + at as u64);
            }
            before.check();
        };
        for round in 0..3 {
            let child = fork(|| {
                touch(seed + 1000 + round, &untouched[..12]);
                let full = Collection::until_full(seed ^ 0xff, 3 * PAGE);
                full.check();
                full.free();
                touch(seed + 2000 + round, &untouched[4..14]);
            });
            touch(seed + 3000 + round, &untouched[5..15]);
            must_succeed(child);
            touch(seed + 4000 + round, &untouched[10..25]);
        }
    });
}

#[test]
fn room_that_was_touched_and_given_up_can_be_touched_again() {
    let name = "room_that_was_touched_and_given_up_can_be_touched_again";
    play(name, "ram:16M,store_size:128M", || {
        let seed = seed();
        let all = blocks(20, 40 * MIB);
        for (at, block) in all.iter().enumerate() {
            block.fill(seed + at as u64);
            block.check(seed + at as u64);
            // SAFETY: a live allocation that this object alone names.
            unsafe { deepheap::internal::give_up(block.address() as *mut u8, block.size()) };
            block.check_zero();
        }
    });
}

#[test]
fn a_tib_that_is_reserved_and_hardly_touched_takes_next_to_no_ram_and_no_disk() {
    let name = "a_tib_that_is_reserved_and_hardly_touched_takes_next_to_no_ram_and_no_disk";
    play(name, "ram:32M,store_size:256M", || {
        const TIB: usize = 1 << 40;
        let before = Collection::filled(seed(), 10_000, PAGE);
        let cost = scene::process::cost();
        for round in 0..3 {
            let usual = libc::PROT_READ | libc::PROT_WRITE;
            let address =
                deepheap::internal::map_area(TIB, usual, true).expect("address space") as *mut u8;
            let mapped = || deepheap::stats().expect("stats").mapped_bytes as usize;
            assert_eq!(mapped(), TIB);
            let word = |at: usize| address.wrapping_add(at / 8 * 8).cast::<u64>();
            let places = (0..1000).map(|index| (TIB / 1000) * index);
            for at in places.clone() {
                // SAFETY: within what was reserved, and nobody else's.
                unsafe {
                    assert_eq!(word(at).read_volatile(), 0);
                    word(at).write_volatile(at as u64 | 1);
                }
            }
            for at in places {
                // SAFETY: as above.
                assert_eq!(unsafe { word(at).read_volatile() }, at as u64 | 1);
            }
            let more = scene::process::cost().saturating_sub(cost);
            eprintln!("round {round}: {} KiB more", more >> 10);
            // Each touch costs a page, a page of our table and one or two of the kernel's tables.
            assert!(more < 24 * MIB, "{more} bytes");
            assert_eq!(deepheap::internal::unmap_area(address as usize, TIB), Some(()));
            assert_eq!(mapped(), 0);
        }
        assert!(disk_bytes() < 256 << 20);
        before.check();
        let again = deepheap::malloc(100 * MIB);
        assert!(!again.is_null());
        // SAFETY: allocated above.
        unsafe { deepheap::free(again) };
    });
}
