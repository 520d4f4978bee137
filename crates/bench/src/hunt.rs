//! Hunt: looks for lost writes (reliability, layer 2).
//!
//! Threads increment counters in random objects while eviction, faults, collection, frees and forks
//! run as hard as they can; at the end, and in every forked child, the sums must be exact.
//!
//! Guarantees: prints its seed; a mismatch names the object and both values and ends with
//! exit status 1.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use crate::failure::Failure;
use crate::random::Random;

/// Settings of a hunt.
#[derive(Args, Debug)]
pub struct Hunt {
    /// How long, seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// RAM budget.
    #[arg(long, default_value = "24M")]
    ram: String,
    /// Bytes of counters.
    #[arg(long, default_value = "96M")]
    data: String,
    /// Bytes of the store; small, so that collection has to run.
    #[arg(long, default_value = "192M")]
    store_size: String,
    /// Folder of the store.
    #[arg(long, default_value = ".")]
    dir: String,
    /// Threads that increment.
    #[arg(long, default_value_t = 6)]
    threads: usize,
    /// Milliseconds between forks; 0: none.
    #[arg(long, default_value_t = 700)]
    fork_every_ms: u64,
    /// Seed; 0: from the clock.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// A page-sized block of counters; the first word names it.
const WORDS: usize = 512;
const NAME: u64 = 0xDEE9_4EA9_0000_0000;

struct Field {
    blocks: Vec<usize>,
}

impl Field {
    fn counter(&self, block: usize, word: usize) -> &AtomicU64 {
        // SAFETY: a live allocation of WORDS words, used as atomics only, never freed in the hunt.
        unsafe { &*(self.blocks[block] as *const AtomicU64).add(word) }
    }

    /// The sum of all counters, and the first block whose name is wrong.
    fn sum(&self) -> Result<u64, String> {
        let mut sum = 0u64;
        for block in 0..self.blocks.len() {
            let name = self.counter(block, 0).load(Ordering::Relaxed);
            if name != NAME + block as u64 {
                return Err(format!("block {block} reads {name:#x} where its name should be"));
            }
            for word in 1..WORDS {
                sum += self.counter(block, word).load(Ordering::Relaxed);
            }
        }
        Ok(sum)
    }
}

impl Hunt {
    /// Runs the hunt; an error if a write was lost.
    pub fn main(&self) -> Result<(), Failure> {
        match run(self) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Failed("writes were lost".into())),
            Err(why) => Err(Failure::Failed(why)),
        }
    }
}

fn run(args: &Hunt) -> Result<bool, String> {
    let seed = if args.seed != 0 { args.seed } else { clock_seed() };
    println!("hunt: seed {seed}, {args:?}");
    let conf = format!(
        "ram:{},store:{},store_size:{}",
        args.ram,
        args.dir.replace(',', "\\,"),
        args.store_size
    );
    let config = deepheap::Config::parse(&conf).map_err(|error| error.to_string())?;
    deepheap::init(config).map_err(|error| error.to_string())?;
    let bytes = deepheap::parse_size(&args.data).map_err(|error| error.to_string())?;
    let mut blocks = Vec::new();
    for block in 0..bytes as usize / (WORDS * 8) {
        let address = deepheap::calloc(WORDS, 8);
        if address.is_null() {
            return Err(format!("no memory for block {block}: raise --store-size"));
        }
        // SAFETY: a fresh allocation of WORDS words.
        unsafe { address.cast::<u64>().write(NAME + block as u64) };
        blocks.push(address as usize);
    }
    let field = Field { blocks };
    let done: Vec<AtomicU64> = (0..args.threads).map(|_| AtomicU64::new(0)).collect();
    let (stop, churned, forks) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
    let failures = AtomicUsize::new(0);
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    std::thread::scope(|scope| {
        for (thread, done) in done.iter().enumerate() {
            let (field, stop) = (&field, &stop);
            scope.spawn(move || increment(field, seed + thread as u64, done, stop));
        }
        scope.spawn(|| churn(seed ^ 0xC0FFEE, &stop, &churned, &failures));
        while Instant::now() < deadline && failures.load(Ordering::Relaxed) == 0 {
            let pause = if args.fork_every_ms > 0 { args.fork_every_ms } else { 200 };
            std::thread::sleep(Duration::from_millis(pause));
            if args.fork_every_ms > 0 && !fork_and_check(&field, &done, &forks) {
                failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let expected: u64 = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    let found = field.sum()?;
    let exact = found == expected && failures.load(Ordering::Relaxed) == 0;
    println!(
        "hunt: {} increments, sum {found}, {} objects churned, {} forks, {} failures: {}",
        expected,
        churned.load(Ordering::Relaxed),
        forks.load(Ordering::Relaxed),
        failures.load(Ordering::Relaxed),
        if exact { "exact" } else { "LOST WRITES" }
    );
    if let Some(stats) = deepheap::stats() {
        println!("{}", deepheap::stats_json(&stats));
    }
    Ok(exact)
}

/// Increments random counters; `done` is raised before the counter, so that `done` is never below
/// what the counters hold.
fn increment(field: &Field, seed: u64, done: &AtomicU64, stop: &AtomicBool) {
    let mut random = Random::new(seed, 0);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let block = random.below(field.blocks.len() as u64) as usize;
            let word = 1 + random.below(WORDS as u64 - 1) as usize;
            done.fetch_add(1, Ordering::SeqCst);
            field.counter(block, word).fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Allocates, fills, checks and frees objects of many sizes, cold ones among them.
fn churn(seed: u64, stop: &AtomicBool, churned: &AtomicU64, failures: &AtomicUsize) {
    let mut random = Random::new(seed, 0);
    let mut live: Vec<(usize, usize, u8)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if live.len() < 400 {
            let size = match random.below(8) {
                0 => 1 + random.below(300_000) as usize,
                1 | 2 => 1 + random.below(20_000) as usize,
                _ => 1 + random.below(2000) as usize,
            };
            let address = deepheap::malloc(size);
            if address.is_null() {
                continue;
            }
            let fill = random.below(256) as u8;
            // SAFETY: a fresh allocation of that size.
            unsafe { address.write_bytes(fill, size) };
            live.push((address as usize, size, fill));
        } else {
            let (address, size, fill) = live.swap_remove(random.below(live.len() as u64) as usize);
            // SAFETY: live until the free below; nobody else writes it.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, size) };
            if let Some(at) = bytes.iter().position(|&byte| byte != fill) {
                eprintln!("hunt: byte {at} of {size} is {} and should be {fill}", bytes[at]);
                failures.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: ours, and not used again.
            unsafe { deepheap::free(address as *mut u8) };
            churned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Forks a child that reads every counter: their sum must lie between what was done before the fork
/// and what had been begun when it happened, and stay the same.
fn fork_and_check(field: &Field, done: &[AtomicU64], forks: &AtomicUsize) -> bool {
    let threads = done.len() as u64;
    let before: u64 = done.iter().map(|done| done.load(Ordering::SeqCst)).sum();
    // SAFETY: the child only reads memory, writes to stderr and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let begun: u64 = done.iter().map(|done| done.load(Ordering::SeqCst)).sum();
        let status = match (field.sum(), field.sum()) {
            (Ok(first), Ok(second)) if first == second => {
                // Each thread may stand between its two additions.
                let fits = first + threads >= before && first <= begun && first + threads >= begun;
                if !fits {
                    eprintln!("hunt: child sums {first}, done {before} to {begun}");
                }
                i32::from(!fits)
            }
            (first, second) => {
                eprintln!("hunt: child sums {first:?}, then {second:?}");
                1
            }
        };
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(status) };
    }
    if pid < 0 {
        eprintln!("hunt: fork failed: {}", std::io::Error::last_os_error());
        return false;
    }
    forks.fetch_add(1, Ordering::Relaxed);
    let mut status = 0;
    // SAFETY: our own child, room for its status.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    if status != 0 {
        eprintln!("hunt: child ended with status {status:#x}");
    }
    status == 0
}

fn clock_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64 | 1)
}
