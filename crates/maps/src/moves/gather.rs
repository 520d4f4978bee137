//! Gather: rows of bytes from all over a map come side by side.
//!
//! A row whose page is in RAM is left to the caller, which copies it from there. The page of
//! another one is read, and the row is copied out of the buffer. Whether the page takes RAM then is
//! asked for itself: it does while there is RAM to spare, and if it was read lately, as far as the
//! evictor keeps room. So a list that is gathered once costs others no page of theirs, and what
//! comes again and again is in RAM.
//!
//! Guarantees: a row is what the file had, or RAM, at one time during the call: its page's shard is
//! owned from before the read until it was copied, so nobody stores to it meanwhile.
//! Never: waits for a shard or for room | touches a map's memory.
//! Threads: any, not in a signal handler.

use core::sync::atomic::Ordering::Relaxed;

use crate::moves::fill::{Filling, Run};
use crate::moves::staging::BUFFER_PAGES;
use crate::region::Region;

/// Rows of one call.
pub const ROWS_MAX: usize = BUFFER_PAGES;

/// Where so many times as much RAM is free as is kept free for faults, it is not wanted yet: the
/// evictor ends at half of that.
const RAM_TO_SPARE: u64 = 4;

/// A row that is wanted: it lies in one page.
#[derive(Clone, Copy, Default)]
pub(crate) struct Row {
    pub(crate) page: u32,
    /// Where it begins in the page.
    pub(crate) offset: usize,
    /// Which of the caller's it is.
    pub(crate) index: usize,
}

impl Region {
    /// Copies rows of `length` bytes to `into`, each to the place of its index, as far as their
    /// pages are not in RAM and their shards are free; answers which, a bit for each index. `rows`
    /// are in the order of their pages, at most `ROWS_MAX`.
    pub(crate) fn gather(&self, rows: &[Row], length: usize, into: &mut [u8]) -> u64 {
        const _: () = assert!(ROWS_MAX <= u64::BITS as usize);
        let mut filling = Filling::<BUFFER_PAGES>::new(self);
        let (mut runs, mut count) = ([Run::default(); BUFFER_PAGES], 0);
        // A bit for each page that takes RAM.
        let mut takes_ram = 0u64;
        let mut last = None;
        for page in rows.iter().map(|row| row.page) {
            if last.replace(page) != Some(page) && filling.claim(page) {
                takes_ram |= u64::from(self.admit(&mut filling, page)) << count;
                runs[count] = Run { page, count: 1, at: count };
                count += 1;
            }
        }
        let (mut copied, mut pages_read) = (0, 0);
        filling.read_each(&runs[..count], |at, whole| {
            let page = runs[at].page;
            if whole > 0 {
                let first = rows.partition_point(|row| row.page < page);
                for row in rows[first..].iter().take_while(|row| row.page == page) {
                    let to = &mut into[row.index * length..][..length];
                    let from = filling.buffer.page(at).wrapping_add(row.offset);
                    // SAFETY: the row lies in a page of the buffer, which nobody changes now.
                    to.copy_from_slice(unsafe { core::slice::from_raw_parts(from, length) });
                    copied |= 1 << row.index;
                }
            }
            pages_read += u64::from(whole);
            if takes_ram >> at & 1 != 0 {
                let came = filling.bring(Run { count: whole, ..runs[at] });
                self.uncount(u64::from(1 - came));
            } else if let Some(owned) = filling.of(page).filter(|_| whole > 0) {
                owned.note_ghost(page);
            }
        });
        self.tables.header().counts.pages_read.fetch_add(pages_read, Relaxed);
        copied
    }

    /// Whether a page that is read takes RAM; if so it is counted, and planned.
    fn admit(&self, filling: &mut Filling<'_, BUFFER_PAGES>, page: u32) -> bool {
        let was_there = filling.of(page).is_some_and(|owned| owned.is_ghost(page));
        let resident = &self.tables.header().resident;
        resident.fetch_add(1, Relaxed);
        let spare = if was_there { 0 } else { RAM_TO_SPARE * self.spare() };
        let admitted = self.excess(spare) == 0 && filling.plan(page);
        if !admitted {
            self.uncount(1);
        }
        admitted
    }
}
