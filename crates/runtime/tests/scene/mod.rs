//! Scene: a test's process of its own. The runtime is one a process, so a test runs its binary
//! again with the name of the scene in the environment, and judges how that ends.
//!
//! Guarantees: every scene has a folder on a disk for its store, removed afterwards; a scene that
//! does not end in time is killed and fails the test, with what its threads were doing; children
//! that a scene leaves behind end with it.
//! Threads: the test's; inside a scene, the test's again.

#![allow(dead_code, unused_imports)] // not every test file needs all of it

pub mod memory;
pub mod process;

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Which scene the process is to play.
const SCENE: &str = "DEEPHEAP_TEST_SCENE";
/// Its folder.
const FOLDER: &str = "DEEPHEAP_TEST_FOLDER";

/// How long a scene may take before it counts as hanging; on a slow machine, as many seconds as
/// DEEPHEAP_TEST_PATIENCE says.
const PATIENCE: Duration = Duration::from_secs(600);

/// A folder on a disk, removed in the end.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one, beside what cargo builds.
    pub fn new(name: &str) -> Folder {
        let name = format!("scene-{}-{name}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("test folder");
        Folder(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a scene ended, and what it said.
pub struct Ending {
    /// Its exit status.
    pub status: std::process::ExitStatus,
    /// All of its standard error.
    pub said: String,
}

/// Plays a scene of the test `test` in a process of its own, which must succeed. `body` runs there,
/// after the runtime has started with `conf` (without a store: with the scene's folder as store).
pub fn play(test: &str, conf: &str, body: impl FnOnce()) {
    let ending = watch(test, conf, body);
    assert!(ending.status.success(), "{test}: {}\n{}", ending.status, ending.said);
    print!("{}", ending.said);
}

/// As `play`, but however it ends.
pub fn watch(test: &str, conf: &str, body: impl FnOnce()) -> Ending {
    if is_played(test) {
        act(conf, body);
    }
    let folder = Folder::new(test);
    finish(test, spawn(test, folder.path(), Command::new(this_binary())))
}

/// Which act of a scene the process is to play.
const ACT: &str = "DEEPHEAP_TEST_ACT";

/// Plays the acts of a scene one after the other, each in a process of its own, all in one folder.
/// Each must succeed.
pub fn play_in_turn(test: &str, conf: &str, acts: &[fn(&Path)]) {
    if is_played(test) {
        let number: usize = std::env::var(ACT).expect("an act").parse().expect("its number");
        act(conf, || acts[number](&folder().join("heap")));
    }
    let folder = Folder::new(test);
    for number in 0..acts.len() {
        let mut command = Command::new(this_binary());
        command.env(ACT, number.to_string());
        let ending = finish(test, spawn(test, folder.path(), command));
        let status = ending.status;
        assert!(status.success(), "{test}, act {number}: {status}\n{}", ending.said);
        print!("{}", ending.said);
    }
}

/// Whether this process is to play the scene.
pub fn is_played(test: &str) -> bool {
    std::env::var(SCENE).is_ok_and(|scene| scene == test)
}

/// Plays the scene in this process, which ends with it.
pub fn act(conf: &str, body: impl FnOnce()) -> ! {
    let folder = folder();
    let store = if conf.contains("store:") {
        String::new()
    } else {
        format!(",store:{}", folder.display())
    };
    let config = deepheap::Config::parse(&format!("{conf}{store}")).expect("settings");
    // The program's own memory, its threads' stacks say, must not come 2 MiB at a time where costs
    // are compared. Ours does so nowhere (`sys/memory/mapping`).
    // SAFETY: a switch of this process.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    deepheap::init(config).expect("the runtime starts");
    body();
    std::process::exit(0)
}

/// The folder of the scene being played.
pub fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os(FOLDER).expect("a scene has a folder"))
}

/// This test binary.
pub fn this_binary() -> PathBuf {
    std::env::current_exe().expect("the test binary")
}

/// Starts the scene; `command` runs this binary, perhaps through another program.
pub fn spawn(test: &str, folder: &Path, mut command: Command) -> Child {
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(SCENE, test)
        .env(FOLDER, folder)
        .env_remove("DEEPHEAP_CONF")
        .env_remove("DEEPHEAP_SHOW_STATS")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().expect("start the scene")
}

/// Waits for a scene to end.
pub fn finish(test: &str, mut child: Child) -> Ending {
    let mut pipe = child.stderr.take().expect("piped");
    let listener = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What outlives the scene may hold the pipe open; it ends, too.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let seconds = std::env::var("DEEPHEAP_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    let deadline = Instant::now() + seconds.map_or(PATIENCE, Duration::from_secs);
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        if Instant::now() > deadline {
            let threads = process::threads_of(child.id());
            end_group(child.id());
            let said = listener.join().expect("listener");
            panic!("{test} hangs:\n{threads}\n{said}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    end_group(child.id());
    Ending { status, said: listener.join().expect("listener") }
}

/// Kills what is left of a scene: children that a failed one did not wait for.
fn end_group(leader: u32) {
    // SAFETY: the group that `spawn` made, named after its leader; none of another test is in it.
    unsafe { libc::kill(-(leader as i32), libc::SIGKILL) };
}
