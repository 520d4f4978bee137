//! Ceiling: the RAM budget while the program runs, of which durable heaps have a part, and which
//! `deepheap set` makes smaller.
//!
//! A wish is a word in the statistics page. It lowers the target, not the ceiling: the tables were
//! laid out for the budget at first, and no allocation fails that would not have failed with it.
//!
//! Guarantees: whatever a wish says, what may be used is between the least budget and the one at
//! first.
//! Never: touches managed memory.
//! Threads: any, outside the fault path; `hold` the evictor's own.

use core::sync::atomic::Ordering;

use deepheap_pager::Pager;

use crate::runtime::Runtime;
use crate::settings::config::RAM_MIN_BYTES;
use crate::stats::observe::publish_gauges;

/// A durable heap gets so many bytes of the budget.
pub(crate) fn lend(runtime: &Runtime, bytes: usize) {
    runtime.process.lent.fetch_add(bytes, Ordering::Relaxed);
    follow_budget(runtime);
}

/// It gives them back.
pub(crate) fn take_back(runtime: &Runtime, bytes: usize) {
    runtime.process.lent.fetch_sub(bytes, Ordering::Relaxed);
    follow_budget(runtime);
}

/// What a wish leaves of the budget, without the durable heaps' part; none if nobody has wished.
/// Under a bound on stalls, and in a pool, nobody can; durable heaps have a fixed part.
pub(crate) fn wished(runtime: &Runtime) -> Option<usize> {
    let config = &runtime.config;
    if config.is_managed_early() || runtime.durable.is_some() {
        return None;
    }
    let wished = runtime.stats.wish().bytes()?.max(RAM_MIN_BYTES).min(config.ram) as usize;
    Some(wished.saturating_sub(runtime.process.lent.load(Ordering::Relaxed)))
}

/// Sets what may be used of the budget, if somebody has wished. `rebalance` comes next. The evictor
/// alone calls it, who reads the wish and the durable heaps' part anew each time it wakes: what is
/// set does not stay that of an earlier moment.
pub(crate) fn hold(runtime: &Runtime, pager: &Pager) {
    if let Some(bytes) = wished(runtime) {
        pager.set_target(bytes);
    }
}

fn follow_budget(runtime: &Runtime) {
    if let Some(pager) = runtime.pager() {
        pager.set_budget(runtime.ram());
        pager.workers.wake_evictor();
    }
    publish_gauges(runtime);
}
