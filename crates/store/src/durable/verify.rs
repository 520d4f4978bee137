//! Verify: reads everything that a durable heap has, and says what is damaged.
//!
//! Guarantees: goes on after damage; what it names as damaged is what `open`, `load_table` and
//! `read` would refuse. Changes nothing.
//! Never: takes more memory than a segment, a buffer of 1 MiB, the index, and the report.
//! Threads: one; nothing else uses the heap meanwhile.

use core::fmt;
use std::sync::Arc;

use deepheap_sys::memory::aligned_buffer::AlignedBuffer;

use crate::block::cipher::Key;
use crate::block::{Block, Segment};
use crate::device::Device;
use crate::device::table_file::PageLack;
use crate::durable::checkpoint::Checkpoint;
use crate::durable::error::DurableError;
use crate::durable::file::{DurableFile, SuperblockId, read_superblock};
use crate::durable::index::Index;
use crate::durable::layout::Node;
use crate::error::StoreError;
use crate::format::superblock::BIRTH_OFFSETS;
use crate::log::garbage::{VictimObject, WholeObject};
use crate::log::store::Store;
use crate::space::segment::State;

/// Findings that a report lists; more are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// Something that is not what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A superblock. The end of a process or of the power during a commit leaves one.
    Superblock(SuperblockId),
    /// A copy of the first superblock, of which a repair may be in need.
    Birth(u64),
    /// An index page, and so everything that it tells of.
    IndexPage {
        /// How far above the tables it is, from 1.
        level: u32,
        /// The page in its level.
        page: u32,
    },
    /// A page of a table.
    TablePage {
        /// The table.
        table: u32,
        /// The page in it.
        page: u32,
    },
    /// A page of the tables of the snapshot of this checkpoint.
    Snapshot(u64),
    /// The directory of a segment: its blocks can be read one by one, but not be collected.
    Directory {
        /// The first block of the segment.
        block: Block,
    },
    /// A block of the log, in which there may or may not be objects that live.
    Block(Block),
    /// The device refused to show something.
    Refused(DurableError),
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock(SuperblockId::A) => write!(out, "superblock A is damaged"),
            Self::Superblock(SuperblockId::B) => write!(out, "superblock B is damaged"),
            Self::Birth(offset) => {
                write!(out, "the copy of the first superblock at {} KiB is damaged", offset >> 10)
            }
            Self::IndexPage { level, page } => {
                write!(out, "index page {page} of level {level} is damaged")
            }
            Self::TablePage { table, page } => {
                write!(out, "page {page} of table {table} is damaged")
            }
            Self::Snapshot(checkpoint) => {
                write!(out, "a page of the snapshot of checkpoint {checkpoint} is damaged")
            }
            Self::Directory { block } => {
                write!(out, "the directory of the segment of block {} is damaged", block.0)
            }
            Self::Block(block) => write!(out, "block {} is damaged", block.0),
            Self::Refused(error) => write!(out, "{error}"),
        }
    }
}

/// The findings.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Pages of tables and index that were read.
    pub pages: u64,
    /// Blocks of the log that were read.
    pub blocks: u64,
    /// The damage: the first `FINDINGS_MAX`.
    pub findings: Vec<Finding>,
    /// Findings that are not listed.
    pub unlisted: u64,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether anything beside the log is damaged.
    pub fn has_tables(&self) -> bool {
        let is_of_log = |finding: &Finding| {
            matches!(finding, Finding::Directory { .. } | Finding::Block(_) | Finding::Refused(_))
        };
        self.findings.iter().any(|finding| !is_of_log(finding))
    }

    fn note(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.unlisted += 1;
        }
    }

    fn note_lack(&mut self, file: &Checkpoint, node: Node, lack: PageLack) {
        self.note(match lack.of(&file.layout, node) {
            DurableError::PageDamaged { table, page } => Finding::TablePage { table, page },
            DurableError::IndexDamaged { level, page } => Finding::IndexPage { level, page },
            error => Finding::Refused(error),
        });
    }
}

/// Reads the superblocks, the index and all tables of the last checkpoint, and those of snapshots.
///
/// Errors: if no superblock leads to a heap, why not; `Io` if memory is lacking.
pub fn verify_tables(device: Arc<dyn Device>, user: Option<&Key>) -> Result<Report, DurableError> {
    let mut report = Report::default();
    let mut file = DurableFile::open_without_index(device, user)?;
    if let Some(place) = file.damaged_superblock() {
        report.note(Finding::Superblock(place));
    }
    for offset in BIRTH_OFFSETS {
        if read_superblock(&*file.device, offset, user)?.is_err() {
            report.note(Finding::Birth(offset));
        }
    }
    let index = verify_pages(&file, &mut report, |report, node, lack| {
        report.note_lack(&file, node, lack);
    })?;
    file.last.index = index;
    file.last.is_settled = true;
    // If the list of snapshots is damaged, that was found.
    for snapshot in file.load_snapshots().unwrap_or_default() {
        let then = file.of_snapshot(&snapshot)?;
        verify_pages(&then, &mut report, |report, _, lack| {
            report.note(match lack {
                PageLack::Damaged => Finding::Snapshot(snapshot.checkpoint),
                PageLack::Refused(errno) => Finding::Refused(DurableError::Io(errno)),
            });
        })?;
    }
    Ok(report)
}

/// Reads the index and all tables; `lacking` is told of what cannot be had.
fn verify_pages(
    file: &Checkpoint,
    report: &mut Report,
    mut lacking: impl FnMut(&mut Report, Node, PageLack),
) -> Result<Index, DurableError> {
    let index = file.load_index_with(&mut |node, lack| {
        lacking(report, node, lack);
        Ok(())
    })?;
    let levels = file.layout.levels();
    for node in levels.iter().skip(1).flat_map(|level| level.nodes()) {
        report.pages += u64::from(!index.get(node).is_none());
    }
    let mut reader = file.reader()?;
    reader.read_all(index.of(levels[0].nodes()), |node, page| {
        report.pages += 1;
        if let Err(lack) = page {
            lacking(report, node, lack);
        }
        Ok(())
    })?;
    Ok(index)
}

/// Reads every segment in which something lives, and holds every block of it against its checksum,
/// live or dead. The store was opened again, and nothing was written since.
///
/// Errors: `Io` if memory is lacking.
pub fn verify_blocks(store: &Store, report: &mut Report) -> Result<(), StoreError> {
    let mut buffer = AlignedBuffer::new(store.segment_bytes(), 0)?;
    let frontier = store.space.lock().frontier;
    for segment in (0..frontier).map(Segment) {
        if store.blocks.segments.state(segment) == State::Written {
            verify_segment(store, segment, buffer.as_mut_slice(), report);
        }
    }
    Ok(())
}

fn verify_segment(store: &Store, segment: Segment, buffer: &mut [u8], report: &mut Report) {
    let refused = |errno| Finding::Refused(DurableError::Io(errno));
    let objects = match store.blocks.load_segment(segment, buffer) {
        Ok(objects) => objects,
        Err(StoreError::Io(errno)) => return report.note(refused(errno)),
        // Without it nobody knows what the blocks are called.
        Err(_) => {
            let block = store.blocks.geometry.block(segment, 0);
            return report.note(Finding::Directory { block });
        }
    };
    report.blocks += u64::from(store.blocks.segments.count(segment));
    for object in objects {
        match object {
            VictimObject::Unreadable { error: StoreError::Io(errno), .. } => {
                report.note(refused(errno));
            }
            VictimObject::Unreadable { block, .. }
            | VictimObject::Whole(WholeObject { block, hash: None, .. }) => {
                report.note(Finding::Block(block));
            }
            VictimObject::Whole(_) | VictimObject::Packed(_) => {}
        }
    }
}
