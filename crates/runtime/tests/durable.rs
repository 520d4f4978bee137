//! Durable heaps: what a checkpoint held is there again, whatever happened to the process.

mod scene;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deepheap::{DurableHeap, DurableOptions, OpenError, free, usable_size};
use deepheap_child::traced::{self, GoOn};
use scene::memory::{PAGE, Random, seed};
use scene::process::soon;
use scene::{Folder, act, finish, is_played, play, spawn, this_binary};

const CONF: &str = "ram:64M,store_size:512M";
const OPTIONS: &str = "ram:24M,size:4G,store_size:1G";

fn open(path: &Path) -> DurableHeap {
    let options = DurableOptions::parse(OPTIONS).expect("settings");
    DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Plays one scene after the other, each in a process of its own, all in one folder.
fn play_in_turn(test: &str, acts: &[fn(&Path)]) {
    scene::play_in_turn(test, CONF, acts);
}

/// A list of blocks of many sizes, twice as much as the heap has RAM: each begins with the address
/// of the next, its size and its number.
#[repr(C)]
struct Node {
    next: *mut Node,
    size: usize,
    number: usize,
}

const NODES: usize = 20_000;

fn fill(heap: &DurableHeap, random: &mut Random) {
    let mut last: *mut Node = std::ptr::null_mut();
    for number in 0..NODES {
        let size = match number % 7 {
            0 => size_of::<Node>() + random.below(100),
            1..4 => 128 + random.below(900),
            4 | 5 => 1000 + random.below(5000),
            _ => 4096 + random.below(10_000),
        };
        let node: *mut Node = match number % 2 {
            0 => heap.malloc(size).cast(),
            _ => heap.allocate_objects(1, size).cast(),
        };
        assert!(!node.is_null(), "block {number}");
        // SAFETY: so large.
        unsafe {
            node.cast::<u8>().write_bytes(number as u8 | 1, size);
            node.write(Node { next: last, size, number });
        }
        last = node;
    }
    heap.set_root("list", last.cast()).expect("a root");
}

fn check_list(heap: &DurableHeap, expected: usize) {
    let mut node: *const Node = heap.root("list").cast();
    let mut count = 0;
    while !node.is_null() {
        // SAFETY: what the list holds, by its own sizes.
        unsafe {
            let Node { next, size, number } = node.read();
            let rest = std::slice::from_raw_parts(node.cast::<u8>(), size);
            let rest = &rest[size_of::<Node>()..];
            assert!(rest.iter().all(|&byte| byte == number as u8 | 1), "block {number}");
            assert!(usable_size(node.cast()).expect("live") >= size, "block {number}");
            node = next;
        }
        count += 1;
    }
    assert_eq!(count, expected);
}

#[test]
fn what_a_heap_held_when_it_was_closed_is_there_in_the_next_process() {
    play_in_turn(
        "what_a_heap_held_when_it_was_closed_is_there_in_the_next_process",
        &[
            |path| {
                let heap = open(path);
                fill(&heap, &mut Random::new(seed()));
                check_list(&heap, NODES);
                let stats = deepheap::stats().expect("statistics");
                let in_ram = stats.page_buffer_bytes + stats.cache_bytes;
                assert!(in_ram > 0 && stats.stored_bytes > 0, "not told of: {stats:?}");
                // SAFETY: nobody uses it any more.
                let made = unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
                eprintln!("{made:?}");
            },
            |path| {
                let heap = open(path);
                check_list(&heap, NODES);
                // Half of the blocks go, others come in their place.
                let mut last: *mut Node = heap.root("list").cast();
                for _ in 0..NODES / 2 {
                    // SAFETY: as above.
                    unsafe {
                        let next = last.read().next;
                        free(last.cast());
                        last = next;
                    }
                }
                heap.set_root("list", last.cast()).expect("a root");
                let mut random = Random::new(9);
                for number in 0..NODES / 4 {
                    let size = 100 + random.below(3000);
                    let block = heap.malloc(size);
                    assert!(!block.is_null());
                    // SAFETY: so large.
                    unsafe { block.write_bytes(number as u8, size) };
                }
                check_list(&heap, NODES - NODES / 2);
                heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
                check_list(&heap, NODES - NODES / 2);
            },
            |path| check_list(&open(path), NODES - NODES / 2),
        ],
    );
}

/// Two counters that a thread counts up one after the other, far from each other.
const PAIRS: usize = 4;

struct Counters {
    first: [*mut AtomicU64; PAIRS],
    second: [*mut AtomicU64; PAIRS],
}

impl Counters {
    fn of(heap: &DurableHeap) -> Counters {
        let counter = |pair: usize, which: &str| {
            let name = format!("{which} {pair}");
            let known = heap.root(&name);
            if !known.is_null() {
                return known.cast();
            }
            let size = if pair.is_multiple_of(2) { 64 } else { 3 * PAGE };
            let new = if pair < 2 { heap.malloc(size) } else { heap.allocate_objects(1, size) };
            // SAFETY: so large.
            unsafe { new.write_bytes(0, size) };
            heap.set_root(&name, new).expect("a root");
            new.cast()
        };
        Counters {
            first: std::array::from_fn(|pair| counter(pair, "first")),
            second: std::array::from_fn(|pair| counter(pair, "second")),
        }
    }

    /// The values of a pair: those of one instant, if nobody counts.
    fn values(&self, pair: usize) -> (u64, u64) {
        // SAFETY: counters of the heap.
        unsafe {
            let second = (*self.second[pair]).load(Ordering::SeqCst);
            ((*self.first[pair]).load(Ordering::SeqCst), second)
        }
    }
}

// SAFETY: counters are shared by all threads.
unsafe impl Sync for Counters {}

/// Counts in all threads, makes checkpoints, and says after each what was counted before it.
fn count_until_killed(path: &Path) {
    let heap = open(path);
    let counters = Counters::of(&heap);
    let ballast = heap.root("ballast");
    let ballast = match ballast.is_null() {
        true => {
            let new = heap.malloc(40 << 20);
            heap.set_root("ballast", new).expect("a root");
            new
        }
        false => ballast,
    } as usize;
    let report = scene::folder().join("told");
    let mut report = std::fs::File::create(report).expect("a file");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for pair in 0..PAIRS {
            let (counters, stop) = (&counters, &stop);
            scope.spawn(move || {
                let mut random = Random::new(pair as u64);
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: counters and memory of the heap; each thread writes pages of its own.
                    unsafe {
                        (*counters.first[pair]).fetch_add(1, Ordering::SeqCst);
                        (*counters.second[pair]).fetch_add(1, Ordering::SeqCst);
                        let page = random.below((40 << 20) / PAGE / PAIRS) * PAIRS + pair;
                        let word = (ballast + page * PAGE) as *mut u64;
                        word.write(word.read() + 1);
                        word.add(100).write(word.read());
                    }
                }
            });
        }
        loop {
            let told: Vec<u64> = (0..PAIRS).map(|pair| counters.values(pair).1).collect();
            heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
            let line: Vec<String> = told.iter().map(u64::to_string).collect();
            writeln!(report, "{}", line.join(" ")).expect("written");
        }
    });
}

/// Looks whether the heap is one that the killed process may have left.
fn check_counts(path: &Path) {
    let heap = open(path);
    let counters = Counters::of(&heap);
    let told = std::fs::read_to_string(scene::folder().join("told")).expect("a file");
    let last = told.lines().rfind(|line| line.split(' ').count() == PAIRS && told.ends_with('\n'));
    for pair in 0..PAIRS {
        let (first, second) = counters.values(pair);
        let told = last.map_or(0, |line| {
            line.split(' ').nth(pair).expect("a number").parse().expect("a number")
        });
        eprintln!("pair {pair}: {first} {second}, told {told}");
        assert!(second >= told, "pair {pair}: a checkpoint was lost: {second} of {told}");
        assert!(
            first == second || first == second + 1,
            "pair {pair}: no instant: {first} {second}"
        );
    }
    let ballast = heap.root("ballast") as usize;
    if ballast != 0 {
        for page in 0..(40 << 20) / PAGE {
            // SAFETY: memory of the heap.
            unsafe {
                let word = (ballast + page * PAGE) as *const u64;
                let (first, second) = (word.read(), word.add(100).read());
                assert!(first == second || first == second + 1, "page {page}: {first} {second}");
            }
        }
    }
}

/// How often a process is killed.
fn kills() -> usize {
    let kills = std::env::var("DEEPHEAP_KILLS").ok();
    kills.map_or(8, |kills| kills.parse().expect("DEEPHEAP_KILLS is a number"))
}

#[test]
fn a_process_that_is_killed_loses_only_what_came_after_its_last_checkpoint() {
    const NAME: &str = "a_process_that_is_killed_loses_only_what_came_after_its_last_checkpoint";
    const ACT: &str = "DEEPHEAP_TEST_ACT";
    if is_played(NAME) {
        let path = scene::folder().join("heap");
        let counts = std::env::var(ACT).is_ok_and(|act| act == "count");
        act(CONF, || if counts { count_until_killed(&path) } else { check_counts(&path) });
    }
    let folder = Folder::new(NAME);
    let told = folder.path().join("told");
    let mut random = Random::new(seed());
    for kill in 0..kills() {
        let mut command = Command::new(this_binary());
        command.env(ACT, "count");
        let before = std::fs::read(&told).unwrap_or_default();
        let mut child = spawn(NAME, folder.path(), command);
        // From before it is open to some checkpoints later. Every other one has told of a
        // checkpoint, however slow the machine is.
        let tells = || {
            let now = std::fs::read(&told).unwrap_or_default();
            now.ends_with(b"\n") && now != before
        };
        let goes_on = kill % 2 == 0 || soon(Duration::from_secs(240), tells);
        assert!(goes_on, "kill {kill}: no checkpoint");
        std::thread::sleep(Duration::from_millis(random.below(1500) as u64));
        let ended = child.try_wait().expect("a child");
        child.kill().expect("a child");
        let counting = finish(NAME, child);
        assert!(ended.is_none(), "kill {kill}: it ended by itself: {}", counting.said);
        if !told.exists() {
            continue;
        }
        let mut command = Command::new(this_binary());
        command.env(ACT, "check");
        let ending = finish(NAME, spawn(NAME, folder.path(), command));
        assert!(ending.status.success(), "kill {kill}: {}\n{}", ending.status, ending.said);
        print!("kill {kill}: {}", ending.said);
    }
}

#[test]
fn what_cannot_be_opened_is_refused_with_its_reason() {
    const NAME: &str = "what_cannot_be_opened_is_refused_with_its_reason";
    play(NAME, CONF, || {
        let folder = scene::folder();
        let refusal = |path: PathBuf, options: &str| {
            let options = DurableOptions::parse(options);
            let opened = options.and_then(|options| DurableHeap::open(&path, &options).map(|_| ()));
            let error = opened.expect_err("it is refused");
            eprintln!("{}: {error}", path.display());
            error
        };
        let foreign = folder.join("foreign");
        std::fs::write(&foreign, vec![7; 1 << 20]).expect("a file");
        assert!(matches!(refusal(foreign.clone(), OPTIONS), OpenError::Format(_)));
        assert_eq!(std::fs::read(&foreign).expect("a file"), vec![7; 1 << 20], "left alone");
        assert!(matches!(
            refusal(folder.clone(), OPTIONS),
            OpenError::WrongKind | OpenError::File(_)
        ));
        let missing = folder.join("no/such/folder");
        assert!(matches!(refusal(missing, OPTIONS), OpenError::File(_)));
        for bad in ["ram", "ram:x", "colour:red", "address:12", "size:1"] {
            assert!(matches!(refusal(folder.join("heap"), bad), OpenError::Options(_)), "{bad}");
        }
        assert!(matches!(
            refusal(folder.join("heap"), "ram:63M"),
            OpenError::Process(libc::ENOMEM, _)
        ));
        let heap = open(&folder.join("heap"));
        assert!(matches!(refusal(folder.join("heap"), OPTIONS), OpenError::Locked));
        let taken = heap.malloc(100) as usize & !((64 << 20) - 1);
        let same = format!("{OPTIONS},address:{taken:x}").replace("ram:24M", "ram:16M");
        assert!(matches!(
            refusal(folder.join("other"), &same),
            OpenError::Process(libc::EADDRINUSE, _)
        ));
        // SAFETY: nobody uses it any more.
        unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
        // A byte of each half of the file's head.
        let mut bytes = std::fs::read(folder.join("heap")).expect("a file");
        let (first, second) = (bytes[9], bytes[(64 << 10) + 9]);
        (bytes[9], bytes[(64 << 10) + 9]) = (first ^ 1, second ^ 1);
        std::fs::write(folder.join("damaged"), &bytes).expect("a file");
        assert!(matches!(refusal(folder.join("damaged"), OPTIONS), OpenError::Format(_)));
        let _ = open(&folder.join("heap"));
    });
}

#[test]
fn heaps_are_opened_and_closed_many_times_and_leave_nothing() {
    const NAME: &str = "heaps_are_opened_and_closed_many_times_and_leave_nothing";
    play(NAME, CONF, || {
        let path = scene::folder().join("heap");
        let mut after_first = None;
        for round in 0..30u64 {
            let heap = open(&path);
            let counter: *mut u64 = match heap.root("counter") {
                new if new.is_null() => {
                    let new = heap.allocate_objects(1, 200);
                    heap.set_root("counter", new).expect("a root");
                    // SAFETY: so large.
                    unsafe { new.write_bytes(0, 200) };
                    new.cast()
                }
                known => known.cast(),
            };
            // SAFETY: memory of the heap, used by nobody else.
            unsafe {
                assert_eq!(counter.read(), round);
                counter.write(round + 1);
                heap.close().unwrap_or_else(|error| panic!("{error}"));
            }
            let status = std::fs::read_to_string("/proc/self/status").expect("proc");
            let line = |name: &str| -> u64 {
                let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
                line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
            };
            let now = (line("Threads:"), line("VmSize:"), line("RssAnon:"));
            let first = *after_first.get_or_insert(now);
            // libc takes 128 MiB of addresses for the memory of each thread that ends before others
            // begin; the heap is 4 GiB.
            assert!(
                now.0 <= first.0 && now.1 <= first.1 + (1 << 20),
                "round {round}: {first:?} {now:?}"
            );
            assert!(now.2 <= first.2 + 4096, "round {round}: {first:?} {now:?}");
        }
    });
}

#[test]
fn a_heap_that_is_written_over_and_over_does_not_fill_its_file() {
    const NAME: &str = "a_heap_that_is_written_over_and_over_does_not_fill_its_file";
    const BYTES: usize = 12 << 20;
    play(NAME, CONF, || {
        let path = scene::folder().join("heap");
        let options = DurableOptions::parse("ram:24M,size:1G,store_size:128M").expect("settings");
        let heap = DurableHeap::open(&path, &options).unwrap_or_else(|error| panic!("{error}"));
        let memory = heap.malloc(BYTES);
        let objects: Vec<*mut u8> = (0..20_000).map(|_| heap.allocate_objects(1, 300)).collect();
        assert!(!memory.is_null() && objects.iter().all(|object| !object.is_null()));
        let mut random = Random::new(seed());
        for round in 0..60u8 {
            // Half of everything each time, so that segments are left half alive.
            for page in 0..BYTES / PAGE {
                if random.below(2) == 0 {
                    // SAFETY: memory of the heap.
                    let words = unsafe { memory.add(page * PAGE).cast::<u64>() };
                    // SAFETY: as above.
                    (0..PAGE / 8).for_each(|at| unsafe { words.add(at).write(random.next()) });
                }
            }
            for object in objects.iter().filter(|_| random.below(2) == 0) {
                // SAFETY: as above.
                unsafe { object.write_bytes(round, 300) };
            }
            let made = heap.checkpoint().unwrap_or_else(|error| panic!("round {round}: {error}"));
            if round % 10 == 0 {
                eprintln!("{made:?}");
            }
        }
    });
}

#[test]
fn a_forked_child_does_not_have_the_heap_and_does_not_hold_its_file() {
    const NAME: &str = "a_forked_child_does_not_have_the_heap_and_does_not_hold_its_file";
    play(NAME, CONF, || {
        let path = scene::folder().join("heap");
        let heap = open(&path);
        let memory = heap.malloc(1 << 20);
        // SAFETY: so large.
        unsafe { memory.write_bytes(3, 1 << 20) };
        heap.set_root("memory", memory).expect("a root");
        let fork = |child: &dyn Fn()| {
            // SAFETY: the child only does what is asked and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                child();
                // SAFETY: the end of the child.
                unsafe { libc::_exit(0) };
            }
            pid
        };
        let status_of = |pid| {
            let mut status = 0;
            // SAFETY: our own child.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        };
        let touches = fork(&|| {
            // SAFETY: the point is that it is not there.
            std::hint::black_box(unsafe { memory.read_volatile() });
        });
        assert_eq!(libc::WTERMSIG(status_of(touches)), libc::SIGSEGV);
        let allocates = fork(&|| {
            let own = deepheap::malloc(100 << 20);
            assert!(!own.is_null());
            // SAFETY: so large; more than the budget.
            unsafe { own.write_bytes(1, 100 << 20) };
        });
        assert_eq!(status_of(allocates), 0, "its own memory works");
        // A child that lives on does not keep the file locked.
        let lives = fork(&|| std::thread::sleep(Duration::from_secs(60)));
        heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
        // SAFETY: nobody uses it any more.
        unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
        let heap = open(&path);
        let memory = heap.root("memory");
        // SAFETY: memory of the heap.
        let bytes = unsafe { std::slice::from_raw_parts(memory, 1 << 20) };
        assert!(bytes.iter().all(|&byte| byte == 3));
        // SAFETY: our own child.
        unsafe { libc::kill(lives, libc::SIGKILL) };
        status_of(lives);
    });
}

#[test]
fn a_heap_is_durable_as_it_was_opened_and_by_its_name_before_it_is_written() {
    const NAME: &str = "a_heap_is_durable_as_it_was_opened_and_by_its_name_before_it_is_written";
    if is_played(NAME) {
        act(CONF, || {
            let heap = open(&scene::folder().join("heap"));
            fill(&heap, &mut Random::new(seed()));
            heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
        });
    }
    let folder = Folder::new(NAME);
    let path = folder.path().join("heap");
    for has_heap in [false, true] {
        let (mut is_synced, mut is_named, mut is_written) = (!has_heap, false, false);
        // What is traced is a child of the thread that traces it, which has no others.
        let status = std::thread::scope(|scope| {
            let traced = || {
                let mut command = Command::new(this_binary());
                traced::prepare(&mut command);
                traced::watch(spawn(NAME, folder.path(), command), |call| {
                    let file = || call.path_of(call.arguments[0]);
                    match (call.number, call.result) {
                        (libc::SYS_fdatasync, Some(0)) => {
                            is_synced |= file().as_ref() == Some(&path)
                        }
                        (libc::SYS_fsync, Some(0)) => {
                            is_named |= file().as_deref() == Some(folder.path());
                        }
                        (libc::SYS_pwrite64, None) if file().as_ref() == Some(&path) => {
                            assert!(is_synced && is_named, "{has_heap}: {is_synced}, {is_named}");
                            is_written = true;
                        }
                        _ => {}
                    }
                    GoOn::Freely
                })
            };
            scope.spawn(traced).join().expect("a tracer")
        });
        assert!(status.success() && is_written, "{status}");
    }
}
