//! Toolchain: compiles a C or C++ source against `include/` and the library under test, runs it.
//!
//! Guarantees: every warning of the compiler is an error; programs find the library beside the
//! test binaries, not an installed one.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A language standard a user may compile with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    C99,
    C11,
    C17,
    Cxx17,
    Cxx20,
}

impl Standard {
    pub const ALL: [Standard; 5] =
        [Standard::C99, Standard::C11, Standard::C17, Standard::Cxx17, Standard::Cxx20];

    fn compiler(self) -> Command {
        let (program, standard, language) = match self {
            Standard::C99 => ("cc", "-std=c99", "-xc"),
            Standard::C11 => ("cc", "-std=c11", "-xc"),
            Standard::C17 => ("cc", "-std=c17", "-xc"),
            Standard::Cxx17 => ("c++", "-std=c++17", "-xc++"),
            Standard::Cxx20 => ("c++", "-std=c++20", "-xc++"),
        };
        let mut command = Command::new(program);
        command.args([standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-g"]);
        command.arg("-I").arg(root().join("include")).args(["-pthread", language]);
        command
    }
}

/// What `examples/packet_cache.c` prints, with deepheap or, as it was before its port, without.
pub const PACKET_CACHE: &str = "200000 packets, 107672 of them and 83655 KiB cached; \
                                held: 45261 KiB TCP, 22803 KiB UDP\n";

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository root")
}

/// The folder of `libdeepheap.so`, which is brought up to date first: cargo builds a test's
/// package but not the shared library that it makes.
pub fn library_folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(build_library).clone()
}

fn build_library() -> PathBuf {
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
        // With the features of one package the crates below were built once more.
        .args(["build", "--workspace", "--lib", "--quiet", "--profile", profile])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .output();
    assert_succeeded("cargo build", &output.expect("cargo runs"));
    folder.to_path_buf()
}

/// A folder that is gone when the test is over.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        // Not the system's temporary folder: it may be in memory, where no store can be.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // What a killed run left there would be in the way.
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

/// Checks a source text for errors and warnings, without linking.
pub fn assert_compiles(standard: Standard, source: &str) {
    assert_compiles_with(standard, &[], source);
}

/// As `assert_compiles`, with more flags.
pub fn assert_compiles_with(standard: Standard, flags: &[&str], source: &str) {
    let scratch = Scratch::new(&format!("compile-{standard:?}"));
    let path = scratch.path().join("source");
    std::fs::write(&path, source).expect("the source is written");
    let output = standard.compiler().args(flags).arg("-fsyntax-only").arg(&path).output();
    assert_succeeded(&format!("{standard:?}"), &output.expect("a compiler runs"));
}

/// What a program printed.
pub struct Printed {
    pub stdout: String,
    pub stderr: String,
}

/// Compiles and links a source file of the repository, runs it; it must end with status 0.
pub fn run(standard: Standard, source: &str, environment: &[(&str, &str)]) -> Printed {
    let scratch = Scratch::new(&format!("{standard:?}-{}", source.replace(['/', '.'], "-")));
    let program = scratch.path().join("program");
    let folder = library_folder();
    // The soname is what the loader looks for; the build leaves only the plain name.
    std::os::unix::fs::symlink(
        folder.join("libdeepheap.so"),
        scratch.path().join("libdeepheap.so.0"),
    )
    .expect("a link named as the soname");
    let output = standard
        .compiler()
        .arg(root().join(source))
        .args(["-xnone", "-o"])
        .arg(&program)
        .arg(folder.join("libdeepheap.so"))
        .output();
    assert_succeeded(source, &output.expect("a compiler runs"));
    let output = Command::new(&program)
        .current_dir(scratch.path())
        .env("LD_LIBRARY_PATH", scratch.path())
        .env_remove("LD_PRELOAD")
        .envs(environment.iter().copied())
        .output()
        .expect("the program runs");
    assert_succeeded(source, &output);
    let text = |bytes| String::from_utf8(bytes).expect("the program prints text");
    Printed { stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn assert_succeeded(what: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}
