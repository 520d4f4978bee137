//! Geometry: how the device divides into segments, and segments into blocks.
//!
//! Guarantees: the number of a block leads to its segment and its offset, and back.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

use deepheap_sys::narrow::Narrow;

use super::{BLOCK_BYTES, directory};
use crate::block::{BLOCK_UNITS, Block, Segment};
use crate::error::StoreError;

/// Bits of a block number.
pub(crate) const BLOCK_BITS: u32 = 30;

/// Smallest segment, bytes.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 128 << 10;

/// Largest segment, bytes.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 8 << 20;

/// The shape of the log: how segments divide into blocks and the device into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// log2 of the blocks of a segment, directory included.
    blocks_shift: u32,
    /// Blocks at the start of each segment that hold its directory.
    pub(crate) directory_blocks: u32,
    /// Segments of the device.
    pub(crate) segments: u32,
    /// Number of the first block: 0, or what follows the blocks of the tier before (`behind`).
    first_block: u32,
    /// Where the log begins on its device, bytes.
    start: u64,
}

impl Geometry {
    /// The shape of `capacity_bytes` cut into segments of `segment_bytes`.
    pub(crate) fn new(segment_bytes: u64, capacity_bytes: u64) -> Result<Self, StoreError> {
        if !segment_bytes.is_power_of_two()
            || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
        {
            return Err(StoreError::Options(
                "segment_bytes must be a power of two from 128 KiB to 8 MiB",
            ));
        }
        let blocks_shift = (segment_bytes / BLOCK_BYTES as u64).trailing_zeros();
        let segments = (capacity_bytes / segment_bytes).min(1 << (BLOCK_BITS - blocks_shift));
        let directory_blocks = directory::blocks(1 << blocks_shift);
        let segments = segments.to_u32();
        Ok(Self { blocks_shift, directory_blocks, segments, first_block: 0, start: 0 })
    }

    /// The same shape, of a log that begins here on its device.
    pub(crate) fn at(self, start: u64) -> Self {
        Self { start, ..self }
    }

    /// The same shape, with blocks that are numbered after all those of `other`, as far as there
    /// are numbers.
    pub(crate) fn behind(self, other: &Geometry) -> Self {
        let segment = self.blocks();
        let first_block = other.end_block().next_multiple_of(segment.into());
        let segments = ((1 << BLOCK_BITS) - first_block.min(1 << BLOCK_BITS)) / u64::from(segment);
        let segments = self.segments.min(segments.to_u32());
        Self { segments, first_block: if segments == 0 { 0 } else { first_block.to_u32() }, ..self }
    }

    /// All blocks have lower numbers.
    pub(crate) fn end_block(&self) -> u64 {
        u64::from(self.first_block) + u64::from(self.segments) * u64::from(self.blocks())
    }

    /// Blocks of the log, directories included: what its tables have entries for.
    pub(crate) fn all_blocks(&self) -> usize {
        self.segments as usize * self.blocks() as usize
    }

    /// The place of a block in the tables of its log.
    pub(crate) fn index(&self, block: Block) -> usize {
        block.0.wrapping_sub(self.first_block) as usize
    }

    /// Blocks of a segment, directory included.
    pub(crate) fn blocks(&self) -> u32 {
        1 << self.blocks_shift
    }

    /// Blocks of a segment that hold objects.
    pub(crate) fn data_blocks(&self) -> u32 {
        self.blocks() - self.directory_blocks
    }

    /// Units that the objects of a segment take when it is full and all live.
    pub(crate) fn data_units(&self) -> u32 {
        self.data_blocks() * BLOCK_UNITS
    }

    /// Bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> usize {
        BLOCK_BYTES << self.blocks_shift
    }

    /// Bytes of a segment's directory.
    pub(crate) fn directory_bytes(&self) -> usize {
        self.directory_blocks as usize * BLOCK_BYTES
    }

    /// Where a segment starts on its device that lies at its own number, bytes.
    pub(crate) fn segment_offset(&self, segment: Segment) -> u64 {
        debug_assert!(segment.0 < self.segments, "a place behind the log");
        self.start + u64::from(segment.0) * self.segment_bytes() as u64
    }

    /// Where the log ends on its device, bytes.
    pub(crate) fn end_offset(&self) -> u64 {
        self.start + u64::from(self.segments) * self.segment_bytes() as u64
    }

    /// The segment that holds the block.
    pub(crate) fn segment_of(&self, block: Block) -> Segment {
        Segment((self.index(block) >> self.blocks_shift).to_u32())
    }

    /// Where the block starts within its segment, bytes.
    pub(crate) fn offset_in_segment(&self, block: Block) -> usize {
        (block.0 & (self.blocks() - 1)) as usize * BLOCK_BYTES
    }

    /// The block of the `index`th object of a segment.
    pub(crate) fn block(&self, segment: Segment, index: u32) -> Block {
        Block(self.first_block + (segment.0 << self.blocks_shift) + self.directory_blocks + index)
    }

    /// Whether the block number can name an object of this log.
    pub(crate) fn holds(&self, block: Block) -> bool {
        self.segment_of(block).0 < self.segments
            && (block.0 & (self.blocks() - 1)) >= self.directory_blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_number_leads_back_to_its_segment_and_offset() {
        for segment_bytes in [128 << 10, 256 << 10, 1 << 20, 8 << 20] {
            let shape = Geometry::new(segment_bytes, 64 << 20).expect("a legal shape");
            for segment in [0, 1, shape.segments - 1].map(Segment) {
                for index in [0, shape.data_blocks() - 1] {
                    let block = shape.block(segment, index);
                    assert!(shape.holds(block));
                    assert_eq!(shape.segment_of(block), segment);
                    assert_eq!(
                        shape.segment_offset(segment) + shape.offset_in_segment(block) as u64,
                        u64::from(block.0) * BLOCK_BYTES as u64
                    );
                }
                assert!(!shape.holds(Block(segment.0 * shape.blocks())), "directory");
            }
            assert!(!shape.holds(Block(shape.segments * shape.blocks() + 100)));
        }
    }

    #[test]
    fn a_log_that_begins_later_lies_in_its_own_stretch() {
        let shape = Geometry::new(1 << 20, 64 << 20).expect("a legal shape").at(24 << 20);
        let last = shape.segment_offset(Segment(shape.segments - 1));
        assert_eq!(shape.segment_offset(Segment(0)), 24 << 20);
        assert_eq!((last + (1 << 20), shape.end_offset()), (88 << 20, 88 << 20));
    }

    #[test]
    fn a_second_tier_has_numbers_of_its_own() {
        let first = Geometry::new(256 << 10, 64 << 20).expect("a legal shape");
        let second = Geometry::new(1 << 20, 32 << 20).expect("a legal shape").behind(&first);
        assert_eq!(second.segments, 32);
        for segment in [0, 31].map(Segment) {
            for index in [0, second.data_blocks() - 1] {
                let block = second.block(segment, index);
                assert!(second.holds(block) && !first.holds(block));
                assert_eq!(second.segment_of(block), segment);
                assert!(second.index(block) < second.all_blocks());
            }
        }
        let last = first.block(Segment(first.segments - 1), first.data_blocks() - 1);
        assert!(first.holds(last) && !second.holds(last));
        let all = Geometry::new(1 << 20, 1 << 50).expect("a legal shape");
        assert_eq!(second.behind(&all).segments, 0, "no number is left");
    }

    #[test]
    fn the_largest_store_fits_in_thirty_bits() {
        let shape = Geometry::new(1 << 20, 1 << 50).expect("a legal shape");
        let last = shape.block(Segment(shape.segments - 1), shape.data_blocks() - 1);
        assert_eq!(last.0, (1 << BLOCK_BITS) - 1);
    }

    #[test]
    fn illegal_segment_sizes_are_refused() {
        for bytes in [0, 4096, 64 << 10, 3 << 20, 16 << 20] {
            assert!(Geometry::new(bytes, 1 << 30).is_err(), "{bytes}");
        }
    }
}
