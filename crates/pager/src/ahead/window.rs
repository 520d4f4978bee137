//! Window: pages side by side that one fault, or one request of a scan, brings together.
//!
//! Never: allocates, looks at a page.
//! Threads: any.

use deepheap_heap::{PAGES_PER_SPAN, PageNo};
use deepheap_policy::sequence::{Direction, Sequence, WINDOW_MAX};

/// Pages to fetch together: a first one, and those that a scan comes to after it. All are in one
/// span, except in a `stretch` that waits to be fetched ahead.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) page: PageNo,
    pub(crate) direction: Direction,
    /// How many in all.
    pub(crate) count: usize,
}

impl Window {
    /// The pages to fetch for a fault on `page`, as its sequence says.
    pub(crate) fn of(page: PageNo, sequence: Sequence) -> Window {
        let (count, direction) = sequence.window(page.0);
        Window { page, direction, count: count as usize }.within_span()
    }

    /// A whole stretch of a scan.
    pub(crate) fn stretch(page: PageNo, direction: Direction) -> Window {
        Window { page, direction, count: WINDOW_MAX as usize }
    }

    /// As many of the pages as are in the span of the first.
    pub(crate) fn within_span(self) -> Window {
        let in_span = self.page.0 as usize % PAGES_PER_SPAN;
        let left = match self.direction {
            Direction::Up => PAGES_PER_SPAN - in_span,
            Direction::Down => in_span + 1,
        };
        Window { count: self.count.min(left), ..self }
    }

    /// The page that the scan comes to after `count` others.
    pub(crate) fn page_after(self, count: usize) -> PageNo {
        PageNo(self.direction.after(self.page.0, count as u32))
    }
}
