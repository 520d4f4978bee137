//! Page buffer: how many physical pages the program can touch right now, and the ceiling on them.
//!
//! Guarantees: reservations never pass the limit; a page is reserved before it is installed and its
//! reservation ends only after it has been zapped. There are two exceptions. Adopted pages count
//! whatever the limit says: pages of plain memory, which exist already, and single ones when no
//! page can leave. And while some pages cannot be evicted, the limit leaves room for a few others.
//! A thread that waits for a page (`join`) gets one of the next pages that leave, before threads
//! that come later, even if it sleeps and they run: no thread waits for longer than the evictions
//! take that serve those before it.
//! Never: allocates; blocks, but in `wait`.
//! Threads: any, also in a signal handler.

use core::time::Duration;

use deepheap_sys::memory::padded::Padded;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use deepheap_sys::threads::futex;

/// While some pages cannot be evicted, so many others have room whatever the limit says: all
/// operands of an instruction must fit at the same time.
const ROOM: usize = 64;

/// In `waiting`: one thread that waits, one page that is reserved for such a thread, and one time
/// that pages were reserved.
const WAITER: u64 = 1;
const GRANT: u64 = 1 << 20;
const ROUND: u64 = 1 << 40;

/// Threads that wait, by `waiting`.
fn waiters(word: u64) -> u64 {
    word % GRANT
}

/// Pages that are reserved for them.
fn grants(word: u64) -> u64 {
    word % ROUND / GRANT
}

/// How long a thread waits for the end of a batch before it looks again by itself. A context may
/// have been in use by a thread that ended no batch.
const PAUSE: Duration = Duration::from_millis(10);

/// Counts of the page buffer, in pages.
pub struct PageBuffer {
    /// Every fault changes it. So it is in cache lines of its own, without the other fields, which
    /// faults only read.
    resident: Padded<AtomicUsize>,
    limit: AtomicUsize,
    /// Pages that leave together, at most.
    batch: usize,
    /// Pages among the resident ones that could not be evicted.
    unevictable: AtomicUsize,
    /// Threads that wait for a page, pages that are reserved for them, which are never more, and
    /// how often some were.
    waiting: Padded<AtomicU64>,
    /// Changes when a batch of eviction has ended, and when pages are reserved for waiting threads.
    ended: Padded<AtomicU32>,
}

/// Pages that are reserved in the page buffer. Unused pages go back when this is dropped.
#[must_use]
pub struct Reserved<'a> {
    buffer: &'a PageBuffer,
    pages: usize,
}

/// A place among the threads that wait for a page.
#[must_use]
pub struct Turn {
    /// How often pages had been reserved for waiting threads when it was taken.
    round: u64,
}

impl Reserved<'_> {
    /// Has at least so many pages, reserving what lacks; false if there is no room for that.
    #[must_use]
    pub fn extend(&mut self, pages: usize) -> bool {
        let lacking = pages.saturating_sub(self.pages);
        if lacking > 0 {
            let Some(more) = self.buffer.try_reserve(lacking) else { return false };
            self.pages += more.keep();
        }
        true
    }

    /// Gives back all but so many.
    pub fn shrink(&mut self, pages: usize) {
        let rest = self.pages.saturating_sub(pages);
        self.pages -= rest;
        self.buffer.unreserve(rest);
    }

    /// So many of the pages were installed: they count until they leave.
    pub fn install(&mut self, pages: usize) {
        self.pages -= pages;
    }

    /// All of the pages are in use from now on; how many they are.
    pub fn keep(mut self) -> usize {
        core::mem::take(&mut self.pages)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.pages > 0 {
            self.buffer.unreserve(self.pages);
        }
    }
}

impl PageBuffer {
    /// An empty page buffer with this ceiling, which so many pages leave together at most.
    pub fn new(limit: usize, batch: usize) -> PageBuffer {
        let [resident, unevictable] = [const { AtomicUsize::new(0) }; 2];
        let (resident, limit) = (Padded(resident), AtomicUsize::new(limit));
        let (waiting, ended) = (Padded(AtomicU64::new(0)), Padded(AtomicU32::new(0)));
        PageBuffer { resident, limit, batch, unevictable, waiting, ended }
    }

    /// Reserves pages, if the buffer stays within its limit.
    pub fn try_reserve(&self, pages: usize) -> Option<Reserved<'_>> {
        let before = self.resident.fetch_add(pages, Ordering::SeqCst);
        let reserved = Reserved { buffer: self, pages };
        (before + pages <= self.limit()).then_some(reserved)
    }

    /// Reserves pages whatever the limit says.
    pub fn adopt(&self, pages: usize) -> Reserved<'_> {
        self.resident.fetch_add(pages, Ordering::SeqCst);
        Reserved { buffer: self, pages }
    }

    /// Pages that were installed have left.
    pub fn unreserve(&self, pages: usize) {
        self.resident.fetch_sub(pages, Ordering::Relaxed);
    }

    /// In a forked child: sets the count. Reservations of threads that the child does not have end.
    pub fn recount(&self, pages: usize) {
        self.resident.store(pages, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// The calling thread waits for a page, until `take` answers one or until `give_up`.
    pub fn join(&self) -> Turn {
        Turn { round: self.waiting.fetch_add(WAITER, Ordering::SeqCst) / ROUND }
    }

    /// For a thread that waits: takes a page that was reserved for such threads since it came, or
    /// one that is free. What was reserved before is for those that came before: they may have to
    /// wake up first, and a thread that runs would always be faster.
    pub fn take(&self, turn: &Turn) -> Option<Reserved<'_>> {
        let may_take = |word: u64| grants(word) > 0 && word / ROUND != turn.round;
        let take = |word: u64| may_take(word).then(|| word - GRANT - WAITER);
        let taken = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        if taken.is_ok() {
            return Some(Reserved { buffer: self, pages: 1 });
        }
        let reserved = self.try_reserve(1)?;
        self.give_up();
        Some(reserved)
    }

    /// A thread that waits does so no longer. If there was a page for each, it leaves one.
    pub fn give_up(&self) {
        let is_served = |word: u64| grants(word) == waiters(word);
        let less = |word| Some(word - WAITER - if is_served(word) { GRANT } else { 0 });
        let before = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if before.is_ok_and(is_served) {
            self.unreserve(1);
        }
    }

    /// As `unreserve`, for a batch: threads that wait get their pages first, within the limit.
    pub fn hand_out(&self, pages: usize) {
        let room = self.limit().saturating_sub(self.pages().saturating_sub(pages));
        let most = room.min(pages) as u64;
        let mut granted = 0;
        let grant = |word: u64| {
            granted = most.min(waiters(word) - grants(word));
            let round = if granted > 0 { ROUND } else { 0 };
            Some(word.wrapping_add(granted * GRANT + round))
        };
        let _ = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, grant);
        self.unreserve(pages - granted as usize);
        if granted > 0 {
            self.wake(granted as u32);
        }
    }

    /// A batch has ended, and its eviction context is free: one thread that waits looks again.
    pub fn note_end(&self) {
        self.wake(1);
    }

    /// As many threads that wait look again as there is something for. Each has joined, then read
    /// `ended`, then looked; we have changed what it looks at, and then look for it: one of us sees
    /// the other. A thread that does not sleep yet may take what a woken one comes for, which then
    /// looks further, as any that waits. To wake all would have hundreds come for a few pages.
    fn wake(&self, threads: u32) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        if waiters(self.waiting.load(Ordering::SeqCst)) > 0 {
            futex::wake(&self.ended, threads);
        }
    }

    /// The argument for `wait`: read before the look for room.
    pub fn ended(&self) -> u32 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Sleeps until a batch has ended since `seen` was read.
    pub fn wait(&self, seen: u32) {
        futex::wait(&self.ended, seen, Some(PAUSE));
    }

    /// Resident and reserved pages.
    pub fn pages(&self) -> usize {
        self.resident.load(Ordering::SeqCst)
    }

    /// The ceiling.
    pub fn limit(&self) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        match self.unevictable() {
            0 => limit,
            pages => limit.max(pages + ROOM.min(limit)),
        }
    }

    /// Whether pages that cannot be evicted have pushed it over its limit.
    pub fn is_overrun(&self) -> bool {
        self.limit() > self.limit.load(Ordering::Relaxed)
    }

    /// Notes how many pages cannot be evicted. Called after each batch, so the number is a little
    /// old.
    pub fn set_unevictable(&self, pages: usize) {
        self.unevictable.store(pages, Ordering::Relaxed);
    }

    /// How many pages could not be evicted lately.
    pub fn unevictable(&self) -> usize {
        self.unevictable.load(Ordering::Relaxed)
    }

    /// Sets the ceiling; eviction brings the buffer below a lowered one.
    pub fn set_limit(&self, pages: usize) {
        self.limit.store(pages, Ordering::Relaxed);
    }

    /// How many pages to evict so that faults find room without waiting: none while the buffer is
    /// below its high-water mark (1/128 of it free), then as many as bring it to the low one (1/64
    /// free). A small buffer keeps a larger part free: as much as faults take while a batch is
    /// being evicted. Pages that cannot be evicted do not count as part of the buffer here.
    pub fn excess(&self, evicting: bool) -> usize {
        self.pages().saturating_sub(self.mark(evicting))
    }

    /// How many more pages there could be before any has to be evicted.
    pub fn idle(&self) -> usize {
        self.mark(true).saturating_sub(self.pages())
    }

    /// The low mark if pages are being evicted, else the high-water mark.
    fn mark(&self, evicting: bool) -> usize {
        let limit = self.limit();
        let usable = limit.saturating_sub(self.unevictable());
        let free = match evicting {
            true => (usable / 64).max((usable / 4).min(2 * self.batch)),
            false => (usable / 128).max((usable / 8).min(self.batch)),
        };
        limit - free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_pass_the_limit() {
        let buffer = PageBuffer::new(1000, 256);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        drop(buffer.try_reserve(7));
                    }
                });
            }
        });
        assert_eq!(buffer.pages(), 0);
        let mut all = buffer.try_reserve(999).expect("room");
        assert!(all.extend(1000) && !all.extend(1001));
        assert_eq!(buffer.excess(true), 250);
        all.install(10);
        all.shrink(20);
        assert_eq!(buffer.pages(), 30);
        drop(all);
        assert_eq!(buffer.pages(), 10, "those that were installed stay");
    }

    #[test]
    fn who_waits_gets_the_next_pages_before_who_comes_later() {
        let buffer = PageBuffer::new(100, 16);
        buffer.adopt(100).keep();
        let is_reserved = |pages| buffer.try_reserve(pages).map(Reserved::keep).is_some();
        let is_taken = |turn| buffer.take(turn).map(Reserved::keep).is_some();
        let [first, second, third] = core::array::from_fn(|_| buffer.join());
        assert!(!is_taken(&first));
        buffer.hand_out(2);
        assert!(!is_reserved(1), "both are for those who wait");
        let late = buffer.join();
        assert!(!is_taken(&late), "they are not for those who came later");
        assert!(is_taken(&third) && is_taken(&first) && !is_taken(&second));
        buffer.give_up();
        buffer.hand_out(4);
        assert!(is_reserved(3) && !is_reserved(1), "one of four waits for the third");
        buffer.give_up();
        assert_eq!(buffer.pages(), 99);
        // Over its limit it goes down first.
        buffer.set_limit(50);
        let turn = buffer.join();
        buffer.hand_out(9);
        assert!(!is_taken(&turn));
        assert_eq!(buffer.pages(), 90);
        buffer.give_up();
    }

    #[test]
    fn what_cannot_be_evicted_leaves_room_for_others_and_is_no_excess() {
        let buffer = PageBuffer::new(1000, 256);
        buffer.adopt(1000).keep();
        buffer.set_unevictable(900);
        assert_eq!((buffer.limit(), buffer.excess(true), buffer.excess(false)), (1000, 25, 12));
        buffer.set_unevictable(1000);
        assert_eq!(buffer.limit(), 1000 + ROOM);
        let mut room = buffer.try_reserve(ROOM).expect("room");
        assert!(!room.extend(ROOM + 1));
        assert_eq!((buffer.excess(true), buffer.excess(false)), (ROOM / 4, ROOM / 8));
    }
}
