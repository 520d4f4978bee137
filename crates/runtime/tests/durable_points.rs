//! Durable points: what is done to a durable heap is ended by SIGKILL before and after system calls
//! that change its file, chosen by what they change; and system calls are refused, one or all from
//! one on. Each time the heap is opened again and compared.
//!
//! `DEEPHEAP_POINTS=all` takes every call, or a sample of so many.

mod scene;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use deepheap::internal::inspect;
use deepheap::{DurableHeap, DurableOptions, free};
use deepheap_child::traced::{self, Call, GoOn};
use scene::memory::{PAGE, Random, seed};
use scene::{Folder, act, finish, is_played, spawn, this_binary};

const CONF: &str = "ram:64M,store_size:512M";
const OPTIONS: &str = "ram:20M,size:1G,store_size:256M,compress:off";
const READONLY: &str = "ram:20M,readonly,compress:off";
/// A process hangs that has used so much processor time, or next to none meanwhile: where others
/// want the processors, too, it may last longer.
const PATIENCE: Duration = Duration::from_secs(60);
const LEAST_TICKS: u64 = 5;

// ---- The heap: objects of a page, each filled by its number and a generation.

const PAGES: usize = 2000;
const SMALL: usize = 300;
const SNAPSHOT: &str = "kept";

fn open(path: &Path, options: &str) -> DurableHeap {
    let options = DurableOptions::parse(options).expect("settings");
    DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn close(heap: DurableHeap) {
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}

fn word(generation: u64, page: usize, at: usize) -> u64 {
    ((generation << 32) + (page * 1000 + at) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The list of the objects: the generation, then an address for each; null for none.
fn list(heap: &DurableHeap) -> *mut u64 {
    match heap.root("list").cast::<u64>() {
        new if new.is_null() => {
            let new = heap.malloc((PAGES + 1) * 8).cast::<u64>();
            assert!(!new.is_null(), "room");
            // SAFETY: so large.
            unsafe { new.write_bytes(0, PAGES + 1) };
            heap.set_root("list", new.cast()).expect("a root");
            new
        }
        known => known,
    }
}

/// Which pages a generation has.
type Has = fn(u64, usize) -> bool;

/// Makes the heap what it is in a generation: objects made, written and freed.
fn become_generation(heap: &DurableHeap, generation: u64, has: Has) {
    let list = list(heap);
    for page in 0..PAGES {
        // SAFETY: the list, and objects that are only in it.
        unsafe {
            let place = list.add(1 + page).cast::<*mut u64>();
            if !has(generation, page) {
                free(place.read().cast());
                place.write(core::ptr::null_mut());
                continue;
            }
            if place.read().is_null() {
                place.write(heap.allocate_objects(1, PAGE).cast());
            }
            let object = place.read();
            assert!(!object.is_null(), "room");
            (0..PAGE / 8).for_each(|at| object.add(at).write(word(generation, page, at)));
        }
    }
    // SAFETY: the list.
    unsafe { list.write(generation) };
}

/// The generation that the heap is in, whole; 0: none was ever there.
fn generation(heap: &DurableHeap, has: Has) -> u64 {
    let list = heap.root("list").cast::<u64>();
    if list.is_null() {
        return 0;
    }
    // SAFETY: as `become_generation` left it.
    unsafe {
        let generation = list.read();
        for page in 0..PAGES {
            let object = list.add(1 + page).cast::<*const u64>().read();
            assert_eq!(!object.is_null(), generation > 0 && has(generation, page), "{page}");
            if !object.is_null() {
                let right = |at| object.add(at).read() == word(generation, page, at);
                assert!((0..PAGE / 8).all(right), "page {page} of {generation}");
            }
        }
        generation
    }
}

fn check_file(path: &Path) {
    let fsck = inspect::fsck(path).unwrap_or_else(|error| panic!("{error}"));
    assert!(fsck.report.is_clean() && fsck.contradiction.is_none(), "{fsck:?}");
}

// ---- Roles: what a process does with the heap of its folder.

const ROLE: &str = "DEEPHEAP_TEST_ROLE";

fn put(name: &str, text: &str) {
    let (file, new) = (scene::folder().join(name), scene::folder().join("new"));
    fs::write(&new, text).expect("a file");
    fs::rename(new, file).expect("a file");
}

fn await_file(file: &Path) -> String {
    let end = Instant::now() + PATIENCE;
    while !file.exists() {
        assert!(Instant::now() < end, "{}", file.display());
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::read_to_string(file).expect("a file")
}

/// Of compacting: all pages; then few of them.
fn sparse(generation: u64, page: usize) -> bool {
    match generation {
        1 => page < SMALL,
        2 => true,
        _ => page.is_multiple_of(7) || page > PAGES - 200,
    }
}

fn make_sparse(path: &Path, has_snapshot: bool) {
    let heap = open(path, OPTIONS);
    become_generation(&heap, 1, sparse);
    if has_snapshot {
        heap.snapshot(SNAPSHOT).unwrap_or_else(|error| panic!("{error}"));
    }
    for number in [2, 3] {
        become_generation(&heap, number, sparse);
        heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
    }
    close(heap);
}

fn check_sparse(path: &Path) {
    check_file(path);
    let heap = open(path, READONLY);
    assert_eq!(generation(&heap, sparse), 3);
    close(heap);
    if scene::folder().join("../has-snapshot").exists() {
        let heap = open(path, &format!("{READONLY},snapshot:{SNAPSHOT}"));
        assert_eq!(generation(&heap, sparse), 1);
        close(heap);
    }
}

fn compact(path: &Path) {
    match DurableHeap::compact(path) {
        Ok(done) => put("compacted", &format!("{} {:?}", done.disk_bytes, done.uncollected)),
        Err(error) => put("compacted", &format!("refused: {error}")),
    }
}

/// Reads from when it is told to until it is told to end.
fn read_sparse(path: &Path) {
    await_file(&scene::folder().join("begin"));
    let heap = open(path, READONLY);
    assert_eq!(generation(&heap, sparse), 3);
    put("reads", "");
    await_file(&scene::folder().join("end"));
    assert_eq!(generation(&heap, sparse), 3);
    close(heap);
}

/// Of checkpoints: a third of the pages comes and goes.
fn shifting(generation: u64, page: usize) -> bool {
    !(page as u64 + generation).is_multiple_of(3)
}

const ROUNDS: u64 = 4;

/// Goes on by some generations, each with a checkpoint; takes a snapshot and removes it. Says what
/// is durable.
fn work(path: &Path) {
    let heap = open(path, OPTIONS);
    let first = generation(&heap, shifting) + 1;
    for number in first..first + ROUNDS {
        become_generation(&heap, number, shifting);
        match (number - first, heap.snapshots().is_empty()) {
            (1, true) => drop(heap.snapshot(SNAPSHOT).unwrap_or_else(|error| panic!("{error}"))),
            (2, false) => {
                heap.remove_snapshot(SNAPSHOT).unwrap_or_else(|error| panic!("{error}"));
                continue;
            }
            _ => drop(heap.checkpoint().unwrap_or_else(|error| panic!("{error}"))),
        }
        put("durable", &number.to_string());
    }
    close(heap);
    put("durable", &(first + ROUNDS - 1).to_string());
}

/// Says which generation is there; none if there is no heap.
fn look(path: &Path) {
    let options = DurableOptions::parse(OPTIONS).expect("settings");
    let durable = fs::read_to_string(scene::folder().join("durable")).ok();
    let durable = durable.map_or(0, |text| text.parse::<u64>().expect("a number"));
    match DurableHeap::open(path, &options) {
        Ok(heap) => {
            let found = generation(&heap, shifting);
            assert!((durable..=durable + 2).contains(&found), "{found} of {durable}");
            for name in heap.snapshots() {
                assert_eq!(name, SNAPSHOT);
            }
            let is_kept = !heap.snapshots().is_empty();
            // It can be gone on with.
            become_generation(&heap, found + 1, shifting);
            close(heap);
            check_file(path);
            if is_kept {
                let heap = open(path, &format!("{READONLY},snapshot:{SNAPSHOT}"));
                assert!(generation(&heap, shifting) <= found);
                close(heap);
            }
        }
        // Ended while it made the file: nothing was promised.
        Err(error) if durable == 0 => eprintln!("no heap: {error}"),
        Err(error) => panic!("{durable} was durable: {error}"),
    }
}

/// Plays the role that the environment names.
fn play() -> ! {
    act(CONF, || {
        let path = scene::folder().join("heap");
        match std::env::var(ROLE).expect("a role").as_str() {
            "make-sparse" => make_sparse(&path, false),
            "make-kept" => {
                make_sparse(&path, true);
                put("has-snapshot", "");
            }
            "check-sparse" => check_sparse(&path),
            "compact" => compact(&path),
            "read-sparse" => read_sparse(&path),
            "work" => work(&path),
            "look" => look(&path),
            role => panic!("{role}"),
        }
    })
}

fn command(role: &str) -> Command {
    let mut command = Command::new(this_binary());
    command.env(ROLE, role);
    command
}

/// Plays a role to its end, which must be a good one; what it said.
fn perform(test: &str, folder: &Path, role: &str) -> String {
    let ending = finish(test, spawn(test, folder, command(role)));
    assert!(ending.status.success(), "{role}: {}\n{}", ending.status, ending.said);
    ending.said
}

// ---- Points: system calls that change the file.

/// What a system call does to the heap's file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Superblock,
    /// A table, or a page of the index.
    Table,
    Log,
    /// Some writes at once.
    Batch,
    Sync,
    Reserve,
    GiveBack,
    CutOff,
}

/// Where the log of such a heap begins; the areas of snapshots lie behind it.
fn log_start(path: &Path) -> u64 {
    let device = deepheap_sys::files::direct_file::DirectFile::open_to_read(path).expect("a file");
    let device = deepheap_store::FileDevice::new(device).expect("a device");
    let file = deepheap_store::DurableFile::open_to_read(std::sync::Arc::new(device), None);
    file.expect("a heap").log_start()
}

/// The step that a call is, of a heap with such a file.
fn step(call: &Call, path: &Path, log_start: u64) -> Option<Step> {
    let [descriptor, second, length, offset, ..] = call.arguments;
    let step = match call.number {
        libc::SYS_pwrite64 if length == 4096 && [0, 64 << 10].contains(&offset) => Step::Superblock,
        libc::SYS_pwrite64 if offset < log_start => Step::Table,
        libc::SYS_pwrite64 => Step::Log,
        libc::SYS_io_uring_enter if second > 0 => return Some(Step::Batch),
        libc::SYS_fdatasync | libc::SYS_fsync => Step::Sync,
        libc::SYS_fallocate if second & libc::FALLOC_FL_PUNCH_HOLE as u64 != 0 => Step::GiveBack,
        libc::SYS_fallocate => Step::Reserve,
        libc::SYS_ftruncate => Step::CutOff,
        _ => return None,
    };
    (call.path_of(descriptor).as_deref() == Some(path)).then_some(step)
}

/// How a traced role ended.
struct Ended {
    status: ExitStatus,
    said: String,
}

/// Plays a role while `judge` sees its system calls.
fn perform_traced(
    test: &str,
    folder: &Path,
    role: &str,
    judge: impl FnMut(&Call) -> GoOn + Send,
) -> Ended {
    // What is traced is a child of the thread that traces it, which has no others.
    std::thread::scope(|scope| {
        let tracing = scope.spawn(|| {
            let mut command = command(role);
            traced::prepare(&mut command);
            let mut child = spawn(test, folder, command);
            let mut pipe = child.stderr.take().expect("piped");
            let listener = std::thread::spawn(move || {
                let mut said = Vec::new();
                let _ = std::io::Read::read_to_end(&mut pipe, &mut said);
                String::from_utf8_lossy(&said).into_owned()
            });
            let (over, is_over) = std::sync::mpsc::channel::<()>();
            let process = child.id();
            let watchdog = std::thread::spawn(move || {
                let mut ticks = 0;
                while is_over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                    let now = scene::process::ticks_of(process);
                    if (ticks + LEAST_TICKS..100 * PATIENCE.as_secs()).contains(&now) {
                        ticks = now;
                        continue;
                    }
                    // What its threads are doing, before it ends.
                    let threads = scene::process::threads_of(process);
                    deepheap_child::kill(process as libc::pid_t);
                    return Some(threads);
                }
                None
            });
            let status = traced::watch(child, judge);
            let _ = over.send(());
            let said = listener.join().expect("a listener");
            if let Some(threads) = watchdog.join().expect("a watchdog") {
                panic!("{role} hangs:\n{threads}\n{said}");
            }
            Ended { status, said }
        });
        tracing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A point: before or after the n-th call of its kind, from 0.
type Point<K> = (K, u32, bool);

/// Counts the calls of each kind while a role is played to its end.
fn count<K: Ord + Copy + Send>(
    test: &str,
    folder: &Path,
    role: &str,
    kind: impl Fn(&Call) -> Option<K> + Sync,
) -> BTreeMap<K, u32> {
    let mut counts = BTreeMap::new();
    let ended = perform_traced(test, folder, role, |call| {
        if let (Some(kind), None) = (kind(call), call.result) {
            *counts.entry(kind).or_default() += 1;
        }
        GoOn::Freely
    });
    assert!(ended.status.success(), "{role}: {}\n{}", ended.status, ended.said);
    counts
}

/// All points, or some by chance, one of each kind among them.
fn chosen<K: Ord + Copy>(
    counts: &BTreeMap<K, u32>,
    random: &mut Random,
    sample: usize,
) -> Vec<Point<K>> {
    let all = std::env::var("DEEPHEAP_POINTS").ok();
    let mut points = Vec::new();
    for (&kind, &count) in counts {
        points.extend((0..count).flat_map(|number| [(kind, number, false), (kind, number, true)]));
    }
    let sample = match all.as_deref() {
        Some("all") => return points,
        Some(number) => number.parse().expect("DEEPHEAP_POINTS is a number, or all"),
        None => sample,
    };
    let mut some: Vec<Point<K>> = Vec::new();
    for (&kind, &count) in counts {
        some.push((kind, random.below(count as usize) as u32, random.below(2) == 1));
    }
    while some.len() < sample.min(points.len()) {
        let point = points[random.below(points.len())];
        if !some.contains(&point) {
            some.push(point);
        }
    }
    some
}

/// Plays a role that ends at a point; whether it got there.
fn end_at<K: PartialEq + Sync>(
    test: &str,
    folder: &Path,
    role: &str,
    point: Point<K>,
    kind: impl Fn(&Call) -> Option<K> + Sync,
) -> bool {
    let (wanted, number, is_after) = point;
    let mut seen = 0;
    let ended = perform_traced(test, folder, role, |call| {
        if kind(call).as_ref() != Some(&wanted) || call.result.is_some() != is_after {
            return GoOn::Freely;
        }
        seen += 1;
        if seen == number + 1 { GoOn::Never } else { GoOn::Freely }
    });
    match ended.status.signal() {
        Some(libc::SIGKILL) => true,
        // Its threads went on in another order, with fewer calls.
        _ => {
            assert!(ended.status.success(), "{}\n{}", ended.status, ended.said);
            false
        }
    }
}

/// A folder with a copy of the heap of another one.
fn copy(folder: &Folder, name: &str) -> PathBuf {
    let to = folder.path().join(name);
    let _ = fs::remove_dir_all(&to);
    fs::create_dir(&to).expect("a folder");
    fs::copy(folder.path().join("heap"), to.join("heap")).expect("a copy");
    to
}

#[test]
fn compact_that_is_killed_anywhere_leaves_the_heap_and_can_be_repeated() {
    const NAME: &str = "compact_that_is_killed_anywhere_leaves_the_heap_and_can_be_repeated";
    if is_played(NAME) {
        play()
    }
    for make in ["make-sparse", "make-kept"] {
        let folder = Folder::new(NAME);
        perform(NAME, folder.path(), make);
        let start = log_start(&folder.path().join("heap"));
        let trial = copy(&folder, "trial");
        let kind = |call: &Call| step(call, &trial.join("heap"), start);
        let counts = count(NAME, &trial, "compact", kind);
        let disk = || {
            let said = await_file(&trial.join("compacted"));
            let disk = said.strip_suffix(" None").and_then(|number| number.parse::<u64>().ok());
            disk.unwrap_or_else(|| panic!("{said}"))
        };
        let before = disk_bytes(&folder.path().join("heap"));
        let after = disk();
        println!("{make}: {before} bytes of the disk, then {after}; {counts:?}");
        assert!(after + (PAGES * PAGE) as u64 / 2 < before);
        let (mut ended, mut went_on) = (0, 0);
        for point in chosen(&counts, &mut Random::new(seed()), 8) {
            copy(&folder, "trial");
            let was_ended = end_at(NAME, &trial, "compact", point, kind);
            *(if was_ended { &mut ended } else { &mut went_on }) += 1;
            println!("{point:?} {was_ended}");
            perform(NAME, &trial, "check-sparse");
            perform(NAME, &trial, "compact");
            assert!(disk() < after + (4 << 20), "{point:?}: {} bytes, not {after}", disk());
            perform(NAME, &trial, "check-sparse");
        }
        println!("{ended} times ended, {went_on} times not, nothing lost");
        assert!(ended > went_on);
    }
}

#[test]
fn who_begins_to_read_while_compact_runs_keeps_what_it_reads() {
    const NAME: &str = "who_begins_to_read_while_compact_runs_keeps_what_it_reads";
    if is_played(NAME) {
        play()
    }
    let folder = Folder::new(NAME);
    perform(NAME, folder.path(), "make-sparse");
    let start = log_start(&folder.path().join("heap"));
    let trial = copy(&folder, "trial");
    let kind = |call: &Call| step(call, &trial.join("heap"), start);
    let counts = count(NAME, &trial, "compact", kind);
    let superblocks = counts[&Step::Superblock];
    // Before it is opened for collection, between two checkpoints of that, before the places
    // change, and after that.
    let times = [
        (Step::Log, 0, false),
        (Step::Superblock, superblocks / 2, false),
        (Step::Superblock, superblocks - 1, false),
        (Step::Superblock, superblocks - 1, true),
        (Step::GiveBack, counts[&Step::GiveBack] / 2, true),
    ];
    for (wanted, number, is_after) in times {
        copy(&folder, "trial");
        let reader = spawn(NAME, &trial, command("read-sparse"));
        let mut seen = 0;
        let ended = perform_traced(NAME, &trial, "compact", |call| {
            if kind(call) == Some(wanted) && call.result.is_some() == is_after {
                seen += 1;
                if seen == number + 1 {
                    fs::write(trial.join("begin"), "").expect("a file");
                    await_file(&trial.join("reads"));
                }
            }
            GoOn::Freely
        });
        assert!(ended.status.success(), "{}\n{}", ended.status, ended.said);
        let said = await_file(&trial.join("compacted"));
        println!("{wanted:?} {number} {is_after}: {said}");
        assert!(said.ends_with(" None") || said.contains("a process reads the heap"), "{said}");
        perform(NAME, &trial, "check-sparse");
        perform(NAME, &trial, "compact");
        let again = await_file(&trial.join("compacted"));
        fs::write(trial.join("begin"), "").expect("a file");
        fs::write(trial.join("end"), "").expect("a file");
        let reading = finish(NAME, reader);
        assert!(reading.status.success(), "{}\n{}", reading.status, reading.said);
        println!("again, beside the reader: {again}");
        perform(NAME, &trial, "compact");
        assert!(await_file(&trial.join("compacted")).ends_with(" None"));
        perform(NAME, &trial, "check-sparse");
    }
}

fn disk_bytes(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).expect("a file")) * 512
}

/// A folder with a copy of a heap that has been worked with, and what of it is durable.
fn copy_worked(folder: &Folder, has_heap: bool) -> PathBuf {
    let to = folder.path().join("trial");
    let _ = fs::remove_dir_all(&to);
    fs::create_dir(&to).expect("a folder");
    for name in ["heap", "durable"].iter().filter(|_| has_heap) {
        fs::copy(folder.path().join(name), to.join(name)).expect("a copy");
    }
    to
}

#[test]
fn checkpoints_that_are_killed_anywhere_leave_what_was_durable() {
    const NAME: &str = "checkpoints_that_are_killed_anywhere_leave_what_was_durable";
    if is_played(NAME) {
        play()
    }
    let folder = Folder::new(NAME);
    perform(NAME, folder.path(), "work");
    let start = log_start(&folder.path().join("heap"));
    // A heap that is made, and one that is opened again.
    for has_heap in [false, true] {
        let trial = copy_worked(&folder, has_heap);
        let kind = |call: &Call| step(call, &trial.join("heap"), start);
        let counts = count(NAME, &trial, "work", kind);
        let (mut ended, mut went_on) = (0, 0);
        for point in chosen(&counts, &mut Random::new(seed()), 8) {
            copy_worked(&folder, has_heap);
            let was_ended = end_at(NAME, &trial, "work", point, kind);
            *(if was_ended { &mut ended } else { &mut went_on }) += 1;
            println!("{point:?} {was_ended} {}", perform(NAME, &trial, "look"));
        }
        println!("{counts:?}: {ended} times ended, {went_on} times not, nothing lost");
        assert!(ended > went_on);
    }
}

// ---- Refusals: system calls that the kernel refuses.

/// A system call that can be refused, and with what. Those about memory only with
/// `DEEPHEAP_POINTS`: there are hundreds.
fn refusable(call: &Call, path: &Path, is_memory_meant: bool) -> Option<(&'static str, i32)> {
    let is_heap = || call.path_of(call.arguments[0]).as_deref() == Some(path);
    Some(match call.number {
        libc::SYS_mmap | libc::SYS_brk | libc::SYS_mremap if is_memory_meant => {
            ("memory", libc::ENOMEM)
        }
        libc::SYS_ioctl if is_memory_meant => ("ioctl", libc::ENOMEM),
        libc::SYS_madvise if is_memory_meant => ("advice", libc::EAGAIN),
        libc::SYS_io_uring_enter => ("batch", libc::EIO),
        libc::SYS_pwrite64 if is_heap() => ("write", libc::EIO),
        libc::SYS_pread64 | libc::SYS_preadv if is_heap() => ("read", libc::EIO),
        libc::SYS_fdatasync | libc::SYS_fsync if is_heap() => ("sync", libc::EIO),
        libc::SYS_fallocate if is_heap() => ("space", libc::ENOSPC),
        _ => return None,
    })
}

#[test]
fn calls_that_are_refused_once_or_for_ever_leave_what_was_durable() {
    const NAME: &str = "calls_that_are_refused_once_or_for_ever_leave_what_was_durable";
    if is_played(NAME) {
        play()
    }
    let folder = Folder::new(NAME);
    perform(NAME, folder.path(), "work");
    let trial = copy_worked(&folder, true);
    let heap = trial.join("heap");
    let is_memory_meant = std::env::var_os("DEEPHEAP_POINTS").is_some();
    // From when the heap's file is opened on: before, there is nothing of ours.
    let is_open = AtomicBool::new(false);
    let kind = |call: &Call| {
        if call.number == libc::SYS_openat && call.result.is_some_and(|result| result >= 0) {
            let opened = call.path_of(call.result.unwrap_or_default() as u64);
            is_open.fetch_or(opened.as_deref() == Some(&*heap), Ordering::Relaxed);
        }
        if is_open.load(Ordering::Relaxed) { refusable(call, &heap, is_memory_meant) } else { None }
    };
    let counts = count(NAME, &trial, "work", kind);
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for (wanted, number, for_ever) in chosen(&counts, &mut Random::new(seed()), 10) {
        copy_worked(&folder, true);
        is_open.store(false, Ordering::Relaxed);
        let (mut seen, mut refused) = (0, 0);
        let begun = Instant::now();
        println!("{} {number} of {}, for ever {for_ever}", wanted.0, counts[&wanted]);
        let ended = perform_traced(NAME, &trial, "work", |call| {
            if call.result.is_some() || kind(call) != Some(wanted) {
                kind(call);
                return GoOn::Freely;
            }
            seen += 1;
            if seen == number + 1 || for_ever && seen > number {
                refused += 1;
                return GoOn::Refused(wanted.1);
            }
            GoOn::Freely
        });
        let how = match (ended.status.code(), ended.status.signal()) {
            (Some(0), _) => "went on".to_string(),
            (Some(code), _) => format!("ended with {code}"),
            (None, signal) => format!("ended by signal {signal:?}"),
        };
        println!(
            "  {refused} refused, {} ms: {how}; {}",
            begun.elapsed().as_millis(),
            ended.said.lines().find(|line| !line.is_empty()).unwrap_or("silent")
        );
        let is_told = ended.status.success() || !ended.said.trim().is_empty();
        let is_fault = [libc::SIGSEGV, libc::SIGILL].contains(&ended.status.signal().unwrap_or(0));
        assert!(is_told && !is_fault, "{}\n{}", ended.status, ended.said);
        perform(NAME, &trial, "look");
        *outcomes.entry(how).or_default() += 1;
    }
    println!("{outcomes:?}, nothing lost");
}

#[test]
fn a_process_whose_memory_the_kernel_never_takes_back_ends() {
    const NAME: &str = "a_process_whose_memory_the_kernel_never_takes_back_ends";
    if is_played(NAME) {
        play()
    }
    let folder = Folder::new(NAME);
    perform(NAME, folder.path(), "work");
    let trial = copy_worked(&folder, true);
    let mut refused = 0;
    let ended = perform_traced(NAME, &trial, "work", |call| {
        let is_meant = call.number == libc::SYS_madvise
            && call.arguments[2] == libc::MADV_DONTNEED as u64
            && call.result.is_none();
        refused += u32::from(is_meant);
        if is_meant { GoOn::Refused(libc::EAGAIN) } else { GoOn::Freely }
    });
    println!("{refused} refused: {}; {}", ended.status, ended.said);
    assert!(refused > 0 && (ended.status.success() || !ended.said.trim().is_empty()));
    perform(NAME, &trial, "look");
}
