//! Every function of libc is wrapped, or is known to need no wrapper.
//!
//! `libc_names.txt` has the names that need none, under their reasons. The list is of glibc 2.36;
//! what another version has besides is told, and fails nothing.

mod preloaded;

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::path::Path;
use std::process::Command;

const LISTED_VERSION: &str = "2.36";

unsafe extern "C" {
    fn gnu_get_libc_version() -> *const std::ffi::c_char;
}

/// The functions that a library exports to programs, without those that are between libraries of
/// glibc only.
fn functions(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--with-symbol-versions"])
        .arg(library)
        .output()
        .expect("nm runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let of_line = |line: &str| {
        let [_, kind, name] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let is_function = matches!(kind, "T" | "W" | "i") && !name.ends_with("@GLIBC_PRIVATE");
        is_function.then(|| name.split('@').next().expect("a name").to_owned())
    };
    text.lines().filter_map(of_line).collect()
}

/// Where this process has libc.
fn libc_path() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the maps of this process");
    let is_libc =
        |path: &&str| path.rsplit('/').next().is_some_and(|name| name.starts_with("libc.so"));
    let found = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(is_libc);
    found.expect("this test uses libc").to_owned()
}

/// Whether a name is a word of the list, which may end, begin or go on with a star.
fn is_of(name: &str, word: &str) -> bool {
    match word.split_once('*') {
        None => name == word,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            if rest.is_empty() {
                return true;
            }
            (0..=left.len()).any(|skipped| is_of(&left[skipped..], rest))
        }),
    }
}

#[test]
fn every_function_of_libc_is_wrapped_or_needs_no_wrapper() {
    let list = include_str!("libc_names.txt");
    let words: Vec<&str> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .collect();
    let libc = functions(Path::new(&libc_path()));
    let wrapped = functions(&preloaded::library());
    let is_listed = |name: &str| words.iter().any(|word| is_of(name, word));

    // Wrapped although a star would cover them, and so said in the list.
    let (marked, _): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('!'));
    let lost: Vec<_> = marked.iter().filter(|word| !wrapped.contains(&word[1..])).collect();
    assert!(lost.is_empty(), "not wrapped: {lost:?}");
    let is_marked = |name: &str| marked.iter().any(|word| &word[1..] == name);
    let twice: Vec<_> = wrapped.iter().filter(|name| is_listed(name) && !is_marked(name)).collect();
    assert!(twice.is_empty(), "wrapped, and said to need no wrapper: {twice:?}");

    let unknown: Vec<_> =
        libc.iter().filter(|name| !wrapped.contains(*name) && !is_listed(name)).collect();
    // SAFETY: libc's own constant string.
    let version = unsafe { CStr::from_ptr(gnu_get_libc_version()) }.to_string_lossy();
    if version == LISTED_VERSION {
        assert!(unknown.is_empty(), "neither wrapped nor listed: {unknown:?}");
    } else if !unknown.is_empty() {
        println!("glibc {version} has functions that nobody has looked at: {unknown:?}");
    }
}

#[test]
fn a_name_that_nobody_has_looked_at_is_found() {
    assert!(is_of("strlen", "str*") && is_of("dcgettext", "*gettext") && is_of("a_x_b", "a*b"));
    assert!(!is_of("writev", "write") && !is_of("gettexts", "*gettext") && !is_of("bstr", "str*"));
}
