//! Pager: the parts of residency, wired together.
//!
//! Lock order, outer to inner: an eviction context · the gate (mover, then collector) · a packer ·
//! the fresh
//! head of the log · the entry of an object (ownership) · a shard of the descriptor lists · the
//! locks of the object cache. Nobody waits for space in the log while owning an object.
//! Threads: any; workers run the loops of the runtime.

use core::cell::UnsafeCell;

use deepheap_heap::{Heap, PageNo, SPAN};
use deepheap_store::{BLOCK_BYTES, Block, BlockRead, ContentHash, PACKED_MAX, Store, cost, packed};
use deepheap_sys::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::errno::Errno;
use deepheap_sys::futex;
use deepheap_sys::lock::Lock;
use deepheap_sys::mapping::{self, Advice};
use deepheap_sys::userfaultfd::Userfaultfd;
use deepheap_sys::zap::Zapper;

use crate::PAGE;
use crate::access::ACCESS_BUFFER_BYTES;
use crate::balancer::Balancer;
use crate::budget::{self, Budget};
use crate::descriptor::Descriptors;
use crate::evict::EvictContext;
use crate::gate::Gate;
use crate::neighbours::Neighbours;
use crate::object_cache::ObjectCache;
use crate::object_table::ObjectTable;
use crate::page_buffer::PageBuffer;
use crate::policy::replacement::CachePolicy;
use crate::policy::sequence::WINDOW_MAX;
use crate::prefetch::Prefetch;
use crate::ranges::Ranges;
use crate::reclaim::Packer;
use crate::staging::Staging;
use crate::takeover::TakeOver;

const _: () = assert!(BLOCK_BYTES == PAGE);

/// What a pager is made of.
pub struct Options {
    /// Where the region starts.
    pub region_base: usize,
    /// Its length in pages.
    pub region_pages: usize,
    /// The RAM budget, bytes.
    pub budget_bytes: usize,
    /// Bytes of the page buffer; none: it sizes itself.
    pub page_buffer_bytes: Option<usize>,
    /// Which cached objects leave first.
    pub cache_policy: CachePolicy,
    /// Whether the object at an address comes alone: nothing with it, and it with nothing else, so
    /// that its first touch is a fault. Asked in the fault path.
    pub comes_alone: fn(usize) -> bool,
}

/// Why a pager could not start.
#[derive(Clone, Copy, Debug)]
pub enum StartError {
    /// userfaultfd is not to be had: seccomp, an old kernel, or a limit.
    Userfaultfd(Errno),
    /// Not enough memory, address space or file descriptors.
    Resources(Errno),
}

/// A value that only changes while no other thread can see it: in a forked child, before any
/// other thread of it exists.
pub(crate) struct SingleThreaded<T>(UnsafeCell<T>);

// SAFETY: shared access only reads; `replace` demands that no other thread exists.
unsafe impl<T: Sync> Sync for SingleThreaded<T> {}

impl<T> SingleThreaded<T> {
    pub(crate) fn new(value: T) -> Self {
        SingleThreaded(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: `replace` is never concurrent with a reader, by its contract.
        unsafe { &*self.0.get() }
    }

    /// # Safety
    /// No other thread exists, and no reference from `get` is alive.
    pub(crate) unsafe fn replace(&self, value: T) -> T {
        // SAFETY: by the contract nobody else looks at the value.
        unsafe { core::mem::replace(&mut *self.0.get(), value) }
    }
}

/// The pager of a heap.
pub struct Pager {
    pub(crate) region_base: usize,
    pub(crate) heap: &'static Heap,
    pub(crate) store: Store,
    pub(crate) table: ObjectTable,
    pub(crate) descriptors: Descriptors,
    pub(crate) page_buffer: PageBuffer,
    pub(crate) ranges: Ranges,
    pub(crate) cache: ObjectCache,
    pub(crate) budget: Budget,
    pub(crate) balancer: Balancer,
    pub(crate) gate: Gate,
    pub(crate) take_over: Lock<TakeOver>,
    /// Spans that the take-over has not looked at yet.
    pub(crate) plain_spans: AtomicUsize,
    pub(crate) managed_spans: AtomicUsize,
    pub(crate) object_spans: AtomicUsize,
    pub(crate) userfaultfd: SingleThreaded<Userfaultfd>,
    pub(crate) zapper: SingleThreaded<Zapper>,
    pub(crate) contexts: Box<[Lock<EvictContext>]>,
    pub(crate) packers: Box<[Lock<Packer>]>,
    pub(crate) prefetch: Prefetch,
    pub(crate) neighbours: Neighbours,
    comes_alone: fn(usize) -> bool,
    /// Pages that the program pins by calls, each as often as it does.
    pub(crate) long_pins: AtomicUsize,
    pub(crate) pages_staging: Staging,
    pub(crate) windows_staging: Staging,
    pub(crate) access_staging: Staging,
    pub(crate) zeros: *const u8,
    pub(crate) zero_hash: ContentHash,
    /// Counts up whenever eviction should look; the evictor sleeps on it.
    eviction_signal: AtomicU32,
    evictor_sleeps: AtomicU32,
}

// SAFETY: `zeros` points to a read-only use of a mapping that lives as long as the process; every
// other part is Send.
unsafe impl Send for Pager {}
// SAFETY: as above; every other part is Sync.
unsafe impl Sync for Pager {}

/// The shortest object that is cached by itself: smaller ones come in batches.
const SLOT_LEAST: usize = 128;
/// What 30 bits can name.
const DESCRIPTORS_MAX: usize = 1 << 30;

/// A staging buffer of a page: its block, and what is made of it.
pub(crate) const PAGE_STAGING_BYTES: usize = 2 * PAGE;

/// Zero bytes kept at hand: the most pages a fresh fault installs together.
pub(crate) const FRESH_MAX: usize = 64;

impl Pager {
    /// A pager for a heap whose spans are all plain so far. Opens the userfaultfd; registers
    /// nothing yet.
    pub fn new(options: &Options, heap: &'static Heap, store: Store) -> Result<Pager, StartError> {
        let userfaultfd = Userfaultfd::open().map_err(StartError::Userfaultfd)?;
        let budget_pages = options.budget_bytes / PAGE;
        // A page on its way has a descriptor, too, and the page buffer may be passed by a little.
        let objects_max = (options.budget_bytes / SLOT_LEAST + 4096).min(DESCRIPTORS_MAX);
        let parts = || -> Result<Pager, Errno> {
            let zeros = mapping::map_pinned(FRESH_MAX * PAGE)?;
            // SAFETY: freshly mapped, zeroed, and nobody ever writes it.
            let page_of_zeros = unsafe { core::slice::from_raw_parts(zeros, PAGE) };
            let contexts = (0..budget::contexts(options.budget_bytes))
                .map(|_| EvictContext::new().map(Lock::new))
                .collect::<Result<Box<[_]>, Errno>>()?;
            Ok(Pager {
                region_base: options.region_base,
                heap,
                store,
                table: ObjectTable::new(options.region_pages)?,
                descriptors: Descriptors::new(objects_max, options.cache_policy)?,
                page_buffer: PageBuffer::new(budget_pages),
                ranges: Ranges::new(options.region_pages)?,
                cache: ObjectCache::new(options.budget_bytes)?,
                budget: Budget::new(options.budget_bytes, options.page_buffer_bytes),
                balancer: Balancer::new(
                    options.page_buffer_bytes.is_none()
                        && options.cache_policy == CachePolicy::S3Fifo,
                ),
                gate: Gate::new(),
                take_over: Lock::new(TakeOver::none()),
                plain_spans: AtomicUsize::new(0),
                managed_spans: AtomicUsize::new(0),
                object_spans: AtomicUsize::new(0),
                userfaultfd: SingleThreaded::new(userfaultfd),
                zapper: SingleThreaded::new(Zapper::new()),
                packers: contexts.iter().map(|_| Lock::new(Packer::new())).collect(),
                contexts,
                prefetch: Prefetch::new(),
                neighbours: Neighbours::default(),
                comes_alone: options.comes_alone,
                long_pins: AtomicUsize::new(0),
                pages_staging: Staging::new(PAGE_STAGING_BYTES)?,
                windows_staging: Staging::new(2 * WINDOW_MAX as usize * PAGE)?,
                access_staging: Staging::new(ACCESS_BUFFER_BYTES)?,
                zeros,
                zero_hash: ContentHash::of(page_of_zeros),
                eviction_signal: AtomicU32::new(0),
                evictor_sleeps: AtomicU32::new(0),
            })
        };
        let pager = parts().map_err(StartError::Resources)?;
        pager.rebalance();
        Ok(pager)
    }

    /// The store under this pager.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Puts fresh, untouched address space under management before anyone uses it.
    pub fn manage(&self, first_span: usize, count: usize) -> Result<(), Errno> {
        let address = self.region_base + first_span * SPAN;
        self.register(address, count * SPAN)?;
        self.managed_spans.fetch_max(first_span + count, Ordering::Release);
        Ok(())
    }

    /// As `manage`, for spans of objects: their part of the object table counts from now on.
    pub fn manage_objects(&self, first_span: usize, count: usize) -> Result<(), Errno> {
        self.manage(first_span, count)?;
        self.object_spans.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn register(&self, address: usize, length: usize) -> Result<(), Errno> {
        // SAFETY: our own region; neither advice drops anything. Pages merged by ksm would not be
        // exclusive; the answer is EINVAL where ksm is not built.
        unsafe {
            mapping::advise(address as *mut u8, length, Advice::NoHugePage)?;
            let _ = mapping::advise(address as *mut u8, length, Advice::Unmergeable);
        }
        self.userfaultfd.get().register_missing(address, length)
    }

    /// The page of an address inside managed spans.
    pub fn managed_page(&self, address: usize) -> Option<PageNo> {
        let offset = address.wrapping_sub(self.region_base);
        let end = self.managed_spans.load(Ordering::Acquire) * SPAN;
        (offset < end).then_some(PageNo((offset / PAGE) as u32))
    }

    /// Whether the object of a page comes alone.
    pub(crate) fn comes_alone(&self, page: PageNo) -> bool {
        (self.comes_alone)(self.address_of(page))
    }

    /// Bytes of the object of a page; the rest of the page is nobody's.
    pub(crate) fn unit_bytes(&self, page: PageNo) -> usize {
        self.heap.unit_bytes(page)
    }

    /// Whether the object of a page shares its block with others.
    pub(crate) fn is_packed(&self, page: PageNo) -> bool {
        self.unit_bytes(page) <= PACKED_MAX
    }

    /// What the object of a page costs in the log, units.
    pub(crate) fn cost_of(&self, page: PageNo) -> u32 {
        cost(self.unit_bytes(page))
    }

    /// A read of the block that holds the object of a page.
    pub(crate) fn block_read<'a>(
        &self,
        page: PageNo,
        block: Block,
        buf: &'a mut [u8],
    ) -> BlockRead<'a> {
        match self.is_packed(page) {
            true => BlockRead::packed(block, buf),
            false => BlockRead::new(block, u64::from(page.0), buf),
        }
    }

    /// The bytes of the object of a page in its block, which was read and verified.
    pub(crate) fn object_in<'a>(&self, page: PageNo, block: &'a [u8]) -> Option<&'a [u8]> {
        let bytes = self.unit_bytes(page);
        match self.is_packed(page) {
            true => packed::find(block, page.0).filter(|object| object.len() == bytes),
            false => block.get(..bytes),
        }
    }

    /// The page at an address of the region.
    pub(crate) fn page_at(&self, address: usize) -> PageNo {
        PageNo(((address - self.region_base) / PAGE) as u32)
    }

    pub(crate) fn address_of(&self, page: PageNo) -> usize {
        self.region_base + page.0 as usize * PAGE
    }

    /// Wakes the evictor if the page buffer is above its high-water mark.
    pub(crate) fn signal_eviction(&self) {
        if self.page_buffer.excess(false) > 0 && self.evictor_sleeps.load(Ordering::Relaxed) != 0 {
            self.wake_evictor();
        }
    }

    /// Wakes the evictor whatever the counts say.
    pub fn wake_evictor(&self) {
        self.eviction_signal.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.eviction_signal, 1);
    }

    /// Evictor: sleeps until there is something to evict, or until `wake_evictor`.
    pub fn wait_for_eviction(&self) {
        let seen = self.eviction_signal.load(Ordering::SeqCst);
        self.evictor_sleeps.store(1, Ordering::SeqCst);
        if self.page_buffer.excess(false) == 0 && !self.has_plain_spans() {
            futex::wait(&self.eviction_signal, seen, None);
        }
        self.evictor_sleeps.store(0, Ordering::SeqCst);
    }

    /// Whether the evictor has more to do before it may sleep.
    pub fn must_evict(&self) -> bool {
        self.page_buffer.excess(true) > 0
    }
}
