//! Object placement: which allocations of an unmodified program become objects.
//!
//! `objects:MIN-MAX` decides by size. `objects:auto` decides by the place in the program: a *site*
//! is a return address and a size class, and becomes one of objects once it has many live
//! allocations of a size that pays while the heap is deeper than RAM.
//!
//! Live allocations are counted by a sample. Whether an address is in it is a hash of the address,
//! so `free` knows without a look at any table, and 63 of 64 calls pay a multiplication only.
//!
//! Guarantees: bounded memory; a full table counts less and so decides for fewer objects. What has
//! been decided stays.
//! Never: allocates, locks, touches an allocation.
//! Threads: any. Counts are relaxed atomics: a site may be decided a few allocations late.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
/// Live allocations that make a site one of objects.
pub const LIVE_MIN: u32 = 4096;

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

/// One place that allocates, with one class of sizes.
#[derive(Debug)]
struct Site {
    /// Return address above, class below; 0 while free.
    key: AtomicU64,
    /// Sampled live allocations.
    live: AtomicU32,
    /// Whether it has been decided for objects.
    chosen: AtomicU32,
    /// Objects allocated since then.
    objects: AtomicU64,
}

/// The sites of a program.
#[derive(Debug)]
pub struct Sites {
    sites: [Site; SITES],
    /// Address and, in the top bits, site of a sampled allocation; 0 while free.
    tracked: [AtomicU64; TRACKED],
}

/// A site that was decided for objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The return address of its calls.
    pub caller: usize,
    /// Its sizes, in bytes.
    pub sizes: (usize, usize),
    /// Objects that it has allocated.
    pub objects: u64,
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
                    chosen: AtomicU32::new(0),
                    objects: AtomicU64::new(0),
                }
            }; SITES],
            tracked: [const { AtomicU64::new(0) }; TRACKED],
        }
    }

    /// Whether an allocation of this size by this caller is to be an object.
    #[inline]
    pub fn places(&self, caller: usize, size: usize) -> bool {
        if !AUTO_SIZES.contains(&size) {
            return false;
        }
        let Some(site) = self.find(key_of(caller, size)) else { return false };
        let is_chosen = self.sites[site].chosen.load(Ordering::Relaxed) != 0;
        if is_chosen {
            self.sites[site].objects.fetch_add(1, Ordering::Relaxed);
        }
        is_chosen
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
        if is_sampled(address) {
            self.forget(address);
        }
    }

    /// The sites that were decided for, those with most objects first, as many as fit; answers how
    /// many there are in all.
    pub fn chosen(&self, out: &mut [Chosen]) -> usize {
        let mut count = 0;
        for site in self.sites.iter().filter(|site| site.chosen.load(Ordering::Relaxed) != 0) {
            let key = site.key.load(Ordering::Relaxed);
            let (caller, sizes) = ((key >> 8) as usize, sizes_of(key & 0xFF));
            let mut next = Chosen { caller, sizes, objects: site.objects.load(Ordering::Relaxed) };
            for place in out.iter_mut().take(count) {
                if place.objects < next.objects {
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
                    site.chosen.store(1, Ordering::Relaxed);
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
fn places(word: u64, places: usize) -> impl Iterator<Item = usize> {
    // The top bits of the hash are zero for every sampled address: take those below.
    let first = (hash(word) >> 24) as usize;
    (0..PROBES).map(move |probe| (first + probe) & (places - 1))
}

/// The sites of this process, for whoever serves its `malloc`.
pub static SITES_OF_PROCESS: Sites = Sites::new();

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: usize = 0x5555_0000_1234;
    const NONE: Chosen = Chosen { caller: 0, sizes: (0, 0), objects: 0 };

    /// Allocations of a slab: addresses a size apart.
    fn addresses(from: usize, size: usize, count: usize) -> impl Iterator<Item = usize> {
        (0..count).map(move |i| 0x2000_0000_0000 + from + i * size)
    }

    fn allocate(sites: &Sites, from: usize, size: usize, count: usize, is_managing: bool) {
        for address in addresses(from, size, count) {
            sites.allocated(address, CALLER, size, is_managing);
        }
    }

    fn sites() -> Box<Sites> {
        Box::new(Sites::new())
    }

    #[test]
    fn a_site_with_many_live_allocations_becomes_one_of_objects() {
        let sites = sites();
        allocate(&sites, 0, 128, 2 * LIVE_MIN as usize, true);
        assert!(sites.places(CALLER, 128) && sites.places(CALLER, 130));
        assert!(!sites.places(CALLER, 256), "another size");
        assert!(!sites.places(CALLER + 8, 128), "another caller");
        let mut out = [NONE; 4];
        assert_eq!(sites.chosen(&mut out), 1);
        assert_eq!(out[0], Chosen { caller: CALLER, sizes: (128, 143), objects: 2 });
    }

    #[test]
    fn few_short_lived_and_odd_sizes_stay_ordinary() {
        let sites = sites();
        allocate(&sites, 0, 128, LIVE_MIN as usize / 2, true);
        assert!(!sites.places(CALLER, 128), "few are live");
        for round in 0..100 {
            allocate(&sites, round << 24, 512, 1000, true);
            addresses(round << 24, 512, 1000).for_each(|address| sites.freed(address));
        }
        assert!(!sites.places(CALLER, 512), "none is live for long");
        for size in [16, 63, 2049, 100_000] {
            allocate(&sites, size << 24, size, 4 * LIVE_MIN as usize, true);
            assert!(!sites.places(CALLER, size), "{size} bytes");
        }
        assert_eq!(sites.chosen(&mut []), 0);
    }

    #[test]
    fn nothing_is_decided_while_the_heap_fits() {
        let sites = sites();
        allocate(&sites, 0, 200, 4 * LIVE_MIN as usize, false);
        assert!(!sites.places(CALLER, 200));
        allocate(&sites, 1 << 30, 200, 1000, true);
        assert!(sites.places(CALLER, 200), "what was counted before still counts");
    }

    #[test]
    fn the_sample_is_one_in_sixty_four_of_every_stride() {
        for stride in [16, 48, 64, 128, 144, 1000, 2048, 4096] {
            let count = 1 << 16;
            let sampled = addresses(0, stride, count).filter(|&at| is_sampled(at)).count();
            let expected = count / SAMPLE as usize;
            assert!(sampled.abs_diff(expected) < expected / 4, "{stride}: {sampled}");
        }
    }

    #[test]
    fn full_tables_only_count_less() {
        let sites = sites();
        for address in addresses(1 << 44, 128, 64 * 2 * TRACKED) {
            sites.allocated(address, CALLER, 128, true);
        }
        for caller in 0..4 * SITES {
            for address in addresses(caller << 20, 64, 256) {
                sites.allocated(address, CALLER + caller * 16, 64, true);
            }
        }
        let tracked = sites.tracked.iter().filter(|slot| slot.load(Ordering::Relaxed) != 0);
        assert!(tracked.count() > TRACKED / 2);
        let live: u32 = sites.sites.iter().map(|site| site.live.load(Ordering::Relaxed)).sum();
        assert!(live as usize <= TRACKED);
        for address in addresses(1 << 44, 128, 64 * 2 * TRACKED) {
            sites.freed(address);
        }
        for caller in 0..4 * SITES {
            addresses(caller << 20, 64, 256).for_each(|address| sites.freed(address));
        }
        let live: u32 = sites.sites.iter().map(|site| site.live.load(Ordering::Relaxed)).sum();
        assert_eq!(live, 0, "every allocation that was counted is uncounted");
    }

    #[test]
    fn classes_cover_every_size_once() {
        let mut last = 0;
        for size in 8..=4096 {
            let class = class_of(size);
            let (first, end) = sizes_of(class);
            assert!((first..=end).contains(&size), "{size}: {first} to {end}");
            assert!(class >= last && end - first < first / 8 + 1);
            last = class;
        }
        assert!(last < 256);
    }

    #[test]
    fn the_largest_sites_are_told_first() {
        let sites = sites();
        for (n, size) in [128usize, 512, 1024].into_iter().enumerate() {
            allocate(&sites, n << 32, size, 2 * LIVE_MIN as usize, true);
            (0..10 * (n % 2 + 1) + n).for_each(|_| assert!(sites.places(CALLER, size)));
        }
        let mut out = [NONE; 2];
        assert_eq!(sites.chosen(&mut out), 3);
        assert_eq!((out[0].objects, out[1].objects), (21, 12));
    }
}
