//! Budget: what counts against the RAM ceiling, and what is left for objects.
//!
//! Guarantees: page buffer and object cache are given only what tables, page tables and buffers
//! leave of the budget, recomputed as those grow.
//! Never: allocates, blocks.

use core::sync::atomic::{AtomicUsize, Ordering};

use deepheap_heap::PAGES_PER_SPAN;
use deepheap_sys::page_extractor::BATCH_MAX;
use deepheap_sys::thread;

use crate::descriptor::Descriptor;
use crate::evict::Moves;
use crate::gate::Level;
use crate::object_cache::ObjectCache;
use crate::object_table::ObjectTable;
use crate::pager::{PAGE_STAGING_BYTES, Pager};
use crate::policy::budget_split::{self, Share, Split};
use crate::staging::StagingBuffer;
use crate::{PAGE, evict, staging};

/// Bytes of page table a page of the region costs while its 2 MiB range is in use.
const PAGE_TABLE_BYTES_PER_PAGE: usize = 8;
/// Bytes of the heap's metadata a page of the region costs once it is used: tags and bitmaps.
const HEAP_BYTES_PER_PAGE: usize = 5;
/// Bytes of the cache's memory of what left it, for a page that is cached, at most.
const GHOST_BYTES: usize = 8;
/// Worker stacks, signal frames, lists: a bound, not a measurement.
const OTHER_BYTES: usize = 1 << 20;

/// Threads that can evict at the same time, at most.
const CONTEXTS_MAX: usize = 4;
/// The pages of a batch are in a context's pipe and in the cache at once: small budgets have fewer
/// contexts, and smaller batches.
const BUDGET_BYTES_PER_CONTEXT: usize = 16 << 20;
const BUDGET_PART_OF_BATCH: usize = 64;
const BATCH_LEAST: usize = evict::DIRECT_PAGES;

/// The budget and the peaks that decide what is left of it.
pub(crate) struct Budget {
    bytes: usize,
    /// What the user has fixed.
    page_buffer_bytes: Option<usize>,
    committed_peak: AtomicUsize,
    /// Pages reserved in the page buffer for staging that no limit knows of yet.
    staged_pages: AtomicUsize,
}

/// What the budget is used for, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The ceiling.
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

/// Bytes that managing adds to `budget` bytes of objects, the store's memory not included: what
/// plain mode must leave free, or the switch would pass the budget.
pub fn overhead_of_managing(budget: usize) -> usize {
    let tables = ObjectTable::BYTES_PER_PAGE + 2 * PAGE_TABLE_BYTES_PER_PAGE;
    let per_page = tables
        + core::mem::size_of::<Descriptor>()
        + ObjectCache::TABLE_BYTES_PER_PAGE
        + GHOST_BYTES;
    // As many threads as there are buffers may come to fault at the same time.
    let staging = staging::BUFFERS * PAGE_STAGING_BYTES;
    budget / PAGE * per_page + OTHER_BYTES + staging + contexts(budget) * context_bytes(budget)
}

/// Evictions that run at a time: one a processor, within limits.
pub(crate) fn contexts(budget: usize) -> usize {
    thread::cpu_count().min(budget / BUDGET_BYTES_PER_CONTEXT).clamp(1, CONTEXTS_MAX)
}

/// Pages that leave the page buffer together.
pub(crate) fn batch_pages(budget: usize) -> usize {
    (budget / PAGE / BUDGET_PART_OF_BATCH).clamp(BATCH_LEAST, BATCH_MAX)
}

fn context_bytes(budget: usize) -> usize {
    batch_pages(budget) * PAGE + evict::LISTS_BYTES
}

impl Budget {
    pub(crate) fn new(bytes: usize, page_buffer_bytes: Option<usize>) -> Budget {
        let (committed_peak, staged_pages) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Budget { bytes, page_buffer_bytes, committed_peak, staged_pages }
    }

    /// The ceiling.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Pager {
    /// What the budget is used for at this instant.
    pub fn usage(&self) -> Usage {
        let committed = self.heap.committed_pages();
        let peak =
            self.budget.committed_peak.fetch_max(committed, Ordering::Relaxed).max(committed);
        let object_pages = self.budget.bytes / PAGE;
        Usage {
            budget: self.budget.bytes,
            page_buffer: self.page_buffer.pages() * PAGE,
            object_cache: self.cache.held_bytes(),
            page_tables: self.ranges.page_table_bytes() + object_pages * PAGE_TABLE_BYTES_PER_PAGE,
            object_table: (peak + self.object_spans.load(Ordering::Relaxed) * PAGES_PER_SPAN)
                * ObjectTable::BYTES_PER_PAGE,
            descriptors: self.descriptors.bytes(),
            heap_metadata: self.heap.metadata_bytes(),
            store: self.store.memory_bytes() as usize,
            other: OTHER_BYTES
                + self.pages_staging.noted_bytes()
                + self.access_staging.noted_bytes()
                + self.windows_staging.noted_bytes()
                + self.cache.table_bytes()
                + self.store.segment_bytes()
                + self.contexts.len() * context_bytes(self.budget.bytes),
        }
    }

    /// What a page of heap costs in RAM even while it is away.
    pub const BYTES_PER_PAGE: usize = PAGE_TABLE_BYTES_PER_PAGE
        + ObjectTable::BYTES_PER_PAGE
        + HEAP_BYTES_PER_PAGE
        + deepheap_store::CHECKSUM_BYTES_PER_BLOCK;

    /// Whether `pages` more pages of heap leave page buffer and object cache the least they need:
    /// what a page costs while it is away counts against the budget, too.
    pub fn has_room_for_tables(&self, pages: usize) -> bool {
        let known = self.budget.committed_peak.load(Ordering::Relaxed);
        let new = (self.heap.granted_pages() + pages).saturating_sub(known);
        self.has_room_for(new.saturating_mul(Self::BYTES_PER_PAGE))
    }

    /// Whether `spans` more spans of objects leave page buffer and object cache the least that
    /// they need.
    pub fn has_room_for_objects(&self, spans: usize) -> bool {
        self.has_room_for(spans.saturating_mul(PAGES_PER_SPAN * ObjectTable::BYTES_PER_PAGE))
    }

    /// Notes that the first `bytes` of a staging buffer will be used. What is new of them takes
    /// room of the page buffer, until `rebalance` lowers its limit; false if there is none.
    pub(crate) fn try_stage(&self, buffer: &StagingBuffer<'_>, bytes: usize) -> bool {
        let pages = buffer.unnoted(bytes).div_ceil(PAGE);
        let has_room = pages == 0 || self.page_buffer.try_reserve(pages);
        if has_room {
            self.stage_reserved(buffer, bytes, pages);
        }
        has_room
    }

    /// As `try_stage`, but makes room; the caller owns nothing.
    pub(crate) fn stage(&self, buffer: &StagingBuffer<'_>, bytes: usize, moves: &mut Moves) {
        let pages = buffer.unnoted(bytes).div_ceil(PAGE);
        for _ in 0..pages {
            if self.make_room(moves, usize::MAX).is_err() {
                // The store takes no more: what is cached can still be read.
                self.page_buffer.adopt(1);
            }
        }
        self.stage_reserved(buffer, bytes, pages);
    }

    /// Pages reserved in the page buffer for staging.
    pub(crate) fn staged_pages(&self) -> usize {
        self.budget.staged_pages.load(Ordering::Acquire)
    }

    fn stage_reserved(&self, buffer: &StagingBuffer<'_>, bytes: usize, pages: usize) {
        if pages > 0 {
            buffer.note(bytes);
            self.budget.staged_pages.fetch_add(pages, Ordering::Release);
        }
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        let overhead = self.usage().overhead().saturating_add(bytes);
        overhead.saturating_add(2 * budget_split::LEAST * PAGE) <= self.budget.bytes
    }

    /// Sets the limits of page buffer and object cache from what the rest leaves, or as far towards
    /// that as one step goes. Whether there are more steps to go, after the next batch of eviction.
    pub fn rebalance(&self) -> bool {
        let _passage = self.gate.enter(Level::Mover);
        self.balance();
        // Before the usage is looked at, which then includes them.
        let staged = self.budget.staged_pages.swap(0, Ordering::Acquire);
        let share = match self.budget.page_buffer_bytes {
            Some(bytes) => Share::Bytes(bytes),
            None => Share::Part(self.balancer.part()),
        };
        let held = self.page_buffer.unevictable() + self.long_pins.load(Ordering::Relaxed);
        let split = budget_split::split(self.budget.bytes, self.usage().overhead(), share, held);
        let (page_buffer, object_cache) =
            (self.page_buffer.pages().saturating_sub(staged), self.cache.held_bytes() / PAGE);
        let limits = split.next(Split { page_buffer, object_cache }, held);
        // The cache first: memory of its free slabs goes back before the page buffer may use it.
        self.cache.set_limit(limits.object_cache * PAGE);
        self.page_buffer.set_limit(limits.page_buffer);
        self.page_buffer.unreserve(staged);
        self.descriptors.grow_ghost(self.cache.objects());
        limits != split
    }
}
