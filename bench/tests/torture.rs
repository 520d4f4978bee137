//! Promises of `deepheap-bench torture`: durable heaps survive kills and power cuts, what was lost
//! would be noticed, and nothing is left behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_deepheap-bench");

/// A folder on a disk, which is empty in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    /// Whether a file system in a file of this folder is mounted, in whatever namespace.
    fn is_mounted(&self) -> bool {
        let folder = self.0.canonicalize().unwrap();
        let devices = fs::read_dir("/sys/block").unwrap().map(|device| device.unwrap().path());
        let files = devices.filter_map(|it| fs::read_to_string(it.join("loop/backing_file")).ok());
        files.into_iter().any(|file| Path::new(&file).starts_with(&folder))
    }

    /// Waits until nothing of it is mounted: a mount ends with the last process that saw it.
    fn wait_unmounted(&self) {
        let end = Instant::now() + Duration::from_secs(120);
        while self.is_mounted() {
            assert!(Instant::now() < end, "it stays mounted");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn torture(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("torture").args(arguments).arg("--dir").arg(&folder.0);
    command
}

fn said(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{}: {out}{error}", output.status);
    print!("{out}");
    out.into_owned()
}

/// Whether the machine lacks what file systems in files need; then it is told.
fn is_left_out(said: &str) -> bool {
    let is_left_out = said.contains("left out");
    if is_left_out {
        eprintln!("SKIPPED: {said}");
    }
    is_left_out
}

#[test]
fn a_heap_whose_process_is_killed_loses_nothing() {
    let folder = Folder::new("torture-kills");
    let output = torture(&folder, &["--on", "here", "--kills", "20"]).output().unwrap();
    assert!(said(&output).contains("here: 20 kills"));
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn a_heap_whose_power_is_cut_loses_nothing() {
    let folder = Folder::new("torture-power");
    let arguments = ["--on", "ext4", "--kills", "0", "--power-cuts", "5"];
    let mut command = torture(&folder, &arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Containers that start meanwhile get copies of all mounts that they can see, and keep them.
    while child.try_wait().unwrap().is_none() {
        Command::new("unshare").args(["--mount", "sleep", "1"]).output().unwrap();
    }
    let said = said(&child.wait_with_output().unwrap());
    assert!(is_left_out(&said) || said.contains("ext4: 5 power cuts"), "{said}");
    assert_eq!(folder.names(), Vec::<String>::new());
    folder.wait_unmounted();
}

#[test]
fn what_a_killed_torture_leaves_is_cleaned() {
    let folder = Folder::new("torture-killed");
    let mut command = torture(&folder, &["--on", "ext4", "--kills", "1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    while !folder.is_mounted() {
        assert!(Instant::now() < end, "it mounts nothing");
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            assert!(is_left_out(&said(&output)));
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    // Its actor ends with it, and gives the file system up a moment later.
    let status = Command::new(PROGRAM).arg("clean").status().unwrap();
    assert!(status.success());
    folder.wait_unmounted();
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn canary_what_is_lost_is_noticed() {
    let folder = Folder::new("torture-canary");
    let file = folder.0.join("heap.dh");
    let actor = |act: &str, more: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["torture-actor", act, "--options", "ram:24M,size:4G,store_size:1G"]);
        command.arg("--file").arg(&file).arg("--store").arg(&folder.0).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut child = actor("perform", &["--seed", "7"]).spawn().unwrap();
    // A checkpoint that has operations of every lane: less would not be missed.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let durable = lines.find_map(|line| {
        let line = line.unwrap();
        let done = line.strip_prefix("made ")?.split(' ').skip(1);
        done.clone().all(|done| done != "0").then(|| done.count())
    });
    assert_eq!(durable, Some(4), "lanes of a checkpoint");
    child.kill().unwrap();
    child.wait().unwrap();
    let right = actor("check", &["--seed", "7"]).output().unwrap();
    assert!(said(&right).contains("operations are right"));
    for (more, reason) in [
        (["--seed", "7", "--told", "0,0,999999999999,0"], "were durable"),
        (["--seed", "7", "--number", "999999999"], "was made"),
        (["--seed", "8", "--told", "0,0,0,0"], "lane 0, slot"),
    ] {
        let output = actor("check", &more).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}
