//! Durable heaps that are opened to be read: each stays what it was, beside a process that writes
//! the heap, is killed and comes back.

mod scene;

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use deepheap::{CheckpointError, DurableHeap, DurableOptions, OpenError, free, realloc};
use scene::memory::{PAGE, Random, seed};
use scene::{Folder, act, finish, is_played, play_in_turn, spawn, this_binary};

const CONF: &str = "ram:64M,store_size:512M";
// Compressed, all of it would be in RAM: nothing would be read again.
const OPTIONS: &str = "ram:24M,size:4G,store_size:320M,compress:off";
const READONLY: &str = "ram:24M,readonly,compress:off";
/// How long readers and writer may take, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(900);
/// More than the heap has RAM.
const BYTES: usize = 32 << 20;
const PAGES: usize = BYTES / PAGE;

fn open(path: &Path, options: &str) -> DurableHeap {
    let options = DurableOptions::parse(options).expect("settings");
    DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn close(heap: DurableHeap) {
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}

/// The pages of the heap's block, which is made if there is none.
fn memory(heap: &DurableHeap) -> *mut u64 {
    let known = heap.root("memory");
    if !known.is_null() {
        return known.cast();
    }
    let new = heap.malloc(BYTES);
    heap.set_root("memory", new).expect("a root");
    new.cast()
}

fn word(memory: *mut u64, page: usize) -> *mut u64 {
    // SAFETY: within the block.
    unsafe { memory.add(page * (PAGE / 8)) }
}

/// Writes a number on every page.
fn mark(heap: &DurableHeap, number: u64) {
    let memory = memory(heap);
    // SAFETY: memory of the heap.
    (0..PAGES).for_each(|page| unsafe {
        word(memory, page).write(number);
        word(memory, page).add(1).write(number.wrapping_mul(page as u64 + 1));
    });
}

/// The number that is on every page.
fn check(heap: &DurableHeap) -> u64 {
    let memory = memory(heap);
    // SAFETY: memory of the heap.
    unsafe {
        let number = memory.read();
        for page in 0..PAGES {
            let found = (word(memory, page).read(), word(memory, page).add(1).read());
            assert_eq!(found, (number, number.wrapping_mul(page as u64 + 1)), "page {page}");
        }
        number
    }
}

#[test]
fn a_heap_that_is_read_is_as_it_was_left_and_its_file_is_not_touched() {
    const NAME: &str = "a_heap_that_is_read_is_as_it_was_left_and_its_file_is_not_touched";
    play_in_turn(
        NAME,
        CONF,
        &[
            |path| {
                let heap = open(path, OPTIONS);
                mark(&heap, 7);
                let zeros = heap.malloc(1 << 20);
                heap.set_root("zeros", zeros).expect("a root");
                let objects = heap.allocate_objects(100, 4096);
                heap.set_root("objects", objects).expect("a root");
                close(heap);
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o400))
                    .expect("a file");
            },
            |path| {
                let before = std::fs::metadata(path).expect("a file");
                let heap = open(path, READONLY);
                for _ in 0..3 {
                    assert_eq!(check(&heap), 7);
                }
                let zeros = heap.root("zeros");
                // SAFETY: memory of the heap.
                let zeros = unsafe { std::slice::from_raw_parts(zeros, 1 << 20) };
                assert!(zeros.iter().all(|&byte| byte == 0));
                assert!(heap.malloc(10).is_null() && heap.allocate_objects(3, 5000).is_null());
                assert!(heap.aligned_alloc(64, 100).is_null());
                let set = heap.set_root("other", heap.root("memory"));
                assert_eq!(set, Err(deepheap::Errno::EROFS));
                let made = heap.checkpoint();
                assert!(matches!(made, Err(CheckpointError::File(_))), "{made:?}");
                let memory = heap.root("memory");
                // SAFETY: live memory of the heap.
                unsafe {
                    assert!(realloc(memory, 2 * BYTES).is_null());
                    assert_eq!(realloc(memory, BYTES / 2), memory);
                    let objects = heap.root("objects");
                    assert!(realloc(objects, 200 * 4096).is_null());
                    free(objects);
                    free(memory);
                }
                assert_eq!(check(&heap), 7, "what is freed stays");
                close(heap);
                let heap = open(path, READONLY);
                assert_eq!(check(&heap), 7);
                let after = std::fs::metadata(path).expect("a file");
                let what = |it: &std::fs::Metadata| {
                    (it.len(), it.blocks(), it.mtime(), it.mtime_nsec(), it.ctime_nsec())
                };
                assert_eq!(what(&before), what(&after));
            },
        ],
    );
}

#[test]
fn a_write_to_a_heap_that_is_read_ends_the_program_with_sigsegv() {
    const NAME: &str = "a_write_to_a_heap_that_is_read_ends_the_program_with_sigsegv";
    for is_resident in [false, true] {
        let ending = scene::watch(NAME, CONF, || {
            let path = scene::folder().join("heap");
            let heap = open(&path, OPTIONS);
            mark(&heap, 3);
            close(heap);
            let heap = open(&path, READONLY);
            let at = word(memory(&heap), 100);
            if is_resident {
                // SAFETY: memory of the heap.
                assert_eq!(unsafe { at.read_volatile() }, 3);
            }
            // SAFETY: the point is that it ends the process.
            unsafe { at.write_volatile(4) };
        });
        assert_eq!(ending.status.signal(), Some(libc::SIGSEGV), "{}", ending.said);
    }
}

/// Writes the next number and makes a checkpoint, for ever.
fn write_until_killed(path: &Path) {
    let heap = open(path, OPTIONS);
    let first = if heap.root("memory").is_null() { 1 } else { check(&heap) + 1 };
    for number in first.. {
        mark(&heap, number);
        heap.checkpoint().unwrap_or_else(|error| panic!("{number}: {error}"));
        let (told, new) = (scene::folder().join("told"), scene::folder().join("new"));
        std::fs::write(&new, number.to_string()).expect("a file");
        std::fs::rename(new, told).expect("a file");
    }
}

/// The last number of which the writer has said that it is durable.
fn told(folder: &Path) -> u64 {
    let told = std::fs::read_to_string(folder.join("told"));
    told.map_or(0, |text| text.parse().expect("a number"))
}

/// Opens the heap, reads it for a while, again and again, and says what it found.
fn read_for_a_while(path: &Path) {
    let options = DurableOptions::parse(READONLY).expect("settings");
    let least = told(&scene::folder());
    let heap = match DurableHeap::open(path, &options) {
        Ok(heap) => heap,
        // The writer has not made it yet, or makes checkpoints all the time.
        Err(OpenError::File(_) | OpenError::Restless) => return,
        Err(OpenError::Format(deepheap_store::DurableError::NotAHeap)) => return,
        Err(error) => panic!("{error}"),
    };
    if heap.root("memory").is_null() {
        return;
    }
    let seed = u64::from(std::process::id()) ^ seed();
    let end = Instant::now() + Duration::from_millis(Random::new(seed).below(2500) as u64);
    let first = check(&heap);
    assert!(first >= least, "{first} of {least}");
    let mut rounds = 1;
    while Instant::now() < end {
        // The writer is to go on meanwhile.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(check(&heap), first);
        rounds += 1;
    }
    let said = scene::folder().join(format!("read-{}", std::process::id()));
    std::fs::write(said, format!("{first} {rounds}")).expect("a file");
}

/// Which checkpoints the readers have read that ended well, and how often in all.
fn readings(folder: &Path) -> (BTreeSet<u64>, u64) {
    let (mut numbers, mut rounds) = (BTreeSet::new(), 0);
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        if !entry.file_name().to_string_lossy().starts_with("read-") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).expect("a file");
        // One that is just being written counts later.
        let Some((number, read)) = text.split_once(' ') else { continue };
        numbers.insert(number.parse().expect("a number"));
        rounds += read.parse::<u64>().expect("a number");
    }
    (numbers, rounds)
}

/// How often the writer is killed.
fn kills() -> usize {
    let kills = std::env::var("DEEPHEAP_KILLS").ok();
    kills.map_or(4, |kills| kills.parse().expect("DEEPHEAP_KILLS is a number"))
}

#[test]
fn readers_keep_what_they_opened_beside_a_writer_that_is_killed_and_comes_back() {
    const NAME: &str =
        "readers_keep_what_they_opened_beside_a_writer_that_is_killed_and_comes_back";
    const ROLE: &str = "DEEPHEAP_TEST_ROLE";
    const READERS: usize = 3;
    if is_played(NAME) {
        let path = scene::folder().join("heap");
        let reads = std::env::var(ROLE).is_ok_and(|role| role == "reader");
        act(CONF, || if reads { read_for_a_while(&path) } else { write_until_killed(&path) });
    }
    let folder = Folder::new(NAME);
    let start = |role: &str| {
        let mut command = Command::new(this_binary());
        command.env(ROLE, role);
        spawn(NAME, folder.path(), command)
    };
    let mut random = Random::new(seed());
    let mut writer = start("writer");
    // It is killed some time after its first checkpoint.
    let (mut known, mut next_kill) = (0, None);
    let mut readers: Vec<Child> = Vec::new();
    let (mut kills, mut ended) = (0, 0);
    let judge = |reader: Child| {
        let ending = finish(NAME, reader);
        assert!(ending.status.success(), "a reader: {}\n{}", ending.status, ending.said);
    };
    // On, until readers have seen more than one checkpoint: on a slow machine that takes longer.
    let end = Instant::now() + PATIENCE;
    while kills < self::kills() || readings(folder.path()).0.len() < 2 {
        assert!(Instant::now() < end, "{kills} kills, {ended} readers: {:?}", told(folder.path()));
        while readers.len() < READERS {
            readers.push(start("reader"));
        }
        std::thread::sleep(Duration::from_millis(20));
        for at in (0..readers.len()).rev() {
            if readers[at].try_wait().expect("a child").is_some() {
                judge(readers.swap_remove(at));
                ended += 1;
            }
        }
        if next_kill.is_none() && told(folder.path()) > known {
            let pause = Duration::from_millis(random.below(2000) as u64);
            next_kill = Some(Instant::now() + pause);
        }
        if next_kill.is_some_and(|at| Instant::now() > at) {
            let by_itself = writer.try_wait().expect("a child");
            writer.kill().expect("a child");
            let ending = finish(NAME, writer);
            assert!(by_itself.is_none(), "it ended by itself: {}", ending.said);
            writer = start("writer");
            kills += 1;
            (known, next_kill) = (told(folder.path()), None);
        }
    }
    readers.into_iter().for_each(judge);
    writer.kill().expect("a child");
    finish(NAME, writer);
    let (numbers, rounds) = readings(folder.path());
    println!("{kills} kills, {ended} readers, {rounds} readings of {} checkpoints", numbers.len());
    assert!(numbers.len() > 1, "{numbers:?}");
}
