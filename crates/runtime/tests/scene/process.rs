//! Process: what the kernel says of a process, and forked children.
//!
//! Threads: any.

use std::fs;
use std::time::{Duration, Instant};

/// A memory figure of this process in a file of /proc/self, in bytes.
fn memory(file: &str, name: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/self/{file}")).expect("a file of figures");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    kib.expect("a memory figure") * 1024
}

/// What the process costs the machine: resident pages and page tables. `VmRSS` would be cheaper,
/// but threads and processors keep parts of it to themselves (proc(5)).
pub fn cost() -> usize {
    memory("smaps_rollup", "Rss") + memory("status", "VmPTE")
}

/// Clock ticks (of 10 ms) that a process has used so far, all threads of it.
pub fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields: Vec<&str> = stat[stat.rfind(')').expect("name") + 2..].split(' ').collect();
    let number = |index: usize| fields[index].parse::<u64>().expect("ticks");
    number(11) + number(12)
}

/// One line a thread: name, state, where in the kernel it is, ticks.
pub fn threads_of(pid: u32) -> String {
    let mut text = String::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return text };
    for task in tasks.flatten() {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let fields: Vec<&str> = stat.split(' ').collect();
        let place = read("syscall");
        text += &format!("{} {}", read("comm").trim(), fields.get(2).unwrap_or(&"?"));
        text += &format!(" in {} ticks {:?}\n", place.trim(), fields.get(13..15));
    }
    text
}

/// Runs `body` in a forked child, which ends without the parent's clean-up.
pub fn fork(body: impl FnOnce()) -> i32 {
    // SAFETY: the child runs Rust code that needs no lock of another thread: the test harness's
    // other thread only waits, and libc makes malloc and stdio usable in a forked child.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends this process.
        unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) };
    }
    child
}

/// Waits for a child; its raw status.
pub fn wait(child: i32) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: a place for the status.
        let answer = unsafe { libc::waitpid(child, &mut status, 0) };
        if answer == child {
            return status;
        }
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "waitpid: {error}");
    }
}

/// That a child ended well.
#[track_caller]
pub fn must_succeed(child: i32) {
    let status = wait(child);
    assert_eq!(status, 0, "the child's status");
}

/// Kills a child and waits for it.
pub fn kill(child: i32) {
    // SAFETY: a child of ours that nobody has waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait(child);
}

/// Looks now and then until it is so; false if it is not within `limit`.
pub fn soon(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Runs a program of the system that is to succeed; what it printed, or why it did not.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = std::process::Command::new(program).args(arguments).output();
    match output.map_err(|error| format!("{program}: {error}"))? {
        output if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        output => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
