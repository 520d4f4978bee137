//! Table pages: an object table that does not fit the budget leaves RAM and comes back, and every
//! object is found where it was.

mod scene;

use std::path::Path;

use deepheap::{DurableHeap, DurableOptions, objects};
use deepheap_sys::memory::zap::Zapper;
use scene::process::{fork, must_succeed};
use scene::{play, play_in_turn};

/// A heap whose table has 12 MiB.
const OBJECTS: usize = 3 << 20;
const OBJECT_BYTES: usize = 128;
/// One of so many is written: of each page of the table some are.
const EVERY: usize = 512;
const WRITTEN: usize = OBJECTS / EVERY;
/// More of the table than this is never in RAM.
const TABLE_MOST: u64 = 9 << 20;

fn object(start: *mut u8, number: usize) -> *mut u64 {
    start.wrapping_add(number * EVERY * objects::stride(OBJECT_BYTES)).cast()
}

/// Writes the objects of which `value` tells the number.
fn write(start: *mut u8, value: impl Fn(usize) -> Option<u64>) {
    for number in 0..WRITTEN {
        if let Some(value) = value(number) {
            // SAFETY: a word of a live object of the test's.
            unsafe { object(start, number).write_volatile(value) };
        }
    }
    let in_ram = deepheap::stats().expect("the runtime runs").object_table_bytes;
    assert!(in_ram < TABLE_MOST, "{in_ram} bytes of the table are in RAM");
}

fn check(start: *mut u8, value: impl Fn(usize) -> u64) {
    // Not in the order in which they were written.
    for step in 0..WRITTEN {
        let number = step * 7919 % WRITTEN;
        // SAFETY: a word of a live object of the test's.
        let found = unsafe { object(start, number).read_volatile() };
        assert_eq!(found, value(number), "object {number}");
    }
}

fn first(number: usize) -> u64 {
    number as u64 + 1
}

fn second(number: usize) -> u64 {
    if number.is_multiple_of(3) { first(number) * 1000 } else { first(number) }
}

fn third(number: usize) -> u64 {
    if number.is_multiple_of(7) { first(number) * 77 } else { second(number) }
}

#[test]
fn the_table_of_a_volatile_heap_leaves_ram_and_a_fork_keeps_it_for_both() {
    let test = "the_table_of_a_volatile_heap_leaves_ram_and_a_fork_keeps_it_for_both";
    play(test, "ram:16M,store_size:1200M", || {
        let start = objects::allocate(OBJECTS, OBJECT_BYTES);
        assert!(!start.is_null(), "a table that does not fit is no reason to refuse");
        write(start, |number| Some(first(number)));
        check(start, first);
        for _ in 0..2 {
            write(start, |number| Some(first(number)));
            let child = fork(|| {
                check(start, first);
                write(start, |number| number.is_multiple_of(7).then(|| third(number)));
                write(start, |number| (number % 7 > 0).then(|| second(number)));
                check(start, third);
            });
            write(start, |number| number.is_multiple_of(3).then(|| second(number)));
            check(start, second);
            must_succeed(child);
        }
        // SAFETY: nobody uses it any more.
        unsafe { deepheap::free(start) };
    });
}

/// Objects that are used again and again lie on every page of the table. Page buffer, its page
/// tables and cache have room enough beside all of the table. (The page tables of all that was
/// touched have not: 72 MiB.)
#[test]
fn a_table_that_fits_beside_the_objects_in_use_stays_in_ram() {
    let test = "a_table_that_fits_beside_the_objects_in_use_stays_in_ram";
    play(test, "ram:64M,store_size:2G", || {
        if !Zapper::new().frees_page_tables() {
            return eprintln!("SKIPPED {test}: needs Linux 6.14");
        }
        // The table has 36 MiB.
        const OBJECTS: usize = 9 << 20;
        const EVERY: usize = 256;
        const USED: usize = OBJECTS / EVERY;
        let start = objects::allocate(OBJECTS, OBJECT_BYTES);
        assert!(!start.is_null(), "a table that fits is no reason to refuse");
        let object = |number: usize| -> *mut u64 {
            start.wrapping_add(number * EVERY * objects::stride(OBJECT_BYTES)).cast()
        };
        let reads = || deepheap::stats().expect("the runtime runs").device_reads;
        let mut round = 0;
        let mut use_all = || {
            round += 1;
            let before = reads();
            for step in 0..USED {
                let object = object(step * 7919 % USED);
                // SAFETY: a word of a live object of the test's.
                unsafe { object.write_volatile(object.read_volatile() + round) };
            }
            reads() - before
        };
        let read = [(); 6].map(|()| use_all());
        println!("{read:?}");
        let last = *read.last().expect("six rounds");
        assert!(last < USED as u64 / 10, "{read:?} reads in rounds over {USED} objects");
        for number in 0..USED {
            // SAFETY: as above.
            let found = unsafe { object(number).read_volatile() };
            assert_eq!(found, 21, "object {number}");
        }
        // SAFETY: nobody uses it any more.
        unsafe { deepheap::free(start) };
    });
}

fn open(path: &Path) -> DurableHeap {
    let options = DurableOptions::parse("ram:16M,size:16G,store_size:1200M").expect("settings");
    DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn checkpoint(heap: &DurableHeap) {
    heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
}

/// Table pages leave RAM before, between and after checkpoints; what came after the last one is
/// lost, and nothing else.
#[test]
fn a_durable_heap_whose_table_leaves_ram_holds_what_its_last_checkpoint_held() {
    let test = "a_durable_heap_whose_table_leaves_ram_holds_what_its_last_checkpoint_held";
    play_in_turn(
        test,
        "ram:64M,store_size:512M",
        &[
            |path| {
                let heap = open(path);
                let start = heap.allocate_objects(OBJECTS, OBJECT_BYTES);
                heap.set_root("objects", start).expect("a root");
                write(start, |number| Some(first(number)));
                checkpoint(&heap);
                write(start, |number| number.is_multiple_of(3).then(|| second(number)));
                check(start, second);
                checkpoint(&heap);
                // Two that change hardly anything: what they are not handed they keep.
                write(start, |number| (number == 9).then_some(1));
                checkpoint(&heap);
                write(start, |number| (number == 9).then(|| second(9)));
                checkpoint(&heap);
                write(start, |number| number.is_multiple_of(5).then_some(u64::MAX));
                // SAFETY: nobody uses it any more.
                unsafe { heap.abandon() };
            },
            |path| {
                let heap = open(path);
                let in_ram = deepheap::stats().expect("the runtime runs").object_table_bytes;
                assert!(in_ram < 1 << 20, "{in_ram} bytes of the table are in RAM at once");
                let start = heap.root("objects");
                check(start, second);
                write(start, |number| number.is_multiple_of(7).then(|| third(number)));
                checkpoint(&heap);
                checkpoint(&heap);
                check(start, third);
                write(start, |number| number.is_multiple_of(2).then_some(u64::MAX));
                // SAFETY: as above.
                unsafe { heap.abandon() };
            },
            |path| {
                let options = "ram:16M,readonly";
                let options = DurableOptions::parse(options).expect("settings");
                let reader = DurableHeap::open(path, &options).expect("a reader");
                check(reader.root("objects"), third);
                // SAFETY: as above.
                unsafe { reader.close() }.unwrap_or_else(|error| panic!("{error}"));
                let heap = open(path);
                let start = heap.root("objects");
                check(start, third);
                // SAFETY: as above.
                unsafe { deepheap::free(start) };
                let again = heap.allocate_objects(OBJECTS, OBJECT_BYTES);
                heap.set_root("objects", again).expect("a root");
                write(again, |number| Some(first(number)));
                // SAFETY: as above.
                unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
            },
            |path| check(open(path).root("objects"), first),
        ],
    );
}
