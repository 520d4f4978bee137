//! Rebalance: gives page buffer and object cache what tables, page tables and buffers leave of the
//! budget.
//!
//! Guarantees: usage stays below the budget while the border moves.
//! Never: allocates, blocks.
//! Threads: the evictor, the thread that begins management, and any where there is no evictor
//! (`stand_in`): one at a time. Any may ask for the usage.

use deepheap_heap::{PAGES_PER_SPAN, PageNo};
use deepheap_policy::balance::{self, DenseCosts};
use deepheap_policy::budget_split::{self, Share, Split};
use deepheap_policy::more_ram::{self, STEPS};
use deepheap_policy::replacement;
use deepheap_residency::counters::Counted;
use deepheap_residency::ownership::ObjectTable;
use deepheap_residency::staging::Staging;
use deepheap_store::Store;
use deepheap_sys::faults::handler_stack;
use deepheap_sys::memory::page_extractor::BATCH_MAX;
use deepheap_sys::threads::atomic::Ordering;

use crate::PAGE;
use crate::ahead::History;
use crate::budget::balancer::Shares;
use crate::budget::{
    HEAP_BYTES_PER_PAGE, PAGE_TABLE_BYTES_PER_PAGE, Usage, evictors, fetchers, other_bytes,
};
use crate::evict::DENSE_MAX;
use crate::fault::report::{FaultKind, FaultReport};
use crate::gate::Level;
use crate::lanes::Lanes;
use crate::moves::Moves;
use crate::pager::Pager;
use crate::patience::Patience;
use crate::trace::Happened;

/// A share of the page buffer is in parts of this, as a power of two.
const SHARE_BITS: u32 = 16;
/// Page buffer and cache keep this part of what all else leaves of the budget, however large the
/// object table is.
const OBJECTS_PART: usize = 4;
/// So much of the budget is left to the object table, however large the heap becomes.
const TABLE_LEAST_PART: usize = 16;
/// Two bits a page: whether an object lives there, and whether there is room for one.
const OBJECT_PAGES_PER_HEAP_BYTE: usize = 4;

/// How much of the object table may be in RAM, where `others` are in RAM besides objects and the
/// kernel's page tables. The object table is worth more than objects: a page of it tells of 1024
/// objects. Page tables are no reason to keep less of it, for they follow the page buffer, which
/// becomes smaller where the object table grows: with an object on every page each page of the page
/// buffer may have a page table to itself. If they counted here, a page buffer that grows would
/// drive out the object table, that the objects in the cache, and these the border further.
fn table_limit(budget: usize, others: usize) -> usize {
    let rest = budget.saturating_sub(others);
    // For the page buffer, its page tables, and the cache.
    let least = 3 * budget_split::LEAST * PAGE;
    (rest - rest / OBJECTS_PART).min(rest.saturating_sub(least)).max(budget / TABLE_LEAST_PART)
}

impl Pager {
    /// The uses of the budget at this instant.
    pub fn usage(&self) -> Usage {
        let object_pages = self.budget.bytes() / PAGE;
        Usage {
            budget: self.budget.bytes(),
            // Pages that are reserved there for staging count as staging.
            page_buffer: PAGE
                * self
                    .residency
                    .frames
                    .page_buffer
                    .pages()
                    .saturating_sub(self.residency.staging.staged_pages()),
            object_cache: self.residency.cache.backed_bytes(),
            page_tables: self.residency.frames.ranges.page_table_bytes()
                + object_pages * PAGE_TABLE_BYTES_PER_PAGE,
            object_table: self.residency.ownership.table.used_bytes(),
            descriptors: self.residency.ownership.descriptors.bytes(),
            heap_metadata: self.residency.heap.metadata_bytes(),
            store: self.residency.store.memory_bytes() as usize,
            other: other_bytes(self.contexts.len())
                + self.residency.decompressors.bytes()
                + self.residency.staging.all().map(Staging::noted_bytes).iter().sum::<usize>()
                + handler_stack::resident_bytes()
                + self.residency.cache.table_bytes()
                + self.residency.trace.bytes()
                + self.ahead.history.as_ref().map_or(0, History::bytes)
                + self.lanes.as_ref().map_or(0, Lanes::memory_bytes)
                // The collectors' buffers.
                + self.residency.store.segment_bytes()
                + self.residency.store.second_tier().map_or(0, Store::segment_bytes),
        }
    }

    /// Bytes of RAM that a page of the heap costs even while it is not in RAM.
    pub const BYTES_PER_PAGE: usize = PAGE_TABLE_BYTES_PER_PAGE
        + ObjectTable::BYTES_PER_PAGE
        + HEAP_BYTES_PER_PAGE
        + deepheap_store::TABLE_BYTES_PER_BLOCK;

    /// Whether `pages` more pages of heap, all of them touched, leave page buffer and object cache
    /// the least that they need: pages that are not in RAM cost part of the budget, too.
    pub fn has_room_for_tables(&self, pages: usize) -> bool {
        let known = self.budget.touched_peak(self.touched_pages());
        let new = (self.residency.heap.granted_pages() + pages).saturating_sub(known);
        let tags =
            self.residency.store.table_bytes_per_block() - deepheap_store::TABLE_BYTES_PER_BLOCK;
        self.has_room_for(new.saturating_mul(self.bytes_per_page() + tags))
    }

    /// Whether `spans` more spans of objects leave page buffer and object cache the least that
    /// they need.
    pub fn has_room_for_objects(&self, spans: usize) -> bool {
        let of_table = PAGES_PER_SPAN * self.table_bytes_per_page();
        let per_span = of_table.max(PAGES_PER_SPAN / OBJECT_PAGES_PER_HEAP_BYTE);
        self.has_room_for(spans.saturating_mul(per_span))
    }

    /// As `BYTES_PER_PAGE`, without what can leave RAM.
    fn bytes_per_page(&self) -> usize {
        Self::BYTES_PER_PAGE - ObjectTable::BYTES_PER_PAGE + self.table_bytes_per_page()
    }

    /// Bytes that the object table takes for a page, if it cannot leave RAM.
    fn table_bytes_per_page(&self) -> usize {
        if self.residency.ownership.table.can_leave() { 0 } else { ObjectTable::BYTES_PER_PAGE }
    }

    /// The part of the overhead that cannot shrink.
    fn least_overhead(&self, usage: &Usage) -> usize {
        match self.residency.ownership.table.can_leave() {
            true => {
                let least = usage.budget / TABLE_LEAST_PART;
                usage.overhead() - usage.object_table + usage.object_table.min(least)
            }
            false => usage.overhead(),
        }
    }

    /// How many memory pages may be touched before their tables leave page buffer and object cache
    /// less than they need.
    fn most_pages(&self, overhead: usize) -> usize {
        let least = 2 * budget_split::LEAST * PAGE;
        let room = self.budget.ceiling().saturating_sub(overhead.saturating_add(least));
        self.budget.touched_peak(self.touched_pages()) + room / self.bytes_per_page()
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        let overhead = self.least_overhead(&self.usage()).saturating_add(bytes);
        overhead.saturating_add(2 * budget_split::LEAST * PAGE) <= self.budget.ceiling()
    }

    /// Sets the limits of page buffer and object cache from what the rest leaves, or goes one step
    /// towards that. Returns whether more steps are needed, after the next batch of eviction.
    pub fn rebalance(&self) -> bool {
        // The gate first: so a fork finds the lock free.
        let _passage = self.gate.enter(Level::Mover);
        rebalance_inside(self, false)
    }

    /// Changes the budget, to no more than it was at first. Page buffer and cache follow.
    pub fn set_budget(&self, bytes: usize) {
        self.budget.set_ceiling(bytes);
        self.rebalance();
    }

    /// Lets no more be used than so many bytes from now on, or than the budget if that is less. The
    /// use follows with the next `rebalance`s and evictions. Promises are made by the budget all
    /// the same: it is there when it is needed.
    pub fn set_target(&self, bytes: usize) {
        self.budget.set_target(bytes);
    }

    /// Pages by which the target could be lower before more pages would have to leave the page
    /// buffer or RAM. A snapshot.
    pub fn idle_pages(&self) -> usize {
        let part = self.balancer.part();
        let reach = self.residency.frames.page_buffer.idle() << 16;
        let cache =
            (self.residency.cache.limit().saturating_sub(self.residency.cache.held_bytes()) / PAGE)
                << 16;
        (reach / part.max(1)).min(cache / ((1 << 16) - part).max(1))
    }

    /// Has objects leave the cache, and so RAM, until it is within a lowered limit. False if no
    /// more can leave now. The page buffer shrinks by eviction.
    pub fn trim_cache(&self, moves: &mut Moves) -> bool {
        let _passage = self.gate.enter(Level::Mover);
        moves.may_press = DENSE_MAX as u32;
        while self.residency.cache.is_over_limit() {
            if !matches!(self.reclaim(BATCH_MAX, Patience::Waits, moves), Ok(true)) {
                return false;
            }
        }
        true
    }

    /// What each side of the border holds, and could hold.
    fn shares(&self) -> Shares {
        let (page_buffer, cache) = (&self.residency.frames.page_buffer, &self.residency.cache);
        // With an object on every page, a resident page may have a page table to itself.
        let page_tables =
            self.residency.frames.ranges.page_table_bytes() / page_buffer.pages().max(1);
        let (cached, cached_bytes) = (cache.objects(), cache.held_bytes());
        let pages = page_buffer.limit() + cache.limit() / PAGE;
        let known = self.residency.ownership.descriptors.ghost.recent();
        let mean_bytes = cached_bytes / cached.max(1);
        // Pages of several objects in lanes are no size of any of them.
        let is_a_page = self.lanes.is_none();
        let touched = is_a_page.then(|| self.touched_pages() + self.residency.heap.objects_live());
        Shares {
            page_buffer_bytes: page_buffer.limit() * (PAGE + page_tables),
            ghost_bytes: match is_a_page {
                true => balance::bytes_for(known, mean_bytes),
                false => known * mean_bytes,
            },
            all_bytes: pages * PAGE,
            cached_bytes,
            mean_bytes,
            fit: touched
                .and_then(|touched| balance::fitting_part(pages, touched, cached, cached_bytes)),
            least: match is_a_page {
                true => balance::least_part(pages, cached, cached_bytes),
                false => balance::PART_LEAST,
            },
        }
    }

    /// Traces limits that are about to be set, if they are others than before.
    fn note_limits(&self, limits: Split) {
        let residency = &self.residency;
        let pages = |count| PageNo(u32::try_from(count).unwrap_or(u32::MAX));
        if residency.trace.is_on() && residency.frames.page_buffer.limit() != limits.page_buffer {
            residency.trace.note(Happened::PageBuffer, pages(limits.page_buffer), 0);
            residency.trace.note(Happened::Cache, pages(limits.object_cache), 0);
        }
    }

    /// A fault at `address` began at `start_ns` and was served in `ns` nanoseconds.
    pub fn note_fault(&self, address: usize, report: &FaultReport, start_ns: u64, ns: u64) {
        if report.kind == FaultKind::Cached {
            // Without those for making room.
            self.balancer.note_fault(ns.saturating_sub(report.moves.stall_ns));
        }
        self.balancer.more_ram.note(report.spared_by, ns.saturating_sub(self.balancer.fault_ns()));
        let happened = match report.kind {
            FaultKind::Zero => Happened::Zero,
            FaultKind::Cached => Happened::Cached,
            FaultKind::Stored => Happened::Stored,
            FaultKind::Waited => return,
        };
        let page = self.residency.frames.page_at(address & !(PAGE - 1));
        self.residency.trace.note_fault(happened, page, report.passed, (start_ns, ns));
    }

    /// How many workers may evict, the first one and its helpers, and how many should fetch ahead.
    pub fn worker_counts(&self) -> (usize, usize) {
        let contexts = self.contexts.len();
        (evictors(contexts), fetchers(contexts))
    }

    /// Gives back the RAM of staging buffers and handler stacks that no thread used since the last
    /// call, and spare slots: a thread that still writes gets another one.
    pub fn trim(&self) {
        let _passage = self.gate.enter(Level::Mover);
        self.residency.cache.end_spares();
        for staging in self.residency.staging.all() {
            staging.trim();
        }
        handler_stack::trim();
    }

    /// Whether a later `trim` may give something back.
    pub fn is_touched(&self) -> bool {
        handler_stack::is_touched()
            || self.residency.cache.has_spares()
            || self.residency.staging.all().map(Staging::is_touched).contains(&true)
    }
}

/// Nanoseconds of the waits so far that a budget larger by so many steps, and no fewer, would
/// have spared.
pub fn spared_ns(pager: &Pager) -> [u64; STEPS] {
    pager.balancer.more_ram.spared_ns()
}

/// How much more RAM would have kept the object of a page, which is stored now.
pub(crate) fn spared_by(pager: &Pager, page: PageNo) -> Option<u8> {
    let left = pager.residency.ownership.descriptors.ghost.insertions_since(page.0)?;
    let lacking = u64::from(left).saturating_mul(pager.balancer.more_ram.object_bytes());
    more_ram::step(lacking, pager.budget.bytes() as u64)
}

/// How much more RAM has room for one more object, in page buffer and cache, each of which gets
/// its share of it; a cached one has `mean_bytes`.
fn bytes_of_further_object(pager: &Pager, mean_bytes: usize) -> u64 {
    let cached = mean_bytes.clamp(1, PAGE);
    let mapped = match pager.budget.page_buffer_bytes() {
        // The user has fixed it: what is more goes to the cache.
        Some(_) => 0,
        None => pager.balancer.part(),
    };
    let objects = mapped + ((1 << SHARE_BITS) - mapped) * PAGE / cached;
    ((PAGE << SHARE_BITS) / objects.max(1)) as u64
}

/// Has the page buffer give the cache back what it was lent, or what the border gives it, a
/// step: otherwise objects would leave RAM while there is room for them. False if the cache
/// has all that it is to have, or another thread moves the limits. Inside of the gate.
pub(crate) fn raise_cache_limit(pager: &Pager) -> bool {
    let cache = &pager.residency.cache;
    let before = cache.limit();
    if !pager.budget.cache_is_short.load(Ordering::Relaxed) {
        return false;
    }
    rebalance_inside(pager, true);
    cache.limit() > before
}

/// As `Pager::rebalance`, inside of the gate. If the cache is `full` the next step begins though
/// the page buffer has not taken the last one.
fn rebalance_inside(pager: &Pager, full: bool) -> bool {
    let residency = &pager.residency;
    let Some(_alone) = pager.budget.rebalancing.try_lock() else { return false };
    let [back, left] = [Counted::DenseBack, Counted::DenseLeft].map(|what| pager.counted(what));
    let costs = DenseCosts {
        bytes_before: pager.counted(Counted::DenseFrom),
        bytes: pager.counted(Counted::DenseBytes),
        press_ns: pager.counted(Counted::DenseNs) / pager.counted(Counted::Dense).max(1),
        read_ns: pager.balancer.read_ns(),
    };
    pager.compression.second.judge(back, left, &costs);
    let shares = pager.shares();
    pager.balancer.balance(&shares);
    let object_bytes = bytes_of_further_object(pager, shares.mean_bytes);
    pager.balancer.more_ram.set_object_bytes(object_bytes);
    // Before the usage is read, which then includes them.
    let staged = residency.staging.staged_pages();
    let share = match pager.budget.page_buffer_bytes() {
        Some(bytes) => Share::Bytes(bytes),
        None => Share::Part(pager.balancer.part()),
    };
    residency.ownership.descriptors.trim(residency.frames.zapper());
    // Pages that are pinned for long are among the former once an eviction has met them.
    let long_pins = pager.pins.long.load(Ordering::Relaxed);
    let held = residency.frames.page_buffer.unevictable().max(long_pins);
    let usage = pager.usage();
    let overhead = usage.overhead();
    residency.ownership.table.set_limit(match residency.ownership.table.can_leave() {
        true => {
            let follows = usage.object_table + residency.frames.ranges.page_table_bytes();
            table_limit(usage.budget, overhead.saturating_sub(follows)) / PAGE
        }
        false => usize::MAX,
    });
    residency.promises.set_most(pager.most_pages(pager.least_overhead(&usage)));
    let split = budget_split::split(pager.budget.bytes(), overhead, share, held);
    let (page_buffer, object_cache) = (
        residency.frames.page_buffer.pages().saturating_sub(staged),
        residency.cache.held_bytes() / PAGE,
    );
    let own = split.object_cache;
    let split = match share {
        Share::Bytes(_) => split,
        Share::Part(_) => split.lend(object_cache),
    };
    let now = Split { page_buffer, object_cache };
    let before = match full {
        true => now,
        false => Split {
            page_buffer: residency.frames.page_buffer.limit(),
            object_cache: residency.cache.limit() / PAGE,
        },
    };
    let limits = split.next(now, before, held);
    pager.budget.cache_is_short.store(limits.object_cache < own, Ordering::Relaxed);
    // The cache first: memory of its free slabs goes back before the page buffer may use it.
    residency.cache.set_limit(limits.object_cache * PAGE);
    pager.note_limits(limits);
    residency.frames.page_buffer.set_limit(limits.page_buffer);
    residency.frames.page_buffer.unreserve(staged);
    residency.staging.unstage(staged);
    let ghost = replacement::ghost_length(residency.cache.objects());
    residency.ownership.descriptors.ghost.grow(ghost);
    limits != split
}
