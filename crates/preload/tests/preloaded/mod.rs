//! Preloaded: compiles the C programs beside these tests and runs programs with and without the
//! preload library.
//!
//! Guarantees: the library is the one this package makes, brought up to date first; every program
//! runs in a folder of its own, on a real file system, with a store there.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Without us: what is expected.
    Bare,
    /// Preloaded, with a budget it fits in.
    Plain,
    /// Preloaded, with the least budget there is.
    Managing,
    /// As `Managing`, with all that may be an object one.
    Objects,
}

impl Setting {
    pub const ALL: [Setting; 3] = [Setting::Bare, Setting::Plain, Setting::Managing];
    pub const PRELOADED: [Setting; 2] = [Setting::Plain, Setting::Managing];

    /// Settings that go with the budget; the store is the working folder.
    fn conf(self) -> Option<&'static str> {
        match self {
            Setting::Bare => None,
            Setting::Plain => Some("ram:1G,store:."),
            Setting::Managing => Some("ram:16M,store:."),
            Setting::Objects => Some("ram:16M,store:.,objects:1-64K"),
        }
    }

    /// Adds the library and the settings to a command.
    pub fn apply(self, command: &mut Command) {
        command.env_remove("LD_PRELOAD").env_remove("DEEPHEAP_CONF");
        if let Some(conf) = self.conf() {
            command.env("LD_PRELOAD", library()).env("DEEPHEAP_CONF", conf);
        }
        if !matches!(self, Setting::Bare | Setting::Plain) {
            command.env("EXPECT_EVICTION", "1");
        }
    }
}

/// The library under test. Cargo builds a test's package but not the shared library that it makes.
pub fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(build_library).clone()
}

/// The command, beside the library.
pub fn command() -> PathBuf {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    let built = || build(&["--bin", "deepheap"]).join("deepheap");
    let _library = library();
    COMMAND.get_or_init(built).clone()
}

fn build_library() -> PathBuf {
    build(&["--lib"]).join("libdeepheap_preload.so")
}

/// Builds this kind of target; answers the folder in which it lies then. It builds it for all of
/// the workspace: with the features of one package the crates below were built once more.
fn build(kind: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let mut folders = test.ancestors().skip(2);
    let folder = folders.next().expect("a test lies in TARGET/PROFILE/deps");
    let target = folders.next().expect("a test lies in TARGET/PROFILE/deps");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(name) => name,
        None => panic!("{} has no profile in it", test.display()),
    };
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--workspace", "--quiet", "--profile", profile])
        .args(kind)
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo build: {}", String::from_utf8_lossy(&output.stderr));
    folder.to_path_buf()
}

/// A folder that is gone when the test is over.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        // Not the system's temporary folder: it may be in memory, where no store can be.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a scratch folder");
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles a program of `tests/programs`.
pub fn compile(source: &str, into: &Scratch) -> PathBuf {
    compile_as("program", source, &[], into)
}

/// As `compile`, to a file of this name, with further options of the compiler.
pub fn compile_as(name: &str, source: &str, options: &[&OsStr], into: &Scratch) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let program = into.path().join(name);
    let (compiler, standard) =
        if source.ends_with(".cpp") { ("c++", "-std=c++17") } else { ("cc", "-std=gnu11") };
    // Cleanups of cancelled threads are then found by unwinding, as in C++, past our frames.
    let output = Command::new(compiler)
        .args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fexceptions"])
        .arg("-o")
        .arg(&program)
        .arg(path)
        .args(options)
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a command in a setting.
pub fn run(command: &mut Command, setting: Setting, inside: &Scratch) -> Output {
    setting.apply(command);
    command.current_dir(inside.path()).output().expect("the program runs")
}

/// Compiles a program and runs it in every setting; it must print the line and end with status 0.
pub fn holds(source: &str, line: &str) {
    let scratch = Scratch::new(&source.replace('.', "-"));
    let program = compile(source, &scratch);
    for setting in Setting::ALL {
        holds_in(&program, setting, &scratch, line);
    }
}

/// As `holds`, for one setting.
pub fn holds_in(program: &Path, setting: Setting, scratch: &Scratch, line: &str) {
    let output = run(&mut Command::new(program), setting, scratch);
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{setting:?}: {}\n{stdout}{stderr}", output.status);
    assert_eq!(stdout, format!("{line}\n"), "{setting:?}");
}
