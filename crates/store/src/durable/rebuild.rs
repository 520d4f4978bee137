//! Rebuild: the store's tables of a salvaged heap, and where copies of objects are, made anew from
//! the log. Each segment says what it is, and each of its blocks which object it holds.
//!
//! What the tables still tell comes first: a filling counts if it is the one that they name. Where
//! they tell nothing, the last filling of a segment counts that is in the file. Of a segment
//! without a right directory nothing is known but what is in the tables.
//!
//! Guarantees: blocks of the segments that count keep their numbers and places. Nothing is written.
//! Never: takes more memory than the tables of the store, a directory and a segment.
//! Threads: one.

use std::collections::BTreeSet;

use deepheap_sys::aligned_buffer::AlignedBuffer;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::block::{BLOCK_UNITS, Block, Segment};
use crate::cipher::{Cipher, TAG_BYTES, Tag};
use crate::device::Device;
use crate::durable::error::DurableError;
use crate::durable::salvage::Salvage;
use crate::format::BLOCK_BYTES;
use crate::format::directory::{self, Filling, Told};
use crate::format::geometry::Geometry;
use crate::format::packed::{self, Content, PACKED_NAME};
use crate::format::saved::{
    CHECKSUMS, CHECKSUMS_PER_PAGE, RECORDS_PER_PAGE, SCALARS, SEGMENTS, SHARERS, SHARERS_PER_PAGE,
    Scalars, SegmentRecord, TAGS, TAGS_PER_PAGE,
};
use crate::seal;
use crate::sharers::share;

/// Takes a page of a table: table, page, and its 4096 bytes.
pub type Visit<'a> = dyn FnMut(u32, u32, &[u8]) -> Result<(), DurableError> + 'a;

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
    device: Box<dyn Device>,
    /// By number, up to the frontier. What lives in them is not counted here.
    segments: Vec<SegmentRecord>,
    /// Those with a right directory.
    has_directory: Vec<bool>,
    /// Pages in each block of compressed pages.
    sharers: Vec<u8>,
    /// What blocks are encrypted with, and their tags, as far as the tables tell.
    cipher: Option<Cipher>,
    tags: Vec<Tag>,
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
        let shape = salvage.file.shape();
        let geometry = Geometry::new(shape.segment_bytes, shape.capacity_bytes)?;
        let scalars = scalars(salvage)?;
        let (known, tables_end) = known_segments(salvage, &geometry)?;
        let mut this = Self {
            salvage,
            geometry,
            device: salvage.file.log_device(),
            segments: Vec::new(),
            has_directory: Vec::new(),
            sharers: Vec::new(),
            cipher: salvage.file.identity().key.as_ref().map(Cipher::new),
            tags: Vec::new(),
            sequence: scalars.map_or(0, |scalars| scalars.sequence.get()),
            appended: scalars.map_or(0, |scalars| scalars.appended.get()),
        };
        let frontier = scalars.map_or(geometry.segments, |it| it.frontier.get());
        let found = this.find_fillings(frontier.min(geometry.segments), &known)?;
        let used = |record: &SegmentRecord| record.sequence.get() > 0 || record.place.get() > 0;
        let is_known = |at: &usize| known.get(*at).is_some_and(|it| it.as_ref().is_some_and(used));
        let last = (0..found.len()).rfind(|at| found[*at].is_some() || is_known(at));
        let end = last.map_or(0, |last| last as u32 + 1).max(tables_end);
        let frontier = scalars.map_or(end, |scalars| scalars.frontier.get().max(end));
        this.settle(frontier.min(geometry.segments), &known, &found);
        this.load_sharers()?;
        if this.cipher.is_some() {
            this.load_tags()?;
        }
        Ok(this)
    }

    /// The directories in the file that may count, by the numbers of their segments.
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
                        && record.count.get() as u32 == filling.count
                }
                None => found[at].is_none_or(|(_, other)| other.sequence < filling.sequence),
            };
            if counts {
                found[at] = Some((place, filling));
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
                    count: U16::new(filling.count as u16),
                    ..NO_RECORD
                },
                (None, None) => {
                    homeless.insert(number);
                    NO_RECORD
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

    /// The sharers that the tables still tell.
    fn load_sharers(&mut self) -> Result<(), DurableError> {
        let mut sharers = vec![0; self.segments.len() * self.geometry.blocks() as usize];
        self.salvage.load_table(SHARERS, &mut |page, bytes| {
            let first = (page as usize * BLOCK_BYTES).min(sharers.len());
            let of_page = &mut sharers[first..];
            let count = of_page.len().min(bytes.len());
            of_page[..count].copy_from_slice(&bytes[..count]);
            Ok(())
        })?;
        self.sharers = sharers;
        Ok(())
    }

    fn load_tags(&mut self) -> Result<(), DurableError> {
        let mut tags = vec![[0; TAG_BYTES]; self.sharers.len()];
        self.salvage.load_table(TAGS, &mut |page, bytes| {
            let first = page as usize * TAGS_PER_PAGE as usize;
            let of_page = tags.iter_mut().skip(first);
            of_page.zip(bytes.as_chunks::<TAG_BYTES>().0).for_each(|(tag, bytes)| *tag = *bytes);
            Ok(())
        })?;
        self.tags = tags;
        Ok(())
    }

    /// Reads from the start of a place; false if that cannot be.
    fn read(&self, place: Segment, bytes: &mut [u8]) -> bool {
        let offset = place.0 as u64 * self.geometry.segment_bytes() as u64;
        (0..2).any(|_| self.device.read_at(offset, bytes).is_ok())
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
            let segment = Segment(at as u32);
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
            return visit(ObjectCopy { name: told.name as u32, block, order });
        }
        if let Some(cipher) = &self.cipher {
            let record = self.segments[self.segment_of(block)];
            let piece = seal::piece(record.sequence.get(), block, PACKED_NAME);
            if !cipher.open(piece, bytes, &self.tags[block.0 as usize]) {
                return;
            }
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
                self.sharers[block.0 as usize] = pages;
            }
        }
    }

    /// What the object of so many bytes costs in this block, units; none if there is no such block.
    pub fn cost_in(&self, block: Block, bytes: usize) -> Option<u32> {
        match *self.sharers.get(block.0 as usize)? {
            0 if bytes > packed::PACKED_MAX => Some(BLOCK_UNITS),
            0 => Some(packed::cost(bytes)),
            pages => Some(share(pages as usize)),
        }
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
            (*least..=*most).contains(&(record.live.get() as u64))
        };
        is_known && counts.all(agrees)
    }

    /// Hands on the pages of the store's tables: table, page, and its 4096 bytes. `live` units live
    /// in each segment.
    ///
    /// Errors: those of `visit`; `Io`.
    pub fn save(&self, live: &[u64], visit: &mut Visit<'_>) -> Result<(), DurableError> {
        let frontier = self.segments.len() as u32;
        let scalars = Scalars {
            sequence: U64::new(self.sequence),
            live_units: U64::new(live.iter().sum()),
            frontier: U32::new(frontier),
            segments: U32::new(self.geometry.segments),
            segment_blocks: U32::new(self.geometry.blocks()),
            reserved: [0; 4],
            appended: U64::new(self.appended),
        };
        let mut page = [0; BLOCK_BYTES];
        page[..size_of::<Scalars>()].copy_from_slice(scalars.as_bytes());
        visit(SCALARS, 0, &page)?;
        let per_page = RECORDS_PER_PAGE as usize;
        for (number, records) in (0..).zip(self.segments.chunks(per_page)) {
            let mut page = [0; BLOCK_BYTES];
            let bytes = page.chunks_exact_mut(size_of::<SegmentRecord>());
            let live = live.iter().skip(number as usize * per_page);
            for ((record, live), out) in records.iter().zip(live).zip(bytes) {
                out.copy_from_slice(self.with_live(*record, *live).as_bytes());
            }
            visit(SEGMENTS, number, &page)?;
        }
        let blocks = frontier * self.geometry.blocks();
        for number in self.salvage.lost_pages(CHECKSUMS) {
            visit(CHECKSUMS, number, &self.checksums_page(number, blocks)?)?;
        }
        for number in self.salvage.lost_pages(SHARERS) {
            let mut page = [0; BLOCK_BYTES];
            let first = (number * SHARERS_PER_PAGE).min(blocks) as usize;
            let count = (blocks as usize - first).min(BLOCK_BYTES);
            page[..count].copy_from_slice(&self.sharers[first..first + count]);
            visit(SHARERS, number, &page)?;
        }
        Ok(())
    }

    /// The record with so much alive. Of a filling that nothing is known of, but in which something
    /// lives, each block may be there.
    fn with_live(&self, record: SegmentRecord, live: u64) -> SegmentRecord {
        let live = live.min(2 * self.geometry.data_units() as u64) as u32;
        if live == 0 {
            let is_lost = record.kind == SegmentRecord::LOST;
            let kind = if is_lost { SegmentRecord::LOST } else { SegmentRecord::FREE };
            return SegmentRecord { live: U32::ZERO, kind, ..record };
        }
        let count = match record.count.get() {
            0 => self.geometry.data_blocks() as u16,
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

    /// A page of checksums, from the directories.
    fn checksums_page(&self, page: u32, blocks: u32) -> Result<[u8; BLOCK_BYTES], DurableError> {
        let mut out = [0; BLOCK_BYTES];
        let mut buffer = AlignedBuffer::new(self.geometry.directory_bytes(), 0)?;
        let mut loaded = None;
        let first = page * CHECKSUMS_PER_PAGE;
        for (number, out) in (first..blocks).zip(out.chunks_exact_mut(4)) {
            let segment = self.geometry.segment_of(Block(number));
            if !self.has_directory[segment.index()] {
                continue;
            }
            if loaded != Some(segment) {
                if !self.read(self.place(segment), buffer.as_mut_slice()) {
                    continue;
                }
                loaded = Some(segment);
            }
            let index = number % self.geometry.blocks();
            let Some(index) = index.checked_sub(self.geometry.directory_blocks) else { continue };
            if index < self.count(segment)
                && let Some(told) = directory::entry(buffer.as_mut_slice(), index as usize)
            {
                out.copy_from_slice(&told.checksum.to_le_bytes());
            }
        }
        Ok(out)
    }

    fn count(&self, segment: Segment) -> u32 {
        self.segments[segment.index()].count.get() as u32
    }

    fn place(&self, segment: Segment) -> Segment {
        Segment(self.segments[segment.index()].place.get() ^ segment.0)
    }
}

/// Nothing was ever in it.
const NO_RECORD: SegmentRecord = SegmentRecord {
    live: U32::ZERO,
    place: U32::ZERO,
    sequence: U64::ZERO,
    count: U16::ZERO,
    kind: SegmentRecord::FREE,
    reserved: [0; 13],
};

/// The scalars, if they are there and can be those of this log.
fn scalars(salvage: &Salvage) -> Result<Option<Scalars>, DurableError> {
    let mut found = None;
    salvage.load_table(SCALARS, &mut |_, page| {
        found = Scalars::read_from_prefix(page).ok().map(|(scalars, _)| scalars);
        Ok(())
    })?;
    Ok(found)
}

/// The records of segments that are there, by number; and how many segments at least the other
/// tables tell of.
fn known_segments(
    salvage: &Salvage,
    geometry: &Geometry,
) -> Result<(Vec<Option<SegmentRecord>>, u32), DurableError> {
    let mut known: Vec<Option<SegmentRecord>> = Vec::new();
    let lost = salvage.lost_pages(SEGMENTS);
    salvage.load_table(SEGMENTS, &mut |page, bytes| {
        known.resize(page as usize * RECORDS_PER_PAGE as usize, Some(NO_RECORD));
        let records = bytes.chunks_exact(size_of::<SegmentRecord>());
        known.extend(records.map(|record| SegmentRecord::read_from_bytes(record).ok()));
        Ok(())
    })?;
    known.resize(geometry.segments as usize, Some(NO_RECORD));
    for page in lost {
        let first = page as usize * RECORDS_PER_PAGE as usize;
        let end = (first + RECORDS_PER_PAGE as usize).min(known.len());
        known[first.min(end)..end].fill(None);
    }
    let mut end = 0;
    for (table, per_page) in [(CHECKSUMS, CHECKSUMS_PER_PAGE), (SHARERS, SHARERS_PER_PAGE)] {
        salvage.load_table(table, &mut |page, _| {
            end = end.max((page * per_page) / geometry.blocks() + 1);
            Ok(())
        })?;
    }
    Ok((known, end))
}
