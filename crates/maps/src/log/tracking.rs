//! Tracking: which pages in RAM nobody has written since the last commit looked at them.
//!
//! The kernel protects pages against writes, and lifts that by itself at the first one
//! (userfaultfd's asynchronous protection). A commit asks which are protected still, and has all
//! protected anew, before it looks at any page: a store that comes after that is seen by the next.
//!
//! The kernel tells a process of its own stores. So what it says counts only if this process is the
//! only one that writes, and was all the time since the commit before: the header counts those that
//! began to. Else, and on kernels that cannot tell, every page is looked at.
//!
//! A device that writes to a page (O_DIRECT) is not told of after the page was protected: a page
//! that is pinned for a call is looked at again by the next commit.
//!
//! Guarantees: a page that is `untouched` is as it was logged.
//! Never: is needed: without it a commit takes longer.
//! Threads: the holder of the lock of commits.

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use deepheap_sys::PAGE;
use deepheap_sys::memory::pagemap::untouched_pages;
use deepheap_sys::memory::pinned_array::PinnedArray;

use crate::log::Log;

/// The knowledge of a commit about the pages.
pub(crate) struct Tracking {
    /// A bit for each page that is as it was logged, from `first` on; none: nothing is known.
    untouched: Option<PinnedArray<u64>>,
    first: u32,
    /// The token for the next commit, if this one has looked at all pages.
    token: u64,
    /// The token of the one before.
    before: u64,
}

impl Log<'_> {
    /// Begins to track anew. The caller logs the pages, and calls `keep` if that has succeeded.
    pub(crate) fn track(&self, pages: &Range<u32>) -> Tracking {
        let words = self.words;
        let before = words.tracked.swap(0, SeqCst);
        let token = self.token();
        let mut tracking = Tracking { untouched: None, first: pages.start, token, before };
        if token == 0 {
            return tracking;
        }
        let pages = pages.start..pages.end.min(self.region.mapped_pages()).max(pages.start);
        let Ok(mut bits) = PinnedArray::<u64>::new(pages.len() / 64 + 1) else {
            return Tracking { token: 0, ..tracking };
        };
        let base = self.region.base;
        let (from, length) = (base + pages.start as usize * PAGE, pages.len() * PAGE);
        let scanned = untouched_pages(from, length, &mut |first, count| {
            let first = (first - from) / PAGE;
            for page in first..first + count {
                bits[page / 64] |= 1 << (page % 64);
            }
        });
        match scanned {
            Ok(()) if before == token => tracking.untouched = Some(bits),
            Ok(()) => {}
            Err(_) => tracking.token = 0,
        }
        tracking
    }

    /// The pages were logged: all of the map, or a part.
    pub(crate) fn keep(&self, tracking: &Tracking, is_all: bool) {
        // After a part the others are as protected, and as well known, as before.
        if is_all || tracking.before == tracking.token {
            self.words.tracked.store(tracking.token, Release);
        }
    }

    /// Names this process as the only one that writes, and when it was so; 0: it is not, or the
    /// kernel does not track.
    fn token(&self) -> u64 {
        let region = self.region;
        if !region.watch.is_tracked {
            return 0;
        }
        let began = region.tables.header().writers_began.load(SeqCst);
        let others = region.tables.participants().iter().enumerate();
        let mut others = others.filter(|(place, _)| *place != region.tables.place);
        let has_others = others.any(|(place, participant)| {
            participant.is_writer.load(Acquire) != 0 && region.tables.rendezvous.is_locked(place)
        });
        // Ours is not 0.
        if has_others { 0 } else { u64::from(region.tables.mark) << 32 | u64::from(began) }
    }
}

impl Tracking {
    /// Whether a page is as it was logged.
    pub(crate) fn is_untouched(&self, page: u32) -> bool {
        let (Some(bits), Some(page)) = (&self.untouched, page.checked_sub(self.first)) else {
            return false;
        };
        let word = bits.get(page as usize / 64).copied().unwrap_or(0);
        word & 1 << (page % 64) != 0
    }
}
