//! What `deepheap profile` promises: the functions whose accesses fault, and those that call them,
//! by the time waited there.

mod preloaded;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use preloaded::{Scratch, command, compile_as};

/// As programs are built, so that only their tables tell how to unwind them.
const OPTIMISED: [&str; 2] = ["-O2", "-fomit-frame-pointer"];

fn deepheap(scratch: &Scratch) -> Command {
    let mut deepheap = Command::new(command());
    deepheap.current_dir(scratch.path());
    deepheap.env_remove("LD_PRELOAD").env_remove("DEEPHEAP_CONF");
    deepheap
}

/// Profiles the program in one of its ways, in a folder of this name; what it said, and lines of
/// folded stacks.
fn profiled(name: &str, way: &str, options: &[&str]) -> (Output, Vec<(String, u64)>) {
    let scratch = Scratch::new(name);
    let options: Vec<_> = options.iter().map(AsRef::as_ref).collect();
    let program = compile_as("program", "where_it_waits.c", &options, &scratch);
    let output = deepheap(&scratch)
        .args(["profile", "--ram", "16M", "--store", ".", "-o", "stacks", "-o", "flame.svg", "--"])
        .arg(program)
        .arg(way)
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(" 0 wrong\n"), "{told}");
    let svg = std::fs::read_to_string(scratch.path().join("flame.svg")).expect("a picture");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    let folded = folded(&scratch);
    (output, folded)
}

fn folded(scratch: &Scratch) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(scratch.path().join("stacks")).expect("stacks");
    let line = |line: &str| {
        let (stack, ns) = line.rsplit_once(' ').expect("a stack and a number");
        (stack.to_owned(), ns.parse().expect("nanoseconds"))
    };
    text.lines().map(line).collect()
}

/// The share of the time in stacks with this in them.
fn share(folded: &[(String, u64)], part: &str) -> f64 {
    let sum = |part: &str| -> u64 {
        folded.iter().filter(|(stack, _)| stack.contains(part)).map(|(_, ns)| ns).sum()
    };
    sum(part) as f64 / sum("") as f64
}

#[test]
fn waits_are_told_of_the_function_and_of_its_callers_without_frame_pointers_and_with() {
    let with = ["-O2", "-fno-omit-frame-pointer"];
    for (name, options) in [("profile-without", OPTIMISED), ("profile-with", with)] {
        let (output, folded) = profiled(name, "plain", &options);
        assert!(share(&folded, ";main;middle;touch_cold") > 0.5, "{folded:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        let line = told.lines().find(|line| line.contains("touch_cold")).expect("a line of it");
        assert!(line.contains("(program)") && line.contains(" % "), "{told}");
        assert!(told.contains(" %  touch_cold < middle < main < "), "{told}");
        // Lines of the log, and of the files, may be longer.
        let is_short = |line: &str| line.len() <= 80 || line.starts_with("deepheap");
        assert!(told.lines().all(is_short), "{told}");
    }
}

#[test]
fn a_forked_child_is_told_of_beside_its_parent() {
    let (output, folded) = profiled("profile-forked", "plain", &OPTIMISED);
    let pid = String::from_utf8_lossy(&output.stdout);
    let parent = format!("program ({})", pid.split(' ').next().expect("its number"));
    let of_child = |stack: &&(String, u64)| !stack.0.starts_with(&parent);
    let of_child: Vec<_> = folded.iter().filter(of_child).cloned().collect();
    assert!(share(&folded, &parent) > 0.1 && !of_child.is_empty(), "{folded:?}");
    assert!(share(&of_child, ";main;middle;touch_cold") > 0.5, "{folded:?}");
}

#[test]
fn a_stack_that_is_evicted_or_not_there_is_told_as_far_as_it_is_there() {
    let (_, folded) = profiled("profile-stack", "stack", &OPTIMISED);
    assert!(share(&folded, "touch_cold") > 0.5, "{folded:?}");
    assert!(share(&folded, "deeper;middle;touch_cold") > 0.0, "before it is evicted: {folded:?}");
    let (_, folded) = profiled("profile-broken", "broken", &OPTIMISED);
    assert!(share(&folded, "broken") > 0.1, "{folded:?}");
}

#[test]
fn functions_made_at_run_time_have_the_names_of_their_file() {
    let (output, folded) = profiled("profile-made", "made", &OPTIMISED);
    let pid = String::from_utf8_lossy(&output.stdout);
    let pid = pid.split(' ').next().expect("its number");
    std::fs::remove_file(format!("/tmp/perf-{pid}.map")).expect("the program wrote it");
    assert!(share(&folded, ";cook;once;middle;touch_cold") > 0.3, "{folded:?}");
    let is_whole = |(stack, _): &(String, u64)| stack.contains(";main;") || !stack.contains("cook");
    assert!(folded.iter().all(is_whole), "{folded:?}");
}

#[test]
fn a_program_that_runs_already_is_profiled_and_goes_on() {
    let scratch = Scratch::new("profile-long");
    let options = OPTIMISED.map(AsRef::as_ref);
    let program = compile_as("program", "where_it_waits.c", &options, &scratch);
    let mut child = deepheap(&scratch)
        .args(["run", "--ram", "16M", "--store", "."])
        .arg(program)
        .arg("long")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let pid = child.id().to_string();
    for time in ["once", "and once more"] {
        let output = deepheap(&scratch)
            .args(["profile", "--seconds", "0.5", "-o", "stacks", &pid])
            .output()
            .expect("it runs");
        let (told, error) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        let told = String::from_utf8_lossy(&told);
        assert!(output.status.success() && told.contains("touch_cold"), "{time}: {told}{error}");
        assert!(share(&folded(&scratch), ";main;middle;touch_cold") > 0.9, "{time}");
    }
    assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    child.kill().expect("it is ended");
    child.wait().expect("it ended");
}
