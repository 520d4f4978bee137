//! Malloc load: a malloc-heavy program whose data fits the RAM, on the malloc the process has.
//!
//! It calls `malloc`, `free` and `realloc` by their C symbols, so running it as is measures glibc
//! and running it under `deepheap run` measures deepheap. Each thread keeps a table of slots; an
//! operation fills an empty slot (malloc), resizes a full one (realloc, 1 in 10) or empties it; one
//! free in four exchanges the pointer through a table all threads share, so that memory is freed by
//! another thread than the one that allocated it. Sizes are 16 B to 4 KiB in steps of 16, small
//! ones more often (zipf 1.0). What is allocated is touched, one word a cache line, and what is
//! freed is checked.
//!
//! Guarantees: same seed, same operations for each thread; a damaged object ends it with status 1.
//! Threads: the main one waits; the others do the operations.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use clap::Args;
use deepheap_load::random::{Random, mix};
use deepheap_load::zipf::Zipf;
use serde::Serialize;

use crate::failure::Failure;
use crate::gauges;
use crate::output;
use crate::sizes::parse_bytes;
use crate::workload::MAX_THREADS;

const SIZE_STEP: usize = 16;
const SIZE_STEPS: u64 = 256;
const SIZES_DRAWN: usize = 4096;
const LINE: usize = 64;
const EXCHANGE_SLOTS: usize = 1024;
const OPS_BETWEEN_LOOKS: u64 = 256;
/// Mean of the sizes drawn, for the number of slots.
const MEAN_BYTES: u64 = 670;

/// What `deepheap-bench malloc` takes.
#[derive(Clone, Debug, Args)]
pub struct MallocLoad {
    /// Threads
    #[arg(long, default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS as i64))]
    pub threads: u32,
    /// Seconds to measure; half a second of warm-up comes before
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Live data of all threads together, about
    #[arg(long = "live", value_parser = parse_bytes, default_value = "64M", value_name = "SIZE")]
    pub live_bytes: u64,
    /// Same seed, same operations
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The JSON line.
#[derive(Debug, Serialize)]
struct MallocReport {
    threads: u32,
    live_bytes: u64,
    seed: u64,
    measured_seconds: f64,
    measured_ops: u64,
    ops_per_second: f64,
    cpu_ns_per_op: f64,
    resident_peak_bytes: Option<u64>,
    preload: Option<String>,
    errors: u64,
}

struct Shared {
    exchange: Vec<AtomicPtr<u64>>,
    phase: Barrier,
    measuring: AtomicBool,
    stop: AtomicBool,
}

/// Runs the load and prints its JSON line.
pub fn main(load: &MallocLoad) -> Result<(), Failure> {
    let shared = Shared {
        exchange: (0..EXCHANGE_SLOTS).map(|_| AtomicPtr::default()).collect(),
        phase: Barrier::new(load.threads as usize + 1),
        measuring: AtomicBool::new(false),
        stop: AtomicBool::new(false),
    };
    let report = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || Thread::new(load, thread).run(shared))
            })
            .collect();
        shared.phase.wait();
        std::thread::sleep(Duration::from_millis(500));
        let (started, cpu_us) = (Instant::now(), gauges::process_cpu_us());
        shared.measuring.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs_f64(load.seconds));
        shared.stop.store(true, Ordering::Relaxed);
        let counts = threads.into_iter().map(|thread| thread.join().unwrap_or_default());
        let measured_ops: u64 = counts.sum();
        let measured_seconds = started.elapsed().as_secs_f64();
        let cpu_us = gauges::process_cpu_us() - cpu_us;
        MallocReport {
            threads: load.threads,
            live_bytes: load.live_bytes,
            seed: load.seed,
            measured_seconds,
            measured_ops,
            ops_per_second: measured_ops as f64 / measured_seconds,
            cpu_ns_per_op: cpu_us as f64 * 1000.0 / measured_ops.max(1) as f64,
            resident_peak_bytes: gauges::status_bytes("VmHWM"),
            preload: std::env::var("LD_PRELOAD").ok(),
            errors: 0,
        }
    });
    output::json(&report)
}

/// A live allocation: its first word holds `mix(address ^ size)`.
#[derive(Clone, Copy)]
struct Block {
    ptr: *mut u64,
    size: usize,
}

struct Thread {
    random: Random,
    sizes: Vec<u16>,
    slots: Vec<Option<Block>>,
}

impl Thread {
    fn new(load: &MallocLoad, thread: u32) -> Self {
        let mut random = Random::new(load.seed, u64::from(thread));
        let zipf = Zipf::new(SIZE_STEPS, 1.0);
        let sizes =
            (0..SIZES_DRAWN).map(|_| zipf.sample(|| random.next()) as u16 * SIZE_STEP as u16);
        let sizes = sizes.collect();
        // Half of the slots are empty at any time.
        let slots = 2 * load.live_bytes / MEAN_BYTES / u64::from(load.threads);
        Self { random, sizes, slots: vec![None; slots.max(16) as usize] }
    }

    /// Operations done while measuring.
    fn run(mut self, shared: &Shared) -> u64 {
        shared.phase.wait();
        let (mut before, mut total) = (None, 0);
        while !shared.stop.load(Ordering::Relaxed) {
            if before.is_none() && shared.measuring.load(Ordering::Relaxed) {
                before = Some(total);
            }
            for _ in 0..OPS_BETWEEN_LOOKS {
                self.operate(shared);
            }
            total += OPS_BETWEEN_LOOKS;
        }
        total - before.unwrap_or(total)
    }

    #[inline]
    fn operate(&mut self, shared: &Shared) {
        let bits = self.random.next();
        let slot = ((u128::from(bits) * self.slots.len() as u128) >> 64) as usize;
        let size = usize::from(self.sizes[bits as usize % SIZES_DRAWN]);
        let choice = (bits >> 12) % 100;
        self.slots[slot] = match self.slots[slot] {
            None => Some(allocate(size)),
            Some(block) if choice < 10 => Some(reallocate(block, size)),
            Some(block) if choice < 35 => {
                check(block);
                let place = &shared.exchange[(bits >> 20) as usize % EXCHANGE_SLOTS];
                // AcqRel: the words of a block written by its allocator are seen by who frees it.
                free(place.swap(block.ptr, Ordering::AcqRel));
                None
            }
            Some(block) => {
                check(block);
                free(block.ptr);
                None
            }
        };
    }
}

#[inline]
fn seal(ptr: *mut u64, size: usize) -> u64 {
    mix(ptr as u64 ^ (size as u64) << 48)
}

#[inline]
fn allocate(size: usize) -> Block {
    // SAFETY: malloc has no preconditions; black_box keeps the pair with free from being removed.
    let ptr: *mut u64 = black_box(unsafe { libc::malloc(size) }).cast();
    touched(ptr, size)
}

#[inline]
fn reallocate(block: Block, size: usize) -> Block {
    check(block);
    // SAFETY: the block came from malloc or realloc and was not freed; the old pointer is dropped.
    let ptr: *mut u64 = black_box(unsafe { libc::realloc(block.ptr.cast(), size) }).cast();
    if !ptr.is_null() {
        // SAFETY: at least 16 bytes of the block, kept by realloc.
        let kept = unsafe { ptr.read_volatile() };
        if kept != seal(block.ptr, block.size) {
            damaged(ptr);
        }
    }
    touched(ptr, size)
}

/// Writes one word of every cache line and the seal.
#[inline]
fn touched(ptr: *mut u64, size: usize) -> Block {
    if ptr.is_null() {
        eprintln!("deepheap-bench: malloc of {size} bytes failed");
        std::process::exit(1);
    }
    let mut at = LINE;
    while at < size {
        // SAFETY: at + 8 <= size, because sizes are multiples of 16; the block is ours.
        unsafe { ptr.byte_add(at).write_volatile(at as u64) };
        at += LINE;
    }
    // SAFETY: the first word of a block of at least 16 bytes.
    unsafe { ptr.write_volatile(seal(ptr, size)) };
    Block { ptr, size }
}

#[inline]
fn check(block: Block) {
    // SAFETY: the first word of a live block.
    if unsafe { block.ptr.read_volatile() } != seal(block.ptr, block.size) {
        damaged(block.ptr);
    }
}

#[inline]
fn free(ptr: *mut u64) {
    // SAFETY: null, or a live block that left its slot or the exchange just now.
    unsafe { libc::free(black_box(ptr).cast()) };
}

#[cold]
fn damaged(ptr: *mut u64) -> ! {
    eprintln!("deepheap-bench: WRONG DATA: the block at {ptr:p} does not hold what was written");
    std::process::exit(1);
}
