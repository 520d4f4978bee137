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

use crate::log::Log;
use crate::log::tables::{FoldState, Logged};
use crate::tables::ownership::Owned;

impl Owned<'_> {
    /// Whether a page that is as it was logged must be written all the same before it leaves.
    pub(crate) fn is_logged_in_parts(&self, page: u32) -> bool {
        self.logged(page).is_some_and(|logged| !logged.is_whole)
    }

    /// Writes what must be before a page leaves RAM.
    pub(crate) fn log_evicted(&self, log: &Log<'_>, page: u32, bytes: &[u8]) -> Result<(), Errno> {
        let Some(entry) = self.find(page) else { return Ok(()) };
        let (changed, hashes) = self.changed_pieces(entry, bytes);
        let logged = self.logged(page);
        match logged {
            Some(logged) if changed == 0 && log.is_committed(page, logged.position) => {
                log.write_base(page, bytes)?;
                self.forget_logged(page);
                return Ok(());
            }
            _ => {}
        }
        let before = logged.map_or(0, |logged| logged.pieces);
        self.log_pieces(log, page, bytes, before | changed)?;
        self.set_pieces(entry, &hashes);
        Ok(())
    }

    /// Logs these pieces of a page, which are all that were changed since its last record.
    pub(crate) fn log_pieces(
        &self,
        log: &Log<'_>,
        page: u32,
        bytes: &[u8],
        pieces: u16,
    ) -> Result<(), Errno> {
        if !self.has_log_place(page) {
            return Err(Errno::ENOSPC);
        }
        // Before the record: if folding begins in between, the record is behind its target, and the
        // page is folded for nothing. The other way round it would be left out.
        let generation = FoldState::of(log.words).generation;
        let position = log.append(page, pieces, bytes)?;
        let logged = match self.logged(page) {
            Some(before) => Logged {
                position,
                is_whole: pieces | before.pieces == pieces,
                generation: before.generation,
                pieces: pieces | before.pieces,
            },
            None => Logged { position, is_whole: true, generation, pieces },
        };
        self.set_logged(page, logged);
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
        self.region.control.header().counts.pages_written.fetch_add(1, Relaxed);
        Ok(())
    }
}
