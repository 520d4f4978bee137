//! Counters: of what threads count so often that they would fight over one line.
//!
//! Never: allocates, waits.
//! Threads: any. They are spread over lanes, each of which has counters of its own.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_sys::memory::padded::Padded;
use deepheap_sys::threads::tls;

const LANES: usize = 16;

/// The counts of a pager, from the start of the process on.
#[derive(Clone, Copy, Debug)]
pub enum Counted {
    /// Pages that left the page buffer compressed.
    Compressed,
    /// Bytes that they became.
    CompressedBytes,
    /// Pages that were tried and did not become small enough.
    GivenUp,
    /// Compressed pages that became dense instead of leaving the cache.
    Dense,
    /// Bytes that they became.
    DenseBytes,
    /// Bytes that they were before, by LZ4.
    DenseFrom,
    /// Nanoseconds of CPU time to make pages dense, or to try to.
    DenseNs,
    /// Dense pages that were wanted again while they were in the cache.
    DenseBack,
    /// Dense pages that left the cache.
    DenseLeft,
    /// Pages that were made of their compressed bytes.
    Decompressed,
    /// Nanoseconds that all of that took.
    CompressNs,
    /// Pages that walks in equal steps have asked for.
    WalkAsked,
    /// Of them those that were in DRAM when the walk came to them.
    WalkUsed,
    /// Pages that were read because they had followed before.
    TrailBrought,
    /// Of them those that a fault found in the cache.
    TrailUsed,
    /// And those that left the cache before.
    TrailDropped,
}

impl Counted {
    /// How many there are.
    pub const ALL: usize = Counted::TrailDropped as usize + 1;
}

/// `N` counters.
pub struct Counters<const N: usize>([Padded<[AtomicU64; N]>; LANES]);

impl<const N: usize> Counters<N> {
    /// All 0.
    pub const fn zero() -> Counters<N> {
        Counters([const { Padded([const { AtomicU64::new(0) }; N]) }; LANES])
    }

    /// Counts so much more.
    pub fn add(&self, counter: usize, more: u64) {
        if more > 0 {
            self.0[tls::lane()][counter].fetch_add(more, Ordering::Relaxed);
        }
    }

    /// The counts of all threads.
    pub fn sums(&self) -> [u64; N] {
        let load = |lane: &Padded<[AtomicU64; N]>, at: usize| lane[at].load(Ordering::Relaxed);
        array::from_fn(|counter| self.0.iter().map(|lane| load(lane, counter)).sum())
    }

    /// Counts from 0 on again.
    pub fn clear(&self) {
        for counter in self.0.iter().flat_map(|lane| &lane.0) {
            counter.store(0, Ordering::Relaxed);
        }
    }
}
