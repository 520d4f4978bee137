//! Pager: the parts of residency, wired together.
//!
//! Lock order, outer to inner: an eviction context · the gate (mover, then collector) · a packer ·
//! the fresh head of the log · an object (`Owned`) · a shard of the descriptor lists · the locks of
//! the object cache. No thread waits for space in the log while it owns an object.
//! Threads: any; the runtime's workers call the loops.

use core::time::Duration;

use deepheap_heap::{Heap, PAGES_PER_SPAN, PageNo, SPAN};
use deepheap_residency::Residency;
use deepheap_residency::codec::dense::{DenseCompressor, DenseDecompressors};
use deepheap_residency::counters::{Counted, Counters};
use deepheap_residency::frames::Frames;
use deepheap_residency::object_cache::ObjectCache;
use deepheap_residency::ownership::Ownership;
use deepheap_residency::promises::{Overcommit, Promises};
use deepheap_residency::staging::StagingPools;
use deepheap_store::{BLOCK_BYTES, Store};
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::page_extractor::{BATCH_MAX, sees_stores};
use deepheap_sys::memory::userfaultfd::{Userfaultfd, feature};
use deepheap_sys::threads::lock::Lock;

use crate::PAGE;
use crate::ahead::Ahead;
use crate::ahead::ask::Asker;
use crate::budget::balancer::Balancer;
use crate::budget::{self, Budget};
use crate::calls::pins::Pins;
use crate::checkpoint::capture::Capture;
use crate::evict::compression::{Compress, Compression};
use crate::evict::context::{DIRECT_PAGES, EvictionContext};
use crate::fault::sources::Sources;
use crate::gate::{Forking, Gate, Level};
use crate::lanes::Lanes;
use crate::moves::Moves;
use crate::reclaim::packer::Packer;
use crate::takeover::plain_spans::PlainSpans;
use crate::tier::Tier;
use crate::tier::mix::TierMix;
use crate::trace::Trace;
use crate::workers::Workers;
use deepheap_residency::page_buffer::PageBuffer;

const _: () = assert!(BLOCK_BYTES == PAGE);

/// The parts that a pager is made of.
pub struct Options {
    /// Where the region starts.
    pub region_base: usize,
    /// Its length in pages.
    pub region_pages: usize,
    /// The RAM budget, bytes.
    pub budget_bytes: usize,
    /// Bytes of the page buffer; none: its size is found while the program runs.
    pub page_buffer_bytes: Option<usize>,
    /// When memory is promised room in the store.
    pub overcommit: Overcommit,
    /// Which pages are compressed.
    pub compress: Compress,
    /// Whether checkpoints are made of it.
    pub makes_checkpoints: bool,
    /// Whether walks in equal steps are fetched ahead.
    pub follows_strides: bool,
    /// Whether pages that followed each other before are fetched ahead.
    pub follows_sequences: bool,
    /// Whether what happens is noted in rings, to be drained.
    pub traces: bool,
    /// Small objects lie in lanes of so many frames, as a power of two (`lanes_shift`).
    pub lanes_shift: Option<u32>,
}

/// Why a pager could not start.
#[derive(Clone, Copy, Debug)]
pub enum StartError {
    /// userfaultfd is not available: seccomp, an old kernel, or a limit.
    Userfaultfd(Errno),
    /// The kernel copies a page that the program writes to while it is evicted.
    CopiesPages,
    /// The kernel could not be asked whether it does: seccomp forbids vmsplice, or a limit.
    Pipe(Errno),
    /// Not enough memory, address space or file descriptors.
    Resources(Errno),
}

/// The pager of a heap: its parts. The engines that use them are in folders of their own.
pub struct Pager {
    pub(crate) residency: Residency,
    pub(crate) budget: Budget,
    pub(crate) balancer: Balancer,
    pub(crate) gate: Gate,
    pub(crate) capture: Capture,
    pub(crate) plain_spans: PlainSpans,
    pub(crate) contexts: Box<[Padded<Lock<EvictionContext>>]>,
    pub(crate) packers: Box<[Padded<Lock<Packer>>]>,
    pub(crate) ahead: Ahead,
    pub(crate) compression: Compression,
    pub(crate) pins: Pins,
    pub(crate) sources: Sources,
    pub(crate) tier_mix: TierMix,
    pub(crate) lanes: Option<Lanes>,
    pub(crate) forking: Lock<Forking>,
    /// How its workers are woken and ended, and which of them run.
    pub workers: Workers,
}

/// The shortest object that is cached by itself: the heap batches smaller ones.
const SLOT_LEAST: usize = 128;
/// As many as 30 bits can name.
const DESCRIPTORS_MAX: usize = 1 << 30;

impl Pager {
    /// A pager for a heap whose spans are all plain so far. Opens the userfaultfd, unless one was
    /// opened for what the options want; registers nothing yet.
    pub fn new(
        options: &Options,
        heap: &'static Heap,
        store: Store,
        userfaultfd: Option<Userfaultfd>,
    ) -> Result<Pager, StartError> {
        let has_lanes = options.lanes_shift.is_some();
        let userfaultfd = match userfaultfd {
            Some(opened) => Ok(opened),
            None if options.makes_checkpoints => Userfaultfd::open_with(feature::PROTECTS),
            None if has_lanes => Userfaultfd::open_sharing_frames(),
            None => Userfaultfd::open(),
        };
        let userfaultfd = userfaultfd.map_err(StartError::Userfaultfd)?;
        if !sees_stores().map_err(StartError::Pipe)? {
            return Err(StartError::CopiesPages);
        }
        let (bytes, pages) = (options.budget_bytes, options.region_pages);
        // A page that is arriving has a descriptor, too, and the page buffer may pass its limit a
        // little.
        let objects_max = (bytes / SLOT_LEAST + 4096).min(DESCRIPTORS_MAX);
        let parts = || -> Result<Pager, Errno> {
            let contexts = budget::contexts(bytes);
            let evictors = budget::evictors(contexts);
            // The evictors' come first: the pipes of a user have so many pages together.
            let most = |context| if context < evictors { BATCH_MAX } else { DIRECT_PAGES };
            let contexts = (0..contexts)
                .map(|context| Ok(Padded(Lock::new(EvictionContext::new(most(context))?))))
                .collect::<Result<Box<[_]>, Errno>>()?;
            let dense = match options.compress {
                Compress::Auto => budget::dense_contexts(bytes),
                Compress::Lz4 | Compress::Off => 0,
            };
            let packers = (0..contexts.len())
                .map(|at| {
                    let dense = (at < dense).then(DenseCompressor::new).transpose()?;
                    Ok(Padded(Lock::new(Packer::new(dense))))
                })
                .collect::<Result<Box<[_]>, Errno>>()?;
            Ok(Pager {
                residency: Residency {
                    heap,
                    promises: Promises::new(options.overcommit, &store, pages),
                    store,
                    ownership: Ownership::new(pages, objects_max)?,
                    frames: Frames::new(
                        options.region_base,
                        pages,
                        PageBuffer::new(bytes / PAGE, budget::batch_pages(bytes)),
                        userfaultfd,
                        (options.makes_checkpoints, has_lanes),
                    )?,
                    cache: ObjectCache::new(bytes)?,
                    decompressors: DenseDecompressors::new(dense)?,
                    staging: StagingPools::new(budget::page_staging_buffers(bytes))?,
                    trace: Trace::new(options.traces)?,
                    counters: Counters::zero(),
                },
                budget: Budget::new(bytes, options.page_buffer_bytes),
                balancer: Balancer::new(options.page_buffer_bytes.is_none()),
                gate: Gate::new(),
                capture: Capture::new(),
                plain_spans: PlainSpans::none(),
                packers,
                contexts,
                ahead: Ahead::new(bytes, options.follows_strides, options.follows_sequences)?,
                compression: Compression::new(options.compress, pages)?,
                sources: Sources::new(pages)?,
                pins: Pins::new(pages)?,
                tier_mix: TierMix::new(),
                lanes: options.lanes_shift.map(|shift| Lanes::new(shift, pages)).transpose()?,
                forking: Lock::new(Forking::default()),
                workers: Workers::new(),
            })
        };
        let pager = parts().map_err(StartError::Resources)?;
        if let Some(lanes) = &pager.lanes {
            heap.set_lanes(lanes.shift());
        }
        pager.rebalance();
        Ok(pager)
    }

    /// How much was counted of something.
    pub fn counted(&self, what: Counted) -> u64 {
        self.residency.counters.sums()[what as usize]
    }

    /// The parts by which a thread asks for what it will want.
    pub(crate) fn asker(&self) -> Asker<'_> {
        Asker { residency: &self.residency, ahead: &self.ahead, tier: self.tier() }
    }

    /// The parts that decide what goes to the second tier.
    pub(crate) fn tier(&self) -> Tier<'_> {
        let history = self.ahead.history.as_ref();
        Tier { residency: &self.residency, mix: &self.tier_mix, history }
    }

    /// So many pages more may go to the second tier, and `most` until the next call; before the
    /// first call as many as there are.
    pub fn allow_second_tier(&self, more: u64, most: u64) {
        self.tier_mix.allow(more, most);
    }

    /// What is traced.
    pub fn trace(&self) -> &Trace {
        &self.residency.trace
    }

    /// The store under this pager.
    pub fn store(&self) -> &Store {
        &self.residency.store
    }

    /// Address of the first page of the region.
    pub fn region_base(&self) -> usize {
        self.residency.frames.region_base()
    }

    /// Puts fresh, untouched address space under management before any thread uses it.
    pub fn manage(&self, first_span: usize, count: usize) -> Result<(), Errno> {
        let address = self.residency.frames.region_base() + first_span * SPAN;
        self.residency.frames.register(address, count * SPAN)?;
        self.residency.frames.manage_up_to(first_span + count);
        Ok(())
    }

    /// Puts pages of a managed span, in place of which the program had mapped something else, under
    /// management again.
    pub fn manage_again(&self, first: PageNo, pages: usize) -> Result<(), Errno> {
        self.residency.frames.register(self.residency.frames.address_of(first), pages * PAGE)
    }

    /// As `manage`, for object spans.
    pub fn manage_objects(&self, first_span: usize, count: usize) -> Result<(), Errno> {
        self.manage(first_span, count)?;
        self.residency.promises.add_object_spans(first_span, count);
        Ok(())
    }

    /// As `manage_objects`, for spans whose objects lie in lanes: ENOTSUP if there are none.
    pub fn manage_lanes(&self, first_span: usize, count: usize) -> Result<(), Errno> {
        let lanes = self.lanes.as_ref().ok_or(Errno::ENOTSUP)?;
        let first = PageNo((first_span * PAGES_PER_SPAN) as u32);
        let pages = count * PAGES_PER_SPAN;
        // SAFETY: fresh, untouched address space of the region.
        unsafe { lanes.map(first, pages, self.residency.frames.address_of(first)) }?;
        self.residency.frames.register_shared(first, pages)?;
        self.residency.frames.manage_up_to(first_span + count);
        self.residency.promises.add_object_spans(first_span, count);
        Ok(())
    }

    /// If the object table cannot leave RAM, the whole part of it that tells of these spans, in
    /// which there is no object yet, counts against the budget from now on.
    pub fn expect_objects(&self, first_span: usize, count: usize) {
        if !self.residency.ownership.table.can_leave() {
            for page in first_span * PAGES_PER_SPAN..(first_span + count) * PAGES_PER_SPAN {
                let _ = self.residency.ownership.place(PageNo::from(page));
            }
        }
    }

    /// Memory pages that are not `Zero`: what the program has touched and not given back. A
    /// snapshot.
    pub fn touched_pages(&self) -> usize {
        self.residency.count_found();
        self.residency.promises.taken()
    }

    /// How many more memory pages may be touched before the store, its device or the RAM budget is
    /// full. A snapshot; it asks the device.
    pub fn room_left(&self) -> usize {
        let residency = &self.residency;
        let in_store = usize::try_from(residency.store.room()).unwrap_or(usize::MAX);
        in_store.saturating_add(residency.promises.idle()).min(residency.promises.allowed())
    }

    /// Whether the RAM budget has room for the tables of so many more touched pages. A snapshot.
    pub fn has_tables_for(&self, pages: usize) -> bool {
        pages <= self.residency.promises.allowed()
    }

    /// Gives the store back promises that no page has, but for a few and `ahead`. As the collector,
    /// since the collector calls it.
    pub fn return_promises(&self, ahead: usize) {
        let _passage = self.gate.enter(Level::Collector);
        self.residency.promises.return_surplus(&self.residency.store, ahead);
    }

    /// Has promises ready for so many pages that are not touched yet; false if there is no room.
    pub fn promise_ahead(&self, pages: usize) -> bool {
        let _passage = self.gate.enter(Level::Collector);
        self.residency.promises.have_ready(&self.residency.store, pages).is_ok()
    }

    /// The page of an address inside managed spans.
    pub fn managed_page(&self, address: usize) -> Option<PageNo> {
        self.residency.frames.managed_page(address)
    }

    /// Wakes the evictor if the page buffer is above its high-water mark, or if the limits must
    /// follow memory that threads have taken. Of many threads that see it sleeping only one wakes
    /// it.
    pub(crate) fn signal_eviction(&self) {
        let has_work = self.is_behind() || self.is_uncounted() || self.has_table_excess();
        if has_work {
            self.workers.wake_sleeping_evictor();
        }
    }

    /// Whether the page buffer is above its high-water mark.
    fn is_behind(&self) -> bool {
        self.residency.frames.page_buffer.excess(false) > 0
    }

    /// The first evictor: sleeps until there is something to evict, until `wake_evictor`, or for
    /// at most `limit`.
    pub fn wait_for_eviction(&self, limit: Option<Duration>) {
        let has_work = || self.is_behind() || self.plain_spans.any() || self.is_uncounted();
        self.workers.wait_unless(has_work, limit);
    }

    /// Each evictor calls it before a batch: calls one more if that is of use. It is if the page
    /// buffer is above its high-water mark after a batch (`has_evicted`), or by more than the
    /// batches of those at work. So there are soon as many as keep a part of it free. True if one
    /// more would be of use and all helpers that there are evict already.
    pub fn ask_for_help(&self, has_evicted: bool) -> bool {
        let page_buffer = &self.residency.frames.page_buffer;
        let at_work = (1 + self.workers.helping()) * budget::batch_pages(self.budget.bytes());
        let most = if has_evicted { 0 } else { at_work };
        let is_of_use = page_buffer.excess(false) > most;
        is_of_use && self.workers.call_helper()
    }

    /// The loop of another evictor: sleeps until it is called, then evicts until the page buffer is
    /// at its low mark, or nothing can be evicted. It reports no errors: the first evictor meets
    /// the same ones. `note` gets what was moved since it was called last, and whether one more
    /// helper should be started.
    pub fn help(&self, evictor: usize, mut note: impl FnMut(&Moves, bool)) {
        let mut has_evicted = false;
        let mut moves = Moves::default();
        self.workers.help(|| {
            let starts_one = self.ask_for_help(has_evicted);
            note(&core::mem::take(&mut moves), starts_one);
            has_evicted = matches!(self.evict(evictor, &mut moves), Ok(true));
            has_evicted
        });
        note(&moves, false);
    }

    /// Has the loops of workers return: a heap is about to be closed. To be called until they have.
    pub fn end_work(&self) {
        self.workers.end();
        self.residency.store.stop_waiting();
        self.ahead.queues.wake(u32::MAX / 2);
    }

    /// Whether pages that cannot be evicted have pushed the page buffer over its limit.
    pub fn is_overrun(&self) -> bool {
        self.residency.frames.page_buffer.is_overrun()
    }

    /// Whether the evictor has more to do before it may sleep.
    pub fn must_evict(&self) -> bool {
        self.residency.frames.page_buffer.excess(true) > 0
    }
}
