//! Observe: publishes the statistics of the runtime, live and at exit.
//!
//! Never: touches managed memory.
//! Threads: any, outside the fault path, but `count_moves`, which the fault handler calls too.

use core::sync::atomic::{AtomicU64, Ordering};
use std::io::Write;

use deepheap_heap::PAGE;
use deepheap_pager::{Counted, Moves};
use deepheap_store::Store;
use deepheap_sys::log::{Piece, say};
use deepheap_sys::signals::Blocked;
use deepheap_sys::{clock, environment, handler_stack, kept_stderr, process_status};

use crate::config::Config;
use crate::pool;
use crate::runtime::{Inside, Runtime, is_durable_open, running, try_hold_durable};
use crate::stall_share::{Mark, StallShare, Times};
use crate::stats::{Counter, Gauge, Stats};
use crate::stats_report::{bytes, stats_json, summary};

/// How much of the heap may come or go before it is shown, where no worker shows it.
const CHANGE_BYTES: u64 = 256 << 10;

impl Runtime {
    /// Brings the gauges of the statistics page up to date.
    pub(crate) fn publish_gauges(&self) {
        if self.durable.is_some() {
            // The page is that of the process.
            return running().map_or((), Runtime::publish_gauges);
        }
        // While a heap is being opened or closed the gauges stay as they are.
        let Some(all) = Heaps::of_process(self) else { return };
        self.publish_stalls();
        // The handler stacks are the process's.
        let stacks = self.pager().map_or(0, |_| handler_stack::resident_bytes());
        for (gauge, bytes) in [
            (Gauge::Budget, self.present_ram()),
            (Gauge::BudgetMost, self.config.ram as usize),
            (Gauge::StallBound, self.config.stall.map_or(0, |bound| bound.ppm() as usize)),
            (Gauge::MappedBytes, self.mapped_pages.load(Ordering::Relaxed) * PAGE),
            (Gauge::CommittedBytes, all.committed),
            (Gauge::AllocatedBytes, all.allocated),
            (Gauge::PageBufferBytes, all.page_buffer),
            (Gauge::CacheBytes, all.object_cache),
            (Gauge::PageTableBytes, all.page_tables),
            (Gauge::ObjectTableBytes, all.object_table),
            (Gauge::HeapMetadataBytes, all.heap_metadata),
            (Gauge::StoreMemoryBytes, all.store_memory),
            (Gauge::OtherBytes, all.other + stacks),
            (Gauge::Managing, all.is_managed.into()),
            // Nothing after the last store was closed.
            (Gauge::StoredBytes, all.stored),
            (Gauge::StoreUsedBytes, all.used),
            (Gauge::StoreCapacityBytes, all.capacity),
        ] {
            self.stats.set(gauge, bytes as u64);
        }
        let Some(pager) = self.pager() else { return };
        let store = pager.store().stats();
        let block = PAGE as u64;
        let put = |counter, value| self.stats.put(counter, value);
        put(Counter::Compressed, pager.counted(Counted::Compressed));
        put(Counter::CompressedBytes, pager.counted(Counted::CompressedBytes));
        put(Counter::CompressGivenUp, pager.counted(Counted::GivenUp));
        put(Counter::Decompressed, pager.counted(Counted::Decompressed));
        put(Counter::CompressNs, pager.counted(Counted::CompressNs));
        put(Counter::StridesAsked, pager.counted(Counted::WalkAsked));
        put(Counter::StridesUsed, pager.counted(Counted::WalkUsed));
        put(Counter::SequencesBrought, pager.counted(Counted::TrailBrought));
        put(Counter::SequencesUsed, pager.counted(Counted::TrailUsed));
        put(Counter::SequencesDropped, pager.counted(Counted::TrailDropped));
        // Pages of the object table go to a device, too.
        let table = pager.table_traffic();
        put(Counter::DeviceReads, store.device_reads + table.read);
        put(Counter::DeviceReadBytes, store.bytes_read + table.read * block);
        put(Counter::DeviceWrites, store.device_writes + table.written);
        put(Counter::DeviceWriteBytes, store.bytes_written + table.written * block);
        put(Counter::WritesRetried, store.writes_retried);
        put(Counter::SegmentsRelocated, store.segments_relocated);
        put(Counter::BlocksFromMemory, store.blocks_read_from_memory);
        put(Counter::BlocksReread, store.blocks_reread);
        put(Counter::BlocksRefused, store.blocks_corrupt + store.reads_failed);
        put(Counter::BlocksAppendedFresh, store.blocks_appended_fresh);
        put(Counter::BlocksAppendedSurvivor, store.blocks_appended_survivor);
        put(Counter::SegmentsCollected, store.segments_collected);
        let second = pager.store().second_tier();
        let tier = second.map(Store::stats).unwrap_or_default();
        put(Counter::Discards, store.discards + tier.discards);
        put(Counter::DiscardedBytes, store.bytes_discarded + tier.bytes_discarded);
        put(Counter::NotDiscardedBytes, store.bytes_not_discarded + tier.bytes_not_discarded);
        if let Some(second) = second {
            let segment = second.segment_bytes() as u64;
            let set = |gauge, value| self.stats.set(gauge, value);
            put(Counter::TierReadBytes, tier.bytes_read);
            put(Counter::TierWriteBytes, tier.bytes_written);
            set(Gauge::TierStoredBytes, tier.live_blocks * block);
            set(Gauge::TierCapacityBytes, tier.segments * segment);
        }
    }

    /// Run time and stalls until now; none while another thread brings them up to date.
    pub(crate) fn stall_mark(&self) -> Option<Mark> {
        let mut stalls = self.stalls.try_lock()?;
        stalls.observe(&self.times());
        Some(stalls.mark())
    }

    /// Brings the shares of the run time that threads stand in faults up to date.
    fn publish_stalls(&self) {
        // Who has it publishes the same.
        let Some(mut stalls) = self.stalls.try_lock() else { return };
        stalls.observe(&self.times());
        self.stats.set(Gauge::RunNs, stalls.run_ns());
        self.stats.set(Gauge::StallShareNow, stalls.now_ppm());
        self.stats.set(Gauge::StallShare, stalls.whole_ppm());
    }

    /// What the process has spent its time on so far.
    fn times(&self) -> Times {
        Times {
            clock_ns: clock::monotonic_ns(),
            cpu_ns: clock::process_cpu_ns(),
            stalls_ns: self.stats.by_shard(Counter::FaultStallNs),
        }
    }

    /// In the child of a fork: its times begin anew.
    ///
    /// # Safety
    /// The child has one thread, which is here.
    pub(crate) unsafe fn forget_stalls(&self) {
        // SAFETY: whoever held it is not in this process, and the lock is that of the next line.
        unsafe { self.stalls.force_unlock() };
        *self.stalls.lock() = StallShare::default();
    }

    /// All numbers of this moment, with what the program has in RAM outside of deepheap.
    fn snapshot(&self) -> Stats {
        let _inside = Inside::enter();
        self.publish_gauges();
        // At once: others publish, too, and a mix of two moments adds up to neither.
        let mut stats = self.stats.snapshot();
        stats.unmanaged_bytes = look_beside(self.gauged_bytes());
        self.stats.set(Gauge::UnmanagedBytes, stats.unmanaged_bytes);
        stats
    }

    /// What counts against the budget, as the gauges say. The kernel's page tables are not among
    /// what it counts as the process's memory.
    fn gauged_bytes(&self) -> u64 {
        let gauges = [
            Gauge::PageBufferBytes,
            Gauge::CacheBytes,
            Gauge::ObjectTableBytes,
            Gauge::HeapMetadataBytes,
            Gauge::StoreMemoryBytes,
            Gauge::OtherBytes,
        ];
        gauges.into_iter().map(|gauge| self.stats.gauge(gauge)).sum()
    }

    /// Plain mode, where no worker does it: brings the gauges up to date if the heap has changed
    /// much since.
    pub(crate) fn publish_plain(&self) {
        if self.pager().is_some() || !self.has_changed() {
            return;
        }
        // Under the growth lock plain mode lasts. A handler that forked meanwhile would want it.
        let _blocked = Blocked::all();
        if let Some(_growth) = self.growth.try_lock() {
            self.publish_gauges();
        }
    }

    /// Whether more or less of the heap is committed than the gauges say, by what is worth telling.
    /// To bring them up to date takes longer than most calls that need it.
    pub(crate) fn has_changed(&self) -> bool {
        let committed = (self.heap.committed_pages() * PAGE) as u64;
        committed.abs_diff(self.stats.gauge(Gauge::CommittedBytes)) >= CHANGE_BYTES
    }

    /// Counts what eviction did.
    pub(crate) fn count_moves(&self, shard: usize, moves: &Moves) {
        if moves.stall_ns > 0 {
            self.stats.add(shard, Counter::StallNs, moves.stall_ns);
        }
        for (counter, n) in [
            (Counter::EvictedClean, moves.clean),
            (Counter::EvictedDirty, moves.dirty),
            (Counter::EvictedZero, moves.zero),
            (Counter::EvictedFree, moves.free),
            (Counter::CacheReclaimedClean, moves.reclaimed_clean),
            (Counter::CacheReclaimedDirty, moves.reclaimed_dirty),
            (Counter::CacheSecondChances, moves.second_chances),
            (Counter::DirectReclaims, moves.direct),
        ] {
            if n > 0 {
                self.stats.add(shard, counter, n.into());
            }
        }
    }
}

/// What the heap of the process and its durable heaps use together, bytes.
#[derive(Default)]
struct Heaps {
    is_managed: bool,
    /// What may hold something.
    committed: usize,
    /// Live allocations.
    allocated: usize,
    page_buffer: usize,
    object_cache: usize,
    page_tables: usize,
    object_table: usize,
    heap_metadata: usize,
    store_memory: usize,
    /// Without the handler stacks.
    other: usize,
    /// What lives in the stores, what is taken there, and what they can hold.
    stored: usize,
    used: usize,
    capacity: usize,
}

impl Heaps {
    /// All that are open; none while one is being opened or closed.
    fn of_process(own: &Runtime) -> Option<Heaps> {
        let mut all = Heaps::default();
        if is_durable_open() {
            try_hold_durable()?.heaps().for_each(|runtime| all.add(runtime));
        }
        all.add(own);
        Some(all)
    }

    fn add(&mut self, runtime: &Runtime) {
        let committed = runtime.heap.committed_pages() * PAGE;
        self.committed += committed;
        self.allocated += runtime.heap.allocated_bytes();
        self.heap_metadata += runtime.heap.metadata_bytes();
        let Some(pager) = runtime.pager() else {
            // All of it is in reach, if it was touched.
            self.page_buffer += committed;
            return;
        };
        self.is_managed = true;
        let usage = pager.usage();
        self.page_buffer += usage.page_buffer;
        self.object_cache += usage.object_cache;
        self.page_tables += usage.page_tables;
        self.object_table += usage.object_table;
        self.store_memory += usage.store;
        let other = usage.other + usage.descriptors;
        self.other += other.saturating_sub(handler_stack::resident_bytes());
        let (store, segment) = (pager.store().stats(), pager.store().segment_bytes());
        self.stored += store.live_blocks as usize * PAGE;
        self.used += (store.segments - store.segments_bare) as usize * segment;
        self.capacity += store.segments as usize * segment;
    }
}

/// The statistics of this process; None before the first allocation.
pub fn stats() -> Option<Stats> {
    let runtime = running()?;
    // A handler of the program that faults would find the store's lock held.
    let _blocked = Blocked::all();
    Some(runtime.snapshot())
}

/// The most that a look found outside of deepheap, in bytes.
static MOST_UNMANAGED: AtomicU64 = AtomicU64::new(0);

/// Bytes of RAM that this process has beside those, which are deepheap's. Notes the most.
fn look_beside(ours: u64) -> u64 {
    let Some([anonymous, shared]) = process_status::kilobytes(["RssAnon:", "RssShmem:"]) else {
        return 0;
    };
    let all = (anonymous.unwrap_or(0) + shared.unwrap_or(0)) * 1024;
    let beside = all.saturating_sub(ours);
    MOST_UNMANAGED.fetch_max(beside, Ordering::Relaxed);
    beside
}

/// Notes what the program has outside of deepheap now: it is about to give much of it back, and is
/// to be told at exit all the same that its budget did not bind. A handler of the program may call
/// it: nothing is allocated, and signals are blocked while a lock is held.
pub fn note_unmanaged() {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    let ours = running().map_or(0, |runtime| {
        runtime.publish_gauges();
        runtime.gauged_bytes()
    });
    look_beside(ours);
}

/// In the child of a fork: what its parent had is not its own.
pub(crate) fn forget_unmanaged() {
    MOST_UNMANAGED.store(0, Ordering::Relaxed);
}

/// Names the process that `deepheap run` was asked to run, for its children.
pub const FIRST_PROCESS_VARIABLE: &str = "DEEPHEAP_FIRST";

/// Writes the summary to stderr and the statistics file, as the settings ask. For the exit of the
/// process. Children of a program that stayed within RAM have nothing to tell and are silent.
pub fn exit_summary() {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    let Some(runtime) = running() else {
        look_beside(0);
        if let Ok(config) = Config::from_environment() {
            tell_unmanaged(config.ram);
        }
        return;
    };
    if let Some(name) = &runtime.config.pool {
        pool::leave(name);
    }
    let has_to_tell = runtime.pager().is_some() || is_first_process(runtime);
    runtime.end_trace();
    let stats = runtime.snapshot();
    if has_to_tell && runtime.config.show_stats {
        kept_stderr::write_all(summary(&stats).as_bytes());
    }
    tell_unmanaged(stats.budget_most_bytes);
    if let Some(path) = runtime.config.stats_file.as_ref().filter(|_| has_to_tell) {
        let line = stats_json(&stats) + "\n";
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("deepheap: cannot write the statistics to {}: {error}", path.display());
        }
    }
}

/// Says so if the budget did not bind what the program had.
fn tell_unmanaged(budget: u64) {
    // A program that links the library means only some of its memory to be managed.
    let is_all_meant = environment::variable(FIRST_PROCESS_VARIABLE).is_some();
    let most = MOST_UNMANAGED.load(Ordering::Relaxed);
    if is_all_meant && most > budget {
        let (beside, budget) = (bytes(most), bytes(budget));
        say(&[Piece::Text(&format!(
            "{beside} of this program's memory were not managed, more than its RAM budget of \
             {budget}, which does not bind them: mappings that are small, shared or made without \
             libc, thread stacks, and what libc allocates for itself"
        ))]);
    }
}

pub(crate) fn is_first_process(runtime: &Runtime) -> bool {
    let first = match environment::variable(FIRST_PROCESS_VARIABLE) {
        Some(first) => first.to_str().and_then(|first| first.parse().ok()),
        None => Some(runtime.first_process), // started without `deepheap run`
    };
    first == Some(std::process::id())
}
