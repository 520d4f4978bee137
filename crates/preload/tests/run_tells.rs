//! What `deepheap run` tells of a program and its children when it has ended.

mod preloaded;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use preloaded::{Scratch, command, compile_as};

/// Runs the program `told` in 16 MiB, to end so; answers its output and the file of statistics.
fn run(scratch: &Scratch, how: &str) -> (Output, String) {
    let program = scratch.path().join("told");
    if !program.exists() {
        compile_as("told", "told.c", &[], scratch);
    }
    let mut run = Command::new(command());
    run.args(["run", "--ram", "16M", "--store", ".", "--show-stats", "--stats", "stats.json"]);
    for name in ["LD_PRELOAD", "DEEPHEAP_CONF", "DEEPHEAP_PARENT"] {
        run.env_remove(name);
    }
    let _ = std::fs::remove_file(scratch.path().join("stats.json"));
    let output = run.arg(program).arg(how).current_dir(scratch.path()).output().expect("it runs");
    let statistics = std::fs::read_to_string(scratch.path().join("stats.json"));
    (output, statistics.unwrap_or_default())
}

/// The lines of stderr that say how a process of this command line went.
fn verdicts(output: &Output, of: &str) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    let begin = format!("deepheap: {of}: ");
    said.lines().filter_map(|line| line.strip_prefix(&begin)).map(String::from).collect()
}

#[test]
fn however_a_program_ends_it_is_told_how_it_went() {
    let scratch = Scratch::new("told");
    for (how, status, signal) in [
        ("return", Some(0), None),
        ("exit_group", Some(7), None),
        ("INT", None, Some(libc::SIGINT)),
        ("TERM", None, Some(libc::SIGTERM)),
        ("KILL", None, Some(libc::SIGKILL)),
    ] {
        let (output, statistics) = run(&scratch, how);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), output.status.signal()),
            (status, signal),
            "{how}: {said}"
        );
        let told = verdicts(&output, &format!("told {how}"));
        assert_eq!(told.len(), 1, "{how}: {said}");
        // What it was at its most, though all of it was given back.
        let peak =
            ["peak 48.", "peak 49.", "peak 50."].iter().any(|peak| told[0].starts_with(peak));
        assert!(peak && told[0].contains(" MiB on SSD, waited "), "{how}: {}", told[0]);
        assert_eq!(statistics.lines().count(), 1, "{how}: {statistics}");
        assert!(statistics.contains("\"touched_peak_bytes\":5"), "{how}: {statistics}");
    }
}

#[test]
fn the_ram_that_is_advised_is_for_what_was_touched_not_for_what_was_allocated() {
    let scratch = Scratch::new("told-sparse");
    let (_, statistics) = run(&scratch, "sparse");
    let advised = statistics.split("\"better_budget_bytes\":").nth(1);
    let advised = advised.and_then(|rest| rest.split([',', '}']).next()?.parse::<u64>().ok());
    let advised = advised.unwrap_or_else(|| panic!("no number: {statistics}")) >> 20;
    assert!((48..96).contains(&advised), "{advised} MiB for 48 of 384: {statistics}");
}

#[test]
fn a_program_that_fits_its_budget_is_told_in_few_words() {
    let scratch = Scratch::new("told-small");
    let (output, statistics) = run(&scratch, "small");
    let told = verdicts(&output, "told small");
    assert!(told.len() == 1 && told[0].ends_with("all of it in RAM"), "{told:?}");
    assert_eq!(statistics.lines().count(), 1, "{statistics}");
}

#[test]
fn children_have_a_line_each_and_a_sum() {
    let scratch = Scratch::new("told-children");
    let (output, statistics) = run(&scratch, "children");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    for of in ["told children", "told return child", "told KILL child"] {
        assert_eq!(verdicts(&output, of).len(), 1, "{of}: {said}");
    }
    assert!(said.contains("deepheap: 3 processes: peaks of "), "{said}");
    assert_eq!(statistics.lines().count(), 3, "{statistics}");
}
