//! Hunt: looks for lost writes (reliability, layer 2).
//!
//! Threads increment counters in memory pages, mapped ones among them, and in objects of all
//! sizes, by pointers. Eviction, faults, collection, frees and forks run as hard as they can.
//! In most of the same objects, one word is counted in by `read` and `write`. Another thread counts
//! in objects of its own by `gather` and `scatter`; others read and write objects whole, and look
//! for torn ones. At the end, and in every forked child, all of it must be exact.
//!
//! Guarantees: prints its seed; a mismatch names the object and both values and ends with
//! exit status 1.

mod called;
mod whole;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use deepheap::objects::{self, ObjectError};
use deepheap_load::random::Random;

use called::Called;
use whole::Whole;

use crate::failure::Failure;
use crate::output;
use crate::sizes::parse_bytes;

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
    #[arg(long, value_parser = parse_bytes, default_value = "96M", value_name = "SIZE")]
    data: u64,
    /// Bytes of the store; small, so that collection has to run [default: 192M, 256M with
    /// micro-pages]
    #[arg(long)]
    store_size: Option<String>,
    /// A second tier, of the same size: a folder [default: none]
    #[arg(long, value_name = "PATH")]
    tier: Option<String>,
    /// Folder of the store.
    #[arg(long, default_value = ".")]
    dir: String,
    /// Threads that increment.
    #[arg(long, default_value_t = 6)]
    threads: usize,
    /// Small objects share frames of RAM, and most objects are small.
    #[arg(long)]
    micro_pages: bool,
    /// Milliseconds between forks; 0: none.
    #[arg(long, default_value_t = 700)]
    fork_every_ms: u64,
    /// Seed; 0: from the clock.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Words of a page of counters. The first of a block names it.
const WORDS: usize = 512;
/// With micro-pages, so many more objects come to each memory page, of so many words at most.
const SMALL_ONES: usize = 32;
const SMALL_WORDS: usize = 64;
const NAME: u64 = 0xDEE9_4EA9_0000_0000;
/// So many pages are mapped at a time.
const MAPPED_PAGES: usize = 64;
const USUAL: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Objects that are counted in by calls take a part of the bytes, at half a page each.
const CALLED_PART: usize = 4;
/// So many at a time.
const BATCH: usize = 64;
/// Threads that count in blocks of the field by calls, each in blocks of its own.
const CALLERS: usize = 2;
/// Blocks with fewer words have none for them.
const CALLED_WORDS: usize = 3;
/// Within this time a forked child has read everything, however busy the machine is.
const CHILD_ENDS: Duration = Duration::from_secs(600);

/// A block of counters: a memory page, or an object.
struct Block {
    address: usize,
    words: usize,
}

impl Block {
    fn new(name: u64, address: *mut u8, words: usize) -> Option<Block> {
        if address.is_null() {
            return None;
        }
        // SAFETY: a fresh allocation of that many words.
        unsafe {
            address.write_bytes(0, 8 * words);
            address.cast::<u64>().write(name);
        }
        Some(Block { address: address as usize, words })
    }
}

/// Where memory comes from.
#[derive(Clone, Copy)]
enum Kind {
    Memory,
    Mapped,
    Object,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Memory, Kind::Mapped, Kind::Object];

    fn random(random: &mut Random) -> Kind {
        Kind::ALL[random.below(3) as usize]
    }

    fn allocate(self, size: usize) -> *mut u8 {
        match self {
            Kind::Memory => deepheap::malloc(size),
            Kind::Mapped => deepheap::internal::map_area(size, USUAL, false)
                .map_or(core::ptr::null_mut(), |address| address as *mut u8),
            Kind::Object => objects::allocate(1, size),
        }
    }

    /// # Safety
    /// A live allocation of that kind and size, not used again.
    unsafe fn free(self, address: usize, size: usize) {
        match self {
            // SAFETY: the caller's promise.
            Kind::Memory | Kind::Object => unsafe { deepheap::free(address as *mut u8) },
            Kind::Mapped => drop(deepheap::internal::unmap_area(address, size)),
        }
    }
}

/// Pages of one mapping.
fn mapped_pages() -> Result<Vec<*mut u8>, String> {
    let start = deepheap::internal::map_area(MAPPED_PAGES * 8 * WORDS, USUAL, false)
        .map_err(|errno| format!("no memory to map ({errno}): raise --store-size"))?;
    Ok((0..MAPPED_PAGES).map(|page| (start + page * 8 * WORDS) as *mut u8).collect())
}

struct Field {
    blocks: Vec<Block>,
    /// Their places in `blocks`, by their addresses.
    in_order: Vec<usize>,
    /// The sum of all counters at the start.
    base: u64,
}

impl Field {
    /// A third are memory pages, a third are mapped, a third are objects of 16 bytes to a page. The
    /// counters of every other block begin at random values, so that it does not compress.
    /// With `small_ones` there are more objects, of up to 64 words.
    fn new(bytes: usize, seed: u64, small_ones: bool) -> Result<Field, String> {
        let mut random = Random::new(seed, 1);
        let (mut blocks, mut left, mut base) = (Vec::new(), bytes, 0u64);
        let mut mapped = Vec::new();
        let (most, further) = if small_ones { (SMALL_WORDS, SMALL_ONES) } else { (WORDS, 0) };
        // What one round takes at most.
        while left >= 8 * (2 * WORDS + (1 + further) * most) {
            let further = core::iter::repeat_n(Kind::Object, further);
            for kind in Kind::ALL.into_iter().chain(further) {
                if mapped.is_empty() {
                    mapped = mapped_pages()?;
                }
                let (address, words) = match kind {
                    Kind::Memory => (deepheap::malloc(8 * WORDS), WORDS),
                    Kind::Mapped => (mapped.pop().unwrap_or(core::ptr::null_mut()), WORDS),
                    Kind::Object => {
                        let words = 2 + random.below(most as u64 - 1) as usize;
                        (objects::allocate(1, 8 * words), words)
                    }
                };
                let block = Block::new(NAME + blocks.len() as u64, address, words);
                let short = format!("no memory for block {}: raise --store-size", blocks.len());
                let block = block.ok_or(short)?;
                if blocks.len() % 2 == 1 {
                    for word in 1..words {
                        let value = random.next();
                        base = base.wrapping_add(value);
                        // SAFETY: within a fresh allocation of that many words.
                        unsafe { (block.address as *mut u64).add(word).write(value) };
                    }
                }
                blocks.push(block);
                left -= 8 * words;
            }
        }
        let mut in_order: Vec<usize> = (0..blocks.len()).collect();
        in_order.sort_unstable_by_key(|&block| blocks[block].address);
        Ok(Field { blocks, in_order, base })
    }

    fn counter(&self, block: usize, word: usize) -> &AtomicU64 {
        // SAFETY: a live allocation of that many words, used as atomics only, never freed in the
        // hunt.
        unsafe { &*(self.blocks[block].address as *const AtomicU64).add(word) }
    }

    /// What was added to all counters; an error names the first block whose name is wrong.
    fn sum(&self) -> Result<u64, String> {
        let mut sum = self.base.wrapping_neg();
        for block in 0..self.blocks.len() {
            let name = self.counter(block, 0).load(Ordering::Relaxed);
            if name != NAME + block as u64 {
                return Err(format!("block {block} reads {name:#x} where its name should be"));
            }
            for word in 1..self.blocks[block].words {
                sum = sum.wrapping_add(self.counter(block, word).load(Ordering::Relaxed));
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
    tell(format_args!("hunt: seed {seed}, {args:?}"))?;
    // Many small objects take more of the log than their bytes.
    let usual = if args.micro_pages { "256M" } else { "192M" };
    let store_size = args.store_size.as_deref().unwrap_or(usual);
    let mut conf =
        format!("ram:{},store:{},store_size:{store_size}", args.ram, args.dir.replace(',', "\\,"));
    if let Some(tier) = &args.tier {
        conf += &format!(",tier:{}:{},stall:off", tier.replace(',', "\\,"), store_size);
    }
    if args.micro_pages {
        conf += ",micro_pages:on";
    }
    let config = deepheap::Config::parse(&conf).map_err(|error| error.to_string())?;
    deepheap::init(config).map_err(|error| error.to_string())?;
    let bytes = args.data as usize;
    let called_bytes = bytes / CALLED_PART;
    let field = Field::new(bytes - called_bytes, seed, args.micro_pages)?;
    let called = Called::new((called_bytes / (WORDS * 4)).max(BATCH), seed)?;
    let whole = Whole::new(seed)?;
    let done: Vec<AtomicU64> = (0..args.threads + CALLERS).map(|_| AtomicU64::new(0)).collect();
    let (by_pointers, by_calls) = done.split_at(args.threads);
    let (stop, churned, forks) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
    let failures = AtomicUsize::new(0);
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    std::thread::scope(|scope| {
        for (thread, done) in by_pointers.iter().enumerate() {
            let (field, stop) = (&field, &stop);
            scope.spawn(move || increment(field, seed + thread as u64, done, stop));
        }
        for (caller, done) in by_calls.iter().enumerate() {
            let (field, stop, failures) = (&field, &stop, &failures);
            scope.spawn(move || {
                if let Err(why) = call(field, caller, seed ^ 0xCA, done, stop) {
                    eprintln!("hunt: {why}");
                    failures.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for thread in 0..whole::THREADS {
            let (whole, stop, failures) = (&whole, &stop, &failures);
            scope.spawn(move || {
                if let Err(why) = whole.read_and_write(thread, seed ^ 0xB0, stop) {
                    eprintln!("hunt: {why}");
                    failures.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| churn(seed ^ 0xC0FFEE, &stop, &churned, &failures));
        scope.spawn(|| called.count(seed ^ 0xCA11, &stop, &failures));
        while Instant::now() < deadline && failures.load(Ordering::Relaxed) == 0 {
            let pause = if args.fork_every_ms > 0 { args.fork_every_ms } else { 200 };
            std::thread::sleep(Duration::from_millis(pause));
            if args.fork_every_ms > 0 && !fork_and_check(&field, &called, &whole, &done, &forks) {
                failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let expected: u64 = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    let found = field.sum()?;
    called.check(0)?;
    whole.check_at_the_end()?;
    let exact = found == expected && failures.load(Ordering::Relaxed) == 0;
    tell(format_args!(
        "hunt: {} increments, sum {found}, {} of them by calls, {} by batches, {} whole objects, \
         {} objects churned, {} forks, {} failures: {}",
        expected,
        by_calls.iter().map(|done| done.load(Ordering::Relaxed)).sum::<u64>(),
        called.total(),
        whole.total(),
        churned.load(Ordering::Relaxed),
        forks.load(Ordering::Relaxed),
        failures.load(Ordering::Relaxed),
        if exact { "exact" } else { "LOST WRITES" }
    ))?;
    if let Some(stats) = deepheap::stats() {
        tell(deepheap::stats_json(&stats))?;
    }
    Ok(exact)
}

fn tell(text: impl core::fmt::Display) -> Result<(), String> {
    output::line(text).map_err(|failure| failure.to_string())
}

/// Increments random counters; `done` is raised before the counter, so that `done` is never below
/// what the counters hold.
fn increment(field: &Field, seed: u64, done: &AtomicU64, stop: &AtomicBool) {
    const WAY: usize = 3000;
    let mut random = Random::new(seed, 0);
    for turn in 0.. {
        // Each fourth time the same way again, which is read ahead.
        let mut way = Random::new(seed, if turn % 4 == 0 { 1 } else { 1 + turn });
        let start = way.below(field.blocks.len() as u64) as usize;
        for step in 0..WAY {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            // And once in order, which goes to the second tier.
            let block = match turn % 4 {
                2 => field.in_order[(start + step) % field.blocks.len()],
                _ => way.below(field.blocks.len() as u64) as usize,
            };
            let words = field.blocks[block].words;
            let own = if words < CALLED_WORDS { words } else { words - 1 };
            let word = 1 + random.below(own as u64 - 1) as usize;
            done.fetch_add(1, Ordering::SeqCst);
            field.counter(block, word).fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// As `increment`, by calls: the last word of blocks that no other caller counts in. Half of the
/// time one of a few, which stay in RAM.
fn call(
    field: &Field,
    caller: usize,
    seed: u64,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), String> {
    const FEW: u64 = 300;
    let mut random = Random::new(seed, caller as u64);
    let own = field.blocks.len() as u64 / CALLERS as u64;
    while !stop.load(Ordering::Relaxed) {
        let among = if random.below(2) == 0 { own.min(FEW) } else { own };
        let block = &field.blocks[random.below(among) as usize * CALLERS + caller];
        if block.words < CALLED_WORDS {
            continue;
        }
        let (object, offset) = (block.address as *mut u8, 8 * (block.words - 1));
        let mut value = 0u64;
        // SAFETY: a live allocation with that word; room for it.
        unsafe { objects::read(object, offset, (&raw mut value).cast(), 8) }
            .map_err(|error| format!("read: {error:?}"))?;
        let value = value.wrapping_add(1);
        done.fetch_add(1, Ordering::SeqCst);
        write_when_there_is_room(object, offset, &[value])?;
    }
    Ok(())
}

/// `objects::write`, again and again while forked children keep the space.
fn write_when_there_is_room(object: *mut u8, offset: usize, words: &[u64]) -> Result<(), String> {
    let deadline = Instant::now() + CHILD_ENDS;
    loop {
        // SAFETY: every caller's object is live, and has the words.
        match unsafe { objects::write(object, offset, words.as_ptr().cast(), 8 * words.len()) } {
            Ok(()) => return Ok(()),
            Err(ObjectError::NoRoom) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(format!("write: {error:?}")),
        }
    }
}

/// Allocates, fills, checks and frees objects of many sizes, cold ones among them.
fn churn(seed: u64, stop: &AtomicBool, churned: &AtomicU64, failures: &AtomicUsize) {
    let mut random = Random::new(seed, 0);
    let mut live: Vec<(Kind, usize, usize, u8)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if live.len() < 400 {
            let size = match random.below(8) {
                0 => 1 + random.below(300_000) as usize,
                1 | 2 => 1 + random.below(20_000) as usize,
                _ => 1 + random.below(2000) as usize,
            };
            let kind = Kind::random(&mut random);
            let address = kind.allocate(size);
            if address.is_null() {
                continue;
            }
            let fill = random.below(256) as u8;
            // SAFETY: a fresh allocation of that size.
            unsafe { address.write_bytes(fill, size) };
            live.push((kind, address as usize, size, fill));
        } else {
            let (kind, address, size, fill) =
                live.swap_remove(random.below(live.len() as u64) as usize);
            // SAFETY: live until the free below; nobody else writes it.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, size) };
            if let Some(at) = bytes.iter().position(|&byte| byte != fill) {
                eprintln!("hunt: byte {at} of {size} is {} and should be {fill}", bytes[at]);
                failures.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: ours, and not used again.
            unsafe { kind.free(address, size) };
            churned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Forks a child that reads every counter: their sum must lie between what was done before the fork
/// and what had been begun when it happened, and stay the same.
fn fork_and_check(
    field: &Field,
    called: &Called,
    whole: &Whole,
    done: &[AtomicU64],
    forks: &AtomicUsize,
) -> bool {
    let threads = done.len() as u64;
    let before: u64 = done.iter().map(|done| done.load(Ordering::SeqCst)).sum();
    // SAFETY: the child only reads memory, writes to stderr and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let begun: u64 = done.iter().map(|done| done.load(Ordering::SeqCst)).sum();
        // The fork may have come between a scatter and the note of it.
        let by_calls =
            called.check(1).and_then(|()| called.check(1)).and_then(|()| whole.check_in_child());
        if let Err(why) = &by_calls {
            eprintln!("hunt: child: {why}");
        }
        let status = match (field.sum(), field.sum()) {
            _ if by_calls.is_err() => 1,
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
