//! Fetch: brings objects from the store into the page buffer, in a scan several at once.
//!
//! Guarantees: an object is installed only after its bytes matched the checksum that the store
//! keeps; on an error it stays `Stored`, and so do the others of its window.
//! Never: waits for room for another page than the one that faulted.
//! Threads: the faulting one, and the fetchers.

use core::ops::Range;

use deepheap_heap::PageNo;
use deepheap_policy::sequence::{Direction, Sequences, WINDOW_MAX};
use deepheap_residency::contents::page_at;
use deepheap_residency::object_cache::Slot;
use deepheap_residency::ownership::{CameBy, Owned, Place};
use deepheap_residency::page_buffer::Reserved;
use deepheap_residency::staging::{PAGE_STAGING_BYTES, StagingBuffer};
use deepheap_store::{Block, StoreError};
use deepheap_sys::errno::Errno;

use crate::PAGE;
use crate::ahead::companions;
use crate::ahead::window::Window;
use crate::budget::rebalance::spared_by;
use crate::fault::flight::Flight;
use crate::fault::report::{FaultError, FaultKind, FaultReport};
use crate::pager::Pager;

const WINDOW: usize = WINDOW_MAX as usize;

/// The pages that a fetch brought.
#[derive(Clone, Copy)]
pub(crate) struct Brought {
    /// How many pages are in DRAM now, the window's first one among them.
    pub(crate) pages: u32,
    /// How many pages from that one on were looked at.
    pub(crate) extent: u32,
}

impl Pager {
    /// Reads the object of `page`, and as many further ones as its sequence suggests. At full
    /// window it asks the fetchers for those after them. The first object goes to the slot if there
    /// is one, which it needs if it lies in a lane.
    pub(crate) fn fetch(
        &self,
        page: PageNo,
        block: Block,
        sequences: &mut Sequences,
        reserved: &mut Reserved<'_>,
        slot: &mut Option<Slot<'_>>,
    ) -> Result<Option<FaultReport>, FaultError> {
        // Before the object is listed, which has the ghost forget it.
        let spared_by = spared_by(self, page);
        let (asker, sequence) = (self.asker(), sequences.of(page.0));
        let window = Window::of(page, sequence);
        if window.count == 1 && !asker.ask_next(page, sequences, false) {
            asker.ask_beside(page);
        }
        let asked = (window.count == WINDOW && !sequence.was_asked_for(page.0))
            .then(|| asker.ask_ahead(window, window.page_after(WINDOW), sequences.asking()));
        let Some(brought) = self.fetch_window(window, block, reserved, slot)? else {
            return Ok(None);
        };
        if window.count > 1 {
            asker.tier.note_scan(brought.extent);
        }
        let mut sequence = sequence.advance(page.0, brought.extent);
        if let Some(end) = asked
            && brought.extent == WINDOW_MAX
        {
            sequence = sequence.ask_until(end.0);
        }
        sequences.note(page.0, sequence);
        // An object comes to its lane when it is touched.
        if self.lanes_of(page).is_none() {
            let window_here = Window { count: brought.extent as usize, ..window };
            self.install_cached_further(window_here, reserved);
        }
        let passed = window.direction.signed(brought.extent);
        let report = FaultReport::of(FaultKind::Stored, brought.pages.saturating_sub(1), passed);
        Ok(Some(FaultReport { spared_by, ..report }))
    }

    /// Reads the objects of the window that are stored. A page is reserved for the first one; None
    /// if another thread has that one. If there is a cache slot as the `mark` and the first object
    /// fits, it goes there.
    pub(crate) fn fetch_window(
        &self,
        window: Window,
        block: Block,
        reserved: &mut Reserved<'_>,
        mark: &mut Option<Slot<'_>>,
    ) -> Result<Option<Brought>, FaultError> {
        if window.count > 1 {
            return self.fetch_further(window, block, reserved, mark);
        }
        let Some(owned) = self.residency.ownership.claim_stored(window.page, block) else {
            return Ok(None);
        };
        let pages = self.fetch_alone(owned, window.page, block, reserved, mark)?;
        Ok(Some(Brought { pages, extent: 1 }))
    }

    fn fetch_alone(
        &self,
        owned: Owned,
        page: PageNo,
        block: Block,
        reserved: &mut Reserved<'_>,
        mark: &mut Option<Slot<'_>>,
    ) -> Result<u32, FaultError> {
        let mut flight = Flight::<1>::new();
        flight.push(owned, page, block);
        let buffer = self.residency.take_staging(PAGE_STAGING_BYTES);
        self.bring(&mut flight, 0, &buffer, reserved, mark)
    }

    /// Reads the window's first object, and those that are stored after it if there is a buffer for
    /// them.
    #[inline(never)] // its arrays are nothing for the stack of a single fetch
    fn fetch_further(
        &self,
        window: Window,
        block: Block,
        reserved: &mut Reserved<'_>,
        mark: &mut Option<Slot<'_>>,
    ) -> Result<Option<Brought>, FaultError> {
        let mut flight = Flight::<WINDOW>::new();
        if !flight.claim(&self.residency, window.page, block) {
            return Ok(None);
        }
        let mut extent = 1;
        while extent < window.count {
            let page = window.page_after(extent);
            if let Place::Stored(block) = self.residency.ownership.place(page) {
                if !reserved.extend(flight.len() + 1) {
                    break;
                }
                flight.claim(&self.residency, page, block);
            }
            extent += 1;
        }
        let count = flight.len();
        if count > 1 {
            let buffer = self.residency.staging.windows.take();
            let staged = if flight.are_whole(&self.residency) { count } else { WINDOW + count };
            if self.residency.try_stage(&buffer, staged * PAGE) {
                let own = if window.direction == Direction::Down { count - 1 } else { 0 };
                if own > 0 {
                    flight.reverse();
                }
                let pages = self.bring(&mut flight, own, &buffer, reserved, mark)?;
                return Ok(Some(Brought { pages, extent: extent as u32 }));
            }
            extent = 1;
        }
        // Read the first object alone: there are no others, or no buffer for them.
        flight.give_back(&self.residency, 1..count);
        reserved.shrink(1);
        let pages = self.fetch_alone(flight.take(0), window.page, block, reserved, mark)?;
        Ok(Some(Brought { pages, extent: extent as u32 }))
    }

    /// The part of the window from its first stored page on, and where that is stored.
    pub(crate) fn first_stored(&self, window: Window) -> Option<(Window, Block)> {
        let window = window.within_span();
        (0..window.count).find_map(|passed| {
            let page = window.page_after(passed);
            let Place::Stored(block) = self.residency.ownership.place(page) else { return None };
            Some((Window { page, count: window.count - passed, ..window }, block))
        })
    }

    /// Reads and installs the objects of a flight, which are in the order of addresses; returns how
    /// many are in DRAM now, that of index `own` among them. `staging` has `N` pages for blocks,
    /// and `N` for the pages made of them.
    fn bring<const N: usize>(
        &self,
        flight: &mut Flight<N>,
        own: usize,
        staging: &StagingBuffer<'_>,
        reserved: &mut Reserved<'_>,
        mark: &mut Option<Slot<'_>>,
    ) -> Result<u32, FaultError> {
        let (buffer, count) = (staging.address(), flight.len());
        // SAFETY: the first half of the staging buffer, which is ours alone.
        let mut reads = unsafe { flight.begin(&self.residency, buffer) };
        flight.finish(&self.residency, &self.balancer, &mut reads, true);
        // Whole objects share no block: the bytes that are read are those that are installed.
        let whole = flight.are_whole(&self.residency);
        // SAFETY: the second half of the staging buffer.
        let contents = if whole { buffer } else { unsafe { buffer.add(N * PAGE) } };
        let make_page = |index: usize| -> Result<(), StoreError> {
            let landed = flight.landed(&self.residency, &reads, index)?;
            if whole {
                return Ok(());
            }
            // SAFETY: a page of the second half for each object.
            let page = unsafe { page_at(contents.add(index * PAGE)) };
            flight.make_page(&self.residency, index, landed, page)
        };
        if let Err(error) = make_page(own) {
            flight.give_back(&self.residency, 0..count);
            return Err(FaultError::Unreadable(error));
        }
        companions::keep(&self.residency, &self.ahead.neighbours, &self.balancer, &reads);
        if count > 1 {
            for index in 0..count {
                self.residency.ownership.descriptor(flight.id(index)).set_came_by(CameBy::Scan);
            }
        }
        // An object that could not be read stays where it is, and so do those beyond it.
        let end = (own + 1..count).find(|&index| make_page(index).is_err()).unwrap_or(count);
        let unread = (0..own).rev().find(|&index| make_page(index).is_err());
        let begin = unread.map_or(0, |index| index + 1);
        flight.give_back(&self.residency, end..count);
        flight.give_back(&self.residency, 0..begin);
        let kept_bytes = self.residency.kept_bytes(flight.pages()[own]);
        let slot = mark.take_if(|slot| slot.bytes() >= kept_bytes);
        let marks = usize::from(slot.is_some());
        // The `own` page first: the others must not keep it from being installed.
        let (mut done, refused) = self.install_runs(flight, own + marks..end, contents, reserved);
        if let Some(errno) = refused
            && done + marks == 0
        {
            flight.give_back(&self.residency, begin..own);
            return Err(FaultError::Install(errno));
        }
        done += marks + self.install_runs(flight, begin..own, contents, reserved).0;
        if let Some(slot) = slot {
            // Last: a thread that waits for the mark finds the others installed.
            // SAFETY: the contents have a page for each object; the slot has room for this one.
            unsafe { self.cache_landed(flight, own, contents.add(own * PAGE), slot) };
        }
        Ok(done as u32)
    }

    /// Installs a part of a flight, a run of adjacent pages at a time; what lies in lanes goes to
    /// the cache, where its fault finds it. Gives back what the kernel refuses, or what finds no
    /// slot. Returns how many have come, and why not all.
    fn install_runs<const N: usize>(
        &self,
        flight: &mut Flight<N>,
        range: Range<usize>,
        contents: *const u8,
        reserved: &mut Reserved<'_>,
    ) -> (usize, Option<Errno>) {
        let (mut at, mut refused) = (range.start, None);
        // A flight is of one span.
        let are_in_lanes = self.lanes_of(flight.pages()[0]).is_some();
        while at < range.end && refused.is_none() {
            let pages = flight.pages();
            // SAFETY: the contents have a page for each of them.
            let source = unsafe { contents.add(at * PAGE) };
            if are_in_lanes {
                let Some(slot) = self.residency.cache.take(self.residency.kept_bytes(pages[at]))
                else {
                    break;
                };
                // SAFETY: as above; the slot has room for the object.
                unsafe { self.cache_landed(flight, at, source, slot) };
                at += 1;
                continue;
            }
            let run = (at + 1..range.end).find(|&next| pages[next].0 != pages[next - 1].0 + 1);
            let run = at..run.unwrap_or(range.end);
            let copied = self.install(pages[at], source, &mut flight.objects, run, reserved);
            at += copied.pages;
            refused = copied.refused;
        }
        flight.give_back(&self.residency, at..range.end);
        (at - range.start, refused)
    }

    /// Puts an object of a flight into the cache, to a slot of the caller's.
    ///
    /// # Safety
    /// `object` has the object's bytes, and the slot has room for them.
    unsafe fn cache_landed<const N: usize>(
        &self,
        flight: &mut Flight<N>,
        index: usize,
        object: *const u8,
        slot: Slot<'_>,
    ) {
        let kept = self.residency.kept_bytes(flight.pages()[index]);
        // SAFETY: the caller's promise; the slot is ours alone.
        unsafe { slot.address().copy_from_nonoverlapping(object, kept) };
        self.balancer.arrives(self.residency.ownership.descriptor(flight.id(index)));
        self.residency.to_cached(flight.take(index), slot);
    }
}
