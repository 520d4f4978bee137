//! What a durable heap refuses, with which words; and that its last checkpoint outlives all of it.

mod scene;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use deepheap::internal::inspect;
use deepheap::{CheckpointError, DurableHeap, DurableOptions, OpenError};
use scene::{Ending, Folder, act, finish, folder, is_played, play, spawn, this_binary};

const CONF: &str = "ram:64M,store_size:512M";
const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn try_open(path: &Path, options: &str) -> Result<DurableHeap, OpenError> {
    DurableOptions::parse(options).and_then(|options| DurableHeap::open(path, &options))
}

fn open(path: &Path, options: &str) -> DurableHeap {
    try_open(path, options).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(path: &Path, options: &str) -> OpenError {
    let error = try_open(path, options).map(|_| ()).expect_err("it is refused");
    eprintln!("{}: {error}", path.display());
    error
}

fn close(heap: DurableHeap) {
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}

/// Noise that cannot be compressed, of this number.
fn write(memory: *mut u8, bytes: usize, number: u64) {
    for word in 0..bytes / 8 {
        // SAFETY: the caller's memory is so long.
        unsafe { memory.cast::<u64>().add(word).write(noise(word, number)) };
    }
}

fn check(memory: *const u8, bytes: usize, number: u64) {
    for word in 0..bytes / 8 {
        // SAFETY: as above.
        let found = unsafe { memory.cast::<u64>().add(word).read() };
        assert_eq!(found, noise(word, number), "word {word}");
    }
}

fn noise(word: usize, number: u64) -> u64 {
    let mut mixed = (word as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

/// A small file system in RAM that only this process sees; none without root.
fn small_disk(bytes: usize) -> Option<PathBuf> {
    let path = folder().join("disk");
    std::fs::create_dir(&path).expect("a folder");
    let at = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let size = CString::new(format!("size={bytes}")).expect("an option");
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: strings that outlive the calls; the mounts end with this process.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                private,
                std::ptr::null(),
            ) == 0
            && libc::mount(
                c"none".as_ptr(),
                at.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                size.as_ptr().cast(),
            ) == 0
    };
    if !mounted {
        eprintln!("SKIPPED: needs root: {}", std::io::Error::last_os_error());
    }
    mounted.then_some(path)
}

/// The file system takes no more writes.
fn make_read_only(disk: &Path) {
    let at = CString::new(disk.as_os_str().as_bytes()).expect("a path");
    let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
    // SAFETY: strings that outlive the call.
    let done = unsafe {
        libc::mount(c"none".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), flags, std::ptr::null())
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// So much of the file is left to the next checkpoint that little is for what comes before it. How
/// much comes depends on the changed pages that stay in RAM: the cache drops pages without a change
/// first. So the border does not move.
const FULL: &str = "ram:40M,size:256M,store_size:128M,compress:off,page_buffer:25%";

/// Allocates until nothing more is given out, and keeps it by a checkpoint.
fn fill(heap: &DurableHeap) -> (*mut u8, usize) {
    let bytes = (1..256).rev().map(|mib| mib * MIB);
    let found =
        bytes.map(|bytes| (heap.malloc(bytes), bytes)).find(|(memory, _)| !memory.is_null());
    let (memory, bytes) = found.expect("room");
    eprintln!("{} MiB", bytes / MIB);
    write(memory, bytes, 1);
    heap.set_root("memory", memory).expect("a root");
    heap.set_root("end", memory.wrapping_add(bytes - 8)).expect("a root");
    heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
    (memory, bytes)
}

/// Writes every other page after each checkpoint, so that half of what each keeps is dead.
fn wear(heap: &DurableHeap, memory: *mut u8, bytes: usize) {
    for number in 2..8 {
        for page in (number as usize % 2..bytes / PAGE).step_by(2) {
            write(memory.wrapping_add(page * PAGE), PAGE, number);
        }
        heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
    }
}

fn check_worn(path: &Path) {
    let heap = open(path, "ram:16M");
    let (memory, end) = (heap.root("memory"), heap.root("end"));
    for page in 0..(end as usize + 8 - memory as usize) / PAGE {
        check(memory.wrapping_add(page * PAGE), PAGE, 6 + page as u64 % 2);
    }
    close(heap);
}

/// Plays two acts in one folder, each in a process of its own; how the first one ended. The second
/// one must succeed.
fn watch_first(test: &str, acts: [fn(&Path); 2]) -> Ending {
    const ACT: &str = "DEEPHEAP_REFUSED_ACT";
    if is_played(test) {
        let is_second = std::env::var_os(ACT).is_some();
        act(CONF, || acts[usize::from(is_second)](&folder().join("heap")));
    }
    let folder = Folder::new(test);
    let first = finish(test, spawn(test, folder.path(), Command::new(this_binary())));
    let mut command = Command::new(this_binary());
    command.env(ACT, "second");
    let second = finish(test, spawn(test, folder.path(), command));
    print!("{}{}", first.said, second.said);
    assert!(second.status.success(), "{}\n{}", second.status, second.said);
    first
}

#[test]
fn an_access_for_which_the_file_has_no_room_ends_with_its_line_and_the_checkpoint_is_whole() {
    const NAME: &str =
        "an_access_for_which_the_file_has_no_room_ends_with_its_line_and_the_checkpoint_is_whole";
    let first = watch_first(
        NAME,
        [
            |path| {
                let heap = open(path, FULL);
                let (memory, bytes) = fill(&heap);
                wear(&heap, memory, bytes);
                for number in 10..13 {
                    write(memory, bytes, number);
                }
                panic!("there was room for all that");
            },
            check_worn,
        ],
    );
    assert_eq!(first.status.signal(), Some(libc::SIGBUS), "{}\n{}", first.status, first.said);
    assert!(first.said.contains("is full of its last checkpoint"), "{}", first.said);
}

#[test]
fn where_checkpoints_are_made_by_themselves_a_full_file_makes_one() {
    const NAME: &str = "where_checkpoints_are_made_by_themselves_a_full_file_makes_one";
    play(NAME, CONF, || {
        let path = folder().join("heap");
        let heap = open(&path, &format!("{FULL},checkpoint:60min"));
        let (memory, bytes) = fill(&heap);
        wear(&heap, memory, bytes);
        for number in 10..13 {
            write(memory, bytes, number);
        }
        check(memory, bytes, 12);
        close(heap);
    });
}

/// Changes so many parts of all pages at random from one checkpoint to the next. Each segment keeps
/// something alive: only copies make room.
fn change_at_random(options: &str, parts: impl Iterator<Item = usize>) {
    let heap = open(&folder().join("heap"), options);
    let (memory, bytes) = fill(&heap);
    let pages = bytes / PAGE;
    let page_at = |page: usize| memory.wrapping_add(page * PAGE);
    let mut held = vec![1; pages];
    for (number, part) in (2..).zip(parts) {
        for at in 0..pages / part {
            let page = noise(at, number) as usize % pages;
            write(page_at(page), PAGE, number);
            held[page] = number;
        }
        heap.checkpoint().unwrap_or_else(|error| panic!("checkpoint {number}: {error}"));
    }
    for (page, &number) in held.iter().enumerate() {
        let first = if number == 1 { page * PAGE / 8 } else { 0 };
        for word in 0..PAGE / 8 {
            // SAFETY: memory of the heap.
            let found = unsafe { page_at(page).cast::<u64>().add(word).read() };
            assert_eq!(found, noise(first + word, number), "page {page}, word {word}");
        }
    }
    close(heap);
}

#[test]
fn changes_at_random_never_leave_a_file_full_of_its_last_checkpoint() {
    const NAME: &str = "changes_at_random_never_leave_a_file_full_of_its_last_checkpoint";
    play(NAME, CONF, || {
        change_at_random(FULL, [16; 38].into_iter().chain([4; 10]));
    });
}

#[test]
fn nor_where_all_of_the_heap_is_in_ram() {
    play("nor_where_all_of_the_heap_is_in_ram", "ram:160M,store_size:512M", || {
        let options = "ram:100M,size:256M,store_size:128M,compress:off";
        change_at_random(options, [16; 38].into_iter().chain([2; 6]));
    });
}

#[test]
fn a_full_disk_in_the_middle_of_a_checkpoint_leaves_the_last_one() {
    const NAME: &str = "a_full_disk_in_the_middle_of_a_checkpoint_leaves_the_last_one";
    play(NAME, CONF, || {
        let Some(disk) = small_disk(96 * MIB) else { return };
        let path = disk.join("heap");
        let heap = open(&path, "ram:16M,size:1G,compress:off");
        let bytes = 8 * MIB;
        let memory = heap.malloc(bytes);
        write(memory, bytes, 1);
        heap.set_root("memory", memory).expect("a root");
        heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
        // All of the disk but a bit, so that some of the checkpoint fits.
        let filler = disk.join("filler");
        std::fs::write(&filler, vec![1; 128 * MIB]).expect_err("the disk is full");
        write(memory, bytes, 2);
        let refused = heap.checkpoint().expect_err("no room");
        eprintln!("{refused}");
        assert!(matches!(refused, CheckpointError::File(_) | CheckpointError::Cut(_)));
        let fsck = inspect::fsck(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(fsck.report.is_clean() && fsck.contradiction.is_none(), "{fsck:?}");
        std::fs::remove_file(&filler).expect("a file");
        heap.checkpoint().unwrap_or_else(|error| panic!("after there was room: {error}"));
        check(memory, bytes, 2);
        close(heap);
        let heap = open(&path, "ram:16M");
        check(heap.root("memory"), bytes, 2);
        close(heap);
    });
}

#[test]
fn a_heap_on_a_file_system_without_writes_can_be_read() {
    const NAME: &str = "a_heap_on_a_file_system_without_writes_can_be_read";
    play(NAME, CONF, || {
        let Some(disk) = small_disk(96 * MIB) else { return };
        let path = disk.join("heap");
        let heap = open(&path, "ram:16M,size:1G");
        let memory = heap.malloc(MIB);
        write(memory, MIB, 1);
        heap.set_root("memory", memory).expect("a root");
        close(heap);
        make_read_only(&disk);
        for path in [&path, &disk.join("new")] {
            let refused = refusal(path, "ram:16M");
            assert_eq!(refused.errno(), libc::EROFS);
            assert!(refused.to_string().contains("readonly"), "{refused}");
        }
        let heap = open(&path, "ram:16M,readonly");
        check(heap.root("memory"), MIB, 1);
        close(heap);
    });
}

#[test]
fn each_file_that_is_no_heap_of_ours_gets_its_sentence_and_is_left_alone() {
    const NAME: &str = "each_file_that_is_no_heap_of_ours_gets_its_sentence_and_is_left_alone";
    play(NAME, CONF, || {
        let refused = |name: &str, bytes: Vec<u8>, errno: i32, words: &str| {
            let path = folder().join(name);
            std::fs::write(&path, &bytes).expect("a file");
            let error = refusal(&path, "ram:16M");
            assert_eq!(error.errno(), errno, "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(std::fs::read(&path).expect("a file"), bytes, "left alone");
        };
        refused("text", b"no heap".to_vec(), libc::EILSEQ, "not a deepheap heap");
        refused("noise", vec![7; MIB], libc::EILSEQ, "not a deepheap heap");
        let path = folder().join("heap");
        let heap = open(&path, "ram:16M,size:1G");
        assert_eq!(refusal(&path, "ram:16M").errno(), libc::EBUSY);
        close(heap);
        let whole = std::fs::read(&path).expect("a file");
        let mut short = whole.clone();
        short.truncate(MIB);
        refused("short", short, libc::EILSEQ, "damaged");
        let mut newer = whole;
        for at in [8, (64 << 10) + 8] {
            newer[at] = 99;
        }
        for start in [0, 64 << 10] {
            let sum = xxhash_rust::xxh3::xxh3_64(&newer[start..start + 4088]);
            newer[start + 4088..start + 4096].copy_from_slice(&sum.to_le_bytes());
        }
        refused("newer", newer, libc::EILSEQ, "version 99");
    });
}

#[test]
fn a_new_heap_whose_address_is_taken_leaves_no_file() {
    const NAME: &str = "a_new_heap_whose_address_is_taken_leaves_no_file";
    play(NAME, CONF, || {
        let taken = 0x3100_0000_0000usize;
        // SAFETY: new memory, at a place where nothing is.
        let there = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            libc::mmap(taken as *mut _, 4096, libc::PROT_NONE, flags, -1, 0)
        };
        assert_eq!(there as usize, taken);
        let path = folder().join("heap");
        let options = format!("ram:16M,size:1G,address:{taken:x}");
        let refused = refusal(&path, &options);
        assert_eq!(refused.errno(), libc::EADDRINUSE);
        assert!(refused.to_string().contains("address:"), "{refused}");
        assert!(!path.exists(), "an empty file is left");
        // One that was there already stays, empty as it was.
        std::fs::write(&path, b"").expect("a file");
        refusal(&path, &options);
        assert_eq!(std::fs::metadata(&path).expect("it stays").len(), 0);
        close(open(&path, "ram:16M,size:1G"));
    });
}
