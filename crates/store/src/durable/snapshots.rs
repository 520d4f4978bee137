//! Snapshots: checkpoints of a durable heap that are kept under a name.
//!
//! The tables of a checkpoint lie in slots that later checkpoints write over. So a snapshot has a
//! copy of them, in an *area* of the file; the blocks of the log stay where they are, pinned.
//!
//! ```text
//!   keep:    copy the tables of the last checkpoint --> commit a checkpoint that lists the copy
//!   forget:  commit a checkpoint that does not list it --> give the area back
//!   go back: commit a checkpoint with the tables of the copy
//! ```
//!
//! Guarantees: a snapshot is there once a checkpoint that lists it is; until then its area means
//! nothing. Each of the three is one commit: it happens or it does not. The store's tables of a
//! checkpoint that went back tell of every filling that was ever made, so that no later one has
//! the number of one that another snapshot keeps.
//! Never: decides whether the file has room; touches the log.
//! Threads: one at a time, as for all of the file.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::durable::checkpoint::Snapshot;
use crate::durable::checkpoint::{Checkpoint, check_length};
use crate::durable::error::DurableError;
use crate::durable::file::DurableFile;
use crate::durable::layout::Node;
use crate::durable::pages::PageWriter;
use crate::durable::saving::Saving;
use crate::format::saved::{
    CHECKSUMS, RECORDS_PER_PAGE, SCALARS, SEGMENTS, SHARERS, SNAPSHOT_NAME_BYTES, SNAPSHOTS,
    SNAPSHOTS_MAX, Scalars, SegmentRecord, SnapshotRecord, TAGS,
};
use crate::format::superblock::Stamp;
use crate::format::{BLOCK_BYTES, page_of};

impl Snapshot {
    fn record(&self) -> SnapshotRecord {
        let mut name = [0; SNAPSHOT_NAME_BYTES];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        SnapshotRecord {
            name,
            checkpoint: U64::new(self.checkpoint),
            time: U64::new(self.time),
            root: self.root,
            area: U32::new(self.area),
            reserved: [0; 12],
        }
    }
}

impl Saving<'_> {
    /// The table of segments, as the checkpoint is to have it.
    ///
    /// Errors: as `page`.
    pub(crate) fn segments(&mut self, records: &[SegmentRecord]) -> Result<(), DurableError> {
        let mut pages = (0..).zip(records.chunks(RECORDS_PER_PAGE as usize));
        pages
            .try_for_each(|(page, records)| self.page(SEGMENTS, page, &page_of(records.as_bytes())))
    }
}

impl DurableFile {
    /// Whether a snapshot of this name could be taken now, room apart.
    ///
    /// Errors: `SnapshotName`, `SnapshotExists`, `TooManySnapshots`; `Stopped`, `ReadOnly`.
    pub fn may_keep(&self, name: &str) -> Result<(), DurableError> {
        self.may_write?;
        let is_odd = |letter: char| letter.is_control() || letter.is_whitespace() || letter == ',';
        if !(1..=SNAPSHOT_NAME_BYTES).contains(&name.len()) || name.contains(is_odd) {
            return Err(DurableError::SnapshotName);
        }
        if self.snapshot(name).is_ok() {
            return Err(DurableError::SnapshotExists);
        }
        self.free_area().map(drop)
    }

    fn free_area(&self) -> Result<u32, DurableError> {
        let is_free = |area: &u32| self.snapshots.iter().all(|other| other.area != *area);
        (0..SNAPSHOTS_MAX).find(is_free).ok_or(DurableError::TooManySnapshots)
    }

    /// Keeps the last checkpoint under a name; returns the number of the checkpoint after it, which
    /// differs from it only in the list of snapshots.
    ///
    /// Errors: those of `may_keep` and of a checkpoint.
    pub fn keep(&mut self, name: &str) -> Result<u64, DurableError> {
        self.may_keep(name)?;
        let area = self.free_area()?;
        self.settle()?;
        let root = self.superblock.root;
        let (checkpoint, time) = (self.checkpoint(), self.stamp().time);
        self.copy_tables(area)?;
        let mut snapshots = self.snapshots.clone();
        snapshots.push(Snapshot { name: name.to_owned(), checkpoint, time, root, area });
        self.commit_snapshots(snapshots)
    }

    /// Keeps a snapshot no longer; returns the number of the checkpoint that does not list it.
    ///
    /// Errors: `NoSnapshot`; those of a checkpoint.
    pub fn forget(&mut self, name: &str) -> Result<u64, DurableError> {
        let area = self.snapshot(name)?.area;
        self.settle()?;
        let mut snapshots = self.snapshots.clone();
        snapshots.retain(|snapshot| snapshot.name != name);
        let made = self.commit_snapshots(snapshots)?;
        // A device that keeps the space is only less thrifty.
        let _ = self.device.discard(self.layout.area_start(area), self.layout.area_bytes());
        Ok(made)
    }

    /// Makes the heap what it is in a snapshot: the next checkpoint, whose number is returned,
    /// equals it. All snapshots stay.
    ///
    /// Errors: `NoSnapshot`; those of opening it, and of a checkpoint.
    pub fn go_back(&mut self, name: &str, stamp: Stamp) -> Result<u64, DurableError> {
        let then = self.then(name)?;
        self.settle()?;
        let (scalars, segments) = self.merged(&then)?;
        let kept = [SCALARS, SEGMENTS, CHECKSUMS, SHARERS, SNAPSHOTS, TAGS];
        let tables = self.shape().tables.clone();
        // Pages that were never saved when the snapshot was taken.
        let mut gone: Vec<(u32, u32)> = Vec::new();
        for table in tables.iter().filter(|table| !kept.contains(&table.id)) {
            for page in 0..table.pages {
                let node = self.layout.node(table.id, page);
                if !self.index.get(node).is_none() && then.index.get(node).is_none() {
                    gone.push((table.id, page));
                }
            }
        }
        let mut saving = self.begin()?;
        for table in tables.iter().filter(|table| !kept.contains(&table.id)) {
            then.load_table(table.id, &mut |page, bytes| saving.page(table.id, page, bytes))?;
        }
        for (table, page) in gone {
            saving.page(table, page, &[0; BLOCK_BYTES])?;
        }
        saving.page(SCALARS, 0, &page_of(scalars.as_bytes()))?;
        saving.segments(&segments)?;
        saving.commit(stamp)
    }

    /// The store's tables with what lives in the snapshot alive, and all fillings of now. Its
    /// checksums and sharers of blocks are as they were: the segments were not filled again.
    fn merged(&self, then: &Checkpoint) -> Result<(Scalars, Vec<SegmentRecord>), DurableError> {
        let (mut segments, of_then) = (self.segments()?, then.segments()?);
        let mut live_units = 0;
        for (at, now) in segments.iter_mut().enumerate() {
            match of_then.get(at).filter(|then| then.holds_blocks()) {
                Some(then) if now.is_same_filling(then) => *now = *then,
                Some(_) => return Err(LOST),
                None if now.holds_blocks() => {
                    (now.live, now.kind) = (U32::ZERO, SegmentRecord::FREE);
                }
                None => {}
            }
            live_units += u64::from(now.live.get());
        }
        let more = of_then.get(segments.len()..).unwrap_or_default();
        if more.iter().any(|record| *record != SegmentRecord::NONE) {
            return Err(LOST);
        }
        let scalars = self.scalars()?.unwrap_or(Scalars::new_zeroed());
        Ok((Scalars { live_units: U64::new(live_units), ..scalars }, segments))
    }

    /// Copies all pages of the last checkpoint into an area.
    fn copy_tables(&self, area: u32) -> Result<(), DurableError> {
        let to = self.layout.in_area(area);
        check_length(&*self.device, to.area_start(area + 1))?;
        let mut writer = PageWriter::new()?;
        let mut reader = self.reader()?;
        reader.read_all(self.index.of((0..self.layout.nodes()).map(Node)), |node, page| {
            let bytes = page.map_err(|lack| lack.of(&self.layout, node))?;
            let (checkpoint, offset) = (self.index.get(node).checkpoint(), to.offset(node, 0));
            let mut copy = [0; BLOCK_BYTES];
            copy.copy_from_slice(bytes);
            // The same bytes, number and key: the same tag.
            let _ = self.seal_page(checkpoint, node, &mut copy);
            Ok(writer.push(&*self.device, offset, &copy)?)
        })?;
        Ok(writer.flush(&*self.device)?)
    }

    /// Makes a checkpoint that differs from the last one in the list of snapshots alone.
    fn commit_snapshots(&mut self, mut snapshots: Vec<Snapshot>) -> Result<u64, DurableError> {
        snapshots.sort_unstable_by_key(|snapshot| snapshot.checkpoint);
        let stamp = self.stamp().clone();
        let mut saving = self.begin()?;
        let mut records = [SnapshotRecord::new_zeroed(); SNAPSHOTS_MAX as usize];
        for (record, snapshot) in records.iter_mut().zip(&snapshots) {
            *record = snapshot.record();
        }
        for (page, bytes) in (0..).zip(records.as_bytes().chunks(BLOCK_BYTES)) {
            saving.page(SNAPSHOTS, page, bytes)?;
        }
        let made = saving.commit(stamp)?;
        self.snapshots = snapshots;
        Ok(made)
    }
}

/// A segment of a snapshot was written over.
const LOST: DurableError = DurableError::Inconsistent("a segment of a snapshot");
