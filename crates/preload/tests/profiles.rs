//! What `deepheap profile` promises: the functions whose accesses fault, and those that call them,
//! by the time waited there; and the functions that allocated what is cold, by its bytes.

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
    assert!(!scratch.path().join("stacks.allocations").exists(), "nobody asked for it");
    let folded = folded(&scratch, "stacks");
    (output, folded)
}

fn folded(scratch: &Scratch, file: &str) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(scratch.path().join(file)).expect("stacks");
    let line = |line: &str| {
        let (stack, ns) = line.rsplit_once(' ').expect("a stack and a number");
        (stack.to_owned(), ns.parse().expect("nanoseconds"))
    };
    text.lines().map(line).collect()
}

/// Without what `main` itself waited for: how long it takes to fill the memory depends on what else
/// the machine does.
fn once_filled(mut folded: Vec<(String, u64)>) -> Vec<(String, u64)> {
    folded.retain(|(stack, _)| !stack.ends_with(";main"));
    folded
}

/// The weight of stacks with this in them.
fn sum(folded: &[(String, u64)], part: &str) -> u64 {
    folded.iter().filter(|(stack, _)| stack.contains(part)).map(|(_, weight)| weight).sum()
}

/// Their share of all.
fn share(folded: &[(String, u64)], part: &str) -> f64 {
    sum(folded, part) as f64 / sum(folded, "") as f64
}

/// What is told of the allocations of the program that ends in a way, and its folded stacks.
fn allocated(name: &str, way: &[&str]) -> (Output, Vec<(String, u64)>) {
    let scratch = Scratch::new(name);
    let options = OPTIMISED.map(AsRef::as_ref);
    let program = compile_as("program", "what_it_allocates.c", &options, &scratch);
    let output = deepheap(&scratch)
        .args(["profile", "--allocations", "--ram", "16M", "--store", ".", "-o", "stacks", "--"])
        .arg(program)
        .args(way)
        .output()
        .expect("it runs");
    let out = String::from_utf8_lossy(&output.stdout);
    let file = out.lines().next().expect("the file in shared memory");
    assert!(file.len() > 40 && !std::fs::exists(file).expect("a look"), "{file} is there");
    (output, folded(&scratch, "stacks.allocations"))
}

/// As `allocated`, of a program that does not end until the worker that looks had time to: more of
/// it if it had none.
fn allocated_in_time(name: &str, way: &str) -> (Output, Vec<(String, u64)>) {
    let tries = ["1", "4", "16"].map(|seconds| move || allocated(name, &[way, seconds]));
    let is_seen = |seen: &(Output, Vec<(String, u64)>)| sum(&seen.1, "allocate_cold") >> 20 >= 30;
    tries.into_iter().map(|seen| seen()).find(is_seen).expect("what was cold is seen")
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
    let folded = once_filled(profiled("profile-stack", "stack", &OPTIMISED).1);
    assert!(share(&folded, "touch_cold") > 0.5, "{folded:?}");
    assert!(share(&folded, "deeper;middle;touch_cold") > 0.0, "before it is evicted: {folded:?}");
    let folded = once_filled(profiled("profile-broken", "broken", &OPTIMISED).1);
    assert!(share(&folded, "broken") > 0.1, "{folded:?}");
}

#[test]
fn functions_made_at_run_time_have_the_names_of_their_file() {
    let (output, folded) = profiled("profile-made", "made", &OPTIMISED);
    let folded = once_filled(folded);
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
        assert!(share(&folded(&scratch, "stacks"), ";main;middle;touch_cold") > 0.9, "{time}");
    }
    assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    child.kill().expect("it is ended");
    child.wait().expect("it ended");
}

#[test]
fn what_allocated_cold_memory_is_told_and_what_is_hot_or_freed_is_not() {
    let (output, folded) = allocated("profile-allocations", &["plain"]);
    let (told, out) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success() && out.ends_with(" 0 wrong\n"), "{told}");
    let first = told.split_once("allocated by\n").and_then(|(_, rest)| rest.lines().nth(1));
    let first = first.expect("a stack");
    assert!(first.contains("allocate_cold < main < "), "{told}");
    let is_short = |line: &str| line.len() <= 80 || line.starts_with("deepheap");
    assert!(told.lines().all(is_short), "{told}");
    let last = out.lines().last().expect("a line");
    let parent = format!("program ({})", last.split(' ').next().expect("its number"));
    let of_parent = |stack: &&(String, u64)| stack.0.starts_with(&parent);
    let (parents, childs): (Vec<_>, Vec<_>) =
        folded.into_iter().partition(|stack| of_parent(&stack));
    // Of 64 MiB 128 samples are expected: 9 % is one standard deviation. Up to 16 MiB are in RAM.
    let mib = |of: &[(String, u64)], part: &str| sum(of, part) >> 20;
    for (part, expected) in [
        (";main;allocate_cold", 30..=96),
        (";main;allocate_mapped", 6..=12),
        (";main;allocate_grown", 6..=36),
        ("allocate_waste", 0..=0),
        ("allocate_hot", 0..=1),
    ] {
        assert!(expected.contains(&mib(&parents, part)), "{part}: {parents:?}\n{told}");
    }
    assert!((16..=80).contains(&mib(&childs, ";main;allocate_in_child")), "{childs:?}\n{told}");
    assert_eq!(sum(&childs, "allocate_cold"), 0, "its parent's: {childs:?}");
}

#[test]
fn what_was_cold_is_told_though_the_program_freed_it_in_the_end_or_was_killed() {
    for way in ["freed", "killed"] {
        let (output, folded) = allocated_in_time(&format!("profile-allocations-{way}"), way);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), way == "freed", "{told}");
        assert!(share(&folded, ";main;allocate_cold") >= 0.5, "{way}: {folded:?}\n{told}");
        assert_eq!(sum(&folded, "allocate_waste"), 0, "{way}: {folded:?}\n{told}");
    }
}
