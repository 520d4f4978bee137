//! Room: reserves a page of the page buffer for a thread that needs one; the thread evicts itself.
//!
//! Never: allocates; is called by a thread that owns an object.
//! Threads: faulting ones in their handler (back-pressure), and callers of `access`.

use deepheap_store::StoreError;
use deepheap_sys::{clock, handler_stack};

use crate::PAGE;
use crate::budget::HANDLER_STACK_BYTES;
use crate::eviction_context::DIRECT_PAGES;
use crate::fault_report::FaultError;
use crate::moves::Moves;
use crate::pager::Pager;
use crate::staging::StagingBuffer;

impl Pager {
    /// Reserves one page of the page buffer, evicting in this thread while there is none. If the
    /// store refuses changed objects, it gives up after `patience` refused batches, or once it has
    /// looked at every cached object, since clean ones may stand behind the changed ones.
    pub(crate) fn make_room(&self, moves: &mut Moves, patience: usize) -> Result<(), FaultError> {
        if self.frames.page_buffer.try_reserve(1) {
            return Ok(());
        }
        let start_ns = clock::monotonic_ns();
        let made = self.make_room_by_evicting(moves, patience);
        moves.stall_ns += clock::monotonic_ns() - start_ns;
        made
    }

    fn make_room_by_evicting(&self, moves: &mut Moves, patience: usize) -> Result<(), FaultError> {
        const FRUITLESS_MAX: u32 = 256;
        let page_buffer = &self.frames.page_buffer;
        let (mut fruitless, mut refused) = (0, 0);
        page_buffer.join();
        let ended = loop {
            let seen = page_buffer.ended();
            if page_buffer.take() {
                return Ok(());
            }
            if fruitless > FRUITLESS_MAX || self.evictable() == 0 {
                // Nothing can be evicted, or every page is owned: better one page too many than a
                // deadlock.
                page_buffer.adopt(1);
                break Ok(());
            }
            // Ask before evicting: a child that ends meanwhile gives back the space that we do not
            // find.
            let withheld = self.store.is_pinned();
            match self.evict_directly(moves) {
                // Others evict, and their pages go to threads that wait here. To sleep for one of
                // their locks could take seconds: a free lock goes to the thread that runs just
                // then.
                None => {
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
                    if refused >= patience || refused * DIRECT_PAGES > self.cache.objects() =>
                {
                    break Err(FaultError::NoRoom(error));
                }
                Some(Err(_)) => refused += 1,
            }
            deepheap_sys::thread::yield_now();
        };
        page_buffer.give_up();
        ended
    }

    /// Whether staging takes RAM that the limits do not include yet.
    pub(crate) fn is_uncounted(&self) -> bool {
        self.budget.staged_pages() > 0 || handler_stack::is_uncounted()
    }

    /// A staging buffer of pages, of which `bytes` will be used. The caller may own objects, and so
    /// cannot make room. Its new bytes count in the page buffer, where the next thread makes room
    /// for them, until `rebalance` lowers the limit.
    pub(crate) fn take_staging(&self, bytes: usize) -> StagingBuffer<'_> {
        self.adopt_staging(self.staging.pages.take(), bytes)
    }

    /// As `take_staging`, for the copies of a checkpoint.
    pub(crate) fn take_staging_for_checkpoint(&self, bytes: usize) -> StagingBuffer<'_> {
        self.adopt_staging(self.staging.access.take(), bytes)
    }

    fn adopt_staging<'a>(&self, buffer: StagingBuffer<'a>, bytes: usize) -> StagingBuffer<'a> {
        let pages = buffer.unnoted(bytes).div_ceil(PAGE);
        if pages > 0 {
            self.frames.page_buffer.adopt(pages);
            self.stage_reserved(&buffer, bytes, pages);
        }
        buffer
    }

    /// Takes room of the page buffer for one more handler stack, until `rebalance` lowers the
    /// limit; false if there is no room.
    pub fn try_stage_stack(&self) -> bool {
        let pages = HANDLER_STACK_BYTES / PAGE;
        let has_room = self.frames.page_buffer.try_reserve(pages);
        if has_room {
            self.budget.note_staged(pages);
        }
        has_room
    }

    /// Notes that the first `bytes` of a staging buffer will be used. New bytes take room of the
    /// page buffer, until `rebalance` lowers the limit; false if there is no room.
    pub(crate) fn try_stage(&self, buffer: &StagingBuffer<'_>, bytes: usize) -> bool {
        let pages = buffer.unnoted(bytes).div_ceil(PAGE);
        let has_room = pages == 0 || self.frames.page_buffer.try_reserve(pages);
        if has_room {
            self.stage_reserved(buffer, bytes, pages);
        }
        has_room
    }

    /// As `try_stage`, but makes room. The caller must own nothing.
    pub(crate) fn stage(&self, buffer: &StagingBuffer<'_>, bytes: usize, moves: &mut Moves) {
        let pages = buffer.unnoted(bytes).div_ceil(PAGE);
        for _ in 0..pages {
            if self.make_room(moves, usize::MAX).is_err() {
                // The store takes no more writes, but cached objects can still be read.
                self.frames.page_buffer.adopt(1);
            }
        }
        self.stage_reserved(buffer, bytes, pages);
    }

    fn stage_reserved(&self, buffer: &StagingBuffer<'_>, bytes: usize, pages: usize) {
        if pages > 0 {
            buffer.note(bytes);
            self.budget.note_staged(pages);
        }
    }
}
