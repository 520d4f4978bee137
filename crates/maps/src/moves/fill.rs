//! Fill: pages come into RAM, for threads that fault and for threads that read ahead.
//!
//! 1. Room is counted, and made if there is none (`evict`); no shard is owned then.
//! 2. The page's shard is owned. If the page has come meanwhile, that is all.
//! 3. Missing pages behind it come along in a scan, as far as their shards are free.
//! 4. The file is read into a buffer. Each page gets its entry, with its hash, and then its RAM:
//!    a process that dies in between leaves an entry too many, which is found, never a page too
//!    many. The page comes into the memory file, from where the kernel maps it when it is touched.
//!    Where that would not leave the page-table entry clean (`comes_clean`), and in a scan, it
//!    comes with an entry (`UFFDIO_COPY`).
//!
//! Guarantees: a page is filled by one thread of one process, from the file, and never over another
//! one.
//! Never: allocates; touches the map's memory.
//! Threads: any; `fill` also in a signal handler, with all signals blocked.

use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;
use deepheap_sys::files::ring::{Request, Ring};
use deepheap_sys::memory::userfaultfd::Copy;
use deepheap_sys::threads::lock::Lock;
use std::os::fd::AsRawFd;

use crate::moves::staging::{BUFFER_PAGES, Buffer, SCRATCH_PAGES};
use crate::region::Region;
use crate::region::backing::{Backing, ReadError};
use crate::tables::control::{CHUNK_PAGES, ENTRIES};
use crate::tables::ownership::Owned;
use crate::tables::streams::WINDOW_MAX;

/// Shards of the pages of a scan that are read together: their chunks, and one more if the first
/// page is in the middle of its own.
const SHARDS_OF_SCAN: usize = 5;
/// So many neighbours, or more, come by `UFFDIO_COPY`: it does not take the lock of the memory
/// file's inode, and maps them. That their entries are dirty costs little where they leave together
/// (`unmap`). Not where the kernel tracks writes: it would count them as written.
pub(crate) const FILLED_TOGETHER: u32 = CHUNK_PAGES;
/// Rings of the process: batches at a time.
const RINGS: usize = 4;

static RING_POOL: [Lock<Option<Ring>>; RINGS] = [const { Lock::new(None) }; RINGS];

/// Why a page cannot come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillError {
    /// It is behind the end of the file.
    Beyond,
    /// The file cannot be read.
    Read(ReadError),
    /// RAM is full, and nothing can leave it.
    NoRoom,
    /// The kernel cannot map it.
    Install(Errno),
    /// It is there, and the program faults all the same.
    Stuck,
}

/// Neighbours that are read together, and which page of the buffer the first one comes to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Run {
    pub(crate) page: u32,
    pub(crate) count: u32,
    pub(crate) at: usize,
}

/// Pages on their way: the shards that a thread owns together for them, of which it waits for the
/// first one only, and the buffer that they are read into.
pub(crate) struct Filling<'a, const N: usize> {
    region: &'a Region,
    owned: [Option<(Owned<'a>, usize)>; N],
    /// The last plan failed for want of a pipe.
    had_no_pipe: bool,
    pub(crate) buffer: Buffer,
}

impl<'a, const N: usize> Filling<'a, N> {
    /// Waits for a buffer; before any shard is owned, for it must not keep others from ending.
    pub(crate) fn new(region: &'a Region) -> Self {
        let owned = [const { None }; N];
        Filling { region, owned, had_no_pipe: false, buffer: Buffer::take() }
    }

    /// The owned shard of a page.
    pub(crate) fn of(&self, page: u32) -> Option<&Owned<'a>> {
        let index = self.region.tables.shard_of(page);
        self.owned.iter().flatten().map(|(owned, _)| owned).find(|owned| owned.index == index)
    }

    /// The owned shard of a page that has an entry, and the entry.
    fn entry_of(&self, page: u32) -> Option<(&Owned<'a>, usize)> {
        let owned = self.of(page)?;
        Some((owned, owned.find(page)?))
    }

    /// Adds a shard.
    fn add(&mut self, owned: Owned<'a>) {
        if let Some(free) = self.owned.iter_mut().find(|place| place.is_none()) {
            *free = Some((owned, 0));
        }
    }

    /// Owns the shard of a page that is not there. False: it is, or the shard is another's.
    pub(crate) fn claim(&mut self, page: u32) -> bool {
        if self.of(page).is_none() {
            if self.owned.iter().all(Option::is_some) {
                return false;
            }
            let shard = self.region.tables.shard_of(page);
            let Some(owned) = self.region.try_own(shard) else { return false };
            self.add(owned);
        }
        // Not behind the end: the file may have been cut before the shard was owned.
        self.entry_of(page).is_none() && page < self.region.mapped_pages()
    }

    /// Plans to fill a page: its shard is owned or free, it is not there, and there is a place for
    /// its entry. Places are made before any of the planned entries exists.
    pub(crate) fn plan(&mut self, page: u32) -> bool {
        self.had_no_pipe = false;
        if !self.claim(page) {
            return false;
        }
        let index = self.region.tables.shard_of(page);
        let mut all = self.owned.iter_mut().flatten();
        let Some((owned, planned)) = all.find(|(owned, _)| owned.index == index) else {
            return false;
        };
        while owned.used() + *planned >= ENTRIES {
            let settled = owned.evict_oldest();
            self.had_no_pipe = settled.has_no_pipe;
            if settled.gone == 0 {
                return false;
            }
        }
        *planned += 1;
        true
    }

    /// Fills a page that is not there, and up to `window` pages from it on; answers how many came.
    fn fill(mut self, page: u32, window: u32) -> Result<u32, FillError> {
        let region = self.region;
        let first = region.own(region.tables.shard_of(page));
        if let Some(entry) = first.find(page) {
            if region.is_in_memory(page) {
                return Ok(0);
            }
            // The program has dropped it (MADV_REMOVE).
            first.remove(entry);
            region.uncount(1);
        }
        if page >= region.mapped_pages() {
            return Err(FillError::Beyond);
        }
        self.add(first);
        while !self.plan(page) {
            // A thread that has a pipe needs nothing of ours to end.
            if !self.had_no_pipe {
                return Err(FillError::NoRoom);
            }
        }
        let mut run = Run { page, count: 1, at: 0 };
        while run.count < window && self.plan(page + run.count) {
            run.count += 1;
        }
        if self.read(run).is_err() {
            // The others may be to blame.
            run.count = 1;
            self.read(run).map_err(FillError::Read)?;
        }
        run.count = self.apply_log(run)?;
        self.install(run)?;
        region.tables.header().counts.pages_read.fetch_add(u64::from(run.count), Relaxed);
        Ok(run.count)
    }

    /// Reads planned pages of the file.
    fn read(&self, Run { page, count, at }: Run) -> Result<(), ReadError> {
        let (offset, file_bytes) = (Region::offset_of(page), self.region.file_bytes());
        let into = self.buffer.page(at);
        // SAFETY: so many pages of the buffer, which is ours.
        unsafe { self.region.backing.read(into, count as usize, offset, file_bytes) }
    }

    /// Reads runs of pages whose shards are owned side by side, if this process may and a ring is
    /// free. Calls `act` for each, by its index, with how many of its pages are whole, the log's
    /// part as well, from the first on; others are read meanwhile. A thread that touches one that
    /// is not is told why it cannot come.
    pub(crate) fn read_each(&self, runs: &[Run], mut act: impl FnMut(usize, u32)) {
        let backing = &self.region.backing;
        let mut requests: [_; BUFFER_PAGES] = core::array::from_fn(|_| Request::read(0, &mut []));
        let requests = &mut requests[..runs.len()];
        for (request, &Run { page, count, at }) in requests.iter_mut().zip(runs) {
            let from = backing.place_of(Region::offset_of(page));
            let (into, length) = (self.buffer.page(at), count as usize * PAGE);
            // SAFETY: pages of the buffer for each request, until this returns.
            *request = unsafe { Request::read_raw(from, into, length) };
        }
        // Of a negative number of bytes nothing was read.
        let mut end = |index: usize, got: i32| {
            let Run { page, count, at } = runs[index];
            let (into, offset) = (self.buffer.page(at), Region::offset_of(page));
            let file_bytes = self.region.file_bytes();
            let read = match usize::try_from(got) {
                // SAFETY: as above; the request for them is over.
                Ok(got) => unsafe { Backing::check(into, count as usize, got, offset, file_bytes) },
                Err(_) => self.read(runs[index]),
            };
            act(index, read.map_or(0, |()| self.apply_log(runs[index]).unwrap_or(0)));
        };
        let mut ring = RING_POOL.iter().find_map(Lock::try_lock);
        let ring = ring.as_mut().and_then(|ring| (**ring).as_mut());
        match ring.filter(|_| runs.len() > 1) {
            Some(ring) => ring.do_each(backing.file().as_raw_fd(), requests, end),
            None => (0..runs.len()).for_each(|index| end(index, -1)),
        }
    }

    /// Puts the log's records of planned pages over the bytes that were read; answers for how many
    /// pages that could be done, from the first on.
    fn apply_log(&self, Run { page, count, at }: Run) -> Result<u32, FillError> {
        let Some(log) = self.region.log() else { return Ok(count) };
        for index in 0..count {
            let Some(owned) = self.of(page + index) else { return Ok(index) };
            let logged = owned.log().and_then(|log| log.shard.logged(page + index));
            let Some(logged) = logged else { continue };
            let (into, scratch) = (self.buffer.page(at + index as usize), self.buffer.scratch());
            // SAFETY: pages of the buffer, which is ours.
            let (into, scratch) = unsafe {
                (
                    core::slice::from_raw_parts_mut(into, PAGE),
                    core::slice::from_raw_parts_mut(scratch, SCRATCH_PAGES * PAGE),
                )
            };
            match log.apply(page + index, logged, into, scratch) {
                Ok(()) => {}
                // The others may be to blame.
                Err(_) if index > 0 => return Ok(index),
                Err(error) => return Err(FillError::Read(error)),
            }
        }
        Ok(count)
    }

    /// Makes entries for planned pages and brings them in.
    fn install(&self, Run { page, count, at }: Run) -> Result<(), FillError> {
        let (region, bytes) = (self.region, self.buffer.page(at));
        for index in 0..count {
            let Some(owned) = self.of(page + index) else { return Err(FillError::NoRoom) };
            // SAFETY: a page of the buffer, which nobody changes now.
            unsafe {
                let bytes = bytes.add(index as usize * PAGE);
                owned.insert(page + index, region.hash(bytes));
                owned.note_pieces(page + index, bytes);
            }
        }
        let watch = &region.watch;
        let came = if watch.comes_clean && (count < FILLED_TOGETHER || watch.is_tracked) {
            // They come into nobody's page table: at the first touch the kernel maps one, clean.
            // Unlike `UFFDIO_COPY` this would replace a page that is there. None is: a page that is
            // in RAM has an entry (`entries`), these had none, and only the owner of the shard
            // brings one, for a touch of a hole is a fault of ours in every process.
            let offset = Region::offset_of(page);
            self.buffer.copy_to(at, count as usize, &region.memory, offset) as u32
        } else {
            let to = region.base + page as usize * PAGE;
            // SAFETY: pages of the map; the buffer is so long, and nobody changes it now.
            match unsafe { watch.uffd.copy(to, bytes, count as usize * PAGE) } {
                Ok(Copy::Done) => count,
                Ok(Copy::Partial(done)) => (done / PAGE) as u32,
                Ok(Copy::Exists) | Err(_) => 0,
            }
        };
        for index in came..count {
            let to = region.base + (page + index) as usize * PAGE;
            // SAFETY: as above.
            match unsafe { watch.uffd.copy(to, bytes.add(index as usize * PAGE), PAGE) } {
                Ok(Copy::Done) => {}
                // A page without an entry was there: nobody knows what the file has of it, so it
                // counts as changed.
                Ok(_) => {
                    if let Some((owned, entry)) = self.entry_of(page + index) {
                        owned.distrust(entry);
                    }
                }
                Err(errno) => {
                    let rest = page + index..page + count;
                    for missing in rest.filter(|page| !region.is_in_memory(*page)) {
                        if let Some((owned, entry)) = self.entry_of(missing) {
                            owned.remove(entry);
                        }
                    }
                    return Err(FillError::Install(errno));
                }
            }
        }
        Ok(())
    }

    /// Brings in planned pages; answers how many came.
    pub(crate) fn bring(&self, run: Run) -> u32 {
        match self.install(run) {
            Ok(()) => run.count,
            // Those before the one that the kernel refused are there.
            Err(_) => {
                let pages = run.page..run.page + run.count;
                pages.filter(|page| self.region.is_in_memory(*page)).count() as u32
            }
        }
    }
}

impl Filling<'_, BUFFER_PAGES> {
    /// See `fill_many`; answers also how many came.
    fn fill_free(mut self, pages: &[u32]) -> (u32, u64) {
        const _: () = assert!(BUFFER_PAGES <= u64::BITS as usize);
        let (mut runs, mut count) = ([Run::default(); BUFFER_PAGES], 0);
        let (mut at, mut passed) = (0, 0);
        for (index, &page) in pages.iter().enumerate() {
            // Two copies of one page would be two entries, and the second would come over stores.
            let is_of = |run: &Run| (run.page..run.page + run.count).contains(&page);
            if runs[..count].iter().any(is_of) {
                continue;
            }
            if self.plan(page) {
                match runs[..count].last_mut() {
                    Some(run) if run.page + run.count == page => run.count += 1,
                    _ => {
                        runs[count] = Run { page, count: 1, at };
                        count += 1;
                    }
                }
                at += 1;
            } else if self.of(page).is_none() {
                passed |= 1 << index;
            }
        }
        let mut came = 0;
        self.read_each(&runs[..count], |index, whole| {
            came += self.bring(Run { count: whole, ..runs[index] });
        });
        self.region.tables.header().counts.pages_read.fetch_add(u64::from(came), Relaxed);
        (came, passed)
    }
}

impl Region {
    /// Brings the page into RAM, if it is not there, and up to `window` pages from it on. Answers
    /// how many came.
    pub(crate) fn fill(&self, page: u32, window: u32) -> Result<u32, FillError> {
        let end = self.mapped_pages();
        if page >= end {
            return Err(FillError::Beyond);
        }
        let budget = self.tables.header().budget_pages.load(Relaxed) as u32;
        let window = window.min(end - page).min(budget / 8).clamp(1, WINDOW_MAX);
        let once = || Filling::<SHARDS_OF_SCAN>::new(self).fill(page, window);
        let mut filled = Err(FillError::NoRoom);
        if self.make_room(u64::from(window)) {
            filled = once();
            // With a log, what is committed makes room in its index for what is not.
            if filled == Err(FillError::NoRoom) && self.log().is_some_and(|log| log.fold_all()) {
                filled = once();
            }
        }
        let came = filled.unwrap_or(0);
        self.uncount(u64::from(window - came));
        filled
    }

    /// Brings pages into RAM by reads side by side: those of up to `BUFFER_PAGES` pages that are
    /// not there and whose shards are free; neighbours that are named in order by one read.
    /// Answers which were passed over since their shards are not free, a bit for each.
    pub(crate) fn fill_many(&self, pages: &[u32]) -> Result<u64, FillError> {
        let pages = &pages[..pages.len().min(BUFFER_PAGES)];
        let counted = pages.len() as u64;
        let has_room = self.make_room(counted);
        let filled = has_room.then(|| Filling::new(self).fill_free(pages));
        self.uncount(counted - u64::from(filled.map_or(0, |(came, _)| came)));
        filled.map(|(_, passed)| passed).ok_or(FillError::NoRoom)
    }
}

/// Makes the rings, if this process may have any. Once, under a lock of the caller's.
pub(crate) fn prepare_rings() {
    for place in &RING_POOL {
        let mut place = place.lock();
        if place.is_none() {
            *place = Ring::new(BUFFER_PAGES as u32).ok();
        }
    }
}

/// In the child of a fork: the parent's rings are not ours.
///
/// # Safety
/// The child has one thread, which is here.
pub(crate) unsafe fn forget_rings() {
    for place in &RING_POOL {
        // SAFETY: the thread that held it is not in this process.
        unsafe { place.force_unlock() };
        // The memory of a ring is shared with the parent: dropping it only unmaps and closes.
        *place.lock() = None;
    }
}
