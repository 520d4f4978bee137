//! Tier mix: what decides how much goes to the second tier of the store, as measured of late.
//!
//! Never: waits, allocates, reads a clock.
//! Threads: any. The numbers are estimates: what two threads note at once may be lost.

use deepheap_policy::tier::Seen;
use deepheap_sys::moving_mean::MovingMean;
use deepheap_sys::threads::atomic::{AtomicBool, AtomicU64, Ordering};

/// A scan that pauses for longer is not working on its pages.
const PAUSE_NS: u64 = 1_000_000_000;

/// See the file's header.
pub(crate) struct TierMix {
    /// When a scan last went on.
    scanned_ns: AtomicU64,
    /// How long the program works on a page of a scan.
    page_ns: MovingMean,
    /// Pages that may go to the second tier.
    allowed: AtomicU64,
    /// Something that a trail asked for last is in the second tier.
    is_trail_slow: AtomicBool,
}

impl TierMix {
    pub(crate) const fn new() -> TierMix {
        TierMix {
            scanned_ns: AtomicU64::new(0),
            page_ns: MovingMean::new(),
            allowed: AtomicU64::new(u64::MAX),
            is_trail_slow: AtomicBool::new(false),
        }
    }

    pub(crate) fn note_trail(&self, is_slow: bool) {
        self.is_trail_slow.store(is_slow, Ordering::Relaxed);
    }

    pub(crate) fn is_trail_slow(&self) -> bool {
        self.is_trail_slow.load(Ordering::Relaxed)
    }

    pub(crate) fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Relaxed)
    }

    pub(crate) fn allow(&self, more: u64, most: u64) {
        let allowed = self.allowed().saturating_add(more).min(most);
        self.allowed.store(allowed, Ordering::Relaxed);
    }

    /// So many pages go.
    pub(crate) fn pay(&self, pages: usize) {
        let allowed = self.allowed().saturating_sub(pages as u64);
        self.allowed.store(allowed, Ordering::Relaxed);
    }

    /// A scan has gone on by so many pages, at this time.
    pub(crate) fn note_scan(&self, pages: u32, now_ns: u64) {
        let passed_ns = now_ns - self.scanned_ns.swap(now_ns, Ordering::Relaxed).min(now_ns);
        if pages > 0 && passed_ns < PAUSE_NS {
            self.page_ns.note(passed_ns / u64::from(pages));
        }
    }

    /// The numbers for the policy, if reads of the second tier take so long.
    pub(crate) fn seen(&self, disk_ns: u64) -> Seen {
        Seen { disk_ns, page_ns: self.page_ns.get() }
    }
}
