//! Room: reserves a page of the page buffer for a thread that needs one; the thread evicts itself.
//!
//! Never: allocates; is called by a thread that owns an object.
//! Threads: faulting ones in their handler (back-pressure), and callers of `access`.

use deepheap_residency::page_buffer::Reserved;
use deepheap_residency::staging::StagingBuffer;
use deepheap_store::StoreError;
use deepheap_sys::faults::handler_stack;
use deepheap_sys::threads::atomic::Ordering;
use deepheap_sys::threads::waits::{Cause, Wait};

use crate::PAGE;
use crate::budget::HANDLER_STACK_BYTES;
use crate::evict::context::DIRECT_PAGES;
use crate::fault::report::FaultError;
use crate::moves::Moves;
use crate::pager::Pager;
use crate::patience::Patience;

/// How often a thread waits in line because it could evict nothing without waiting for others.
const PASSED_OVER_MAX: u32 = 2;
/// With so few eviction contexts it waits for others at once: there is hardly a queue, and pieces
/// that are not cut short bring more neighbours together in the log (a scan on two processors is a
/// tenth faster: docs/decisions/0027-many-cores.md).
const FEW_CONTEXTS: usize = 4;

impl Pager {
    /// Reserves one page of the page buffer, evicting in this thread while there is none. If the
    /// store refuses changed objects, it gives up after `patience` refused batches, or once it has
    /// looked at every cached object, since clean ones may stand behind the changed ones.
    pub(crate) fn make_room(
        &self,
        moves: &mut Moves,
        patience: usize,
    ) -> Result<Reserved<'_>, FaultError> {
        if let Some(reserved) = self.residency.frames.page_buffer.try_reserve(1) {
            return Ok(reserved);
        }
        let wait = Wait::begin();
        let made = self.make_room_by_evicting(moves, patience);
        moves.stall_ns += wait.end(Cause::Room);
        made
    }

    /// As `make_room`, but over the limit if nothing can leave: objects in RAM stay usable when
    /// nothing can be written.
    pub(crate) fn reserve_page(&self, moves: &mut Moves, patience: usize) -> Reserved<'_> {
        self.make_room(moves, patience)
            .unwrap_or_else(|_| self.residency.frames.page_buffer.adopt(1))
    }

    fn make_room_by_evicting(
        &self,
        moves: &mut Moves,
        patience: usize,
    ) -> Result<Reserved<'_>, FaultError> {
        const FRUITLESS_MAX: u32 = 256;
        let page_buffer = &self.residency.frames.page_buffer;
        let (mut fruitless, mut refused, mut passed_over) = (0, 0, 0);
        let turn = page_buffer.join();
        let ended = loop {
            let seen = page_buffer.ended();
            if let Some(reserved) = page_buffer.take(&turn) {
                return Ok(reserved);
            }
            if fruitless > FRUITLESS_MAX || self.evictable() == 0 {
                // Nothing can be evicted, or every page is owned: better one page too many than a
                // deadlock.
                break Ok(page_buffer.adopt(1));
            }
            // Ask before evicting: a child that ends meanwhile gives back the space that we do not
            // find.
            let withheld = self.residency.store.is_pinned();
            // While the evictor works, pages come without our waiting for what only one thread at a
            // time can have. If it does not get along either, we wait as it does: it may be the
            // store that is full.
            let may_pass_over = self.contexts.len() > FEW_CONTEXTS
                && self.workers.has_evictor.load(Ordering::Relaxed);
            let how = match may_pass_over && passed_over < PASSED_OVER_MAX {
                true => Patience::AtOnce,
                false => Patience::Waits,
            };
            match self.evict_directly(how, moves) {
                // Others evict, and their pages go to threads that wait here. To sleep for one of
                // their locks could take seconds: a free lock goes to the thread that runs just
                // then.
                None => {
                    page_buffer.wait(seen);
                    continue;
                }
                Some(Ok(false)) if how == Patience::AtOnce => {
                    passed_over += 1;
                    let seen = page_buffer.ended();
                    if let Some(reserved) = page_buffer.take(&turn) {
                        return Ok(reserved);
                    }
                    page_buffer.wait(seen);
                    continue;
                }
                Some(Ok(true)) => {
                    fruitless = 0;
                    continue;
                }
                Some(Ok(false)) => fruitless += 1,
                Some(Err(StoreError::Full)) if withheld => break Err(FaultError::Withheld),
                Some(Err(error))
                    if refused >= patience
                        || refused * DIRECT_PAGES > self.residency.cache.objects() =>
                {
                    break Err(FaultError::NoRoom(error));
                }
                Some(Err(_)) => refused += 1,
            }
            deepheap_sys::threads::thread::yield_now();
        };
        page_buffer.give_up();
        ended
    }

    /// Whether staging takes RAM that the limits do not include yet.
    pub(crate) fn is_uncounted(&self) -> bool {
        self.residency.staging.staged_pages() > 0 || handler_stack::is_uncounted()
    }

    /// Takes room of the page buffer for one more handler stack, until `rebalance` lowers the
    /// limit; false if there is no room.
    pub fn try_stage_stack(&self) -> bool {
        let reserved = self.residency.frames.page_buffer.try_reserve(HANDLER_STACK_BYTES / PAGE);
        reserved.map(|reserved| self.residency.staging.note_staged(reserved)).is_some()
    }

    /// As `Residency::try_stage`, but makes room. The caller must own nothing.
    pub(crate) fn stage(&self, buffer: &StagingBuffer<'_>, bytes: usize, moves: &mut Moves) {
        for _ in 0..buffer.unnoted(bytes).div_ceil(PAGE) {
            self.residency.staging.note_staged(self.reserve_page(moves, usize::MAX));
        }
        buffer.note(bytes);
    }
}
