//! Models: plays pieces of the real code in every order of its threads, and with every value that
//! the memory orders of C11 let a load return (loom).
//!
//! A scene is a few threads that do a few steps with real structures. The memory orders are those
//! of the code. What a scene asserts must hold in every execution, and no thread may sleep for
//! ever. An execution in which a thread is interrupted more often than `preemptions` is left out.
//!
//! For the canaries orders of the code are weakened, one at a time: `SeqCst` to `AcqRel` and to
//! `Relaxed`, the others likewise. Each scene names operations of which that must be found. Others
//! may be stronger than this scene needs.
//!
//! The bytes of objects are atomics here, loaded and stored `Relaxed`: as for the copy of an object
//! in the product, any order between them is the protocol's to make.
//!
//! Not exactly C11: loom lets a fence order more than it has to. What makes a `SeqCst` store one is
//! a fence just before the thread's next `SeqCst` operation; that orders what is between them, too.
//! A `SeqCst` load is an `Acquire` one. No load sees a value that is stored later. Not seen:
//! signals, forks, the kernel's memory.

mod memory;
mod scenes;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use deepheap_sys::threads::schedule;
use memory::{Memory, Site, Weakened};

/// The stack of a thread, words.
const STACK_WORDS: usize = 32 << 10;

/// What a thread of a scene does.
type Steps<S> = fn(&S);

/// A few threads that share something.
struct Scene<S: Send + Sync + 'static> {
    /// Makes what they share.
    make: fn() -> S,
    /// Touches all of it before the threads begin: what a thread makes known by its first touch, no
    /// other may use.
    begin: Steps<S>,
    threads: &'static [Steps<S>],
    /// Looks at what they have left.
    end: Steps<S>,
    /// How often threads are interrupted, at most.
    preemptions: usize,
}

thread_local! {
    /// Whether a panic of this thread is what a canary waits for.
    static IS_EXPECTED: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

/// Panics of canaries say nothing.
fn quiet_canaries() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_EXPECTED.get() {
                loud(info);
            }
        }));
    });
}

fn spawn(steps: impl FnOnce() + Send + 'static) -> loom::thread::JoinHandle<()> {
    loom::thread::Builder::new().stack_size(STACK_WORDS).spawn(steps).expect("a thread")
}

impl<S: Send + Sync + 'static> Scene<S> {
    /// Plays all executions; answers how many, and which operations there were.
    fn play(&self, weakened: Option<Weakened>) -> (u64, BTreeSet<Site>) {
        let memory: &'static Memory = Box::leak(Box::new(Memory::new(weakened)));
        let count = Arc::new(AtomicU64::new(0));
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(self.preemptions);
        builder.max_branches = 20_000;
        let Scene { make, begin, threads, end, .. } = *self;
        let played = count.clone();
        /// Takes the scheduler away also if a canary panics.
        struct Set;
        impl Drop for Set {
            fn drop(&mut self) {
                schedule::set(None);
            }
        }
        schedule::set(Some(memory));
        let _set = Set;
        builder.check(move || {
            memory.begin();
            played.fetch_add(1, Ordering::Relaxed);
            let first = move || {
                let shared = Arc::new(make());
                begin(&shared);
                let threads: Vec<_> = threads
                    .iter()
                    .map(|steps| {
                        let shared = shared.clone();
                        spawn(move || steps(&shared))
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
                end(&shared);
            };
            // The main thread's stack is too small.
            spawn(first).join().expect("no panic");
        });
        (count.load(Ordering::Relaxed), memory.sites())
    }

    /// Plays all executions; then again with each order weakened of the operations whose lines
    /// contain one of these texts. For each text that must be found. With `DEEPHEAP_MODELS=all`
    /// it tells what comes of the others, too.
    fn check(&self, name: &str, must_be_found: &[&str]) {
        quiet_canaries();
        let (count, sites) = self.play(None);
        println!("{name}: {count} executions, {} operations with an order", sites.len());
        let all = std::env::var("DEEPHEAP_MODELS").is_ok_and(|which| which == "all");
        let is_named = |line: &str| must_be_found.iter().any(|text| line.contains(text));
        let mut found = Vec::new();
        for weakened in sites.iter().flat_map(Site::weaker) {
            let line = weakened.line();
            if all || is_named(&line) {
                IS_EXPECTED.set(true);
                let play = AssertUnwindSafe(|| self.play(Some(weakened)));
                let is_found = catch_unwind(play).is_err();
                IS_EXPECTED.set(false);
                println!("  {} {weakened}", if is_found { "found:    " } else { "not found:" });
                found.extend(is_found.then_some(line));
            }
        }
        for text in must_be_found {
            let is_found = found.iter().any(|line| line.contains(text));
            assert!(is_found, "{name}: nothing found without the order of {text}");
        }
    }
}
