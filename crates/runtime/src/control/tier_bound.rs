//! Tier bound: lets no more go to the second tier than holds a bound on stalls (HybridSwap).
//!
//! Threads: the evictor's own.

use core::time::Duration;

use deepheap_heap::PAGE;
use deepheap_pager::Pager;
use deepheap_policy::tier::{Allowance, Ran};

use crate::control::stall_share::Mark;
use crate::runtime::Runtime;
use crate::stats::observe::stall_mark;

/// Run time between two looks at what the second tier costs.
const LOOK: Duration = Duration::from_millis(20);

/// What is known of the cost of the second tier.
pub(crate) struct TierBound {
    allowance: Allowance,
    mark: Mark,
    bytes_read: u64,
    bytes_written: u64,
    busy_ns: u64,
}

impl TierBound {
    /// None without a bound on stalls.
    pub(crate) fn of(runtime: &Runtime) -> Option<TierBound> {
        let allowance = Allowance::new(runtime.config.stall?.ppm());
        let mark = stall_mark(runtime).unwrap_or_default();
        Some(TierBound { allowance, mark, bytes_read: 0, bytes_written: 0, busy_ns: 0 })
    }

    /// Sets what may go there.
    pub(crate) fn hold(&mut self, runtime: &Runtime, pager: &Pager) {
        let Some(second) = pager.store().second_tier() else { return };
        let Some(mark) = stall_mark(runtime) else { return };
        let ran = mark.since(&self.mark);
        if ran.run_ns < LOOK.as_nanos() as u64 {
            return;
        }
        let (stats, busy_ns) = (second.stats(), second.busy_ns());
        let pages = (stats.bytes_read - self.bytes_read) / PAGE as u64;
        let written = (stats.bytes_written - self.bytes_written) / PAGE as u64;
        let (more, most) = self.allowance.look(Ran {
            run_ns: ran.run_ns,
            stall_ns: ran.stall_ns,
            pages,
            moved: pages + written,
            busy_ns: busy_ns - self.busy_ns,
        });
        (self.mark, self.busy_ns) = (mark, busy_ns);
        (self.bytes_read, self.bytes_written) = (stats.bytes_read, stats.bytes_written);
        pager.allow_second_tier(more, most);
    }
}
