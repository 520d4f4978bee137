//! Pin: keeps pages in the page buffer while the kernel, or a child, needs to find them there.
//!
//! Guarantees: after `pin` every page of the range is resident until `unpin`.
//! Never: allocates. May evict (it faults pages in).
//! Threads: any, outside the fault path.

use deepheap_heap::PageNo;
use deepheap_sys::atomic::Ordering;
use deepheap_sys::signals::Blocked;

use crate::PAGE;
use crate::descriptor::{DescriptorId, State};
use crate::object_table::Place;
use crate::pager::Pager;

impl Pager {
    /// Pins the managed pages of `[address, address + length)`.
    pub fn pin(&self, address: usize, length: usize) {
        self.take_over_before_pins();
        for page in self.pages_of(address, length) {
            while self.try_pin(page).is_none() {
                self.touch_page(page);
            }
        }
    }

    /// As `pin`, for as long as the program likes. False, and nothing is pinned, if what it pins so
    /// would be more than half of the page buffer.
    pub fn pin_for_long(&self, address: usize, length: usize) -> bool {
        let pages = self.pages_of(address, length).count();
        let most = self.page_buffer.limit() / 2;
        let counted = self.long_pins.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pins| {
            (pins + pages <= most).then_some(pins + pages)
        });
        if counted.is_ok() {
            self.pin(address, length);
        }
        counted.is_ok()
    }

    /// Ends one `pin_for_long` of the same range.
    pub fn unpin_for_long(&self, address: usize, length: usize) {
        let pages = self.pages_of(address, length).count();
        self.unpin(address, length);
        // Whoever unpins what it did not pin does not make room for more.
        let less = |pins: usize| Some(pins.saturating_sub(pages));
        let _ = self.long_pins.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Ends one `pin` of the same range, or what held it before it was managed.
    pub fn unpin(&self, address: usize, length: usize) {
        self.take_over_before_pins();
        for page in self.pages_of(address, length) {
            if let Place::Busy(id) = self.table.load(page) {
                self.descriptors.get(id).drop_pin();
            }
        }
    }

    /// Pages of spans not yet looked at have no descriptor to hold a pin.
    fn take_over_before_pins(&self) {
        if self.has_plain_spans() {
            // A handler of the program that faults would find our locks held.
            let _blocked = Blocked::all();
            self.take_over_spans();
        }
    }

    /// Makes the managed pages of a range resident once.
    pub fn touch(&self, address: usize, length: usize) {
        for page in self.pages_of(address, length) {
            self.touch_page(page);
        }
    }

    /// Pins a page that is resident. Dekker with the evictor: we pin, then look at the state; it
    /// claims, then looks at the pins; both sequentially consistent, so one of us sees the other.
    /// The pin is that of the descriptor answered.
    pub(crate) fn try_pin(&self, page: PageNo) -> Option<DescriptorId> {
        let Place::Busy(id) = self.table.load(page) else { return None };
        let descriptor = self.descriptors.get(id);
        descriptor.add_pin();
        // Any other state may be that of an object on its way out, or not in yet.
        let here = descriptor.state().state() == State::Resident;
        if here && self.table.load(page) == Place::Busy(id) {
            return Some(id);
        }
        descriptor.drop_pin();
        None
    }

    fn touch_page(&self, page: PageNo) {
        // SAFETY: a managed page of the heap; the load faults, is served by the SIGBUS handler, and
        // is done again. This is program context, not the fault path: no lock is held.
        unsafe { core::ptr::read_volatile(self.address_of(page) as *const u8) };
    }

    fn pages_of(&self, address: usize, length: usize) -> impl Iterator<Item = PageNo> {
        let first = address & !(PAGE - 1);
        let last = address.saturating_add(length.max(1)) - 1;
        (first..=last).step_by(PAGE).filter_map(|address| self.managed_page(address))
    }
}
