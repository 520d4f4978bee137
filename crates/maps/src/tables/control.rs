//! Control: the tables of one map that all of its processes share, in the file of a rendezvous.
//!
//! ```text
//!   header | participants | pins | shards | slots: what was read from each pipe
//!     | of a log: `log/tables`
//! ```
//!
//! A page of the file belongs to a chunk of 16, a chunk by its hash to a shard. A shard has a lock,
//! an entry for each of its pages that is in RAM, and a journal of the eviction under way. The
//! number of pages in RAM decides how large all of it is; nothing here grows with the file.
//!
//! Guarantees: every word is an atomic, for a process may die between any two stores.
//! Never: decides anything; knows who may change what (`member`).
//! Threads: any, of any process.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};

use deepheap_store::format::map_log::FRAME_BYTES;
use deepheap_sys::PAGE;
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::page_pipe::PIPE_PAGES;
use deepheap_sys::threads::rendezvous::Rendezvous;

pub(crate) use crate::log::tables::ENTRIES;
use crate::log::tables::{LogShard, LogWords};

/// The first word of the file.
pub(crate) const MAGIC: u64 = 0x3150_414D_4850_4544; // "DEPHMAP1"
/// Changes with the layout.
pub(crate) const VERSION: u32 = 4;
/// Processes that can have a map at a time.
pub const PARTICIPANTS_MAX: usize = 128;
/// Pages of a chunk: neighbours that one shard has.
pub(crate) const CHUNK_PAGES: u32 = 16;
/// Pipes of a map: evictions at a time, of all processes.
pub(crate) const PIPES: usize = 8;
/// Entries of a shard that are in use if all shards have as many.
const ENTRIES_USUAL: u64 = ENTRIES as u64 / 2;
/// Twice as many shards as this power of two are never made.
const SHARDS_LOG2_MAX: u32 = 26;
/// Pages that left a shard last.
pub(crate) const GHOSTS: usize = 64;
/// Pages of one eviction.
pub(crate) const BATCH: usize = PIPE_PAGES;
/// Pins at a time, of all processes.
pub(crate) const PINS_MAX: usize = 1024;
/// Bytes of a path that are told, its end.
pub(crate) const PATH_BYTES: usize = 1024;
/// The least budget: a few shards and their tables.
pub const BUDGET_MIN: u64 = 2 << 20;

/// The words that there are once.
#[repr(C, align(4096))]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub shards: AtomicU32,
    /// Not 0: it has a log.
    pub has_log: AtomicU32,
    /// Bytes of the file when it was mapped last.
    pub file_bytes: AtomicU64,
    /// The RAM, a sparse file.
    pub memory_device: AtomicU64,
    pub memory_inode: AtomicU64,
    pub pipe_device: AtomicU64,
    pub pipe_inodes: [AtomicU64; PIPES],
    /// The seed of hashes of pages and chunks.
    pub seed: AtomicU64,
    /// Bytes of RAM that all of it may take, and how many pages that are.
    pub budget_bytes: AtomicU64,
    pub budget_pages: AtomicU64,
    /// Not 0: some process has mapped it to write, so pages may be changed.
    pub was_writable: AtomicU32,
    /// Processes that have begun to write so far.
    pub writers_began: AtomicU32,
    /// The errno of a sync that failed: nobody knows what is durable any more.
    pub sync_error: AtomicU32,
    /// Pages in RAM or about to be; the memory's own count corrects it after a death.
    pub resident: AtomicU64,
    /// The shard that is evicted from next.
    pub hand: AtomicU32,
    /// The shard that uses a pipe, plus one.
    pub pipe_users: [AtomicU32; PIPES],
    /// How many slots of pins were ever used.
    pub pins_used: AtomicU32,
    pub counts: Counts,
    pub log: LogWords,
    /// The end of the path under which it was mapped first; zeros after it.
    pub path: [AtomicU8; PATH_BYTES],
}

/// Counts of all processes.
#[repr(C)]
pub(crate) struct Counts {
    pub faults: AtomicU64,
    pub pages_read: AtomicU64,
    pub evicted_clean: AtomicU64,
    pub evicted_changed: AtomicU64,
    pub pages_written: AtomicU64,
    pub direct_evictions: AtomicU64,
    pub write_errors: AtomicU64,
    pub repairs: AtomicU64,
}

/// A process that has the map. The lock of its byte in the file tells whether it lives.
#[repr(C, align(64))]
pub(crate) struct Participant {
    /// Grows with each use of the place, so that the locks of the dead are not those of the next.
    pub epoch: AtomicU32,
    pub pid: AtomicU32,
    pub memory: AtomicI32,
    pub pipes: [AtomicI32; PIPES],
    /// Not 0: it can write to the file.
    pub can_write: AtomicU32,
    /// Not 0: it has mapped the file to write.
    pub is_writer: AtomicU32,
}

/// Pages that stay in RAM; see `pins`.
#[repr(C)]
pub(crate) struct PinSlot {
    /// The mark of the participant; 0: free.
    pub owner: AtomicU32,
    /// The first page in the upper half, how many in the lower.
    pub pages: AtomicU64,
    /// The thread that it ends with at the latest, as its process names it; 0: none.
    pub thread: AtomicU64,
}

/// What an eviction of a shard is doing, for the process that ends it if its own dies.
///
/// ```text
///   IDLE -> SPLICING [take_out]   pages go into the pipe; all of them are still in RAM
///   SPLICING -> TAKEN [take_out]  all are in the pipe; they leave RAM, the pipe is read
///   TAKEN -> IDLE [settle]        changed pages are in the file, or in RAM again
/// ```
pub(crate) mod journal {
    /// No eviction.
    pub(crate) const IDLE: u32 = 0;
    /// The pipe holds some of the pages, and none has left RAM.
    pub(crate) const SPLICING: u32 = 1;
    /// Pipe and slot hold all of the pages, and those that are holes now are nowhere else.
    pub(crate) const TAKEN: u32 = 2;
}

/// Some chunks' pages. Only the owner of the lock uses the rest.
#[repr(C, align(64))]
pub(crate) struct Shard {
    /// See `member`.
    pub lock: AtomicU32,
    pub journal: AtomicU32,
    /// The pages of the journal, in the order of the pipe.
    pub batch: AtomicU32,
    pub batch_pages: [AtomicU32; BATCH],
    pub pipe: AtomicU32,
    /// Where the next entry is looked for: to free, and to use.
    pub oldest: AtomicU32,
    pub newest: AtomicU32,
    pub used: AtomicU32,
    pub ghost: AtomicU32,
    /// The page of each entry plus one; 0: free.
    pub pages: [AtomicU32; ENTRIES],
    /// The hash of what the file has.
    pub hashes: [[AtomicU64; 2]; ENTRIES],
    /// Not 0: it came back soon after it had left, and stays once more.
    pub chances: [AtomicU8; ENTRIES],
    pub ghosts: [AtomicU32; GHOSTS],
}

const PARTICIPANTS_AT: usize = size_of::<Header>();
const PINS_AT: usize = PARTICIPANTS_AT + PARTICIPANTS_MAX * size_of::<Participant>();
const SHARDS_AT: usize = PINS_AT + PINS_MAX * size_of::<PinSlot>();
/// Bytes of what was read from one pipe.
pub(crate) const SLOT_BYTES: usize = BATCH * PAGE;
const _: () = assert!(size_of::<Header>() == PAGE && SHARDS_AT.is_multiple_of(PAGE));

/// Where the writes of a map go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// To the page's place.
    InPlace,
    /// To a log.
    Log,
}

impl Writes {
    fn of(header: &Header) -> Writes {
        if header.has_log.load(Relaxed) != 0 { Writes::Log } else { Writes::InPlace }
    }
}

/// How a budget is spent: pages, and shards for them.
pub(crate) fn plan(budget_bytes: u64, writes: Writes) -> (u64, u32) {
    let pages_with = |shards: u32| {
        let left = budget_bytes.saturating_sub(bytes_of(shards, writes) as u64);
        (left / PAGE as u64).min(u64::from(shards) * ENTRIES_USUAL)
    };
    let plans = (0..SHARDS_LOG2_MAX).map(|log2| (pages_with(1 << log2), 1 << log2));
    // Of plans with as many pages, the one with fewer shards.
    plans.rev().max_by_key(|(pages, _)| *pages).unwrap_or((0, 1))
}

/// Bytes of the tables.
pub(crate) fn bytes_of(shards: u32, writes: Writes) -> usize {
    let of_log = match writes {
        Writes::InPlace => 0,
        Writes::Log => FRAME_BYTES + shards as usize * size_of::<LogShard>(),
    };
    log_at(shards) + of_log
}

/// Bytes of tables that say of themselves how many they are.
pub(crate) fn bytes_told(header: &Header) -> usize {
    bytes_of(header.shards.load(Relaxed), Writes::of(header))
}

fn log_at(shards: u32) -> usize {
    slots_at(shards) + PIPES * SLOT_BYTES
}

fn slots_at(shards: u32) -> usize {
    (SHARDS_AT + shards as usize * size_of::<Shard>()).next_multiple_of(PAGE)
}

/// The tables, mapped.
pub(crate) struct Control {
    base: *mut u8,
    bytes: usize,
    shards: u32,
}

// SAFETY: it lends atomics, and slots by pointer.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    /// The tables at `base`.
    ///
    /// # Safety
    /// `bytes` bytes of a mapping of its file are there, as many as it tells at least; they belong
    /// to this value.
    pub(crate) unsafe fn new(base: *mut u8, bytes: usize, shards: u32) -> Control {
        Control { base, bytes, shards }
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: `new`; atomics, of which every value is one.
        unsafe { &*self.base.cast::<Header>() }
    }

    pub(crate) fn participants(&self) -> &[Participant; PARTICIPANTS_MAX] {
        // SAFETY: as above; it lies behind the header.
        unsafe { &*self.base.add(PARTICIPANTS_AT).cast() }
    }

    /// The other processes that have the map. `rendezvous` is its file, or the one by which this
    /// process has entered.
    pub(crate) fn living(&self, rendezvous: &Rendezvous) -> impl Iterator<Item = &Participant> {
        let places = self.participants().iter().enumerate();
        // One that is just coming or leaving has no number.
        let living = places.filter(|(place, participant)| {
            participant.pid.load(Acquire) != 0 && rendezvous.is_locked(*place)
        });
        living.map(|(_, participant)| participant)
    }

    pub(crate) fn pins(&self) -> &[PinSlot; PINS_MAX] {
        // SAFETY: as above; they lie behind the participants.
        unsafe { &*self.base.add(PINS_AT).cast() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn shards(&self) -> u32 {
        self.shards
    }

    pub(crate) fn shard(&self, index: u32) -> &Shard {
        assert!(index < self.shards, "a shard of the map");
        // SAFETY: as above, and the index is within.
        unsafe { &*self.base.add(SHARDS_AT).cast::<Shard>().add(index as usize) }
    }

    /// The slot that a pipe is read into: `SLOT_BYTES`, which the user of the pipe has alone.
    pub(crate) fn slot(&self, pipe: usize) -> *mut u8 {
        assert!(pipe < PIPES, "a pipe of the map");
        self.base.wrapping_add(slots_at(self.shards) + pipe * SLOT_BYTES)
    }

    fn has_log(&self) -> bool {
        Writes::of(self.header()) == Writes::Log
    }

    /// The words that a map with a log has once.
    pub(crate) fn log_words(&self) -> Option<&LogWords> {
        self.has_log().then_some(&self.header().log)
    }

    /// The further words of a shard of a map with a log.
    pub(crate) fn log_shard(&self, index: u32) -> Option<&LogShard> {
        assert!(index < self.shards, "a shard of the map");
        let at = log_at(self.shards) + FRAME_BYTES;
        // SAFETY: as in `shard`: with a log, they lie behind the frame.
        self.has_log()
            .then(|| unsafe { &*self.base.add(at).cast::<LogShard>().add(index as usize) })
    }

    /// The frame that is being filled, `FRAME_BYTES`; of a map with a log.
    pub(crate) fn log_frame(&self) -> *mut u8 {
        assert!(self.has_log(), "a map with a log");
        self.base.wrapping_add(log_at(self.shards))
    }

    /// The shard of a page.
    pub(crate) fn shard_of(&self, page: u32) -> u32 {
        let chunk = u64::from(page / CHUNK_PAGES);
        let mixed = (chunk ^ self.header().seed.load(Relaxed)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // The upper bits are the mixed ones.
        ((mixed >> 32) & u64::from(self.shards - 1)) as u32
    }

    /// The path under which it was mapped.
    pub(crate) fn path(&self) -> Vec<u8> {
        let bytes = self.header().path.iter().map(|byte| byte.load(Relaxed));
        bytes.take_while(|&byte| byte != 0).collect()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: `new`; nobody lends anything of it any more.
        let _ = unsafe { mapping::unmap(self.base, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_holds_its_pages_and_their_tables() {
        for budget in [BUDGET_MIN, 8 << 20, 100 << 20, 256 << 20, 3 << 30, 1 << 40] {
            for writes in [Writes::InPlace, Writes::Log] {
                let (pages, shards) = plan(budget, writes);
                let taken = pages * PAGE as u64 + bytes_of(shards, writes) as u64;
                assert!(taken <= budget, "{budget}: {pages} pages, {shards} shards");
                assert!(taken > budget / 2, "{budget}: {taken}");
                assert!(pages <= u64::from(shards) * ENTRIES as u64);
            }
        }
    }
}
