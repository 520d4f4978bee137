//! Page buffer: how many physical pages the program can touch right now, and the ceiling on them.
//!
//! Guarantees: reservations never pass the limit; a page is reserved before it is installed and its
//! reservation ends only after it has been zapped. There are two exceptions. Adopted pages count
//! whatever the limit says: pages of plain memory, which exist already, and single ones when no
//! page can leave. And while some pages cannot be evicted, the limit leaves room for a few others.
//! Never: allocates, blocks.
//! Threads: any, also in a signal handler.

use deepheap_sys::atomic::{AtomicUsize, Ordering};
use deepheap_sys::padded::Padded;

/// While some pages cannot be evicted, so many others have room whatever the limit says: all
/// operands of an instruction must fit at the same time.
const ROOM: usize = 64;

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
}

impl PageBuffer {
    /// An empty page buffer with this ceiling, which so many pages leave together at most.
    pub fn new(limit: usize, batch: usize) -> PageBuffer {
        let [resident, unevictable] = [const { AtomicUsize::new(0) }; 2];
        let (resident, limit) = (Padded(resident), AtomicUsize::new(limit));
        PageBuffer { resident, limit, batch, unevictable }
    }

    /// Reserves pages, if the buffer stays within its limit.
    #[must_use]
    pub fn try_reserve(&self, pages: usize) -> bool {
        let limit = self.limit();
        if self.resident.fetch_add(pages, Ordering::Relaxed) + pages <= limit {
            return true;
        }
        self.unreserve(pages);
        false
    }

    /// Counts pages whatever the limit says.
    pub fn adopt(&self, pages: usize) {
        self.resident.fetch_add(pages, Ordering::Relaxed);
    }

    /// Ends the reservation of pages that have left, or were not installed after all.
    pub fn unreserve(&self, pages: usize) {
        self.resident.fetch_sub(pages, Ordering::Relaxed);
    }

    /// In a forked child: sets the count. Reservations of threads that the child does not have end.
    pub fn recount(&self, pages: usize) {
        self.resident.store(pages, Ordering::Relaxed);
    }

    /// Resident and reserved pages.
    pub fn pages(&self) -> usize {
        self.resident.load(Ordering::Relaxed)
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
    /// below its high-water mark (1/64 of it free), then as many as bring it to the low one (1/32
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
            true => (usable / 32).max((usable / 4).min(2 * self.batch)),
            false => (usable / 64).max((usable / 8).min(self.batch)),
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
                        if buffer.try_reserve(7) {
                            buffer.unreserve(7);
                        }
                    }
                });
            }
        });
        assert_eq!(buffer.pages(), 0);
        assert!(buffer.try_reserve(1000));
        assert!(!buffer.try_reserve(1));
        assert_eq!(buffer.excess(true), 250);
    }

    #[test]
    fn what_cannot_be_evicted_leaves_room_for_others_and_is_no_excess() {
        let buffer = PageBuffer::new(1000, 256);
        buffer.adopt(1000);
        buffer.set_unevictable(900);
        assert_eq!((buffer.limit(), buffer.excess(true), buffer.excess(false)), (1000, 25, 12));
        buffer.set_unevictable(1000);
        assert_eq!(buffer.limit(), 1000 + ROOM);
        assert!(buffer.try_reserve(ROOM) && !buffer.try_reserve(1));
        assert_eq!((buffer.excess(true), buffer.excess(false)), (ROOM / 4, ROOM / 8));
    }
}
