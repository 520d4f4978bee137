//! Fault: what happens when the program touches a page that is not in the page buffer.
//!
//! Guarantees: on `Ok` the access may be tried again; it succeeds, or faults once more and is
//! served then. On `Err` the object is where it was and the access must not be repeated. An access
//! that goes on to fault on a page that is present ends with `Err`, after `PRESENT_MAX` faults.
//! Never: allocates, touches managed memory, waits for the program.
//! Threads: the faulting one, in its SIGBUS handler, other signals kept out. If the evictor falls
//! behind, it evicts itself (back-pressure), before it owns anything.

pub(crate) mod fetch;
pub(crate) mod flight;
pub(crate) mod from_file;
pub(crate) mod install;
pub(crate) mod report;
pub(crate) mod room;
pub(crate) mod sources;

use deepheap_heap::PageNo;
use deepheap_policy::sequence::{Direction, Sequences};
use deepheap_residency::Promise;
use deepheap_residency::frames::{CopiedIn, FRESH_MAX};
use deepheap_residency::ownership::{
    DescriptorId, Found, Owned, OwnedList, Place, Seen, UNKNOWN_HASH,
};
use deepheap_residency::page_buffer::Reserved;
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::userfaultfd::Copy;

use crate::ahead::window::Window;
use crate::fault::report::{FaultError, FaultKind, FaultReport};
use crate::gate::Level;
use crate::moves::Moves;
use crate::pager::Pager;

/// How often in a row a thread may fault on a page that is found present. One such fault happens if
/// another thread installs the page between the fault and the look. For a second one the page would
/// have to leave again before the access.
pub(crate) const PRESENT_MAX: usize = 64;

/// Fresh memory pages are installed together within aligned blocks of so many.
const FRESH_BLOCK: usize = 16;
/// Fresh object pages that are installed together are at most this part of the page buffer.
const FRESH_PART: usize = 32;

/// How many evictions may fail before a cached fault enters the page buffer over its limit.
const PATIENCE_CACHED: usize = 2;

impl Pager {
    /// Serves a fault at `address`. `sequences` is what the thread's faults looked like so far.
    /// `repeats` is how often the same thread faulted on the same page immediately before and had
    /// to wait; the count starts over when the page was not present.
    pub fn resolve(
        &self,
        address: usize,
        sequences: &mut Sequences,
        repeats: usize,
    ) -> Result<FaultReport, FaultError> {
        let page = self.managed_page(address).ok_or(FaultError::NotManaged)?;
        let mut moves = Moves::default();
        if self.capture.is_captured(&self.residency, page) {
            return Ok(FaultReport::of(FaultKind::Waited, 0, 0));
        }
        if let Some(lanes) = self.lanes_of(page) {
            return self.resolve_in_lane(lanes, page, sequences, repeats);
        }
        let is_cached = || matches!(self.residency.ownership.peek(page), Some(Place::Cached(_)));
        // A cached object brings no page of the table, so its fault pays for none: that may take
        // writes to the store.
        if !is_cached() {
            self.limit_table(&mut moves);
        }
        let mut reserved = loop {
            let patience = if is_cached() { PATIENCE_CACHED } else { usize::MAX };
            match self.make_room(&mut moves, patience) {
                Ok(reserved) => break reserved,
                // The object is in DRAM already: it enters the page buffer over the limit, and the
                // next victim finds the cache slot that it leaves. So objects in DRAM stay usable
                // when nothing can be written.
                Err(_) if is_cached() => break self.residency.frames.page_buffer.adopt(1),
                Err(error) if patience == usize::MAX => return Err(error),
                Err(_) => {}
            }
        };
        let passage = self.gate.enter(Level::Mover);
        let mut is_present = false;
        let served = match self.residency.ownership.place(page) {
            Place::Zero if self.sources.is_of_file(page) => {
                self.install_from_file(page, sequences, &mut reserved)
            }
            Place::Zero => self.install_fresh(page, sequences, &mut reserved),
            Place::Cached(id) => {
                self.asker().go_on_ahead(page, sequences);
                self.install_cached_window(page, id, sequences, &mut reserved)
            }
            Place::Stored(block) => self.fetch(page, block, sequences, &mut reserved, &mut None),
            Place::Busy(_) => self.wait_for(page, repeats).map(|found| {
                is_present = found;
                None
            }),
            Place::Lost => Err(FaultError::Lost),
        };
        drop((passage, reserved));
        // None: another thread was faster; the access, tried again, finds what became of the
        // object.
        let report = served?.unwrap_or(FaultReport::of(FaultKind::Waited, 0, 0));
        self.signal_eviction();
        Ok(FaultReport { moves, is_present, ..report })
    }

    /// Installs a page of zeros, and fresh pages after it if the heap is being filled in address
    /// order. For memory pages the sign is that the page before is resident. Objects of many sizes
    /// are filled at once, so for them the sign is that the thread's own faults come in order.
    fn install_fresh(
        &self,
        page: PageNo,
        sequences: &mut Sequences,
        reserved: &mut Reserved<'_>,
    ) -> Result<Option<FaultReport>, FaultError> {
        let most = || {
            let in_block = page.0 as usize % FRESH_BLOCK;
            let before = || self.residency.ownership.place(PageNo(page.0 - 1));
            if self.residency.heap.is_object_page(page) {
                upwards(page, sequences).min(self.residency.frames.page_buffer.limit() / FRESH_PART)
            } else if in_block > 0 && matches!(before(), Place::Busy(_)) {
                FRESH_BLOCK - in_block
            } else {
                1
            }
        };
        let owned = self.claim_run(page, false, reserved, most)?;
        let Some(mut owned) = owned else { return Ok(None) };
        let (count, zeros) = (owned.len(), self.residency.frames.zeros());
        let copied = self.install(page, zeros, &mut owned, 0..count, reserved);
        (copied.pages..count).for_each(|index| self.residency.to_zero(owned.take(index)));
        let installed = end_fresh(page, &copied, sequences)?;
        Ok(Some(FaultReport::of(FaultKind::Zero, 0, installed as i16)))
    }

    /// Claims the `Zero` page that faulted, with its promise, and pages behind it that are as it
    /// is, up to `most` with it, while there is room for them. They are a file's, or are not. None:
    /// another thread was faster.
    pub(crate) fn claim_run(
        &self,
        page: PageNo,
        of_file: bool,
        reserved: &mut Reserved<'_>,
        most: impl FnOnce() -> usize,
    ) -> Result<Option<OwnedList<FRESH_MAX>>, FaultError> {
        let promise = self.residency.promise(page).map_err(FaultError::NoPromise)?;
        let Some(first) = self.claim_promised(promise, of_file) else { return Ok(None) };
        let mut owned = OwnedList::empty();
        owned.push(first);
        let most = most();
        while owned.len() < most && reserved.extend(owned.len() + 1) {
            let next = PageNo(page.0 + owned.len() as u32);
            // A promise that is not at hand is not worth a wait, and what nobody may touch is not
            // worth a promise.
            let is_wanted = self.sources.is_of_file(next) == of_file
                && (!self.residency.promises.covers(next)
                    || self.residency.heap.is_handed_out(next));
            let promise = is_wanted.then(|| self.residency.try_promise(next)).flatten();
            match promise.and_then(|promise| self.claim_promised(promise, of_file)) {
                Some(one) => owned.push(one),
                None => break,
            }
        }
        Ok(Some(owned))
    }

    /// Claims a `Zero` page that is a file's, or is not.
    fn claim_promised(&self, promise: Promise<'_>, of_file: bool) -> Option<Owned> {
        let page = promise.page();
        let owned = self.residency.claim_promised(promise)?;
        // It may have been taken from its file meanwhile, or given back to it.
        if self.sources.is_of_file(page) == of_file {
            return Some(owned);
        }
        self.residency.to_zero(owned);
        None
    }

    /// Installs a cached object, and in a scan also the cached ones after it.
    fn install_cached_window(
        &self,
        page: PageNo,
        id: DescriptorId,
        sequences: &mut Sequences,
        reserved: &mut Reserved<'_>,
    ) -> Result<Option<FaultReport>, FaultError> {
        if !self.install_cached(page, id, reserved)? {
            return Ok(None);
        }
        let window = Window::of(page, sequences.of(page.0));
        if window.count == 1 {
            self.asker().ask_next(page, sequences, true);
        }
        let extent = self.install_cached_further(window, reserved);
        sequences.pass(page.0, extent);
        Ok(Some(FaultReport::of(FaultKind::Cached, 0, window.direction.signed(extent))))
    }

    /// Waits for another thread that is moving the object. If a page that the table calls resident
    /// faults twice in a row, the program itself took it away (`madvise(MADV_DONTNEED)` on heap
    /// memory), and it reads as zeros, as plain memory would. Or the program has mapped something
    /// else there, and the access ends. True if the page is present after all.
    pub(crate) fn wait_for(&self, page: PageNo, repeats: usize) -> Result<bool, FaultError> {
        let seen = match self.residency.ownership.look(page) {
            Found::Resident(seen) if repeats > 0 => seen,
            Found::OnItsWay(seen) => {
                self.residency.ownership.wait(seen);
                return Ok(false);
            }
            Found::Resident(_)
            | Found::Zero
            | Found::Stored(_)
            | Found::Cached(_)
            | Found::Lost => {
                return Ok(false);
            }
        };
        match self.put_zeros(page, seen) {
            None => Ok(false),
            Some(Err(errno)) => Err(FaultError::Install(errno)),
            Some(Ok(Copy::Exists)) if repeats >= PRESENT_MAX => {
                Err(FaultError::Install(Errno::EEXIST))
            }
            Some(Ok(copied)) => Ok(copied == Copy::Exists),
        }
    }

    /// Puts zeros where a page that is resident to the table is missing; none if it has changed
    /// since it was seen.
    pub(crate) fn put_zeros(&self, page: PageNo, seen: Seen) -> Option<Result<Copy, Errno>> {
        // While we own it, the evictor cannot take it away between our look and our copy.
        let owned = self.residency.ownership.claim_resident(page, seen.id())?;
        let copied = self.residency.frames.put_zeros(page);
        if let Ok(Copy::Done) = copied {
            self.residency.ownership.of(&owned).set_hash(UNKNOWN_HASH);
        }
        self.residency.ownership.put_back(owned);
        Some(copied)
    }
}

/// How many pages from this one on are wanted, if the thread's fresh faults come in order.
pub(crate) fn upwards(page: PageNo, sequences: &Sequences) -> usize {
    let window = Window::of(page, sequences.fresh);
    if window.direction == Direction::Up { window.count.min(FRESH_MAX) } else { 1 }
}

/// Ends the first touch of pages from this one on; returns how many were installed.
pub(crate) fn end_fresh(
    page: PageNo,
    copied: &CopiedIn,
    sequences: &mut Sequences,
) -> Result<usize, FaultError> {
    match copied.refused {
        Some(errno) if copied.pages == 0 => Err(FaultError::Install(errno)),
        _ => {
            sequences.fresh = sequences.fresh.advance(page.0, copied.pages as u32);
            Ok(copied.pages)
        }
    }
}
