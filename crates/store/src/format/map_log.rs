//! Map log: the bytes of the file of a map that writes out of place: superblocks, frames, records.
//!
//! A record holds the pieces of one page that were changed; a frame holds records, and is what is
//! written at once; a frame that commits makes what is before it count.
//!
//! Guarantees: a superblock, frame or record that is read is one that was written, whole, for this
//! place of this file in this epoch. Magic, the places of version and checksum are those of the
//! superblocks of durable heaps. Reading any bytes neither panics nor leaves them.
//! Never: allocates, blocks, does I/O.
//! Threads: plain functions over bytes.

use core::mem::offset_of;
use core::ops::Range;

use deepheap_sys::narrow::Narrow;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BLOCK_BYTES;
use super::superblock::{CHECKSUM_AT, Unreadable, read_whole, with_checksum};

/// First bytes of every superblock: "dheapmap".
pub const MAGIC: u64 = u64::from_le_bytes(*b"dheapmap");
/// First bytes of every frame: "dhframe1".
const FRAME_MAGIC: u64 = u64::from_le_bytes(*b"dhframe1");
/// The version of the format that this code reads and writes.
pub const VERSION: u32 = 1;
/// Where the two superblocks lie, bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Where the log begins, bytes. The pages lie behind it.
pub const LOG_START: u64 = 1 << 20;
/// Bytes of a frame at most; the log is a whole number of them.
pub const FRAME_BYTES: usize = 128 << 10;
/// Bytes that a frame begins with; its records follow.
pub const FRAME_HEADER: usize = 64;
/// Bytes of a piece: what is compared and logged as one.
pub const PIECE_BYTES: usize = 256;
/// Pieces of a page.
pub const PIECES: usize = BLOCK_BYTES / PIECE_BYTES;
/// Bytes that a record begins with; its pieces follow. Records begin at multiples of it.
pub const RECORD_HEADER: usize = 16;
/// Bytes of the longest record.
pub const RECORD_MAX: usize = RECORD_HEADER + BLOCK_BYTES;
/// Bytes of a log at least.
const LOG_BYTES_MIN: u64 = 64 << 20;
/// Set in the flags of a frame that commits.
const COMMITS: u32 = 1;

const _: () = assert!(PIECES == 16 && RECORD_MAX + FRAME_HEADER <= FRAME_BYTES);

/// The shape of a file, fixed when it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapShape {
    /// Random for each file.
    pub id: u64,
    /// Bytes that are mapped.
    pub data_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
}

impl MapShape {
    /// That of a new file: its log has room for all of its pages, and more.
    pub fn new(id: u64, data_bytes: u64) -> MapShape {
        let bytes = data_bytes.saturating_add(data_bytes / 64).saturating_add(LOG_BYTES_MIN);
        MapShape { id, data_bytes, log_bytes: bytes.next_multiple_of(FRAME_BYTES as u64) }
    }

    /// Where the pages begin, bytes.
    pub fn base_start(&self) -> u64 {
        LOG_START + self.log_bytes
    }

    /// Pages.
    pub fn pages(&self) -> u64 {
        self.data_bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.base_start() + self.pages() * BLOCK_BYTES as u64
    }

    /// Where a page is.
    pub fn place_of_page(&self, page: u32) -> u64 {
        self.base_start() + u64::from(page) * BLOCK_BYTES as u64
    }

    /// Where a position of the log is.
    pub fn place_of(&self, position: u64) -> u64 {
        LOG_START + position % self.log_bytes
    }

    /// Where a frame begins that comes after this position: none of them goes past the log's end.
    pub fn frame_after(&self, position: u64) -> u64 {
        let position = position.next_multiple_of(BLOCK_BYTES as u64);
        let left = self.log_bytes - position % self.log_bytes;
        if left < FRAME_BYTES as u64 { position + left } else { position }
    }

    /// Whether a frame at this position fits into a log whose oldest one is at `start`.
    pub fn has_room(&self, position: u64, start: u64) -> bool {
        position + FRAME_BYTES as u64 - start <= self.log_bytes
    }

    fn is_possible(&self) -> bool {
        let frames = self.log_bytes / FRAME_BYTES as u64;
        let has_frames = frames >= 2 && self.log_bytes.is_multiple_of(FRAME_BYTES as u64);
        has_frames && self.data_bytes > 0 && self.log_bytes < 1 << 60 && self.data_bytes < 1 << 60
    }
}

/// The content of a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapSuperblock {
    /// The shape of the file.
    pub shape: MapShape,
    /// Counted from 1: of two superblocks the later one counts.
    pub sequence: u64,
    /// When it was written, seconds since 1970.
    pub time: u64,
    /// Frames of other epochs are not of this log.
    pub epoch: u64,
    /// The position of the oldest frame.
    pub start: u64,
    /// Whether the log is empty, and nothing was to be written after it.
    pub is_clean: bool,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuperblockBytes {
    magic: U64,
    version: U32,
    flags: U32,
    id: U64,
    sequence: U64,
    time: U64,
    data_bytes: U64,
    log_bytes: U64,
    base_start: U64,
    epoch: U64,
    start: U64,
    rest: [u8; 4008],
    /// xxh3_64 of everything before it.
    checksum: U64,
}

/// Set in the flags of a superblock whose log is empty.
const CLEAN: u32 = 1;

const _: () = assert!(size_of::<SuperblockBytes>() == BLOCK_BYTES);
const _: () = assert!(offset_of!(SuperblockBytes, checksum) == CHECKSUM_AT);

impl MapSuperblock {
    /// Where it lies, bytes: every other one at the same place.
    pub fn place(&self) -> u64 {
        SUPERBLOCK_OFFSETS[self.sequence.to_usize() % SUPERBLOCK_OFFSETS.len()]
    }

    /// The bytes of the superblock.
    pub fn write(&self) -> [u8; BLOCK_BYTES] {
        let bytes = SuperblockBytes {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            flags: U32::new(if self.is_clean { CLEAN } else { 0 }),
            id: U64::new(self.shape.id),
            sequence: U64::new(self.sequence),
            time: U64::new(self.time),
            data_bytes: U64::new(self.shape.data_bytes),
            log_bytes: U64::new(self.shape.log_bytes),
            base_start: U64::new(self.shape.base_start()),
            epoch: U64::new(self.epoch),
            start: U64::new(self.start),
            rest: [0; 4008],
            checksum: U64::ZERO,
        };
        with_checksum(&bytes)
    }

    /// The superblock that these 4096 bytes are.
    pub(crate) fn read(page: &[u8]) -> Result<Self, Unreadable> {
        let bytes: SuperblockBytes = read_whole(page, MAGIC, VERSION..=VERSION)?;
        let shape = MapShape {
            id: bytes.id.get(),
            data_bytes: bytes.data_bytes.get(),
            log_bytes: bytes.log_bytes.get(),
        };
        let start = bytes.start.get();
        let is_possible = shape.is_possible()
            && bytes.base_start.get() == shape.base_start()
            && bytes.sequence.get() > 0
            && start < 1 << 62
            && shape.frame_after(start) == start;
        if !is_possible {
            return Err(Unreadable::Damaged);
        }
        Ok(Self {
            shape,
            sequence: bytes.sequence.get(),
            time: bytes.time.get(),
            epoch: bytes.epoch.get(),
            start,
            is_clean: bytes.flags.get() & CLEAN != 0,
        })
    }
}

/// Which log bytes are of: no frame or record of another one is taken for its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogKey {
    /// Of the file.
    pub id: u64,
    /// Of its log.
    pub epoch: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FrameHeader {
    magic: U64,
    position: U64,
    epoch: U64,
    /// Of header and records.
    bytes: U32,
    flags: U32,
    /// Which pages are committed.
    first_page: U32,
    end_page: U32,
    acknowledged: U64,
    reserved: U64,
    /// Of header and records, with this field zero.
    checksum: U64,
}

const _: () = assert!(size_of::<FrameHeader>() == FRAME_HEADER);
const FRAME_CHECKSUM: Range<usize> = 56..64;

/// The header of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameNote {
    /// Where it begins in the log.
    pub position: u64,
    /// Bytes of header and records.
    pub bytes: usize,
    /// The pages that it commits.
    pub commits: Option<Range<u32>>,
    /// Every frame before this position was durable when this one was written.
    pub acknowledged: u64,
}

impl FrameNote {
    /// Makes a frame of the records in `frame`, behind room for its header.
    ///
    /// # Panics
    /// If there are fewer bytes than the note says.
    pub fn seal(&self, key: LogKey, frame: &mut [u8]) {
        let pages = self.commits.clone().unwrap_or(0..0);
        let header = FrameHeader {
            magic: U64::new(FRAME_MAGIC),
            position: U64::new(self.position),
            epoch: U64::new(key.epoch),
            bytes: U32::new(self.bytes.to_u32()),
            flags: U32::new(if self.commits.is_some() { COMMITS } else { 0 }),
            first_page: U32::new(pages.start),
            end_page: U32::new(pages.end),
            acknowledged: U64::new(self.acknowledged),
            reserved: U64::ZERO,
            checksum: U64::ZERO,
        };
        frame[..FRAME_HEADER].copy_from_slice(header.as_bytes());
        let sum = xxh3_64_with_seed(&frame[..self.bytes], key.id);
        frame[FRAME_CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    }

    /// The note of the frame that these bytes begin with, if one was written at this position.
    pub fn read(key: LogKey, position: u64, bytes: &mut [u8]) -> Option<FrameNote> {
        let (header, _) = FrameHeader::read_from_prefix(bytes).ok()?;
        let length = header.bytes.get() as usize;
        let is_ours = header.magic.get() == FRAME_MAGIC
            && header.position.get() == position
            && header.epoch.get() == key.epoch
            && (FRAME_HEADER..=FRAME_BYTES.min(bytes.len())).contains(&length);
        if !is_ours {
            return None;
        }
        bytes[FRAME_CHECKSUM].fill(0);
        let sum = xxh3_64_with_seed(&bytes[..length], key.id);
        bytes[FRAME_CHECKSUM].copy_from_slice(header.checksum.as_bytes());
        let pages = header.first_page.get()..header.end_page.get();
        let is_commit = header.flags.get() & COMMITS != 0;
        (sum == header.checksum.get()).then_some(FrameNote {
            position,
            bytes: length,
            commits: is_commit.then_some(pages),
            acknowledged: header.acknowledged.get(),
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHeader {
    /// Of the fields below, and of the position.
    checksum: U64,
    page: U32,
    /// Bit i: piece i of the page follows.
    pieces: U16,
    reserved: U16,
}

const _: () = assert!(size_of::<RecordHeader>() == RECORD_HEADER);

/// A record: pieces of a page, with their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The page.
    pub page: u32,
    /// Bit i: piece i is there.
    pub pieces: u16,
    /// The bytes of the pieces, one behind the other.
    pub(crate) content: &'a [u8],
}

/// Bytes of a record of these pieces.
pub fn record_bytes(pieces: u16) -> usize {
    RECORD_HEADER + pieces.count_ones() as usize * PIECE_BYTES
}

fn pieces_of(pieces: u16) -> impl Iterator<Item = Range<usize>> {
    let present = (0..PIECES).filter(move |piece| pieces & 1 << piece != 0);
    present.map(|piece| piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES)
}

fn record_sum(key: LogKey, position: u64, bytes: &[u8]) -> u64 {
    let place = (position ^ key.epoch.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    xxh3_64_with_seed(bytes, key.id ^ place)
}

impl<'a> Record<'a> {
    /// Writes the record of these pieces of a page; answers its length.
    ///
    /// # Panics
    /// If `into` is shorter than `record_bytes(pieces)`, or the content than a page.
    pub fn write(
        into: &mut [u8],
        key: LogKey,
        position: u64,
        (page, pieces): (u32, u16),
        content: &[u8],
    ) -> usize {
        let bytes = record_bytes(pieces);
        let mut at = RECORD_HEADER;
        for piece in pieces_of(pieces) {
            into[at..at + PIECE_BYTES].copy_from_slice(&content[piece]);
            at += PIECE_BYTES;
        }
        let (page, pieces) = (U32::new(page), U16::new(pieces));
        let mut header = RecordHeader { checksum: U64::ZERO, page, pieces, reserved: U16::ZERO };
        into[..RECORD_HEADER].copy_from_slice(header.as_bytes());
        header.checksum = U64::new(record_sum(key, position, &into[8..bytes]));
        into[..RECORD_HEADER].copy_from_slice(header.as_bytes());
        bytes
    }

    /// The record that these bytes begin with, if one was written at this position.
    pub fn read(key: LogKey, position: u64, bytes: &'a [u8]) -> Option<Record<'a>> {
        let (header, _) = RecordHeader::read_from_prefix(bytes).ok()?;
        let pieces = header.pieces.get();
        let whole = bytes.get(..record_bytes(pieces))?;
        let is_right = header.checksum.get() == record_sum(key, position, &whole[8..]);
        let content = &whole[RECORD_HEADER..];
        is_right.then_some(Record { page: header.page.get(), pieces, content })
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        record_bytes(self.pieces)
    }

    /// Puts its pieces into the page.
    ///
    /// # Panics
    /// If `page` is shorter than one.
    pub fn apply(&self, page: &mut [u8]) {
        for (piece, content) in pieces_of(self.pieces).zip(self.content.chunks(PIECE_BYTES)) {
            page[piece].copy_from_slice(content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    const KEY: LogKey = LogKey { id: 7, epoch: 3 };

    fn superblock() -> MapSuperblock {
        let shape = MapShape::new(0x11, 10_000_000);
        let start = 3 * FRAME_BYTES as u64;
        MapSuperblock { shape, sequence: 4, time: 5, epoch: 6, start, is_clean: true }
    }

    #[test]
    fn any_flipped_bit_of_a_superblock_is_noticed() {
        let right = superblock().write();
        assert_eq!(MapSuperblock::read(&right), Ok(superblock()));
        for bit in 0..BLOCK_BYTES * 8 {
            let mut bytes = right;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(MapSuperblock::read(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_bytes_of_a_superblock_are_where_the_document_draws_them() {
        let bytes = superblock().write();
        let number =
            |at: usize| bytes[at..at + 8].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        assert_eq!(&bytes[..8], b"dheapmap");
        let shape = superblock().shape;
        let numbers: Vec<u64> = (8..80).step_by(8).map(number).collect();
        let flags = u64::from(CLEAN) << 32 | u64::from(VERSION);
        let (data, log, base) = (10_000_000, shape.log_bytes, shape.base_start());
        assert_eq!(numbers, [flags, 0x11, 4, 5, data, log, base, 6, 3 * FRAME_BYTES as u64]);
        assert!(bytes[80..4088].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn other_versions_are_told_from_damage_and_from_durable_heaps() {
        let mut bytes = superblock().write();
        bytes[8] = 9;
        let sum = xxh3_64(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(MapSuperblock::read(&bytes), Err(Unreadable::OtherVersion(9)));
        bytes[..8].copy_from_slice(b"dheapsup");
        assert_eq!(MapSuperblock::read(&bytes), Err(Unreadable::Foreign));
    }

    #[test]
    fn a_record_gives_back_its_pieces_and_no_other_place_takes_it() {
        let content: Vec<u8> = (0..BLOCK_BYTES).map(|at| (at / 7) as u8).collect();
        for pieces in [1, 1 << 15, 0x0180, u16::MAX] {
            let mut bytes = [0; RECORD_MAX];
            let length = Record::write(&mut bytes, KEY, 4160, (9, pieces), &content);
            let record = Record::read(KEY, 4160, &bytes[..length]).expect("a record");
            assert_eq!((record.page, record.pieces, record.bytes()), (9, pieces, length));
            let mut page = [0xff; BLOCK_BYTES];
            record.apply(&mut page);
            for piece in 0..PIECES {
                let range = piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES;
                let is_new = page[range.clone()] == content[range];
                assert_eq!(is_new, pieces & 1 << piece != 0, "{piece}");
            }
            assert_eq!(Record::read(KEY, 4176, &bytes), None, "another place");
            assert_eq!(Record::read(LogKey { epoch: 4, ..KEY }, 4160, &bytes), None, "epoch");
            assert_eq!(Record::read(KEY, 4160, &bytes[..length - 1]), None, "cut");
            for bit in [0, 70, 100, length * 8 - 1] {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::read(KEY, 4160, &bytes[..length]), None, "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn a_frame_is_known_at_its_place_in_its_epoch_and_whole() {
        let mut frame = vec![5; 1000];
        let note =
            FrameNote { position: 8192, bytes: 900, commits: Some(3..70), acknowledged: 4096 };
        note.seal(KEY, &mut frame);
        assert_eq!(FrameNote::read(KEY, 8192, &mut frame), Some(note));
        assert_eq!(FrameNote::read(KEY, 4096, &mut frame), None);
        assert_eq!(FrameNote::read(LogKey { epoch: 4, ..KEY }, 8192, &mut frame), None);
        assert_eq!(FrameNote::read(KEY, 8192, &mut frame[..899]), None);
        frame[899] ^= 1;
        assert_eq!(FrameNote::read(KEY, 8192, &mut frame), None);
    }

    #[test]
    fn no_frame_goes_past_the_end_of_the_log() {
        let shape = MapShape::new(1, 1);
        let frame = FRAME_BYTES as u64;
        let mut position = 0;
        for step in 0..10_000 {
            assert_eq!(shape.frame_after(position), position);
            assert!(position % shape.log_bytes + frame <= shape.log_bytes);
            position = shape.frame_after(position + 64 + step * 997 % (frame - 64));
        }
        assert!(position > shape.log_bytes, "it went round");
    }
}
