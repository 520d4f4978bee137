//! Packed block: several objects in one block, and a directory that says where each lies.
//!
//! The directory grows from the front. The objects' bytes grow from the back, and each object
//! begins at a multiple of 8. The block as a whole has the name `PACKED_NAME`; its checksum covers
//! all of it.
//!
//! There are blocks of objects, as they are, and blocks of compressed pages. The first bytes tell
//! which.
//!
//! Guarantees: `PackedBlock` writes every byte of a finished block. Reading copes with any bytes:
//! an object that it returns lies in the block, behind the directory.
//! Never: allocates, blocks, does I/O.
//! Threads: plain functions over bytes.

use deepheap_sys::narrow::Narrow;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BLOCK_BYTES;
use crate::block::BLOCK_UNITS;

/// First bytes of every packed block of objects: "dhp1".
const OBJECTS_MAGIC: u32 = u32::from_le_bytes(*b"dhp1");

/// First bytes of every block of compressed pages: "dhc1".
const PAGES_MAGIC: u32 = u32::from_le_bytes(*b"dhc1");

/// The content of a packed block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Content {
    /// Objects of up to `PACKED_MAX` bytes, as they are.
    Objects = OBJECTS_MAGIC,
    /// Pages of 4096 bytes, each compressed to what its entry tells, by LZ4 or by zstd: the store
    /// does not look at them.
    Pages = PAGES_MAGIC,
}

/// The name of a packed block, in its checksum and in the directory of its segment. No object that
/// has a block of its own bears it.
pub const PACKED_NAME: u64 = u64::MAX;

/// The start of a packed block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    /// Objects, and entries that follow.
    count: U16,
    /// Where the bytes of the objects begin; between the last entry and here all is zero.
    start: U16,
    reserved: [u8; 8],
}

/// The entry of one object in the directory.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    name: U32,
    offset: U16,
    length: U16,
}

/// Bytes of the header of a packed block.
pub const HEADER_BYTES: usize = 16;

/// Bytes of an entry of its directory.
pub const ENTRY_BYTES: usize = 8;

/// Objects begin at multiples of so many bytes.
pub const ALIGNMENT: usize = 8;

/// Bytes of a block for entries and objects.
pub const CAPACITY: usize = BLOCK_BYTES - HEADER_BYTES;

/// Bytes of entries and objects from which on a block is well filled: 7/8.
pub const WELL_FILLED: usize = CAPACITY * 7 / 8;

/// The largest object that a packed block takes; a larger one has a block of its own.
pub const PACKED_MAX: usize = CAPACITY - ENTRY_BYTES;

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);
const _: () = assert!(PACKED_MAX.is_multiple_of(ALIGNMENT));

/// Bytes of a block that an object of so many bytes takes, its entry included.
pub const fn footprint(bytes: usize) -> usize {
    ENTRY_BYTES + bytes.next_multiple_of(ALIGNMENT)
}

/// Objects of this size that fit in one block.
pub const fn per_block(bytes: usize) -> usize {
    if bytes > PACKED_MAX { 1 } else { CAPACITY / footprint(bytes) }
}

/// Units that an object of so many bytes costs: a block divided by the objects of its size that
/// fit, rounded up. Objects of one size count what they take. Together with smaller ones they may
/// count more, never less: `n` units can always be packed anew into `n / BLOCK_UNITS` blocks and
/// one for each size.
#[expect(clippy::cast_possible_truncation, reason = "a block has room for 510 objects at most")]
pub const fn cost(bytes: usize) -> u32 {
    BLOCK_UNITS.div_ceil(per_block(bytes) as u32)
}

/// A block that objects are being packed into.
pub struct PackedBlock<'a> {
    buf: &'a mut [u8; BLOCK_BYTES],
    content: Content,
    count: usize,
    start: usize,
}

impl<'a> PackedBlock<'a> {
    /// Begins an empty block of this content in the buffer, whose bytes are of no interest.
    ///
    /// # Panics
    /// If the buffer is not one block.
    pub fn begin_with(buf: &'a mut [u8], content: Content) -> Self {
        let Ok(buf) = buf.try_into() else {
            panic!("objects are packed into blocks of 4 KiB");
        };
        Self { buf, content, count: 0, start: BLOCK_BYTES }
    }

    fn entries_end(&self) -> usize {
        HEADER_BYTES + self.count * ENTRY_BYTES
    }

    /// Whether one more object of so many bytes fits.
    pub fn fits(&self, bytes: usize) -> bool {
        bytes <= PACKED_MAX && footprint(bytes) <= self.start - self.entries_end()
    }

    /// Adds the object.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn push(&mut self, name: u32, data: &[u8]) {
        assert!(self.fits(data.len()), "push needs a packed block with room");
        let end = self.start;
        self.start -= data.len().next_multiple_of(ALIGNMENT);
        let (start, data_end) = (self.start, self.start + data.len());
        self.buf[start..data_end].copy_from_slice(data);
        self.buf[data_end..end].fill(0);
        let entry = Entry {
            name: U32::new(name),
            offset: U16::new(start.to_u16()),
            length: U16::new(data.len().to_u16()),
        };
        let at = self.entries_end();
        self.buf[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
        self.count += 1;
    }

    /// Objects so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Completes the block: header, and zeros where there is nothing, so that no old bytes of the
    /// buffer reach the device.
    pub fn finish(self) -> &'a [u8] {
        let header = Header {
            magic: U32::new(self.content as u32),
            count: U16::new(self.count.to_u16()),
            start: U16::new(self.start.to_u16()),
            reserved: [0; 8],
        };
        let gap = self.entries_end()..self.start;
        self.buf[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        self.buf[gap].fill(0);
        self.buf
    }
}

/// The entries of a block, and where its objects begin; no entry if it is not a packed one of this
/// content.
fn entries(block: &[u8], content: Content) -> (&[Entry], usize) {
    let Ok((header, rest)) = Header::ref_from_prefix(block) else {
        return (&[], BLOCK_BYTES);
    };
    let (count, start) = (header.count.get() as usize, header.start.get() as usize);
    let is_packed = header.magic.get() == content as u32 && block.len() == BLOCK_BYTES;
    if !is_packed || HEADER_BYTES + count * ENTRY_BYTES > start {
        return (&[], BLOCK_BYTES);
    }
    match <[Entry]>::ref_from_prefix_with_elems(rest, count) {
        Ok((entries, _)) => (entries, start),
        Err(_) => (&[], BLOCK_BYTES),
    }
}

/// The bytes of an entry's object, if they are where objects are: behind `start`, in the block.
fn bytes_of<'b>(block: &'b [u8], start: usize, entry: &Entry) -> Option<&'b [u8]> {
    let offset = entry.offset.get() as usize;
    if offset < start || !offset.is_multiple_of(ALIGNMENT) {
        return None;
    }
    block.get(offset..offset + entry.length.get() as usize)
}

/// The bytes of the object `name` in a packed block of this content that was read and verified.
pub fn find(block: &[u8], content: Content, name: u32) -> Option<&[u8]> {
    let name = U32::new(name);
    let (entries, start) = entries(block, content);
    let entry = entries.iter().find(|entry| entry.name == name)?;
    bytes_of(block, start, entry)
}

/// Names and bytes of the objects in a packed block of this content, in the order in which they
/// were added.
pub fn objects(block: &[u8], content: Content) -> PackedObjects<'_> {
    let (entries, start) = entries(block, content);
    PackedObjects { block, start, entries: entries.iter() }
}

/// See `objects`.
#[derive(Clone)]
pub struct PackedObjects<'b> {
    block: &'b [u8],
    start: usize,
    entries: core::slice::Iter<'b, Entry>,
}

impl<'b> Iterator for PackedObjects<'b> {
    type Item = (u32, &'b [u8]);

    fn next(&mut self) -> Option<(u32, &'b [u8])> {
        let object_of =
            |entry: &Entry| Some((entry.name.get(), bytes_of(self.block, self.start, entry)?));
        self.entries.find_map(object_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(name: u32, length: usize) -> Vec<u8> {
        (0..length).map(|at| (name as usize * 31 + at * 7 + 1) as u8).collect()
    }

    #[test]
    fn what_is_pushed_is_found_and_nothing_else() {
        let mut buf = vec![0xee; BLOCK_BYTES];
        let sizes = [1, 7, 8, 9, 100, 129, 512, 1000, 0];
        let mut block = PackedBlock::begin_with(&mut buf, Content::Objects);
        for (name, &size) in (100..).zip(&sizes) {
            assert!(block.fits(size));
            block.push(name, &bytes(name, size));
        }
        assert_eq!(block.count(), sizes.len());
        let block = block.finish();
        for (name, &size) in (100..).zip(&sizes) {
            assert_eq!(find(block, Content::Objects, name), Some(&bytes(name, size)[..]));
        }
        assert_eq!([99, 109].map(|name| find(block, Content::Objects, name)), [None, None]);
        let listed: Vec<_> =
            objects(block, Content::Objects).map(|(name, data)| (name, data.len())).collect();
        assert_eq!(listed, (100..).zip(sizes).collect::<Vec<_>>());
    }

    #[test]
    fn a_block_of_pages_is_none_of_objects() {
        let mut buf = vec![0; BLOCK_BYTES];
        let mut block = PackedBlock::begin_with(&mut buf, Content::Pages);
        block.push(5, &[1; 100]);
        let block = block.finish();
        assert_eq!(find(block, Content::Objects, 5), None);
        assert_eq!(objects(block, Content::Objects).count(), 0);
        assert_eq!(find(block, Content::Pages, 5), Some(&[1; 100][..]));
        assert_eq!(&block[..4], b"dhc1");
    }

    #[test]
    fn as_many_objects_of_a_size_fit_as_the_cost_assumes() {
        for size in 0..=BLOCK_BYTES {
            let mut buf = vec![0; BLOCK_BYTES];
            let mut block = PackedBlock::begin_with(&mut buf, Content::Objects);
            let data = vec![1; size];
            while block.fits(size) {
                block.push(block.count() as u32, &data);
            }
            let whole = size > PACKED_MAX;
            assert_eq!(block.count(), if whole { 0 } else { per_block(size) }, "{size} bytes");
            let units = cost(size) * per_block(size) as u32;
            assert!((BLOCK_UNITS..BLOCK_UNITS + per_block(size) as u32).contains(&units));
            assert_eq!(whole || per_block(size) == 1, cost(size) == BLOCK_UNITS, "{size} bytes");
        }
        assert_eq!((per_block(PACKED_MAX), per_block(128), per_block(8)), (1, 30, 255));
    }

    #[test]
    fn no_object_costs_twice_the_share_of_a_block_that_it_takes() {
        for size in 0..=PACKED_MAX {
            assert!(cost(size) as usize * CAPACITY <= 2 * footprint(size) * BLOCK_BYTES, "{size}");
        }
    }

    #[test]
    fn no_old_byte_of_the_buffer_is_in_a_finished_block() {
        for sizes in [&[][..], &[1], &[3, 5, 1000], &[PACKED_MAX], &[2000, 2049]] {
            let finish = |old: u8| {
                let mut buf = vec![old; BLOCK_BYTES];
                let mut block = PackedBlock::begin_with(&mut buf, Content::Objects);
                sizes.iter().for_each(|&size| block.push(7, &bytes(7, size)));
                block.finish().to_vec()
            };
            assert!(finish(0xaa) == finish(0x55), "{sizes:?}");
        }
    }

    #[test]
    fn the_bytes_are_where_the_document_draws_them() {
        let mut buf = vec![0xff; BLOCK_BYTES];
        let mut block = PackedBlock::begin_with(&mut buf, Content::Objects);
        block.push(0x0102_0304, &[9; 10]);
        let block = block.finish();
        assert_eq!(&block[..4], b"dhp1");
        assert_eq!(block[4..8], [1, 0, 0xf0, 0x0f], "count, start");
        assert_eq!(block[8..16], [0; 8], "reserved");
        assert_eq!(block[16..24], [4, 3, 2, 1, 0xf0, 0x0f, 10, 0], "name, offset, length");
        assert_eq!(block[24..4080], [0; 4056], "nothing");
        assert_eq!(block[4080..], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0], "data");
    }
}
