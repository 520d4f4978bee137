//! Promises of `deepheap-bench durable`: every contender holds the same records and is measured.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

#[test]
fn all_contenders_hold_the_records() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("durable");
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_deepheap-bench"));
    command.args(["durable", "--data", "8M", "--ram", "24M", "--bytes", "128,1024"]);
    command.args(["--seconds", "1", "--runs", "1"]).arg("--dir").arg(&folder);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        assert!(output.status.success(), "{said}{error}");
        for row in ["deepheap", "lmdb", "redb"] {
            for bytes in [128, 1024] {
                assert!(said.contains(&format!("| {bytes} | {row} | ")), "{said}");
            }
        }
    } else {
        eprintln!("SKIPPED: it makes memory cgroups, which needs root");
        assert_eq!(output.status.code(), Some(2), "{error}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
    std::fs::remove_dir(&folder).unwrap();
}
