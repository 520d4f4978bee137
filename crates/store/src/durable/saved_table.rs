//! Saved table: the pages of one table, as the checkpoint has them at which the heap was opened,
//! read one by one when they are wanted.
//!
//! A checkpoint writes a page that has changed to the slot that the last one does not use, and one
//! that has not changed nowhere. So a page stays readable here until it is handed in to a
//! checkpoint with other contents, whatever else that and later ones write. Whoever hands it in
//! asks no more for it.
//!
//! Guarantees: bytes that are handed out were verified.
//! Never: allocates or locks after it was made; writes.
//! Threads: any; also while a checkpoint is made.

use std::sync::Arc;

use deepheap_sys::memory::pinned_array::PinnedArray;

use crate::block::checksum::Secret;
use crate::block::cipher::Cipher;
use crate::device::Device;
use crate::device::table_file::PageLack;
use crate::durable::checkpoint::Checkpoint;
use crate::durable::error::DurableError;
use crate::durable::layout::{Layout, Node};
use crate::durable::pages::is_right;
use crate::format::index::Entry;

/// See the file's header.
pub struct SavedTable {
    device: Arc<dyn Device>,
    layout: Layout,
    secret: Secret,
    /// What the pages are encrypted with.
    cipher: Option<Arc<Cipher>>,
    first: u32,
    entries: PinnedArray<[u64; 4]>,
}

impl Checkpoint {
    /// A table as the last checkpoint has it. For a heap that was just opened.
    ///
    /// Errors: `OtherTables` if there is no such table; `Io` if memory is lacking.
    pub fn saved_table(&self, id: u32) -> Result<SavedTable, DurableError> {
        let table = self.layout.table(id).ok_or(DurableError::OtherTables)?;
        let mut entries = PinnedArray::new(table.pages as usize)?;
        for (node, entry) in table.nodes().map(|node| (node, self.index.get(node))) {
            if !entry.is_none() {
                entries[(node.0 - table.first) as usize] = entry.to_words();
            }
        }
        Ok(SavedTable {
            device: self.device.clone(),
            layout: self.layout.clone(),
            secret: self.superblock.identity.secret.clone(),
            cipher: self.cipher.clone(),
            first: table.first,
            entries,
        })
    }
}

impl SavedTable {
    /// The pages that were ever saved, in order.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        (0..self.entries.len() as u32).filter(|&page| !self.entry(page).is_none())
    }

    /// Bytes of RAM.
    pub fn memory_bytes(&self) -> u64 {
        self.pages().count() as u64 * size_of::<[u64; 4]>() as u64
    }

    /// As `TableFile::checksum`.
    pub fn bytes_checksum(&self, page: u32, bytes: &[u8]) -> u64 {
        self.secret.hash(bytes).bound_to(page as u64)
    }

    /// Reads a page that was saved; once more if that fails.
    ///
    /// Errors: `PageLack`; the bytes are of no use then.
    pub fn read(&self, page: u32, bytes: &mut [u8]) -> Result<(), PageLack> {
        self.read_once(page, bytes).or_else(|_| self.read_once(page, bytes))
    }

    fn read_once(&self, page: u32, bytes: &mut [u8]) -> Result<(), PageLack> {
        let (node, entry) = (Node(self.first + page), self.entry(page));
        let offset = self.layout.offset(node, entry.slot());
        self.device.read_at(offset, bytes).map_err(PageLack::Refused)?;
        match is_right(&self.secret, self.cipher.as_deref(), (node, entry), bytes) {
            true => Ok(()),
            false => Err(PageLack::Damaged),
        }
    }

    fn entry(&self, page: u32) -> Entry {
        Entry::from_words(self.entries[page as usize])
    }
}
