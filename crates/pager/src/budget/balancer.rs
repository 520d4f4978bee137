//! Balancer: measures what a larger page buffer, or a larger object cache, would have saved, and
//! moves the border between them.
//!
//! It measures all the time what a fault on a cached object costs, and what a read costs, and
//! smooths both (`policy::balance`).
//!
//! Guarantees: the border does not move if the user has fixed the page buffer, or on little
//! evidence.
//! Never: allocates, waits.
//! Threads: faulting and evicting ones count; one at a time decides (`rebalance`).

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use deepheap_policy::balance::{self, Border, EVENTS, GROWTHS, MARGIN_PART, Traffic, Whole};
use deepheap_residency::counters::Counters;
use deepheap_residency::ownership::Descriptor;
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::process::clock;

use crate::budget::more_ram::MoreRam;

/// The costs that are assumed until they are measured, and the bounds of what is believed. A thread
/// that lost its processor in between makes a single fault or read look more expensive.
const FAULT: Believed = Believed { first_ns: 8_000, least_ns: 500, most_ns: 100_000 };
const EVICTION: Believed = Believed { first_ns: 1_500, least_ns: 100, most_ns: 100_000 };
const READ: Believed = Believed { first_ns: 40_000, least_ns: 500, most_ns: 50_000_000 };
/// The cost of a fault outside the handler, where it is not measured: the kernel delivers the
/// signal and returns from it.
const SIGNAL_NS: u64 = 1_500;
/// `Kept::feared` before anything is feared: no number has these bits.
const NO_FEAR: u64 = u64::MAX;
/// As far from now as an epoch in eight bits can be.
const LONG_AGO: u8 = 128;

/// See `FAULT`.
struct Believed {
    first_ns: u64,
    least_ns: u64,
    most_ns: u64,
}

/// The counters: `Returns`, and then these. Each kind of operation has one for how many they were,
/// and one for their nanoseconds behind it.
const GHOST_READS: usize = GROWTHS.len();
const DEPARTURES: usize = GHOST_READS + 1;
const FAULTS: usize = DEPARTURES + 1;
const EVICTIONS: usize = FAULTS + 2;
const READS: usize = EVICTIONS + 2;
const COUNTERS: usize = READS + 2;

/// A cost, smoothed; only the deciding thread changes it.
struct Cost {
    ns: AtomicU64,
    believed: Believed,
}

impl Cost {
    const fn new(believed: Believed) -> Cost {
        Cost { ns: AtomicU64::new(believed.first_ns), believed }
    }

    /// Takes the new measurements into account: so many operations took so long. Returns the cost.
    fn measured(&self, operations: u64, ns: u64) -> u64 {
        let smoothed = balance::smoothed_ns(self.ns.load(Ordering::Relaxed), operations, ns);
        let ns = smoothed.clamp(self.believed.least_ns, self.believed.most_ns);
        self.ns.store(ns, Ordering::Relaxed);
        ns
    }
}

/// The border; only the deciding thread changes it.
struct Kept {
    part: AtomicUsize,
    is_beyond: AtomicBool,
    /// The bits of the number, or `NO_FEAR`.
    feared: AtomicU64,
}

impl Kept {
    const fn first() -> Kept {
        Kept {
            part: AtomicUsize::new(Border::FIRST.part),
            is_beyond: AtomicBool::new(Border::FIRST.is_beyond),
            feared: AtomicU64::new(NO_FEAR),
        }
    }

    fn load(&self) -> Border {
        let feared = self.feared.load(Ordering::Relaxed);
        Border {
            part: self.part.load(Ordering::Relaxed),
            is_beyond: self.is_beyond.load(Ordering::Relaxed),
            feared: (feared != NO_FEAR).then(|| f64::from_bits(feared)),
        }
    }

    fn store(&self, border: Border) {
        self.part.store(border.part, Ordering::Relaxed);
        self.is_beyond.store(border.is_beyond, Ordering::Relaxed);
        self.feared.store(border.feared.map_or(NO_FEAR, f64::to_bits), Ordering::Relaxed);
    }
}

/// What each side of the border holds.
pub(crate) struct Shares {
    /// The page buffer at its limit, page tables included.
    pub(crate) page_buffer_bytes: usize,
    /// Bytes that the objects in the ghost would take if they were cached.
    pub(crate) ghost_bytes: usize,
    /// Bytes of both sides together.
    pub(crate) all_bytes: usize,
    /// Bytes of cached objects.
    pub(crate) cached_bytes: usize,
    /// Of one of them, in the mean.
    pub(crate) mean_bytes: usize,
    /// See `balance::fitting_part`.
    pub(crate) fit: Option<usize>,
    /// See `balance::least_part`.
    pub(crate) least: usize,
}

/// Counts since the last decision.
pub(crate) struct Balancer {
    counters: Counters<COUNTERS>,
    fault: Cost,
    eviction: Cost,
    read: Cost,
    /// Objects that are being read.
    under_way: Padded<AtomicUsize>,
    /// Counts up each time a margin's worth of pages has left the page buffer.
    epoch: AtomicUsize,
    /// Pages that left it in this epoch. Changes often; the rest beside it is only read.
    left: Padded<AtomicUsize>,
    /// Objects that left the cache for the store lately. Only the deciding thread changes them.
    departed: AtomicU64,
    /// When it decided last.
    decided_ns: AtomicU64,
    border: Kept,
    /// The waits that more RAM would have spared.
    pub(crate) more_ram: MoreRam,
    /// Whether the share moves: not if the user has fixed the page buffer.
    moves: bool,
}

impl Balancer {
    /// Begins with a share of half, which changes only if it `moves`.
    pub(crate) fn new(moves: bool) -> Balancer {
        Balancer {
            counters: Counters::zero(),
            fault: Cost::new(FAULT),
            eviction: Cost::new(EVICTION),
            read: Cost::new(READ),
            under_way: Padded(AtomicUsize::new(0)),
            epoch: AtomicUsize::new(0),
            left: Padded(AtomicUsize::new(0)),
            departed: AtomicU64::new(0),
            decided_ns: AtomicU64::new(clock::monotonic_ns()),
            border: Kept::first(),
            more_ram: MoreRam::new(),
            moves,
        }
    }

    /// The page buffer's share, in 65536ths.
    pub(crate) fn part(&self) -> usize {
        self.border.part.load(Ordering::Relaxed)
    }

    /// The cost of a fault on a cached object as it was measured last, in nanoseconds.
    pub(crate) fn fault_ns(&self) -> u64 {
        SIGNAL_NS + self.fault.ns.load(Ordering::Relaxed)
    }

    /// The cost of a read as it was measured last, in nanoseconds.
    pub(crate) fn read_ns(&self) -> u64 {
        self.read.ns.load(Ordering::Relaxed)
    }

    /// An object leaves the page buffer for the cache, or comes to the cache as a neighbour.
    pub(crate) fn leaves(&self, descriptor: &Descriptor) {
        descriptor.set_epoch(self.epoch.load(Ordering::Relaxed) as u8);
    }

    /// An object comes to the cache from the store: no fault on it could have been saved.
    pub(crate) fn arrives(&self, descriptor: &Descriptor) {
        descriptor.set_epoch((self.epoch.load(Ordering::Relaxed) as u8).wrapping_sub(LONG_AGO));
    }

    /// So many pages have left a page buffer of `limit` pages, which took so long.
    pub(crate) fn left(&self, pages: usize, ns: u64, limit: usize) {
        let most_ns = pages as u64 * EVICTION.most_ns;
        self.counters.add(EVICTIONS, pages as u64);
        self.counters.add(EVICTIONS + 1, ns.min(most_ns));
        let left = self.left.fetch_add(pages, Ordering::Relaxed) + pages;
        if left >= limit / MARGIN_PART {
            self.left.store(0, Ordering::Relaxed);
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A fault found the object cached.
    pub(crate) fn comes_back(&self, descriptor: &Descriptor) {
        if let Some(growth) = balance::growth(self.epochs_since(descriptor).into()) {
            self.counters.add(growth, 1);
        }
    }

    /// Whether its epoch is the current one, or the one before.
    pub(crate) fn is_young(&self, descriptor: &Descriptor) -> bool {
        self.epochs_since(descriptor) <= 1
    }

    /// Whether since it left the page buffer no more pages left than that holds.
    pub(crate) fn left_lately(&self, descriptor: &Descriptor) -> bool {
        usize::from(self.epochs_since(descriptor)) <= MARGIN_PART
    }

    fn epochs_since(&self, descriptor: &Descriptor) -> u8 {
        (self.epoch.load(Ordering::Relaxed) as u8).wrapping_sub(descriptor.epoch())
    }

    /// A fault on a cached object was served in `ns` nanoseconds, without those for making room.
    pub(crate) fn note_fault(&self, ns: u64) {
        self.counters.add(FAULTS, 1);
        self.counters.add(FAULTS + 1, ns.min(FAULT.most_ns));
    }

    /// So many objects are about to be read; how many are under way now, these included.
    pub(crate) fn begin_reads(&self, objects: usize) -> usize {
        self.under_way.fetch_add(objects, Ordering::Relaxed) + objects
    }

    /// So many objects were read; how many were under way until now, these included.
    pub(crate) fn end_reads(&self, objects: usize) -> usize {
        self.under_way.fetch_sub(objects, Ordering::Relaxed)
    }

    /// So many wanted objects were read, which cost `ns` nanoseconds; a larger cache would have
    /// saved the reads of those `known` to the ghost.
    ///
    /// The cost is the time divided by the reads that were under way at once. By Little's law one
    /// read less would shorten the run by so much; the whole time would be right only if every
    /// thread waited alone.
    pub(crate) fn note_reads(&self, objects: usize, ns: u64, known: usize) {
        self.counters.add(READS, objects as u64);
        self.counters.add(READS + 1, ns.min(objects as u64 * READ.most_ns));
        self.counters.add(GHOST_READS, known as u64);
    }

    /// So many objects have left the cache for the store.
    pub(crate) fn note_departures(&self, objects: u32) {
        self.counters.add(DEPARTURES, objects.into());
    }

    /// Moves the border if there is reason to: to where all fits, and by what was counted since the
    /// last decision.
    pub(crate) fn balance(&self, shares: &Shares) {
        if !self.moves {
            return;
        }
        let mut border = self.border.load().following(shares.fit, shares.mean_bytes);
        let counted = self.counters.sums();
        let returns = core::array::from_fn(|growth| counted[growth]);
        let ghost_reads = counted[GHOST_READS];
        if balance::evidence(&returns, ghost_reads) >= EVENTS {
            self.counters.clear();
            let before = self.departed.load(Ordering::Relaxed);
            let departed = balance::departed(before, counted[DEPARTURES]);
            self.departed.store(departed, Ordering::Relaxed);
            let fault_ns = self.fault.measured(counted[FAULTS], counted[FAULTS + 1]);
            let eviction_ns = self.eviction.measured(counted[EVICTIONS], counted[EVICTIONS + 1]);
            let read_ns = self.read.measured(counted[READS], counted[READS + 1]);
            let now_ns = clock::monotonic_ns();
            let observed = Traffic {
                returns,
                fault_ns: SIGNAL_NS + fault_ns + eviction_ns,
                margin_bytes: (shares.page_buffer_bytes / MARGIN_PART) as u64,
                ghost_reads,
                read_ns,
                ghost_bytes: shares.ghost_bytes as u64,
                whole: Whole {
                    faults: counted[FAULTS],
                    reads: counted[READS],
                    departures: counted[DEPARTURES],
                    all_bytes: shares.all_bytes as u64,
                    cached_bytes: shares.cached_bytes as u64,
                    mean_bytes: shares.mean_bytes as u64,
                    fit: shares.fit,
                    elapsed: now_ns - self.decided_ns.swap(now_ns, Ordering::Relaxed),
                },
            };
            border = border.next(&observed, departed);
        }
        self.border.store(border.at_least(shares.least));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepheap_policy::balance::{GROWTH_PART, PART_FIRST, PART_SURE};
    use deepheap_sys::memory::pinned_array::PinnedArray;

    #[test]
    fn the_share_goes_where_it_pays_from_a_256th_to_seven_eighths() {
        let [page_buffer_bytes, ghost_bytes, all_bytes, cached_bytes] =
            [1, 1, 2, 1].map(|mib| mib << 20);
        let shares = Shares {
            page_buffer_bytes,
            ghost_bytes,
            all_bytes,
            cached_bytes,
            mean_bytes: 1 << 10,
            fit: None,
            least: 0,
        };
        let after = |moves, returns, ghost_reads, departures| {
            let balancer = Balancer::new(moves);
            for _ in 0..1000 {
                balancer.note_departures(departures);
                balancer.counters.add(0, returns);
                balancer.counters.add(GHOST_READS, ghost_reads);
                balancer.balance(&shares);
                balancer.counters.clear();
            }
            balancer.part()
        };
        assert_eq!(after(true, EVENTS, 0, 0), (1 << 16) * 7 / 8);
        assert_eq!(after(true, 0, EVENTS, EVENTS as u32), (1 << 16) / 256);
        assert_eq!(after(true, 0, EVENTS, 0), PART_FIRST, "none leaves the cache");
        assert_eq!(after(true, EVENTS - 1, 0, 0), PART_FIRST, "little evidence");
        assert_eq!(after(false, EVENTS, 0, 0), PART_FIRST, "the user has fixed it");
        let reached = after(true, EVENTS, 0, EVENTS as u32);
        let step = PART_SURE / GROWTH_PART;
        assert!((PART_SURE..=PART_SURE + step).contains(&reached), "{reached}: it drives out many");
    }

    #[test]
    fn an_object_left_lately_until_the_page_buffer_was_replaced_once() {
        const LIMIT: usize = 800;
        let balancer = Balancer::new(true);
        let descriptors = PinnedArray::<Descriptor>::new(2).expect("memory");
        let [left, read] = [&descriptors[0], &descriptors[1]];
        balancer.leaves(left);
        balancer.arrives(read);
        for pages in (0..LIMIT).step_by(LIMIT / MARGIN_PART) {
            assert!(balancer.left_lately(left), "after {pages}");
            assert_eq!(balancer.is_young(left), pages <= LIMIT / MARGIN_PART, "after {pages}");
            assert!(!balancer.left_lately(read), "it came from the store");
            balancer.left(LIMIT / MARGIN_PART, 0, LIMIT);
        }
        assert!(balancer.left_lately(left));
        balancer.left(LIMIT / MARGIN_PART, 0, LIMIT);
        assert!(!balancer.left_lately(left));
    }
}
