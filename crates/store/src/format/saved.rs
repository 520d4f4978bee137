//! Saved tables: the store's own tables, as pages of a durable heap.
//!
//! | table | holds |
//! |---|---|
//! | `SCALARS` | one page: the numbers that there is one of |
//! | `SEGMENTS` | a record for each segment, 128 a page |
//! | `CHECKSUMS` | 4 bytes for each block, 1024 a page |
//! | `SHARERS` | 1 byte for each block, 4096 a page |
//! | `SNAPSHOTS` | 128 bytes for each checkpoint that has a name, 32 a page |
//!
//! Guarantees: a table full of zeros is that of an empty log.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

use deepheap_sys::narrow::Narrow;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BLOCK_BYTES;
use super::geometry::Geometry;
use super::index::Entry;
use super::superblock::TableShape;
use crate::block::cipher::TAG_BYTES;

/// The table of the numbers that there is one of.
pub const SCALARS: u32 = 1;
/// The table of the segments.
pub const SEGMENTS: u32 = 2;
/// The table of the checksums of all blocks.
pub const CHECKSUMS: u32 = 3;
/// The table of the pages that share each block.
pub const SHARERS: u32 = 4;

/// The table of the snapshots.
pub const SNAPSHOTS: u32 = 5;

/// The table of the tags of all blocks; only of an encrypted heap.
pub const TAGS: u32 = 6;

/// Snapshots that a heap can have.
pub(crate) const SNAPSHOTS_MAX: u32 = 64;
/// Bytes of the name of a snapshot at most.
pub(crate) const SNAPSHOT_NAME_BYTES: usize = 64;

/// Records in a page of the table of snapshots.
#[expect(clippy::cast_possible_truncation, reason = "a page has 4096 bytes")]
pub(crate) const SNAPSHOTS_PER_PAGE: u32 = (BLOCK_BYTES / size_of::<SnapshotRecord>()) as u32;
/// Records in a page of the table of segments.
#[expect(clippy::cast_possible_truncation, reason = "a page has 4096 bytes")]
pub(crate) const RECORDS_PER_PAGE: u32 = (BLOCK_BYTES / size_of::<SegmentRecord>()) as u32;
/// The tables that tell something of each block, and in how many bytes.
pub(crate) const OF_BLOCKS: [(u32, usize); 3] = [(CHECKSUMS, 4), (SHARERS, 1), (TAGS, TAG_BYTES)];

/// The numbers of which there is one: the start of the page of `SCALARS`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Scalars {
    /// The number of the last filling.
    pub(crate) sequence: U64,
    /// Units that live in all segments together.
    pub(crate) live_units: U64,
    /// Segments that were ever touched; the tables tell of those.
    pub(crate) frontier: U32,
    /// Segments of the log.
    pub(crate) segments: U32,
    /// Blocks of a segment, its directory included.
    pub(crate) segment_blocks: U32,
    pub(crate) reserved: [u8; 4],
    /// Blocks that were ever appended.
    pub(crate) appended: U64,
}

/// The record of a segment.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SegmentRecord {
    /// Units that live in it.
    pub(crate) live: U32,
    /// Where it lies: the number of the segment whose place it has, xor its own.
    pub(crate) place: U32,
    /// The number of its filling; 0 if it never had one.
    pub(crate) sequence: U64,
    /// Data blocks in it.
    pub(crate) count: U16,
    /// What it is: `FREE`, `HOLDS_BLOCKS` or `LOST`.
    pub(crate) kind: u8,
    pub(crate) reserved: [u8; 13],
}

impl SegmentRecord {
    /// Nothing lives in it.
    pub(crate) const FREE: u8 = 0;
    /// Something lives in it.
    pub(crate) const HOLDS_BLOCKS: u8 = 1;
    /// It has a place that the device refused, and is never used again.
    pub(crate) const LOST: u8 = 2;

    /// Nothing was ever in it.
    pub(crate) const NONE: Self = Self {
        live: U32::ZERO,
        place: U32::ZERO,
        sequence: U64::ZERO,
        count: U16::ZERO,
        kind: Self::FREE,
        reserved: [0; 13],
    };

    /// The records of a page.
    pub(crate) fn all_of(page: &[u8]) -> &[Self] {
        <[Self]>::ref_from_bytes(page).unwrap_or_default()
    }

    /// Whether something lives in it.
    pub(crate) fn holds_blocks(&self) -> bool {
        self.kind == Self::HOLDS_BLOCKS
    }

    /// Whether both tell of the same blocks, at one place.
    pub(crate) fn is_same_filling(&self, other: &Self) -> bool {
        let what = |record: &Self| (record.sequence, record.place, record.count);
        what(self) == what(other)
    }
}

/// A checkpoint that has a name: a snapshot.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SnapshotRecord {
    /// UTF-8, with zeros behind it; all zeros: there is none.
    pub(crate) name: [u8; SNAPSHOT_NAME_BYTES],
    /// The checkpoint.
    pub(crate) checkpoint: U64,
    /// When it was made, seconds since 1970.
    pub(crate) time: U64,
    /// The entry of the topmost page of its tables.
    pub(crate) root: Entry,
    /// Which area holds its tables.
    pub(crate) area: U32,
    pub(crate) reserved: [u8; 12],
}

const _: () = assert!(size_of::<SnapshotRecord>() == 128);
const _: () = assert!(size_of::<Scalars>() == 40);
const _: () = assert!(size_of::<SegmentRecord>() == 32);

/// The store's tables, for a log of this shape.
pub(crate) fn table_shapes(geometry: &Geometry) -> [TableShape; 5] {
    let [checksums, sharers, _] = OF_BLOCKS.map(|table| shape_of_blocks(geometry, table));
    [
        TableShape { id: SCALARS, pages: 1 },
        TableShape { id: SEGMENTS, pages: geometry.segments.div_ceil(RECORDS_PER_PAGE) },
        checksums,
        sharers,
        TableShape { id: SNAPSHOTS, pages: SNAPSHOTS_MAX / SNAPSHOTS_PER_PAGE },
    ]
}

/// The table that an encrypted store has beside.
pub(crate) fn tags_shape(geometry: &Geometry) -> TableShape {
    shape_of_blocks(geometry, (TAGS, TAG_BYTES))
}

fn shape_of_blocks(geometry: &Geometry, (id, bytes): (u32, usize)) -> TableShape {
    // At most 2^30 blocks: it fits.
    TableShape { id, pages: geometry.all_blocks().div_ceil(BLOCK_BYTES / bytes).to_u32() }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn the_tables_of_the_largest_log_are_as_large_as_the_document_says() {
        let geometry = Geometry::new(1 << 20, 1 << 42).expect("a legal shape");
        let pages = table_shapes(&geometry).map(|table| table.pages);
        assert_eq!(pages, [1, 1 << 15, 1 << 20, 1 << 18, 2]);
    }

    #[test]
    fn the_bytes_are_where_the_document_draws_them() {
        let record = SegmentRecord {
            live: U32::new(0x0102_0304),
            place: U32::new(5),
            sequence: U64::new(6),
            count: U16::new(0x0708),
            kind: SegmentRecord::HOLDS_BLOCKS,
            reserved: [0; 13],
        };
        let bytes = record.as_bytes();
        assert_eq!(bytes[..8], [4, 3, 2, 1, 5, 0, 0, 0]);
        assert_eq!(bytes[8..20], [6, 0, 0, 0, 0, 0, 0, 0, 8, 7, 1, 0]);
        assert!(bytes[19..].iter().all(|&byte| byte == 0));
        let [checkpoint, time, root, area] = [
            offset_of!(SnapshotRecord, checkpoint),
            offset_of!(SnapshotRecord, time),
            offset_of!(SnapshotRecord, root),
            offset_of!(SnapshotRecord, area),
        ];
        assert_eq!([checkpoint, time, root, area], [64, 72, 80, 112]);
        assert_eq!([offset_of!(Scalars, live_units), offset_of!(Scalars, frontier)], [8, 16]);
        assert_eq!([offset_of!(Scalars, segments), offset_of!(Scalars, segment_blocks)], [20, 24]);
        assert_eq!(offset_of!(Scalars, appended), 32);
    }
}
