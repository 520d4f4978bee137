//! Style: what CONTRIBUTING.md asks of every file and a program can check.

use deepheap_checks::{SourceFile, files};

/// Longest line, in characters.
const COLUMNS_MAX: usize = 100;
/// Longest Rust file, in lines. About 300 is the habit; tests move out before this is reached.
const LINES_MAX: usize = 700;
/// Names that say nothing of what is inside.
const EMPTY_NAMES: [&str; 10] =
    ["common", "helper", "helpers", "manager", "misc", "shared", "stuff", "types", "util", "utils"];
/// Rooms without `unsafe`, by the folder or file they are; the first file found declares it.
const SAFE_ROOMS: [(&str, &[&str]); 2] = [
    ("crates/store/src/", &["crates/store/src/lib.rs"]),
    ("crates/policy/src/", &["crates/policy/src/lib.rs"]),
];

/// What is wrong with one file, whatever the others are.
fn violations(file: &SourceFile) -> Vec<String> {
    let mut violations = Vec::new();
    let mut report =
        |line: usize, what: &str| violations.push(format!("{}:{line}: {what}", file.path));

    for (index, line) in file.text.lines().enumerate() {
        if line.chars().count() > COLUMNS_MAX {
            report(index + 1, "is longer than 100 columns");
        }
        if line.ends_with([' ', '\t', '\r']) {
            report(index + 1, "ends in white space");
        }
        let module = line.trim().trim_start_matches("pub ").strip_prefix("mod ");
        let module = module.map(|rest| rest.trim_end_matches([';', '{', ' ']));
        if file.path.ends_with(".rs") && module.is_some_and(|name| EMPTY_NAMES.contains(&name)) {
            report(index + 1, "names a module after nothing");
        }
    }
    if file.path.ends_with(".rs") {
        if !file.text.starts_with("//! ") {
            report(1, "does not say what the file is: open it with `//! Noun: a sentence.`");
        }
        if file.text.lines().count() > LINES_MAX {
            report(LINES_MAX, "has more than 700 lines");
        }
    } else {
        let opening = file.text.lines().find(|line| !line.starts_with("#!")).unwrap_or("");
        if !["#", "//", "/*", "\"\"\""].iter().any(|mark| opening.starts_with(mark)) {
            report(1, "does not say what the file is: open it with a comment");
        }
    }
    if file.path.split('/').any(|part| EMPTY_NAMES.contains(&part))
        || EMPTY_NAMES.contains(&file.stem())
    {
        report(1, "has a name that says nothing");
    }
    violations
}

/// Rooms that should forbid `unsafe` and do not.
fn unsafe_rooms(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for (room, declared_in) in SAFE_ROOMS {
        let mut inside = files.iter().filter(|file| file.path.starts_with(room)).peekable();
        if inside.peek().is_none() {
            violations.push(format!("{room} is not there"));
        }
        let door = inside.find(|file| declared_in.contains(&file.path.as_str()));
        if !door.is_some_and(|door| door.text.contains("#![forbid(unsafe_code)]")) {
            violations.push(format!("{room} does not forbid unsafe code in {declared_in:?}"));
        }
    }
    violations
}

fn all() -> Vec<SourceFile> {
    let files = files(&["rs", "c", "h", "hpp", "cpp", "sh", "py"]);
    assert!(files.len() > 20, "only {} files are found", files.len());
    files
}

#[test]
fn every_file_keeps_the_style() {
    let violations: Vec<String> = all().iter().flat_map(violations).collect();
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

#[test]
fn store_and_policy_forbid_unsafe_code() {
    assert_eq!(unsafe_rooms(&all()), Vec::<String>::new());
}

#[test]
fn canary_bad_files_are_caught() {
    let file = |path: &str, text: String| SourceFile { path: path.into(), text };
    let long = "x".repeat(101);
    let cases = [
        (file("crates/heap/src/span.rs", "use std::io;\n".into()), "does not say what the file is"),
        (file("crates/heap/src/span.rs", format!("//! Span.\n// {long}\n")), "100 columns"),
        (file("crates/heap/src/span.rs", "//! Span.\nlet a = 1; \n".into()), "white space"),
        (file("crates/heap/src/span.rs", "//! Span.\npub mod util;\n".into()), "after nothing"),
        (file("crates/heap/src/span.rs", "//! Span.\n".repeat(701)), "700 lines"),
        (file("crates/heap/src/helper.rs", "//! Span.\n".into()), "says nothing"),
        (file("crates/common/src/span.rs", "//! Span.\n".into()), "says nothing"),
        (file("scripts/demo.sh", "#!/usr/bin/env bash\nset -e\n".into()), "open it with a comment"),
    ];
    for (bad, expected) in cases {
        let caught = violations(&bad);
        assert_eq!(caught.len(), 1, "{caught:?} for {}", bad.path);
        assert!(caught[0].contains(expected), "{caught:?}");
    }
    let good =
        file("crates/heap/src/span.rs", "//! Span: an aligned piece of the region.\n".into());
    assert_eq!(violations(&good), Vec::<String>::new());
    assert_eq!(unsafe_rooms(&[good]).len(), 4);
}
