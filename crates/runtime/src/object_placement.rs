//! Object placement: which allocations of an unmodified program become objects.
//!
//! `objects:MIN-MAX` decides by size. `objects:auto` decides by the place in the program: a *site*
//! is a return address and a size class. One with many live allocations of a size that pays, while
//! the heap is deeper than RAM, is a candidate: a few of its allocations are objects on trial
//! (`object_trial`). Once they have shown that neighbours are not used together, and that there
//! are reads to save, it becomes one of objects; or of pages, if they are used together. Without
//! evidence everything else stays on pages.
//!
//! Live allocations are counted by a sample. Whether an address is in it is a hash of the address,
//! so `free` knows without a look at any table, and 63 of 64 calls pay a multiplication only.
//!
//! Guarantees: bounded memory; a full table counts less and so decides for fewer objects. Each look
//! at new evidence decides anew, for what is allocated from then on.
//! Never: allocates, locks, touches an allocation.
//! Threads: any; `faulted` in the fault handler. Counts are relaxed atomics: a site may be decided
//! a few allocations late.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use deepheap_heap::PAGE;
use deepheap_sys::tls;

pub use crate::object_trial::Return;
use crate::object_trial::{RUN_MAX, RunId, Trials, Window};

/// What `objects` can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPlacement {
    /// Allocations of these sizes, in bytes.
    Range {
        /// The smallest.
        min: usize,
        /// The largest.
        max: usize,
    },
    /// By what is seen of each place that allocates.
    Auto,
}

/// The largest size that `objects` may name, in bytes: larger ones gain nothing.
pub const OBJECT_SIZE_MAX: usize = 64 << 10;

/// Sizes for which `auto` decides: below, an object's share of the tables is too large; above,
/// most of a page is used anyhow.
pub const AUTO_SIZES: RangeInclusive<usize> = 64..=2048;
/// Live allocations that make a site a candidate.
pub const LIVE_MIN: u32 = 4096;
/// A site is one of objects if fewer neighbours than one in so many are used together.
pub const LITTLE_LOCALITY: u64 = 8;
/// And only if one window in so many at least began with a read: objects save reads, not faults.
pub const READS_TO_SAVE: u64 = 8;

/// Windows of trials that make a look.
const LOOK_WINDOWS: u64 = 32;
/// A candidate begins a run each time it has made so many allocations.
const RUN_EVERY: u32 = 256;

/// One allocation in so many is in the sample; a power of two.
const SAMPLE: u32 = 64;
/// Sites that are told apart; a power of two. Later ones are not counted.
const SITES: usize = 1024;
/// Sampled allocations that are tracked at a time; a power of two.
const TRACKED: usize = 1 << 15;
/// Places looked at in either table before giving up.
const PROBES: usize = 8;
/// Size classes: eight an octave, as they differ.
const CLASSES_PER_OCTAVE_SHIFT: u32 = 3;
/// In the top bits of a tracked word; addresses have 47 at most.
const SITE_SHIFT: u32 = 48;

/// What was decided for a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// Too little came back to the page buffer: pages, so far.
    None,
    /// Neighbours are not used together, but nearly all comes back from RAM: pages, so far.
    InRam,
    /// Neighbours are used together.
    Pages,
    /// They are not, and what is used is read from the store.
    Objects,
}

/// One place that allocates, with one class of sizes.
#[derive(Debug)]
struct Site {
    /// Return address above, class below; 0 while free.
    key: AtomicU64,
    /// Sampled live allocations.
    live: AtomicU32,
    /// The most there were since it is a candidate; 0 before.
    live_most: AtomicU32,
    /// A `Verdict`.
    verdict: AtomicU32,
    /// Neighbours used together at the last look, in percent.
    together_percent: AtomicU32,
    /// What was `Seen` since the last look.
    seen: AtomicU64,
    /// Allocations since it is a candidate.
    turn: AtomicU32,
    /// The word of the run that is being filled; 0: none is.
    run: AtomicU32,
    /// The thread that fills it.
    run_thread: AtomicUsize,
    /// Objects allocated.
    objects: AtomicU64,
}

/// The sites of a program.
#[derive(Debug)]
pub struct Sites {
    sites: [Site; SITES],
    /// Address and, in the top bits, site of a sampled allocation; 0 while free.
    tracked: [AtomicU64; TRACKED],
    trials: Trials,
}

/// How to place an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On pages, with others.
    Page,
    /// As an object; `object_made` is to be told.
    Object(Making),
}

/// For whom an object is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Making {
    site: usize,
    run: Option<RunId>,
}

/// A site that is or was a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The return address of its calls.
    pub caller: usize,
    /// Its sizes, in bytes.
    pub sizes: (usize, usize),
    /// What was decided.
    pub verdict: Verdict,
    /// The most live allocations, as the sample counts them.
    pub live_most: u64,
    /// Neighbours used together at the last look, in percent; 0 without a verdict.
    pub together_percent: u32,
    /// Objects that it has allocated, those on trial among them.
    pub objects: u64,
}

impl Told {
    /// No site.
    pub const NONE: Told = Told {
        caller: 0,
        sizes: (0, 0),
        verdict: Verdict::None,
        live_most: 0,
        together_percent: 0,
        objects: 0,
    };
}

impl Verdict {
    const ALL: [Verdict; 4] = [Verdict::None, Verdict::InRam, Verdict::Pages, Verdict::Objects];
}

/// Windows of a site, added up: 16 bits each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    windows: u64,
    /// Windows that began with a read.
    reads: u64,
    /// Neighbours, and those of them that were used together with the first.
    neighbours: u64,
    along: u64,
}

impl Seen {
    fn from_word(word: u64) -> Seen {
        let part = |n: u32| word >> (16 * n) & 0xFFFF;
        Seen { windows: part(3), reads: part(2), neighbours: part(1), along: part(0) }
    }

    /// Of one window.
    fn word_of(window: &Window) -> u64 {
        1 << 48
            | u64::from(window.is_read) << 32
            | u64::from(window.neighbours) << 16
            | u64::from(window.along)
    }

    fn together_percent(self) -> u64 {
        self.along * 100 / self.neighbours.max(1)
    }

    /// What to decide. `last`: a site of objects stays one when it needs no reads any more.
    fn verdict(self, last: Verdict) -> Verdict {
        if self.along * LITTLE_LOCALITY >= self.neighbours {
            Verdict::Pages
        } else if self.reads * READS_TO_SAVE >= self.windows || last == Verdict::Objects {
            Verdict::Objects
        } else {
            Verdict::InRam
        }
    }
}

fn verdict_in(word: &AtomicU32) -> Verdict {
    Verdict::ALL[word.load(Ordering::Relaxed) as usize]
}

fn hash(word: u64) -> u64 {
    word.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Whether an allocation at this address is counted.
#[inline]
pub fn is_sampled(address: usize) -> bool {
    hash(address as u64) >> (64 - SAMPLE.trailing_zeros()) == 0
}

/// The class of a size, and its largest.
fn class_of(size: usize) -> u64 {
    let octave = size.max(8).ilog2();
    let step = octave - CLASSES_PER_OCTAVE_SHIFT;
    (u64::from(octave) << CLASSES_PER_OCTAVE_SHIFT) + ((size.max(8) >> step) as u64 & 7)
}

/// The sizes of a class, smallest and largest.
fn sizes_of(class: u64) -> (usize, usize) {
    let octave = (class >> CLASSES_PER_OCTAVE_SHIFT) as u32;
    let step = octave - CLASSES_PER_OCTAVE_SHIFT;
    let first = (1usize << octave) + ((class as usize & 7) << step);
    (first, first + (1 << step) - 1)
}

/// As many allocations as would share a page.
fn run_length(key: u64) -> usize {
    (PAGE / sizes_of(key & 0xFF).0).clamp(2, RUN_MAX)
}

fn key_of(caller: usize, size: usize) -> u64 {
    (caller as u64) << 8 | class_of(size)
}

impl Default for Sites {
    fn default() -> Sites {
        Sites::new()
    }
}

impl Sites {
    /// No sites.
    pub const fn new() -> Sites {
        Sites {
            sites: [const {
                Site {
                    key: AtomicU64::new(0),
                    live: AtomicU32::new(0),
                    live_most: AtomicU32::new(0),
                    verdict: AtomicU32::new(Verdict::None as u32),
                    together_percent: AtomicU32::new(0),
                    seen: AtomicU64::new(0),
                    turn: AtomicU32::new(0),
                    run: AtomicU32::new(0),
                    run_thread: AtomicUsize::new(0),
                    objects: AtomicU64::new(0),
                }
            }; SITES],
            tracked: [const { AtomicU64::new(0) }; TRACKED],
            trials: Trials::new(),
        }
    }

    /// How to place an allocation of this size by this caller.
    #[inline]
    pub fn place(&self, caller: usize, size: usize) -> Placement {
        if !AUTO_SIZES.contains(&size) {
            return Placement::Page;
        }
        let Some(index) = self.find(key_of(caller, size)) else { return Placement::Page };
        let site = &self.sites[index];
        if site.live_most.load(Ordering::Relaxed) == 0 {
            return Placement::Page;
        }
        let run = self.run_to_join(index, tls::area() as usize);
        if run.is_some() || site.verdict.load(Ordering::Relaxed) == Verdict::Objects as u32 {
            Placement::Object(Making { site: index, run })
        } else {
            Placement::Page
        }
    }

    /// Counts an object that `place` asked for.
    pub fn object_made(&self, making: Making, address: usize) {
        let site = &self.sites[making.site];
        site.objects.fetch_add(1, Ordering::Relaxed);
        let key = site.key.load(Ordering::Relaxed);
        if let Some(run) = making.run
            && self.trials.join(run, address, run_length(key))
        {
            site.run.store(0, Ordering::Relaxed);
        }
        if is_sampled(address) {
            self.track(address, key, true);
        }
    }

    /// Counts an ordinary allocation; `is_managing`: the heap is deeper than RAM.
    #[inline]
    pub fn allocated(&self, address: usize, caller: usize, size: usize, is_managing: bool) {
        if AUTO_SIZES.contains(&size) && is_sampled(address) {
            self.track(address, key_of(caller, size), is_managing);
        }
    }

    /// Counts the end of an allocation, whatever it was.
    #[inline]
    pub fn freed(&self, address: usize) {
        self.trials.forget(address);
        if is_sampled(address) {
            self.forget(address);
        }
    }

    /// Whether faults are worth counting.
    #[inline]
    pub fn has_trials(&self) -> bool {
        self.trials.has_begun()
    }

    /// Whether the page at this address is on trial: it must come when it is touched, and alone.
    #[inline]
    pub fn is_on_trial(&self, address: usize) -> bool {
        self.trials.is_watched(address)
    }

    /// Counts a fault that brought a page back to the page buffer.
    pub fn faulted(&self, fault: &Return) {
        self.trials.touched(fault, |ended| self.look(&ended));
    }

    /// The sites that are or were candidates, those with most objects and then most live
    /// allocations first, as many as fit; answers how many there are in all.
    pub fn told(&self, out: &mut [Told]) -> usize {
        let rank = |told: &Told| (told.verdict == Verdict::Objects, told.objects, told.live_most);
        let mut count = 0;
        for site in &self.sites {
            let live_most = site.live_most.load(Ordering::Relaxed);
            if live_most == 0 {
                continue;
            }
            let key = site.key.load(Ordering::Relaxed);
            let verdict = verdict_in(&site.verdict);
            let mut next = Told {
                caller: (key >> 8) as usize,
                sizes: sizes_of(key & 0xFF),
                verdict,
                live_most: u64::from(live_most) * u64::from(SAMPLE),
                together_percent: site.together_percent.load(Ordering::Relaxed),
                objects: site.objects.load(Ordering::Relaxed),
            };
            for place in out.iter_mut().take(count) {
                if rank(place) < rank(&next) {
                    core::mem::swap(place, &mut next);
                }
            }
            if let Some(place) = out.get_mut(count) {
                *place = next;
            }
            count += 1;
        }
        count
    }

    /// The run that the next allocation of a candidate is to join, if any.
    fn run_to_join(&self, index: usize, thread: usize) -> Option<RunId> {
        let site = &self.sites[index];
        let turn = site.turn.fetch_add(1, Ordering::Relaxed);
        if !turn.is_multiple_of(RUN_EVERY) {
            let run = RunId::from_word(site.run.load(Ordering::Relaxed))?;
            return (site.run_thread.load(Ordering::Relaxed) == thread).then_some(run);
        }
        // Whoever was to fill the last one allocates here no more, or slowly.
        if let Some(last) = RunId::from_word(site.run.swap(0, Ordering::Relaxed)) {
            self.trials.seal(last);
        }
        let run = self.trials.begin(index)?;
        site.run_thread.store(thread, Ordering::Relaxed);
        site.run.store(run.to_word(), Ordering::Relaxed);
        Some(run)
    }

    /// Adds a window of a trial to what was seen of its site, and decides when it is enough.
    fn look(&self, window: &Window) {
        let site = &self.sites[window.site];
        let word = Seen::word_of(window);
        let seen = Seen::from_word(site.seen.fetch_add(word, Ordering::Relaxed) + word);
        if seen.windows != LOOK_WINDOWS {
            return;
        }
        let seen = Seen::from_word(site.seen.swap(0, Ordering::Relaxed));
        let verdict = seen.verdict(verdict_in(&site.verdict));
        site.together_percent.store(seen.together_percent() as u32, Ordering::Relaxed);
        site.verdict.store(verdict as u32, Ordering::Relaxed);
    }

    #[cold]
    fn track(&self, address: usize, key: u64, is_managing: bool) {
        let Some(index) = self.find_or_add(key) else { return };
        // Whoever had the address before may have ended unseen.
        self.forget(address);
        let site = &self.sites[index];
        let word = address as u64 | (index as u64) << SITE_SHIFT;
        for place in places(address as u64, TRACKED) {
            let slot = &self.tracked[place];
            let is_taken = slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if is_taken {
                let live = site.live.fetch_add(1, Ordering::Relaxed) + 1;
                if is_managing && live >= LIVE_MIN / SAMPLE {
                    site.live_most.fetch_max(live, Ordering::Relaxed);
                }
                return;
            }
        }
    }

    #[cold]
    fn forget(&self, address: usize) {
        const ADDRESS: u64 = (1 << SITE_SHIFT) - 1;
        for place in places(address as u64, TRACKED) {
            let slot = &self.tracked[place];
            let word = slot.load(Ordering::Relaxed);
            if word & ADDRESS == address as u64 {
                // Only one frees it.
                slot.store(0, Ordering::Relaxed);
                let index = (word >> SITE_SHIFT) as usize & (SITES - 1);
                self.sites[index].live.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        for place in places(key, SITES) {
            match self.sites[place].key.load(Ordering::Relaxed) {
                0 => return None,
                found if found == key => return Some(place),
                _ => {}
            }
        }
        None
    }

    fn find_or_add(&self, key: u64) -> Option<usize> {
        for place in places(key, SITES) {
            let site = &self.sites[place].key;
            match site.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(place),
                Err(found) if found == key => return Some(place),
                Err(_) => {}
            }
        }
        None
    }
}

/// Where a word may be in a table of so many places.
#[inline]
pub(crate) fn places(word: u64, places: usize) -> impl Iterator<Item = usize> {
    // The top bits of the hash are zero for every sampled address: take those below.
    let first = (hash(word) >> 24) as usize;
    (0..PROBES).map(move |probe| (first + probe) & (places - 1))
}

/// The sites of this process, for whoever serves its `malloc`.
pub static SITES_OF_PROCESS: Sites = Sites::new();

#[cfg(test)]
mod tests;
