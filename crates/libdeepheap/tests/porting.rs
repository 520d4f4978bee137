//! Porting: the differences that `docs/porting.md` shows are those between a program for malloc and
//! `examples/packet_cache.c`, and the program for malloc runs without deepheap.

mod toolchain;

use std::fs::read_to_string;
use std::process::Command;

use toolchain::{PACKET_CACHE, Scratch, root};

/// One change: the text before and after it.
struct Change {
    before: String,
    after: String,
}

/// The changes of the blocks of a document that are marked as differences.
fn changes(document: &str) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for block in document.split("```diff\n").skip(1) {
        let (block, _) = block.split_once("```").expect("a block ends");
        for line in block.lines() {
            if line.starts_with("@@") {
                changes.push(Change { before: String::new(), after: String::new() });
                continue;
            }
            let change = changes.last_mut().expect("a block begins with @@");
            let (mark, text) = line.split_at_checked(1).unwrap_or((" ", ""));
            if matches!(mark, " " | "-") {
                change.before += &format!("{text}\n");
            }
            if matches!(mark, " " | "+") {
                change.after += &format!("{text}\n");
            }
        }
    }
    changes
}

#[test]
fn the_document_shows_all_that_was_changed() {
    let document = read_to_string(root().join("docs/porting.md")).expect("the document");
    let mut program = read_to_string(root().join("examples/packet_cache.c")).expect("the example");
    let changes = changes(&document);
    assert_eq!(changes.len(), 5, "the parser found another number of changes");
    for Change { before, after } in &changes {
        assert_eq!(program.matches(after.as_str()).count(), 1, "not in the example:\n{after}");
        program = program.replace(after.as_str(), before);
    }
    let (opening, code) = program.split_once("*/").expect("a comment opens it");
    assert!(opening.contains("docs/porting.md"));
    assert!(!code.contains("dh_"), "a change is not shown");

    let scratch = Scratch::new("packet-cache-for-malloc");
    let (source, binary) = (scratch.path().join("before.c"), scratch.path().join("before"));
    std::fs::write(&source, code).expect("the source is written");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-o"]);
    let status = compiler.arg(&binary).arg(&source).status().expect("a compiler runs");
    assert!(status.success(), "the program for malloc does not compile");
    let output = Command::new(&binary).output().expect("the program runs");
    let printed = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success());
    assert_eq!(printed, PACKET_CACHE);
}
