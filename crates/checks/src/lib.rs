//! Checks: the rules of the repository, as ordinary tests. Development only, no product code.
//!
//! `tests/rooms.rs` holds the crates to the rooms of ARCHITECTURE.md, `tests/sizes.rs` the types to
//! a size, `tests/style.rs` the files to CONTRIBUTING.md, `tests/licences.rs` the dependencies to
//! deny.toml, `tests/documents.rs` the documents to the repository. Here is what they share: the
//! files and what cargo says of them.
//!
//! Guarantees: reads the working tree as it is, committed or not; each rule has a canary, a test
//! that breaks the rule on purpose and must be caught.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that hold nothing of ours.
const FOREIGN: [&str; 3] = ["target", ".git", "proptest-regressions"];

/// A text file of the repository.
#[derive(Debug)]
pub struct SourceFile {
    /// Path from the root, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl SourceFile {
    /// The name without folder and extension.
    pub fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.split('.').next().unwrap_or(name)
    }
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/checks").to_path_buf()
}

/// Every file below the root with one of these extensions, in order of its path.
///
/// # Panics
/// If a file cannot be read or is not UTF-8.
pub fn files(extensions: &[&str]) -> Vec<SourceFile> {
    let mut found = Vec::new();
    collect(&root(), extensions, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(folder: &Path, extensions: &[&str], found: &mut Vec<SourceFile>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry of a folder").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a UTF-8 name");
        if path.is_dir() {
            if !FOREIGN.contains(&name) {
                collect(&path, extensions, found);
            }
        } else if path.extension().is_some_and(|it| extensions.iter().any(|&wanted| it == wanted)) {
            let text = std::fs::read_to_string(&path).expect("a text in UTF-8");
            let path = path.strip_prefix(root()).expect("below the root");
            found.push(SourceFile { path: path.to_string_lossy().into_owned(), text });
        }
    }
}

/// What `cargo metadata` says, for the platform we run on.
///
/// # Panics
/// If cargo fails, with what it said.
pub fn cargo_metadata(options: &[&str]) -> serde_json::Value {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .current_dir(root())
        .args(["metadata", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"])
        .args(options)
        .output()
        .expect("cargo runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed: {stderr}");
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}
