//! Places: which places of a durable heap's log are needed. Segments move down to free ones nearer
//! to its start, so that the file can be cut off; the space of the others is given back.
//!
//! A segment that moves keeps its number, and so do its blocks; only its place changes
//! (`SegmentRecord`). So no table but that of the segments changes. Segments of a snapshot stay
//! where they are.
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
use deepheap_sys::narrow::Narrow;
use zerocopy::little_endian::U32;

use crate::durable::error::DurableError;
use crate::durable::file::DurableFile;
use crate::format::saved::{SNAPSHOTS_MAX, SegmentRecord};

/// Moves what the last checkpoint alone needs down to free places; returns how many segments
/// were moved. If any was, a checkpoint was made.
///
/// Errors: those of reading the tables and of a checkpoint; `Io` if a segment cannot be copied.
pub fn move_down(file: &mut DurableFile) -> Result<u64, DurableError> {
    let mut records = file.segments()?;
    let held = held_places(file)?;
    let of_snapshots = places_of_snapshots(file)?;
    let has = |places: &[bool], place: u32| places.get(place as usize) == Some(&true);
    let mut segment_at = vec![u32::MAX; records.len()];
    for (segment, record) in (0..).zip(&records) {
        let place = record.place.get() ^ segment;
        let at = segment_at.get_mut(place as usize).filter(|at| **at == u32::MAX);
        *at.ok_or(DurableError::Inconsistent("the place of a segment"))? = segment;
    }
    // As many places as segments, none of them twice: each has one.
    let mut buffer = AlignedBuffer::new(file.shape().segment_bytes.to_usize(), 0)?;
    let (mut low, mut moved) = (0, 0);
    for high in (0..records.len().to_u32()).rev() {
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
        copy_segment(file, high, low, buffer.as_mut_slice())?;
        let other = segment_at[low as usize];
        records[segment as usize].place = U32::new(low ^ segment);
        records[other as usize].place = U32::new(high ^ other);
        segment_at.swap(low as usize, high as usize);
        (low, moved) = (low + 1, moved + 1);
    }
    if moved > 0 {
        let stamp = file.stamp().clone();
        let mut saving = file.begin()?;
        saving.segments(&records)?;
        saving.commit(stamp)?;
    }
    Ok(moved)
}

fn copy_segment(
    file: &DurableFile,
    from: u32,
    to: u32,
    bytes: &mut [u8],
) -> Result<(), DurableError> {
    let offset = |place: u32| file.log_start() + u64::from(place) * file.shape().segment_bytes;
    file.device.read_at(offset(from), bytes)?;
    Ok(file.device.write_at(offset(to), bytes)?)
}

/// Which places of segments hold blocks of the last checkpoint, or of a snapshot.
///
/// Errors: those of reading the tables.
fn held_places(file: &DurableFile) -> Result<Vec<bool>, DurableError> {
    let mut held = places_of_snapshots(file)?;
    file.note_places(&mut held)?;
    Ok(held)
}

/// Which places of segments hold blocks of a snapshot.
///
/// Errors: those of reading the tables.
fn places_of_snapshots(file: &DurableFile) -> Result<Vec<bool>, DurableError> {
    let mut held = Vec::new();
    for snapshot in &file.snapshots {
        file.then(&snapshot.name)?.note_places(&mut held)?;
    }
    Ok(held)
}

/// Gives the device back all space of the log, and of areas, that neither the last checkpoint
/// nor a snapshot needs; returns where the last byte ends that is needed. Nobody else uses the
/// file, and no reader has another checkpoint than these.
///
/// Errors: those of reading the tables; `Io` if the device cannot take space back.
pub fn give_back_free(file: &DurableFile) -> Result<u64, DurableError> {
    let held = held_places(file)?;
    let segment_bytes = file.shape().segment_bytes;
    let all = file.shape().capacity_bytes / segment_bytes;
    let is_held = |place: u64| held.get(place.to_usize()) == Some(&true);
    let start_of = |place: u64| file.log_start() + place * segment_bytes;
    let mut place = 0;
    while place < all {
        let end = (place..all).find(|&other| is_held(other)).unwrap_or(all);
        if end > place {
            file.device.discard(start_of(place), (end - place) * segment_bytes)?;
        }
        place = end + 1;
    }
    let used = |area: u32| file.snapshots.iter().any(|snapshot| snapshot.area == area);
    let is_there = |area: u32| file.layout.area_start(area + 1) <= file.device.len();
    for area in (0..SNAPSHOTS_MAX).filter(|&area| !used(area) && is_there(area)) {
        file.device.discard(file.layout.area_start(area), file.layout.area_bytes())?;
    }
    let last = (0..SNAPSHOTS_MAX).rfind(|&area| used(area));
    Ok(match last {
        Some(area) => file.layout.area_start(area + 1),
        None => start_of(held.len() as u64),
    })
}
