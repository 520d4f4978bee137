//! Evict: what is written when a page of a map with a log leaves RAM.
//!
//! | the page | is written |
//! |---|---|
//! | as it was logged, or as the base has it | not at all, if its last record is whole |
//! | the same, and that record is a part | the base, if all is committed; else a whole record |
//! | changed | a whole record |
//!
//! A *whole* record has every piece that differs from the base: base and record are the page.
//!
//! Guarantees: an error leaves the page where it is, and what was logged of it.
//! Never: allocates | writes into the base what was not committed.
//! Threads: the owner of the shard.

use core::sync::atomic::Ordering::Relaxed;

use deepheap_store::device::Write;
use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;

use crate::log::tables::{FoldState, Logged};
use crate::log::{Log, OwnedLog};
use crate::tables::control::BATCH;

impl OwnedLog<'_> {
    /// Writes what must be before these pages of a slot leave RAM; answers which may, a bit for
    /// each.
    pub(crate) fn log_evicted(
        &self,
        slot: *mut u8,
        pages: &[u32; BATCH],
        changed: &[usize],
    ) -> u32 {
        let mut logged = 0;
        for &index in changed {
            // SAFETY: a page of the slot, which nobody changes now.
            let bytes = unsafe { core::slice::from_raw_parts(slot.add(index * PAGE), PAGE) };
            match self.log_page(pages[index], bytes) {
                Ok(()) => logged |= 1 << index,
                Err(Errno::ENOSPC) => {}
                Err(_) => {
                    let counts = &self.owned.region.tables.header().counts;
                    counts.write_errors.fetch_add(1, Relaxed);
                }
            }
        }
        logged
    }

    fn log_page(&self, page: u32, bytes: &[u8]) -> Result<(), Errno> {
        let Some(entry) = self.owned.find(page) else { return Ok(()) };
        let hashes = self.log.piece_hashes(bytes);
        let changed = self.shard.changed_pieces(entry, &hashes);
        let logged = self.shard.logged(page);
        if changed == 0 && logged.is_some_and(|logged| self.log.is_committed(page, logged.position))
        {
            self.log.write_base(page, bytes)?;
            self.shard.forget_logged(page);
            return Ok(());
        }
        let before = logged.map_or(0, |logged| logged.pieces);
        self.log_pieces(page, bytes, before | changed)?;
        self.shard.set_pieces(entry, &hashes);
        Ok(())
    }

    /// Logs these pieces of a page, which are all that were changed since its last record.
    pub(crate) fn log_pieces(&self, page: u32, bytes: &[u8], pieces: u16) -> Result<(), Errno> {
        if !self.shard.has_place(page, self.log.words) {
            return Err(Errno::ENOSPC);
        }
        // Before the record: if folding begins in between, the record is behind its target, and the
        // page is folded for nothing. In the other order it would be left out.
        let generation = FoldState::of(self.log.words).generation;
        let position = self.log.append(page, pieces, bytes)?;
        let logged = match self.shard.logged(page) {
            Some(before) => Logged {
                position,
                is_whole: pieces | before.pieces == pieces,
                generation: before.generation,
                pieces: pieces | before.pieces,
            },
            None => Logged { position, is_whole: true, generation, pieces },
        };
        self.shard.set_logged(page, logged);
        Ok(())
    }
}

impl Log<'_> {
    /// Writes a page where it is in the base: all of its bytes are committed. Durable with the next
    /// sync of the device.
    pub(crate) fn write_base(&self, page: u32, bytes: &[u8]) -> Result<(), Errno> {
        debug_assert_eq!(bytes.len(), PAGE);
        let mut writes = [Write::new(self.file.shape().place_of_page(page), bytes)];
        self.file.device().write(&mut writes);
        writes[0].result?;
        self.region.tables.header().counts.pages_written.fetch_add(1, Relaxed);
        Ok(())
    }
}
