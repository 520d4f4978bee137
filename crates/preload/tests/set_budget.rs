//! What `deepheap set` promises: a running program uses no more than it is told, keeps every byte,
//! and has its RAM back when it is told so.

mod preloaded;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use preloaded::{Scratch, command, compile_as};

const MIB: u64 = 1 << 20;

/// A program under deepheap, ended with its test.
struct Running {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Running {
    /// Fills so many MiB under `deepheap run` with these options.
    fn filled(mib: &str, options: &[&str], scratch: &Scratch) -> Running {
        // Other tests run theirs: the name of the process tells them apart.
        let name = scratch.path().file_name().and_then(|name| name.to_str()).expect("a name");
        let program = scratch.path().join(name);
        if !program.exists() {
            compile_as(name, "answers.c", &[], scratch);
        }
        let mut child = deepheap(scratch)
            .args(["run", "--store", "."])
            .args(options)
            .arg(program)
            .arg(mib)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let questions = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut running = Running { child, questions, answers };
        assert_eq!(running.line(), "filled\n");
        running
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        line
    }

    /// Has it look at all of its memory.
    fn check(&mut self) {
        self.questions.write_all(b"?\n").expect("it listens");
        assert_eq!(self.line(), "0 wrong\n");
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn deepheap(scratch: &Scratch) -> Command {
    let mut deepheap = Command::new(command());
    for name in ["LD_PRELOAD", "DEEPHEAP_CONF", "DEEPHEAP_PARENT"] {
        deepheap.env_remove(name);
    }
    deepheap.current_dir(scratch.path());
    deepheap
}

/// Exit status, and what was said.
fn set(pid: &str, ram: &str, scratch: &Scratch) -> (Option<i32>, String) {
    let output = deepheap(scratch).args(["set", pid, "--ram", ram]).output().expect("it runs");
    let told = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&told).into_owned())
}

/// The budget of a process and what it uses, as it tells.
fn memory(pid: &str, scratch: &Scratch) -> (u64, u64) {
    let output = deepheap(scratch).args(["stat", "--json", pid]).output().expect("it runs");
    let json = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |name: &str| {
        let (_, rest) = json.split_once(&format!("\"{name}\":")).expect(name);
        let end = rest.find(|digit: char| !digit.is_ascii_digit()).expect("an end");
        rest[..end].parse::<u64>().expect("a number")
    };
    (number("budget_bytes"), number("page_buffer_bytes") + number("cache_bytes"))
}

#[test]
fn a_program_uses_no_more_than_it_is_told_and_has_its_ram_back() {
    let scratch = Scratch::new("set-budget");
    let mut running = Running::filled("96", &["--ram", "64M"], &scratch);
    let pid = running.pid();
    let (budget, most) = memory(&pid, &scratch);
    assert!(budget == 64 * MIB && most > 32 * MIB, "{budget} {most}");

    let (status, told) = set(&pid, "24M", &scratch);
    assert_eq!(status, Some(0), "{told}");
    let words = format!("set-budget ({pid}): RAM budget 64.0 MiB -> 24.0 MiB, ");
    assert!(told.starts_with(&words) && told.ends_with(" in use\n"), "{told}");
    let (budget, used) = memory(&pid, &scratch);
    assert!(budget == 24 * MIB && used < 24 * MIB, "{budget} {used}");
    running.check();
    let (budget, used) = memory(&pid, &scratch);
    assert!(budget == 24 * MIB && used < 24 * MIB, "{budget} {used}");

    let (status, told) = set("set-budget", "64M", &scratch);
    let words = format!("set-budget ({pid}): RAM budget 24.0 MiB -> 64.0 MiB, ");
    assert!(status == Some(0) && told.starts_with(&words), "{told}");
    running.check();
    // Its gauges come when its workers have something to do, and when somebody asks.
    let (status, told) = set(&pid, "64M", &scratch);
    assert_eq!(status, Some(0), "{told}");
    let (budget, used) = memory(&pid, &scratch);
    assert!(budget == 64 * MIB && used > 32 * MIB, "{budget} {used}");
}

#[test]
fn what_cannot_be_set_is_refused_with_the_reason() {
    let scratch = Scratch::new("set-refused");
    let mut running = Running::filled("32", &["--ram", "24M"], &scratch);
    let moving = Running::filled("1", &["--ram", "auto"], &scratch);
    let pooled = Running::filled("1", &["--ram", "24M", "--pool", "set-refused"], &scratch);
    let (own, pid) = (std::process::id().to_string(), running.pid());
    for (whose, ram, status, words) in [
        ("4194304", "24M", 1, "there is no process"),
        (&*own, "24M", 1, "does not run under deepheap"),
        ("no-such-name", "24M", 1, "`deepheap stat` lists those"),
        (&*pid, "15M", 2, "give at least 16.0 MiB"),
        (&*pid, "25M", 2, "more than the 24.0 MiB that set-refused"),
        (&*pid, "much", 2, "in --ram: "),
        (&*moving.pid(), "24M", 2, "moves by itself"),
        (&*pooled.pid(), "24M", 2, "moves by itself"),
    ] {
        let (found, told) = set(whose, ram, &scratch);
        assert!(found == Some(status) && told.contains(words), "{whose} {ram}: {found:?} {told}");
    }
    assert_eq!(memory(&pid, &scratch).0, 24 * MIB);
    running.check();
}

#[test]
fn a_heap_within_its_ram_follows_when_it_grows() {
    let scratch = Scratch::new("set-plain");
    let mut running = Running::filled("32", &["--ram", "96M"], &scratch);
    let (status, told) = set(&running.pid(), "24M", &scratch);
    assert!(status == Some(0) && told.contains("when its heap next grows"), "{told}");
    running.check();
    assert_eq!(memory(&running.pid(), &scratch).0, 96 * MIB);
    running.questions.write_all(b"more\n").expect("it listens");
    assert_eq!(running.line(), "0 wrong\n");
    // A moment may pass before it tells that its heap is managed.
    let told = loop {
        let (status, told) = set(&running.pid(), "24M", &scratch);
        assert_eq!(status, Some(0), "{told}");
        if !told.contains("when its heap next grows") {
            break told;
        }
    };
    assert!(told.contains("24.0 MiB -> 24.0 MiB, "), "{told}");
    let (budget, used) = memory(&running.pid(), &scratch);
    assert!(budget == 24 * MIB && used < 24 * MIB, "{budget} {used}");
    running.check();
}

#[test]
fn a_forked_child_has_the_budget_that_its_parent_was_told() {
    let scratch = Scratch::new("set-forked");
    let mut running = Running::filled("96", &["--ram", "64M"], &scratch);
    let (status, told) = set(&running.pid(), "24M", &scratch);
    assert_eq!(status, Some(0), "{told}");
    running.questions.write_all(b"fork\n").expect("it listens");
    let child = running.line().trim_end().to_owned();
    running.check();
    // Its page is new: a moment may pass before it tells anything.
    let (budget, used) = loop {
        let told = memory(&child, &scratch);
        if told.0 != 0 {
            break told;
        }
    };
    assert!(budget == 24 * MIB && used < 24 * MIB, "{budget} {used}");
    let (status, told) = set(&child, "48M", &scratch);
    assert!(status == Some(0) && told.contains("24.0 MiB -> 48.0 MiB, "), "{told}");
    assert_eq!(memory(&running.pid(), &scratch).0, 24 * MIB);
    running.check();
}
