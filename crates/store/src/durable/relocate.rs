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

use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use zerocopy::little_endian::U32;

use crate::durable::error::DurableError;
use crate::durable::file::DurableFile;
use crate::format::saved::SegmentRecord;

impl DurableFile {
    /// Moves what the last checkpoint alone needs down to free places; returns how many segments
    /// were moved. If any was, a checkpoint was made.
    ///
    /// Errors: those of reading the tables and of a checkpoint; `Io` if a segment cannot be copied.
    pub fn move_down(&mut self) -> Result<u64, DurableError> {
        let mut records = self.segments()?;
        let held = self.held_places()?;
        let of_snapshots = self.places_of_snapshots()?;
        let has = |places: &[bool], place: u32| places.get(place as usize) == Some(&true);
        let mut segment_at = vec![u32::MAX; records.len()];
        for (segment, record) in (0..).zip(&records) {
            let place = record.place.get() ^ segment;
            let at = segment_at.get_mut(place as usize).filter(|at| **at == u32::MAX);
            *at.ok_or(DurableError::Inconsistent("the place of a segment"))? = segment;
        }
        // As many places as segments, none of them twice: each has one.
        let mut buffer = AlignedBuffer::new(self.shape().segment_bytes as usize, 0)?;
        let (mut low, mut moved) = (0, 0);
        for high in (0..records.len() as u32).rev() {
            let segment = segment_at[high as usize];
            if !records[segment as usize].holds_blocks() || has(&of_snapshots, high) {
                continue;
            }
            // A place that the device refused once stays that of a lost segment.
            let is_free = |place: u32| {
                let record = records[segment_at[place as usize] as usize];
                record.kind == SegmentRecord::FREE && !has(&held, place)
            };
            while low < high && !is_free(low) {
                low += 1;
            }
            if low >= high {
                break;
            }
            self.copy_segment(high, low, buffer.as_mut_slice())?;
            let other = segment_at[low as usize];
            records[segment as usize].place = U32::new(low ^ segment);
            records[other as usize].place = U32::new(high ^ other);
            segment_at.swap(low as usize, high as usize);
            (low, moved) = (low + 1, moved + 1);
        }
        if moved > 0 {
            let stamp = self.stamp().clone();
            let mut saving = self.begin()?;
            saving.segments(&records)?;
            saving.commit(stamp)?;
        }
        Ok(moved)
    }

    fn copy_segment(&self, from: u32, to: u32, bytes: &mut [u8]) -> Result<(), DurableError> {
        let offset = |place: u32| self.log_start() + place as u64 * self.shape().segment_bytes;
        self.device.read_at(offset(from), bytes)?;
        Ok(self.device.write_at(offset(to), bytes)?)
    }
}
