//! Cancellation: nothing that runs in the fault handler, in eviction, in the store or in `malloc`
//! is a cancellation point of libc's, at which a thread would unwind out of us. Nor does it call a
//! wrapper of the preload library that pins: below a pin that would recurse without end.
//!
//! `sys`, `heap`, `store`, `pager` and `maps` make raw calls. `runtime` reads files through `std`
//! while it starts, and holds `Inside` (`crates/runtime/src/runtime.rs`) meanwhile.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use deepheap_checks::{SourceFile, files, root};

/// The functions of glibc at which a thread with a pending `pthread_cancel` ends: those that POSIX
/// names (pthreads(7)), glibc's own, and their 64-bit names.
const POINTS: &str = "
    accept accept4 aio_suspend clock_nanosleep close cnd_timedwait cnd_wait connect
    copy_file_range creat creat64 epoll_pwait epoll_pwait2 epoll_wait fallocate fallocate64
    fcntl fcntl64 fdatasync fsync getentropy getmsg getpmsg getrandom lockf lockf64 mq_receive
    mq_send mq_timedreceive mq_timedsend msgrcv msgsnd msync mtx_timedlock nanosleep open
    open64 open_by_handle_at openat openat64 pause poll posix_fallocate posix_fallocate64 ppoll
    pread pread64 preadv preadv2 preadv64 preadv64v2 pselect pthread_clockjoin_np
    pthread_cond_clockwait pthread_cond_timedwait pthread_cond_wait pthread_join
    pthread_testcancel pthread_timedjoin_np pwrite pwrite64 pwritev pwritev2 pwritev64
    pwritev64v2 read readv recv recvfrom recvmmsg recvmsg select sem_clockwait sem_timedwait
    sem_wait send sendmmsg sendmsg sendto sigpause sigsuspend sigtimedwait sigwait sigwaitinfo
    sleep splice sync_file_range system tcdrain tee thrd_join thrd_sleep usleep vmsplice wait
    wait3 wait4 waitid waitpid write writev __open_2 __read_chk __pread_chk
";
/// Ways of `std` to such functions.
const OF_STD: &str = "
    OwnedFd eprint println! std::fs std::io::Read std::io::Write std::io::stderr std::io::stdout
    std::net std::process::Command std::thread::park std::thread::sleep
";
/// Crates that run in the program's threads at any time.
const ROOMS: [&str; 6] = [
    "crates/sys/src/",
    "crates/heap/src/",
    "crates/store/src/",
    "crates/pager/src/",
    "crates/residency/src/",
    "crates/maps/src/",
];
/// Crates that do so outside of handlers of signals, or under `Inside`.
const ABOVE: [&str; 2] = ["crates/durable/src/", "crates/runtime/src/"];
/// Files that use `std` under `Inside`, or that only commands call.
const INSIDE: [&str; 11] = [
    "crates/durable/src/heap_file.rs",
    "crates/durable/src/location.rs",
    "crates/maps/src/log/create.rs",
    "crates/durable/src/inspect.rs",
    "crates/runtime/src/settings/machine.rs",
    "crates/runtime/src/stats/observe.rs",
    "crates/runtime/src/settings/obstacles.rs",
    "crates/runtime/src/stats/page.rs",
    "crates/runtime/src/stats/profile.rs",
    "crates/runtime/src/settings/store_location.rs",
    "crates/sys/src/threads/rendezvous_list.rs",
];
/// Calls and symbols that are there behind `cancellation::Off`: io_uring's descriptor is closed by
/// its crate, and `thread` joins.
const OFF: [(&str, &str); 2] = [("sys", "close"), ("sys", "pthread_join")];

/// The crates whose libraries are looked at.
const LIBRARIES: [&str; 7] = ["sys", "heap", "store", "policy", "residency", "pager", "maps"];

fn is_point(name: &str) -> bool {
    POINTS.split_whitespace().any(|point| point == name)
}

/// Whether that room may use the function behind `Off`.
fn is_off(room: &str, name: &str) -> bool {
    OFF.contains(&(room, name))
}

/// The part of a file that is not its tests.
fn product(file: &SourceFile) -> &str {
    const TESTS: [&str; 5] =
        ["/tests.rs", "/schedules.rs", "/models.rs", "/models/memory.rs", "/simulation.rs"];
    let is_test = TESTS.iter().any(|name| file.path.ends_with(name));
    let text = if is_test { "" } else { file.text.as_str() };
    text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

/// What a source file uses and may not.
fn violations(file: &SourceFile) -> Vec<String> {
    let is_room = ROOMS.iter().any(|room| file.path.starts_with(room));
    let is_above = ABOVE.iter().any(|room| file.path.starts_with(room));
    if !is_room && !is_above {
        return Vec::new();
    }
    let room = file.path.split('/').nth(1).unwrap_or_default();
    let mut violations = Vec::new();
    for line in product(file).lines().filter(|line| !line.trim_start().starts_with("//")) {
        let called = line.split("libc::").skip(1).filter_map(|rest| {
            let (name, _) = rest.split_once('(')?;
            is_point(name).then_some(name)
        });
        violations.extend(called.filter(|name| !is_off(room, name)).map(str::to_owned));
        let is_inside = INSIDE.contains(&file.path.as_str());
        let used = OF_STD.split_whitespace().filter(|name| !is_inside && line.contains(name));
        violations.extend(used.map(str::to_owned));
    }
    violations.iter().map(|name| format!("{}: {name}", file.path)).collect()
}

/// The cancellation points among the undefined symbols that `nm` prints.
fn imported(room: &str, symbols: &str) -> Vec<String> {
    let refused = undefined(symbols).filter(|name| is_point(name) && !is_off(room, name));
    refused.map(|name| format!("{room}: {name}")).collect()
}

/// The functions whose wrappers do more than libc also for calls of our own, as the rows of
/// `calls!` say (`crates/preload/src/calls.rs`).
fn wrapped(file: &SourceFile) -> Vec<String> {
    let is_preload = file.path.starts_with("crates/preload/src/");
    let text = if is_preload { file.text.as_str() } else { "" };
    let tables =
        text.split("\ncalls! {").skip(1).map(|table| table.split("\n}").next().unwrap_or_default());
    let rows = tables.flat_map(|table| table.split("\n    fn ").skip(1));
    let rows = rows.filter_map(|row| {
        let (names, rest) = row.split_once('(')?;
        let (_, strategy) = rest.split_once("->")?.1.split_once("= ")?;
        let lets_ours_pass =
            ["program(", "refuse(", "same("].iter().any(|kind| strategy.starts_with(kind));
        (!lets_ours_pass).then_some(names)
    });
    let names = rows.flat_map(|names| names.split(','));
    names.filter_map(|name| name.split_whitespace().next().map(str::to_owned)).collect()
}

/// What `nm` prints of the undefined symbols of a library.
fn symbols(path: &str) -> String {
    let output = Command::new("nm").args(["-u", path]).output().expect("nm, of binutils");
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(symbols.contains("U "), "nm finds nothing in {path}");
    symbols
}

/// The names among the undefined symbols that `nm` prints.
fn undefined(symbols: &str) -> impl Iterator<Item = &str> {
    let names = symbols.lines().filter_map(|line| line.trim().strip_prefix("U "));
    names.map(|name| name.split('@').next().unwrap_or(name))
}

/// The libraries of the fault path as cargo builds them beside this test: room and path.
fn libraries() -> Vec<(String, String)> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .current_dir(root())
        // With the features of these packages alone they were built once more.
        .args(["build", "--workspace", "--quiet", "--lib", "--message-format=json"])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("JSON is text");
    let messages = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
    let artifacts = messages.filter(|message: &serde_json::Value| {
        message["reason"] == "compiler-artifact"
            && message["manifest_path"].as_str().is_some_and(|path| is_below(path, &root()))
    });
    let files = artifacts.flat_map(|message| match &message["filenames"] {
        serde_json::Value::Array(files) => files.clone(),
        _ => Vec::new(),
    });
    let paths = files.filter_map(|file| file.as_str().map(str::to_owned));
    let rlibs = paths.filter(|path| path.ends_with(".rlib"));
    let libraries = rlibs.filter_map(|path| Some((room_of(&path)?, path)));
    libraries.filter(|(room, _)| LIBRARIES.contains(&room.as_str())).collect()
}

fn is_below(path: &str, folder: &Path) -> bool {
    Path::new(path).starts_with(folder)
}

/// `sys` of `.../libdeepheap_sys-0123.rlib`.
fn room_of(library: &str) -> Option<String> {
    let name = library.rsplit('/').next()?.strip_prefix("libdeepheap_")?;
    let end = name.find(['-', '.'])?;
    Some(name[..end].to_owned())
}

#[test]
fn no_source_of_the_fault_path_names_a_cancellation_point() {
    let files = files(&["rs"]);
    let found: Vec<_> = files.iter().flat_map(violations).collect();
    assert!(found.is_empty(), "make raw calls (crates/sys/src/raw_call.rs):\n{}", found.join("\n"));
    for path in INSIDE {
        assert!(files.iter().any(|file| file.path == path), "{path} is not there");
    }
}

#[test]
fn no_library_of_the_fault_path_imports_a_cancellation_point() {
    let libraries = libraries();
    let rooms: Vec<_> = libraries.iter().map(|(room, _)| room.as_str()).collect();
    for room in LIBRARIES {
        assert!(rooms.contains(&room), "{room} is not among {rooms:?}");
    }
    for (room, path) in &libraries {
        assert_eq!(imported(room, &symbols(path)), Vec::<String>::new());
    }
}

#[test]
fn no_library_of_the_fault_path_reaches_a_wrapper_that_pins() {
    let wrapped: BTreeSet<_> = files(&["rs"]).iter().flat_map(wrapped).collect();
    for name in ["read", "getrlimit", "clock_getres", "pthread_mutex_lock", "prctl"] {
        assert!(wrapped.contains(name), "{name} is not in the tables of calls");
    }
    for (room, path) in libraries() {
        let symbols = symbols(&path);
        // What is `Off` is `pthread_join`: its wrapper ends the pin of a stack, and ours have none.
        let found: Vec<_> = undefined(&symbols)
            .filter(|name| wrapped.contains(*name) && !is_off(&room, name))
            .collect();
        assert!(
            found.is_empty(),
            "{room}: make raw calls, or let ours pass the wrapper: {found:?}"
        );
    }
}

#[test]
fn canary_wrappers_that_pin_are_found() {
    let text = concat!(
        "//! A.\ncalls! {\n",
        "    fn a, b @ c\"GLIBC_2.2.5\"(x: c_int) -> c_int = pin;\n",
        "    fn d(\n        x: *mut T [n],\n    ) -> c_int\n        = by(|real| real(x));\n",
        "    fn e(x: c_int) -> c_int = program(|real| real(x));\n",
        "}\nfn f(x: c_int) -> c_int = pin;\n",
    );
    let of = |path: &str| wrapped(&SourceFile { path: path.into(), text: text.into() });
    assert_eq!(of("crates/preload/src/calls/clocks.rs"), ["a", "b", "d"]);
    assert_eq!(of("crates/sys/src/lib.rs"), Vec::<String>::new());
}

#[test]
fn canary_cancellation_points_are_caught() {
    let caught = |path: &str, text: &str| {
        violations(&SourceFile { path: path.into(), text: text.into() }).len()
    };
    for (text, count) in [
        ("//! A.\nlet n = unsafe { libc::pread(fd, at, len, from) };\n", 1),
        ("//! A.\nlibc::fcntl(fd, 1); libc::poll(fds, 1, 0);\n", 2),
        ("//! A.\nuse std::fs;\n", 1),
        ("//! A.\n// libc::pread( would be one\nlibc::preadless(fd); SYS_read\n", 0),
        ("//! A.\n#[cfg(test)]\nmod tests {\n use std::fs;\n}\n", 0),
    ] {
        assert_eq!(caught("crates/store/src/log/read.rs", text), count, "{text}");
        assert_eq!(caught("crates/runtime/src/control/workers.rs", text), count, "{text}");
        assert_eq!(caught("crates/cli/src/main.rs", text), 0);
    }
    assert_eq!(
        caught("crates/sys/src/threads/thread.rs", "//! A.\nlibc::pthread_join(thread, at);\n"),
        0
    );
    let symbols =
        "\nraw.o:\n                 U pread64\n                 U memcpy\n  U close@GLIBC_2.2.5\n";
    assert_eq!(imported("store", symbols), ["store: pread64", "store: close"]);
    assert_eq!(imported("sys", symbols), ["sys: pread64"]);
}
