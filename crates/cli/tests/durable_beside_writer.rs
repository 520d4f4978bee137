//! `deepheap inspect` and `deepheap fsck` of a heap that a process has open, and changes.

mod command;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    let (is_over, made) = (AtomicBool::new(false), AtomicU64::new(0));
    // Milliseconds that a look took, at most.
    let longest = AtomicU64::new(0);
    let look = |round: u64, command: &str, words: &str| {
        let begun = Instant::now();
        let (code, out, err) = told(&folder.output([command, "heap"]));
        longest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        assert_eq!(code, Some(0), "{command}, round {round}: {out}{err}");
        assert!(out.contains(words), "{out}");
    };
    let looks = [("inspect", "root        "), ("fsck", "Nothing is damaged")];
    for (command, words) in looks {
        look(0, command, words);
    }
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let writer = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let number = made.load(Ordering::Relaxed);
                for page in 0..BYTES / 4096 {
                    let word = (memory + page * 4096) as *mut u64;
                    // SAFETY: memory of the heap.
                    unsafe { word.write(number << 32 | page as u64) };
                }
                if number == 3 {
                    heap.snapshot("kept").unwrap_or_else(|error| panic!("{error}"));
                }
                heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
                made.fetch_add(1, Ordering::Relaxed);
                // A look takes a moment, and longer on a busy machine: tables last for as long as
                // two checkpoints.
                let pause_ms = longest.load(Ordering::Relaxed).max(100);
                std::thread::sleep(Duration::from_millis(pause_ms));
            }
        });
        let mut round = 1;
        // On, until some checkpoints were made meanwhile: one with a snapshot among them.
        while round <= 6 || made.load(Ordering::Relaxed) < 5 && !writer.is_finished() {
            for (command, words) in looks {
                look(round, command, words);
            }
            round += 1;
        }
        let (code, _, err) = told(&folder.output(["compact", "heap"]));
        assert_eq!(code, Some(2), "only its writer may change the file");
        assert!(err.contains("another process has the heap open"), "{err}");
        drop(over);
        writer.join().expect("the writer");
        println!("{} checkpoints meanwhile", made.load(Ordering::Relaxed));
    });
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}
