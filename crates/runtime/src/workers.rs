//! Workers: the threads of a managing heap. All of them sleep when there is nothing to do.
//!
//! | thread | loop |
//! |---|---|
//! | evictor | pages out of the page buffer before faults have to wait |
//! | writer | sealed segments to the device |
//! | fetchers | the next stretches of a scan, and objects that the program asked for |
//! | collector | half-dead segments into free ones; dead children's pins; discard |
//!
//! Guarantees: zero CPU at rest. A worker that fails says why, once, and goes on trying at leisure.
//! Never: touches managed memory.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use deepheap_pager::{Moves, Pager};
use deepheap_store::StoreError;
use deepheap_sys::log::{Piece, say};
use deepheap_sys::mapping;
use deepheap_sys::thread;

use crate::children;
use crate::runtime::{Inside, Runtime, running};
use crate::stats::Counter;

/// How long a worker waits after a failure before it tries again.
const LEISURE: Duration = Duration::from_millis(100);
/// How long the evictor waits at first when nothing can be evicted (everything is pinned, or a
/// forked child withholds the store); twice as long each time, up to `LEISURE`.
const SHORT: Duration = Duration::from_millis(1);

static WRITE_FAILURE_SAID: AtomicBool = AtomicBool::new(false);

/// Batches of eviction after which the shares of the budget are looked at again.
const BATCHES_BETWEEN: u32 = 16;

/// Starts the workers; also in a forked child, where those of the parent do not exist.
/// The pager is published before they start.
pub(crate) fn start() {
    WRITE_FAILURE_SAID.store(false, Ordering::Relaxed);
    for (name, run) in [
        (c"deepheap-evict", evictor as fn(usize)),
        (c"deepheap-write", writer),
        (c"deepheap-gc", collector),
        (c"deepheap-fetch", fetcher),
        (c"deepheap-fetch", fetcher),
        (c"deepheap-fetch", fetcher),
    ] {
        if let Err(errno) = thread::spawn(name, run, 0) {
            say(&[
                Piece::Text("a worker thread cannot be started: "),
                Piece::Error(errno),
                Piece::Text("; raise the limit on processes (ulimit -u, pids cgroup)"),
            ]);
            std::process::abort();
        }
    }
}

fn managing() -> Option<(&'static Runtime, &'static Pager)> {
    let runtime = running()?;
    Some((runtime, runtime.pager()?))
}

fn evictor(_: usize) {
    let _inside = Inside::enter();
    let Some((runtime, pager)) = managing() else { return };
    let mut said = false;
    loop {
        pager.wait_for_eviction();
        pager.take_over_spans();
        let mut moves = Moves::default();
        let mut pause = SHORT;
        let nap = |pause: &mut Duration| {
            thread::sleep(*pause);
            *pause = (2 * *pause).min(LEISURE);
        };
        let mut batches = 0;
        let mut border_moves = pager.rebalance();
        while pager.must_evict() {
            batches += 1;
            let is_time = batches % BATCHES_BETWEEN == 0;
            if is_time {
                runtime.count_moves(0, &core::mem::take(&mut moves));
            }
            if is_time || border_moves {
                border_moves = pager.rebalance();
            }
            let before = moves.evicted();
            // Asked before: a child that ends meanwhile gives back the space we do not find.
            let withheld = pager.store().is_pinned();
            match pager.evict(&mut moves) {
                Ok(_) if moves.evicted() > before => pause = SHORT,
                Ok(_) => nap(&mut pause),
                Err(StoreError::Full) if withheld => {
                    children::forget_the_dead(pager.store());
                    nap(&mut pause);
                }
                Err(error) => {
                    say_write_failure(pager);
                    if !said {
                        said = true;
                        say_store("cannot make room in RAM", error);
                    }
                    thread::sleep(LEISURE);
                }
            }
        }
        runtime.count_moves(0, &moves);
        pager.rebalance();
        runtime.publish_gauges();
    }
}

fn writer(_: usize) {
    let _inside = Inside::enter();
    let Some((runtime, pager)) = managing() else { return };
    loop {
        pager.store().write_sealed(true);
        say_write_failure(pager);
        runtime.publish_gauges();
    }
}

fn collector(_: usize) {
    let _inside = Inside::enter();
    let Some((runtime, pager)) = managing() else { return };
    let segment = runtime.config.segment_bytes as usize;
    let Ok(memory) = mapping::map_pinned(segment) else {
        say(&[Piece::Text("no memory for the collector's buffer")]);
        std::process::abort();
    };
    // SAFETY: freshly mapped, this thread's alone, never unmapped.
    let buffer = unsafe { core::slice::from_raw_parts_mut(memory, segment) };
    let mut said = false;
    let mut fruitless = SHORT;
    loop {
        let limit = || runtime.has_space_to_return().then_some(LEISURE);
        if !pager.store().wait_for_work(limit) {
            runtime.return_space(pager);
            continue;
        }
        children::forget_the_dead(pager.store());
        match pager.collect(buffer) {
            Ok(Some(_)) => {
                fruitless = SHORT;
                runtime.publish_gauges();
            }
            Ok(None) => {
                // Nothing worth collecting now, or all that is dead is pinned for a child.
                thread::sleep(fruitless);
                fruitless = (fruitless * 2).min(LEISURE);
            }
            Err(error) => {
                if !said {
                    said = true;
                    say_store("a segment cannot be collected", error);
                }
                thread::sleep(LEISURE);
            }
        }
    }
}

fn fetcher(_: usize) {
    let _inside = Inside::enter();
    let Some((runtime, pager)) = managing() else { return };
    loop {
        let mut moves = Moves::default();
        let pages = pager.serve_prefetch(&mut moves);
        runtime.count_moves(0, &moves);
        runtime.stats.add(0, Counter::Prefetched, pages.into());
    }
}

/// Says once that the device of the store refused a write, and why: whoever finds out first, before
/// it says what follows from that. Safe in a signal handler.
pub(crate) fn say_write_failure(pager: &Pager) {
    let Some(StoreError::Io(errno)) = pager.store().failure() else { return };
    if !WRITE_FAILURE_SAID.swap(true, Ordering::Relaxed) {
        say(&[
            Piece::Text("a write to the store failed; what it held stays in RAM: "),
            Piece::Error(errno),
        ]);
    }
}

fn say_store(what: &str, error: StoreError) {
    // Workers may allocate (pinned memory) to say something.
    say(&[Piece::Text(what), Piece::Text(": "), Piece::Text(&error.to_string())]);
}
