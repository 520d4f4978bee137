//! Table directory: where each page of the object table is, and the lock of it.
//!
//! ```text
//!                 fill                    evict, changed or all zero
//!   Never ────────────────────► Here ───────────────────────────────────► Out(home)
//!                                 ▲  └── evict, as it is at its home ──►    │
//!                                 └──────────────────── fill ───────────────┘
//! ```
//!
//! A page that is Here has a home, too, if a copy of it lies somewhere; the checksum is that
//! copy's.
//!
//! Guarantees: only the holder of a page's lock changes its word and its checksum.
//! Never: allocates, does I/O. The lock of a page is a leaf: its holder waits for the device and
//! for nothing else, so a thread that owns objects may wait for it.
//! Threads: any, also in a signal handler.

use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use deepheap_sys::threads::futex;

/// Where a copy of a page lies: a number that `homes` gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Home(pub(super) u8);

impl Home {
    /// Nowhere. A page that is Out and nowhere is all `Zero`.
    pub(super) const NOWHERE: Home = Home(0);
}

const HERE: u32 = 1;
const LOCKED: u32 = 1 << 2;
/// A thread sleeps until the lock is free.
const WAITED_FOR: u32 = 1 << 3;
/// It was evicted with other contents than the last checkpoint has.
const UNSAVED: u32 = 1 << 5;
/// As `UNSAVED`, but the checkpoint that is being made has it.
const SAVING: u32 = 1 << 6;
/// Its entries were not counted since the heap was opened.
const UNCOUNTED: u32 = 1 << 7;
const HOME_SHIFT: u32 = 8;

/// See the file's header.
pub(super) struct Directory {
    words: PinnedArray<AtomicU32>,
    /// So long that two pages that differ never have the same: what has changed is told by them.
    checksums: PinnedArray<AtomicU64>,
    /// A bit for each page that is not Never.
    used: PinnedArray<AtomicU64>,
    /// A bit for each page that is Here.
    here: PinnedArray<AtomicU64>,
    used_pages: AtomicUsize,
    pages_here: AtomicUsize,
}

/// The right to change what is known of a page. Dropping it keeps what was noted.
pub(super) struct Locked<'a> {
    directory: &'a Directory,
    page: usize,
    word: u32,
}

impl Directory {
    /// Of a table of `pages` pages.
    pub(super) fn new(pages: usize) -> Result<Directory> {
        let bits = pages.div_ceil(64);
        Ok(Directory {
            words: PinnedArray::new(pages)?,
            checksums: PinnedArray::new(pages)?,
            used: PinnedArray::new(bits)?,
            here: PinnedArray::new(bits)?,
            used_pages: AtomicUsize::new(0),
            pages_here: AtomicUsize::new(0),
        })
    }

    /// Pages of the table.
    pub(super) fn pages(&self) -> usize {
        self.words.len()
    }

    /// Pages in RAM.
    pub(super) fn pages_here(&self) -> usize {
        self.pages_here.load(Ordering::Relaxed)
    }

    /// Bytes of RAM that the directory takes; they may lie scattered.
    pub(super) fn bytes(&self) -> usize {
        self.used_pages.load(Ordering::Relaxed) * (size_of::<u32>() + size_of::<u64>())
    }

    /// Waits for the lock of a page.
    pub(super) fn lock(&self, page: usize) -> Locked<'_> {
        loop {
            if let Some(locked) = self.try_lock(page) {
                return locked;
            }
            let word = self.words[page].fetch_or(WAITED_FOR, Ordering::Relaxed) | WAITED_FOR;
            if word & LOCKED != 0 {
                futex::wait(&self.words[page], word, None);
            }
        }
    }

    /// The lock of a page, if it is free.
    pub(super) fn try_lock(&self, page: usize) -> Option<Locked<'_>> {
        let word = self.words[page].load(Ordering::Relaxed) & !LOCKED;
        self.words[page]
            .compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        Some(Locked { directory: self, page, word })
    }

    /// Whether a page was not in RAM and all of its entries were `Zero` at this instant: as nobody
    /// had its lock, nobody was about to change one.
    pub(super) fn is_zero(&self, page: usize) -> bool {
        let word = self.words[page].load(Ordering::Acquire);
        let is_nowhere = word >> HOME_SHIFT == u32::from(Home::NOWHERE.0);
        word & (LOCKED | HERE) == 0 && is_nowhere
    }

    /// The first page from `from` on, below `end`, that is not Never.
    pub(super) fn next_used(&self, from: usize, end: usize) -> Option<usize> {
        next_bit(&self.used, from, end)
    }

    /// The first page from `from` on that is in RAM.
    pub(super) fn next_here(&self, from: usize) -> Option<usize> {
        next_bit(&self.here, from, self.words.len())
    }
}

impl Locked<'_> {
    /// Whether the page is in RAM.
    pub(super) fn is_here(&self) -> bool {
        self.word & HERE != 0
    }

    /// Where a copy of it lies.
    pub(super) fn home(&self) -> Home {
        Home((self.word >> HOME_SHIFT) as u8)
    }

    /// The checksum of the copy.
    pub(super) fn checksum(&self) -> u64 {
        self.directory.checksums[self.page].load(Ordering::Relaxed)
    }

    /// A copy with this checksum lies there.
    pub(super) fn set_home(&mut self, home: Home, checksum: u64) {
        self.word = self.word & !(0xff << HOME_SHIFT) | u32::from(home.0) << HOME_SHIFT;
        self.directory.checksums[self.page].store(checksum, Ordering::Relaxed);
    }

    /// It is in RAM from now on.
    pub(super) fn set_here(&mut self) {
        self.set_used();
        set_bit(&self.directory.here, self.page);
        self.directory.pages_here.fetch_add(1, Ordering::Relaxed);
        self.word |= HERE;
    }

    /// It is at its home alone from now on.
    pub(super) fn set_out(&mut self) {
        clear_bit(&self.directory.here, self.page);
        self.directory.pages_here.fetch_sub(1, Ordering::Relaxed);
        self.word &= !HERE;
    }

    /// It is not Never any more; false if it was not before. Before any of its entries can change,
    /// so that `next_used` finds it from then on.
    pub(super) fn set_used(&self) -> bool {
        let is_new = !set_bit(&self.directory.used, self.page);
        if is_new {
            self.directory.used_pages.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    /// Whether what it holds was not counted before this was last asked.
    pub(super) fn take_uncounted(&mut self) -> bool {
        let was = self.word & UNCOUNTED != 0;
        self.word &= !UNCOUNTED;
        was
    }

    pub(super) fn set_uncounted(&mut self) {
        self.word |= UNCOUNTED;
    }

    /// It was evicted with other contents than any checkpoint has.
    pub(super) fn set_unsaved(&mut self) {
        self.word = self.word & !SAVING | UNSAVED;
    }

    /// Whether the checkpoint that is being made still needs it.
    pub(super) fn is_unsaved(&self) -> bool {
        self.word & (UNSAVED | SAVING) == UNSAVED
    }

    /// The checkpoint that is being made has it.
    pub(super) fn set_saving(&mut self) {
        self.word |= SAVING;
    }

    /// The checkpoint is the last one now, or it was given up.
    pub(super) fn end_saving(&mut self, is_saved: bool) {
        if self.word & SAVING != 0 {
            self.word &= !SAVING;
            if is_saved {
                self.word &= !UNSAVED;
            }
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let word = &self.directory.words[self.page];
        // Release: the thread that locks it next sees what was done to the page.
        if word.swap(self.word & !(LOCKED | WAITED_FOR), Ordering::AcqRel) & WAITED_FOR != 0 {
            futex::wake(word, u32::MAX / 2);
        }
    }
}

/// Whether it was set before.
fn set_bit(bits: &PinnedArray<AtomicU64>, at: usize) -> bool {
    bits[at / 64].fetch_or(1 << (at % 64), Ordering::Release) >> (at % 64) & 1 != 0
}

fn clear_bit(bits: &PinnedArray<AtomicU64>, at: usize) {
    bits[at / 64].fetch_and(!(1 << (at % 64)), Ordering::Release);
}

fn next_bit(bits: &PinnedArray<AtomicU64>, from: usize, end: usize) -> Option<usize> {
    let mut at = from;
    while at < end {
        let word = bits[at / 64].load(Ordering::Acquire) >> (at % 64);
        if word != 0 {
            return Some(at + word.trailing_zeros() as usize).filter(|&found| found < end);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}
