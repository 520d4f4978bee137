//! Promises of `deepheap-bench` as a user sees them: every backend runs the same workload and
//! leaves nothing behind, also when it is killed; bad input is refused with status 2.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::PoisonError;
use std::time::Duration;

use serde_json::Value;

mod leftovers;

use leftovers::{TURN, finish, folder, is_root, leftovers, page_cluster, send, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_deepheap-bench");
const SMALL: &[&str] = &["--data", "192M", "--ram", "64M", "--threads", "2", "--seconds", "1"];
/// Swap and mmap need root; whoever runs the tests without is told.
fn skipped(test: &str) -> bool {
    if !is_root() {
        eprintln!("SKIPPED: {test} needs root (it makes memory cgroups and swap files)");
    }
    !is_root()
}

fn bench(folder: &Path, on: &str, more: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--on", on]).args(SMALL).arg("--dir").arg(folder).args(more);
    command
}

fn report(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    let text = std::str::from_utf8(&output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "one JSON line: {text}");
    serde_json::from_str(text).unwrap()
}

fn check_numbers(report: &Value, on: &str) {
    let number = |at: &str| report.pointer(at).and_then(Value::as_f64).unwrap_or(-1.0);
    assert_eq!(report["on"], on);
    assert_eq!(report["errors"], 0);
    assert!(number("/measured_ops") > 100.0, "{report}");
    assert!(number("/audited_writes") > 0.0, "{report}");
    let latency = ["p50", "p99", "p99_9", "max"].map(|p| number(&format!("/latency_ns/{p}")));
    assert!(latency[0] > 0.0 && latency.is_sorted(), "{latency:?}");
    assert!(number("/peak_memory_bytes") > 1e6 && number("/page_table_bytes") > 1e4, "{report}");
    assert!(number("/cpu_us_per_op") > 0.0, "{report}");
}

/// Runs a command. The kernel may kill a program that swaps in a small memory cgroup when its own
/// reclaim falls behind. That is swap's failure, told as such; the run is made again, three times
/// at most.
fn finish_or_try_again(on: &str, command: impl Fn() -> Command) -> (u32, Output) {
    let mut done = finish(&mut command());
    for _ in 0..3 {
        let said = String::from_utf8_lossy(&done.1.stderr).into_owned();
        if on != "swap" || !said.contains("out of memory in its memory cgroup") {
            break;
        }
        eprintln!("{said}");
        done = finish(&mut command());
    }
    done
}

fn runs_and_leaves_nothing(on: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder(on);
    let before = page_cluster();
    for pattern in ["uniform", "zipf:0.99", "sequential", "chase"] {
        let more = ["--write", "50", "--pattern", pattern, "--audit", "--page-cluster", "1"];
        let (pid, output) = finish_or_try_again(on, || bench(&folder, on, &more));
        let report = report(&output);
        assert_eq!(leftovers(&folder, pid), Vec::<String>::new());
        check_numbers(&report, on);
        if matches!(on, "swap" | "mmap") {
            let cgroup = &report["memory_cgroup"];
            let (peak, limit) = (cgroup["peak_bytes"].as_u64(), cgroup["limit_bytes"].as_u64());
            assert!(peak <= limit && limit < Some(72 << 20), "{cgroup}");
            assert!(report["device"]["read_bytes"].as_u64() > Some(1 << 20), "{report}");
        }
    }
    assert_eq!(page_cluster(), before);
}

#[test]
fn glibc_runs() {
    runs_and_leaves_nothing("glibc");
}

#[test]
fn deepheap_runs() {
    runs_and_leaves_nothing("deepheap");
}

#[test]
fn swap_runs_and_leaves_nothing() {
    if !skipped("swap_runs_and_leaves_nothing") {
        runs_and_leaves_nothing("swap");
    }
}

#[test]
fn mmap_runs_and_leaves_nothing() {
    if !skipped("mmap_runs_and_leaves_nothing") {
        runs_and_leaves_nothing("mmap");
    }
}

#[test]
fn deepheap_is_not_killed_in_a_tight_cgroup_and_rests_without_cpu() {
    if skipped("deepheap_is_not_killed_in_a_tight_cgroup_and_rests_without_cpu") {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder("tight");
    let output = |more: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--on", "deepheap", "--data", "256M", "--ram", "64M"]);
        command.args(["--write", "50", "--dir"]).arg(&folder).args(more);
        finish(&mut command).1
    };
    let report = report(&output(&["--cgroup", "--audit", "--seconds", "2"]));
    assert_eq!(report["memory_cgroup"]["oom_kills"], 0, "{report}");
    // It rests once it has finished what it began, which takes longer beside others.
    let rests = (0..5).any(|_| {
        let report = self::report(&output(&["--idle", "1"]));
        println!("{}", report["rest"]);
        report["rest"]["cpu_percent"].as_f64().is_some_and(|percent| percent < 1.0)
    });
    assert!(rests, "it uses the processors at rest");
}

/// A swap run of many seconds that has its swap file on.
fn long_swap_run(folder: &Path) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--on", "swap", "--data", "64M", "--ram", "16M", "--seconds", "60"]);
    command.args(["--page-cluster", "2"]).arg("--dir").arg(folder);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("swap in use", || {
        leftovers(folder, child.id()).len() >= 4 && page_cluster().trim() == "2"
    });
    std::thread::sleep(Duration::from_millis(300));
    child
}

#[test]
fn a_terminated_run_takes_everything_back() {
    if skipped("a_terminated_run_takes_everything_back") {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (folder, before) = (folder("terminated"), page_cluster());
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut child = long_swap_run(&folder);
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(128 + signal));
        assert_eq!(leftovers(&folder, child.id()), Vec::<String>::new());
        assert_eq!(page_cluster(), before);
    }
}

#[test]
fn what_a_killed_run_left_the_next_one_takes_back() {
    if skipped("what_a_killed_run_left_the_next_one_takes_back") {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (folder, before) = (folder("killed"), page_cluster());
    let mut child = long_swap_run(&folder);
    send(&child, libc::SIGKILL);
    child.wait().unwrap();
    assert_ne!(leftovers(&folder, child.id()), Vec::<String>::new());
    assert!(Command::new(PROGRAM).arg("clean").status().unwrap().success());
    assert_eq!(leftovers(&folder, child.id()), Vec::<String>::new());
    assert_eq!(page_cluster(), before);
}

#[test]
fn bad_input_is_refused_with_status_2() {
    let folder = folder("refused");
    let cases: &[(&str, &[&str], &str)] = &[
        ("swap", &["--object", "12"], "multiples of 8"),
        ("glibc", &["--object", "1G"], "one for each thread"),
        ("swap", &["--layout", "each"], "object by object"),
        ("mmap", &["--cgroup"], "for deepheap"),
        ("glibc", &["--dir", "/no/such/folder"], "no such folder"),
        ("mmap", &["--dir", "/dev/shm"], "tmpfs"),
        ("mmap", &["--data", "15T"], "MiB needed"),
        ("glibc", &["--pattern", "zipf:-1"], "zipf exponent"),
        ("glibc", &["--object-size", "2K-128"], "the least is more"),
        ("glibc", &["--object-size", "12-24"], "multiples of 8"),
        ("glibc", &["--pattern", "hot", "--data", "1M"], "only 256 objects"),
        ("glibc", &["--allocate", "object-array", "--object-size", "16-32"], "one size"),
        ("swap", &["--calls"], "--calls: is for deepheap"),
        ("mmap", &["--gather", "64"], "--gather: is for deepheap"),
        ("glibc", &["--fill", "scatter"], "--fill scatter: is for deepheap"),
        ("glibc", &["--conf", "page_buffer:2M"], "--conf: is for deepheap"),
        ("deepheap", &["--calls", "--pattern", "chase"], "uniform, zipf and hot"),
        ("deepheap", &["--gather", "64", "--write", "50"], "--threads 1"),
        ("deepheap", &["--gather", "64", "--calls"], "cannot be used with"),
        ("glibc", &["--bogus"], "--bogus"),
    ];
    for (on, more, why) in cases {
        let mut command = Command::new(PROGRAM);
        command.current_dir(&folder).args(["run", "--on", on]).args(*more);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(why) && !error.contains("panicked"), "{more:?}: {error}");
    }
}

/// Objects of random sizes, whole and in part, on every memory that is there.
#[test]
fn objects_of_random_sizes_run_everywhere() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder("objects");
    let contenders: &[(&str, &str)] = match is_root() {
        true => &[
            ("deepheap", "objects"),
            ("glibc", "objects"),
            ("swap", "objects"),
            ("mmap", "objects"),
        ],
        false => &[("deepheap", "objects"), ("glibc", "objects")],
    };
    let hot: &[&str] = &["--object-size", "64", "--pattern", "hot", "--hot-objects", "5000"];
    for (on, allocate) in contenders {
        for more in [&["--object-size", "16-3000", "--whole"], hot] {
            let (pid, output) = finish_or_try_again(on, || {
                let mut command = Command::new(PROGRAM);
                command.args(["run", "--on", on, "--allocate", allocate, "--data", "48M"]);
                command.args(["--ram", "24M", "--threads", "2"]);
                command.args(["--seconds", "1", "--warm-up", "500"]);
                command.args(["--write", "50", "--audit", "--dir"]).arg(&folder).args(more);
                command
            });
            let report = report(&output);
            assert_eq!(leftovers(&folder, pid), Vec::<String>::new());
            check_numbers(&report, on);
            assert!(report["device_written_bytes_per_write"].is_f64(), "{report}");
            assert_eq!(report["not_objects"].is_object(), *on == "deepheap", "{report}");
        }
    }
}

/// Access by calls and batches, and filling by batches, audited.
#[test]
fn calls_and_batches_lose_no_write() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder("calls");
    let calls: &[&str] = &["--calls", "--threads", "4"];
    let gather: &[&str] = &["--gather", "64", "--threads", "1"];
    let fill: &[&str] = &["--fill", "scatter", "--threads", "2"];
    for more in [calls, gather, fill] {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--on", "deepheap", "--allocate", "objects", "--data", "48M"]);
        command.args(["--object-size", "256", "--ram", "24M", "--write", "50", "--audit"]);
        command.args(["--seconds", "0.5", "--warm-up", "500", "--dir"]).arg(&folder).args(more);
        let (pid, output) = finish(&mut command);
        let report = report(&output);
        assert_eq!(leftovers(&folder, pid), Vec::<String>::new());
        assert!(report["audited_writes"].as_u64() > Some(0), "{more:?}: {report}");
    }
}

#[test]
fn the_bare_device_is_read_and_the_cases_are_listed() {
    let folder = folder("device");
    let mut command = Command::new(PROGRAM);
    command.args(["device", "--data", "8M", "--seconds", "0.2", "--dir"]).arg(&folder);
    let report = report(&finish(&mut command).1);
    assert!(report["ops_per_second"].as_f64() > Some(100.0), "{report}");
    let output = Command::new(PROGRAM).args(["objects", "--list"]).output().unwrap();
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in ["zipf-512", "uniform-mixed", "hot-set", "gather", "updates-128", "packets-8"] {
        assert!(names.lines().any(|line| line == name), "{names}");
    }
}

#[test]
fn a_reader_that_is_gone_ends_nothing() {
    for lists in ["table", "objects"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(PROGRAM).args([lists, "--list"]).stdout(writer).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.is_empty(), "{lists}: {}: {error}", output.status);
    }
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(PROGRAM).args(["table", "--list"]).stdout(full).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("standard output: No space left"), "{error}");
}

#[test]
fn overheads_are_told_in_json_and_as_a_table() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder("overheads");
    let command = || {
        let mut command = Command::new(PROGRAM);
        command.args(["overheads", "--allocate", "objects", "--objects", "2000", "--ram", "64M"]);
        command.args(["--seconds", "0.3", "--dir"]).arg(&folder);
        command
    };
    let report = report(&finish(command().arg("--json")).1);
    for step in ["signal_us", "materialize_us", "dematerialize_us", "address_lookup_us"] {
        assert!(report[step].as_f64() > Some(0.0), "{step}: {report}");
    }
    let (_, output) = finish(&mut command());
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && table.contains("| dematerialize | 0.172 |"), "{table}");
}

#[test]
fn the_malloc_load_runs_on_one_and_four_threads() {
    for threads in ["1", "4"] {
        let mut command = Command::new(PROGRAM);
        command.args(["malloc", "--seconds", "0.3", "--live", "8M", "--threads", threads]);
        let report = report(&finish(&mut command).1);
        assert!(report["measured_ops"].as_u64() > Some(10_000), "{report}");
    }
}
