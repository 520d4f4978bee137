//! Second tier: the workers of a slow, cheap device behind the store of the process (HybridSwap).
//! The switch opens it.
//!
//! Guarantees: a second tier that is full, or fails, costs no promise: what it does not take, the
//! store does. That is said once.
//! Threads: two workers; the evictor holds the bound.

use core::time::Duration;
use std::thread;

use deepheap_heap::PAGE;
use deepheap_pager::Pager;
use deepheap_policy::tier::{Allowance, Ran};
use deepheap_store::{BUFFERS_MIN, RING_BYTES, Store, StoreError};
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::process::clock;
use deepheap_sys::process::log::{Piece, say};

use crate::control::stall_share::Mark;
use crate::control::workers::{LEISURE, SHORT, spawn};
use crate::runtime::Runtime;

/// Rings of its device: one for each fetcher, one to spare.
pub(crate) const RINGS: usize = 4;
/// Segments in memory.
pub(crate) const BUFFERS: usize = BUFFERS_MIN;

/// Run time between two looks at what the second tier costs.
const LOOK: Duration = Duration::from_millis(20);

/// What is known of the cost of the second tier, under a bound on stalls.
pub(crate) struct TierBound {
    allowance: Allowance,
    mark: Mark,
    bytes_read: u64,
    bytes_written: u64,
    busy_ns: u64,
}

impl Runtime {
    /// Bytes of RAM that a second tier takes before anything is in it.
    pub(crate) fn second_tier_bytes(&self) -> usize {
        self.config.of_tier().map_or(0, |settings| {
            (BUFFERS + 1) * settings.segment_bytes as usize + RINGS * RING_BYTES as usize
        })
    }

    /// Starts the workers of the second tier, if there is one.
    pub(crate) fn start_second_tier(&'static self) {
        let is_there = |pager: &&Pager| pager.store().second_tier_to_fill().is_some();
        if self.pager().filter(is_there).is_some() {
            spawn(self, c"deepheap-write2", writer);
            spawn(self, c"deepheap-gc2", collector);
        }
    }

    /// For the evictor; none without a bound on stalls.
    pub(crate) fn tier_bound(&self) -> Option<TierBound> {
        let allowance = Allowance::new(self.config.stall?.ppm());
        let mark = self.stall_mark().unwrap_or_default();
        Some(TierBound { allowance, mark, bytes_read: 0, bytes_written: 0, busy_ns: 0 })
    }

    /// Lets no more go to the second tier than holds the bound on stalls, if there is one.
    pub(crate) fn hold_tier_bound(&self, pager: &Pager, bound: &mut Option<TierBound>) {
        let (Some(bound), Some(second)) = (bound, pager.store().second_tier()) else { return };
        let Some(mark) = self.stall_mark() else { return };
        let ran = mark.since(&bound.mark);
        if ran.run_ns < LOOK.as_nanos() as u64 {
            return;
        }
        let (stats, busy_ns) = (second.stats(), second.busy_ns());
        let pages = (stats.bytes_read - bound.bytes_read) / PAGE as u64;
        let written = (stats.bytes_written - bound.bytes_written) / PAGE as u64;
        let (more, most) = bound.allowance.look(Ran {
            run_ns: ran.run_ns,
            stall_ns: ran.stall_ns,
            pages,
            moved: pages + written,
            busy_ns: busy_ns - bound.busy_ns,
        });
        *bound = TierBound {
            mark,
            bytes_read: stats.bytes_read,
            bytes_written: stats.bytes_written,
            busy_ns,
            ..*bound
        };
        pager.allow_second_tier(more, most);
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
        if let Ok(true) = pager.collect(second, &mut buffer) {
            fruitless = SHORT;
        } else {
            // Nothing worth collecting now, or there is no room to move it to.
            thread::sleep(fruitless);
            fruitless = (fruitless * 2).min(LEISURE);
        }
    }
}
