//! Saved table: the pages of one table, as the checkpoint has them at which the heap was opened,
//! read one by one when they are wanted.
//!
//! A checkpoint writes a page that has changed to the slot that the last one does not use, and one
//! that has not changed nowhere. So a page stays readable here until it is handed in to a
//! checkpoint with other contents, whatever else that and later ones write. The thread that
//! hands it in asks no more for it.
//!
//! Guarantees: bytes that are handed out were verified.
//! Never: allocates or locks after it was made; writes.
//! Threads: any; also while a checkpoint is made.

use crate::device::table_file::PageLack;
use crate::durable::checkpoint::Checkpoint;
use crate::durable::error::DurableError;
use crate::durable::layout::{Level, Node};

/// See the file's header.
pub struct SavedTable {
    /// Its index knows of no other table's pages.
    of: Checkpoint,
    table: Level,
}

impl Checkpoint {
    /// A table as the last checkpoint has it. For a heap that was just opened.
    ///
    /// Errors: `OtherTables` if there is no such table; `Io` if memory is lacking.
    pub fn saved_table(&self, id: u32) -> Result<SavedTable, DurableError> {
        let table = self.layout.table(id).ok_or(DurableError::OtherTables)?;
        let mut of = self.without_index()?;
        for (node, entry) in self.index.of(table.nodes()).filter(|(_, entry)| !entry.is_none()) {
            of.index.set(node, entry);
        }
        Ok(SavedTable { of, table })
    }
}

impl SavedTable {
    /// The pages that were ever saved, in order.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        let saved = self.of.index.of(self.table.nodes()).filter(|(_, entry)| !entry.is_none());
        saved.map(|(node, _)| node.0 - self.table.first)
    }

    /// Bytes of RAM.
    pub fn memory_bytes(&self) -> u64 {
        self.of.index.memory_bytes()
    }

    /// As `TableFile::checksum`.
    pub fn bytes_checksum(&self, page: u32, bytes: &[u8]) -> u64 {
        self.of.identity().secret.hash(bytes).bound_to(page.into())
    }

    /// Reads a page that was saved; once more if that fails.
    ///
    /// Errors: `PageLack`; the bytes are of no use then.
    pub fn read(&self, page: u32, bytes: &mut [u8]) -> Result<(), PageLack> {
        self.read_once(page, bytes).or_else(|_| self.read_once(page, bytes))
    }

    fn read_once(&self, page: u32, bytes: &mut [u8]) -> Result<(), PageLack> {
        let node = Node(self.table.first + page);
        let entry = self.of.index.get(node);
        let offset = self.of.layout.offset(node, entry.slot());
        self.of.device.read_at(offset, bytes).map_err(PageLack::Refused)?;
        if self.of.is_right(node, entry, bytes) { Ok(()) } else { Err(PageLack::Damaged) }
    }
}
