//! Rebuild: the store's tables of a salvaged heap, and where copies of objects are, made anew from
//! the log. Each segment says what it is, and each of its blocks which object it holds.
//!
//! The tables come first, as far as they are left: a filling counts if it is the one that they
//! name. Where they tell nothing, the last filling of a segment counts that is in the file. Of a
//! segment without a right directory nothing is known but what is in the tables.
//!
//! Guarantees: blocks of the segments that count keep their numbers and places. Nothing is written.
//! Never: takes more memory than a store, a directory and a segment.
//! Threads: one.

use std::collections::BTreeSet;

use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::atomic::Ordering;
use zerocopy::little_endian::{U16, U32, U64};

use crate::block::{Block, Segment};
use crate::durable::error::DurableError;
use crate::durable::salvage::Salvage;
use crate::durable::saved::{SavedUpTo, VisitSaved};
use crate::format::BLOCK_BYTES;
use crate::format::directory::{self, Filling, Told};
use crate::format::geometry::Geometry;
use crate::format::packed::{self, Content, PACKED_NAME};
use crate::format::saved::{OF_BLOCKS, RECORDS_PER_PAGE, SCALARS, SEGMENTS, SegmentRecord};
use crate::log::options::BUFFERS_MIN;
use crate::log::store::Store;
use crate::space::segment::State;

/// A copy of an object in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectCopy {
    /// The object's name.
    pub name: u32,
    /// The block that it is in.
    pub block: Block,
    /// Of two copies of an object the one of the higher order is the later one.
    pub order: u64,
}

/// The log of a salvaged heap.
pub struct RebuiltLog<'a> {
    salvage: &'a Salvage,
    geometry: Geometry,
    /// Its tables of blocks, from the saved ones as far as they are left, and from directories.
    store: Store,
    /// By number, up to the frontier. Their live units are not counted here.
    segments: Vec<SegmentRecord>,
    /// Those with a right directory.
    has_directory: Vec<bool>,
    sequence: u64,
    appended: u64,
}

/// A directory, and where it is.
type FoundFilling = Option<(Segment, Filling)>;

impl<'a> RebuiltLog<'a> {
    /// Reads all directories.
    ///
    /// Errors: `Io`; `Inconsistent` for tables that cannot be.
    pub fn new(salvage: &'a Salvage) -> Result<Self, DurableError> {
        let options = salvage.file.store_options(BUFFERS_MIN, 2);
        let store = Store::open_empty(&salvage.file, options)?;
        let geometry = store.blocks.geometry;
        let are_there = salvage.lost_pages(SCALARS).is_empty();
        let scalars = if are_there { salvage.file.scalars()? } else { None };
        let known = known_segments(salvage, &geometry)?;
        let mut this = Self {
            salvage,
            geometry,
            store,
            segments: Vec::new(),
            has_directory: Vec::new(),
            sequence: scalars.map_or(0, |scalars| scalars.sequence.get()),
            appended: scalars.map_or(0, |scalars| scalars.appended.get()),
        };
        let frontier = scalars.map_or(geometry.segments, |it| it.frontier.get());
        let found = this.find_fillings(frontier.min(geometry.segments), &known)?;
        let tables_end = this.load_blocks()?;
        let used = |record: &SegmentRecord| record.sequence.get() > 0 || record.place.get() > 0;
        let is_known = |at: &usize| known.get(*at).is_some_and(|it| it.as_ref().is_some_and(used));
        let last = (0..found.len()).rfind(|at| found[*at].is_some() || is_known(at));
        let end = last.map_or(0, |last| last.to_u32() + 1).max(tables_end);
        let frontier = scalars.map_or(end, |scalars| scalars.frontier.get().max(end));
        this.settle(frontier.min(geometry.segments), &known, &found);
        Ok(this)
    }

    /// The directories in the file that may count, by the numbers of their segments. Notes the
    /// checksums of their blocks.
    fn find_fillings(
        &self,
        places: u32,
        known: &[Option<SegmentRecord>],
    ) -> Result<Vec<FoundFilling>, DurableError> {
        let mut found: Vec<FoundFilling> = vec![None; self.geometry.segments as usize];
        let mut buffer = AlignedBuffer::new(self.geometry.directory_bytes(), 0)?;
        for place in (0..places).map(Segment) {
            let bytes = buffer.as_mut_slice();
            if !self.read(place, bytes) {
                continue;
            }
            let Some(filling) = directory::filling_of(bytes) else { continue };
            let at = filling.segment.index();
            if filling.store != self.salvage.file.identity().id
                || filling.segment.0 >= self.geometry.segments
                || filling.count > self.geometry.data_blocks()
            {
                continue;
            }
            let counts = match known.get(at).copied().flatten() {
                Some(record) => {
                    record.sequence.get() == filling.sequence
                        && record.place.get() == place.0 ^ filling.segment.0
                        && u32::from(record.count.get()) == filling.count
                }
                None => found[at].is_none_or(|(_, other)| other.sequence < filling.sequence),
            };
            if counts {
                found[at] = Some((place, filling));
                for index in 0..self.geometry.data_blocks() {
                    let told = directory::entry(bytes, index as usize);
                    let block = self.geometry.block(filling.segment, index);
                    self.store
                        .blocks
                        .table
                        .set_checksum(block, told.map_or(0, |told| told.checksum));
                }
            }
        }
        Ok(found)
    }

    /// Decides what is known of each segment.
    fn settle(&mut self, frontier: u32, known: &[Option<SegmentRecord>], found: &[FoundFilling]) {
        let mut taken = BTreeSet::new();
        let mut homeless = BTreeSet::new();
        for number in 0..frontier {
            let at = number as usize;
            let record = match (known.get(at).copied().flatten(), found.get(at).copied().flatten())
            {
                (Some(record), _) => record,
                (None, Some((place, filling))) => SegmentRecord {
                    place: U32::new(place.0 ^ number),
                    sequence: U64::new(filling.sequence),
                    count: U16::new(filling.count.to_u16()),
                    ..SegmentRecord::NONE
                },
                (None, None) => {
                    homeless.insert(number);
                    SegmentRecord::NONE
                }
            };
            self.sequence = self.sequence.max(record.sequence.get());
            self.has_directory.push(found.get(at).copied().flatten().is_some());
            self.segments.push(record);
        }
        for number in (0..frontier).filter(|number| !homeless.contains(number)) {
            taken.insert(self.segments[number as usize].place.get() ^ number);
        }
        // Each place is one segment's: those of which nothing is known get what is left.
        let mut free = (0..frontier).filter(|place| !taken.contains(place));
        for number in homeless {
            let place = free.next().unwrap_or(number);
            self.segments[number as usize].place = U32::new(place ^ number);
        }
    }

    /// Takes what the tables still tell of blocks; returns of how many segments at least.
    fn load_blocks(&self) -> Result<u32, DurableError> {
        let mut end = 0;
        for (table, size) in self.store.blocks.table.saved_tables() {
            self.salvage.load_table(table, &mut |page, bytes| {
                let first = page * (BLOCK_BYTES / size).to_u32();
                end = end.max(first / self.geometry.blocks() + 1);
                self.store.blocks.table.load(
                    table,
                    first,
                    self.geometry.all_blocks().to_u32(),
                    bytes,
                );
                Ok(())
            })?;
        }
        Ok(end)
    }

    /// Reads from the start of a place; false if that cannot be.
    fn read(&self, place: Segment, bytes: &mut [u8]) -> bool {
        let offset = self.geometry.segment_offset(place);
        (0..2).any(|_| self.store.blocks.devices.device_now().read_at(offset, bytes).is_ok())
    }

    /// Segments that should have a directory and have none that is right.
    pub fn segments_without_directory(&self) -> u64 {
        let segments = self.segments.iter().zip(&self.has_directory);
        let without = |(record, has): &(&SegmentRecord, &bool)| record.holds_blocks() && !**has;
        segments.filter(without).count() as u64
    }

    /// Hands on every copy of every object, and notes the sharers of blocks on the way. Packed
    /// blocks are read, verified by their directory; of those that are not right nothing comes.
    ///
    /// Errors: `Io` if memory is lacking.
    pub fn copies(&mut self, visit: &mut dyn FnMut(ObjectCopy)) -> Result<(), DurableError> {
        let mut buffer = AlignedBuffer::new(self.geometry.segment_bytes(), 0)?;
        for at in 0..self.segments.len() {
            if !self.has_directory[at] {
                continue;
            }
            let segment = Segment(at.to_u32());
            let (count, place) = (self.count(segment), self.place(segment));
            let length = (self.geometry.directory_blocks + count) as usize * BLOCK_BYTES;
            let bytes = &mut buffer.as_mut_slice()[..length];
            if !self.read(place, bytes) {
                continue;
            }
            let (directory, data) = bytes.split_at_mut(self.geometry.directory_bytes());
            for (index, bytes) in (0..count).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
                let Some(told) = directory::entry(directory, index as usize) else { continue };
                self.appended = self.appended.max(told.order + 1);
                let block = self.geometry.block(segment, index);
                self.visit_block(block, told, bytes, visit);
            }
        }
        Ok(())
    }

    fn visit_block(
        &mut self,
        block: Block,
        told: Told,
        bytes: &mut [u8],
        visit: &mut dyn FnMut(ObjectCopy),
    ) {
        let order = told.order;
        if told.name != PACKED_NAME {
            return visit(ObjectCopy { name: told.name.to_u32(), block, order });
        }
        let filling = || self.segments[self.segment_of(block)].sequence.get();
        if !self.store.blocks.table.open(filling, block, PACKED_NAME, bytes) {
            return;
        }
        let hash = self.salvage.file.identity().secret.hash(bytes);
        if hash.checksum(PACKED_NAME) != told.checksum {
            return;
        }
        for content in [Content::Objects, Content::Pages] {
            let mut pages = 0;
            for (name, _) in packed::objects(bytes, content) {
                visit(ObjectCopy { name, block, order });
                pages += 1;
            }
            if content == Content::Pages && pages > 0 {
                self.store.blocks.table.set_sharers(block, pages);
            }
        }
    }

    /// The cost of an object of so many bytes in this block, units; none if there is no such block.
    pub fn cost_in(&self, block: Block, bytes: usize) -> Option<u32> {
        let is_there = self.segment_of(block) < self.segments.len();
        is_there.then(|| self.store.share_in(block).unwrap_or(packed::cost(bytes)))
    }

    /// The segment of a block.
    pub fn segment_of(&self, block: Block) -> usize {
        self.geometry.segment_of(block).index()
    }

    /// Segments that the tables tell of.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Whether the tables said of each segment that so many units live in it, at least and at most.
    pub fn agrees_with(&self, least: &[u64], most: &[u64]) -> bool {
        let is_known = self.salvage.lost_pages(SEGMENTS).is_empty();
        let mut counts = self.segments.iter().zip(least.iter().zip(most));
        let agrees = |(record, (least, most)): (&SegmentRecord, (&u64, &u64))| {
            (*least..=*most).contains(&u64::from(record.live.get()))
        };
        is_known && counts.all(agrees)
    }

    /// Hands on the pages of the store's tables: table, page, and its 4096 bytes. `live` units live
    /// in each segment.
    ///
    /// Errors: those of `visit`; `Io`.
    pub fn save(&self, live: &[u64], visit: &mut VisitSaved<'_>) -> Result<(), DurableError> {
        for (segment, (record, live)) in (0..).map(Segment).zip(self.segments.iter().zip(live)) {
            let record = self.with_live(*record, *live);
            let state = match record.kind {
                SegmentRecord::LOST => State::Lost,
                SegmentRecord::HOLDS_BLOCKS => State::Written,
                _ => State::Bare,
            };
            self.store.blocks.set_record(segment, &record, state);
        }
        let frontier = self.segments.len().to_u32();
        self.store.space.lock().reopen(&self.store.blocks.segments, frontier, self.sequence);
        self.store.appended.store(self.appended, Ordering::Relaxed);
        let lost = OF_BLOCKS.map(|(table, _)| (table, self.salvage.lost_pages(table)));
        self.store.save(SavedUpTo::default(), &mut |table, page, bytes| {
            // Pages of the tables of blocks that are left stay.
            let stays = lost.iter().any(|(of, lost)| *of == table && !lost.contains(&page));
            if stays { Ok(()) } else { visit(table, page, bytes) }
        })?;
        Ok(())
    }

    /// The record with so much alive. Of a filling that nothing is known of, but in which something
    /// lives, each block may be there.
    fn with_live(&self, record: SegmentRecord, live: u64) -> SegmentRecord {
        let live = live.min(2 * u64::from(self.geometry.data_units())).to_u32();
        if live == 0 {
            let is_lost = record.kind == SegmentRecord::LOST;
            let kind = if is_lost { SegmentRecord::LOST } else { SegmentRecord::FREE };
            return SegmentRecord { live: U32::ZERO, kind, ..record };
        }
        let count = match record.count.get() {
            0 => self.geometry.data_blocks().to_u16(),
            count => count,
        };
        SegmentRecord {
            live: U32::new(live),
            kind: SegmentRecord::HOLDS_BLOCKS,
            sequence: U64::new(record.sequence.get().max(1)),
            count: U16::new(count),
            ..record
        }
    }

    fn count(&self, segment: Segment) -> u32 {
        self.segments[segment.index()].count.get().into()
    }

    fn place(&self, segment: Segment) -> Segment {
        Segment(self.segments[segment.index()].place.get() ^ segment.0)
    }
}

/// The records of segments that are there, by number.
fn known_segments(
    salvage: &Salvage,
    geometry: &Geometry,
) -> Result<Vec<Option<SegmentRecord>>, DurableError> {
    let mut known: Vec<Option<SegmentRecord>> = Vec::new();
    let lost = salvage.lost_pages(SEGMENTS);
    salvage.load_table(SEGMENTS, &mut |page, bytes| {
        known.resize(page as usize * RECORDS_PER_PAGE as usize, Some(SegmentRecord::NONE));
        known.extend(SegmentRecord::all_of(bytes).iter().copied().map(Some));
        Ok(())
    })?;
    known.resize(geometry.segments as usize, Some(SegmentRecord::NONE));
    for page in lost {
        let first = page as usize * RECORDS_PER_PAGE as usize;
        let end = (first + RECORDS_PER_PAGE as usize).min(known.len());
        known[first.min(end)..end].fill(None);
    }
    Ok(known)
}
