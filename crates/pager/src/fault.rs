//! Fault: what happens when the program touches a page that is not in the page buffer.
//!
//! Guarantees: on `Ok` the access may be tried again; it succeeds, or faults once more and is
//! served then. On `Err` the object is where it was and the access must not be repeated.
//! Never: allocates, touches managed memory, waits for the program.
//! Threads: the faulting one, in its SIGBUS handler, all signals blocked. It may evict by itself
//! when the evictor falls behind (back-pressure), before it owns anything.

use deepheap_heap::PageNo;
use deepheap_store::{ContentHash, StoreError};
use deepheap_sys::clock;
use deepheap_sys::errno::Errno;
use deepheap_sys::userfaultfd::Copy;

use crate::PAGE;
use crate::descriptor::{DescriptorId, List, State};
use crate::evict::{DIRECT_PAGES, Moves};
use crate::fetch::Window;
use crate::gate::Level;
use crate::object_table::Place;
use crate::pager::{FRESH_MAX, Pager};
use crate::policy::replacement;
use crate::policy::sequence::{Direction, Sequences};

/// A hash no content has: whatever is found at eviction counts as changed.
pub(crate) const UNKNOWN_HASH: ContentHash = ContentHash(0);

/// Memory pages are installed together within blocks of so many.
const FRESH_BLOCK: usize = 16;
/// Object pages that are installed together are no more than this part of the page buffer.
const FRESH_PART: usize = 32;

/// Batches that a fault on a cached object sees refused before it takes a place of the page
/// buffer's without one.
const PATIENCE_CACHED: usize = 2;

/// What kind of fault it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The object was nowhere: a page of zeros.
    Zero,
    /// It was in the object cache.
    Cached,
    /// It was read from the store.
    Stored,
    /// Another thread was moving it; this one waited.
    Waited,
}

/// What a fault did.
#[derive(Clone, Copy, Debug)]
pub struct FaultReport {
    /// The kind.
    pub kind: FaultKind,
    /// Further objects read from the store with it.
    pub ahead: u32,
    /// What the thread evicted by itself to make room.
    pub moves: Moves,
}

/// Why an access must stop.
#[derive(Clone, Copy, Debug)]
pub enum FaultError {
    /// Not an address of a managed span.
    NotManaged,
    /// The object could not be read: device error, or bytes that fail their checksum.
    Unreadable(StoreError),
    /// Nothing can be evicted any more, because the store takes no more writes.
    NoRoom(StoreError),
    /// As NoRoom, but forked children withhold space that comes back when they end.
    Withheld,
    /// The kernel refused to install the page.
    Install(Errno),
}

impl Pager {
    /// Serves a fault at `address`. `sequences` is what the thread's faults looked like so far;
    /// `repeated`: the same thread faulted on the same page immediately before.
    pub fn resolve(
        &self,
        address: usize,
        sequences: &mut Sequences<'_>,
        repeated: bool,
    ) -> Result<FaultReport, FaultError> {
        let page = self.managed_page(address).ok_or(FaultError::NotManaged)?;
        let mut moves = Moves::default();
        let is_cached = || matches!(self.table.load(page), Place::Cached(_));
        loop {
            let patience = if is_cached() { PATIENCE_CACHED } else { usize::MAX };
            let Err(error) = self.make_room(&mut moves, patience) else { break };
            if is_cached() {
                // It is in DRAM: it takes the page buffer's place of the next victim, which finds
                // the cache slot that it leaves. What is in DRAM stays usable when nothing can be
                // written.
                self.page_buffer.adopt(1);
                break;
            }
            if patience == usize::MAX {
                return Err(error);
            }
        }
        let passage = self.gate.enter(Level::Mover);
        let served = match self.table.load(page) {
            Place::Zero => self.install_fresh(page, sequences),
            Place::Cached(id) => {
                self.go_on_ahead(page, sequences);
                self.install_cached_window(page, id, sequences)
            }
            Place::Stored(block) => self.fetch(page, block, sequences),
            Place::Busy(id) => self.wait_for(page, id, repeated),
        };
        drop(passage);
        let (kind, ahead) = match served {
            Ok(Some(served)) => served,
            // Another thread was faster; the access tells what it made of it.
            Ok(None) => {
                self.page_buffer.unreserve(1);
                (FaultKind::Waited, 0)
            }
            Err(error) => {
                self.page_buffer.unreserve(1);
                return Err(error);
            }
        };
        self.signal_eviction();
        Ok(FaultReport { kind, ahead, moves })
    }

    /// Installs a page of zeros, and its fresh neighbours if the heap is being filled in address
    /// order: the page before it is resident, or for objects, of which many sizes are filled at
    /// once, the thread's own faults come in order.
    fn install_fresh(
        &self,
        page: PageNo,
        sequences: &mut Sequences<'_>,
    ) -> Result<Option<(FaultKind, u32)>, FaultError> {
        let mut ids = [DescriptorId(0); FRESH_MAX];
        let Some(first) = self.claim_fresh(page) else { return Ok(None) };
        ids[0] = first;
        let mut count = 1;
        let in_block = page.0 as usize % FRESH_BLOCK;
        let most = if self.heap.is_object_page(page) {
            let window = Window::of(page, sequences.fresh());
            let upwards = if window.direction == Direction::Up { window.count } else { 1 };
            upwards.min(FRESH_MAX).min(self.page_buffer.limit() / FRESH_PART)
        } else if in_block > 0 && matches!(self.table.load(PageNo(page.0 - 1)), Place::Busy(_)) {
            FRESH_BLOCK - in_block
        } else {
            1
        };
        while count < most && self.page_buffer.try_reserve(1) {
            let neighbour = PageNo(page.0 + count as u32);
            match self.claim_fresh(neighbour) {
                Some(id) => ids[count] = id,
                None => {
                    self.page_buffer.unreserve(1);
                    break;
                }
            }
            count += 1;
        }
        let (installed, refused) = self.install(page, self.zeros, &ids[..count]);
        let rest = PageNo(page.0 + installed as u32);
        self.unclaim(rest, &ids[installed..count], |_| Place::Zero);
        // The page that faulted keeps its reservation: on an error `resolve` ends it.
        self.page_buffer.unreserve((count - installed).min(count - 1));
        match refused {
            Some(errno) if installed == 0 => Err(FaultError::Install(errno)),
            _ => {
                sequences.note_fresh(sequences.fresh().advance(page.0, installed as u32));
                Ok(Some((FaultKind::Zero, 0)))
            }
        }
    }

    pub(crate) fn claim_fresh(&self, page: PageNo) -> Option<DescriptorId> {
        if self.table.load(page) != Place::Zero {
            return None;
        }
        let id = self.take_descriptor(page);
        self.descriptors.get(id).begin(page, State::Arriving, None, self.zero_hash);
        if self.table.replace(page, Place::Zero, Place::Busy(id)) {
            return Some(id);
        }
        self.descriptors.release(id);
        None
    }

    /// Installs a cached object, and if it is a scan that comes to it the cached ones after it.
    fn install_cached_window(
        &self,
        page: PageNo,
        id: DescriptorId,
        sequences: &mut Sequences<'_>,
    ) -> Result<Option<(FaultKind, u32)>, FaultError> {
        if !self.install_cached(page, id)? {
            return Ok(None);
        }
        let window = self.window_of(page, sequences.of(page.0));
        let extent = self.install_cached_further(window);
        sequences.pass(page.0, extent);
        Ok(Some((FaultKind::Cached, 0)))
    }

    /// Installs what is cached of the window, except for its first page, as far as there is room
    /// and nothing has to be read; returns how many pages it came past, that one among them.
    pub(crate) fn install_cached_further(&self, window: Window) -> u32 {
        let mut extent = 1;
        while extent < window.count {
            let page = window.page_after(extent);
            match self.table.load(page) {
                Place::Stored(_) | Place::Cached(_) if self.comes_alone(page) => {}
                Place::Stored(_) => break,
                Place::Cached(id) => {
                    if !self.page_buffer.try_reserve(1) {
                        break;
                    }
                    // What cannot be installed is told to whoever touches it.
                    if !matches!(self.install_cached(page, id), Ok(true)) {
                        self.page_buffer.unreserve(1);
                    }
                }
                Place::Zero | Place::Busy(_) => {}
            }
            extent += 1;
        }
        extent as u32
    }

    /// Installs a cached object, for which a page is reserved; false if another thread has it.
    fn install_cached(&self, page: PageNo, id: DescriptorId) -> Result<bool, FaultError> {
        if !self.table.replace(page, Place::Cached(id), Place::Busy(id)) {
            return Ok(false);
        }
        let descriptor = self.descriptors.get(id);
        let slot = descriptor.slot();
        let is_neighbour = self.touch_neighbour(descriptor);
        descriptor.set_may_be_shared(false);
        let (object, bytes) = (self.cache.address(slot), self.unit_bytes(page));
        let copied = if bytes == PAGE {
            self.copy_in(page, object, &[id])
        } else {
            let staging = self.pages_staging.take(PAGE);
            // SAFETY: the slot is ours alone and holds the object, the staging page ours as well.
            unsafe { fill_page(staging.address(), object, bytes) };
            self.copy_in(page, staging.address(), &[id])
        };
        if let (0, Some(errno)) = copied {
            self.publish_cached(id);
            return Err(FaultError::Install(errno));
        }
        self.cache.give_back(slot);
        // A neighbour's first touch is what a fault from the store would have been: no use again.
        if !is_neighbour {
            descriptor.set_reuse(replacement::touched(descriptor.reuse()));
            self.balancer.comes_back(descriptor);
        }
        self.publish_resident(id);
        Ok(true)
    }

    /// Waits for another thread that is moving the object. A page that the table calls resident and
    /// that faults twice in a row was taken away by the program itself (`madvise(MADV_DONTNEED)` on
    /// heap memory): it reads as zeros then, as on plain memory.
    fn wait_for(
        &self,
        page: PageNo,
        id: DescriptorId,
        repeated: bool,
    ) -> Result<Option<(FaultKind, u32)>, FaultError> {
        let descriptor = self.descriptors.get(id);
        let seen = descriptor.state();
        if self.table.load(page) != Place::Busy(id) {
            return Ok(None);
        }
        if seen.state() != State::Resident {
            descriptor.wait_while(seen);
        } else if repeated && descriptor.claim(State::Moving) {
            // Owned now, if it still is this page's descriptor: the evictor cannot take it away
            // between our look and our copy.
            if self.table.load(page) == Place::Busy(id) {
                // SAFETY: a registered page; the zeros are pinned and never written.
                let copied =
                    unsafe { self.userfaultfd.get().copy(self.address_of(page), self.zeros, PAGE) };
                if let Ok(Copy::Done) = copied {
                    descriptor.set_hash(UNKNOWN_HASH);
                }
            }
            descriptor.change(State::Resident);
        }
        Ok(None)
    }

    /// Copies the bytes of consecutive claimed pages in and makes them resident; answers how many,
    /// and why not all.
    pub(crate) fn install(
        &self,
        first: PageNo,
        source: *const u8,
        ids: &[DescriptorId],
    ) -> (usize, Option<Errno>) {
        let (installed, refused) = self.copy_in(first, source, ids);
        for &id in &ids[..installed] {
            self.publish_resident(id);
        }
        (installed, refused)
    }

    /// `UFFDIO_COPY` of consecutive pages; answers how many are in, and why not all. A page that is
    /// in may have been written by another thread already: it stays, whatever becomes of the next.
    /// A page that was there before (it was plain until a moment ago) keeps its bytes and counts as
    /// changed.
    ///
    /// The kernel copies within one mapping only. The program may have split ours, by `mprotect` or
    /// `mlock`, so what fails together is tried page by page.
    fn copy_in(
        &self,
        first: PageNo,
        source: *const u8,
        ids: &[DescriptorId],
    ) -> (usize, Option<Errno>) {
        let userfaultfd = self.userfaultfd.get();
        for index in 0..ids.len() as u32 {
            self.ranges.enter(PageNo(first.0 + index));
        }
        let (mut done, mut most) = (0, ids.len());
        while done < ids.len() {
            let to = self.address_of(first) + done * PAGE;
            let pages = most.min(ids.len() - done);
            // SAFETY: `source` holds a page for each id, pinned and owned by the caller; the pages
            // are registered and claimed.
            let copied = unsafe { userfaultfd.copy(to, source.add(done * PAGE), pages * PAGE) };
            match copied {
                Ok(Copy::Done) => done += pages,
                Ok(Copy::Partial(bytes)) => done += bytes / PAGE,
                Ok(Copy::Exists) => {
                    let descriptor = self.descriptors.get(ids[done]);
                    descriptor.set_hash(UNKNOWN_HASH);
                    descriptor.set_may_be_shared(true);
                    done += 1;
                }
                Err(_) if pages > 1 => most = 1,
                Err(errno) => {
                    for index in done as u32..ids.len() as u32 {
                        self.ranges.leave(PageNo(first.0 + index));
                    }
                    return (done, Some(errno));
                }
            }
        }
        (done, None)
    }

    fn publish_resident(&self, id: DescriptorId) {
        self.descriptors.move_to(id, List::PageBuffer);
        self.descriptors.get(id).change(State::Resident);
    }

    /// Gives claimed pages back to where they were.
    pub(crate) fn unclaim(
        &self,
        first: PageNo,
        ids: &[DescriptorId],
        place: impl Fn(usize) -> Place,
    ) {
        for (index, &id) in ids.iter().enumerate() {
            self.table.publish(PageNo(first.0 + index as u32), place(index));
            self.descriptors.release(id);
        }
    }

    /// A descriptor for one more object. There is one for each of the smallest objects that the
    /// whole budget could hold, and 4096 more for what has no memory of its own: reads that found
    /// no cache slot, and pages that another thread may be faster with. So one is free, or about to
    /// be: nobody holds more than a window of those, nor longer than a read takes.
    pub(crate) fn take_descriptor(&self, page: PageNo) -> DescriptorId {
        loop {
            if let Some(id) = self.descriptors.take(page) {
                return id;
            }
            deepheap_sys::thread::yield_now();
        }
    }

    /// Reserves one page of the page buffer, evicting in this thread while there is none. When
    /// changed objects cannot be written it gives up only after a look at every cached one, for
    /// clean ones may stand behind them, or after `patience` batches that were refused.
    pub(crate) fn make_room(&self, moves: &mut Moves, patience: usize) -> Result<(), FaultError> {
        if self.page_buffer.try_reserve(1) {
            return Ok(());
        }
        let start_ns = clock::monotonic_ns();
        let made = self.make_room_by_evicting(moves, patience);
        moves.stall_ns += clock::monotonic_ns() - start_ns;
        made
    }

    fn make_room_by_evicting(&self, moves: &mut Moves, patience: usize) -> Result<(), FaultError> {
        const FRUITLESS_MAX: u32 = 256;
        let (mut fruitless, mut refused) = (0, 0);
        while !self.page_buffer.try_reserve(1) {
            if fruitless > FRUITLESS_MAX || self.evictable() == 0 {
                // Nothing can be evicted, or all is on its way: rather one page too many than a
                // deadlock.
                self.page_buffer.adopt(1);
                return Ok(());
            }
            // Asked before: a child that ends meanwhile gives back the space we do not find.
            let withheld = self.store.is_pinned();
            match self.evict_directly(moves) {
                Ok(true) => {
                    fruitless = 0;
                    continue;
                }
                Ok(false) => fruitless += 1,
                Err(StoreError::Full) if withheld => return Err(FaultError::Withheld),
                Err(error)
                    if refused >= patience || refused * DIRECT_PAGES > self.cache.objects() =>
                {
                    return Err(FaultError::NoRoom(error));
                }
                Err(_) => refused += 1,
            }
            deepheap_sys::thread::yield_now();
        }
        Ok(())
    }
}

/// Makes a page of an object: its bytes, then zeros.
///
/// # Safety
/// `page` is a writable page of the caller's, `object` has `bytes` bytes, at most a page.
pub(crate) unsafe fn fill_page(page: *mut u8, object: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        page.copy_from_nonoverlapping(object, bytes);
        page.add(bytes).write_bytes(0, PAGE - bytes);
    }
}
