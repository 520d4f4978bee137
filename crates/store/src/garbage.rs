//! Garbage: victims, the segments whose live blocks are moved so that the rest is won back.
//!
//! A collector thread: `wait_for_work`, then `victim`, `load`, for each object that still lives
//! there a `writer(Head::Survivor)` and `append`, then `release`. Which objects live, and the
//! switch from the old block to the new one, are the caller's.
//!
//! Guarantees: a victim's blocks stay readable until each is retired; a segment is reused only
//! when all were; objects come from a directory that is verified to be of this very filling.
//! Never: allocates; `victim` and `release` never do I/O.
//! Threads: any number of collectors, as long as the survivor reserve allows.

use core::time::Duration;

use crate::block::{BLOCK_BYTES, Block, Segment};
use crate::checksum::ContentHash;
use crate::device::Read;
use crate::error::StoreError;
use crate::format::{self, Filling};
use crate::store::Store;

/// A segment to empty. If it is dropped, or released while blocks in it live, it is left alone
/// until one of them is retired or the log has moved on.
pub struct Victim<'a> {
    store: &'a Store,
    segment: Segment,
}

impl<'a> Victim<'a> {
    /// Blocks that live in it now.
    pub fn live(&self) -> u32 {
        self.store.segments.live(self.segment)
    }

    /// Reads the segment into the buffer, which must be as long as a segment and aligned to 4096.
    ///
    /// Errors: `Io`, or `Corrupt` if the directory is not the one that was written; both after a
    /// second attempt. Single blocks can then still be read, as ever.
    pub fn load<'b>(&self, buffer: &'b mut [u8]) -> Result<Objects<'a, 'b>, StoreError> {
        let geometry = self.store.geometry;
        if buffer.len() < geometry.segment_bytes() {
            return Err(StoreError::Options("a victim needs a buffer as long as a segment"));
        }
        let filling = Filling {
            segment: self.segment,
            sequence: self.store.segments.sequence(self.segment),
            store: self.store.id,
            count: self.store.segments.count(self.segment),
        };
        self.load_once(buffer, filling).or_else(|_| self.load_once(buffer, filling))?;
        let (directory, data) = buffer.split_at(geometry.directory_bytes());
        Ok(Objects { store: self.store, filling, directory, data, next: 0 })
    }

    fn load_once(&self, buffer: &mut [u8], filling: Filling) -> Result<(), StoreError> {
        let geometry = self.store.geometry;
        let blocks = geometry.directory_blocks + filling.count;
        let offset = geometry.segment_offset(self.segment);
        let mut reads = [Read::new(offset, &mut buffer[..blocks as usize * BLOCK_BYTES])];
        self.store.device(self.store.segments.device(self.segment)).read(&mut reads);
        reads[0].result?;
        self.store.counters.loaded(blocks as usize * BLOCK_BYTES);
        if format::verify(&mut buffer[..geometry.directory_bytes()], filling) {
            Ok(())
        } else {
            Err(StoreError::Corrupt(geometry.block(self.segment, 0)))
        }
    }
}

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        let freed = {
            let mut space = self.store.space.lock();
            space.end_collection(&self.store.segments, self.segment)
        };
        if freed {
            self.store.counters.segment_collected();
        }
        // Also when nothing was freed: somebody may wait for the outcome.
        self.store.progress.notify();
        self.store.work.notify();
    }
}

/// The objects of a victim that was loaded, in the order in which they were appended.
pub struct Objects<'a, 'b> {
    store: &'a Store,
    filling: Filling,
    directory: &'b [u8],
    data: &'b [u8],
    next: u32,
}

impl<'a, 'b> Iterator for Objects<'a, 'b> {
    type Item = VictimObject<'a, 'b>;

    fn next(&mut self) -> Option<VictimObject<'a, 'b>> {
        if self.next == self.filling.count {
            return None;
        }
        let index = self.next;
        self.next += 1;
        let (name, _) = format::entry(self.directory, index as usize)?;
        let at = index as usize * BLOCK_BYTES;
        Some(VictimObject {
            store: self.store,
            block: self.store.geometry.block(self.filling.segment, index),
            name,
            data: self.data.get(at..at + BLOCK_BYTES)?,
        })
    }
}

/// One object of a victim, live or dead: its block lives if the caller's table says so.
#[derive(Clone, Copy)]
pub struct VictimObject<'a, 'b> {
    store: &'a Store,
    /// Where it is.
    pub block: Block,
    /// Which object it was when it was appended.
    pub name: u64,
    /// Its bytes, not verified yet: `verify` before use.
    pub data: &'b [u8],
}

impl VictimObject<'_, '_> {
    /// The hash of the bytes, if they are the ones that were appended.
    pub fn verify(&self) -> Result<ContentHash, StoreError> {
        self.store.verify_block(self.block, self.name, self.data)
    }

    /// What reads of the object are held against.
    pub fn checksum(&self) -> u32 {
        self.store.checksums.get(self.block)
    }
}

impl Store {
    /// The segment to empty next; none while there is no need to, nothing to win, or as many
    /// victims about as the survivors' reserve allows.
    pub fn victim(&self) -> Option<Victim<'_>> {
        let live_blocks = self.counters.live_blocks();
        let chosen = {
            let mut space = self.space.lock();
            let needed = space.collect_needed(live_blocks);
            let chosen = space.choose_victim(&self.segments, self.options.policy, live_blocks);
            chosen.ok_or(needed && !space.collect_needed(live_blocks))
        };
        match chosen {
            Ok(segment) => Some(Victim { store: self, segment }),
            Err(became_exhausted) => {
                if became_exhausted {
                    // Writers that wait in vain should learn of it.
                    self.progress.notify();
                }
                None
            }
        }
    }

    /// Ends the collection of a segment; true if it is free again, false if blocks in it live.
    pub fn release(&self, victim: Victim<'_>) -> bool {
        let collected = victim.live() == 0;
        drop(victim);
        collected
    }

    /// Whether a collector has something to do.
    pub fn collect_needed(&self) -> bool {
        self.space.lock().collect_needed(self.counters.live_blocks())
    }

    /// Parks the collector until collection is needed, until somebody calls it (`stop_waiting`,
    /// `call_collector`), or until `limit` has passed. Whether collection is needed.
    pub fn wait_for_work(&self, limit: Option<Duration>) -> bool {
        let ticket = self.work.ticket();
        if !self.is_stopping() && !self.collect_needed() {
            self.work.wait(ticket, limit);
        }
        self.collect_needed()
    }

    /// Makes `wait_for_work` return: there is something else to do.
    pub fn call_collector(&self) {
        self.work.notify();
    }
}
