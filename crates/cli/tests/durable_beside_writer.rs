//! `deepheap inspect` and `deepheap fsck` of a heap that a process has open, and changes.

mod command;

use std::sync::atomic::{AtomicBool, Ordering};

use command::{Folder, told};
use deepheap::{Config, DurableHeap, DurableOptions};

const BYTES: usize = 16 << 20;

/// Ends the writer, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_heap_is_inspected_and_verified_while_a_process_makes_checkpoints_of_it() {
    let folder = Folder::new();
    let store = folder.path().display();
    let config = Config::parse(&format!("ram:128M,store:{store}")).expect("settings");
    deepheap::init(config).expect("the runtime starts");
    let path = folder.path().join("heap");
    let options = DurableOptions::parse("ram:32M,size:1G,store_size:256M").expect("settings");
    let heap = DurableHeap::open(&path, &options).unwrap_or_else(|error| panic!("{error}"));
    let memory = heap.malloc(BYTES) as usize;
    heap.set_root("memory", memory as *const u8).expect("a root");
    heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let writer = scope.spawn(|| {
            let mut made = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                for page in 0..BYTES / 4096 {
                    // SAFETY: memory of the heap.
                    unsafe { ((memory + page * 4096) as *mut u64).write(made << 32 | page as u64) };
                }
                if made == 3 {
                    heap.snapshot("kept").unwrap_or_else(|error| panic!("{error}"));
                }
                heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
                made += 1;
                // A look takes a moment: tables last for as long as two checkpoints.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            made
        });
        for round in 0..6 {
            for (command, words) in [("inspect", "root        "), ("fsck", "Nothing is damaged")] {
                let (code, out, err) = told(&folder.output([command, "heap"]));
                assert_eq!(code, Some(0), "{command}, round {round}: {out}{err}");
                assert!(out.contains(words), "{out}");
            }
        }
        let (code, _, err) = told(&folder.output(["compact", "heap"]));
        assert_eq!(code, Some(2), "only its writer may change the file");
        assert!(err.contains("another process has the heap open"), "{err}");
        drop(over);
        let made = writer.join().expect("the writer");
        println!("{made} checkpoints meanwhile");
        assert!(made > 1);
    });
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}
