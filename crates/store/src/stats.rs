//! Stats: what the store counts.
//!
//! Guarantees: reading the counters disturbs nobody; each is exact, together they are a snapshot
//! only when nothing runs.
//! Never: allocates, blocks, does I/O.
//! Threads: any.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::block::{BLOCK_BYTES, BLOCK_UNITS};
use crate::log::Head;

/// Counters of a store, since it was opened, and the state of its segments.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct StoreStats {
    /// Blocks appended at the fresh head: what the pager evicted.
    pub blocks_appended_fresh: u64,
    /// Blocks appended at the survivor head: what collection moved.
    pub blocks_appended_survivor: u64,
    /// Objects retired.
    pub objects_retired: u64,
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
    /// Bytes written to the device.
    pub bytes_written: u64,
    /// Bytes read from the device, collection included.
    pub bytes_read: u64,
    /// Bytes discarded (trimmed, or punched out of the file).
    pub bytes_discarded: u64,
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
    /// Segments in memory: open, sealed or being written.
    pub segments_in_memory: u64,
    /// Segments on the device.
    pub segments_on_device: u64,
    /// Segments whose write failed: they stay in memory.
    pub segments_failed: u64,
    /// Segments kept only for forked children.
    pub segments_withheld: u64,
    /// Segments that collection could not empty because of damage.
    pub segments_damaged: u64,
}

impl StoreStats {
    /// Bytes written to the device for each byte that the pager evicted; 0 before the first.
    pub fn write_amplification(&self) -> f64 {
        let asked = self.blocks_appended_fresh * BLOCK_BYTES as u64;
        if asked == 0 { 0.0 } else { self.bytes_written as f64 / asked as f64 }
    }
}

/// The counters behind the stats; see `StoreStats` for what each means.
#[derive(Default)]
pub(crate) struct Counters {
    appended: [AtomicU64; 2],
    /// Units appended, at both heads.
    units_appended: AtomicU64,
    retired: AtomicU64,
    units_retired: AtomicU64,
    read_from_memory: AtomicU64,
    device_reads: AtomicU64,
    reread: AtomicU64,
    corrupt: AtomicU64,
    reads_failed: AtomicU64,
    bytes_written: AtomicU64,
    bytes_read: AtomicU64,
    bytes_discarded: AtomicU64,
    segments_written: AtomicU64,
    segments_collected: AtomicU64,
}

impl Counters {
    pub(crate) fn appended(&self, head: Head, units: u32) {
        self.appended[head as usize].fetch_add(1, Relaxed);
        self.units_appended.fetch_add(units as u64, Relaxed);
    }

    pub(crate) fn retired(&self, units: u32) {
        self.retired.fetch_add(1, Relaxed);
        self.units_retired.fetch_add(units as u64, Relaxed);
    }

    /// Units that live now. Retired is read first: nothing is retired before it is appended, so
    /// the difference is never negative by more than what runs meanwhile.
    pub(crate) fn live_units(&self) -> u64 {
        let retired = self.units_retired.load(Relaxed);
        self.units_appended.load(Relaxed).saturating_sub(retired)
    }

    pub(crate) fn read_from_memory(&self) {
        self.read_from_memory.fetch_add(1, Relaxed);
    }

    pub(crate) fn read_from_device(&self, reads: usize, bytes: usize) {
        self.device_reads.fetch_add(reads as u64, Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn reread(&self, blocks: u32) {
        self.reread.fetch_add(blocks as u64, Relaxed);
    }

    pub(crate) fn corrupt(&self) {
        self.corrupt.fetch_add(1, Relaxed);
    }

    pub(crate) fn read_failed(&self) {
        self.reads_failed.fetch_add(1, Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.bytes_written.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn discarded(&self, bytes: u64) {
        self.bytes_discarded.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn segment_written(&self) {
        self.segments_written.fetch_add(1, Relaxed);
    }

    pub(crate) fn segment_collected(&self) {
        self.segments_collected.fetch_add(1, Relaxed);
    }

    /// In a forked child: what the parent counted is the parent's. What lives is inherited.
    pub(crate) fn become_child(&self) {
        let Counters {
            appended: [fresh, survivor],
            units_appended: _,
            retired,
            units_retired: _,
            read_from_memory,
            device_reads,
            reread,
            corrupt,
            reads_failed,
            bytes_written,
            bytes_read,
            bytes_discarded,
            segments_written,
            segments_collected,
        } = self;
        for counter in [
            fresh,
            survivor,
            retired,
            read_from_memory,
            device_reads,
            reread,
            corrupt,
            reads_failed,
            bytes_written,
            bytes_read,
            bytes_discarded,
            segments_written,
            segments_collected,
        ] {
            counter.store(0, Relaxed);
        }
    }

    /// The counters as stats; what is known of segments is for the caller to fill in.
    pub(crate) fn stats(&self) -> StoreStats {
        const { assert!(BLOCK_UNITS as usize == BLOCK_BYTES) }; // a unit costs a byte
        let live_units = self.live_units();
        StoreStats {
            blocks_appended_fresh: self.appended[Head::Fresh as usize].load(Relaxed),
            blocks_appended_survivor: self.appended[Head::Survivor as usize].load(Relaxed),
            objects_retired: self.retired.load(Relaxed),
            blocks_read_from_memory: self.read_from_memory.load(Relaxed),
            device_reads: self.device_reads.load(Relaxed),
            blocks_reread: self.reread.load(Relaxed),
            blocks_corrupt: self.corrupt.load(Relaxed),
            reads_failed: self.reads_failed.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_discarded: self.bytes_discarded.load(Relaxed),
            segments_written: self.segments_written.load(Relaxed),
            segments_collected: self.segments_collected.load(Relaxed),
            live_blocks: live_units.div_ceil(BLOCK_UNITS as u64),
            live_bytes: live_units,
            ..StoreStats::default()
        }
    }
}
