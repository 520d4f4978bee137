//! Relocate: moves segments of a durable heap's log to places nearer to its start, so that the
//! file can be cut off.
//!
//! A segment keeps its number, and so do its blocks; only its place changes (`SegmentRecord`). So
//! no table but that of the segments changes. What a snapshot keeps stays where it is.
//!
//! ```text
//!   copy segments to places that nothing needs --> commit a checkpoint that tells of their places
//! ```
//!
//! Guarantees: until the commit all that any checkpoint tells of is where it was.
//! Never: takes more memory than a segment and the table of segments.
//! Threads: one; nobody else uses the file, and no reader has another checkpoint than the last
//! one and snapshots.

use deepheap_sys::aligned_buffer::AlignedBuffer;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::durable::error::DurableError;
use crate::durable::file::DurableFile;
use crate::durable::snapshots::record;
use crate::format::saved::{SEGMENTS, SegmentRecord};

impl DurableFile {
    /// Moves what the last checkpoint alone needs down to free places; returns how many segments
    /// were moved. If any was, a checkpoint was made.
    ///
    /// Errors: those of reading the tables and of a checkpoint; `Io` if a segment cannot be copied.
    pub fn move_down(&mut self) -> Result<u64, DurableError> {
        let mut pages = self.pages_of(SEGMENTS)?;
        let mut places: Vec<u32> = Vec::new();
        let mut kinds: Vec<u8> = Vec::new();
        for (number, bytes) in (0..).zip(records_of(&pages)) {
            let record = record(bytes)?;
            places.push(record.place.get() ^ number);
            kinds.push(record.kind);
        }
        let held = self.held_places()?;
        let of_snapshots = self.places_of_snapshots()?;
        let has = |places: &[bool], place: u32| places.get(place as usize) == Some(&true);
        let mut segment_at = vec![u32::MAX; places.len()];
        for (segment, &place) in (0..).zip(&places) {
            let at = segment_at.get_mut(place as usize).filter(|at| **at == u32::MAX);
            *at.ok_or(DurableError::Inconsistent("the place of a segment"))? = segment;
        }
        // As many places as segments, none of them twice: each has one.
        let kind_at = |segment_at: &[u32], place: u32| kinds[segment_at[place as usize] as usize];
        let mut buffer = AlignedBuffer::new(self.shape().segment_bytes as usize, 0)?;
        let (mut low, mut moved) = (0, 0);
        for high in (0..places.len() as u32).rev() {
            let segment = segment_at[high as usize];
            if kinds[segment as usize] != SegmentRecord::HOLDS_BLOCKS || has(&of_snapshots, high) {
                continue;
            }
            // A place that the device refused once stays that of a lost segment.
            let is_free =
                |place| kind_at(&segment_at, place) == SegmentRecord::FREE && !has(&held, place);
            while low < high && !is_free(low) {
                low += 1;
            }
            if low >= high {
                break;
            }
            self.copy_segment(high, low, buffer.as_mut_slice())?;
            let other = segment_at[low as usize];
            (places[segment as usize], places[other as usize]) = (low, high);
            segment_at.swap(low as usize, high as usize);
            (low, moved) = (low + 1, moved + 1);
        }
        if moved > 0 {
            self.commit_places(&mut pages, &places)?;
        }
        Ok(moved)
    }

    fn copy_segment(&self, from: u32, to: u32, bytes: &mut [u8]) -> Result<(), DurableError> {
        let offset = |place: u32| self.log_start() + place as u64 * self.shape().segment_bytes;
        self.device.read_at(offset(from), bytes)?;
        Ok(self.device.write_at(offset(to), bytes)?)
    }

    /// Makes a checkpoint that differs from the last one in the places of segments alone.
    fn commit_places(&mut self, pages: &mut [Vec<u8>], places: &[u32]) -> Result<(), DurableError> {
        let records = pages.iter_mut().flat_map(|page| page.chunks_exact_mut(RECORD_BYTES));
        for ((number, bytes), &place) in (0..).zip(records).zip(places) {
            let record = record(bytes)?;
            let moved = SegmentRecord { place: U32::new(place ^ number), ..record };
            bytes.copy_from_slice(moved.as_bytes());
        }
        let stamp = self.stamp().clone();
        let mut saving = self.begin()?;
        for (page, bytes) in (0..).zip(pages) {
            saving.page(SEGMENTS, page, bytes)?;
        }
        saving.commit(stamp).map(drop)
    }
}

const RECORD_BYTES: usize = size_of::<SegmentRecord>();

fn records_of(pages: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    pages.iter().flat_map(|page| page.chunks_exact(RECORD_BYTES))
}
