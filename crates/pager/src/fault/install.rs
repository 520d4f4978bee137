//! Install: puts owned objects where the program can touch them.
//!
//! Guarantees: a page is complete before it is installed: the object, then zeros.
//! Never: allocates, waits, reads from the store.
//! Threads: faulting ones in their signal handler, and the fetchers, inside the gate.

use core::ops::Range;

use deepheap_heap::PageNo;
use deepheap_policy::replacement::{self, Rank};
use deepheap_residency::contents::fill_page;
use deepheap_residency::counters::Counted;
use deepheap_residency::frames::CopiedIn;
use deepheap_residency::ownership::{
    CameBy, Descriptor, DescriptorId, Flag, OwnedList, Place, UNKNOWN_HASH,
};
use deepheap_residency::page_buffer::Reserved;

use crate::PAGE;
use crate::ahead::window::Window;
use crate::fault::report::FaultError;
use crate::pager::Pager;

impl Pager {
    /// Copies in the bytes of consecutive owned pages, the members `range` of a list, and makes
    /// them resident. Those that the kernel refused are still in the list.
    pub(crate) fn install<const N: usize>(
        &self,
        first: PageNo,
        source: *const u8,
        owned: &mut OwnedList<N>,
        range: Range<usize>,
        reserved: &mut Reserved<'_>,
    ) -> CopiedIn {
        let exists = |at| self.note_existing(owned.id(range.start + at));
        // SAFETY: the caller's source holds a page for each, pinned and its own; the pages are
        // registered, and owned.
        let copied = unsafe { self.residency.frames.copy_in(first, range.len(), source, exists) };
        for index in range.start..range.start + copied.pages {
            self.residency.to_resident(owned.take(index), Rank::Probation, reserved);
        }
        copied
    }

    /// Notes a page that was present already, since it was plain until a moment ago. It counts as
    /// changed.
    fn note_existing(&self, id: DescriptorId) {
        let descriptor = self.residency.ownership.descriptor(id);
        descriptor.set_hash(UNKNOWN_HASH);
        descriptor.set(Flag::Shared, true);
    }

    /// A fault has found an owned object, which will have a page of its own. Answers whether that
    /// is a reuse: the first touch of what came ahead stands for a fault from the store.
    pub(crate) fn note_found(&self, descriptor: &Descriptor) -> bool {
        descriptor.set(Flag::Shared, false);
        match descriptor.came_by() {
            CameBy::Neighbour => {
                if self.balancer.is_young(descriptor) {
                    self.ahead.neighbours.touch();
                }
                descriptor.set_came_by(CameBy::Itself);
                false
            }
            CameBy::Trail => {
                self.residency.count(Counted::TrailUsed, 1);
                descriptor.set_came_by(CameBy::Followed);
                false
            }
            CameBy::Itself | CameBy::Scan | CameBy::Followed => {
                descriptor.set_reuse(replacement::touched(descriptor.reuse()));
                true
            }
        }
    }

    /// Installs a cached object; false if another thread has it.
    pub(crate) fn install_cached(
        &self,
        page: PageNo,
        id: DescriptorId,
        reserved: &mut Reserved<'_>,
    ) -> Result<bool, FaultError> {
        let Some(owned) = self.residency.ownership.claim_cached(page, id) else { return Ok(false) };
        let descriptor = self.residency.ownership.of(&owned);
        let slot = descriptor.slot();
        let is_reuse = self.note_found(descriptor);
        let copy_in = |source: *const u8| {
            let exists = |_| self.note_existing(id);
            // SAFETY: the source is a page that is pinned and ours, and so is the page.
            unsafe { self.residency.frames.copy_in(page, 1, source, exists) }
        };
        let copied = if descriptor.has(Flag::Compressed) {
            let mut staging = self.residency.take_staging(PAGE);
            if let Err(error) = self.residency.unpress(&owned, staging.page()) {
                self.residency.ownership.cached(owned);
                return Err(FaultError::Unreadable(error));
            }
            copy_in(staging.address())
        } else {
            // SAFETY: the slot is ours alone and holds the object.
            let object =
                unsafe { self.residency.cache.object(slot, self.residency.kept_bytes(page)) };
            if object.len() == PAGE {
                copy_in(object.as_ptr())
            } else {
                let mut staging = self.residency.take_staging(PAGE);
                fill_page(staging.page(), object);
                copy_in(staging.address())
            }
        };
        if let Some(errno) = copied.refused {
            self.residency.ownership.cached(owned);
            return Err(FaultError::Install(errno));
        }
        let mut rank = Rank::Probation;
        if is_reuse {
            rank = replacement::rank(descriptor.reuse(), self.balancer.left_lately(descriptor));
            self.balancer.comes_back(descriptor);
        }
        self.residency.cached_to_resident(owned, rank, reserved);
        Ok(true)
    }

    /// Installs the cached objects of the window after its first page, as far as there is room and
    /// until one would have to be read; returns how many pages it has passed, the first one
    /// included.
    pub(crate) fn install_cached_further(
        &self,
        window: Window,
        reserved: &mut Reserved<'_>,
    ) -> u32 {
        let mut extent = 1;
        while extent < window.count {
            let page = window.page_after(extent);
            match self.residency.ownership.place(page) {
                Place::Stored(_) => break,
                Place::Cached(id) => {
                    if !reserved.extend(1) {
                        break;
                    }
                    // A thread that touches the page will get the error.
                    let _ = self.install_cached(page, id, reserved);
                }
                Place::Zero | Place::Busy(_) | Place::Lost => {}
            }
            extent += 1;
        }
        extent as u32
    }
}
