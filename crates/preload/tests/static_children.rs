//! A child without a dynamic linker cannot be managed: that is said, once, where the user reads.

mod preloaded;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use preloaded::{Scratch, command, compile_as};

/// The words of the line.
const WORDS: &str = "is statically linked, so its malloc cannot be replaced";

/// Runs a script with these settings; answers its output and the lines that say so.
fn run(script: &str, settings: &str, scratch: &Scratch) -> (String, Vec<String>) {
    let child: PathBuf = scratch.path().join("fixed");
    if !child.exists() {
        compile_as("fixed", "answers.c", &["-static".as_ref()], scratch);
    }
    let mut run = Command::new(command());
    for name in ["LD_PRELOAD", "DEEPHEAP_PARENT"] {
        run.env_remove(name);
    }
    let path = format!("{}:/usr/bin:/bin", scratch.path().display());
    let output = run
        .env("DEEPHEAP_CONF", settings)
        .env("PATH", path)
        .args(["run", "--store", ".", "sh", "-c", script])
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{script}: {said}");
    let lines = said.lines().filter(|line| line.contains(WORDS)).map(String::from).collect();
    (String::from_utf8_lossy(&output.stdout).into_owned(), lines)
}

#[test]
fn a_static_child_is_told_once_and_nowhere_that_a_program_reads() {
    let scratch = Scratch::new("static-children");
    let (out, said) =
        run("./fixed 1; ./fixed 1; (./fixed 1; ./fixed 1); true", "ram:32M", &scratch);
    assert_eq!(out, "filled\n".repeat(4));
    assert!(said.len() == 1 && said[0].starts_with("deepheap: ./fixed is "), "{said:?}");

    // Found in PATH by libc.
    let (out, said) = run("env fixed 1; true", "ram:32M", &scratch);
    assert!(out == "filled\n" && said.len() == 1 && said[0].contains("/fixed is "), "{said:?}");

    let (out, said) = run("v=$(./fixed 1 2>&1); echo \"[$v]\"", "ram:32M", &scratch);
    assert_eq!((out.as_str(), said.len()), ("[filled]\n", 0), "{said:?}");

    for settings in ["ram:32M,quiet:yes", "ram:32M,children:no"] {
        let (out, said) = run("./fixed 1; true", settings, &scratch);
        assert_eq!((out.as_str(), said.len()), ("filled\n", 0), "{settings}: {said:?}");
    }
    let (_, said) = run("env true; ls /; cat /dev/null", "ram:32M", &scratch);
    assert!(said.is_empty(), "{said:?}");
}
