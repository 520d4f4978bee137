//! Fetcher: a worker that reads objects that will be wanted soon (`prefetch`).
//!
//! The first object of a window goes into the object cache, as a mark: the fault on it is cheap,
//! and shows that the scan has come so far.
//!
//! Guarantees: an object that a fetcher brings is owned like any other arriving object: a thread
//! that touches it waits for it.
//! Never: allocates; waits for room in RAM.
//! Threads: the fetchers; any may ask by `prefetch`.

use deepheap_heap::PageNo;
use deepheap_residency::ownership::{CameBy, Place};
use deepheap_residency::staging::CALL_PIECES;
use deepheap_store::Block;
use deepheap_sys::process::clock;
use deepheap_sys::threads::atomic::Ordering;
use deepheap_sys::threads::futex;
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::signals::Blocked;

use crate::ahead::neighbours::{GROUP, NEAR};
use crate::ahead::prefetch::Queue;
use crate::ahead::window::Window;
use crate::calls::access::{Operation, Piece};
use crate::gate::Level;
use crate::moves::Moves;
use crate::pager::Pager;
use crate::trace::Happened;

impl Pager {
    /// Asks for the objects at these addresses; returns how many are stored, or may be, and will be
    /// brought. The others are in DRAM, are zero, or found no room in the queue. The iterator must
    /// not fault.
    pub fn prefetch(&self, addresses: impl Iterator<Item = usize>) -> usize {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        let pages = addresses.filter_map(|address| self.managed_page(address));
        let pages = pages.filter(|&page| self.residency.ownership.table.may_be_stored(page));
        self.ahead.queues.ask_for_all(&self.ahead.queues.objects, pages)
    }

    /// The loop of a fetcher: sleeps until a thread asks, then brings one stretch, or a call of
    /// objects; returns how many pages it brought.
    pub fn serve_prefetch(&self, moves: &mut Moves) -> u32 {
        let mut pieces = [Piece { address: 0, length: 0 }; CALL_PIECES];
        loop {
            let seen = self.ahead.queues.signal.load(Ordering::SeqCst);
            // Inside the gate: a fork must not find a queue's lock held.
            let passage = self.gate.enter(Level::Mover);
            let stretch = self.ahead.queues.stretches.lock().pop();
            if let Some(stretch) = stretch {
                return self.fetch_ahead(stretch, moves);
            }
            let mut came_by = CameBy::Itself;
            let mut count = self.next_objects(&self.ahead.queues.objects, &mut pieces);
            if count == 0 {
                came_by = CameBy::Trail;
                count = self.next_objects(&self.ahead.queues.on_trails, &mut pieces);
            }
            if count == 0
                && let Some(page) = self.ahead.queues.beside.lock().pop()
            {
                came_by = CameBy::Neighbour;
                count = self.neighbours_of(page, &mut pieces);
            }
            drop(passage);
            if count > 0 {
                let buffer = self.access_buffer();
                // An error is reported to the next thread that touches the object.
                let operation = Operation::Fetch(came_by);
                let _ = self.access(operation, &pieces[..count], &buffer, moves);
                return count as u32;
            }
            if came_by == CameBy::Neighbour {
                continue; // they are on their way already: what else is there
            }
            if self.workers.have_ended() {
                return 0;
            }
            futex::wait(&self.ahead.queues.signal, seen, None);
        }
    }

    /// Fills in the stored objects that come next in a queue, in the order of their places in the
    /// store: the second tier's behind the first one's. Returns how many.
    fn next_objects<const N: usize>(
        &self,
        queue: &Lock<Queue<PageNo, N>>,
        pieces: &mut [Piece; CALL_PIECES],
    ) -> usize {
        let mut found = [(Block(0), PageNo(0)); CALL_PIECES];
        let mut count = 0;
        while count == 0 {
            // Together: what is asked for together lies together in the second tier.
            let mut asked = [PageNo(0); CALL_PIECES];
            let mut waiting = queue.lock();
            let next = asked.iter_mut().map_while(|page| waiting.pop().map(|next| *page = next));
            let popped = next.count();
            drop(waiting);
            if popped == 0 {
                break;
            }
            // Look without the lock, since a look may wait for the device. If it is not stored, it
            // was asked for twice or touched meanwhile: nothing to bring.
            for &page in &asked[..popped] {
                if let Place::Stored(block) = self.residency.ownership.place(page) {
                    found[count] = (block, page);
                    count += 1;
                }
            }
        }
        found[..count].sort_unstable_by_key(|(block, _)| block.0);
        for (piece, (_, page)) in pieces.iter_mut().zip(&found[..count]) {
            piece.address = self.residency.frames.address_of(*page);
        }
        count
    }

    fn fetch_ahead(&self, stretch: Window, moves: &mut Moves) -> u32 {
        let Some((window, block)) = self.first_stored(stretch) else { return 0 };
        // Done before anything is owned, since it may wait. Without a slot the stretch has no mark.
        let mut mark = self.slot_for(window.page, moves).unwrap_or(None);
        let mut pages = 0;
        if mark.is_none() && self.lanes_of(window.page).is_some() {
            return 0;
        }
        // An error is reported to the next thread that touches the object.
        if let Some(mut reserved) = self.residency.frames.page_buffer.try_reserve(1)
            && let Ok(Some(brought)) = self.fetch_window(window, block, &mut reserved, &mut mark)
        {
            pages = brought.pages;
            let passed = window.direction.signed(brought.extent);
            let now_ns = clock::monotonic_ns();
            self.residency.trace.note_fault(Happened::Ahead, window.page, passed, (now_ns, 0));
        }
        drop(mark);
        self.signal_eviction();
        pages
    }

    /// Fills in the stored neighbours of a page that are near it in the log; returns how many.
    fn neighbours_of(&self, page: PageNo, pieces: &mut [Piece]) -> usize {
        let residency = &self.residency;
        let backing = match residency.ownership.place(page) {
            Place::Stored(block) => Some(block),
            // The descriptor may be another object's by now: a hint.
            Place::Busy(id) | Place::Cached(id) => residency.ownership.descriptor(id).backing(),
            Place::Zero | Place::Lost => None,
        };
        let Some(Block(backing)) = backing else { return 0 };
        let first = page.0 - page.0 % GROUP as u32;
        let mut count = 0;
        for neighbour in (first..first + GROUP as u32).map(PageNo) {
            if neighbour != page
                && let Place::Stored(Block(block)) = residency.ownership.place(neighbour)
                && block.abs_diff(backing) < NEAR
            {
                pieces[count] =
                    Piece { address: residency.frames.address_of(neighbour), length: 0 };
                count += 1;
            }
        }
        self.ahead.neighbours.bring(count as u32);
        count
    }
}
