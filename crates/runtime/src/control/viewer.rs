//! Viewer: the worker that tells other processes, when they ask, what cannot be told all the time,
//! and hears what they wish.
//!
//! Guarantees: it sleeps until a viewer asks, and answers `PAUSE` apart at most; a map looks at
//! `LOOKS` pages of a cell at most, however large the heap is. While allocations are sampled, it
//! looks where they are each `PAUSE`.
//! Never: touches managed memory, claims an object.
//! Threads: its own.

use core::time::Duration;

use deepheap_heap::PAGES_PER_SPAN;
use deepheap_pager::Pager;
use deepheap_sys::threads::thread;

use crate::control::ceiling;
use crate::runtime::{Inside, Runtime};
use crate::stats::observe::publish_gauges;
use crate::stats::{allocations, profile};

/// Least time between two answers: viewers that ask all the time cost no more.
const PAUSE: Duration = Duration::from_millis(100);
/// Pages of a cell that are looked at.
const LOOKS: usize = 64;

/// The loop of the worker.
pub(crate) fn viewer(runtime: &'static Runtime, pager: &'static Pager) {
    let map = runtime.stats.heap_map();
    let mut answered = 0;
    while !pager.workers.have_ended() {
        let longest = allocations::is_on().then_some(PAUSE);
        let requests = map.wait_for_request(answered, longest);
        allocations::look(pager);
        if requests == answered {
            continue;
        }
        answered = requests;
        if ceiling::wished(runtime).is_some() {
            // A wish is the evictor's to follow, as long as somebody looks whether it has.
            pager.workers.wake_evictor();
        }
        follow_profile(runtime);
        publish_gauges(runtime);
        if map.take_wish() {
            let pages = runtime.heap.spans_end() * PAGES_PER_SPAN;
            map.write(pager.region_base() as u64, pages, |cell| {
                let stride = cell.len().div_ceil(LOOKS);
                pager.survey(cell, stride)
            });
        }
        thread::sleep(PAUSE);
    }
}

fn follow_profile(runtime: &Runtime) {
    let _inside = Inside::enter();
    profile::follow(runtime.stats.wish().profile());
}
