//! Take-over: puts spans that were born plain under management: registers all of them, then scans
//! one at a time for what is present.
//!
//! Guarantees: between registration and the end of the scan a page is either present, and then the
//! program cannot fault on it, or absent, and then a fault finds it `Zero`, which it is, and asks
//! the page buffer for room. Pages that may be the shared zero page, or shared with another
//! process, are marked (`evict` makes them exclusive first). A page that is held is pinned before
//! the evictor can find it.
//! Never: moves or copies a page.
//! Threads: whoever evicts; one at a time, the others wait.

use deepheap_heap::{PAGES_PER_SPAN, PageNo, SPAN};
use deepheap_sys::atomic::Ordering;
use deepheap_sys::errno::Errno;
use deepheap_sys::log::{Piece, say};
use deepheap_sys::pagemap;

use crate::PAGE;
use crate::descriptor::{List, State};
use crate::fault::UNKNOWN_HASH;
use crate::gate::Level;
use crate::object_table::Place;
use crate::pager::Pager;

/// Plain spans still to be taken over: `next..end`.
pub(crate) struct TakeOver {
    next: usize,
    end: usize,
    /// Pages of them that count as resident until they have been looked at.
    assumed: usize,
    /// What stays in RAM until it is unpinned: page numbers, and how many pages follow.
    held: Vec<(usize, usize)>,
}

impl TakeOver {
    pub(crate) fn none() -> TakeOver {
        TakeOver { next: 0, end: 0, assumed: 0, held: Vec::new() }
    }

    /// Pages of spans not looked at yet, as the page buffer counts them.
    pub(crate) fn assumed(&self) -> usize {
        self.assumed
    }
}

impl Pager {
    /// Begins management: the first `spans` spans were plain until now and hold `committed` pages.
    /// They count against the page buffer at once, and no more come without a fault; the evictor
    /// looks at them one by one. `publish` shows the pager to other threads and answers what is
    /// held: no span is taken over meanwhile.
    pub fn begin_take_over(
        &self,
        spans: usize,
        committed: usize,
        publish: impl FnOnce() -> Vec<(usize, usize)>,
    ) {
        self.page_buffer.adopt(committed);
        // From here on its limit comes down in steps: no fault has to make room for all of it.
        self.rebalance();
        let mut take_over = self.take_over.lock();
        self.plain_spans.store(spans, Ordering::Release);
        self.managed_spans.fetch_max(spans, Ordering::Release);
        *take_over = TakeOver { next: 0, end: spans, assumed: committed, held: publish() };
        // Tried again for each span, which then has the error.
        let _ = self.register(self.region_base, spans * SPAN);
    }

    /// Whether some spans have not been looked at yet.
    pub(crate) fn has_plain_spans(&self) -> bool {
        self.plain_spans.load(Ordering::Acquire) > 0
    }

    /// Takes over every span that is still plain.
    pub fn take_over_spans(&self) {
        while self.has_plain_spans() {
            self.take_over_span();
        }
    }

    /// Takes over the next plain span, if there is one.
    pub(crate) fn take_over_span(&self) {
        let _passage = self.gate.enter(Level::Mover);
        let mut take_over = self.take_over.lock();
        if take_over.next == take_over.end {
            return;
        }
        let span = take_over.next;
        let present = match self.take_over(span, &take_over.held) {
            Ok(present) => present,
            Err(errno) => {
                // The span stays plain: its memory is safe, and its share of the budget stays used.
                say(&[
                    Piece::Text("cannot put memory under management: "),
                    Piece::Error(errno),
                    Piece::Text("; 64 MiB of the heap stay in RAM"),
                ]);
                self.keep_span(span);
                // On top: these pins end with their holds, that of the span must not.
                self.adopt_held(span, &take_over.held);
                PAGES_PER_SPAN.min(take_over.assumed)
            }
        };
        take_over.next += 1;
        let left = (take_over.end - take_over.next) * PAGES_PER_SPAN;
        let assumed = take_over.assumed.saturating_sub(present).min(left);
        self.page_buffer.adopt(present);
        self.page_buffer.unreserve(take_over.assumed - assumed);
        take_over.assumed = assumed;
        self.plain_spans.store(take_over.end - take_over.next, Ordering::Release);
    }

    fn take_over(&self, span: usize, held: &[(usize, usize)]) -> Result<usize, Errno> {
        let address = self.region_base + span * SPAN;
        self.register(address, SPAN)?;
        let mut present = self.adopt_held(span, held);
        pagemap::present_pages(address, SPAN, &mut |from, pages, _| {
            for index in 0..pages {
                let page = PageNo(((from - self.region_base) / PAGE + index) as u32);
                present += usize::from(self.adopt_page(page, false));
            }
        })?;
        Ok(present)
    }

    /// Notes the pages of a span that are held, pinned once for each who holds them; answers how
    /// many pages they are. All of them are present: who held them touched them.
    fn adopt_held(&self, span: usize, held: &[(usize, usize)]) -> usize {
        let mut adopted = 0;
        for &(first, pages) in held {
            let from = first.max(span * PAGES_PER_SPAN);
            let to = (first + pages).min((span + 1) * PAGES_PER_SPAN);
            for page in from..to {
                let page = PageNo(page as u32);
                if self.adopt_page(page, true) {
                    adopted += 1;
                } else {
                    // Pinned by the one before. Or the program has dropped the page, which then is
                    // nothing that the kernel still looks at, and a fault installed it again.
                    let _ = self.try_pin(page);
                }
            }
        }
        adopted
    }

    /// Notes every page of a span that stays plain as one that is in the page buffer for ever: it
    /// must be found there, and never leave.
    fn keep_span(&self, span: usize) {
        for page in span * PAGES_PER_SPAN..(span + 1) * PAGES_PER_SPAN {
            self.adopt_page(PageNo(page as u32), true);
        }
    }

    /// Notes a page that was present, and pins it if it is to be `kept`; false if a fault has
    /// installed it since the registration.
    fn adopt_page(&self, page: PageNo, kept: bool) -> bool {
        let id = self.take_descriptor(page);
        let descriptor = self.descriptors.get(id);
        descriptor.begin(page, State::Arriving, None, UNKNOWN_HASH);
        // Zero page, or written in plain days and perhaps shared by a fork since: not known to be
        // exclusive either way.
        descriptor.set_may_be_shared(true);
        if kept {
            descriptor.add_pin();
        }
        if !self.table.replace(page, Place::Zero, Place::Busy(id)) {
            if kept {
                descriptor.drop_pin();
            }
            self.descriptors.release(id);
            return false;
        }
        self.ranges.enter(page);
        self.descriptors.move_to(id, List::PageBuffer);
        descriptor.change(State::Resident);
        true
    }
}
