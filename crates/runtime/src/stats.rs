//! Stats: one plain snapshot of everything deepheap counts; the struct `dh_stats` gives to C.
//!
//! Guarantees: the layout of a version never changes; a new field means a new `STATS_VERSION`.
//! Never: takes a lock or allocates; it is only data. `stats_page` fills it, `stats_report` prints
//! it.

use crate::histogram::Histogram;

/// Version of the layout of [`Stats`] and of the shared statistics page.
pub const STATS_VERSION: u32 = 8;

/// How a fault was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum FaultKind {
    /// The page was all zero: nothing to fetch.
    Zero,
    /// The page was in the object cache, in DRAM.
    Cached,
    /// The page was read from the store.
    Stored,
    /// Another thread was already moving the page; this one waited for it.
    Waited,
}

impl FaultKind {
    /// Every kind, in the order of the page.
    pub const ALL: [FaultKind; 4] =
        [FaultKind::Zero, FaultKind::Cached, FaultKind::Stored, FaultKind::Waited];
}

/// What only ever grows. Faults by kind are not here: they are counted by their latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Pages read from the store before they were touched.
    Prefetched,
    /// Pages evicted whose content had not changed since they were installed.
    EvictedClean,
    /// Pages evicted whose content had changed.
    EvictedDirty,
    /// Pages evicted that were all zero.
    EvictedZero,
    /// Pages evicted that no allocation used any more.
    EvictedFree,
    /// Pages that were compressed when they left reach.
    Compressed,
    /// Bytes that they became.
    CompressedBytes,
    /// Pages that were tried and did not become clearly smaller.
    CompressGivenUp,
    /// Pages that were decompressed.
    Decompressed,
    /// Nanoseconds that threads spent on all of that.
    CompressNs,
    /// Objects dropped from the cache because the store already had them.
    CacheReclaimedClean,
    /// Objects that left the cache by being written to the log.
    CacheReclaimedDirty,
    /// Objects that the cache kept because they had been touched again.
    CacheSecondChances,
    /// Times a faulting thread had to evict by itself.
    DirectReclaims,
    /// Nanoseconds that threads waited for eviction, the device or a full write buffer.
    StallNs,
    /// Read requests sent to the device.
    DeviceReads,
    /// Bytes read from the device.
    DeviceReadBytes,
    /// Write requests sent to the device.
    DeviceWrites,
    /// Bytes written to the device.
    DeviceWriteBytes,
    /// Segments written again because the device had refused them; each time counts.
    WritesRetried,
    /// Segments written elsewhere because their own refused them.
    SegmentsRelocated,
    /// Blocks that were wanted and in DRAM: not written yet, or read a moment ago.
    BlocksFromMemory,
    /// Blocks that came wrong or not at all when they were read, and right when read again.
    BlocksReread,
    /// Times that a block could not be read: what wanted it was stopped.
    BlocksRefused,
    /// Blocks appended because they left DRAM.
    BlocksAppendedFresh,
    /// Blocks appended because collection moved them.
    BlocksAppendedSurvivor,
    /// Segments reclaimed by collection.
    SegmentsCollected,
    /// System calls repeated after EFAULT on managed memory.
    EfaultRetries,
    /// Ranges pinned.
    Pins,
    /// Pages asked for ahead of walks in equal steps.
    StridesAsked,
    /// Of them those that were in DRAM when the walk came to them.
    StridesUsed,
    /// Nanoseconds that threads stood in faults for want of RAM: in all faults but those on pages
    /// of zeros, and in those while there was no room. What the kernel takes for a fault is not
    /// among them.
    FaultStallNs,
    /// Requests that told the device what is free.
    Discards,
    /// Bytes that they were about.
    DiscardedBytes,
    /// Bytes that were free for a while and then written again, without one.
    NotDiscardedBytes,
    /// Pages read ahead because they had followed before.
    SequencesBrought,
    /// Of them those that were in the cache when the program came to them.
    SequencesUsed,
    /// And those that left the cache before.
    SequencesDropped,
    /// Bytes read from the device of the second tier.
    TierReadBytes,
    /// Bytes written to it.
    TierWriteBytes,
}

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = Counter::TierWriteBytes as usize + 1;
}

/// What goes up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Gauge {
    /// The RAM budget, in bytes; with a bound on stalls what is found to be enough, and in a pool
    /// what this process may use now.
    Budget,
    /// Bytes of physical pages the program can touch right now; while nothing is managed, of all
    /// pages handed to the heap.
    PageBufferBytes,
    /// Bytes of the object cache.
    CacheBytes,
    /// Bytes of kernel page tables of the region.
    PageTableBytes,
    /// Bytes of the object tables.
    ObjectTableBytes,
    /// Bytes of the heap's bitmaps and lists.
    HeapMetadataBytes,
    /// Bytes of the store's tables and segment buffers.
    StoreMemoryBytes,
    /// Bytes of everything else deepheap uses.
    OtherBytes,
    /// Bytes of pages handed to the heap.
    CommittedBytes,
    /// Bytes the program has allocated and not freed.
    AllocatedBytes,
    /// Live bytes on the device.
    StoredBytes,
    /// Bytes of the store that are taken: by segments, live or not, or set aside for them.
    StoreUsedBytes,
    /// Bytes the store can hold.
    StoreCapacityBytes,
    /// Bytes that the program has mapped itself and that are memory of the heap.
    MappedBytes,
    /// Bytes of RAM that the program has outside of deepheap, its files apart; at the last look.
    UnmanagedBytes,
    /// 1 once a span is under management, 0 before.
    Managing,
    /// Nanoseconds of run time: in which the program computed, or its threads stood in faults.
    RunNs,
    /// Millionths of the run time that a thread stood in faults for want of RAM, lately; of the
    /// thread that stood most.
    StallShareNow,
    /// The same of the whole run time.
    StallShare,
    /// The most that it may be, in millionths; 0 without a bound.
    StallBound,
    /// The most that the RAM budget may become, in bytes.
    BudgetMost,
    /// With a bound: bytes that the program had touched and not given back, the mean of its run
    /// time since it is managed.
    TouchedMean,
    /// And what counted against the budget, the mean of the same time.
    UsedMean,
    /// Live bytes in the second tier.
    TierStoredBytes,
    /// Bytes the second tier can hold; 0 if there is none.
    TierCapacityBytes,
    /// Processes of its pool, this one among them; 0 without a pool.
    PoolMembers,
    /// Bytes that they may use together.
    PoolBytes,
    /// Bytes of them that none of them has.
    PoolFreeBytes,
}

impl Gauge {
    /// Number of gauges.
    pub const COUNT: usize = Gauge::PoolFreeBytes as usize + 1;
}

/// Latencies of one kind of fault, in nanoseconds. Percentiles are at most 12.5 % too high.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Faults served from the object cache.
    pub fault_cached: Latency,
    /// Faults served from the store.
    pub fault_stored: Latency,
    /// Faults that waited for another thread.
    pub fault_waited: Latency,

    /// See [`Counter::Prefetched`].
    pub prefetched: u64,
    /// See [`Counter::EvictedClean`].
    pub evicted_clean: u64,
    /// See [`Counter::EvictedDirty`].
    pub evicted_dirty: u64,
    /// See [`Counter::EvictedZero`].
    pub evicted_zero: u64,
    /// See [`Counter::EvictedFree`].
    pub evicted_free: u64,
    /// See [`Counter::Compressed`].
    pub compressed: u64,
    /// See [`Counter::CompressedBytes`].
    pub compressed_bytes: u64,
    /// See [`Counter::CompressGivenUp`].
    pub compress_given_up: u64,
    /// See [`Counter::Decompressed`].
    pub decompressed: u64,
    /// See [`Counter::CompressNs`].
    pub compress_ns: u64,
    /// See [`Counter::CacheReclaimedClean`].
    pub cache_reclaimed_clean: u64,
    /// See [`Counter::CacheReclaimedDirty`].
    pub cache_reclaimed_dirty: u64,
    /// See [`Counter::CacheSecondChances`].
    pub cache_second_chances: u64,
    /// See [`Counter::DirectReclaims`].
    pub direct_reclaims: u64,
    /// See [`Counter::StallNs`].
    pub stall_ns: u64,
    /// See [`Counter::DeviceReads`].
    pub device_reads: u64,
    /// See [`Counter::DeviceReadBytes`].
    pub device_read_bytes: u64,
    /// See [`Counter::DeviceWrites`].
    pub device_writes: u64,
    /// See [`Counter::DeviceWriteBytes`].
    pub device_write_bytes: u64,
    /// See [`Counter::WritesRetried`].
    pub writes_retried: u64,
    /// See [`Counter::SegmentsRelocated`].
    pub segments_relocated: u64,
    /// See [`Counter::BlocksFromMemory`].
    pub blocks_from_memory: u64,
    /// See [`Counter::BlocksReread`].
    pub blocks_reread: u64,
    /// See [`Counter::BlocksRefused`].
    pub blocks_refused: u64,
    /// See [`Counter::BlocksAppendedFresh`].
    pub blocks_appended_fresh: u64,
    /// See [`Counter::BlocksAppendedSurvivor`].
    pub blocks_appended_survivor: u64,
    /// See [`Counter::SegmentsCollected`].
    pub segments_collected: u64,
    /// See [`Counter::EfaultRetries`].
    pub efault_retries: u64,
    /// See [`Counter::Pins`].
    pub pins: u64,

    /// See [`Gauge::Budget`].
    pub budget_bytes: u64,
    /// See [`Gauge::PageBufferBytes`].
    pub page_buffer_bytes: u64,
    /// See [`Gauge::CacheBytes`].
    pub cache_bytes: u64,
    /// See [`Gauge::PageTableBytes`].
    pub page_table_bytes: u64,
    /// See [`Gauge::ObjectTableBytes`].
    pub object_table_bytes: u64,
    /// See [`Gauge::HeapMetadataBytes`].
    pub heap_metadata_bytes: u64,
    /// See [`Gauge::StoreMemoryBytes`].
    pub store_memory_bytes: u64,
    /// See [`Gauge::OtherBytes`].
    pub other_bytes: u64,
    /// See [`Gauge::CommittedBytes`].
    pub committed_bytes: u64,
    /// See [`Gauge::AllocatedBytes`].
    pub allocated_bytes: u64,
    /// See [`Gauge::StoredBytes`].
    pub stored_bytes: u64,
    /// See [`Gauge::StoreUsedBytes`].
    pub store_used_bytes: u64,
    /// See [`Gauge::StoreCapacityBytes`].
    pub store_capacity_bytes: u64,
    /// See [`Gauge::MappedBytes`].
    pub mapped_bytes: u64,
    /// See [`Gauge::UnmanagedBytes`].
    pub unmanaged_bytes: u64,

    /// See [`Counter::StridesAsked`].
    pub strides_asked: u64,
    /// See [`Counter::StridesUsed`].
    pub strides_used: u64,

    /// See [`Counter::FaultStallNs`].
    pub fault_stall_ns: u64,
    /// See [`Gauge::RunNs`].
    pub run_ns: u64,
    /// See [`Gauge::StallShareNow`].
    pub stall_share_now_ppm: u64,
    /// See [`Gauge::StallShare`].
    pub stall_share_ppm: u64,

    /// See [`Counter::Discards`].
    pub discards: u64,
    /// See [`Counter::DiscardedBytes`].
    pub discarded_bytes: u64,
    /// See [`Counter::NotDiscardedBytes`].
    pub not_discarded_bytes: u64,

    /// See [`Gauge::StallBound`].
    pub stall_bound_ppm: u64,
    /// See [`Gauge::BudgetMost`].
    pub budget_most_bytes: u64,
    /// See [`Gauge::TouchedMean`].
    pub touched_mean_bytes: u64,
    /// See [`Gauge::UsedMean`].
    pub used_mean_bytes: u64,

    /// See [`Counter::SequencesBrought`].
    pub sequences_brought: u64,
    /// See [`Counter::SequencesUsed`].
    pub sequences_used: u64,
    /// See [`Counter::SequencesDropped`].
    pub sequences_dropped: u64,

    /// See [`Counter::TierReadBytes`].
    pub tier_read_bytes: u64,
    /// See [`Counter::TierWriteBytes`].
    pub tier_write_bytes: u64,
    /// See [`Gauge::TierStoredBytes`].
    pub tier_stored_bytes: u64,
    /// See [`Gauge::TierCapacityBytes`].
    pub tier_capacity_bytes: u64,

    /// See [`Gauge::PoolMembers`].
    pub pool_members: u64,
    /// See [`Gauge::PoolBytes`].
    pub pool_bytes: u64,
    /// See [`Gauge::PoolFreeBytes`].
    pub pool_free_bytes: u64,
}

/// Bytes of one block of the store.
const BLOCK_BYTES: u64 = 4096;

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
        let before = self.compressed * BLOCK_BYTES;
        (before > 0).then(|| before as f64 / self.compressed_bytes as f64)
    }

    /// Device bytes written for every byte that left DRAM; `None` before the first.
    pub fn write_amplification(&self) -> Option<f64> {
        let fresh = self.blocks_appended_fresh * BLOCK_BYTES;
        (fresh > 0).then(|| self.device_write_bytes as f64 / fresh as f64)
    }
}
