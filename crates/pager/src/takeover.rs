//! Take-over: puts spans that were born plain under management. It registers all of them at
//! once, then scans a piece of one at a time for pages that are present: a thread that faults may
//! wait for a piece.
//!
//! Guarantees: between registration and the end of the scan a page is either present or absent. If
//! it is present, the program cannot fault on it. If it is absent, its content is zero: a fault
//! finds it `Zero` in the object table, and asks the page buffer for room. Pages that may be the
//! shared zero page, or shared with another process, are marked (`evict` makes them exclusive
//! first). A page that a hold covers is pinned before the evictor can find it.
//! Never: moves or copies a page.
//! Threads: any that evicts; one at a time, the others wait.

pub(crate) mod plain_spans;

use deepheap_heap::{PAGES_PER_SPAN, PageNo, SPAN};
use deepheap_policy::replacement::Rank;
use deepheap_residency::ownership::{Found, Pin};
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::pagemap;
use deepheap_sys::process::log::{Piece, say};
use deepheap_sys::threads::atomic::Ordering;
use deepheap_sys::threads::waits::{Cause, Wait};

use crate::PAGE;
use crate::gate::Level;
use crate::pager::Pager;
use crate::takeover::plain_spans::TakeOver;

/// A span is taken over in so many pieces, one at a time.
const PIECES_PER_SPAN: usize = 16;
const PAGES_PER_PIECE: usize = PAGES_PER_SPAN / PIECES_PER_SPAN;

impl Pager {
    /// Begins management. The first `spans` spans were plain until now and hold about `present`
    /// pages, for which the store has promised room. They count against the page buffer at once;
    /// from now on a page comes only by a fault. The evictor takes the spans over piece by piece.
    /// `publish` shows the pager to other threads and answers what is held; no span is taken over
    /// while it runs.
    pub fn begin_take_over(
        &self,
        spans: usize,
        present: usize,
        publish: impl FnOnce() -> Vec<(usize, usize)>,
    ) {
        self.residency.promises.set_aside(present);
        self.residency.frames.page_buffer.adopt(present).keep();
        // Lower the limit in steps from here on, so that no fault has to make room for all of it.
        self.rebalance();
        let mut take_over = self.plain_spans.lock();
        self.plain_spans.set_count(spans * PIECES_PER_SPAN);
        self.residency.frames.manage_up_to(spans);
        let held = publish();
        self.pins.calls.fetch_add(held.iter().map(|(_, pages)| pages).sum(), Ordering::Relaxed);
        *take_over = TakeOver { next: 0, end: spans * PIECES_PER_SPAN, assumed: present, held };
        // An error is ignored here: each piece is registered again when it is taken over, and
        // reports it.
        let _ = self.residency.frames.register(self.residency.frames.region_base(), spans * SPAN);
    }

    /// Takes over every span that is still plain.
    pub fn take_over_spans(&self) {
        while self.plain_spans.any() {
            self.take_over_piece();
        }
    }

    /// Takes over the next piece of a plain span, if there is one.
    pub(crate) fn take_over_piece(&self) {
        let _passage = self.gate.enter(Level::Mover);
        let wait = Wait::begin();
        let mut take_over = self.plain_spans.lock();
        if take_over.next == take_over.end {
            wait.end(Cause::TakeOver);
            return;
        }
        let piece = take_over.next;
        let present = match self.take_over(piece, &take_over.held) {
            Ok(present) => present,
            Err(errno) => {
                // It stays plain: its memory is safe, and its share of the budget stays used.
                say(&[
                    Piece::Text("cannot put memory under management: "),
                    Piece::Error(errno),
                    Piece::Text("; 4 MiB of the heap stay in RAM"),
                ]);
                self.keep_piece(piece);
                // A second pin: the pins of holds end with the holds, that of the piece must never
                // end.
                self.adopt_held(piece, &take_over.held);
                PAGES_PER_PIECE.min(take_over.assumed)
            }
        };
        take_over.next += 1;
        let left = (take_over.end - take_over.next) * PAGES_PER_PIECE;
        let assumed = take_over.assumed.saturating_sub(present).min(left);
        self.residency.frames.page_buffer.adopt(present).keep();
        self.residency.frames.page_buffer.unreserve(take_over.assumed - assumed);
        take_over.assumed = assumed;
        self.plain_spans.set_count(take_over.end - take_over.next);
        if take_over.next == take_over.end {
            self.residency.promises.end_set_aside(&self.residency.store);
        }
        wait.end(Cause::TakeOver);
    }

    fn take_over(&self, piece: usize, held: &[(usize, usize)]) -> Result<usize, Errno> {
        let length = PAGES_PER_PIECE * PAGE;
        let address = self.residency.frames.region_base() + piece * length;
        self.residency.frames.register(address, length)?;
        let mut present = self.adopt_held(piece, held);
        pagemap::present_pages(address, length, &mut |from, pages, _| {
            for index in 0..pages {
                let page = self.residency.frames.page_at(from + index * PAGE);
                present += usize::from(self.adopt_page(page, false));
            }
        })?;
        Ok(present)
    }

    /// Notes the pages of a piece that are held, with one pin for each hold; answers how many pages
    /// they are. All of them are present: whoever took the hold touched them.
    fn adopt_held(&self, piece: usize, held: &[(usize, usize)]) -> usize {
        let mut adopted = 0;
        for &(first, pages) in held {
            let from = first.max(piece * PAGES_PER_PIECE);
            let to = (first + pages).min((piece + 1) * PAGES_PER_PIECE);
            for page in from..to {
                let page = PageNo(page as u32);
                if self.adopt_page(page, true) {
                    adopted += 1;
                } else {
                    self.pin_adopted(page);
                }
            }
        }
        adopted
    }

    /// One more pin of a page that was noted before: by an earlier hold. Or the program has dropped
    /// the page and a fault installed it again; then the kernel does not look at the old one any
    /// more, and the page may have left.
    fn pin_adopted(&self, page: PageNo) {
        while self.residency.ownership.try_pin(page, Pin::Call).is_none() {
            match self.residency.ownership.look(page) {
                Found::Resident(_) => {}
                Found::OnItsWay(seen) => self.residency.ownership.wait(seen),
                Found::Zero | Found::Stored(_) | Found::Cached(_) | Found::Lost => {
                    return self.pins.refused.note(page);
                }
            }
        }
    }

    /// Notes every page of a piece that stays plain as resident and pinned for ever: lookups must
    /// find it in the page buffer, and it must never leave.
    fn keep_piece(&self, piece: usize) {
        for page in piece * PAGES_PER_PIECE..(piece + 1) * PAGES_PER_PIECE {
            self.adopt_page(PageNo(page as u32), true);
        }
    }

    /// Notes a page that was present, and pins it if it is to be `kept`; false if a fault has
    /// installed it since the registration.
    fn adopt_page(&self, page: PageNo, kept: bool) -> bool {
        let promise = self.residency.promise_for_present(page);
        let Some(owned) = self.residency.claim_present(promise, kept) else { return false };
        self.residency.frames.ranges.enter(page);
        self.residency.ownership.arrive(owned, Rank::Probation);
        true
    }
}
