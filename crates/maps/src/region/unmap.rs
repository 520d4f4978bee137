//! Unmap: which pages leave the page tables of this process before they leave RAM.
//!
//! The hole would take victims out of the page tables one by one. Here they go together, and where
//! pages are stored to or were scanned (`fill`), the rest of their 2 MiB goes with them: at a dirty
//! entry the kernel flushes the TLB before it leaves the page table, once for a page or for all of
//! it. A page that stays in RAM is mapped again by the kernel when it is touched. Pages leave in
//! the order in which they came, so all pages of a range leave in the time in which RAM is filled
//! once; about as often it is unmapped as a whole, and the victims in between are mostly in no page
//! table any more.
//!
//! Guarantees: none; it only saves time. The hole unmaps every page, in every process.
//! Never: allocates | drops a byte: the memory is shared with its file.
//! Threads: any, also in a signal handler.

use core::sync::atomic::Ordering::Relaxed;

use std::sync::OnceLock;

use deepheap_sys::PAGE;
use deepheap_sys::memory::zap::Zapper;
use libc::iovec;

use crate::moves::fill::FILLED_TOGETHER;
use crate::region::Region;
use crate::region::ranges::RANGE;
use crate::tables::control::BATCH;

/// The process's, since its first map.
pub(crate) static ZAPPER: OnceLock<Zapper> = OnceLock::new();

/// The part of RAM that leaves before a range is unmapped as a whole again.
const PART: u32 = 2;

/// Whether these pages, in ascending order, are neighbours, as a scan leaves them.
fn is_of_scan(victims: &[u32]) -> bool {
    let [first, .., last] = *victims else { return false };
    victims.len() >= FILLED_TOGETHER as usize / 2 && last - first < victims.len() as u32
}

impl Region {
    /// Unmaps pages, in ascending order. One that is touched again meanwhile leaves with the hole.
    pub(crate) fn unmap(&self, victims: &[u32]) {
        let Some(zapper) = ZAPPER.get() else { return };
        const NONE: iovec = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let mut ranges = [NONE; BATCH];
        let header = self.tables.header();
        let counts = &header.counts;
        let gone = counts.evicted_clean.load(Relaxed) + counts.evicted_changed.load(Relaxed);
        let interval = header.budget_pages.load(Relaxed) as u32 / PART;
        let has_dirty = self.ranges.had_changes.load(Relaxed) || is_of_scan(victims);
        let end = self.base + self.mapped_pages() as usize * PAGE;
        let (mut count, mut done) = (0usize, self.base);
        for &page in victims {
            let at = self.base + page as usize * PAGE;
            if at < done || at >= end {
                continue;
            }
            let is_whole = has_dirty && self.ranges.is_due(at, gone as u32, interval);
            let (from, to) = match is_whole {
                true => ((at & !(RANGE - 1)).max(self.base), (at | (RANGE - 1)).saturating_add(1)),
                false => (at, at + PAGE),
            };
            let to = to.min(end);
            let last = &mut ranges[count.saturating_sub(1)];
            if count > 0 && from == done {
                last.iov_len += to - from;
            } else {
                ranges[count] = iovec { iov_base: from as *mut _, iov_len: to - from };
                count += 1;
            }
            done = to;
        }
        // SAFETY: addresses of the map; what is dropped stays in the memory that it shares. A
        // refusal does no harm.
        let _ = unsafe { zapper.zap(&ranges[..count]) };
    }
}
