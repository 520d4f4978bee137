//! Stats: one plain snapshot of everything deepheap counts; the struct `dh_stats` gives to C.
//!
//! Guarantees: the layout of a version never changes; a new field means a new `STATS_VERSION`.
//! Never: takes a lock or allocates; it is only data. `page` fills it, `report` prints
//! it.

pub(crate) mod allocations;
pub(crate) mod heap_map;
pub(crate) mod histogram;
pub(crate) mod longest_waits;
pub(crate) mod observe;
#[doc(hidden)]
pub mod page;
#[doc(hidden)]
pub mod profile;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod table;
pub(crate) mod trace_recorder;
pub(crate) mod wish;

use core::mem::offset_of;

pub use deepheap_pager::FaultKind;
use serde::Serialize;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute_mut, transmute_ref};

use crate::stats::histogram::Histogram;

/// Version of the layout of [`Stats`] and of the shared statistics page.
pub const STATS_VERSION: u32 = 11;

/// A number of [`Stats`]: which of those behind the latencies. `number!(pins)` is that of a field.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(usize);

/// Words of `Stats` before the first of them.
const WORDS_BEFORE: usize = offset_of!(Stats, prefetched) / size_of::<u64>();

impl Number {
    /// How many there are.
    pub const COUNT: usize = size_of::<Stats>() / size_of::<u64>() - WORDS_BEFORE;

    /// All of them.
    pub fn all() -> impl Iterator<Item = Number> {
        (0..Self::COUNT).map(Number)
    }

    /// That of the field at so many bytes.
    ///
    /// # Panics
    /// If the field is before the first of them; `number!` asks when it is compiled.
    pub const fn at(offset: usize) -> Number {
        Number(offset / size_of::<u64>() - WORDS_BEFORE)
    }

    /// Its place among all.
    pub const fn index(self) -> usize {
        self.0
    }

    /// Its value.
    pub fn of(self, stats: &Stats) -> u64 {
        let words: &[u64; WORDS_BEFORE + Self::COUNT] = transmute_ref!(stats);
        words[WORDS_BEFORE + self.0]
    }

    /// Its value, to be changed.
    pub(crate) fn of_mut(self, stats: &mut Stats) -> &mut u64 {
        let words: &mut [u64; WORDS_BEFORE + Self::COUNT] = transmute_mut!(stats);
        &mut words[WORDS_BEFORE + self.0]
    }
}

/// The [`Number`] of a field of [`Stats`].
#[doc(hidden)]
#[macro_export]
macro_rules! number {
    ($field:ident) => {
        const { $crate::stats::Number::at(::core::mem::offset_of!($crate::stats::Stats, $field)) }
    };
}

/// Latencies of one kind of fault, in nanoseconds. Percentiles are at most 12.5 % too high.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    Serialize,
)]
pub struct Latency {
    /// Number of faults.
    pub count: u64,
    /// Time of all faults together.
    pub total_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    /// The percentiles of a histogram.
    pub fn of(histogram: &Histogram) -> Latency {
        Latency {
            count: histogram.count(),
            total_ns: histogram.total_ns(),
            p50_ns: histogram.percentile_ns(500),
            p90_ns: histogram.percentile_ns(900),
            p99_ns: histogram.percentile_ns(990),
            p999_ns: histogram.percentile_ns(999),
            max_ns: histogram.max_ns(),
        }
    }
}

/// One snapshot. Counters are since the start of the process (or its fork), sizes are bytes.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout,
)]
pub struct Stats {
    /// [`STATS_VERSION`].
    pub version: u32,
    /// Size of this struct in bytes.
    pub size: u32,
    /// The process, in its own pid namespace.
    pub pid: u32,
    /// 1 once a span is under management, 0 before.
    pub managing: u32,
    /// Nanoseconds since deepheap started in this process.
    pub uptime_ns: u64,

    /// Faults on pages that were all zero.
    pub fault_zero: Latency,
    /// Faults on pages that were compressed in RAM.
    pub fault_cached: Latency,
    /// Faults served from the store.
    pub fault_stored: Latency,
    /// Faults that waited for another thread.
    pub fault_waited: Latency,

    /// Pages read from the store before they were touched.
    pub prefetched: u64,
    /// Pages evicted whose content had not changed since they were installed.
    pub evicted_clean: u64,
    /// Pages evicted whose content had changed.
    pub evicted_dirty: u64,
    /// Pages evicted that were all zero.
    pub evicted_zero: u64,
    /// Pages evicted that no allocation used any more.
    pub evicted_free: u64,
    /// Pages that were compressed when they were evicted.
    pub compressed: u64,
    /// Bytes that they became.
    pub compressed_bytes: u64,
    /// Pages that were tried and did not become clearly smaller.
    pub compress_given_up: u64,
    /// Pages that were decompressed.
    pub decompressed: u64,
    /// Nanoseconds that threads spent on all of that.
    pub compress_ns: u64,
    /// Objects dropped from the cache because the store already had them.
    pub cache_reclaimed_clean: u64,
    /// Objects that left the cache by being written to the log.
    pub cache_reclaimed_dirty: u64,
    /// Objects that the cache kept because they had been touched again.
    pub cache_second_chances: u64,
    /// Times a faulting thread had to evict by itself.
    pub direct_reclaims: u64,
    /// Nanoseconds that threads waited for eviction, the device or a full write buffer.
    pub stall_ns: u64,
    /// Read requests sent to the device.
    pub device_reads: u64,
    /// Bytes read from the device.
    pub device_read_bytes: u64,
    /// Write requests sent to the device.
    pub device_writes: u64,
    /// Bytes written to the device.
    pub device_write_bytes: u64,
    /// Segments written again because the device had refused them; each time counts.
    pub writes_retried: u64,
    /// Segments written elsewhere because their own refused them.
    pub segments_relocated: u64,
    /// Blocks that were wanted and in RAM: not written yet, or read a moment ago.
    pub blocks_from_memory: u64,
    /// Blocks that came wrong or not at all when they were read, and right when read again.
    pub blocks_reread: u64,
    /// Times that a block could not be read: what wanted it was stopped.
    pub blocks_refused: u64,
    /// Blocks appended because they left RAM.
    pub blocks_appended_fresh: u64,
    /// Blocks appended because collection moved them.
    pub blocks_appended_survivor: u64,
    /// Segments reclaimed by collection.
    pub segments_collected: u64,
    /// System calls repeated after EFAULT on managed memory.
    pub efault_retries: u64,
    /// Ranges pinned.
    pub pins: u64,

    /// The RAM budget, in bytes; with a bound on stalls what is found to be enough, and in a pool
    /// what this process may use now.
    pub budget_bytes: u64,
    /// Bytes of physical pages the program can touch right now; while nothing is managed, of all
    /// pages handed to the heap.
    pub page_buffer_bytes: u64,
    /// Bytes of the object cache.
    pub cache_bytes: u64,
    /// Bytes of kernel page tables of the region.
    pub page_table_bytes: u64,
    /// Bytes of the object tables.
    pub object_table_bytes: u64,
    /// Bytes of the heap's bitmaps and lists.
    pub heap_metadata_bytes: u64,
    /// Bytes of the store's tables and segment buffers.
    pub store_memory_bytes: u64,
    /// Bytes of everything else deepheap uses.
    pub other_bytes: u64,
    /// Bytes of pages handed to the heap.
    pub committed_bytes: u64,
    /// Bytes the program has allocated and not freed.
    pub allocated_bytes: u64,
    /// Live bytes on the device.
    pub stored_bytes: u64,
    /// Bytes of the store that are taken: by segments, live or not, or set aside for them.
    pub store_used_bytes: u64,
    /// Bytes the store can hold.
    pub store_capacity_bytes: u64,
    /// Bytes that the program has mapped itself and that are memory of the heap.
    pub mapped_bytes: u64,
    /// Bytes of RAM that the program has outside of deepheap, its files apart; at the last look.
    pub unmanaged_bytes: u64,

    /// Pages asked for ahead of equal steps.
    pub strides_asked: u64,
    /// Those of them that were in RAM when the program came to them.
    pub strides_used: u64,

    /// Nanoseconds that threads waited in faults for want of RAM: in all faults but those on pages
    /// of zeros, and in those while there was no room. The kernel's time for a fault is not among
    /// them.
    pub fault_stall_ns: u64,
    /// Nanoseconds of run time: in which the program computed, or its threads waited in faults.
    pub run_ns: u64,
    /// Millionths of the run time that a thread waited in faults for want of RAM, lately; of the
    /// thread that waited most.
    pub stall_share_now_ppm: u64,
    /// The same of the whole run time.
    pub stall_share_ppm: u64,

    /// Requests that told the device what is free.
    pub discards: u64,
    /// Bytes that they were about.
    pub discarded_bytes: u64,
    /// Bytes that were free for a while and then written again, without one.
    pub not_discarded_bytes: u64,

    /// The most that it may be, in millionths; 0 without a bound.
    pub stall_bound_ppm: u64,
    /// The most that the RAM budget may become, in bytes.
    pub budget_most_bytes: u64,
    /// With a bound: bytes that the program had touched and not given back, the mean of its run
    /// time since it is managed.
    pub touched_mean_bytes: u64,
    /// And what counted against the budget, the mean of the same time.
    pub used_mean_bytes: u64,

    /// Pages read ahead because they had followed before.
    pub sequences_brought: u64,
    /// Of them those that were in the cache when the program came to them.
    pub sequences_used: u64,
    /// And those that left the cache before.
    pub sequences_dropped: u64,

    /// Bytes read from the device of the second tier.
    pub tier_read_bytes: u64,
    /// Bytes written to it.
    pub tier_write_bytes: u64,
    /// Live bytes in the second tier.
    pub tier_stored_bytes: u64,
    /// Bytes the second tier can hold; 0 if there is none.
    pub tier_capacity_bytes: u64,

    /// Processes of its pool, this one among them; 0 without a pool.
    pub pool_members: u64,
    /// Bytes that they may use together.
    pub pool_bytes: u64,
    /// Bytes of them that none of them has.
    pub pool_free_bytes: u64,

    /// The longest fault of the last minute that waited for room in RAM, in nanoseconds; 0 if none
    /// took a millisecond.
    pub wait_room_ns: u64,
    /// That waited until memory which had been plain was under management.
    pub wait_take_over_ns: u64,
    /// That waited for another thread which was moving the page.
    pub wait_owner_ns: u64,
    /// That waited for a fork.
    pub wait_fork_ns: u64,
    /// That waited for the cut of a checkpoint.
    pub wait_checkpoint_ns: u64,
    /// That waited for a read of the device.
    pub wait_device_ns: u64,
    /// That waited for room in the log.
    pub wait_log_ns: u64,
    /// That waited for pages of the object table.
    pub wait_table_ns: u64,
    /// That waited for none of these: a processor was lacking, or the kernel was slow.
    pub wait_other_ns: u64,

    /// The most bytes that the program had touched and not given back at a time; while nothing is
    /// managed, of all pages handed to the heap.
    pub touched_peak_bytes: u64,
    /// The most bytes of pages that the heap was handed at a time.
    pub committed_peak_bytes: u64,
    /// The most live bytes on the device at a time.
    pub stored_peak_bytes: u64,
    /// The RAM budget with which the program would wait clearly less, in bytes; 0: it waits little,
    /// or none is known.
    pub better_budget_bytes: u64,
    /// The share of its run time that a thread would wait with that, in millionths.
    pub better_share_ppm: u64,
    /// Compressed pages that were compressed once more instead of leaving RAM.
    pub dense: u64,
    /// Bytes that they became.
    pub dense_bytes: u64,
}

/// Bytes of one block of the store.
const BLOCK_BYTES: u64 = 4096;

/// How many times smaller pages are that became so many bytes.
fn smaller(pages: u64, bytes: u64) -> Option<f64> {
    (pages > 0).then(|| (pages * BLOCK_BYTES) as f64 / bytes as f64)
}

impl Stats {
    /// Faults of all kinds.
    pub fn faults(&self) -> u64 {
        self.latencies().iter().map(|(_, latency)| latency.count).sum()
    }

    /// Latencies by kind of fault.
    pub fn latencies(&self) -> [(FaultKind, &Latency); 4] {
        [
            (FaultKind::Zero, &self.fault_zero),
            (FaultKind::Cached, &self.fault_cached),
            (FaultKind::Stored, &self.fault_stored),
            (FaultKind::Waited, &self.fault_waited),
        ]
    }

    /// Pages evicted, whatever became of them.
    pub fn evictions(&self) -> u64 {
        self.evicted_clean + self.evicted_dirty + self.evicted_zero + self.evicted_free
    }

    /// The longest faults of the last minute, by what they waited for, and the words for that.
    pub fn longest_waits(&self) -> [(&'static str, u64); 9] {
        [
            ("room", self.wait_room_ns),
            ("take-over", self.wait_take_over_ns),
            ("another thread", self.wait_owner_ns),
            ("a fork", self.wait_fork_ns),
            ("a checkpoint", self.wait_checkpoint_ns),
            ("the device", self.wait_device_ns),
            ("the log", self.wait_log_ns),
            ("the object table", self.wait_table_ns),
            ("a processor", self.wait_other_ns),
        ]
    }

    /// Everything that counts against the budget.
    pub fn used_bytes(&self) -> u64 {
        self.page_buffer_bytes
            + self.cache_bytes
            + self.page_table_bytes
            + self.object_table_bytes
            + self.heap_metadata_bytes
            + self.store_memory_bytes
            + self.other_bytes
    }

    /// Which part of the RAM that the program would have taken was saved on average, under a bound
    /// on stalls; negative if deepheap itself took more. `None` without a bound, or while the heap
    /// is not managed.
    pub fn saved(&self) -> Option<f64> {
        let (touched, used) = (self.touched_mean_bytes as f64, self.used_mean_bytes as f64);
        (touched > 0.0).then(|| 1.0 - used / touched)
    }

    /// The part of all bytes written that went to the second tier, in millionths; `None` if there
    /// is none.
    pub fn tier_mix_ppm(&self) -> Option<u64> {
        let all = self.tier_write_bytes + self.device_write_bytes;
        let part = self.tier_write_bytes as f64 / all.max(1) as f64;
        (self.tier_capacity_bytes > 0).then_some((part * 1e6) as u64)
    }

    /// How many times smaller the pages became that were compressed; `None` before the first.
    pub fn compression(&self) -> Option<f64> {
        smaller(self.compressed, self.compressed_bytes)
    }

    /// As `compression`, of the pages that were compressed once more.
    pub fn dense_compression(&self) -> Option<f64> {
        smaller(self.dense, self.dense_bytes)
    }

    /// Device bytes written for every byte that left RAM; `None` before the first.
    pub fn write_amplification(&self) -> Option<f64> {
        let fresh = self.blocks_appended_fresh * BLOCK_BYTES;
        (fresh > 0).then(|| self.device_write_bytes as f64 / fresh as f64)
    }
}
