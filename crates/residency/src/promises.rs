//! Promises: room of the store for memory pages that hold something.
//!
//! A memory page takes a promise, one block of the store, before it stops being `Zero`. It gives
//! the promise back when it is `Zero` again. So memory that was handed out and never touched costs
//! nothing. The store promises in batches. Promises that no page has yet lie in lanes, so that two
//! threads that fault seldom share a cache line.
//!
//! Objects are promised room by the heap when they are allocated: their pages take nothing here.
//! With `Overcommit::Strict` that holds for memory pages, too. They are then only counted.
//!
//! ```text
//!   the store ──reserve a batch──► lanes ──take──► a page that is not `Zero`
//!             ◄──return────────           ◄──give──
//! ```
//!
//! Guarantees: what the store has promised for memory pages, plus what it owes, is what lies in the
//! lanes, what is set aside, and one block for each memory page that is not `Zero`.
//! Never: allocates, waits for another thread's object.
//! Threads: any, inside the gate, also in a signal handler. `take` may wait for the device.

use deepheap_heap::{PAGES_PER_SPAN, PageNo};
use deepheap_store::{Store, StoreError};
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::threads::atomic::{AtomicU64, AtomicUsize, Ordering};
use deepheap_sys::threads::tls;
use deepheap_sys::threads::waits::{Cause, Wait};

/// When memory is promised room in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overcommit {
    /// When a page is touched for the first time.
    #[default]
    Lazy,
    /// When it is allocated.
    Strict,
}

/// Why a page gets no promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPromise {
    /// The store has no room, or its device failed.
    Store(StoreError),
    /// The RAM budget has no room for the tables of more pages.
    Tables,
}

const LANES: usize = 16;
/// Blocks that the store promises at a time: one part of it in so many, within limits.
const BATCH_PART: u64 = 256;
const BATCH_MIN: usize = 8;
const BATCH_MAX: usize = 256;
/// A lane with more batches than this gives all but one of them back to the store.
const LANE_BATCHES: usize = 3;

/// See the file's header.
pub struct Promises {
    overcommit: Overcommit,
    batch: usize,
    /// Promises that no page has.
    lanes: [Padded<AtomicUsize>; LANES],
    /// Promises for memory that is granted and not touched yet. Lanes take them from here first.
    ahead: AtomicUsize,
    /// Promises for pages that were present before they were managed.
    set_aside: AtomicUsize,
    /// Promises that the store has made for memory pages.
    held: AtomicUsize,
    /// Pages that were present before they were managed, for which the store had no promise.
    owed: AtomicUsize,
    /// How many promises the RAM budget allows.
    most: AtomicUsize,
    /// A bit for each span that holds objects.
    object_spans: Box<[AtomicU64]>,
}

impl Promises {
    /// No page holds anything yet.
    pub fn new(overcommit: Overcommit, store: &Store, region_pages: usize) -> Promises {
        let spans = region_pages.div_ceil(PAGES_PER_SPAN);
        let part = store.stats().reservable_blocks / BATCH_PART;
        Promises {
            overcommit,
            batch: usize::try_from(part).unwrap_or(BATCH_MAX).clamp(BATCH_MIN, BATCH_MAX),
            lanes: Default::default(),
            ahead: AtomicUsize::new(0),
            set_aside: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
            object_spans: (0..spans.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Notes spans whose pages take no promises, before anything is on them.
    pub fn add_object_spans(&self, first: usize, count: usize) {
        for span in first..first + count {
            self.object_spans[span / 64].fetch_or(1 << (span % 64), Ordering::Release);
        }
    }

    /// Whether the page takes a promise while it holds something: memory does, objects do not.
    pub fn covers(&self, page: PageNo) -> bool {
        let span = page.0 as usize / PAGES_PER_SPAN;
        self.object_spans[span / 64].load(Ordering::Acquire) >> (span % 64) & 1 == 0
    }

    /// Takes a promise that is at hand; false if the store has to be asked.
    pub(crate) fn try_take(&self) -> bool {
        take_one(&self.lanes[tls::lane_of::<LANES>()])
    }

    /// Takes a promise, from the store if need be.
    pub(crate) fn take(&self, store: &Store) -> Result<(), NoPromise> {
        if self.try_take() {
            return Ok(());
        }
        let lane = &self.lanes[tls::lane_of::<LANES>()];
        let mut batch = self.batch;
        loop {
            let taken = match take_up_to(&self.ahead, batch) {
                0 => self.reserve(store, batch).map(|()| batch),
                ahead => Ok(ahead),
            };
            let error = match taken {
                Ok(taken) => {
                    lane.fetch_add(taken - 1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => error,
            };
            if self.lanes.iter().any(|lane| take_one(lane)) {
                return Ok(());
            }
            if batch == 1 {
                return Err(error);
            }
            batch = (batch / 8).max(1);
        }
    }

    /// Takes a promise for a page that holds something already. If there is none it is owed: the
    /// page stays in RAM while the store is full.
    pub(crate) fn take_for_present(&self, store: &Store) {
        if !take_one(&self.set_aside) && self.take(store).is_err() {
            self.owed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts pages that hold something already, in a heap that was opened again: the caller has
    /// reserved their blocks.
    pub fn adopt(&self, pages: usize) {
        self.held.fetch_add(pages, Ordering::Relaxed);
    }

    /// Gives a promise back.
    pub(crate) fn give(&self, store: &Store) {
        if self.owed.load(Ordering::Relaxed) > 0 && take_one(&self.owed) {
            return;
        }
        let lane = &self.lanes[tls::lane_of::<LANES>()];
        if lane.fetch_add(1, Ordering::Relaxed) >= LANE_BATCHES * self.batch {
            self.trim(store, lane, self.batch);
        }
    }

    /// Has so many promises ready that no page has.
    pub fn have_ready(&self, store: &Store, blocks: usize) -> Result<(), NoPromise> {
        match blocks.saturating_sub(self.idle()) {
            0 => Ok(()),
            missing => {
                self.reserve(store, missing)?;
                self.ahead.fetch_add(missing, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Sets aside promises that the store has made, for pages that are present before they are
    /// managed.
    pub fn set_aside(&self, blocks: usize) {
        self.held.fetch_add(blocks, Ordering::Relaxed);
        self.set_aside.fetch_add(blocks, Ordering::Relaxed);
    }

    /// All pages are managed: what was set aside and is left goes back to the store.
    pub fn end_set_aside(&self, store: &Store) {
        self.trim(store, &self.set_aside, 0);
    }

    /// Gives the store back what no page has, but for a batch in each lane and `ahead`.
    pub fn return_surplus(&self, store: &Store, ahead: usize) {
        self.trim(store, &self.ahead, ahead);
        self.lanes.iter().for_each(|lane| self.trim(store, lane, self.batch));
    }

    /// Memory pages that are not `Zero`. A snapshot.
    pub fn taken(&self) -> usize {
        let owed = self.owed.load(Ordering::Relaxed);
        (self.held.load(Ordering::Relaxed) + owed).saturating_sub(self.idle())
    }

    /// Promises that no page has. A snapshot.
    pub fn idle(&self) -> usize {
        let lanes: usize = self.lanes.iter().map(|lane| lane.load(Ordering::Relaxed)).sum();
        lanes + self.ahead.load(Ordering::Relaxed) + self.set_aside.load(Ordering::Relaxed)
    }

    /// How many more promises the budget allows, those that no page has included.
    pub fn allowed(&self) -> usize {
        self.most.load(Ordering::Relaxed).saturating_sub(self.taken())
    }

    /// Sets how many promises the budget allows.
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Whether memory pages take their room in the store here.
    fn is_lazy(&self) -> bool {
        self.overcommit == Overcommit::Lazy
    }

    fn reserve(&self, store: &Store, blocks: usize) -> Result<(), NoPromise> {
        if self.is_lazy() {
            if self.held.load(Ordering::Relaxed) + blocks > self.most.load(Ordering::Relaxed) {
                return Err(NoPromise::Tables);
            }
            // The device may be asked for more space, by us or by a thread that we wait for.
            let reserved = Wait::during(Cause::Log, || store.reserve(blocks as u64));
            reserved.map_err(NoPromise::Store)?;
        }
        self.held.fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the store back what is in a lane beyond `keep`.
    fn trim(&self, store: &Store, lane: &AtomicUsize, keep: usize) {
        let over = |now: usize| (now > keep).then_some(keep);
        let Ok(now) = lane.fetch_update(Ordering::Relaxed, Ordering::Relaxed, over) else { return };
        self.held.fetch_sub(now - keep, Ordering::Relaxed);
        if self.is_lazy() {
            store.unreserve((now - keep) as u64);
        }
    }
}

fn take_up_to(count: &AtomicUsize, most: usize) -> usize {
    let less = |now: usize| (now > 0).then(|| now - now.min(most));
    let taken = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    taken.map_or(0, |before| before.min(most))
}

fn take_one(count: &AtomicUsize) -> bool {
    let less = |now: usize| now.checked_sub(1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}
