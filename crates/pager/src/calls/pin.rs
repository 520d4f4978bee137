//! Pin: keeps pages in the page buffer while the kernel, or a child, needs them there.
//!
//! Guarantees: after `pin` every page of the range that is managed is resident until `unpin`, but
//! for those that the program has mapped something else over. `unpin` ends no pin of another. A
//! pinned page that the program gives up is there again, as zeros, after `refill`.
//! Never: allocates. May evict (it faults pages in), and sleeps while another thread owns an
//! object.
//! Threads: any, outside the fault path.

use deepheap_heap::{FreedRun, PAGES_PER_SPAN, PageNo};
use deepheap_residency::ownership::{Found, Pin};
use deepheap_sys::memory::mapping;
use deepheap_sys::threads::atomic::Ordering;
use deepheap_sys::threads::signals::Blocked;

use crate::PAGE;
use crate::gate::Level;
use crate::pager::Pager;

/// After so many touches a page counts as one that cannot be pinned. A page that other threads
/// evict at once needs a few touches; a page that the program has mapped something else over never
/// becomes resident.
const TOUCHES_MAX: usize = 1 << 14;
/// After so many the kernel is asked whose page it is.
const TOUCHES_UNASKED: usize = 16;

impl Pager {
    /// Pins the managed pages of `[address, address + length)`, except those that the program has
    /// mapped something else over: the kernel finds that mapping there.
    pub fn pin(&self, address: usize, length: usize) {
        self.pins.calls.fetch_add(self.region_pages(address, length).count(), Ordering::Relaxed);
        self.pin_as(Pin::Call, address, length);
    }

    /// As `pin`, for a call that can do with less at a time. False, and nothing is pinned, if that
    /// were more than half of what all calls may still pin: so there is some left for others.
    /// Nobody waits for pins to end, for what ends them may wait for a pin itself.
    pub fn pin_if_few(&self, address: usize, length: usize) -> bool {
        let pages = self.region_pages(address, length).count();
        let counted = self.pins.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pins| {
            (pages <= self.call_pins_left(pins) / 2).then_some(pins.wrapping_add(pages))
        });
        if counted.is_ok() {
            self.pin_as(Pin::Call, address, length);
        }
        counted.is_ok()
    }

    /// Whether `pin_if_few` of so many pages would be made now.
    pub fn are_few(&self, pages: usize) -> bool {
        pages <= self.call_pins_left(self.pins.calls.load(Ordering::Relaxed)) / 2
    }

    /// How much of the page buffer calls may still pin, of a quarter of it: a page that several
    /// have pinned counts several times.
    fn call_pins_left(&self, pins: usize) -> usize {
        // An unpin may be counted before its pin: the hold began when nothing was managed.
        (self.residency.frames.page_buffer.limit() / 4)
            .saturating_sub((pins as isize).max(0) as usize)
    }

    fn pin_as(&self, kind: Pin, address: usize, length: usize) {
        self.take_over_before_pins();
        for page in self.region_pages(address, length) {
            // The heap may have grown over what is not managed now when the pin ends.
            if !self.is_managed(page) || !self.pin_page(page, kind) {
                self.pins.refused.note(page);
            }
        }
    }

    /// Pins a managed page; false if it does not become resident.
    fn pin_page(&self, page: PageNo, kind: Pin) -> bool {
        for touches in 0..TOUCHES_MAX {
            if self.residency.ownership.try_pin(page, kind).is_some() {
                // A cut closes the gate and then looks at the pins; we pin and then look at the
                // gate. So one of us sees the other, and no call begins while pages are protected.
                if kind == Pin::Long || !self.gate.is_closed() {
                    if self.lanes_of(page).is_some() {
                        // It may be in its lane and not mapped. From now on it stays mapped.
                        self.touch_page(page);
                    }
                    return true;
                }
                self.residency.ownership.unpin(page, kind);
                let _blocked = Blocked::all();
                drop(self.gate.enter(Level::Mover));
            }
            if touches == TOUCHES_UNASKED && self.is_foreign(page) {
                return false;
            }
            self.touch_page(page);
            // If another thread owns the object while its page is still mapped, the touch does not
            // fault: wait here.
            if let Some(seen) = self.residency.ownership.seen_on_its_way(page) {
                self.residency.ownership.wait(seen);
            }
        }
        false
    }

    /// Whether the program has mapped a file or shared memory in place of a page.
    fn is_foreign(&self, page: PageNo) -> bool {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        // SAFETY: no fork passes the gate.
        unsafe { mapping::is_foreign(self.residency.frames.address_of(page) as *mut u8) }
    }

    /// As `pin`, for as long as the program likes. False, and nothing is pinned, if the program's
    /// long pins would be more than half of the page buffer.
    pub fn pin_for_long(&self, address: usize, length: usize) -> bool {
        let pages = self.pages_of(address, length).count();
        let most = self.residency.frames.page_buffer.limit() / 2;
        let counted = self.pins.long.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pins| {
            (pins + pages <= most).then_some(pins + pages)
        });
        if counted.is_ok() {
            self.pin_as(Pin::Long, address, length);
        }
        counted.is_ok()
    }

    /// Ends one `pin_for_long` of the same range.
    pub fn unpin_for_long(&self, address: usize, length: usize) {
        let pages = self.pages_of(address, length).count();
        self.unpin_as(Pin::Long, address, length);
        // A program that unpins what it did not pin must not get room for more pins.
        let less = |pins: usize| Some(pins.saturating_sub(pages));
        let _ = self.pins.long.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Ends one `pin` of the same range, or the pin of a hold from before it was managed.
    pub fn unpin(&self, address: usize, length: usize) {
        self.unpin_as(Pin::Call, address, length);
        self.pins.calls.fetch_sub(self.region_pages(address, length).count(), Ordering::Relaxed);
    }

    fn unpin_as(&self, kind: Pin, address: usize, length: usize) {
        self.take_over_before_pins();
        for page in self.region_pages(address, length) {
            if !self.pins.refused.end(page) {
                self.residency.ownership.unpin(page, kind);
            }
        }
    }

    /// Puts zeros where the program has had pages dropped that are resident to the pager, for they
    /// are pinned: the call that comes next finds them in the table, and must find them mapped.
    pub fn refill(&self, run: FreedRun) {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        let (mut page, end) = (run.first.0 as usize, run.first.0 as usize + run.pages);
        while let Some(next) = self.residency.ownership.table.next_object(page, end) {
            if let Found::Resident(seen) = self.residency.ownership.look(PageNo(next as u32)) {
                // Where it is refused, the program has mapped something of its own.
                let _ = self.put_zeros(PageNo(next as u32), seen);
            }
            page = next + 1;
        }
    }

    /// Takes all spans over first: pages of plain spans have no descriptor to count a pin.
    fn take_over_before_pins(&self) {
        if self.plain_spans.any() {
            // Otherwise a handler of the program that faults would find our locks held.
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

    fn touch_page(&self, page: PageNo) {
        // SAFETY: a managed page of the heap; the load faults, is served by the SIGBUS handler, and
        // is done again. This is program context, not the fault path: no lock is held.
        unsafe { core::ptr::read_volatile(self.residency.frames.address_of(page) as *const u8) };
    }

    fn is_managed(&self, page: PageNo) -> bool {
        (page.0 as usize) < self.residency.frames.managed_spans() * PAGES_PER_SPAN
    }

    /// The managed pages of a range.
    fn pages_of(&self, address: usize, length: usize) -> impl Iterator<Item = PageNo> {
        self.region_pages(address, length).filter(|page| self.is_managed(*page))
    }

    /// The pages of a range that lie in the region.
    fn region_pages(&self, address: usize, length: usize) -> impl Iterator<Item = PageNo> {
        let base = self.residency.frames.region_base();
        let end = address.saturating_add(length.max(1)).saturating_sub(base);
        let first = address.saturating_sub(base) / PAGE;
        (first..end.div_ceil(PAGE).min(self.pins.refused.pages())).map(|page| PageNo(page as u32))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use deepheap_heap::{Heap, SPAN};
    use deepheap_sim::SimDevice;
    use deepheap_store::{Options as StoreOptions, Store};
    use deepheap_sys::memory::mapping::Advice;

    use super::*;
    use crate::pager::Options;
    use deepheap_policy::sequence::Sequences;
    use deepheap_residency::ownership::{Descriptor, Place};
    use deepheap_residency::promises::Overcommit;

    /// A pager that manages the first of two spans, and where that begins.
    fn pager() -> (Pager, usize) {
        const SEGMENT_BYTES: u64 = 256 << 10;
        const SEGMENTS: u64 = 8;
        // Fresh memory of our own, which is never unmapped.
        let region = mapping::map_pinned(3 * SPAN).expect("address space").addr();
        let region_base = region.next_multiple_of(SPAN);
        let options = StoreOptions {
            segment_bytes: SEGMENT_BYTES,
            capacity_bytes: SEGMENTS * SEGMENT_BYTES,
            buffers: 4,
            reserve_segments: 2,
        };
        let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 1);
        let store = Store::open(Box::new(device), options, None).expect("a store");
        let options = Options {
            region_base,
            region_pages: 2 * SPAN / PAGE,
            budget_bytes: 8 << 20,
            page_buffer_bytes: None,
            overcommit: Overcommit::Lazy,
            compress: crate::Compress::Auto,
            makes_checkpoints: false,
            follows_strides: true,
            follows_sequences: true,
            traces: false,
            lanes_shift: None,
        };
        let heap: &Heap = Box::leak(Box::new(Heap::new(region_base, 2 * SPAN).expect("a heap")));
        let pager = Pager::new(&options, heap, store, None).expect("a pager");
        pager.manage(0, 1).expect("userfaultfd");
        (pager, region_base)
    }

    #[test]
    fn who_pins_a_page_that_another_thread_holds_sleeps_until_it_is_let_go() {
        let (pager, address) = pager();
        let mut sequences = Sequences::default();
        pager.resolve(address, &mut sequences, 0).expect("a page");
        let page = pager.residency.frames.page_at(address);
        let Found::Resident(seen) = pager.residency.ownership.look(page) else {
            panic!("not here")
        };
        pager.check_invariants();
        // Claims as the collector does, while the page stays mapped: a touch does not fault.
        let owned =
            pager.residency.ownership.claim_resident(page, seen.id()).expect("nobody else has it");
        let descriptor = pager.residency.ownership.of(&owned);
        let held = descriptor.word();
        std::thread::scope(|scope| {
            scope.spawn(|| pager.pin(address, 1));
            let start = Instant::now();
            // A thread that waits sets a flag in the word.
            while descriptor.word() == held && start.elapsed() < Duration::from_secs(120) {
                std::thread::yield_now();
            }
            let is_waited_for = descriptor.word() != held;
            pager.residency.ownership.put_back(owned);
            assert!(is_waited_for, "it did not wait");
        });
        assert!(descriptor.is_pinned());
        pager.unpin(address, 1);
        assert!(!descriptor.is_pinned());
        pager.check_invariants();
    }

    /// Puts ordinary memory in the place of the page at `address`: it cannot be pinned.
    fn map_over(address: usize) {
        let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        let how = how | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: a page of the test's own region, which holds nothing.
        let mapped = unsafe { libc::mmap(address as *mut _, PAGE, access, how, -1, 0) };
        assert_eq!(mapped.addr(), address);
    }

    fn resident(pager: &Pager, address: usize) -> &Descriptor {
        let mut sequences = Sequences::default();
        pager.resolve(address, &mut sequences, 0).expect("a page");
        match pager.residency.ownership.place(pager.residency.frames.page_at(address)) {
            Place::Busy(id) => pager.residency.ownership.descriptor(id),
            _ => panic!("not here"),
        }
    }

    #[test]
    fn who_could_not_pin_a_page_does_not_end_the_pin_of_another() {
        let (pager, address) = pager();
        map_over(address);
        pager.pin(address, 1);
        // The heap has its page back, and another thread pins it.
        // SAFETY: as above.
        unsafe { mapping::advise(address as *mut u8, PAGE, Advice::DontNeed) }.expect("memory");
        pager.manage(0, 1).expect("userfaultfd");
        let descriptor = resident(&pager, address);
        pager.pin(address, 1);
        pager.unpin(address, 1);
        assert!(descriptor.is_pinned(), "one pin of two has ended");
        pager.unpin(address, 1);
        assert!(!descriptor.is_pinned());
        pager.check_invariants();
    }

    #[test]
    fn who_pinned_past_the_end_of_the_heap_does_not_end_the_pin_of_another() {
        let (pager, address) = pager();
        let (before, after) = (address + SPAN - PAGE, address + SPAN);
        let first = resident(&pager, before);
        pager.pin(before, 2 * PAGE);
        // The heap grows, and another thread pins a page of the new span.
        pager.manage(1, 1).expect("userfaultfd");
        let second = resident(&pager, after);
        pager.pin(after, 1);
        pager.unpin(before, 2 * PAGE);
        assert!(!first.is_pinned());
        assert!(second.is_pinned(), "one pin of two has ended");
        pager.unpin(after, 1);
        assert!(!second.is_pinned());
        pager.check_invariants();
    }
}
