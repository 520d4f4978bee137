//! More RAM: counts the waits for the store that a larger budget would have spared.
//!
//! A wait counts without what a fault on the object would have cost if it had been in RAM, in the
//! cache (`policy/more_ram`).
//!
//! Never: allocates, waits.
//! Threads: faulting ones count; any may ask.

use deepheap_policy::more_ram::STEPS;
use deepheap_residency::counters::Counters;

/// Nanoseconds, by how much larger the budget would have to be.
pub(crate) struct MoreRam(Counters<STEPS>);

impl MoreRam {
    pub(crate) const fn new() -> MoreRam {
        MoreRam(Counters::zero())
    }

    /// In the child of a fork: its waits are its own.
    pub(crate) fn begin_anew(&self) {
        self.0.clear();
    }

    /// The counts so far.
    pub(crate) fn spared_ns(&self) -> [u64; STEPS] {
        self.0.sums()
    }

    /// A fault was served that so many steps would have spared, and so much time with it.
    #[inline]
    pub(crate) fn note(&self, spared_by: Option<u8>, ns: u64) {
        if let Some(step) = spared_by {
            self.0.add(step.into(), ns);
        }
    }
}
