//! Snapshots of durable heaps: what they held can be read, and gone back to, in any later process.

mod scene;

use std::path::Path;

use deepheap::internal::inspect;
use deepheap::{CheckpointError, DurableHeap, DurableOptions, OpenError, free};
use scene::memory::{PAGE, Random, seed};
use scene::{play, play_in_turn};

const CONF: &str = "ram:64M,store_size:512M";
const OPTIONS: &str = "ram:24M,size:4G,store_size:1G";
/// More than the heap has RAM.
const BYTES: usize = 40 << 20;
const OBJECTS: usize = 20_000;

fn open_with(path: &Path, options: &str) -> Result<DurableHeap, OpenError> {
    DurableHeap::open(path, &DurableOptions::parse(options)?)
}

fn open(path: &Path) -> DurableHeap {
    open_with(path, OPTIONS).unwrap_or_else(|error| panic!("{error}"))
}

fn close(heap: DurableHeap) {
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}

/// Writes a mark on every page of a large block, and an object of each mark; a new list of objects
/// takes the place of the last one.
fn mark(heap: &DurableHeap, mark: u64) {
    let memory = match heap.root("memory") {
        new if new.is_null() => {
            let new = heap.malloc(BYTES);
            heap.set_root("memory", new).expect("a root");
            new
        }
        known => known,
    };
    let mut random = Random::new(mark);
    // SAFETY: memory of the heap: the block, then a list that nobody else uses.
    unsafe {
        for page in 0..BYTES / PAGE {
            let words = memory.add(page * PAGE).cast::<u64>();
            words.write(mark);
            words.add(1).write(random.next());
            words.add(2).write(random.next());
        }
        let mut old = heap.root("objects").cast::<[*mut u64; 2]>();
        while !old.is_null() {
            let next = old.read()[0];
            free(old.cast());
            old = next.cast();
        }
        let mut last: *mut u64 = std::ptr::null_mut();
        for _ in 0..OBJECTS {
            let size = 16 + random.below(600);
            let object: *mut u64 = match size % 2 {
                0 => heap.malloc(size).cast(),
                _ => heap.allocate_objects(1, size).cast(),
            };
            assert!(!object.is_null(), "room");
            object.write(last as u64);
            object.add(1).write(mark);
            last = object;
        }
        heap.set_root("objects", last.cast()).expect("a root");
    }
}

/// Whether all is as `mark` left it.
fn check(heap: &DurableHeap, mark: u64) {
    let memory = heap.root("memory");
    let mut random = Random::new(mark);
    // SAFETY: as `mark` left it.
    unsafe {
        for page in 0..BYTES / PAGE {
            let words = memory.add(page * PAGE).cast::<u64>();
            let found = (words.read(), words.add(1).read(), words.add(2).read());
            assert_eq!(found, (mark, random.next(), random.next()), "page {page}");
        }
        let mut object = heap.root("objects").cast::<u64>();
        let mut count = 0;
        while !object.is_null() {
            assert_eq!(object.add(1).read(), mark, "object {count}");
            object = object.read() as *mut u64;
            count += 1;
        }
        assert_eq!(count, OBJECTS);
    }
}

fn roll_back(path: &Path, name: &str) {
    DurableHeap::roll_back(path, name).unwrap_or_else(|error| panic!("{error}"));
}

fn check_file(path: &Path) {
    let fsck = inspect::fsck(path).unwrap_or_else(|error| panic!("{error}"));
    assert!(fsck.report.is_clean() && fsck.contradiction.is_none(), "{fsck:?}");
}

#[test]
fn a_snapshot_can_be_read_and_gone_back_to_whatever_the_heap_became() {
    play_in_turn(
        "a_snapshot_can_be_read_and_gone_back_to_whatever_the_heap_became",
        CONF,
        &[
            |path| {
                let heap = open(path);
                for number in 1..4 {
                    mark(&heap, number);
                    let kept = heap.snapshot(&format!("at-{number}"));
                    kept.unwrap_or_else(|error| panic!("{error}"));
                    check(&heap, number);
                }
                assert_eq!(heap.snapshots(), ["at-1", "at-2", "at-3"]);
                mark(&heap, 4);
                close(heap);
            },
            |path| {
                check_file(path);
                for number in [1, 3, 2] {
                    let options = format!("{OPTIONS},readonly,snapshot:at-{number}");
                    let heap = open_with(path, &options).unwrap_or_else(|error| panic!("{error}"));
                    check(&heap, number);
                    close(heap);
                }
                let heap = open(path);
                check(&heap, 4);
                // What the snapshots keep stays while the heap is written over.
                for number in 5..9 {
                    mark(&heap, number);
                    heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
                }
                close(heap);
            },
            |path| {
                roll_back(path, "at-2");
                check_file(path);
                let heap = open(path);
                check(&heap, 2);
                mark(&heap, 9);
                heap.snapshot("at-9").unwrap_or_else(|error| panic!("{error}"));
                close(heap);
            },
            |path| {
                for number in [3, 1, 9] {
                    roll_back(path, &format!("at-{number}"));
                    let heap = open(path);
                    check(&heap, number);
                    close(heap);
                }
                check_file(path);
                let before = inspect::inspect(path).expect("a heap");
                assert!(before.snapshot_bytes > 0 && before.snapshots.len() == 4, "{before:?}");
                for number in [1, 2, 3] {
                    let name = format!("at-{number}");
                    DurableHeap::remove_snapshot_of(path, &name).expect("it is there");
                }
                let compacted = DurableHeap::compact(path);
                let compacted = compacted.unwrap_or_else(|error| panic!("{error}"));
                eprintln!("{compacted:?}");
                assert!(compacted.disk_bytes < compacted.disk_bytes_before / 2);
                assert!(compacted.uncollected.is_none());
                check_file(path);
            },
            |path| {
                let heap = open(path);
                check(&heap, 9);
                heap.remove_snapshot("at-9").unwrap_or_else(|error| panic!("{error}"));
                for number in 10..14 {
                    mark(&heap, number);
                    heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
                }
                check(&heap, 13);
            },
            |path| {
                check(&open(path), 13);
            },
        ],
    );
}

#[test]
fn what_cannot_be_done_with_snapshots_is_refused_with_its_reason() {
    const NAME: &str = "what_cannot_be_done_with_snapshots_is_refused_with_its_reason";
    play(NAME, CONF, || {
        let path = scene::folder().join("heap");
        let heap = open(&path);
        mark(&heap, 1);
        for bad in ["", "two words", "a,b", &"x".repeat(65)] {
            let error = heap.snapshot(bad).expect_err("no name");
            eprintln!("{error}");
            assert!(error.is_about_name());
        }
        heap.snapshot("one").unwrap_or_else(|error| panic!("{error}"));
        let twice = heap.snapshot("one").expect_err("it is taken");
        assert!(twice.is_about_name());
        let none = heap.remove_snapshot("none").expect_err("there is none");
        assert!(none.is_about_name());
        assert!(matches!(DurableHeap::roll_back(&path, "one"), Err(OpenError::Locked)));
        assert!(matches!(DurableHeap::remove_snapshot_of(&path, "one"), Err(OpenError::Locked)));
        assert!(matches!(DurableHeap::compact(&path), Err(OpenError::Locked)));
        close(heap);
        let refused = |error: OpenError| {
            eprintln!("{error}");
            assert!(matches!(error, OpenError::Format(_)), "{error}");
        };
        refused(DurableHeap::roll_back(&path, "none").expect_err("there is none"));
        refused(DurableHeap::remove_snapshot_of(&path, "none").expect_err("there is none"));
        let none = format!("{OPTIONS},readonly,snapshot:none");
        refused(open_with(&path, &none).map(drop).expect_err("there is none"));
        let to_write = open_with(&path, &format!("{OPTIONS},snapshot:one")).map(drop);
        assert!(matches!(to_write, Err(OpenError::Options(_))));
        let missing = scene::folder().join("missing");
        assert!(matches!(DurableHeap::compact(&missing), Err(OpenError::File(_))));
        assert!(matches!(
            open_with(&missing, &format!("{OPTIONS},readonly")).map(drop),
            Err(OpenError::File(_))
        ));
        assert!(!missing.exists(), "to read makes nothing");
        let heap = open_with(&path, &format!("{OPTIONS},readonly,snapshot:one"));
        let heap = heap.unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(heap.snapshot("two"), Err(CheckpointError::File(_))));
        assert!(matches!(heap.remove_snapshot("one"), Err(CheckpointError::File(_))));
        check(&heap, 1);
        close(heap);
        check(&open(&path), 1);
    });
}

#[test]
fn a_disk_that_is_full_refuses_a_snapshot_and_the_heap_goes_on() {
    const NAME: &str = "a_disk_that_is_full_refuses_a_snapshot_and_the_heap_goes_on";
    play(NAME, CONF, || {
        let path = scene::folder().join("heap");
        let heap = open(&path);
        let mut random = Random::new(seed());
        mark(&heap, 1);
        heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
        // The tables of a snapshot lie behind the log.
        let limit = |bytes: u64| {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: a limit of this process.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        };
        let shown = durable_inspect_end(&path);
        for round in 0..6 {
            limit(shown + random.below(64) as u64 * 4096);
            let error = heap.snapshot("one").expect_err("no room");
            eprintln!("{error}");
            assert!(heap.snapshots().is_empty());
            limit(libc::RLIM_INFINITY);
            mark(&heap, 2 + round);
            heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
        }
        check(&heap, 7);
        heap.snapshot("one").unwrap_or_else(|error| panic!("{error}"));
        mark(&heap, 8);
        close(heap);
        check_file(&path);
        roll_back(&path, "one");
        check(&open(&path), 7);
    });
}

/// Where the areas of snapshots begin, or a little before: the end of the log.
fn durable_inspect_end(path: &Path) -> u64 {
    const LOG_BYTES: u64 = 1 << 30;
    // Before it the superblocks and tables, whose length the format gives.
    let device = deepheap_sys::files::direct_file::DirectFile::open_to_read(path).expect("a file");
    let device = deepheap_store::FileDevice::new(device).expect("a device");
    let file = deepheap_store::DurableFile::open_to_read(std::sync::Arc::new(device), None);
    (file.expect("a heap").log_start() + LOG_BYTES).next_multiple_of(8 << 20)
}

#[test]
fn a_compacted_file_has_little_more_than_what_lives_and_all_of_that() {
    const NAME: &str = "a_compacted_file_has_little_more_than_what_lives_and_all_of_that";
    const PAGES: usize = 16_000;
    const KEPT_OF: usize = 8;
    play(NAME, CONF, || {
        let path = scene::folder().join("heap");
        let options = "ram:24M,size:1G,store_size:512M,compress:off";
        let open = || {
            let options = DurableOptions::parse(options).expect("settings");
            DurableHeap::open(&path, &options).unwrap_or_else(|error| panic!("{error}"))
        };
        let close = |heap: DurableHeap| {
            // SAFETY: nobody uses it any more.
            unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
        };
        let word = |page: usize, at: usize| {
            ((page * 1000 + at) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let heap = open();
        let index = heap.malloc(PAGES * 8).cast::<*mut u64>();
        for page in 0..PAGES {
            let memory = heap.allocate_objects(1, 4096).cast::<u64>();
            assert!(!memory.is_null());
            // SAFETY: so large.
            unsafe {
                (0..512).for_each(|at| memory.add(at).write(word(page, at)));
                index.add(page).write(memory);
            }
        }
        heap.set_root("index", index.cast()).expect("a root");
        heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
        for page in (0..PAGES).filter(|page| page % KEPT_OF != 0) {
            // SAFETY: live, and nobody else's.
            unsafe { deepheap::free(index.add(page).read().cast()) };
        }
        close(heap);
        let compacted = DurableHeap::compact(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(compacted.uncollected.is_none(), "{compacted:?}");
        let (before, after) = (compacted.disk_bytes_before, compacted.disk_bytes);
        let length = std::fs::metadata(&path).expect("a file").len();
        let live = (PAGES / KEPT_OF * 4096) as u64;
        let tables = 24 << 20;
        eprintln!("{before} bytes of disk, then {after}; {live} live, file of {length}");
        assert!(after < before / 2 && after < live * 3 / 2 + tables, "{before}, {after}, {live}");
        let found = inspect::fsck(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(found.report.is_clean() && found.contradiction.is_none(), "{found:?}");
        let heap = open();
        let index = heap.root("index").cast::<*const u64>();
        for page in (0..PAGES).step_by(KEPT_OF) {
            // SAFETY: as it was written.
            unsafe {
                let memory = index.add(page).read();
                assert!((0..512).all(|at| memory.add(at).read() == word(page, at)), "{page}");
            }
        }
        close(heap);
    });
}
