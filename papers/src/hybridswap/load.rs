//! Load: a program whose memory does not fit its RAM, and what it did to both devices.
//!
//! It runs in a process of its own, with deepheap's runtime in it:
//!
//! - *image* goes through all pages in order, again and again, and changes each, as filters do.
//! - *mixed* does so with half of its pages, and after every 32 of them touches 8 of the others, by
//!   Zipf's law; every other touch writes.
//! - *list* goes through all pages in a random order, the same again and again, and changes each.
//! - *memcached* has items of 64 to 256 KiB in four sets that lie mixed up; 500 queries go to items
//!   of one set, then 500 to the next. Half of the queries put the item anew, the others read it.
//!
//! Guarantees: the same seed gives the same work, however much RAM there is; pages do not compress;
//! a page that holds something else than it must ends the run with an error.
//! Threads: the one that works, and one that looks at the share of stalls.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use deepheap_load::permutation::Permutation;
use deepheap_load::random::{Random, mix};
use deepheap_load::zipf::Zipf;
use serde::{Deserialize, Serialize};

use deepheap_bench::backend::deepheap;
use deepheap_bench::failure::Failure;
use deepheap_bench::output;
use deepheap_bench::sizes::parse_bytes;

const WORDS: usize = 512;
const PAGE: u64 = 4096;
/// A run that goes on for some time looks at the share of stalls so often, ...
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// ... from then on.
const FIRST_LOOK: Duration = Duration::from_secs(10);
const ITEM_PAGES: core::ops::RangeInclusive<u64> = 16..=64;
const SETS: usize = 4;
const QUERIES: usize = 500;

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Kind {
    Image,
    Mixed,
    List,
    Memcached,
}

/// What the hidden command takes.
#[derive(Clone, Debug, Args)]
pub struct Load {
    #[arg(long)]
    pub kind: Kind,
    #[arg(long = "data", value_parser = parse_bytes)]
    pub data_bytes: u64,
    #[arg(long = "ram", value_parser = parse_bytes)]
    pub ram_bytes: u64,
    /// Where the store lies
    #[arg(long)]
    pub dir: PathBuf,
    /// More settings
    #[arg(long, default_value = "")]
    pub conf: String,
    /// How long it works on a page
    #[arg(long)]
    pub work_us: u64,
    /// So often as many pages are worked on as there are
    #[arg(long, default_value_t = u32::MAX)]
    pub rounds: u32,
    /// Ends after so long, and looks at the share of stalls meanwhile
    #[arg(long)]
    pub seconds: Option<f64>,
}

/// What it came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Done {
    pub seconds: f64,
    pub store_written: u64,
    pub tier_written: u64,
    /// Of the run time, in faults.
    pub waited: f64,
    /// The shares of the last seconds, as they were looked at.
    pub shares: Vec<f64>,
    pub rounds: f64,
}

impl Load {
    /// Works, and prints a JSON line.
    pub fn main(&self) -> Result<(), Failure> {
        with_modelled_disk()?;
        deepheap::start(self.ram_bytes, &self.dir, &self.conf)?;
        let pages = self.data_bytes / PAGE;
        let start = ::deepheap::malloc(self.data_bytes as usize).cast::<u64>();
        if start.is_null() {
            return Err(Failure::Failed("no memory for the data".into()));
        }
        let passes = calibrated(Duration::from_micros(self.work_us));
        let ends = self.seconds.map(Duration::from_secs_f64);
        let begun = Instant::now();
        let mut program = Program { start, pages, passes, worked: 0 };
        (0..pages).for_each(|page| program.fill(page));
        let is_done = AtomicBool::new(false);
        let (outcome, shares) = std::thread::scope(|scope| {
            let looks = scope.spawn(|| looks(ends.is_some(), begun, &is_done));
            let most = pages.saturating_mul(self.rounds.into());
            let goes_on =
                |worked: u64| worked < most && ends.is_none_or(|ends| begun.elapsed() < ends);
            let outcome = match self.kind {
                Kind::Image => program.image(goes_on),
                Kind::Mixed => program.mixed(goes_on),
                Kind::List => program.list(goes_on),
                Kind::Memcached => program.memcached(goes_on),
            };
            is_done.store(true, Ordering::Relaxed);
            (outcome, looks.join().unwrap_or_default())
        });
        outcome?;
        let seconds = begun.elapsed().as_secs_f64();
        let stats = ::deepheap::stats().unwrap_or_default();
        output::json(&Done {
            seconds,
            store_written: stats.device_write_bytes,
            tier_written: stats.tier_write_bytes,
            waited: stats.stall_share_ppm as f64 / 1e6,
            shares,
            rounds: program.worked as f64 / pages as f64,
        })
    }
}

/// A second tier is as slow as a disk from now on.
#[cfg(feature = "device-models")]
fn with_modelled_disk() -> Result<(), Failure> {
    let _ = ::deepheap::internal::tier_hook::TIER_HOOK.set(deepheap_sim::ModelledDisk::around);
    Ok(())
}

#[cfg(not(feature = "device-models"))]
fn with_modelled_disk() -> Result<(), Failure> {
    let fix = "build it with --features device-models, as `make bench-hybridswap` does";
    Err(Failure::Failed(format!("this command has no model of a disk: {fix}")))
}

/// Looks at the share of stalls until the work is done.
fn looks(wanted: bool, begun: Instant, is_done: &AtomicBool) -> Vec<f64> {
    let mut shares = Vec::new();
    while wanted && !is_done.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_EVERY);
        let stats = ::deepheap::stats().filter(|_| begun.elapsed() >= FIRST_LOOK);
        shares.extend(stats.map(|stats| stats.stall_share_now_ppm as f64 / 1e6));
    }
    shares
}

/// Passes over a page that take so long.
fn calibrated(work: Duration) -> u32 {
    const TRIED: u32 = 2000;
    let page = [7; WORDS];
    let least = (0..5).map(|_| {
        let begun = Instant::now();
        core::hint::black_box((0..TRIED).fold(1, |sum, _| pass(page.as_ptr(), sum)));
        begun.elapsed()
    });
    let least = least.min().unwrap_or_default();
    (work.as_secs_f64() / (least.as_secs_f64() / f64::from(TRIED))).ceil() as u32
}

/// A sum over a page of which every step needs the last one.
fn pass(page: *const u64, sum: u64) -> u64 {
    // SAFETY: a page of the program's data, or of the caller's stack.
    let word = |at| unsafe { page.add(at).read_volatile() };
    (0..WORDS).fold(sum, |sum, at| (sum ^ word(at)).wrapping_mul(0x100_0000_01B3))
}

struct Program {
    start: *mut u64,
    pages: u64,
    passes: u32,
    /// Pages that were worked on.
    worked: u64,
}

impl Program {
    fn page(&self, page: u64) -> *mut u64 {
        // SAFETY: the program has so many pages.
        unsafe { self.start.add(page as usize * WORDS) }
    }

    /// Bytes that do not compress, behind two words: the number of the page, and what changes.
    fn fill(&self, page: u64) {
        let at = self.page(page);
        for word in 0..WORDS {
            let value = if word == 0 { page } else { mix(page << 9 | word as u64) };
            // SAFETY: a word of that page.
            unsafe { at.add(word).write_volatile(value) };
        }
    }

    fn work(&mut self, page: u64, changes: bool) -> Result<(), Failure> {
        let at = self.page(page);
        // SAFETY: words of that page.
        unsafe {
            if at.read_volatile() != page {
                return Err(Failure::Failed(format!("WRONG DATA in page {page}")));
            }
            if changes {
                at.add(1).write_volatile(at.add(1).read_volatile().wrapping_add(1));
            }
        }
        core::hint::black_box((0..self.passes).fold(page, |sum, _| pass(at, sum)));
        self.worked += 1;
        Ok(())
    }

    fn image(&mut self, goes_on: impl Fn(u64) -> bool) -> Result<(), Failure> {
        for page in (0..self.pages).cycle() {
            if !goes_on(self.worked) {
                break;
            }
            self.work(page, true)?;
        }
        Ok(())
    }

    fn mixed(&mut self, goes_on: impl Fn(u64) -> bool) -> Result<(), Failure> {
        let half = self.pages / 2;
        let (zipf, order) = (Zipf::new(half, 0.99), Permutation::new(half, 25));
        let mut random = Random::new(25, 0);
        for page in (0..half).cycle() {
            if !goes_on(self.worked) {
                break;
            }
            self.work(page, true)?;
            if page % 32 == 0 {
                for touch in 0..8 {
                    let other = order.forward(zipf.sample(|| random.next()) - 1);
                    self.work(half + other, touch % 2 == 0)?;
                }
            }
        }
        Ok(())
    }

    fn list(&mut self, goes_on: impl Fn(u64) -> bool) -> Result<(), Failure> {
        let order = Permutation::new(self.pages, 25);
        for item in (0..self.pages).cycle() {
            if !goes_on(self.worked) {
                break;
            }
            self.work(order.forward(item), true)?;
        }
        Ok(())
    }

    fn memcached(&mut self, goes_on: impl Fn(u64) -> bool) -> Result<(), Failure> {
        let mut random = Random::new(25, 0);
        let (mut sets, mut first) = ([const { Vec::new() }; SETS], 0);
        loop {
            let (least, most) = (*ITEM_PAGES.start(), *ITEM_PAGES.end());
            let pages = least + random.below(most - least + 1);
            if first + pages > self.pages {
                break;
            }
            sets[random.below(SETS as u64) as usize].push(first..first + pages);
            first += pages;
        }
        for set in sets.iter().filter(|set| !set.is_empty()).cycle() {
            for _ in 0..QUERIES {
                if !goes_on(self.worked) {
                    return Ok(());
                }
                let item = &set[random.below(set.len() as u64) as usize];
                let puts = random.percent(50);
                for page in item.clone() {
                    self.work(page, puts)?;
                }
            }
        }
        Ok(())
    }
}
