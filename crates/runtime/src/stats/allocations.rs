//! Allocations: some of them, each with the stack that made it, and where their pages were when
//! most was cold (compressed in RAM, or on SSD), for `deepheap profile --allocations`.
//!
//! Every byte that is allocated is drawn with the same probability, one in an *interval*; an
//! allocation with such a byte is a *sample*. Its size tells how probable that was, and the inverse
//! tells how many allocations it stands for. If `LIVE_MAX` samples live, the interval doubles, and
//! so does the distance of each sample's byte from its beginning: samples leave of which it is
//! beyond the end now. Twice a distance of this mean is distributed as one of twice the mean, so
//! those are left that the larger interval would have got.
//!
//! A worker looks from time to time where the pages of the samples are. When more is cold than ever
//! before, it writes that to the profile, which so tells of the moment when most was cold: of a
//! program that frees all in the end, too, and of one that is killed.
//!
//! Guarantees: what was freed before a look is not in it. Without sampling, `malloc` and `free`
//! have no instruction more on their fast paths (`memory/thread_cache`).
//! Never: allocates. The lock is taken with signals blocked, for a handler of the program that
//! allocates would wait for itself. Under it no other lock is taken, and nothing but the caller's
//! own stack is touched; a fault on that takes no lock that is held while this one is wanted.
//! Threads: any, outside the fault path.

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use deepheap_heap::PAGE;
use deepheap_pager::{Pager, Survey};
use deepheap_sys::process::clock;
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::signals::Blocked;
use deepheap_sys::threads::tls;

use crate::stats::profile::{Control, SLOTS};

/// The interval at first. A sample takes some microseconds, and to write so much takes more than
/// ten times as long.
const INTERVAL_BYTES: u64 = 512 << 10;
/// The interval doubles so often at most.
const LEVEL_MAX: u64 = 30;
/// Samples of allocations that live, at most.
const LIVE_MAX: usize = 1024;
/// Places for them: a line of the processor's cache has those whose addresses have one hash. Where
/// `LIVE_MAX` live, one sample in nine hundred finds its line full, and is lost.
const PLACES: usize = 4 * LIVE_MAX;
const WAYS: usize = 8;
/// Pages that one look looks at, about, however large the samples are.
const PAGES_MAX: usize = 1 << 18;
/// In `until_sample`, above the bytes: the level under which they were drawn.
const LEVEL_SHIFT: u32 = 56;
const LEFT: u64 = (1 << LEVEL_SHIFT) - 1;

static IS_ON: AtomicBool = AtomicBool::new(false);
static SAMPLES: Samples = Samples::new();

/// The samples of a process.
struct Samples {
    /// Of each place the address, or 0. A free looks at them without the lock: the address that it
    /// frees was written before the program got it, and stays until this very free.
    addresses: Lines,
    table: Lock<Table>,
}

#[repr(align(64))]
struct Lines([AtomicUsize; PLACES]);

struct Table {
    places: [Place; PLACES],
    live: usize,
    /// How often the interval has doubled.
    level: u64,
    random: u64,
    /// Bytes that were cold when what is told was seen.
    most_cold: u64,
    /// The slots in which something is told, a bit each. They are kept until more is cold.
    told: Slots,
}

type Slots = [u64; SLOTS as usize / 64];

#[derive(Clone, Copy)]
struct Place {
    bytes: u64,
    /// How far from its beginning the byte is that was drawn.
    drawn: u64,
    slot: u64,
    /// What it stands for, at the last look: bytes in RAM, compressed, and on SSD.
    seen: [u64; 3],
}

/// Whether allocations are sampled.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// The process has joined a profile with allocations; it has one thread.
pub(crate) fn begin() {
    IS_ON.store(true, Relaxed);
}

/// Memory was allocated.
#[inline]
pub(crate) fn note(address: usize, bytes: usize) {
    if is_on() {
        // SAFETY: the calling thread's own area. A handler that allocates in between may get its
        // change lost: one draw is as good as another.
        let until_sample = unsafe { &mut (*tls::area()).until_sample };
        let bytes = bytes.max(1) as u64;
        if *until_sample & LEFT > bytes {
            *until_sample -= bytes;
        } else {
            sample(until_sample, address, bytes);
        }
    }
}

/// Memory has another size at the same address, before anybody else can have what it had more.
pub(crate) fn note_again(address: usize, bytes: usize) {
    forget(address);
    note(address, bytes);
}

#[cold]
#[inline(never)]
fn sample(until_sample: &mut u64, address: usize, bytes: u64) {
    let registers = registers();
    if let Some(control) = Control::joined().filter(|control| !control.is_over()) {
        let _blocked = Blocked::all();
        *until_sample = SAMPLES.add(control, *until_sample, (address, bytes), registers);
    }
}

/// The instruction, the stack pointer and rbp of the caller.
#[inline(always)]
fn registers() -> [u64; 3] {
    let [ip, sp, bp]: [u64; 3];
    // SAFETY: only reads them.
    unsafe {
        asm!(
            "lea {ip}, [rip]",
            "mov {sp}, rsp",
            "mov {bp}, rbp",
            ip = out(reg) ip,
            sp = out(reg) sp,
            bp = out(reg) bp,
            options(nomem, nostack, preserves_flags),
        );
    }
    [ip, sp, bp]
}

/// Memory is about to be freed, or its address space to be given back: any that was allocated.
#[inline]
pub(crate) fn forget(address: usize) {
    if SAMPLES.place_of(address).is_some() {
        SAMPLES.forget(address);
    }
}

/// Looks where the samples are.
pub(crate) fn look(pager: &Pager) {
    let Some(control) = Control::joined().filter(|_| is_on()) else { return };
    if control.is_over() {
        IS_ON.store(false, Relaxed);
        return;
    }
    let _blocked = Blocked::all();
    let base = pager.region_base() / PAGE;
    SAMPLES
        .look(control, |pages, stride| pager.survey(pages.start - base..pages.end - base, stride));
}

/// The process ends: it gives back the slots in which nothing is told.
pub(crate) fn end() {
    if IS_ON.swap(false, Relaxed)
        && let Some(control) = Control::joined()
    {
        let _blocked = Blocked::all();
        let mut table = SAMPLES.table.lock();
        SAMPLES.live().for_each(|at| SAMPLES.remove(&mut table, control, at));
    }
}

/// In the child of a fork: what its parent has allocated is the parent's.
///
/// # Safety
/// The child has one thread, which is here, with signals blocked.
pub(crate) unsafe fn become_child() {
    if is_on() {
        // SAFETY: whoever had the lock is not here. Places without an address are free, whatever
        // else it was about to write, and all other fields are made anew.
        unsafe {
            SAMPLES.table.force_unlock();
            (*tls::area()).until_sample = 0;
        }
        SAMPLES.addresses.0.iter().for_each(|address| address.store(0, Relaxed));
        let mut table = SAMPLES.table.lock();
        (table.live, table.level, table.random, table.most_cold) = (0, 0, 0, 0);
        table.told = [0; _];
    }
}

impl Samples {
    const fn new() -> Samples {
        Samples {
            addresses: Lines([const { AtomicUsize::new(0) }; PLACES]),
            table: Lock::new(Table {
                places: [Place { bytes: 0, drawn: 0, slot: 0, seen: [0; 3] }; PLACES],
                live: 0,
                level: 0,
                random: 0,
                most_cold: 0,
                told: [0; _],
            }),
        }
    }

    /// The places that an address can have.
    fn line_of(address: usize) -> Range<usize> {
        const LINES: usize = PLACES / WAYS;
        let mixed = (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (mixed >> (u64::BITS - LINES.ilog2())) as usize * WAYS;
        first..first + WAYS
    }

    #[inline]
    fn place_of(&self, address: usize) -> Option<usize> {
        Self::line_of(address).find(|at| self.addresses.0[*at].load(Relaxed) == address)
    }

    fn live(&self) -> impl Iterator<Item = usize> {
        (0..PLACES).filter(|at| self.addresses.0[*at].load(Relaxed) != 0)
    }

    /// Has an allocation as a sample if it is due in a thread that has so much left until one; 0 if
    /// it has not drawn. Answers what it has left then.
    fn add(
        &self,
        control: &Control,
        left: u64,
        (address, bytes): (usize, u64),
        registers: [u64; 3],
    ) -> u64 {
        let mut table = self.table.lock();
        let left = if left == 0 { table.draw() } else { left };
        let levels = table.level.saturating_sub(left >> LEVEL_SHIFT);
        let mut drawn = (u128::from(left & LEFT) << levels).min(LEFT.into()) as u64;
        while drawn <= bytes && table.live == LIVE_MAX && table.level < LEVEL_MAX {
            self.double_interval(&mut table, control);
            drawn *= 2;
        }
        if drawn > bytes {
            // What is left of it is distributed as a new one.
            return table.at_level((drawn - bytes).min(LEFT));
        }
        let place = Self::line_of(address).find(|at| self.addresses.0[*at].load(Relaxed) == 0);
        let place = place.filter(|_| table.live < LIVE_MAX);
        let slot = place.and_then(|_| control.write_allocation(registers));
        if let (Some(at), Some(slot)) = (place, slot) {
            table.places[at] = Place { bytes, drawn, slot, seen: [0; 3] };
            table.live += 1;
            self.addresses.0[at].store(address, Relaxed);
        } else {
            control.lose_allocation();
        }
        table.draw()
    }

    fn double_interval(&self, table: &mut Table, control: &Control) {
        table.level += 1;
        for at in self.live() {
            table.places[at].drawn *= 2;
            if table.places[at].drawn > table.places[at].bytes {
                self.remove(table, control, at);
            }
        }
    }

    #[cold]
    fn forget(&self, address: usize) {
        let _blocked = Blocked::all();
        let mut table = self.table.lock();
        // It may have left meanwhile, when the interval doubled.
        if let (Some(at), Some(control)) = (self.place_of(address), Control::joined()) {
            self.remove(&mut table, control, at);
        }
    }

    fn remove(&self, table: &mut Table, control: &Control, at: usize) {
        self.addresses.0[at].store(0, Relaxed);
        table.live -= 1;
        let slot = table.places[at].slot;
        if !has(&table.told, slot) {
            control.give_slot(slot);
        }
    }

    /// Looks where the pages of the samples are, by their numbers from address 0 on.
    fn look(&self, control: &Control, survey: impl Fn(Range<usize>, usize) -> Survey) {
        let mut table = self.table.lock();
        let pages: u64 = self.live().map(|at| table.places[at].bytes / PAGE as u64 + 1).sum();
        let stride = (pages as usize / PAGES_MAX).max(1);
        let mut cold = 0;
        for at in self.live() {
            let (address, bytes) = (self.addresses.0[at].load(Relaxed), table.places[at].bytes);
            let end = address + bytes as usize;
            let seen = survey(address / PAGE..end.div_ceil(PAGE), stride);
            let looked = seen.resident + seen.cached + seen.stored + seen.nowhere;
            let scale = table.represented(bytes) / f64::from(looked.max(1));
            let counts = [seen.resident, seen.cached, seen.stored];
            table.places[at].seen = counts.map(|count| (f64::from(count) * scale) as u64);
            cold += table.places[at].seen[1] + table.places[at].seen[2];
        }
        if cold > table.most_cold {
            table.most_cold = cold;
            self.tell(&mut table, control);
        }
    }

    /// Writes what was seen, and forgets what was told before.
    fn tell(&self, table: &mut Table, control: &Control) {
        let mut told = [0; _];
        for at in self.live() {
            let slot = table.places[at].slot;
            told[slot as usize / 64] |= 1 << (slot % 64);
        }
        let before = core::mem::replace(&mut table.told, told);
        for slot in (0..SLOTS).filter(|slot| has(&before, *slot) && !has(&told, *slot)) {
            control.tell_places(slot, [0; 3]);
            control.give_slot(slot);
        }
        let places = self.live().map(|at| &table.places[at]);
        places.for_each(|place| control.tell_places(place.slot, place.seen));
    }
}

fn has(slots: &Slots, slot: u64) -> bool {
    slots[slot as usize / 64] & 1 << (slot % 64) != 0
}

impl Table {
    fn interval_bytes(&self) -> f64 {
        (INTERVAL_BYTES << self.level) as f64
    }

    /// So many bytes until the next sample: exponentially distributed.
    fn draw(&mut self) -> u64 {
        if self.random == 0 {
            self.random = clock::monotonic_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let uniform = ((self.random >> 11) + 1) as f64 / (1u64 << 53) as f64;
        self.at_level((-uniform.ln() * self.interval_bytes()) as u64 + 1)
    }

    fn at_level(&self, left: u64) -> u64 {
        self.level << LEVEL_SHIFT | left
    }

    /// The bytes that a sample of this size stands for.
    fn represented(&self, bytes: u64) -> f64 {
        let bytes = bytes as f64;
        -bytes / (-bytes / self.interval_bytes()).exp_m1()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_when_most_is_cold_is_estimated_whatever_its_size_and_nothing_else() {
        const OF_EACH: usize = 1 << 30;
        const KINDS: [usize; 3] = [1 << 10, 8 << 10, 3 << 20];
        let (control, samples) = (Control::of_test(), Box::leak(Box::new(Samples::new())));
        samples.table.lock().random = 0x5eed;
        let mut left = 0;
        let address = |kind: usize, at: usize| ((kind + 1) << 40) + at * KINDS[kind];
        for (kind, &size) in KINDS.iter().enumerate() {
            for at in 0..OF_EACH / size {
                // As `note`.
                if left & LEFT > size as u64 {
                    left -= size as u64;
                } else {
                    left = samples.add(control, left, (address(kind, at), size as u64), [0; 3]);
                }
            }
        }
        // In RAM, compressed, on SSD: by kind.
        let survey = |pages: Range<usize>, stride: usize| {
            let looked = pages.len().div_ceil(stride) as u32;
            let count = |kind: usize| if pages.start >> 28 == kind + 1 { looked } else { 0 };
            Survey { resident: count(0), cached: count(1), stored: count(2), nowhere: 0 }
        };
        let sums = || -> [u64; 3] {
            let table = samples.table.lock();
            let seen = samples.live().map(|at| table.places[at].seen);
            seen.fold([0; 3], |sums, seen| core::array::from_fn(|at| sums[at] + seen[at]))
        };
        let free = |is_freed: fn(usize) -> bool| {
            for (kind, size) in KINDS.iter().enumerate() {
                for at in (0..OF_EACH / size).filter(|at| is_freed(*at)) {
                    if let Some(place) = samples.place_of(address(kind, at)) {
                        samples.remove(&mut samples.table.lock(), control, place);
                    }
                }
            }
        };
        let taken = || control.taken_slots();
        for (expected, is_freed) in
            [(OF_EACH, (|at| at % 2 == 0) as fn(usize) -> bool), (OF_EACH / 2, |_| true)]
        {
            samples.table.lock().most_cold = 0;
            samples.look(control, survey);
            let are_near = |sum: u64| (0.7..1.3).contains(&(sum as f64 / expected as f64));
            assert!(sums().into_iter().all(are_near), "{:?} of {expected}", sums());
            assert!(samples.live().count() <= LIVE_MAX && samples.table.lock().level >= 3);
            let told = taken();
            free(is_freed);
            samples.look(control, survey);
            assert_eq!(taken(), told, "less is cold: it stays told");
        }
        assert_eq!(samples.live().count(), 0);
        samples.tell(&mut samples.table.lock(), control);
        assert_eq!(taken(), 0, "slots");
    }
}
