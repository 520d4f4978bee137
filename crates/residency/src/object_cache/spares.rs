//! Spares: empty slots that threads keep, so that a write can take one without a lock.
//!
//! A write puts the new bytes into a spare slot; the slot with the old ones is the next spare
//! (`direct`). There is one for each size class that a thread writes, and threads that share a lane
//! share it.
//!
//! Guarantees: a spare belongs to the thread that has taken it, until it is kept again.
//! Never: allocates, locks, waits.
//! Threads: any, also one that a signal handler has interrupted between `take` and `keep`.

use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, Ordering};
use deepheap_sys::threads::tls;

use super::size_class::{CLASSES, SizeClass};

const LANES: usize = 64;
/// Places of a lane: whole cache lines, two at a time.
const PLACES: usize = CLASSES.next_multiple_of(32);

/// The spares of all threads.
pub(super) struct Spares {
    /// One more than a slot's number, or 0.
    places: PinnedArray<AtomicU32>,
}

impl Spares {
    /// None so far.
    pub(super) fn new() -> Result<Spares> {
        Ok(Spares { places: PinnedArray::new(LANES * PLACES)? })
    }

    /// Whether this thread has a spare of the class.
    pub(super) fn has(&self, class: SizeClass) -> bool {
        self.place(class).load(Ordering::Relaxed) != 0
    }

    /// Takes this thread's spare of the class.
    pub(super) fn take(&self, class: SizeClass) -> Option<u32> {
        let place = self.place(class);
        if place.load(Ordering::Relaxed) == 0 {
            return None;
        }
        place.swap(0, Ordering::AcqRel).checked_sub(1)
    }

    /// Keeps a slot of the class as this thread's spare. False if it has one.
    #[must_use]
    pub(super) fn keep(&self, class: SizeClass, slot: u32) -> bool {
        let place = self.place(class);
        place.compare_exchange(0, slot + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes the spares of all threads.
    pub(super) fn take_all(&self) -> impl Iterator<Item = u32> {
        let places = self.places.iter();
        let used = places.filter(|place| place.load(Ordering::Relaxed) != 0);
        used.filter_map(|place| place.swap(0, Ordering::AcqRel).checked_sub(1))
    }

    fn place(&self, class: SizeClass) -> &AtomicU32 {
        &self.places[tls::lane_of::<LANES>() * PLACES + class.0 as usize]
    }
}
