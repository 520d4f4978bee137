//! Saving: a checkpoint of a durable heap that is being made.
//!
//! `page` takes the pages of the tables, and writes those that differ from what was saved last,
//! each into the slot that the last checkpoint does not use. `commit` writes the index pages above
//! them in the same way, syncs, writes the older superblock, and syncs again.
//!
//! ```text
//!   pages, index pages --> sync --> superblock --> sync
//!   ^                      ^        ^              ^
//!   a failure here:        here:    from here on:
//!   nothing has happened,  no more  no more checkpoints; the heap opens at this one
//!   try again              of them  or at the one before
//! ```
//!
//! Guarantees: until the superblock is written the last checkpoint is untouched.
//! Never: repeats a sync that failed; asks for a table after `page`; takes more memory than a
//! buffer of 1 MiB and the numbers of the index pages that change.
//! Threads: one at a time.

use std::collections::BTreeSet;

use deepheap_sys::errno::Errno;

use crate::device::write_superblock;
use crate::durable::error::DurableError;
use crate::durable::file::DurableFile;
use crate::durable::index::checksum;
use crate::durable::layout::Node;
use crate::durable::pages::PageWriter;
use crate::format::BLOCK_BYTES;
use crate::format::index::Entry;
use crate::format::superblock::{Stamp, Superblock};

/// A checkpoint that is being made. If it is dropped, it never was.
pub struct Saving<'a> {
    file: &'a mut DurableFile,
    writer: PageWriter,
    /// Its number.
    checkpoint: u64,
    /// Index pages that have to be written.
    changed: BTreeSet<Node>,
    changed_bytes: u64,
    /// Why it cannot be committed any more.
    failure: Option<DurableError>,
}

impl DurableFile {
    /// Reads the index again if a checkpoint was given up.
    pub(crate) fn settle(&mut self) -> Result<(), DurableError> {
        self.may_write?;
        if !self.is_settled {
            self.last.index = self.load_index()?;
            self.last.is_settled = true;
        }
        Ok(())
    }

    /// Begins a checkpoint.
    ///
    /// Errors: `Stopped`; `Io` if memory is lacking; if a checkpoint was given up before, those of
    /// `open`.
    pub fn begin(&mut self) -> Result<Saving<'_>, DurableError> {
        self.settle()?;
        let writer = PageWriter::new()?;
        // Until the commit.
        self.last.is_settled = false;
        Ok(Saving {
            checkpoint: self.superblock.checkpoint + 1,
            changed: BTreeSet::new(),
            file: self,
            writer,
            changed_bytes: 0,
            failure: None,
        })
    }
}

impl Saving<'_> {
    /// The 4096 bytes of a page of a table, as the checkpoint is to have them. A page that is not
    /// handed in keeps what it had. One of zeros that was never saved costs nothing.
    ///
    /// Errors: `Io`; the checkpoint cannot be committed then, and another one can be begun.
    ///
    /// # Panics
    /// If the heap has no such page, or these are not 4096 bytes.
    pub fn page(&mut self, table: u32, page: u32, bytes: &[u8]) -> Result<(), DurableError> {
        assert_eq!(bytes.len(), BLOCK_BYTES, "a page of a table has 4 KiB");
        let node = self.file.layout.node(table, page);
        let saved = self.file.index.get(node);
        if saved.is_none() && bytes.iter().all(|&byte| byte == 0) {
            return self.failure.map_or(Ok(()), Err);
        }
        let sum = checksum(&self.file.superblock.identity.secret, node, bytes);
        if !saved.is_none() && saved.checksum() == sum {
            return self.failure.map_or(Ok(()), Err);
        }
        self.write(node, sum, bytes)
    }

    /// A page of the index is written in any case: what is there is damaged.
    pub(crate) fn rewrite_index(&mut self, node: Node) {
        self.changed.insert(node);
    }

    /// Bytes of pages that were written, or are about to be.
    pub fn changed_bytes(&self) -> u64 {
        self.changed_bytes
    }

    /// The number that the checkpoint will have.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Makes the checkpoint the last one; returns its number. The caller's earlier writes to the
    /// log are part of it.
    ///
    /// Errors: `Io`, and nothing has happened; `SyncFailed` and `Undecided`, and no checkpoint can
    /// be made any more.
    pub fn commit(mut self, stamp: Stamp) -> Result<u64, DurableError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.write_index()?;
        let flushed = self.writer.flush(&*self.file.device);
        self.note(flushed)?;
        if let Err(errno) = self.file.device.sync() {
            return self.stop(DurableError::SyncFailed(errno));
        }
        let superblock = Superblock {
            checkpoint: self.checkpoint,
            root: self.file.index.get(self.file.layout.root()),
            stamp,
            ..self.file.superblock.clone()
        };
        let place = self.file.newest.other();
        let written = write_superblock(&*self.file.device, place.offset(), &superblock.write());
        if let Err(errno) = written.and_then(|()| self.file.device.sync()) {
            return self.stop(DurableError::Undecided(errno));
        }
        self.file.last.superblock = superblock;
        self.file.newest = place;
        self.file.last.is_settled = true;
        Ok(self.checkpoint)
    }

    /// Writes the index pages above what was written. A page has a lower number than the one that
    /// tells of it.
    fn write_index(&mut self) -> Result<(), DurableError> {
        while let Some(node) = self.changed.pop_first() {
            let bytes = self.file.index.write(&self.file.layout, node);
            let sum = checksum(&self.file.superblock.identity.secret, node, &bytes);
            self.write(node, sum, &bytes)?;
        }
        Ok(())
    }

    /// Writes a page into the slot that the last checkpoint does not use.
    fn write(&mut self, node: Node, sum: u64, bytes: &[u8]) -> Result<(), DurableError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let device = self.file.device.clone();
        let saved = self.file.index.get(node);
        let slot = if saved.checkpoint() == self.checkpoint {
            // Once more: what is written there must not be on its way with what comes now.
            let flushed = self.writer.flush(&*device);
            self.note(flushed)?;
            saved.slot()
        } else {
            // A page that was never saved has both slots free.
            saved.slot() ^ 1
        };
        let mut copy = [0; BLOCK_BYTES];
        copy.copy_from_slice(bytes);
        let tag = self.file.seal_page(self.checkpoint, node, &mut copy);
        self.file.last.index.set(node, Entry::new(sum, slot, self.checkpoint).with_tag(tag));
        self.changed.extend(self.file.layout.parent(node));
        self.changed_bytes += BLOCK_BYTES as u64;
        let pushed = self.writer.push(&*device, self.file.layout.offset(node, slot), &copy);
        self.note(pushed)
    }

    /// Remembers that the device refused.
    fn note(&mut self, outcome: Result<(), Errno>) -> Result<(), DurableError> {
        outcome.map_err(|errno| {
            let failure = DurableError::Io(errno);
            self.failure = Some(failure);
            failure
        })
    }

    /// The device did not keep what it must: nothing more is written.
    fn stop(&mut self, why: DurableError) -> Result<u64, DurableError> {
        self.file.may_write = Err(DurableError::Stopped);
        Err(why)
    }
}
