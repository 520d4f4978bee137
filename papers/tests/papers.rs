//! Promises of `deepheap-papers papers`: it goes on where it was, tells what failed, and takes
//! everything back when it is interrupted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::PoisonError;

#[path = "../../bench/tests/leftovers/mod.rs"]
mod leftovers;

use leftovers::{TURN, finish, folder, is_root, leftovers, page_cluster, send, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_deepheap-papers");

/// A folder of applications that need no memory; `script` sees the options of one.
fn fake_applications(folder: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("random_access");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn papers(folder: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args([
        "papers",
        "--quick",
        "--only",
        "ssdram-figure6",
        "--data",
        "64M",
        "--ram",
        "16M",
    ]);
    command.arg("--apps").arg(folder).arg("--dir").arg(folder);
    command.arg("--out").arg(folder.join("out"));
    command
}

#[test]
fn papers_go_on_where_they_were_and_tell_what_failed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder("papers");
    let _ = fs::remove_dir_all(folder.join("out"));
    let said = |(pid, output): (u32, Output)| {
        assert_eq!(leftovers(&folder, pid), Vec::<String>::new());
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    fake_applications(
        &folder,
        "case \"$*\" in *'pages'*) echo 'no luck today' >&2; exit 3;; esac\n\
         echo '{\"threads\":8,\"seconds\":2,\"operations\":48690,\"operations_per_second\":24345}'",
    );
    let first = said(finish(&mut papers(&folder)));
    assert!(first.contains(".objects: 24.3 k/s, mean 329 us"), "{first}");
    assert!(first.contains(".pages: FAILED: random_access: status 3: no luck today"), "{first}");
    let page = fs::read_to_string(folder.join("out/ssdram.md")).unwrap();
    assert!(page.contains("| 8 | objects | 24.3 k/s | 329 us |"), "{page}");
    assert!(page.contains("| 8 | pages | failed: random_access: status 3: no luck today |"));
    assert_eq!(page.contains("| 8 | swap | 24.3 k/s |"), is_root(), "{page}");
    assert_eq!(page.contains("| 8 | swap | failed: needs root"), !is_root(), "{page}");
    assert!(folder.join("out/ssdram-figure6.svg").exists());

    let second = said(finish(&mut papers(&folder)));
    assert!(second.contains(".pages: FAILED") && !second.contains(".objects:"), "{second}");
    let again = said(finish(papers(&folder).arg("--again")));
    assert!(again.contains(".objects: 24.3 k/s"), "{again}");
}

#[test]
fn papers_that_are_interrupted_take_everything_back() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder("papers-interrupted");
    let _ = fs::remove_dir_all(folder.join("out"));
    let before = page_cluster();
    // The object variant is done; whatever comes next takes its time.
    fake_applications(
        &folder,
        "case \"$*\" in *objects*) echo '{\"threads\":1,\"operations_per_second\":1}';;\n\
         *) touch started; sleep 1000;; esac",
    );
    let _ = fs::remove_file(folder.join("started"));
    let mut command = papers(&folder);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("a program that takes its time", || folder.join("started").exists());
    send(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGINT));
    assert_eq!(leftovers(&folder, child.id()), Vec::<String>::new());
    assert_eq!(page_cluster(), before);
    let page = fs::read_to_string(folder.join("out/ssdram.md")).unwrap();
    assert!(page.contains("| 1 | objects | 1/s |"), "what was measured is shown: {page}");
}
