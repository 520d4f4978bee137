//! Map log: the file of a map that writes out of place: made, opened, recovered, looked at.
//!
//! The pages of such a file are the *base*. Later changes are in the log, in frames, one behind the
//! other; a frame may commit what is before it. To recover, every committed record is
//! put into the base, in the order of the log; that may be done any number of times.
//!
//! Guarantees: after `recover` the base is what the last commit made it, and the log is empty. A
//! crash at any point of it, power included, does no harm. A frame that was durable and is not
//! whole any more is an error, unless no frame was written after its commit was acknowledged.
//! Never: writes into the base what was not committed; repeats a sync that failed.
//! Threads: one; nobody else writes to the file meanwhile.

use core::fmt;
use core::ops::Range;

use deepheap_sys::errno::Errno;
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use deepheap_sys::narrow::Narrow;

use crate::device::{Device, Read, Write, write_superblock};
use crate::format::BLOCK_BYTES;
use crate::format::map_log::{
    FRAME_BYTES, FRAME_HEADER, FrameNote, LogKey, MapShape, MapSuperblock, Record,
    SUPERBLOCK_OFFSETS, VERSION,
};
use crate::format::superblock::Unreadable;

/// Bytes of the log that are read at once.
const READER_BYTES: usize = 1 << 20;
/// Bytes of records that are sorted by their pages at a time.
const SORTED_BYTES: usize = 32 << 20;
/// Pages that are read or written at once.
const BATCH_PAGES: usize = 64;

/// Why the file of a map cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapLogError {
    /// The device failed.
    Io(Errno),
    /// It is something else.
    Foreign,
    /// It begins like one, and neither of its superblocks is whole.
    Damaged,
    /// Another version of deepheap wrote it, in this version of the format.
    OtherVersion(u32),
    /// The records of a commit are not whole any more.
    CommitLost {
        /// Where in the log.
        position: u64,
    },
}

impl From<Errno> for MapLogError {
    fn from(errno: Errno) -> Self {
        MapLogError::Io(errno)
    }
}

impl fmt::Display for MapLogError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(errno) => write!(out, "the device failed: {errno}"),
            Self::Foreign => out.write_str("it is no map with a log"),
            Self::Damaged => out.write_str("both superblocks are damaged"),
            Self::OtherVersion(version) => write!(
                out,
                "it has version {version} of the format; this deepheap reads and writes {VERSION}"
            ),
            Self::CommitLost { position } => write!(
                out,
                "a commit is damaged, at byte {position} of the log: what it and later ones had \
                 made durable is not to be had; bring the file back from a copy"
            ),
        }
    }
}

impl core::error::Error for MapLogError {}

/// A function that takes frames: the note of each, and its bytes.
type VisitFrame<'a> = dyn FnMut(&FrameNote, &[u8]) -> Result<(), MapLogError> + 'a;

/// A file of a map, as its superblocks tell it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapLog {
    /// The superblock that counts.
    pub superblock: MapSuperblock,
    /// A superblock that is not whole.
    pub damaged: Option<usize>,
}

/// What the log holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// Frames, one behind the other.
    pub frames: u64,
    /// Those that commit.
    pub commits: u64,
    /// Records that are committed.
    pub committed_records: u64,
    /// Records that are not, and will be dropped.
    pub uncommitted_records: u64,
    /// Bytes of the log from its oldest frame to its last.
    pub bytes: u64,
}

/// The pages that are committed, by where in the log.
struct Commits {
    /// Everything before this position is.
    all_before: u64,
    /// Positions, and the pages of which everything before is; in the order of the log.
    parts: Vec<(u64, Range<u32>)>,
}

impl Commits {
    fn covers(&self, position: u64, page: u32) -> bool {
        position < self.all_before
            || self.parts.iter().any(|(end, pages)| position < *end && pages.contains(&page))
    }

    /// Where the last one ends.
    fn end(&self) -> u64 {
        self.parts.last().map_or(self.all_before, |(end, _)| *end)
    }
}

impl MapLog {
    /// Makes an empty map: zeros. Whatever the device holds is lost.
    ///
    /// Errors: those of the device; then there is no map.
    pub fn create(device: &dyn Device, shape: MapShape, time: u64) -> Result<MapLog, MapLogError> {
        let superblock =
            MapSuperblock { shape, sequence: 1, time, epoch: 1, start: 0, is_clean: true };
        let mut log = MapLog { superblock, damaged: None };
        write_superblock(device, superblock.place(), &superblock.write())?;
        log.write_next(device, superblock)?;
        device.sync()?;
        Ok(log)
    }

    /// Opens it, and writes nothing.
    ///
    /// Errors: all but `CommitLost`.
    pub fn open(device: &dyn Device) -> Result<MapLog, MapLogError> {
        use Unreadable::{Damaged, Foreign, OtherVersion};
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES, 0)?;
        let mut read = |place: usize| {
            let page = buffer.as_mut_slice();
            match device.read_at(SUPERBLOCK_OFFSETS[place], page) {
                // The file ends before it.
                Err(Errno::ENODATA) => Ok(Err(Foreign)),
                Err(errno) => Err(MapLogError::Io(errno)),
                Ok(()) => Ok(MapSuperblock::read(page)),
            }
        };
        let (a, b) = (read(0)?, read(1)?);
        let is_damaged = |found: &Result<_, Unreadable>| matches!(found, Err(Foreign | Damaged));
        let damaged = [is_damaged(&a), is_damaged(&b)].iter().position(|damaged| *damaged);
        let superblock = match (a, b) {
            (Err(OtherVersion(version)), _) | (_, Err(OtherVersion(version))) => {
                return Err(MapLogError::OtherVersion(version));
            }
            (Ok(a), Ok(b)) if a.shape != b.shape => return Err(MapLogError::Damaged),
            (Ok(a), Ok(b)) if b.sequence > a.sequence => b,
            (Ok(a), _) => a,
            (_, Ok(b)) => b,
            (Err(Foreign), Err(Foreign)) => return Err(MapLogError::Foreign),
            _ => return Err(MapLogError::Damaged),
        };
        Ok(MapLog { superblock, damaged })
    }

    /// Which log frames and records must be of.
    pub fn key(&self) -> LogKey {
        LogKey { id: self.superblock.shape.id, epoch: self.superblock.epoch }
    }

    /// Writes a superblock that follows on the one that counts, in the other place. The caller
    /// syncs: before, what it relies on; after, before anything relies on it.
    ///
    /// Errors: those of the device; the one before counts then, or this one.
    pub fn write_next(
        &mut self,
        device: &dyn Device,
        next: MapSuperblock,
    ) -> Result<(), MapLogError> {
        let next = MapSuperblock { sequence: self.superblock.sequence + 1, ..next };
        write_superblock(device, next.place(), &next.write())?;
        self.superblock = next;
        Ok(())
    }

    /// What the log holds.
    ///
    /// Errors: `Io`, `CommitLost`.
    pub fn survey(&self, device: &dyn Device) -> Result<Survey, MapLogError> {
        let (commits, mut survey) = self.find_commits(device)?;
        self.records(device, survey.bytes + self.superblock.start, &mut |position, record| {
            match commits.covers(position, record.page) {
                true => survey.committed_records += 1,
                false => survey.uncommitted_records += 1,
            }
            Ok(())
        })?;
        Ok(survey)
    }

    /// Puts what is committed into the base, and begins a new, empty log.
    ///
    /// Errors: `Io`, and it can be begun anew; `CommitLost`, and nothing was written.
    pub fn recover(&mut self, device: &dyn Device, time: u64) -> Result<Survey, MapLogError> {
        let (commits, mut survey) = self.find_commits(device)?;
        // A process that was killed before its sync may have left frames, or a superblock, in
        // caches alone. The base must not have what the log could still lose.
        device.sync()?;
        let mut sorter = Sorter::new(device, self.superblock.shape)?;
        self.records(device, commits.end(), &mut |position, record| {
            if commits.covers(position, record.page) {
                survey.committed_records += 1;
                return sorter.add(&record);
            }
            Ok(())
        })?;
        sorter.flush()?;
        if survey.committed_records > 0 {
            device.sync()?;
        }
        // Also where nothing was committed: no frame behind a lost one may follow on a new one.
        let epoch = self.superblock.epoch + 1;
        let next = MapSuperblock { epoch, start: 0, time, is_clean: false, ..self.superblock };
        self.write_next(device, next)?;
        device.sync()?;
        Ok(survey)
    }

    fn find_commits(&self, device: &dyn Device) -> Result<(Commits, Survey), MapLogError> {
        let shape = self.superblock.shape;
        let pages = shape.pages();
        let mut commits = Commits { all_before: self.superblock.start, parts: Vec::new() };
        let mut survey = Survey::default();
        let end = self.frames(device, None, &mut |note, _| {
            survey.frames += 1;
            let Some(committed) = &note.commits else { return Ok(()) };
            survey.commits += 1;
            let end = note.position + note.bytes as u64;
            if committed.start == 0 && u64::from(committed.end) >= pages {
                commits.all_before = end;
                commits.parts.clear();
            } else {
                commits.parts.push((end, committed.clone()));
            }
            Ok(())
        })?;
        survey.bytes = end - self.superblock.start;
        Ok((commits, survey))
    }

    /// Every record of frames before `end`, in order, with its position.
    fn records(
        &self,
        device: &dyn Device,
        end: u64,
        visit: &mut dyn FnMut(u64, Record<'_>) -> Result<(), MapLogError>,
    ) -> Result<(), MapLogError> {
        let key = self.key();
        self.frames(device, Some(end), &mut |note, frame| {
            let mut at = FRAME_HEADER;
            while at < note.bytes {
                let position = note.position + at as u64;
                let record = Record::read(key, position, &frame[at..note.bytes]);
                let record = record.ok_or(MapLogError::CommitLost { position })?;
                at += record.bytes();
                visit(position, record)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Every frame, as far as they are whole and below `limit`; answers where that ends.
    fn frames(
        &self,
        device: &dyn Device,
        limit: Option<u64>,
        visit: &mut VisitFrame<'_>,
    ) -> Result<u64, MapLogError> {
        let (shape, key, start) = (self.superblock.shape, self.key(), self.superblock.start);
        let mut reader = LogReader::new(device, shape)?;
        let mut position = start;
        while limit.is_none_or(|limit| position < limit) && shape.has_room(position, start) {
            let bytes = reader.frame(position)?;
            let Some(note) = FrameNote::read(key, position, bytes) else {
                if limit.is_none() {
                    self.look_behind(&mut reader, position)?;
                }
                break;
            };
            visit(&note, bytes)?;
            position = shape.frame_after(position + note.bytes as u64);
        }
        Ok(position)
    }

    /// The frame at `position` is not whole. If one of those behind it says that it was durable,
    /// that is damage; else it was never more than begun.
    fn look_behind(&self, reader: &mut LogReader<'_>, position: u64) -> Result<(), MapLogError> {
        let (shape, key) = (self.superblock.shape, self.key());
        let end = self.superblock.start + shape.log_bytes;
        let mut next = shape.frame_after(position + BLOCK_BYTES as u64);
        // No frame is longer: there is none if none begins before this.
        let mut limit = position + 2 * FRAME_BYTES as u64;
        while next <= limit && next < end {
            let found = FrameNote::read(key, next, reader.frame(next)?);
            let Some(note) = found else {
                next = shape.frame_after(next + BLOCK_BYTES as u64);
                continue;
            };
            if note.acknowledged > position {
                return Err(MapLogError::CommitLost { position });
            }
            next = shape.frame_after(next + note.bytes as u64);
            limit = next + 2 * FRAME_BYTES as u64;
        }
        Ok(())
    }
}

/// A part of the log in memory.
struct LogReader<'a> {
    device: &'a dyn Device,
    shape: MapShape,
    buffer: AlignedBuffer,
    /// The positions that are in the buffer.
    held: Range<u64>,
}

impl<'a> LogReader<'a> {
    fn new(device: &'a dyn Device, shape: MapShape) -> Result<Self, Errno> {
        Ok(Self { device, shape, buffer: AlignedBuffer::new(READER_BYTES, 0)?, held: 0..0 })
    }

    /// The bytes of the frame that begins at a position, and what is behind it.
    fn frame(&mut self, position: u64) -> Result<&mut [u8], MapLogError> {
        let end = position + FRAME_BYTES as u64;
        if !self.held.contains(&position) || end > self.held.end {
            let left = self.shape.log_bytes - position % self.shape.log_bytes;
            let length = left.min(READER_BYTES as u64);
            let bytes = &mut self.buffer.as_mut_slice()[..length.to_usize()];
            self.held = 0..0;
            self.device.read_at(self.shape.place_of(position), bytes)?;
            self.held = position..position + length;
        }
        let at = (position - self.held.start).to_usize();
        Ok(&mut self.buffer.as_mut_slice()[at..at + FRAME_BYTES])
    }
}

/// Records on their way into the base, by their pages.
struct Sorter<'a> {
    device: &'a dyn Device,
    shape: MapShape,
    /// Page, and where its new content begins; in the order of the log.
    records: Vec<(u32, usize)>,
    /// Which pieces, and what they hold, of each record.
    contents: Vec<u8>,
    pages: AlignedBuffer,
}

impl<'a> Sorter<'a> {
    fn new(device: &'a dyn Device, shape: MapShape) -> Result<Self, Errno> {
        let pages = AlignedBuffer::new(BATCH_PAGES * BLOCK_BYTES, 0)?;
        Ok(Self { device, shape, records: Vec::new(), contents: Vec::new(), pages })
    }

    fn add(&mut self, record: &Record<'_>) -> Result<(), MapLogError> {
        if u64::from(record.page) >= self.shape.pages() {
            return Err(MapLogError::Damaged);
        }
        self.records.push((record.page, self.contents.len()));
        self.contents.extend_from_slice(&record.pieces.to_le_bytes());
        self.contents.extend_from_slice(record.content);
        if self.contents.len() >= SORTED_BYTES { self.flush() } else { Ok(()) }
    }

    /// Reads the pages of all records, changes them, and writes them.
    fn flush(&mut self) -> Result<(), MapLogError> {
        // Stable: the records of a page stay in the order of the log.
        self.records.sort_by_key(|(page, _)| *page);
        let by_page: Vec<_> = self.records.chunk_by(|(one, _), (next, _)| one == next).collect();
        for batch in by_page.chunks(BATCH_PAGES) {
            let place = |records: &[(u32, usize)]| self.shape.place_of_page(records[0].0);
            let pages = self.pages.as_mut_slice();
            let mut reads: Vec<Read<'_>> = pages
                .chunks_mut(BLOCK_BYTES)
                .zip(batch)
                .map(|(page, records)| Read::new(place(records), page))
                .collect();
            self.device.read(&mut reads);
            reads.iter().try_for_each(|read| read.result)?;
            for (page, records) in pages.chunks_mut(BLOCK_BYTES).zip(batch) {
                for &(number, start) in *records {
                    let content = &self.contents[start..];
                    let pieces = u16::from_le_bytes([content[0], content[1]]);
                    Record { page: number, pieces, content: &content[2..] }.apply(page);
                }
            }
            let mut writes: Vec<Write<'_>> = pages
                .chunks(BLOCK_BYTES)
                .zip(batch)
                .map(|(page, records)| Write::new(place(records), page))
                .collect();
            self.device.write(&mut writes);
            writes.iter().try_for_each(|write| write.result)?;
        }
        self.records.clear();
        self.contents.clear();
        Ok(())
    }
}
