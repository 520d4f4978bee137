//! Durable table: hands pages of the object table in to a checkpoint, and tells the pager what
//! became of it.
//!
//! Guarantees: pages of a checkpoint that is given up are handed in again by the next one.
//! Never: brings pages to RAM.
//! Threads: the one that makes the checkpoint.

use deepheap_pager::Pager;
use deepheap_store::{DurableError, Saving};

use crate::durable_load::OBJECT_TABLE;

/// Hands pages of the object table in to a checkpoint.
pub(crate) fn save_table(
    saving: &mut Saving<'_>,
    save: impl FnOnce(&mut dyn FnMut(u32, &[u8]) -> bool) -> Result<(), u32>,
) -> Result<(), DurableError> {
    let mut failed = Ok(());
    let saved = save(&mut |page, bytes| {
        let before = saving.changed_bytes();
        if failed.is_ok() {
            failed = saving.page(OBJECT_TABLE, page, bytes);
        }
        saving.changed_bytes() > before
    });
    failed.and(saved.map_err(|page| DurableError::PageDamaged { table: OBJECT_TABLE, page }))
}

/// Pages of the object table that a checkpoint was handed, which may be given up.
pub(crate) struct HandedIn<'a>(&'a Pager);

impl<'a> HandedIn<'a> {
    pub(crate) fn begin(pager: &'a Pager) -> HandedIn<'a> {
        HandedIn(pager)
    }

    /// The checkpoint is made.
    pub(crate) fn note_made(self) {
        self.0.end_saving(true);
        core::mem::forget(self);
    }
}

impl Drop for HandedIn<'_> {
    fn drop(&mut self) {
        self.0.end_saving(false);
    }
}
