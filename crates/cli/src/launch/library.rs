//! Library: finds `libdeepheap_preload.so` and puts it into LD_PRELOAD.
//!
//! Guarantees: what LD_PRELOAD named before stays named, behind ours, once.
//! Never: changes the environment; it only says what should be in it.
//! Threads: none but main.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::refusal::Refusal;

/// The library's file name.
pub const FILE_NAME: &str = "libdeepheap_preload.so";

/// Names the libraries that the dynamic linker loads first.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Finds the library: beside the command, then where `make install` puts it (`PRELOADDIR` of the
/// Makefile).
pub fn find() -> Result<PathBuf, Refusal> {
    let command = env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let beside = command.parent().unwrap_or(Path::new("."));
    let library = beside.parent().unwrap_or(beside).join("lib");
    let folders = [beside.to_path_buf(), library.clone(), library.join("deepheap")];
    for folder in &folders {
        if let Ok(path) = folder.join(FILE_NAME).canonicalize() {
            // The dynamic linker splits LD_PRELOAD there, and knows no quoting.
            if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
                return Err(Refusal::new(format!(
                    "'{}' cannot be preloaded, for its path has a space or a colon: install \
                     deepheap in a folder without",
                    path.display()
                )));
            }
            // The dynamic linker would only warn, and run the program without us.
            if let Err(error) = File::open(&path) {
                return Err(Refusal::new(format!(
                    "'{}' cannot be read ({error}): install deepheap where this user may read it",
                    path.display()
                )));
            }
            return Ok(path);
        }
    }
    let searched: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    Err(Refusal::new(format!(
        "{FILE_NAME} is missing: build it with 'cargo build --release --workspace', or install \
         deepheap again (searched {})",
        searched.join(", ")
    )))
}

/// The value that LD_PRELOAD should have: the library in front of what it was.
pub fn preloading(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    for name in names(before.unwrap_or_default()).filter(|name| *name != library.as_os_str()) {
        value.push(":");
        value.push(name);
    }
    value
}

/// The value of LD_PRELOAD without our library; none if it does not name it.
pub fn without(value: &OsStr) -> Option<OsString> {
    let is_ours = |name: &&OsStr| Path::new(name).file_name() == Some(OsStr::new(FILE_NAME));
    let (ours, others): (Vec<&OsStr>, Vec<&OsStr>) = names(value).partition(is_ours);
    (!ours.is_empty()).then(|| others.join(OsStr::new(":")))
}

/// The names in LD_PRELOAD, as the dynamic linker splits them.
fn names(value: &OsStr) -> impl Iterator<Item = &OsStr> {
    let names = value.as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    names.filter(|name| !name.is_empty()).map(OsStr::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_stays_behind_ours() {
        let ours = Path::new("/lib/ours.so");
        for (before, after) in [
            (None, "/lib/ours.so"),
            (Some(""), "/lib/ours.so"),
            (Some("/a.so /b.so"), "/lib/ours.so:/a.so:/b.so"),
            (Some("/a.so:/lib/ours.so"), "/lib/ours.so:/a.so"),
        ] {
            assert_eq!(preloading(ours, before.map(OsStr::new)), after, "{before:?}");
        }
    }

    #[test]
    fn without_ours_the_others_stay() {
        for (before, after) in [
            ("", None),
            ("/a.so:/b.so", None),
            ("/lib/libdeepheap_preload.so", Some("")),
            ("/a.so /lib/libdeepheap_preload.so:/b.so", Some("/a.so:/b.so")),
        ] {
            assert_eq!(without(OsStr::new(before)).as_deref(), after.map(OsStr::new), "{before}");
        }
    }
}
