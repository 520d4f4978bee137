//! Second tier: the workers of a slow, cheap device behind the store of the process (HybridSwap).
//! The switch opens it.
//!
//! Guarantees: a second tier that is full, or fails, costs no promise: what it does not take, the
//! store does. That is said once.
//! Threads: two workers; the evictor sets the shift.

use std::thread;

use deepheap_pager::Pager;
use deepheap_pager::policy::tier::SHIFT_ONE;
use deepheap_store::{RING_BYTES, Store, StoreError};
use deepheap_sys::clock;
use deepheap_sys::log::{Piece, say};
use deepheap_sys::pinned_array::PinnedArray;

use crate::runtime::Runtime;
use crate::workers::{LEISURE, SHORT, spawn};

/// Rings of its device: one for each fetcher, one to spare.
pub(crate) const RINGS: usize = 4;

impl Runtime {
    /// Bytes of RAM that a second tier takes before anything is in it.
    pub(crate) fn second_tier_bytes(&self) -> usize {
        let segments = (self.segment_buffers() + 1) * self.config.segment_bytes as usize;
        self.config.tier.as_ref().map_or(0, |_| segments + RINGS * RING_BYTES as usize)
    }

    /// Starts the workers of the second tier, if there is one.
    pub(crate) fn start_second_tier(&'static self) {
        if self.pager().is_some_and(|pager| pager.store().second_tier_to_fill().is_some()) {
            spawn(self, c"deepheap-write2", writer);
            spawn(self, c"deepheap-gc2", collector);
        }
    }

    /// Lets less go to the second tier while the program stands in faults for longer than it may.
    pub(crate) fn shift_tiers(&self, pager: &Pager) {
        if let (Some(bound), Some(_)) = (self.config.stall, pager.store().second_tier())
            && let Some(share) = self.stall_share_now()
        {
            pager.set_tier_shift(share * SHIFT_ONE / u64::from(bound.ppm()).max(1));
        }
    }

    /// Gives space of the second tier that has been free for a while back to its device. While it
    /// has some, both collectors go on to look.
    fn return_space_of_tier(&self, pager: &Pager, second: &Store) {
        if self.has_space_to_return() && second.discard_idle(clock::monotonic_ns()) > 0 {
            self.expect_space_to_return(pager);
        }
    }
}

fn writer(_: &'static Runtime, pager: &'static Pager) {
    let Some(second) = pager.store().second_tier() else { return };
    let mut was_said = false;
    while !pager.has_ended() {
        second.write_sealed(true);
        if let (Some(StoreError::Io(errno)), false) = (second.failure(), was_said) {
            was_said = true;
            say(&[
                Piece::Text(
                    "a write to the second tier failed; what it held stays in RAM and is tried \
                     again, and what comes now goes to the store: ",
                ),
                Piece::Error(errno),
            ]);
        }
    }
}

fn collector(runtime: &'static Runtime, pager: &'static Pager) {
    let Some(second) = pager.store().second_tier() else { return };
    let Ok(mut buffer) = PinnedArray::<u8>::new(second.segment_bytes()) else {
        say(&[Piece::Text("no memory to collect the second tier with: it will not take much")]);
        return;
    };
    let mut fruitless = SHORT;
    while !pager.has_ended() {
        let limit = || runtime.has_space_to_return().then_some(LEISURE);
        if !second.wait_for_work(limit) {
            runtime.return_space_of_tier(pager, second);
            continue;
        }
        runtime.forget_dead_children(pager);
        if let Ok(Some(_)) = pager.collect_tier(second, &mut buffer) {
            fruitless = SHORT;
        } else {
            // Nothing worth collecting now, or there is no room to move it to.
            thread::sleep(fruitless);
            fruitless = (fruitless * 2).min(LEISURE);
        }
    }
}
