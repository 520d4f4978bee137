//! Observe: what the runtime tells of itself, live and at exit.
//!
//! Never: touches managed memory.

use std::io::Write;

use deepheap_pager::Moves;
use deepheap_sys::signals::Blocked;

use crate::object_report::object_report;
use crate::runtime::{Inside, Runtime, running};
use crate::stats::{Counter, Gauge, Stats};
use crate::stats_report::{stats_json, summary};

impl Runtime {
    /// Brings the gauges of the statistics page up to date.
    pub(crate) fn publish_gauges(&self) {
        let set = |gauge, value: usize| self.stats.set(gauge, value as u64);
        set(Gauge::Budget, self.config.ram as usize);
        set(Gauge::CommittedBytes, self.heap.committed_pages() * deepheap_heap::PAGE);
        set(Gauge::AllocatedBytes, self.heap.allocated_bytes());
        set(Gauge::HeapMetadataBytes, self.heap.metadata_bytes());
        let Some(pager) = self.pager() else { return };
        let usage = pager.usage();
        set(Gauge::Managing, 1);
        set(Gauge::PageBufferBytes, usage.page_buffer);
        set(Gauge::CacheBytes, usage.object_cache);
        set(Gauge::PageTableBytes, usage.page_tables);
        set(Gauge::ObjectTableBytes, usage.object_table);
        set(Gauge::StoreMemoryBytes, usage.store);
        set(Gauge::OtherBytes, usage.other + usage.descriptors);
        let store = pager.store().stats();
        let block = deepheap_heap::PAGE as u64;
        let segment = self.config.segment_bytes;
        let set = |gauge, value| self.stats.set(gauge, value);
        set(Gauge::StoredBytes, store.live_blocks * block);
        set(Gauge::StoreUsedBytes, (store.segments - store.segments_bare) * segment);
        set(Gauge::StoreCapacityBytes, store.segments * segment);
        let put = |counter, value| self.stats.put(counter, value);
        put(Counter::DeviceReads, store.device_reads);
        put(Counter::DeviceReadBytes, store.bytes_read);
        put(Counter::DeviceWrites, store.segments_written);
        put(Counter::DeviceWriteBytes, store.bytes_written);
        put(Counter::BlocksFromMemory, store.blocks_read_from_memory);
        put(Counter::BlocksReread, store.blocks_reread);
        put(Counter::BlocksRefused, store.blocks_corrupt + store.reads_failed);
        put(Counter::BlocksAppendedFresh, store.blocks_appended_fresh);
        put(Counter::BlocksAppendedSurvivor, store.blocks_appended_survivor);
        put(Counter::SegmentsCollected, store.segments_collected);
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

/// The statistics of this process; None before the first allocation.
pub fn stats() -> Option<Stats> {
    let runtime = running()?;
    // A handler of the program that faults would find the store's lock held.
    let _blocked = Blocked::all();
    runtime.publish_gauges();
    Some(runtime.stats.snapshot())
}

/// Names the process that `deepheap run` was asked to run, for its children.
pub const FIRST_PROCESS_VARIABLE: &str = "DEEPHEAP_FIRST";

/// Writes the summary to stderr and the statistics file, as the settings ask. For the exit of the
/// process. Children of a program that stayed within RAM have nothing to tell and are silent.
pub fn exit_summary() {
    let Some(runtime) = running() else { return };
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    if runtime.pager().is_none() && !is_first_process(runtime) {
        return;
    }
    runtime.publish_gauges();
    let stats = runtime.stats.snapshot();
    if runtime.config.show_stats {
        let text = summary(&stats) + &object_report(&runtime.config);
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    if let Some(path) = &runtime.config.stats_file {
        let line = stats_json(&stats) + "\n";
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("deepheap: cannot write the statistics to {}: {error}", path.display());
        }
    }
}

fn is_first_process(runtime: &Runtime) -> bool {
    let first = match std::env::var(FIRST_PROCESS_VARIABLE) {
        Ok(first) => first.parse().ok(),
        Err(_) => Some(runtime.first_process), // started without `deepheap run`
    };
    first == Some(std::process::id())
}
