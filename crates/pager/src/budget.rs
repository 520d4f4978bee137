//! Budget: what counts against the RAM ceiling, and what is left for objects.
//!
//! Never: allocates, blocks.
//! Threads: any; `rebalance` gives page buffer and object cache what the rest leaves.

pub(crate) mod balancer;
pub(crate) mod more_ram;
pub(crate) mod rebalance;
pub(crate) mod table_room;

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deepheap_policy::history;
use deepheap_residency::codec::dense;
use deepheap_residency::object_cache::ObjectCache;
use deepheap_residency::ownership::{Descriptor, ObjectTable};
use deepheap_residency::staging::{BUFFERS_MAX, BUFFERS_MIN, PAGE_STAGING_BYTES};
use deepheap_sys::memory::page_extractor::BATCH_MAX;
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::thread;

use crate::PAGE;
use crate::evict::context::{CONTEXT_BYTES, DIRECT_PAGES};

/// Bytes of page table a page of the region costs while its 2 MiB range is in use.
pub(crate) const PAGE_TABLE_BYTES_PER_PAGE: usize = 8;
/// Bytes of the heap's metadata a page of the region costs once it is used: tags and bitmaps.
pub(crate) const HEAP_BYTES_PER_PAGE: usize = 5;
/// The most bytes that the ghost takes for each cached page.
const GHOST_BYTES: usize = 8;
/// RAM of the process beside all that is counted: stacks of workers and what the kernel keeps
/// for them, descriptions of mappings and their page tables, first pages of tables, our own heap.
/// It was measured with one evictor and three fetchers, and is a bound
/// (docs/decisions/0015-fixed-costs.md).
const OTHER_BYTES: usize = 704 << 10;
/// And that for each further one.
const WORKER_BYTES: usize = 48 << 10;

/// Evictions that run at the same time, at most. Beyond, the kernel's locks of the process decide.
const CONTEXTS_MAX: usize = 64;
/// Of so many contexts one is a worker's; the others are for faulting threads.
const CONTEXTS_PER_EVICTOR: usize = 2;
/// For each so many contexts, a fetcher, and at least so many fetchers.
const CONTEXTS_PER_FETCHER: usize = 4;
const FETCHERS_LEAST: usize = 3;
/// The page buffer has room free for a batch or two, and the pages of a batch are in a pipe, still
/// as part of the page buffer, while they have slots of the cache. So small budgets have fewer
/// contexts, and smaller batches.
const BUDGET_BYTES_PER_CONTEXT: usize = 16 << 20;
/// A smaller budget has no second step of compression: its memory would be a part that counts.
/// Schedules have a small budget, and play it.
const DENSE_BUDGET_LEAST: usize = if cfg!(feature = "schedules") { 1 << 20 } else { 64 << 20 };
const BUDGET_PART_OF_BATCH: usize = 256;
/// Staging buffers of pages take at most this part of the budget, and handler stacks as much,
/// unless the least number of them takes more.
const STAGING_PART: usize = 32;
/// Bytes that a handler stack takes as a rule.
pub(crate) const HANDLER_STACK_BYTES: usize = 5 * PAGE;
const BATCH_LEAST: usize = DIRECT_PAGES;

/// The budget and the peaks that decide what is left of it.
pub(crate) struct Budget {
    ceiling: AtomicUsize,
    /// The bytes to use now, if that is less.
    target: AtomicUsize,
    /// The size that the user has fixed.
    page_buffer_bytes: Option<usize>,
    touched_peak: AtomicUsize,
    /// The cache is to have more than its limit, once the page buffer has given that up.
    pub(crate) cache_is_short: AtomicBool,
    /// Held by a thread that moves the limits.
    pub(crate) rebalancing: Lock<()>,
}

/// The uses of the budget, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The most that may be used now.
    pub budget: usize,
    /// Pages the program can touch.
    pub page_buffer: usize,
    /// Cached objects.
    pub object_cache: usize,
    /// Page tables of the region and of the cache.
    pub page_tables: usize,
    /// Object table.
    pub object_table: usize,
    /// Descriptors of objects in DRAM.
    pub descriptors: usize,
    /// The heap's metadata.
    pub heap_metadata: usize,
    /// Segment buffers, segment table and checksums of the store.
    pub store: usize,
    /// Pipes, staging, stacks.
    pub other: usize,
}

impl Usage {
    /// Everything that is not an object.
    pub fn overhead(&self) -> usize {
        self.page_tables
            + self.object_table
            + self.descriptors
            + self.heap_metadata
            + self.store
            + self.other
    }
}

/// Bytes that managing adds to `budget` bytes of objects, without the store's memory. Plain mode
/// must leave them free, or the switch would pass the budget.
pub fn overhead_of_managing(budget: usize) -> usize {
    let tables = ObjectTable::BYTES_PER_PAGE + 2 * PAGE_TABLE_BYTES_PER_PAGE;
    let per_page = tables
        + core::mem::size_of::<Descriptor>()
        + ObjectCache::TABLE_BYTES_PER_PAGE
        + GHOST_BYTES;
    // So many threads may fault at once before anything makes room for them.
    let staging = BUFFERS_MIN * PAGE_STAGING_BYTES;
    let contexts = contexts(budget);
    let dense = dense_contexts(budget) * dense::CONTEXT_BYTES;
    budget / PAGE * per_page + history::bytes(budget) + staging + other_bytes(contexts) + dense
}

/// Evictions that run at a time.
pub(crate) fn contexts(budget: usize) -> usize {
    contexts_for(thread::cpu_count(), budget)
}

/// One for each processor, as far as the budget allows.
fn contexts_for(cpus: usize, budget: usize) -> usize {
    cpus.min(budget / BUDGET_BYTES_PER_CONTEXT).clamp(1, CONTEXTS_MAX)
}

/// Workers that evict if they are needed, where there are so many contexts: half as many as
/// processors, so that the program's threads, for which they evict, have the other half.
pub(crate) fn evictors(contexts: usize) -> usize {
    (contexts / CONTEXTS_PER_EVICTOR).max(1)
}

/// Workers that fetch ahead. They wait for the device most of the time.
pub(crate) fn fetchers(contexts: usize) -> usize {
    (contexts / CONTEXTS_PER_FETCHER).max(FETCHERS_LEAST)
}

/// Threads that make pages dense at a time, and that make pages of dense ones.
pub(crate) fn dense_contexts(budget: usize) -> usize {
    if budget < DENSE_BUDGET_LEAST { 0 } else { contexts(budget) }
}

/// Bytes that are known before the program runs and not measured later; with so many contexts.
/// Workers that were never needed do not run, but may come.
pub(crate) fn other_bytes(contexts: usize) -> usize {
    let further = evictors(contexts) - 1 + fetchers(contexts) - FETCHERS_LEAST;
    OTHER_BYTES + further * WORKER_BYTES + contexts * CONTEXT_BYTES
}

/// Pages that leave the page buffer together.
pub(crate) fn batch_pages(budget: usize) -> usize {
    (budget / PAGE / BUDGET_PART_OF_BATCH).clamp(BATCH_LEAST, BATCH_MAX)
}

/// How many threads can have a staging buffer of a page at a time, by the budget: more threads wait
/// for one another.
pub(crate) fn page_staging_buffers(budget: usize) -> usize {
    (budget / STAGING_PART / PAGE_STAGING_BYTES).clamp(BUFFERS_MIN, BUFFERS_MAX)
}

/// How many threads can be in the fault path on an alternate signal stack at a time, likewise.
pub fn handler_stacks(budget: usize) -> usize {
    budget / STAGING_PART / HANDLER_STACK_BYTES
}

impl Budget {
    pub(crate) fn new(bytes: usize, page_buffer_bytes: Option<usize>) -> Budget {
        let (ceiling, target) = (AtomicUsize::new(bytes), AtomicUsize::new(usize::MAX));
        let (touched_peak, rebalancing) = (AtomicUsize::new(0), Lock::new(()));
        let cache_is_short = AtomicBool::new(false);
        Budget { ceiling, target, page_buffer_bytes, touched_peak, cache_is_short, rebalancing }
    }

    /// The bytes that may be used now. Never more than the ceiling.
    pub(crate) fn bytes(&self) -> usize {
        self.ceiling().min(self.target.load(Ordering::Relaxed))
    }

    /// The most bytes that may ever be used.
    pub(crate) fn ceiling(&self) -> usize {
        self.ceiling.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ceiling(&self, bytes: usize) {
        self.ceiling.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_target(&self, bytes: usize) {
        self.target.store(bytes, Ordering::Relaxed);
    }

    /// The size of the page buffer in bytes, if the user has fixed it.
    pub(crate) fn page_buffer_bytes(&self) -> Option<usize> {
        self.page_buffer_bytes
    }

    /// The most memory pages that were ever touched, `now` among them.
    pub(crate) fn touched_peak(&self, now: usize) -> usize {
        self.touched_peak.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    #[test]
    fn evictions_follow_the_processors_and_the_budget() {
        let contexts = [1, 2, 4, 8, 16, 64, 512].map(|cpus| contexts_for(cpus, 16 * GIB));
        assert_eq!(contexts, [1, 2, 4, 8, 16, 64, 64]);
        let budgets = [8 << 20, 32 << 20, 64 << 20, GIB].map(|budget| contexts_for(64, budget));
        assert_eq!(budgets, [1, 2, 4, 64]);
        assert_eq!([1, 2, 4, 8, 16, 64].map(evictors), [1, 1, 2, 4, 8, 32]);
        assert_eq!([1, 2, 8, 16, 64].map(fetchers), [3, 3, 3, 4, 16]);
        let most = other_bytes(contexts_for(64, GIB)) - other_bytes(1);
        assert!(most < GIB / 100, "{most}");
    }

    #[test]
    fn staging_and_stacks_for_threads_are_a_small_part_of_the_budget() {
        for budget in [64 << 20, 256 << 20, GIB, 64 * GIB] {
            let staging = page_staging_buffers(budget) * PAGE_STAGING_BYTES;
            let stacks = handler_stacks(budget) * HANDLER_STACK_BYTES;
            assert!(staging <= budget / 32 && stacks <= budget / 32, "{budget}");
        }
        assert_eq!([8 << 20, GIB].map(page_staging_buffers), [64, 1024]);
    }
}
