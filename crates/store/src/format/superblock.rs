//! Superblock: the page from which everything else of a durable heap is found.
//!
//! Guarantees: a superblock that is read is one that was written, whole. The magic, the place of
//! the version and that of the checksum are the same in all versions, so a newer heap is known as
//! such and a damaged one is not taken for newer.
//! Never: blocks, does I/O.
//! Threads: plain functions over bytes.

use core::mem::offset_of;
use core::ops::RangeInclusive;

use deepheap_sys::narrow::Narrow;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::index::Entry;
use super::sealed_secrets::SealedSecrets;
use super::{BLOCK_BYTES, page_of};
use crate::block::checksum::{SECRET_BYTES, Secret};
use crate::block::cipher::{KEY_BYTES, Key, TAG_BYTES};
use crate::log::identity::Identity;

/// First bytes of every superblock: "dheapsup".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"dheapsup");

/// The version of the format that this code writes. Since version 4 compressed pages may be dense.
pub(crate) const VERSION: u32 = 4;

/// The oldest version that it reads.
pub(crate) const OLDEST_VERSION: u32 = 3;

/// Where the two superblocks lie, bytes.
pub(crate) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];

/// Where the two copies of the first superblock lie, bytes. They are written when the heap is
/// created, never again, and tell a repair what the heap is made of.
pub(crate) const BIRTH_OFFSETS: [u64; 2] = [256 << 10, 512 << 10];

/// Where the table area begins, bytes.
pub(crate) const TABLE_AREA_START: u64 = 1 << 20;

/// Tables that a heap can have.
pub(crate) const TABLES_MAX: usize = 64;

/// Words of the caller's own in a checkpoint.
pub const WORDS: usize = 64;

/// Set in the flags of a checkpoint that was made when the heap was closed.
const CLEAN: u32 = 1;
/// Set in the flags of an encrypted heap.
const ENCRYPTED: u32 = 2;

/// A table of a durable heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableShape {
    /// Tells the table from the others of the heap. 1 to 15 are the store's.
    pub id: u32,
    /// Pages of 4 KiB that it can have.
    pub pages: u32,
}

/// The shape of a durable heap, fixed when it is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapShape {
    /// Its tables, in the order in which they lie in the file; at most `TABLES_MAX`.
    pub tables: Vec<TableShape>,
    /// The address at which its region begins.
    pub region_base: u64,
    /// Bytes of its region.
    pub region_len: u64,
    /// Bytes of a segment of its log.
    pub segment_bytes: u64,
    /// Bytes of its log.
    pub capacity_bytes: u64,
}

/// The caller's note with a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// When it was made, seconds since 1970.
    pub time: u64,
    /// Whether it was made to close the heap, and nothing was to change after it.
    pub is_clean: bool,
    /// Whatever the caller wants to find again.
    pub words: [u64; WORDS],
}

/// The content of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    pub(crate) identity: Identity,
    /// Of an encrypted heap: its secrets, as they are written.
    pub(crate) sealed: Option<SealedSecrets>,
    pub(crate) shape: HeapShape,
    /// Where the log begins, bytes.
    pub(crate) log_start: u64,
    /// Counted from 1.
    pub(crate) checkpoint: u64,
    /// The entry of the topmost index page.
    pub(crate) root: Entry,
    pub(crate) stamp: Stamp,
}

/// Why bytes are no superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// They do not begin like one.
    Foreign,
    /// They begin like one, but are not what was written.
    Damaged,
    /// They are a superblock of this other version.
    OtherVersion(u32),
    /// They are the superblock of an encrypted heap, and there is no key.
    NeedsKey,
    /// They are the superblock of an encrypted heap, which has another key.
    WrongKey,
}

/// The bytes of a superblock.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
    magic: U64,
    version: U32,
    flags: U32,
    id: U64,
    checkpoint: U64,
    /// Seconds since 1970.
    time: U64,
    region_base: U64,
    region_len: U64,
    segment_bytes: U64,
    capacity_bytes: U64,
    table_area_start: U64,
    log_start: U64,
    root: Entry,
    table_count: U32,
    reserved: [u8; 4],
    secret: [u8; SECRET_BYTES],
    words: [U64; WORDS],
    tables: [Table; TABLES_MAX],
    /// The heap's key, encrypted.
    key: [u8; KEY_BYTES],
    /// Of the encrypted secrets.
    tag: [u8; TAG_BYTES],
    rest: [u8; 2696],
    /// xxh3_64 of everything before it.
    checksum: U64,
}

/// A table, in the list of tables.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Table {
    id: U32,
    pages: U32,
}

/// Where the checksum lies, in every version; also of superblocks of maps.
pub(super) const CHECKSUM_AT: usize = 4088;

/// The fields that all superblocks have in all versions, those of maps, too.
#[derive(FromBytes)]
#[repr(C)]
struct Frame {
    magic: U64,
    version: U32,
    rest: [u8; CHECKSUM_AT - 12],
    checksum: U64,
}

/// A page with these bytes, the last of which are the checksum of the others.
pub(super) fn with_checksum(bytes: &(impl IntoBytes + Immutable)) -> [u8; BLOCK_BYTES] {
    let mut page = page_of(bytes.as_bytes());
    let sum = xxh3_64(&page[..CHECKSUM_AT]);
    page[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
    page
}

/// The superblock that these bytes are, if they are whole, of this kind, and of one of these
/// versions.
pub(super) fn read_whole<T: FromBytes>(
    page: &[u8],
    magic: u64,
    versions: RangeInclusive<u32>,
) -> Result<T, Unreadable> {
    let (Ok(frame), Ok(bytes)) = (Frame::read_from_bytes(page), T::read_from_bytes(page)) else {
        return Err(Unreadable::Damaged);
    };
    if frame.magic.get() != magic {
        return Err(Unreadable::Foreign);
    }
    if frame.checksum.get() != xxh3_64(&page[..CHECKSUM_AT]) {
        return Err(Unreadable::Damaged);
    }
    match frame.version.get() {
        found if versions.contains(&found) => Ok(bytes),
        other => Err(Unreadable::OtherVersion(other)),
    }
}

const _: () = assert!(size_of::<Bytes>() == BLOCK_BYTES);
const _: () = assert!(offset_of!(Bytes, key) == 1344);
const _: () = assert!(offset_of!(Bytes, tag) == 1376);
const _: () = assert!(offset_of!(Bytes, checksum) == CHECKSUM_AT);

impl Superblock {
    /// The bytes of the superblock.
    ///
    /// # Panics
    /// If there are more than `TABLES_MAX` tables.
    pub(crate) fn write(&self) -> [u8; BLOCK_BYTES] {
        let mut tables = [Table { id: U32::ZERO, pages: U32::ZERO }; TABLES_MAX];
        for (bytes, table) in tables[..self.shape.tables.len()].iter_mut().zip(&self.shape.tables) {
            *bytes = Table { id: U32::new(table.id), pages: U32::new(table.pages) };
        }
        let clean = if self.stamp.is_clean { CLEAN } else { 0 };
        let encrypted = if self.sealed.is_some() { ENCRYPTED } else { 0 };
        let secrets = self.sealed.unwrap_or(SealedSecrets {
            secret: *self.identity.secret.bytes(),
            key: [0; KEY_BYTES],
            tag: [0; TAG_BYTES],
        });
        let bytes = Bytes {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            flags: U32::new(clean | encrypted),
            id: U64::new(self.identity.id),
            checkpoint: U64::new(self.checkpoint),
            time: U64::new(self.stamp.time),
            region_base: U64::new(self.shape.region_base),
            region_len: U64::new(self.shape.region_len),
            segment_bytes: U64::new(self.shape.segment_bytes),
            capacity_bytes: U64::new(self.shape.capacity_bytes),
            table_area_start: U64::new(TABLE_AREA_START),
            log_start: U64::new(self.log_start),
            root: self.root,
            table_count: U32::new(self.shape.tables.len().to_u32()),
            reserved: [0; 4],
            secret: secrets.secret,
            words: self.stamp.words.map(U64::new),
            tables,
            key: secrets.key,
            tag: secrets.tag,
            rest: [0; 2696],
            checksum: U64::ZERO,
        };
        with_checksum(&bytes)
    }

    /// The superblock that these 4096 bytes are. The user's key is that of an encrypted heap.
    pub(crate) fn read(page: &[u8], user: Option<&Key>) -> Result<Self, Unreadable> {
        let bytes: Bytes = read_whole(page, MAGIC, OLDEST_VERSION..=VERSION)?;
        let Some(tables) = bytes.tables.get(..bytes.table_count.get() as usize) else {
            return Err(Unreadable::Damaged);
        };
        if bytes.checkpoint.get() == 0 || bytes.table_area_start.get() != TABLE_AREA_START {
            return Err(Unreadable::Damaged);
        }
        let id = bytes.id.get();
        let (mut identity, mut sealed) =
            (Identity { id, secret: Secret::from_bytes(bytes.secret), key: None }, None);
        if bytes.flags.get() & ENCRYPTED != 0 {
            let secrets = SealedSecrets { secret: bytes.secret, key: bytes.key, tag: bytes.tag };
            let opened = secrets.open(user.ok_or(Unreadable::NeedsKey)?, id);
            let (secret, key) = opened.ok_or(Unreadable::WrongKey)?;
            (identity, sealed) = (Identity { id, secret, key: Some(key) }, Some(secrets));
        }
        let table = |table: &Table| TableShape { id: table.id.get(), pages: table.pages.get() };
        Ok(Self {
            identity,
            sealed,
            shape: HeapShape {
                tables: tables.iter().map(table).collect(),
                region_base: bytes.region_base.get(),
                region_len: bytes.region_len.get(),
                segment_bytes: bytes.segment_bytes.get(),
                capacity_bytes: bytes.capacity_bytes.get(),
            },
            log_start: bytes.log_start.get(),
            checkpoint: bytes.checkpoint.get(),
            root: bytes.root,
            stamp: Stamp {
                time: bytes.time.get(),
                is_clean: bytes.flags.get() & CLEAN != 0,
                words: bytes.words.map(U64::get),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            identity: Identity {
                id: 0x11,
                secret: Secret::from_bytes([0x22; SECRET_BYTES]),
                key: None,
            },
            sealed: None,
            shape: HeapShape {
                tables: vec![TableShape { id: 1, pages: 2 }, TableShape { id: 16, pages: 300 }],
                region_base: 0x33,
                region_len: 0x44,
                segment_bytes: 0x55,
                capacity_bytes: 0x66,
            },
            log_start: 0x77,
            checkpoint: 0x88,
            root: Entry::new(0x99, 1, 0x88),
            stamp: Stamp { time: 0xaa, is_clean: true, words: [0xbb; WORDS] },
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Superblock::read(&superblock().write(), None), Ok(superblock()));
    }

    #[test]
    fn one_of_an_encrypted_heap_is_read_with_its_key_alone() {
        let [user, other, own] = [1, 2, 3].map(|byte| Key::from_bytes([byte; KEY_BYTES]));
        let mut right = superblock();
        right.sealed = Some(SealedSecrets::new(&user, 0x11, &right.identity.secret, &own));
        right.identity.key = Some(own);
        let bytes = right.write();
        assert!(!bytes.windows(8).any(|bytes| bytes == [0x22; 8]), "the secret is shown");
        assert_eq!(Superblock::read(&bytes, Some(&user)), Ok(right));
        assert_eq!(Superblock::read(&bytes, None), Err(Unreadable::NeedsKey));
        assert_eq!(Superblock::read(&bytes, Some(&other)), Err(Unreadable::WrongKey));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let right = superblock().write();
        for bit in 0..BLOCK_BYTES * 8 {
            let mut bytes = right;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::read(&bytes, None).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn heaps_of_the_version_before_are_read() {
        let mut bytes = superblock().write();
        bytes[8] = 3;
        let sum = xxh3_64(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Superblock::read(&bytes, None), Ok(superblock()));
    }

    #[test]
    fn other_versions_are_told_from_damage_and_from_foreign_bytes() {
        let mut bytes = superblock().write();
        bytes[8] = 9;
        assert_eq!(Superblock::read(&bytes, None), Err(Unreadable::Damaged));
        let sum = xxh3_64(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Superblock::read(&bytes, None), Err(Unreadable::OtherVersion(9)));
        assert_eq!(Superblock::read(&[0; BLOCK_BYTES], None), Err(Unreadable::Foreign));
        assert_eq!(Superblock::read(&[0; 17], None), Err(Unreadable::Damaged));
    }

    #[test]
    fn the_bytes_are_where_the_document_draws_them() {
        let bytes = superblock().write();
        let number =
            |at: usize| bytes[at..at + 8].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        assert_eq!(&bytes[..8], b"dheapsup");
        assert_eq!(number(8), u64::from(CLEAN) << 32 | u64::from(VERSION));
        let numbers: Vec<u64> = (16..104).step_by(8).map(number).collect();
        let area = TABLE_AREA_START;
        let root = 0x88 << 1 | 1;
        assert_eq!(numbers, [0x11, 0x88, 0xaa, 0x33, 0x44, 0x55, 0x66, area, 0x77, 0x99, root]);
        assert_eq!((number(104), number(112)), (0, 0), "tag of the root");
        assert_eq!(number(120), 2, "tables");
        assert!(bytes[128..320].iter().all(|&byte| byte == 0x22), "secret");
        assert_eq!((number(320), number(824)), (0xbb, 0xbb), "words");
        assert_eq!((number(832), number(840)), (2 << 32 | 1, 300 << 32 | 16), "tables");
        assert!(bytes[848..4088].iter().all(|&byte| byte == 0));
    }
}
