//! Ask: which pages a fault asks the fetchers for.
//!
//! Never: allocates, owns an object.
//! Threads: faulting ones in their signal handler, inside the gate.

use deepheap_heap::PageNo;
use deepheap_policy::sequence::{AHEAD_MAX, Sequences, WINDOW_MAX};
use deepheap_policy::stride::Walks;
use deepheap_policy::trail::{self, Trails};
use deepheap_residency::Residency;
use deepheap_residency::counters::Counted;

use crate::PAGE;
use crate::ahead::Ahead;
use crate::ahead::window::Window;
use crate::tier::Tier;

const WINDOW: usize = WINDOW_MAX as usize;
/// Pages that scans ask for ahead take at most this part of the page buffer.
const AHEAD_PART: usize = 16;

/// A thread that has faulted.
pub(crate) struct Asker<'a> {
    pub(crate) residency: &'a Residency,
    pub(crate) ahead: &'a Ahead,
    pub(crate) tier: Tier<'a>,
}

impl Asker<'_> {
    /// For a fault on a page that a fetcher left in the cache as the mark of a window: the scan has
    /// come so far, so it asks for the next windows that were not asked for yet.
    pub(crate) fn go_on_ahead(&self, page: PageNo, sequences: &mut Sequences) {
        let sequence = sequences.of(page.0);
        if let Some((from, direction)) = sequence.asked_until(page.0) {
            self.tier.note_scan(WINDOW_MAX);
            let window = Window::stretch(page, direction);
            let end = self.ask_ahead(window, PageNo(from), sequences.asking());
            sequences.note(page.0, sequence.ask_until(end.0));
        }
    }

    /// For a fault on `page` that is no scan's, and whose object is in DRAM, or not: asks for what
    /// comes next on a trail, or on a walk in equal steps. Answers whether the thread is on one.
    pub(crate) fn ask_next(
        &self,
        page: PageNo,
        sequences: &mut Sequences,
        is_in_dram: bool,
    ) -> bool {
        self.ask_on_trail(page, &mut sequences.trails, is_in_dram)
            || self.ask_walk(page, &mut sequences.walks, is_in_dram)
    }

    fn ask_walk(&self, page: PageNo, walks: &mut Walks, is_in_dram: bool) -> bool {
        if !self.ahead.queues.follows_strides {
            return false;
        }
        let Some(ahead) = walks.fault(page.0) else { return false };
        let pages = ahead.pages().map(PageNo).filter(|&page| self.is_wanted(page));
        let asked = self.ahead.queues.ask_for_all(&self.ahead.queues.objects, pages);
        self.residency.count(Counted::WalkAsked, asked as u64);
        self.residency.count(Counted::WalkUsed, (ahead.was_asked && is_in_dram).into());
        true
    }

    /// Whether a page that comes next on a trail or a walk is of the heap, and may have to be read.
    fn is_wanted(&self, page: PageNo) -> bool {
        let address = self.residency.frames.address_of(page);
        self.residency.frames.managed_page(address).is_some()
            && self.residency.ownership.table.may_be_stored(page)
    }

    /// Notes the fault in the history besides.
    fn ask_on_trail(&self, page: PageNo, trails: &mut Trails, is_in_dram: bool) -> bool {
        let Some(history) = &self.ahead.history else { return false };
        let most =
            trail::most_ahead(self.residency.cache.limit() / PAGE, self.tier.mix.is_trail_slow());
        let Some(ahead) = trails.fault(history, page.0, is_in_dram, most) else { return false };
        self.tier.note_scan(1);
        let pages = ahead.pages().iter().map(|&page| PageNo(page));
        let mut is_slow = false;
        let pages = pages
            .filter(|&page| self.is_wanted(page))
            .inspect(|&page| is_slow |= self.tier.has(page));
        let asked = self.ahead.queues.ask_for_all(&self.ahead.queues.on_trails, pages);
        if asked > 0 {
            self.tier.mix.note_trail(is_slow);
            trails.bring(asked);
        }
        true
    }

    /// Asks for the windows after that of a scan, from the page `from` on; `scans` scans of
    /// the thread do that. Returns the first page that was not asked for.
    pub(crate) fn ask_ahead(&self, window: Window, from: PageNo, scans: usize) -> PageNo {
        let fit = self.residency.frames.page_buffer.limit() / (AHEAD_PART * WINDOW * scans.max(1));
        let stretches = fit.clamp(1, AHEAD_MAX as usize);
        let near = Window { count: (1 + stretches) * WINDOW, ..window }.within_span();
        let mut next = from;
        while window.direction.distance(window.page.0, next.0) as usize + WINDOW <= near.count
            && self.ahead.queues.ask_for(next, window.direction)
        {
            next = PageNo(window.direction.after(next.0, WINDOW_MAX));
        }
        next
    }

    /// For a fault on `page`, whose object is stored: asks for its neighbours if that pays.
    pub(crate) fn ask_beside(&self, page: PageNo) {
        if !self.residency.heap.is_object_page(page) && self.ahead.neighbours.are_wanted() {
            self.ahead.queues.ask_for_beside(page);
        }
    }
}
