//! Stats: what the store counts.
//!
//! Guarantees: reading the counters disturbs nobody; each is exact, together they are a snapshot
//! only when nothing runs.
//! Never: allocates, blocks, does I/O.
//! Threads: any.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::block::BLOCK_UNITS;
use crate::format::BLOCK_BYTES;
use crate::log::head::Head;

/// Counters of a store, since it was opened, and the state of its segments.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct StoreStats {
    /// Blocks appended at the fresh head: what the pager evicted.
    pub blocks_appended_fresh: u64,
    /// Blocks appended at the survivor head: what collection moved.
    pub blocks_appended_survivor: u64,
    /// Blocks that were in memory: their segment was, or they had been read a moment ago.
    pub blocks_read_from_memory: u64,
    /// Reads of the device: blocks that lie together and are asked for together are one.
    pub device_reads: u64,
    /// Blocks whose first read failed and whose second was right.
    pub blocks_reread: u64,
    /// Blocks that were not served because they failed their checksum, twice.
    pub blocks_corrupt: u64,
    /// Reads that the device refused, twice.
    pub reads_failed: u64,
    /// Writes of the device that were asked for.
    pub device_writes: u64,
    /// Segments that were written again because the device had refused them; each time counts.
    pub writes_retried: u64,
    /// Segments that were written in another place because their own refused them.
    pub segments_relocated: u64,
    /// Bytes written to the device.
    pub bytes_written: u64,
    /// Bytes read from the device, collection included.
    pub bytes_read: u64,
    /// Requests that told the device of free space (it was trimmed, or punched out of the file).
    pub discards: u64,
    /// Bytes that they were about.
    pub bytes_discarded: u64,
    /// Bytes of segments that were free for a while and then written again, without one.
    pub bytes_not_discarded: u64,
    /// Segments written to the device.
    pub segments_written: u64,
    /// Segments that collection emptied.
    pub segments_collected: u64,
    /// Blocks that the objects of the store would fill now, rounded up.
    pub live_blocks: u64,
    /// Bytes that the objects cost now: `live_blocks`, not rounded.
    pub live_bytes: u64,
    /// Blocks that are reserved now.
    pub reserved_blocks: u64,
    /// Blocks that can be reserved at most.
    pub reservable_blocks: u64,
    /// Segments of the device.
    pub segments: u64,
    /// Segments that are free and whose space is assured.
    pub segments_free: u64,
    /// Segments that were never used, or were discarded.
    pub segments_bare: u64,
    /// Segments on the device.
    pub segments_on_device: u64,
    /// Segments whose write failed: they stay in memory until it succeeds.
    pub segments_failed: u64,
    /// Segments whose place is bad and never used again.
    pub segments_lost: u64,
    /// Segments kept only for forked children.
    pub segments_withheld: u64,
    /// Segments that collection could not empty because of damage.
    pub segments_damaged: u64,
}

/// What is counted, from the opening of the store or the fork on; see `StoreStats` for each.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    AppendedFresh,
    AppendedSurvivor,
    ReadFromMemory,
    DeviceReads,
    Reread,
    Corrupt,
    ReadsFailed,
    DeviceWrites,
    WritesRetried,
    SegmentsRelocated,
    BytesWritten,
    BytesRead,
    Discards,
    BytesDiscarded,
    SegmentsWritten,
    SegmentsCollected,
}

const COUNTS: usize = Count::SegmentsCollected as usize + 1;

/// The counters behind the stats.
#[derive(Default)]
pub(crate) struct Counters {
    /// By `Count`.
    counts: [AtomicU64; COUNTS],
    /// Units appended, at both heads. With those retired they say what lives, in a child, too.
    units_appended: AtomicU64,
    units_retired: AtomicU64,
}

impl Counters {
    pub(crate) fn add(&self, count: Count, more: u64) {
        self.counts[count as usize].fetch_add(more, Relaxed);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    pub(crate) fn appended(&self, head: Head, units: u32) {
        self.add([Count::AppendedFresh, Count::AppendedSurvivor][head as usize], 1);
        self.units_appended.fetch_add(units.into(), Relaxed);
    }

    pub(crate) fn retired(&self, units: u32) {
        self.units_retired.fetch_add(units.into(), Relaxed);
    }

    /// Units that live now. Retired is read first: nothing is retired before it is appended, so
    /// the difference is never negative by more than what runs meanwhile.
    pub(crate) fn live_units(&self) -> u64 {
        let retired = self.units_retired.load(Relaxed);
        self.units_appended.load(Relaxed).saturating_sub(retired)
    }

    pub(crate) fn read_from_device(&self, reads: usize, bytes: usize) {
        self.add(Count::DeviceReads, reads as u64);
        self.add(Count::BytesRead, bytes as u64);
    }

    /// The device was told that so many bytes are free.
    pub(crate) fn discarded(&self, bytes: u64) {
        self.add(Count::Discards, 1);
        self.add(Count::BytesDiscarded, bytes);
    }

    /// A write was asked for, and so many bytes are on the device now.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.add(Count::DeviceWrites, 1);
        self.add(Count::BytesWritten, bytes as u64);
    }

    /// In a store that is opened again: so many units live in it.
    pub(crate) fn reopened(&self, live_units: u64) {
        self.units_appended.fetch_add(live_units, Relaxed);
    }

    /// In a forked child: the parent's counts are the parent's. Live blocks are inherited.
    pub(crate) fn become_child(&self) {
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
    }

    /// The counters as stats; what is known of segments is for the caller to fill in.
    pub(crate) fn stats(&self) -> StoreStats {
        const { assert!(BLOCK_UNITS as usize == BLOCK_BYTES) }; // a unit costs a byte
        let live_units = self.live_units();
        StoreStats {
            blocks_appended_fresh: self.get(Count::AppendedFresh),
            blocks_appended_survivor: self.get(Count::AppendedSurvivor),
            blocks_read_from_memory: self.get(Count::ReadFromMemory),
            device_reads: self.get(Count::DeviceReads),
            blocks_reread: self.get(Count::Reread),
            blocks_corrupt: self.get(Count::Corrupt),
            reads_failed: self.get(Count::ReadsFailed),
            device_writes: self.get(Count::DeviceWrites),
            writes_retried: self.get(Count::WritesRetried),
            segments_relocated: self.get(Count::SegmentsRelocated),
            bytes_written: self.get(Count::BytesWritten),
            bytes_read: self.get(Count::BytesRead),
            discards: self.get(Count::Discards),
            bytes_discarded: self.get(Count::BytesDiscarded),
            segments_written: self.get(Count::SegmentsWritten),
            segments_collected: self.get(Count::SegmentsCollected),
            live_blocks: live_units.div_ceil(BLOCK_UNITS.into()),
            live_bytes: live_units,
            ..StoreStats::default()
        }
    }
}
