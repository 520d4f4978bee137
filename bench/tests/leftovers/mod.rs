//! What runs of the benchmark make on a machine, and what is left of it: for the tests of
//! `deepheap-bench` and `deepheap-papers`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Runs are heavy, and two cores have to do: one test at a time.
pub static TURN: Mutex<()> = Mutex::new(());

/// A folder on a disk (the target folder may be on tmpfs only if everything is).
pub fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&folder).unwrap();
    folder
}

pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Runs to the end; the process id says whose the leftovers are.
pub fn finish(command: &mut Command) -> (u32, Output) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    (child.id(), child.wait_with_output().unwrap())
}

/// What the run with this process id has in the places where runs make things.
pub fn leftovers(folder: &Path, pid: u32) -> Vec<String> {
    let ours = [format!("deepheap-bench.{pid}."), format!("deepheap-bench.{pid}-")];
    let mut found = Vec::new();
    for line in fs::read_to_string("/proc/swaps").unwrap().lines() {
        if line.contains(&ours[0]) {
            found.push(line.to_string());
        }
    }
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let inside = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |l| l.1);
    let memory = Path::new("/sys/fs/cgroup/memory");
    let cgroups = [memory.join(inside.trim_start_matches('/')), PathBuf::from("/sys/fs/cgroup")];
    for place in cgroups.iter().map(PathBuf::as_path).chain([folder, Path::new("/run")]) {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if ours.iter().any(|prefix| name.starts_with(prefix)) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    found
}

pub fn page_cluster() -> String {
    fs::read_to_string("/proc/sys/vm/page-cluster").unwrap()
}

pub fn wait_until(what: &str, mut true_at_last: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !true_at_last() {
        assert!(Instant::now() < end, "{what} did not happen within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn send(child: &Child, signal: i32) {
    // SAFETY: kill has no memory preconditions; the child was not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}
