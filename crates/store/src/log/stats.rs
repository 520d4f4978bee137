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

/// One counter.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters behind the stats; see `StoreStats` for what each means.
#[derive(Default)]
pub(crate) struct Counters {
    appended: [Counter; 2],
    /// Units appended, at both heads. With those retired they say what lives, in a child, too.
    units_appended: Counter,
    units_retired: Counter,
    pub(crate) read_from_memory: Counter,
    device_reads: Counter,
    pub(crate) reread: Counter,
    pub(crate) corrupt: Counter,
    pub(crate) reads_failed: Counter,
    device_writes: Counter,
    pub(crate) writes_retried: Counter,
    pub(crate) segments_relocated: Counter,
    bytes_written: Counter,
    bytes_read: Counter,
    discards: Counter,
    bytes_discarded: Counter,
    pub(crate) segments_written: Counter,
    pub(crate) segments_collected: Counter,
}

impl Counters {
    pub(crate) fn appended(&self, head: Head, units: u32) {
        self.appended[head as usize].add(1);
        self.units_appended.add(units as u64);
    }

    pub(crate) fn retired(&self, units: u32) {
        self.units_retired.add(units as u64);
    }

    /// Units that live now. Retired is read first: nothing is retired before it is appended, so
    /// the difference is never negative by more than what runs meanwhile.
    pub(crate) fn live_units(&self) -> u64 {
        let retired = self.units_retired.get();
        self.units_appended.get().saturating_sub(retired)
    }

    pub(crate) fn read_from_device(&self, reads: usize, bytes: usize) {
        self.device_reads.add(reads as u64);
        self.bytes_read.add(bytes as u64);
    }

    /// Reads of the device so far.
    pub(crate) fn device_reads(&self) -> u64 {
        self.device_reads.get()
    }

    /// The device was told that so many bytes are free.
    pub(crate) fn discarded(&self, bytes: u64) {
        self.discards.add(1);
        self.bytes_discarded.add(bytes);
    }

    /// A write was asked for, and so many bytes are on the device now.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.device_writes.add(1);
        self.bytes_written.add(bytes as u64);
    }

    /// In a store that is opened again: so many units live in it.
    pub(crate) fn reopened(&self, live_units: u64) {
        self.units_appended.add(live_units);
    }

    /// In a forked child: what the parent counted is the parent's. What lives is inherited.
    pub(crate) fn become_child(&self) {
        for counter in [
            &self.appended[0],
            &self.appended[1],
            &self.read_from_memory,
            &self.device_reads,
            &self.reread,
            &self.corrupt,
            &self.reads_failed,
            &self.device_writes,
            &self.writes_retried,
            &self.segments_relocated,
            &self.bytes_written,
            &self.bytes_read,
            &self.discards,
            &self.bytes_discarded,
            &self.segments_written,
            &self.segments_collected,
        ] {
            counter.0.store(0, Relaxed);
        }
    }

    /// The counters as stats; what is known of segments is for the caller to fill in.
    pub(crate) fn stats(&self) -> StoreStats {
        const { assert!(BLOCK_UNITS as usize == BLOCK_BYTES) }; // a unit costs a byte
        let live_units = self.live_units();
        StoreStats {
            blocks_appended_fresh: self.appended[Head::Fresh as usize].get(),
            blocks_appended_survivor: self.appended[Head::Survivor as usize].get(),
            blocks_read_from_memory: self.read_from_memory.get(),
            device_reads: self.device_reads.get(),
            blocks_reread: self.reread.get(),
            blocks_corrupt: self.corrupt.get(),
            reads_failed: self.reads_failed.get(),
            device_writes: self.device_writes.get(),
            writes_retried: self.writes_retried.get(),
            segments_relocated: self.segments_relocated.get(),
            bytes_written: self.bytes_written.get(),
            bytes_read: self.bytes_read.get(),
            discards: self.discards.get(),
            bytes_discarded: self.bytes_discarded.get(),
            segments_written: self.segments_written.get(),
            segments_collected: self.segments_collected.get(),
            live_blocks: live_units.div_ceil(BLOCK_UNITS as u64),
            live_bytes: live_units,
            ..StoreStats::default()
        }
    }
}
