//! What the commands for files of durable heaps do and tell.

mod command;

use std::path::Path;

use command::{Folder, told};
use deepheap::{Config, DurableHeap, DurableOptions};

/// Makes a heap with a number in it, one snapshot of 1 and one of 2, and closes it at 3.
fn make(path: &Path) {
    let options = DurableOptions::parse("ram:32M,size:1G").expect("settings");
    let heap = DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"));
    let number = heap.malloc(8 << 20).cast::<u64>();
    heap.set_root("number", number.cast()).expect("a root");
    for value in 1..=3 {
        // SAFETY: so large.
        unsafe {
            number.cast::<u8>().write_bytes(value, 8 << 20);
        }
        if value < 3 {
            heap.snapshot(&format!("of-{value}")).unwrap_or_else(|error| panic!("{error}"));
        }
    }
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}

fn value(path: &Path, options: &str) -> u8 {
    let options = DurableOptions::parse(options).expect("settings");
    let heap = DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: what `make` has put there.
    unsafe {
        let value = heap.root("number").read();
        heap.close().unwrap_or_else(|error| panic!("{error}"));
        value
    }
}

#[test]
fn snapshots_are_listed_gone_back_to_and_removed_and_their_space_given_back() {
    let folder = Folder::new();
    let store = folder.path().display();
    let config = Config::parse(&format!("ram:128M,store:{store}")).expect("settings");
    deepheap::init(config).expect("the runtime starts");
    let path = folder.path().join("heap");
    make(&path);
    let run = |arguments: &[&str], status: i32| {
        let (code, out, err) = told(&folder.output(arguments));
        assert_eq!(code, Some(status), "{arguments:?}: {out}{err}");
        if status == 0 { out } else { err }
    };
    let shown = run(&["inspect", "heap"], 0);
    println!("{shown}");
    for line in ["snapshot    of-1: checkpoint ", "snapshot    of-2: ", "kept        "] {
        assert!(shown.contains(line), "{line} of\n{shown}");
    }
    assert!(!shown.contains("superblock"), "{shown}");
    for command in ["rollback", "rm-snapshot"] {
        let refused = run(&[command, "heap", "none"], 2);
        assert!(refused.contains("no snapshot of this name"), "{refused}");
        let refused = run(&[command, "missing", "none"], 2);
        assert!(refused.contains("cannot be opened"), "{refused}");
    }
    assert_eq!(value(&path, "ram:32M,readonly,snapshot:of-2"), 2);
    assert_eq!(value(&path, "ram:32M,readonly"), 3);
    let said = run(&["rollback", "heap", "of-1"], 0);
    assert!(said.contains("is what of-1 was"), "{said}");
    assert_eq!(value(&path, "ram:32M"), 1);
    assert_eq!(value(&path, "ram:32M,readonly,snapshot:of-2"), 2);
    for name in ["of-1", "of-2"] {
        let said = run(&["rm-snapshot", "heap", name], 0);
        assert!(said.contains(&format!("{name} is removed")), "{said}");
    }
    let said = run(&["compact", "heap"], 0);
    println!("{said}");
    assert!(said.contains("given back") && !said.contains(": 0 "), "{said}");
    let shown = run(&["inspect", "heap"], 0);
    assert!(!shown.contains("snapshot"), "{shown}");
    assert!(run(&["fsck", "heap"], 0).contains("Nothing is damaged"));
    assert_eq!(value(&path, "ram:32M,readonly"), 1);
    // A superblock that a crash has left half written.
    let mut bytes = std::fs::read(&path).expect("a file");
    let checkpoint = |at: usize| bytes[at + 24..at + 32].try_into().map_or(0, u64::from_le_bytes);
    let older = if checkpoint(0) < checkpoint(64 << 10) { 0 } else { 64 << 10 };
    bytes[older + 3000] ^= 1;
    std::fs::write(folder.path().join("torn"), bytes).expect("a file");
    let shown = run(&["inspect", "torn"], 0);
    assert!(shown.contains("superblock  "), "{shown}");
}
