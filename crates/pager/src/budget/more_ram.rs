//! More RAM: counts the waits for the store that a larger budget would have spared.
//!
//! A wait counts without what a fault on the object would have cost if it had been in RAM, in the
//! cache (`policy/more_ram`). The RAM that one more object takes is known to a fault from the last
//! look at the border: to count the cached objects is no work for a fault.
//!
//! Never: allocates, waits.
//! Threads: faulting ones count; any may ask.

use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_policy::more_ram::STEPS;
use deepheap_residency::counters::Counters;

use crate::PAGE;

/// See the file's header.
pub(crate) struct MoreRam {
    /// Nanoseconds, by how much larger the budget would have to be.
    spared: Counters<STEPS>,
    object_bytes: AtomicU64,
}

impl MoreRam {
    pub(crate) const fn new() -> MoreRam {
        MoreRam { spared: Counters::zero(), object_bytes: AtomicU64::new(PAGE as u64) }
    }

    /// In the child of a fork: its waits are its own.
    pub(crate) fn begin_anew(&self) {
        self.spared.clear();
    }

    /// The counts so far.
    pub(crate) fn spared_ns(&self) -> [u64; STEPS] {
        self.spared.sums()
    }

    /// How much more RAM has room for one more object.
    pub(crate) fn object_bytes(&self) -> u64 {
        self.object_bytes.load(Ordering::Relaxed)
    }

    /// One more object takes so many bytes from now on.
    pub(crate) fn set_object_bytes(&self, bytes: u64) {
        self.object_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A fault was served that so many steps would have spared, and so much time with it.
    #[inline]
    pub(crate) fn note(&self, spared_by: Option<u8>, ns: u64) {
        if let Some(step) = spared_by {
            self.spared.add(step.into(), ns);
        }
    }
}
