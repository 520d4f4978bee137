//! Checkpoint: what can be read of a durable heap: one checkpoint, the last one or a snapshot.
//!
//! Guarantees: a page of a table is verified before it is handed out.
//! Never: writes.
//! Threads: one at a time; the log's device may be used meanwhile.

use std::sync::Arc;

use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use zerocopy::FromBytes;

use crate::block::cipher::{Cipher, Piece, TAG_BYTES, Tag};
use crate::device::table_file::PageLack;
use crate::device::{Device, Read};
use crate::durable::error::DurableError;
use crate::durable::index::{Index, checksum};
use crate::durable::layout::{Layout, Node};
use crate::durable::pages::{BATCH_PAGES, lack_of};
use crate::format::BLOCK_BYTES;
use crate::format::geometry::Geometry;
use crate::format::index::Entry;
use crate::format::saved::{RECORDS_PER_PAGE, SCALARS, SEGMENTS, Scalars, SegmentRecord};
use crate::format::superblock::{HeapShape, Stamp, Superblock, TableShape};
use crate::log::identity::Identity;
use crate::log::options::Options;

/// A checkpoint that is kept under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// 1 to 64 bytes.
    pub name: String,
    /// The checkpoint.
    pub checkpoint: u64,
    /// When it was made, seconds since 1970.
    pub time: u64,
    /// The entry of the topmost page of its tables.
    pub(crate) root: Entry,
    /// Where its tables are.
    pub(crate) area: u32,
}

/// A function that takes the pages of a table: each page's number, and its 4096 bytes.
pub type VisitPage<'a> = dyn FnMut(u32, &[u8]) -> Result<(), DurableError> + 'a;

/// See the file's header.
pub struct Checkpoint {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) layout: Layout,
    pub(crate) superblock: Superblock,
    /// The cipher of pages; none: they are not encrypted.
    pub(crate) cipher: Option<Arc<Cipher>>,
    pub(crate) index: Index,
    /// Whether the index in RAM is that of the checkpoint. Else another one is being made or was
    /// given up, and it has to be read again.
    pub(crate) is_settled: bool,
}

impl Checkpoint {
    /// The checkpoint of a superblock, with an index that knows of no page.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        superblock: Superblock,
    ) -> Result<Self, DurableError> {
        let layout = Layout::new(&superblock.shape)
            .map_err(|_| DurableError::Inconsistent("its list of tables"))?;
        let shape = &superblock.shape;
        if Geometry::new(shape.segment_bytes, shape.capacity_bytes).is_err()
            || superblock.log_start != layout.log_start()
        {
            return Err(DurableError::Inconsistent("the place of its log"));
        }
        check_length(&*device, superblock.log_start.saturating_add(shape.capacity_bytes))?;
        let cipher = superblock.identity.key.as_ref().map(|key| Arc::new(Cipher::new(key)));
        let index = Index::new(&layout)?;
        Ok(Self { device, layout, superblock, cipher, index, is_settled: false })
    }

    /// The same checkpoint, with an index that knows of no page.
    pub(crate) fn without_index(&self) -> Result<Self, DurableError> {
        Ok(Self {
            device: self.device.clone(),
            layout: self.layout.clone(),
            superblock: self.superblock.clone(),
            cipher: self.cipher.clone(),
            index: Index::new(&self.layout)?,
            is_settled: false,
        })
    }

    /// That of a snapshot, with an index that knows of no page.
    pub(crate) fn of_snapshot(&self, snapshot: &Snapshot) -> Result<Self, DurableError> {
        let mut then = self.without_index()?;
        then.layout = self.layout.in_area(snapshot.area);
        then.superblock.checkpoint = snapshot.checkpoint;
        then.superblock.root = snapshot.root;
        then.superblock.stamp.time = snapshot.time;
        Ok(then)
    }

    /// What reads the pages of the tables.
    ///
    /// Errors: `Io` if memory is lacking.
    pub(crate) fn reader(&self) -> Result<PageReader<'_>, DurableError> {
        let buffer = AlignedBuffer::new(BATCH_PAGES * BLOCK_BYTES, 0)?;
        Ok(PageReader { of: self, buffer })
    }

    /// Whether the bytes are those of the page that the entry tells of; decrypts them.
    pub(crate) fn is_right(&self, node: Node, entry: Entry, page: &mut [u8]) -> bool {
        let piece = Piece::Page { checkpoint: entry.checkpoint(), node: node.0 };
        let is_open = self.cipher.as_ref().is_none_or(|it| it.open(piece, page, entry.tag()));
        is_open && checksum(&self.identity().secret, node, page) == entry.checksum()
    }

    /// Encrypts a page that this checkpoint writes, in place, if the heap is encrypted.
    pub(crate) fn seal_page(&self, checkpoint: u64, node: Node, page: &mut [u8]) -> Tag {
        let piece = Piece::Page { checkpoint, node: node.0 };
        self.cipher.as_ref().map_or([0; TAG_BYTES], |cipher| cipher.seal(piece, page))
    }

    /// Whether the heap is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// The shape of the heap.
    pub fn shape(&self) -> &HeapShape {
        &self.superblock.shape
    }

    /// Errors: `OtherTables` if the heap's tables are not these, in this order.
    pub fn expect_tables(&self, tables: &[TableShape]) -> Result<(), DurableError> {
        if self.shape().tables == tables { Ok(()) } else { Err(DurableError::OtherTables) }
    }

    /// The identity of the heap.
    pub fn identity(&self) -> &Identity {
        &self.superblock.identity
    }

    /// The number of the last checkpoint, from 1.
    pub fn checkpoint(&self) -> u64 {
        self.superblock.checkpoint
    }

    /// The caller's note with the last checkpoint.
    pub fn stamp(&self) -> &Stamp {
        &self.superblock.stamp
    }

    /// Bytes of RAM, the device's not counted.
    pub fn memory_bytes(&self) -> u64 {
        self.index.memory_bytes() + size_of::<Self>() as u64
    }

    /// Where the log begins, bytes: after everything else.
    pub fn log_start(&self) -> u64 {
        self.superblock.log_start
    }

    /// The options of the store of this heap, with so many buffers and segments in reserve.
    pub fn store_options(&self, buffers: usize, reserve_segments: u32) -> Options {
        let HeapShape { segment_bytes, capacity_bytes, .. } = *self.shape();
        Options { segment_bytes, capacity_bytes, buffers, reserve_segments }
    }

    /// Hands on every page of the table that was ever saved, verified, in order, as it was at the
    /// checkpoint; the others are zeros. Stops at the first error.
    ///
    /// Errors: `PageDamaged`; `OtherTables` if there is no such table; `Io`; those of `visit`.
    pub fn load_table(&self, id: u32, visit: &mut VisitPage<'_>) -> Result<(), DurableError> {
        self.load_pages(id, |_| true, visit)
    }

    /// As `load_table`, those of its pages that are `wanted`.
    pub(crate) fn load_pages(
        &self,
        id: u32,
        wanted: impl Fn(&Node) -> bool,
        visit: &mut VisitPage<'_>,
    ) -> Result<(), DurableError> {
        let table = self.layout.table(id).ok_or(DurableError::OtherTables)?;
        let reloaded;
        let index = if self.is_settled {
            &self.index
        } else {
            reloaded = self.load_index()?;
            &reloaded
        };
        let pages = index.of(table.nodes().filter(wanted));
        self.reader()?.read_all(pages, |node, page| match page {
            Ok(bytes) => visit(node.0 - table.first, bytes),
            Err(lack) => Err(lack.of(&self.layout, node)),
        })
    }

    /// The index of the last checkpoint, read and verified from its root down.
    pub(crate) fn load_index(&self) -> Result<Index, DurableError> {
        self.load_index_with(&mut |node, lack| Err(lack.of(&self.layout, node)))
    }

    /// As `load_index`; `lacking` decides whether to go on without a page.
    pub(crate) fn load_index_with(
        &self,
        lacking: &mut dyn FnMut(Node, PageLack) -> Result<(), DurableError>,
    ) -> Result<Index, DurableError> {
        let mut index = Index::new(&self.layout)?;
        index.set(self.layout.root(), self.superblock.root);
        let mut reader = self.reader()?;
        for level in self.layout.levels().iter().skip(1).rev() {
            // Those of this level are known; those below it are read.
            let known: Vec<_> = index.of(level.nodes()).filter(|(_, it)| !it.is_none()).collect();
            reader.read_all(known.into_iter(), |node, page| match page {
                Ok(page) if index.read(&self.layout, node, self.checkpoint(), page) => Ok(()),
                Ok(_) => lacking(node, PageLack::Damaged),
                Err(lack) => lacking(node, lack),
            })?;
        }
        Ok(index)
    }

    /// The records of all segments, up to the last page of them that was saved.
    pub(crate) fn segments(&self) -> Result<Vec<SegmentRecord>, DurableError> {
        let mut records = Vec::new();
        self.load_table(SEGMENTS, &mut |page, bytes| {
            records.resize((page * RECORDS_PER_PAGE) as usize, SegmentRecord::NONE);
            records.extend_from_slice(SegmentRecord::all_of(bytes));
            Ok(())
        })?;
        Ok(records)
    }

    /// The numbers of which there is one; none if they were never saved.
    pub(crate) fn scalars(&self) -> Result<Option<Scalars>, DurableError> {
        let mut found = None;
        self.load_table(SCALARS, &mut |_, page| {
            found = Scalars::read_from_prefix(page).ok().map(|(scalars, _)| scalars);
            Ok(())
        })?;
        Ok(found)
    }

    /// Adds the places of segments that hold blocks of the checkpoint.
    pub(crate) fn note_places(&self, held: &mut Vec<bool>) -> Result<(), DurableError> {
        for (segment, record) in (0..).zip(self.segments()?) {
            if record.holds_blocks() {
                let place = (segment ^ record.place.get()) as usize;
                held.resize(held.len().max(place + 1), false);
                held[place] = true;
            }
        }
        Ok(())
    }
}

/// Reads pages and verifies them.
pub(crate) struct PageReader<'a> {
    of: &'a Checkpoint,
    buffer: AlignedBuffer,
}

impl PageReader<'_> {
    /// Reads the pages, `BATCH_PAGES` at most, and hands on what came of each, in their order,
    /// until that fails. The pages have entries, and rise.
    fn read(
        &mut self,
        wanted: &[(Node, Entry)],
        mut visit: impl FnMut(Node, Result<&[u8], PageLack>) -> Result<(), DurableError>,
    ) -> Result<(), DurableError> {
        let bytes = &mut self.buffer.as_mut_slice()[..wanted.len() * BLOCK_BYTES];
        let offset = |&(node, entry): &(Node, Entry)| self.of.layout.offset(node, entry.slot());
        let follows = |one: &(Node, Entry), next: &(Node, Entry)| {
            offset(next) == offset(one) + BLOCK_BYTES as u64
        };
        let mut reads = Vec::with_capacity(wanted.len());
        let mut rest = &mut *bytes;
        for run in wanted.chunk_by(follows) {
            let piece;
            (piece, rest) = rest.split_at_mut(run.len() * BLOCK_BYTES);
            reads.push(Read::new(offset(&run[0]), piece));
        }
        self.of.device.read(&mut reads);
        // A run that failed as a whole may have failed at one page: its bytes decide.
        drop(reads);
        for (page, wanted) in bytes.chunks_mut(BLOCK_BYTES).zip(wanted) {
            let &(node, entry) = wanted;
            let mut outcome = Ok(());
            if !self.of.is_right(node, entry, page) {
                outcome = self.of.device.read_at(offset(wanted), page).map_err(lack_of);
                if outcome.is_ok() && !self.of.is_right(node, entry, page) {
                    outcome = Err(PageLack::Damaged);
                }
            }
            visit(node, outcome.map(|()| &*page))?;
        }
        Ok(())
    }

    /// As `read`, of any number of pages; those that were never saved are left out.
    pub(crate) fn read_all(
        &mut self,
        pages: impl Iterator<Item = (Node, Entry)>,
        mut visit: impl FnMut(Node, Result<&[u8], PageLack>) -> Result<(), DurableError>,
    ) -> Result<(), DurableError> {
        let mut pages = pages.filter(|(_, entry)| !entry.is_none()).peekable();
        while pages.peek().is_some() {
            let batch: Vec<_> = pages.by_ref().take(BATCH_PAGES).collect();
            self.read(&batch, &mut visit)?;
        }
        Ok(())
    }
}

/// Errors: `Truncated` if the device ends before this byte.
pub(crate) fn check_length(device: &dyn Device, needed: u64) -> Result<(), DurableError> {
    let found = device.len();
    if found < needed { Err(DurableError::Truncated { needed, found }) } else { Ok(()) }
}
