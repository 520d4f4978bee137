//! Balancer: watches what a little more page buffer, or a little more object cache, would have
//! saved, and moves the border between them.
//!
//! Guarantees: nothing moves while the user has fixed the page buffer, or on little evidence.
//! Never: allocates, waits.
//! Threads: faulting and evicting ones count; one at a time decides (`rebalance`).

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use deepheap_sys::tls;

use crate::PAGE;
use crate::descriptor::Descriptor;
use crate::pager::Pager;
use crate::policy::balance::{self, Observed, Shift};
use crate::policy::replacement;

/// The margin that is watched: this part of the page buffer.
const MARGIN_PART: usize = 8;
/// What a fault on a cached object costs, its eviction included: CPU time, measured by
/// `deepheap-bench objects` and `overheads` on a virtual machine (9.7 to 11 us).
const FAULT_NS: u64 = 10_000;
/// What a read from the store is taken to cost, not measured: between the time of a device's queue
/// (10 us) and the time a thread waits alone (60 us).
const READ_NS: u64 = 40_000;
/// Events between two decisions.
const EVENTS: u64 = 2048;
/// The page buffer's share grows and shrinks by this part of itself.
const STEP_PART: usize = 8;
const LANES: usize = 16;
/// The share begins with half, and stays between a 256th and three quarters.
const PART_FIRST: usize = 1 << 15;
const PART_LEAST: usize = 1 << 8;
const PART_MOST: usize = 3 << 14;
/// As far from now as an epoch in eight bits can be.
const LONG_AGO: u8 = 128;

#[repr(align(64))]
struct Lane {
    young_faults: AtomicU64,
    ghost_reads: AtomicU64,
}

/// What was counted since the last decision.
pub(crate) struct Balancer {
    lanes: [Lane; LANES],
    /// Counts up each time a margin's worth of pages has left the page buffer.
    epoch: AtomicUsize,
    /// Pages that left it in this epoch.
    left: AtomicUsize,
    /// The page buffer's share of what the tables leave, in 65536ths.
    part: AtomicUsize,
    /// Whether it moves. Without a ghost there is nothing to see on the cache's side.
    moves: bool,
}

impl Balancer {
    /// Begins with a share of half, and keeps it unless it `moves`.
    pub(crate) fn new(moves: bool) -> Balancer {
        let lane = || Lane { young_faults: AtomicU64::new(0), ghost_reads: AtomicU64::new(0) };
        Balancer {
            lanes: core::array::from_fn(|_| lane()),
            epoch: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            part: AtomicUsize::new(PART_FIRST),
            moves,
        }
    }

    /// The page buffer's share, in 65536ths.
    pub(crate) fn part(&self) -> usize {
        self.part.load(Ordering::Relaxed)
    }

    /// An object leaves the page buffer for the cache; `known` to the ghost or not.
    pub(crate) fn leaves(&self, descriptor: &Descriptor, known: bool) {
        descriptor.set_epoch(self.epoch.load(Ordering::Relaxed) as u8);
        if known {
            self.lanes[tls::lane()].ghost_reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An object comes to the cache from the store: no fault on it could have been saved.
    pub(crate) fn arrives(&self, descriptor: &Descriptor, known: bool) {
        self.leaves(descriptor, known);
        descriptor.set_epoch((self.epoch.load(Ordering::Relaxed) as u8).wrapping_sub(LONG_AGO));
    }

    /// An object comes to the cache from the store though nobody wanted it yet.
    pub(crate) fn arrives_beside(&self, descriptor: &Descriptor, _known: bool) {
        descriptor.set_epoch(self.epoch.load(Ordering::Relaxed) as u8);
    }

    /// So many pages have left a page buffer of `limit` pages.
    pub(crate) fn left(&self, pages: usize, limit: usize) {
        let left = self.left.fetch_add(pages, Ordering::Relaxed) + pages;
        if left >= limit / MARGIN_PART {
            self.left.store(0, Ordering::Relaxed);
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A fault found the object cached.
    pub(crate) fn comes_back(&self, descriptor: &Descriptor) {
        if self.is_young(descriptor) {
            self.lanes[tls::lane()].young_faults.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether its epoch is that of the margin before this one, or of this one.
    pub(crate) fn is_young(&self, descriptor: &Descriptor) -> bool {
        let now = self.epoch.load(Ordering::Relaxed) as u8;
        now.wrapping_sub(descriptor.epoch()) <= 1
    }

    fn sum(&self, counter: impl Fn(&Lane) -> &AtomicU64) -> u64 {
        self.lanes.iter().map(|lane| counter(lane).load(Ordering::Relaxed)).sum()
    }
}

impl Pager {
    /// The number of this epoch, which has begun when the last one's part of the page buffer was
    /// replaced.
    pub fn epoch(&self) -> usize {
        self.balancer.epoch.load(Ordering::Relaxed)
    }

    /// Epochs that a page stays in RAM which nobody touches again, in the page buffer and then in
    /// the cache: what leaves the one comes to the other.
    pub fn epochs_in_ram(&self) -> usize {
        let in_buffer = self.page_buffer.limit().max(1);
        MARGIN_PART + MARGIN_PART * (self.cache.held_bytes() / PAGE) / in_buffer
    }

    /// Moves the border between page buffer and object cache if there is reason to.
    pub(crate) fn balance(&self) {
        let balancer = &self.balancer;
        if !balancer.moves {
            return;
        }
        let young_faults = balancer.sum(|lane| &lane.young_faults);
        let ghost_reads = balancer.sum(|lane| &lane.ghost_reads);
        if young_faults + ghost_reads < EVENTS {
            return;
        }
        for lane in &balancer.lanes {
            lane.young_faults.store(0, Ordering::Relaxed);
            lane.ghost_reads.store(0, Ordering::Relaxed);
        }
        let pages = self.page_buffer.pages().max(1);
        // With an object on every page, a resident page may have a page table to itself.
        let page_bytes = PAGE + self.ranges.page_table_bytes() / pages;
        let cached = self.cache.objects().max(1);
        let object_bytes = self.cache.held_bytes() / cached;
        let observed = Observed {
            young_faults,
            fault_ns: FAULT_NS,
            // One margin and, on average, half of the one that has begun.
            margin_bytes: (self.page_buffer.limit() / MARGIN_PART * page_bytes * 3 / 2) as u64,
            ghost_reads,
            read_ns: READ_NS,
            ghost_bytes: (replacement::ghost_length(cached) * object_bytes) as u64,
        };
        let part = balancer.part();
        let step = (part / STEP_PART).max(1);
        let moved = match balance::shift(&observed) {
            Shift::ToPageBuffer => part + step,
            Shift::ToObjectCache => part - step,
            Shift::Stay => part,
        };
        balancer.part.store(moved.clamp(PART_LEAST, PART_MOST), Ordering::Relaxed);
    }
}
