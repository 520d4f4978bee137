//! Budget: how the RAM budget is divided where the settings say nothing, and how the store is laid
//! out.
//!
//! Guarantees: a plain heap leaves room in the budget for all that managing it would add.
//! Never: allocates; it computes sizes.
//! Threads: any, outside the fault path.

use deepheap_heap::PAGE;
use deepheap_pager::overhead_of_managing;
use deepheap_policy::balance::{PART_ALL, PART_MOST};
use deepheap_policy::more_ram::{self, Better, Waited};
use deepheap_store::{BUFFERS_MIN, Options as StoreOptions, RING_BYTES};
use deepheap_sys::threads::thread;

use crate::control::ceiling;
use crate::number;
use crate::runtime::{GRANT_BLOCKS, Runtime};
use crate::settings::config::{Config, SEGMENT_DEFAULT_BYTES, halved};
use crate::settings::limits;
use crate::settings::store_location::StoreLocation;

/// Under a bound on stalls, and in a pool, a heap of so many bytes is managed: what is less is not
/// worth it.
const PLAIN_UNDER_BOUND_BYTES: usize = 32 << 20;
/// Segments in memory, open or on their way to the device: five, and more where they take one part
/// of the budget in so many together at most.
const SEGMENT_BUFFERS: core::ops::RangeInclusive<u64> = 5..=8;
const BUDGET_PART_OF_BUFFERS: u64 = 128;
/// Batches of reads that can be on their way to the device at a time: so many for each CPU, since
/// threads wait for them, and within limits.
const RINGS_PER_CPU: usize = 16;
const RINGS: core::ops::RangeInclusive<usize> = 4..=32;
/// Rings take one part of the budget in so many at most, beyond the least of them, and of the
/// descriptors that the program may open one in so many.
const BUDGET_PART_OF_RINGS: u64 = 512;
const DESCRIPTORS_PER_RING: u64 = 16;
/// Rings of the second tier's device: one for each fetcher, one to spare.
pub(crate) const TIER_RINGS: usize = 4;
/// Its segments in memory.
pub(crate) const TIER_BUFFERS: usize = BUFFERS_MIN;

/// Segments of the store of which one at least is for collection alone, within limits.
const SEGMENTS_PER_RESERVE: u64 = 64;
const RESERVE_SEGMENTS: core::ops::RangeInclusive<u64> = 3..=8;
/// Segments that a store has at least, unless they were too small: the few that are not for the
/// heap are a small part of it then.
const SEGMENTS_LEAST: u64 = 128;

/// Pages that stay plain: as many as fit in RAM, or only a few where what is not needed is
/// to leave, which what is plain cannot.
pub(crate) fn most_plain_pages(runtime: &Runtime, is_refused: bool) -> usize {
    // Where the heap cannot be managed a wish for less would only have allocations fail.
    let wished = ceiling::wished(runtime).filter(|_| !is_refused);
    let fits = plain_pages_of(runtime, wished.unwrap_or(runtime.ram()));
    match runtime.config.is_managed_early() {
        true if !is_refused => fits.min(PLAIN_UNDER_BOUND_BYTES / PAGE),
        _ => fits,
    }
}

/// Pages that fit in RAM together with what managing them would add.
pub(crate) fn plain_pages(runtime: &Runtime) -> usize {
    plain_pages_of(runtime, runtime.ram())
}

/// As `plain_pages`, of this budget.
fn plain_pages_of(runtime: &Runtime, budget: usize) -> usize {
    // One more for the collector, which reads a segment at a time.
    let store = (segment_buffers(&runtime.config) + 1) * runtime.config.segment_bytes as usize
        + rings(&runtime.config) * RING_BYTES as usize
        + second_tier_bytes(&runtime.config);
    let overhead = overhead_of_managing(budget) + store + runtime.heap.metadata_bytes();
    budget.saturating_sub(overhead) / PAGE
}

/// A budget that would have kept all that was touched in RAM: the heap would not have outgrown it,
/// or the page buffer would have had room. Objects are always managed, and how much RAM they take
/// depends on how many are in RAM at a time: with them none is known.
fn ram_that_holds_all(runtime: &Runtime) -> Option<u64> {
    if runtime.heap.object_bytes() > 0 {
        return None;
    }
    // The segments of a small budget are smaller than those of the one that is looked for.
    let segment = runtime.config.segment_bytes.max(SEGMENT_DEFAULT_BYTES) as usize;
    let store =
        (*SEGMENT_BUFFERS.end() as usize + 1) * segment + second_tier_bytes(&runtime.config);
    let peak = |number| runtime.stats.last_set(number) as usize;
    let committed = peak(number!(committed_peak_bytes));
    let touched = peak(number!(touched_peak_bytes)).max(runtime.pager()?.touched_pages() * PAGE);
    // Of a page buffer that the user has fixed it is not known.
    let mapped = runtime.config.page_buffer.is_none().then_some(touched * PART_ALL / PART_MOST);
    let least = committed.min(mapped.unwrap_or(committed)) + runtime.heap.metadata_bytes() + store;
    // The rest is a small part of the budget: each step comes closer.
    let budget = (0..4).fold(least, |budget, _| least + overhead_of_managing(budget));
    Some(budget.next_multiple_of(GRANT_BLOCKS * PAGE) as u64)
}

/// The budget with which the program would wait clearly less, by its waits so far or lately, if one
/// is known. Under a bound on stalls, in a pool, and after a wish for another one, the budget of
/// now is not what it was given.
pub(crate) fn better(runtime: &Runtime, waited: &Waited) -> Option<Better> {
    match runtime.config.is_managed_early() || ceiling::wished(runtime).is_some() {
        true => None,
        false => more_ram::better(runtime.ram() as u64, ram_that_holds_all(runtime), waited),
    }
}

/// Segments in memory.
pub(crate) fn segment_buffers(config: &Config) -> usize {
    let of_budget = config.usual_ram() / BUDGET_PART_OF_BUFFERS / config.segment_bytes;
    of_budget.clamp(*SEGMENT_BUFFERS.start(), *SEGMENT_BUFFERS.end()) as usize
}

/// Rings of the store's device. Those of a forked child are the least: a fork is to be quick.
pub(crate) fn rings(config: &Config) -> usize {
    let of_budget = config.usual_ram() / BUDGET_PART_OF_RINGS / RING_BYTES;
    let descriptors = limits::open_files().map_or(u64::MAX, |limit| limit.soft);
    let of_descriptors = descriptors / DESCRIPTORS_PER_RING;
    let rings = of_budget.min(of_descriptors).min(1 << 10) as usize;
    let of_cpus = thread::cpu_count() * RINGS_PER_CPU;
    rings.min(of_cpus).clamp(*RINGS.start(), *RINGS.end())
}

/// Bytes of RAM that a second tier takes before anything is in it.
fn second_tier_bytes(config: &Config) -> usize {
    config.of_tier().map_or(0, |settings| {
        (TIER_BUFFERS + 1) * settings.segment_bytes as usize + TIER_RINGS * RING_BYTES as usize
    })
}

/// How a store is laid out at a location.
pub(crate) fn store_options(
    location: &StoreLocation,
    settings: &Config,
    buffers: usize,
) -> StoreOptions {
    let capacity_bytes = location.capacity_bytes(settings).unwrap_or(u64::MAX);
    let segment_bytes = halved(settings.segment_bytes, capacity_bytes / SEGMENTS_LEAST);
    let reserve = capacity_bytes / segment_bytes / SEGMENTS_PER_RESERVE;
    let reserve = reserve.clamp(*RESERVE_SEGMENTS.start(), *RESERVE_SEGMENTS.end());
    StoreOptions { segment_bytes, capacity_bytes, buffers, reserve_segments: reserve as u32 }
}
