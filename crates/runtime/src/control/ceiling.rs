//! Ceiling: the RAM budget while the program runs, of which durable heaps have a part.
//!
//! Never: touches managed memory.
//! Threads: any, outside the fault path.

use core::sync::atomic::Ordering;

use crate::runtime::Runtime;
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

fn follow_budget(runtime: &Runtime) {
    if let Some(pager) = runtime.pager() {
        pager.set_budget(runtime.ram());
        pager.workers.wake_evictor();
    }
    publish_gauges(runtime);
}
