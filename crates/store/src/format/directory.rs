//! Directory: the first blocks of a segment, which say what is in it.
//!
//! Guarantees: a directory that verifies is the one that was written for this filling of this
//! segment of this store. Magic, version, segment, sequence, store, count and checksum were
//! compared.
//! Never: allocates, blocks, does I/O.
//! Threads: plain functions over bytes.

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BLOCK_BYTES;
use super::packed::PACKED_NAME;
use crate::block::Segment;
use crate::log::head::Head;

/// First bytes of every directory: "dheapseg".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"dheapseg");

/// The version of the format that this code reads and writes.
pub(crate) const VERSION: u32 = 3;

/// The start of a segment's first block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U64,
    version: U32,
    /// Position of the segment on the device.
    segment: U32,
    /// Fillings of segments are numbered from 1 in the order in which they were begun.
    sequence: U64,
    /// Tells stores apart that used the same device one after the other.
    store: U64,
    /// Entries, and data blocks, that follow.
    count: U32,
    /// 0 fresh, 1 survivor.
    head: U32,
    /// Blocks that had been appended to the log when this filling was begun.
    first_order: U64,
    reserved: [u8; 8],
    /// xxh3_64 of the directory with this field zero.
    checksum: U64,
}

/// The entry of one data block in a directory.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    /// All ones for a packed block.
    name: U32,
    /// How many blocks were appended between the beginning of the filling and this one, at both
    /// heads: tells which of two copies of an object is the later one.
    order: U32,
    checksum: U32,
}

/// Bytes of the header of a directory.
pub(crate) const HEADER_BYTES: usize = 64;

/// Bytes of an entry of a directory.
pub(crate) const ENTRY_BYTES: usize = 12;

/// Where the checksum lies in the header.
const CHECKSUM_AT: usize = 56;

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);
const _: () = assert!(core::mem::offset_of!(Header, checksum) == CHECKSUM_AT);

/// Blocks that the directory of a segment of `blocks` blocks takes: 1 up to 1 MiB.
pub(crate) fn blocks(segment_blocks: u32) -> u32 {
    let mut directory = 1;
    while HEADER_BYTES + (segment_blocks - directory) as usize * ENTRY_BYTES
        > directory as usize * BLOCK_BYTES
    {
        directory += 1;
    }
    directory
}

/// Which filling of which segment a directory describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Filling {
    pub(crate) segment: Segment,
    pub(crate) sequence: u64,
    pub(crate) store: u64,
    pub(crate) count: u32,
}

/// A data block, as a directory tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    /// The object in it, or `PACKED_NAME`.
    pub(crate) name: u64,
    pub(crate) checksum: u32,
    /// Blocks that were appended to the log before it.
    pub(crate) order: u64,
}

/// Notes the `index`th object in a directory that is being filled; `order` blocks were appended
/// since the filling was begun. The name is that of a page, or `PACKED_NAME`.
#[expect(clippy::cast_possible_truncation, reason = "the low half of `PACKED_NAME` is all ones")]
pub(crate) fn set_entry(directory: &mut [u8], index: usize, name: u64, order: u64, checksum: u32) {
    let at = HEADER_BYTES + index * ENTRY_BYTES;
    let entry = Entry {
        name: U32::new(name as u32),
        order: U32::new(u32::try_from(order).unwrap_or(u32::MAX)),
        checksum: U32::new(checksum),
    };
    directory[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
}

/// Completes a directory: header, checksum, and zeros after the last entry. `first_order` blocks
/// had been appended when the filling was begun.
pub(crate) fn finish(directory: &mut [u8], filling: Filling, head: Head, first_order: u64) {
    let header = Header {
        magic: U64::new(MAGIC),
        version: U32::new(VERSION),
        segment: U32::new(filling.segment.0),
        sequence: U64::new(filling.sequence),
        store: U64::new(filling.store),
        count: U32::new(filling.count),
        head: U32::new(match head {
            Head::Fresh => 0,
            Head::Survivor => 1,
        }),
        first_order: U64::new(first_order),
        reserved: [0; 8],
        checksum: U64::new(0),
    };
    directory[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    directory[HEADER_BYTES + filling.count as usize * ENTRY_BYTES..].fill(0);
    let sum = xxh3_64(directory);
    directory[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Which filling these bytes are the directory of; none if they are no directory. Its checksum
/// field is zeroed on the way.
pub(crate) fn filling_of(directory: &mut [u8]) -> Option<Filling> {
    let (header, _) = Header::read_from_prefix(directory).ok()?;
    let entries_end = HEADER_BYTES as u64 + u64::from(header.count.get()) * ENTRY_BYTES as u64;
    directory[CHECKSUM_AT..CHECKSUM_AT + 8].fill(0);
    let is_right = header.magic.get() == MAGIC
        && header.version.get() == VERSION
        && entries_end <= directory.len() as u64
        && header.checksum.get() == xxh3_64(directory);
    is_right.then(|| Filling {
        segment: Segment(header.segment.get()),
        sequence: header.sequence.get(),
        store: header.store.get(),
        count: header.count.get(),
    })
}

/// The `index`th entry of a directory that verified.
pub(crate) fn entry(directory: &[u8], index: usize) -> Option<Told> {
    let (header, _) = Header::read_from_prefix(directory).ok()?;
    let at = HEADER_BYTES + index * ENTRY_BYTES;
    let entry = Entry::read_from_bytes(directory.get(at..at + ENTRY_BYTES)?).ok()?;
    let name = match entry.name.get() {
        u32::MAX => PACKED_NAME,
        name => name.into(),
    };
    let order = header.first_order.get().saturating_add(entry.order.get().into());
    Some(Told { name, checksum: entry.checksum.get(), order })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILLING: Filling = Filling { segment: Segment(3), sequence: 9, store: 77, count: 2 };

    fn verify(directory: &mut [u8], expected: Filling) -> bool {
        filling_of(directory) == Some(expected)
    }

    fn directory() -> Vec<u8> {
        let mut bytes = vec![0xffu8; BLOCK_BYTES];
        set_entry(&mut bytes, 0, 0x0102_0304, 0x1112_1314, 0xa0b0_c0d0);
        set_entry(&mut bytes, 1, PACKED_NAME, 5, 6);
        finish(&mut bytes, FILLING, Head::Survivor, 7);
        bytes
    }

    #[test]
    fn a_finished_directory_verifies_and_gives_its_entries_back() {
        let mut bytes = directory();
        assert!(verify(&mut bytes, FILLING));
        let told = |name, checksum, order| Some(Told { name, checksum, order });
        assert_eq!(entry(&bytes, 0), told(0x0102_0304, 0xa0b0_c0d0, 0x1112_131b));
        assert_eq!(entry(&bytes, 1), told(PACKED_NAME, 6, 12));
        assert_eq!(entry(&bytes, 10_000), None);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        for bit in 0..BLOCK_BYTES * 8 {
            let mut bytes = directory();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&mut bytes, FILLING), "bit {bit}");
        }
    }

    #[test]
    fn a_directory_of_another_filling_is_refused() {
        for other in [
            Filling { segment: Segment(4), ..FILLING },
            Filling { sequence: 8, ..FILLING },
            Filling { store: 78, ..FILLING },
            Filling { count: 3, ..FILLING },
        ] {
            assert!(!verify(&mut directory(), other));
        }
        assert!(!verify(&mut [0; 10], FILLING));
        assert!(!verify(&mut [0; BLOCK_BYTES], FILLING));
    }

    #[test]
    fn the_bytes_are_where_the_document_draws_them() {
        let bytes = directory();
        assert_eq!(&bytes[..8], b"dheapseg");
        assert_eq!(bytes[8..12], [3, 0, 0, 0], "version");
        assert_eq!(bytes[12..16], [3, 0, 0, 0], "segment");
        assert_eq!(bytes[16..24], [9, 0, 0, 0, 0, 0, 0, 0], "sequence");
        assert_eq!(bytes[24..32], [77, 0, 0, 0, 0, 0, 0, 0], "store");
        assert_eq!(bytes[32..36], [2, 0, 0, 0], "count");
        assert_eq!(bytes[36..40], [1, 0, 0, 0], "head");
        assert_eq!(bytes[40..48], [7, 0, 0, 0, 0, 0, 0, 0], "first order");
        assert_eq!(bytes[48..56], [0; 8], "reserved");
        assert_eq!(bytes[64..68], [4, 3, 2, 1], "name");
        assert_eq!(bytes[68..72], [0x14, 0x13, 0x12, 0x11], "order");
        assert_eq!(bytes[72..76], [0xd0, 0xc0, 0xb0, 0xa0], "checksum");
        assert!(bytes[64 + 24..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_mebibyte_needs_one_directory_block_and_eight_need_six() {
        assert_eq!(blocks(64), 1);
        assert_eq!(blocks(256), 1);
        assert_eq!(blocks(512), 2);
        assert_eq!(blocks(1024), 4);
        assert_eq!(blocks(2048), 6);
    }
}
