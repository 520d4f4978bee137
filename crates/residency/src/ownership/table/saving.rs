//! Table saving: hands out pages of the object table for a checkpoint.
//!
//! A page that was evicted is handed out before the cut; at the cut those that are in RAM are, and
//! those that were evicted in between. A page that is at its home in the checkpoint that the heap
//! was opened at is not: it has not changed, and its slot there stays as it is for as long as no
//! later checkpoint is handed the page with other contents (`SavedTable`). When that happens to a
//! page in RAM, it loses its home here.
//!
//! Guarantees: after `save` and a commit the checkpoint has every page as it was.
//! Never: allocates; brings a page to RAM.
//! Threads: one at a time; with pages in RAM, while no thread moves an object.

use deepheap_store::Block;
use deepheap_sys::threads::atomic::Ordering;

use super::directory::Home;
use super::{BYTES, ObjectTable, Place};
use crate::PAGE;
use crate::ownership::descriptor::DescriptorId;

impl ObjectTable {
    /// Hands out the pages of the table that the last checkpoint may not have as they are: those in
    /// RAM, unless `only_cold`, and those that were evicted since. An object in RAM is in its
    /// backing block, if it has one, or else nowhere. `page` answers whether the checkpoint wrote
    /// it.
    ///
    /// Errors: the number of a page that is lost.
    pub(in crate::ownership) fn save(
        &self,
        only_cold: bool,
        page: &mut dyn FnMut(u32, &[u8]) -> bool,
        backing: impl Fn(DescriptorId) -> Option<Block>,
    ) -> core::result::Result<(), u32> {
        let (mut at, end) = (0, self.directory.pages());
        while let Some(number) = self.directory.next_used(at, end) {
            at = number + 1;
            let mut locked = self.directory.lock(number);
            if locked.is_here() && !only_cold {
                let mut places = [0; PAGE];
                for (to, entry) in
                    places.as_chunks_mut::<BYTES>().0.iter_mut().zip(self.page(number))
                {
                    let place = match Place::decode(entry.load(Ordering::Acquire)) {
                        Place::Cached(id) | Place::Busy(id) => {
                            backing(id).map_or(Place::Zero, Place::Stored)
                        }
                        place => place,
                    };
                    let Some(bytes) = place.to_bytes() else { return Err(number as u32) };
                    *to = bytes;
                }
                // The copy that it has is another one than the checkpoint's from now on, or lies
                // where the one after that will write.
                if page(number as u32, &places) {
                    locked.set_home(Home::NOWHERE, 0);
                }
            } else if !locked.is_here() && locked.is_unsaved() {
                let mut buffer = self.homes.buffer();
                let bytes = buffer.page();
                match locked.home() {
                    Home::NOWHERE => bytes.fill(0),
                    home => {
                        let read = self.homes.read(home, number, locked.checksum(), bytes);
                        read.map_err(|_| number as u32)?;
                    }
                }
                page(number as u32, bytes);
                locked.set_saving();
            }
        }
        Ok(())
    }

    /// The checkpoint that was handed pages is the last one now, or it was given up.
    pub fn end_saving(&self, is_saved: bool) {
        let (mut at, end) = (0, self.directory.pages());
        while let Some(page) = self.directory.next_used(at, end) {
            self.directory.lock(page).end_saving(is_saved);
            at = page + 1;
        }
    }
}
