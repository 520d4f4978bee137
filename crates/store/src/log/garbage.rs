//! Garbage: collection empties victims, segments of which little lives, to win back the rest.
//!
//! A collector thread calls `wait_for_work`, then `victim`, then `load`. It appends each object
//! that still lives there through `writer(Head::Survivor)`, by itself or in a packed block; then it
//! calls `release`. The caller knows which objects live, and switches each from its old block to
//! the new.
//!
//! Guarantees: a victim's blocks stay readable until each object is retired; a segment is reused
//! only when all were. `load` verifies that the directory is the one of this filling, and every
//! block against its checksum in RAM.
//! Never: allocates; `victim` and `release` never do I/O.
//! Threads: any number of collectors, as long as the survivor reserve allows.

use core::time::Duration;

use crate::block::checksum::ContentHash;
use crate::block::{Block, Segment};
use crate::error::StoreError;
use crate::format::BLOCK_BYTES;
use crate::format::directory::{self, Filling};
use crate::format::packed::{self, Content, PACKED_NAME, PackedObjects};
use crate::log::blocks::Blocks;
use crate::log::read::BlockRead;
use crate::log::stats::Count;
use crate::log::store::Store;
use crate::log::writer::Writer;
use crate::space::Goal;

/// A segment to empty. If it is dropped, or released while blocks in it live, it is left alone
/// until one of them is retired or the log has moved on.
pub struct Victim<'a> {
    store: &'a Store,
    segment: Segment,
}

impl<'a> Victim<'a> {
    /// Reads the segment into the buffer, which must be as long as a segment and aligned to 4096.
    ///
    /// Errors: `Io`, or `Corrupt` if the directory is not the one that was written; both after a
    /// second attempt. Single blocks can then still be read, as ever.
    pub fn load<'b>(&self, buffer: &'b mut [u8]) -> Result<Objects<'a, 'b>, StoreError> {
        if buffer.len() < self.store.segment_bytes() {
            return Err(StoreError::Options("a victim needs a buffer as long as a segment"));
        }
        self.store.blocks.load_segment(self.segment, buffer)
    }
}

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        let freed = {
            let mut space = self.store.space.lock();
            space.end_collection(&self.store.blocks.segments, self.segment)
        };
        if freed {
            self.store.blocks.counters.add(Count::SegmentsCollected, 1);
        }
        // Also when nothing was freed: a thread may wait for the outcome.
        self.store.progress.notify();
        self.store.work.notify();
    }
}

/// The objects of a victim that was loaded, in the order in which they were appended. Every block
/// is held against its checksum first, and read once more by itself if it does not match.
pub struct Objects<'a, 'b> {
    blocks: &'a Blocks,
    filling: Filling,
    directory: &'b [u8],
    /// The blocks from `next` on.
    rest: &'b mut [u8],
    next: u32,
    /// The rest of a packed block, and the cost of a page in it if it is one of pages.
    packed: Option<(Block, Option<u32>, PackedObjects<'b>)>,
}

impl<'a, 'b> Objects<'a, 'b> {
    /// The next block, or (none) the next objects of it in `packed`.
    fn next_block(&mut self, index: u32) -> Option<VictimObject<'b>> {
        let block = self.blocks.geometry.block(self.filling.segment, index);
        let name = directory::entry(self.directory, index as usize)?.name;
        let (bytes, rest) = core::mem::take(&mut self.rest).split_at_mut_checked(BLOCK_BYTES)?;
        self.rest = rest;
        let mut result = self.blocks.table.verify(|| self.filling.sequence, block, name, bytes);
        if result.is_err() {
            let mut again = [BlockRead::new(block, name, bytes)];
            self.blocks.read(&mut again);
            result = again[0].result;
        }
        let data: &'b [u8] = bytes;
        let is_packed = name == PACKED_NAME;
        match result {
            Ok(_) if is_packed => {
                let share = self.blocks.table.share(block);
                let content = if share.is_some() { Content::Pages } else { Content::Objects };
                self.packed = Some((block, share, packed::objects(data, content)));
                None
            }
            Err(error) if is_packed || !matches!(error, StoreError::Corrupt(_)) => {
                Some(VictimObject::Unreadable { block, error })
            }
            _ => {
                let (hash, checksum) = (result.ok(), self.blocks.table.checksum(block));
                Some(VictimObject::Whole(WholeObject { block, name, hash, checksum, data }))
            }
        }
    }
}

impl<'b> Iterator for Objects<'_, 'b> {
    type Item = VictimObject<'b>;

    fn next(&mut self) -> Option<VictimObject<'b>> {
        loop {
            if let Some((block, share, objects)) = &mut self.packed {
                if let Some((name, data)) = objects.next() {
                    let (content, cost) = match *share {
                        Some(share) => (Content::Pages, share),
                        None => (Content::Objects, packed::cost(data.len())),
                    };
                    let block = *block;
                    let object = PackedObject { block, name, content, cost, data };
                    return Some(VictimObject::Packed(object));
                }
                self.packed = None;
            }
            if self.next == self.filling.count {
                return None;
            }
            let index = self.next;
            self.next += 1;
            if let Some(object) = self.next_block(index) {
                return Some(object);
            }
        }
    }
}

/// One object of a victim, live or dead: it lives there if the caller's table says so.
#[derive(Clone, Copy, Debug)]
pub enum VictimObject<'b> {
    /// An object with a block of its own.
    Whole(WholeObject<'b>),
    /// An object in a packed block, which is what was appended. It can be moved by itself.
    Packed(PackedObject<'b>),
    /// A block that the device refused twice, or a packed block that failed its checksum twice:
    /// which objects are in it is not to be known from its bytes. It stays where it is, reads of
    /// its objects go on failing, and its segment is shelved until they are retired.
    Unreadable {
        /// The block.
        block: Block,
        /// The error of the last attempt.
        error: StoreError,
    },
}

/// An object with a block of its own. Costs `BLOCK_UNITS`.
#[derive(Clone, Copy, Debug)]
pub struct WholeObject<'b> {
    /// Where it is.
    pub block: Block,
    /// Which object it was when it was appended.
    pub name: u64,
    /// The hash of the bytes; none if they are not those that were appended.
    pub hash: Option<ContentHash>,
    /// The checksum for reads of it.
    pub checksum: u32,
    /// Its bytes. Not to be served if there is no `hash`.
    pub data: &'b [u8],
}

impl WholeObject<'_> {
    /// Appends the object as it is: if it is damaged, with the checksum that it ought to have, so
    /// that reading it goes on failing. The writer has room.
    pub fn append_to(&self, writer: &mut Writer<'_>) -> Block {
        writer.append_as(self.name, self.data, self.checksum)
    }
}

/// An object in a packed block.
#[derive(Clone, Copy, Debug)]
pub struct PackedObject<'b> {
    /// Where it is.
    pub block: Block,
    /// Which object it was when it was appended.
    pub name: u32,
    /// Whether it is a compressed page.
    pub content: Content,
    /// The cost at which it is retired.
    pub cost: u32,
    /// Its bytes, as they are in the block.
    pub data: &'b [u8],
}

impl Blocks {
    /// As `Victim::load`, of any segment on the device.
    pub(crate) fn load_segment<'b>(
        &self,
        segment: Segment,
        buffer: &'b mut [u8],
    ) -> Result<Objects<'_, 'b>, StoreError> {
        let filling = self.filling(segment);
        let directory_bytes = self.geometry.directory_bytes();
        let bytes = directory_bytes + filling.count as usize * BLOCK_BYTES;
        let mut once = || {
            let device = self.devices.device(self.segments.device(segment));
            device.read_at(self.segment_offset(segment), &mut buffer[..bytes])?;
            self.counters.read_from_device(1, bytes);
            match directory::filling_of(&mut buffer[..directory_bytes]) {
                Some(found) if found == filling => Ok(()),
                _ => Err(StoreError::Corrupt(self.geometry.block(segment, 0))),
            }
        };
        once().or_else(|_| once())?;
        let (directory, rest) = buffer.split_at_mut(directory_bytes);
        Ok(Objects { blocks: self, filling, directory, rest, next: 0, packed: None })
    }
}

impl Store {
    /// The segment to empty next; none while there is no need to, nothing to win, or as many
    /// victims about as the survivors' reserve allows.
    pub fn victim(&self) -> Option<Victim<'_>> {
        let live_units = self.blocks.counters.live_units();
        let mut space = self.space.lock();
        let was_needed = space.collect_needed(live_units);
        let chosen = space.choose_victim(&self.blocks.segments, live_units);
        let is_exhausted = chosen.is_none() && was_needed && !space.collect_needed(live_units);
        drop(space);
        if is_exhausted {
            // Writers that wait in vain should learn of it.
            self.progress.notify();
        }
        chosen.map(|segment| Victim { store: self, segment })
    }

    /// Ends the collection of a segment; true if it is free again, false if blocks in it live.
    pub fn release(&self, victim: Victim<'_>) -> bool {
        self.blocks.segments.live(victim.segment) == 0
    }

    /// Whether a collector has something to do.
    pub fn collect_needed(&self) -> bool {
        self.space.lock().collect_needed(self.blocks.counters.live_units())
    }

    /// Parks the collector until collection is needed, until somebody calls it (`stop_waiting`,
    /// `call_collectors`), or until `limit` has passed. Whether collection is needed. `limit` is
    /// asked when no call can be missed any more.
    pub fn wait_for_work(&self, limit: impl FnOnce() -> Option<Duration>) -> bool {
        let ticket = self.work.ticket();
        if !self.is_stopping() && !self.collect_needed() {
            self.work.wait(ticket, limit());
        }
        self.collect_needed()
    }

    /// What collection is for, from now on.
    pub fn collect_for(&self, goal: Goal) {
        self.space.lock().set_goal(goal, self.blocks.counters.live_units());
        self.work.notify();
    }

    /// Whether there is nothing left to do for the goal, or nothing to win.
    pub fn has_reached_goal(&self) -> bool {
        self.space.lock().has_reached_goal(self.blocks.counters.live_units())
    }

    /// Makes `wait_for_work` return: there is something else to do.
    pub fn call_collectors(&self) {
        self.work.notify();
        if let Some(second) = &self.second {
            second.work.notify();
        }
    }
}
