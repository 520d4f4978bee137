//! Process: what the kernel says of a process, and forked children.
//!
//! Threads: any.

use std::fs;
use std::time::{Duration, Instant};

pub use deepheap_child::{fork, must_succeed, wait};

/// Kills a child and waits for it.
pub fn kill(child: i32) {
    deepheap_child::kill(child);
    wait(child);
}

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

/// How long a process is watched that is to rest.
pub const REST: Duration = Duration::from_secs(3);
/// What is allowed in that time, in ticks of 10 ms.
const REST_TICKS_MAX: u64 = 1;

/// That a process, all of its threads, sleeps once it has finished what it began.
#[track_caller]
pub fn must_rest(pid: u32) {
    must_use_at_most(pid, REST_TICKS_MAX);
}

/// That a process uses no more ticks than that within `REST`, once it has finished what it began.
/// Where others have the processors and the device that may take a while, with pauses in between.
#[track_caller]
pub fn must_use_at_most(pid: u32, most: u64) {
    let mut used = 0;
    for _ in 0..40 {
        let before = ticks(pid);
        std::thread::sleep(REST);
        used = ticks(pid) - before;
        if used <= most {
            return;
        }
    }
    panic!("{used} ticks in {REST:?}, where {most} are allowed\n{}", threads_of(pid));
}

/// Whether all threads of this process but the one that asks wait for something.
pub fn others_sleep() -> bool {
    // SAFETY: no memory is involved.
    let own = unsafe { libc::gettid() }.to_string();
    let tasks = fs::read_dir("/proc/self/task").expect("tasks").flatten();
    tasks.filter(|task| *task.file_name() != *own).all(|task| {
        // One that has ended is gone.
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|fields| !fields.starts_with(['R', 'D']))
    })
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

/// Hundredths of a second that a process has been on processors.
pub fn ticks_of(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may have spaces: fields 14 and 15 of all.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
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
