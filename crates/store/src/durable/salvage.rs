//! Salvage: what is left of a durable heap of which superblocks or pages of tables are damaged.
//!
//! A heap may be left at more than one checkpoint: at those of its two superblocks, and at those of
//! the topmost index pages in the file, to which a damaged superblock may have led. The shape of a
//! heap is in the superblocks and in two copies of the first one (`BIRTH_OFFSETS`).
//!
//! A page of a table is *lost* if it fails its checksum, or if the index page that tells of it
//! does. Of the latter only those count of which there is a slot that is not all zeros.
//!
//! Guarantees: what is handed out was verified, and what was read is durable. Nothing is written
//! before `begin`.
//! Never: takes a heap of another version, or no heap, for a damaged one.
//! Threads: one; nobody else uses the file.

use core::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use deepheap_sys::memory::aligned_buffer::AlignedBuffer;

use crate::block::cipher::Key;
use crate::device::table_file::PageLack;
use crate::device::{Device, write_superblock};
use crate::durable::checkpoint::VisitPage;
use crate::durable::error::DurableError;
use crate::durable::file::{
    DurableFile, Found, SuperblockId, choose, read_superblock, read_superblocks,
};
use crate::durable::index::{Index, checksum};
use crate::durable::layout::Node;
use crate::durable::pages::read_bare;
use crate::durable::saving::Saving;
use crate::format::BLOCK_BYTES;
use crate::format::index::{self, Entry, entries};
use crate::format::superblock::{BIRTH_OFFSETS, Superblock, Unreadable};

/// A heap at one checkpoint, as far as it can be read.
pub struct Salvage {
    pub(crate) file: DurableFile,
    checkpoint: u64,
    /// Whether a superblock led to it.
    has_superblock: bool,
    /// Pages of tables that cannot be had.
    lost: BTreeSet<Node>,
    /// Pages of the index that cannot be had.
    lost_index: Vec<Node>,
}

impl Salvage {
    /// The checkpoints that are left, the newest first; one at least.
    ///
    /// Errors: those of `open` where no superblock and no copy of the first one is whole; `Io`.
    pub fn all(device: &Arc<dyn Device>, user: Option<&Key>) -> Result<Vec<Self>, DurableError> {
        // Writes that an ended process has left in caches alone must not be lost once we build on
        // them.
        device.sync()?;
        let found = read_superblocks(&**device, user)?;
        let placed = SuperblockId::ALL.into_iter().zip(&found);
        let whole = placed.filter_map(|(at, found)| Some((at, found.as_ref().ok()?.clone())));
        let mut known: Vec<(SuperblockId, Superblock)> = whole.collect();
        known.sort_by_key(|(_, superblock)| Reverse(superblock.checkpoint));
        let newest = known.first().map(|(_, superblock)| superblock.clone());
        let template = template(&**device, user, found)?.or(newest);
        let template = template.ok_or(DurableError::SuperblocksDamaged)?;
        let is_ours =
            |it: &Superblock| it.identity == template.identity && it.shape == template.shape;
        known.retain(|(_, superblock)| is_ours(superblock));
        let spared = known.first().map_or(SuperblockId::A, |(at, _)| *at);
        let bare = DurableFile::of_superblock(device.clone(), template.clone(), spared)?;
        let mut led_to: Vec<_> = known.into_iter().map(|(at, it)| (at, it, true)).collect();
        for (root, checkpoint) in roots(&bare)? {
            if led_to.iter().all(|(_, superblock, _)| superblock.root != root) {
                led_to.push((spared, Superblock { root, checkpoint, ..template.clone() }, false));
            }
        }
        let mut all: Vec<Self> = Vec::with_capacity(led_to.len());
        for (at, superblock, has_superblock) in led_to {
            let file = DurableFile::of_superblock(device.clone(), superblock, at)?;
            let salvage = Self::load(file, has_superblock)?;
            // Bytes to which no superblock leads have to be proven by all that is below them.
            if has_superblock || salvage.is_whole() {
                all.push(salvage);
            }
        }
        // The next checkpoint is newer than all of these.
        let newest = all.iter().map(|salvage| salvage.checkpoint).max().unwrap_or(0);
        all.iter_mut().for_each(|salvage| salvage.file.last.superblock.checkpoint = newest);
        if all.is_empty() {
            return Err(DurableError::SuperblocksDamaged);
        }
        all.sort_by_key(|salvage| Reverse(salvage.checkpoint));
        Ok(all)
    }

    /// Reads the index and every page of the tables.
    fn load(mut file: DurableFile, has_superblock: bool) -> Result<Self, DurableError> {
        let mut lost_index = Vec::new();
        let mut index = file.load_index_with(&mut |node, _| {
            lost_index.push(node);
            Ok(())
        })?;
        let mut damaged = core::mem::take(&mut lost_index);
        while let Some(node) = damaged.pop() {
            match remake_index_page(&file, &mut index, node)? {
                true => load_below(&file, &mut index, node, &mut damaged)?,
                false => lost_index.push(node),
            }
        }
        let mut lost = BTreeSet::new();
        let mut reader = file.reader()?;
        let tables = file.layout.levels()[0];
        reader.read_all(index.of(tables.nodes()), |node, page| {
            if page.is_err() {
                lost.insert(node);
            }
            Ok(())
        })?;
        for &node in &lost {
            // Whatever comes in its place differs from what is there, and does not go over it.
            let entry = index.get(node);
            let other = Entry::new(!entry.checksum(), entry.slot(), entry.checkpoint());
            index.set(node, other.with_tag(*entry.tag()));
        }
        // Below an index page that is lost: everything of which there is something.
        let mut unknown: Vec<Node> = lost_index.clone();
        while let Some(node) = unknown.pop() {
            for child in file.layout.children(node) {
                if !index.get(child).is_none() || !has_bytes(&file, child)? {
                    continue;
                }
                if child.0 < tables.pages {
                    lost.insert(child);
                } else {
                    lost_index.push(child);
                    unknown.push(child);
                }
            }
        }
        drop(reader);
        file.last.index = index;
        file.last.is_settled = true;
        let checkpoint = file.superblock.checkpoint;
        let mut this = Self { file, checkpoint, has_superblock, lost, lost_index };
        this.file.snapshots = match this.lost_pages(crate::format::saved::SNAPSHOTS).is_empty() {
            true => this.file.load_snapshots().unwrap_or_default(),
            false => Vec::new(),
        };
        Ok(this)
    }

    /// The heap, of which a checkpoint can be made that is newer than all that was.
    pub fn file(&self) -> &DurableFile {
        &self.file
    }

    /// Which checkpoint it is.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Whether there is a page of the table, lost or not.
    pub fn has_any_page(&self, table: u32) -> bool {
        let level = self.file.layout.table(table);
        level.is_some_and(|level| level.nodes().any(|node| !self.file.index.get(node).is_none()))
    }

    /// Whether a superblock led to this checkpoint. Else it may be one that was never committed.
    pub fn has_superblock(&self) -> bool {
        self.has_superblock
    }

    /// Whether all pages of tables are there.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.lost_index.is_empty()
    }

    /// The pages of a table that are lost.
    pub fn lost_pages(&self, table: u32) -> Vec<u32> {
        let Some(level) = self.file.layout.table(table) else { return Vec::new() };
        let of_table = Node(level.first)..Node(level.first + level.pages);
        self.lost.range(of_table).map(|node| node.0 - level.first).collect()
    }

    /// Hands on those pages of a table that are there.
    ///
    /// Errors: `OtherTables` if there is no such table; `Io`; those of `visit`.
    pub fn load_table(&self, id: u32, visit: &mut VisitPage<'_>) -> Result<(), DurableError> {
        self.file.load_pages(id, |node| !self.lost.contains(node), visit)
    }

    /// Whether one of the two superblocks is not whole: a checkpoint writes the other one only.
    ///
    /// Errors: `Io`.
    pub fn lacks_superblock(&self) -> Result<bool, DurableError> {
        let [a, b] = SuperblockId::ALL.map(|which| self.lacks_superblock_at(which.offset()));
        Ok(a? || b?)
    }

    fn lacks_superblock_at(&self, offset: u64) -> Result<bool, DurableError> {
        let found = read_superblock(&*self.file.device, offset, None)?;
        // One of an encrypted heap is whole, and needs its key.
        Ok(!matches!(found, Ok(_) | Err(Unreadable::NeedsKey)))
    }

    /// Begins the checkpoint that has whole tables again. Each lost page has to be handed in.
    /// Copies of the first superblock that are damaged are written anew at once: nothing depends on
    /// them.
    ///
    /// Errors: `Io`.
    pub fn begin(&mut self) -> Result<Saving<'_>, DurableError> {
        let first = Superblock { checkpoint: 1, root: Entry::NONE, ..self.file.superblock.clone() };
        for offset in BIRTH_OFFSETS {
            if self.lacks_superblock_at(offset)? {
                write_superblock(&*self.file.device, offset, &first.write())?;
            }
        }
        let mut saving = self.file.begin()?;
        for &node in &self.lost_index {
            saving.rewrite_index(node);
        }
        Ok(saving)
    }
}

/// A copy of the first superblock, if one is whole. Errors: what the bytes in place of the
/// superblocks are, if they are not those of a damaged heap.
fn template(
    device: &dyn Device,
    user: Option<&Key>,
    found: [Found; 2],
) -> Result<Option<Superblock>, DurableError> {
    for offset in BIRTH_OFFSETS {
        if let Ok(birth) = read_superblock(device, offset, user)? {
            return Ok(Some(birth));
        }
    }
    choose(found).map(|_| None)
}

/// The topmost index pages in the file, each with an entry for it, and the checkpoint that wrote
/// it.
fn roots(file: &DurableFile) -> Result<Vec<(Entry, u64)>, DurableError> {
    if file.is_encrypted() {
        // Their tags are in the superblocks alone.
        return Ok(Vec::new());
    }
    let entries =
        slots_of_index(file, file.layout.root(), &mut AlignedBuffer::new(BLOCK_BYTES, 0)?);
    Ok(entries.into_iter().flatten().map(|entry| (entry, entry.checkpoint())).collect())
}

/// The entries of what is in the two slots of an index page. The checkpoint that wrote it is the
/// newest that wrote anything which it tells of.
fn slots_of_index(
    file: &DurableFile,
    node: Node,
    buffer: &mut AlignedBuffer,
) -> [Option<Entry>; 2] {
    let secret = &file.superblock.identity.secret;
    [0, 1].map(|slot| {
        let page = buffer.as_mut_slice();
        read_bare(&*file.device, file.layout.offset(node, slot), page).ok()?;
        let checkpoint = entries(page).map(Entry::checkpoint).max().filter(|it| *it > 0)?;
        Some(Entry::new(checksum(secret, node, page), slot, checkpoint))
    })
}

/// Makes a damaged page of the index anew, if all that it tells of are pages of the index: such a
/// page was written by the newest checkpoint that it tells of itself, so its entry can be told from
/// its bytes. The checksum of the damaged page proves that the entries are right.
fn remake_index_page(
    file: &DurableFile,
    index: &mut Index,
    node: Node,
) -> Result<bool, DurableError> {
    let (entry, tables) = (index.get(node), file.layout.levels()[0].pages);
    if file.is_encrypted() {
        // The tags of the pages below are in the damaged one alone.
        return Ok(false);
    }
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES, 0)?;
    let secret = &file.superblock.identity.secret;
    let mut page = [0; BLOCK_BYTES];
    let mut below = Vec::new();
    for (at, child) in file.layout.children(node).enumerate() {
        if child.0 < tables {
            return Ok(false);
        }
        let slots = slots_of_index(file, child, &mut buffer).into_iter().flatten().rev();
        let older = slots.filter(|slot| slot.checkpoint() <= entry.checkpoint());
        let newest = older.max_by_key(|slot| slot.checkpoint()).unwrap_or(Entry::NONE);
        index::set_entry(&mut page, at, newest);
        below.push((child, newest));
    }
    if checksum(secret, node, &page) != entry.checksum() {
        return Ok(false);
    }
    below.into_iter().for_each(|(child, entry)| index.set(child, entry));
    Ok(true)
}

/// Enters what the index pages below one tell of; adds those that are damaged.
fn load_below(
    file: &DurableFile,
    index: &mut Index,
    node: Node,
    damaged: &mut Vec<Node>,
) -> Result<(), DurableError> {
    let mut reader = file.reader()?;
    let mut next: Vec<Node> = file.layout.children(node).collect();
    while let Some(node) = next.pop() {
        if node.0 < file.layout.levels()[0].pages {
            continue;
        }
        reader.read_all([(node, index.get(node))].into_iter(), |node, page| {
            match page {
                Ok(page) if index.read(&file.layout, node, file.checkpoint(), page) => {
                    next.extend(file.layout.children(node));
                }
                _ => damaged.push(node),
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Whether there is anything in one of the two slots of a page.
fn has_bytes(file: &DurableFile, node: Node) -> Result<bool, DurableError> {
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES, 0)?;
    let page = buffer.as_mut_slice();
    for slot in [0, 1] {
        match read_bare(&*file.device, file.layout.offset(node, slot), page) {
            Ok(()) if page.iter().all(|&byte| byte == 0) => {}
            // Behind the end of the file.
            Err(PageLack::Damaged) => {}
            Ok(()) | Err(PageLack::Refused(_)) => return Ok(true),
        }
    }
    Ok(false)
}
