//! Statistics table: where each number of `Stats` is told, in the JSON line and in the metrics.
//!
//! Guarantees: every number is here, once.
//! Never: reads a counter.

use crate::number;
use crate::stats::{Number, Stats};

/// A number, and where it is told.
pub struct Told {
    /// Section and name in the JSON line.
    pub json: (&'static str, &'static str),
    /// Which it is.
    pub number: Number,
    /// Family, without `deepheap_`, and value of the label in the metrics; empty where it is not
    /// among them, or has no label.
    pub metric: (&'static str, &'static str),
}

impl Told {
    /// Its value as a part of one, if it is kept in millionths.
    pub fn ratio(&self, stats: &Stats) -> Option<f64> {
        let is_ratio = self.metric.0.ends_with("_ratio");
        is_ratio.then(|| self.number.of(stats) as f64 / 1e6)
    }
}

/// `told("section.name", number, "family.label")`.
const fn told(json: &'static str, number: Number, metric: &'static str) -> Told {
    Told { json: halves(json), number, metric: halves(metric) }
}

/// The text before and behind the point; all of it before, if there is none.
const fn halves(text: &'static str) -> (&'static str, &'static str) {
    let mut at = 0;
    while at < text.len() {
        if text.as_bytes()[at] == b'.' {
            let (first, rest) = text.split_at(at);
            return (first, rest.split_at(1).1);
        }
        at += 1;
    }
    (text, "")
}

/// All numbers.
pub static TOLD: [Told; Number::COUNT] = [
    told("faults.prefetched", number!(prefetched), "pages_prefetched"),
    told("faults.strides_asked", number!(strides_asked), ""),
    told("faults.strides_used", number!(strides_used), ""),
    told("faults.sequences_brought", number!(sequences_brought), "pages_in_sequences.brought"),
    told("faults.sequences_used", number!(sequences_used), "pages_in_sequences.used"),
    told("faults.sequences_dropped", number!(sequences_dropped), "pages_in_sequences.dropped"),
    told("evictions.clean", number!(evicted_clean), "pages_evicted.clean"),
    told("evictions.dirty", number!(evicted_dirty), "pages_evicted.dirty"),
    told("evictions.zero", number!(evicted_zero), "pages_evicted.zero"),
    told("evictions.free", number!(evicted_free), "pages_evicted.free"),
    told("compression.pages", number!(compressed), "pages_compressed"),
    told("compression.bytes", number!(compressed_bytes), "compressed_bytes"),
    told("compression.given_up", number!(compress_given_up), ""),
    told("compression.dense_pages", number!(dense), "pages_made_dense"),
    told("compression.dense_bytes", number!(dense_bytes), "dense_bytes"),
    told("compression.decompressed", number!(decompressed), "pages_decompressed"),
    told("compression.cpu_ns", number!(compress_ns), "compress_seconds"),
    told("cache.reclaimed_clean", number!(cache_reclaimed_clean), "cache_reclaimed.clean"),
    told("cache.reclaimed_dirty", number!(cache_reclaimed_dirty), "cache_reclaimed.dirty"),
    told("cache.second_chances", number!(cache_second_chances), ""),
    told("pressure.direct_reclaims", number!(direct_reclaims), "direct_reclaims"),
    told("pressure.stall_ns", number!(stall_ns), "stall_seconds"),
    told("pressure.fault_stall_ns", number!(fault_stall_ns), "fault_stall_seconds"),
    told("pressure.run_ns", number!(run_ns), "run_seconds"),
    told("pressure.stall_share", number!(stall_share_ppm), "stall_share_ratio.all"),
    told("waits.room_ns", number!(wait_room_ns), "longest_wait_seconds.room"),
    told("waits.take_over_ns", number!(wait_take_over_ns), "longest_wait_seconds.take_over"),
    told("waits.owner_ns", number!(wait_owner_ns), "longest_wait_seconds.owner"),
    told("waits.fork_ns", number!(wait_fork_ns), "longest_wait_seconds.fork"),
    told("waits.checkpoint_ns", number!(wait_checkpoint_ns), "longest_wait_seconds.checkpoint"),
    told("waits.device_ns", number!(wait_device_ns), "longest_wait_seconds.device"),
    told("waits.log_ns", number!(wait_log_ns), "longest_wait_seconds.log"),
    told("waits.table_ns", number!(wait_table_ns), "longest_wait_seconds.table"),
    told("waits.other_ns", number!(wait_other_ns), "longest_wait_seconds.other"),
    told("pressure.better_budget_bytes", number!(better_budget_bytes), "better_budget_bytes"),
    told("pressure.better_share", number!(better_share_ppm), "better_share_ratio"),
    told("pressure.stall_share_now", number!(stall_share_now_ppm), "stall_share_ratio.now"),
    told("pressure.stall_bound", number!(stall_bound_ppm), "stall_bound_ratio"),
    told("device.reads", number!(device_reads), "device_requests.read"),
    told("device.read_bytes", number!(device_read_bytes), "device_bytes.read"),
    told("device.writes", number!(device_writes), "device_requests.write"),
    told("device.write_bytes", number!(device_write_bytes), "device_bytes.write"),
    told("device.writes_retried", number!(writes_retried), "writes_retried"),
    told("device.segments_relocated", number!(segments_relocated), ""),
    told("device.blocks_from_memory", number!(blocks_from_memory), ""),
    told("device.blocks_reread", number!(blocks_reread), ""),
    told("device.blocks_refused", number!(blocks_refused), "blocks_refused"),
    told("log.blocks_appended_fresh", number!(blocks_appended_fresh), "blocks_appended.fresh"),
    told(
        "log.blocks_appended_survivor",
        number!(blocks_appended_survivor),
        "blocks_appended.survivor",
    ),
    told("log.segments_collected", number!(segments_collected), "segments_collected"),
    told("system_calls.efault_retries", number!(efault_retries), ""),
    told("system_calls.pins", number!(pins), ""),
    told("memory.budget_bytes", number!(budget_bytes), "ram_budget_bytes"),
    told("memory.budget_most_bytes", number!(budget_most_bytes), ""),
    told("memory.touched_mean_bytes", number!(touched_mean_bytes), "ram_mean_bytes.touched"),
    told("memory.used_mean_bytes", number!(used_mean_bytes), "ram_mean_bytes.used"),
    told("memory.page_buffer_bytes", number!(page_buffer_bytes), "ram_bytes.page_buffer"),
    told("memory.cache_bytes", number!(cache_bytes), "ram_bytes.cached"),
    told("memory.page_table_bytes", number!(page_table_bytes), "ram_bytes.page_tables"),
    told("memory.object_table_bytes", number!(object_table_bytes), "ram_bytes.object_table"),
    told("memory.heap_metadata_bytes", number!(heap_metadata_bytes), "ram_bytes.heap_tables"),
    told("memory.store_memory_bytes", number!(store_memory_bytes), "ram_bytes.store_buffers"),
    told("memory.other_bytes", number!(other_bytes), "ram_bytes.other"),
    told("memory.unmanaged_bytes", number!(unmanaged_bytes), "unmanaged_bytes"),
    told("pool.members", number!(pool_members), "pool_members"),
    told("pool.bytes", number!(pool_bytes), "pool_bytes.all"),
    told("pool.free_bytes", number!(pool_free_bytes), "pool_bytes.free"),
    told("heap.committed_bytes", number!(committed_bytes), "heap_bytes.pages"),
    told("heap.touched_peak_bytes", number!(touched_peak_bytes), "peak_bytes.touched"),
    told("heap.peak_bytes", number!(committed_peak_bytes), "peak_bytes.pages"),
    told("heap.allocated_bytes", number!(allocated_bytes), "heap_bytes.allocated"),
    told("heap.mapped_bytes", number!(mapped_bytes), "heap_bytes.mapped"),
    told("store.live_bytes", number!(stored_bytes), "store_bytes.live"),
    told("store.peak_bytes", number!(stored_peak_bytes), "peak_bytes.stored"),
    told("store.used_bytes", number!(store_used_bytes), "store_bytes.used"),
    told("store.capacity_bytes", number!(store_capacity_bytes), "store_bytes.capacity"),
    told("store.discards", number!(discards), "discards"),
    told("store.discarded_bytes", number!(discarded_bytes), "idle_bytes.discarded"),
    told("store.not_discarded_bytes", number!(not_discarded_bytes), "idle_bytes.reused"),
    told("tier.live_bytes", number!(tier_stored_bytes), "tier_bytes.live"),
    told("tier.capacity_bytes", number!(tier_capacity_bytes), "tier_bytes.capacity"),
    told("tier.read_bytes", number!(tier_read_bytes), "tier_device_bytes.read"),
    told("tier.written_bytes", number!(tier_write_bytes), "tier_device_bytes.write"),
];
