//! Fill: pages come into RAM, for whoever faults and for whoever asks ahead.
//!
//! 1. Room is counted, and made if there is none (`evict`); no shard is owned then.
//! 2. The page's shard is owned. If the page has come meanwhile, that is all.
//! 3. Missing pages behind it come along in a scan, as far as their shards are free.
//! 4. The file is read into a buffer. Each page gets its entry, with its hash, and then its RAM:
//!    who dies in between leaves an entry too many, which is found, never a page too many. It comes
//!    into the memory file, from where the kernel maps it when it is touched; where that would not
//!    leave the page-table entry clean (`comes_clean`), and in a scan, it comes with an entry
//!    (`UFFDIO_COPY`).
//!
//! Guarantees: a page is filled by one thread of one process, from the file, and never over another
//! one.
//! Never: allocates, in `fill`; touches the map's memory.
//! Threads: any; `fill` also in a signal handler, with all signals blocked.

use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;
use deepheap_sys::lock::Lock;
use deepheap_sys::ring::{Request, Ring};
use deepheap_sys::userfaultfd::Copy;
use std::os::fd::AsRawFd;

use crate::backing::{Backing, ReadError};
use crate::control::{CHUNK_PAGES, ENTRIES};
use crate::evict::NoRoom;
use crate::ownership::Owned;
use crate::region::Region;
use crate::staging::{BUFFER_PAGES, Buffer};
use crate::streams::WINDOW_MAX;

/// Shards of the pages of a scan that are read together: their chunks, and one more if the first
/// page is in the middle of its own.
const SHARDS_OF_SCAN: usize = 5;
/// From so many neighbours on they come by `UFFDIO_COPY`, unless the kernel tells what was written,
/// which it makes of them: it does not take the lock of the memory file's inode, and they are
/// mapped. That their entries are dirty costs little where they leave together (`unmap`).
pub(crate) const FILLED_TOGETHER: u32 = CHUNK_PAGES;
/// Rings of the process: batches at a time.
const RINGS: usize = 4;

static RING_POOL: [Lock<Option<Ring>>; RINGS] = [const { Lock::new(None) }; RINGS];

/// Why a page cannot come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillError {
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

impl From<NoRoom> for FillError {
    fn from(_: NoRoom) -> Self {
        FillError::NoRoom
    }
}

/// Shards that a thread owns together. It waits for the first one only.
pub(crate) struct Owners<'a, const N: usize> {
    owned: [Option<(Owned<'a>, usize)>; N],
    /// The last plan failed for want of a pipe.
    had_no_pipe: bool,
}

impl<'a, const N: usize> Owners<'a, N> {
    pub(crate) fn new() -> Self {
        Owners { owned: [const { None }; N], had_no_pipe: false }
    }

    /// The owned shard of a page.
    pub(crate) fn of(&self, region: &Region, page: u32) -> Option<&Owned<'a>> {
        let index = region.control.shard_of(page);
        self.owned.iter().flatten().map(|(owned, _)| owned).find(|owned| owned.index == index)
    }

    /// The owned shard of a page that has an entry, and the entry.
    fn entry_of(&self, region: &Region, page: u32) -> Option<(&Owned<'a>, usize)> {
        let owned = self.of(region, page)?;
        Some((owned, owned.find(page)?))
    }

    /// Adds a shard.
    fn add(&mut self, owned: Owned<'a>) {
        if let Some(free) = self.owned.iter_mut().find(|place| place.is_none()) {
            *free = Some((owned, 0));
        }
    }

    /// Owns the shard of a page that is not there. False: it is, or the shard is another's.
    pub(crate) fn claim(&mut self, region: &'a Region, page: u32) -> bool {
        if self.of(region, page).is_none() {
            if self.owned.iter().all(Option::is_some) {
                return false;
            }
            let Some(owned) = region.try_own(region.control.shard_of(page)) else { return false };
            self.add(owned);
        }
        // Not behind the end: the file may have been cut before the shard was owned.
        self.entry_of(region, page).is_none() && page < region.mapped_pages()
    }

    /// Plans to fill a page: its shard is owned or free, it is not there, and there is a place for
    /// its entry. Places are made before any of the planned entries exists.
    pub(crate) fn plan(&mut self, region: &'a Region, page: u32) -> bool {
        self.had_no_pipe = false;
        if !self.claim(region, page) {
            return false;
        }
        let index = region.control.shard_of(page);
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
}

impl Region {
    /// Brings the page into RAM, if it is not there, and up to `window` pages from it on. Answers
    /// how many came.
    pub(crate) fn fill(&self, page: u32, window: u32) -> Result<u32, FillError> {
        let end = self.mapped_pages();
        if page >= end {
            return Err(FillError::Beyond);
        }
        let budget = self.control.header().budget_pages.load(Relaxed) as u32;
        let window = window.min(end - page).min(budget / 8).clamp(1, WINDOW_MAX);
        let room = self.make_room(u64::from(window));
        let once = || {
            // Before any shard: who waits for a buffer must not keep others from ending.
            let buffer = Buffer::take();
            self.fill_counted(page, window, &buffer)
        };
        let filled = room.map_err(FillError::from).and_then(|()| match once() {
            // With a log, what is committed makes room in its index for what is not.
            Err(FillError::NoRoom) if self.log().is_some_and(|log| log.fold_all()) => once(),
            answer => answer,
        });
        let came = filled.unwrap_or(0);
        self.uncount(u64::from(window - came));
        filled
    }

    fn fill_counted(&self, page: u32, window: u32, buffer: &Buffer) -> Result<u32, FillError> {
        let mut owners = Owners::<SHARDS_OF_SCAN>::new();
        let first = self.own(self.control.shard_of(page));
        if let Some(entry) = first.find(page) {
            if self.is_in_memory(page) {
                return Ok(0);
            }
            // The program has dropped it (MADV_REMOVE).
            first.remove(entry);
            self.uncount(1);
        }
        if page >= self.mapped_pages() {
            return Err(FillError::Beyond);
        }
        owners.add(first);
        while !owners.plan(self, page) {
            // Who has a pipe needs nothing of ours to end.
            if !owners.had_no_pipe {
                return Err(FillError::NoRoom);
            }
        }
        let mut count = 1;
        while count < window && owners.plan(self, page + count) {
            count += 1;
        }
        let (offset, file_bytes) = (Self::offset_of(page), self.file_bytes());
        // SAFETY: the buffer is ours, and has room for a window.
        let read = |pages| unsafe { self.backing.read(buffer.page(0), pages, offset, file_bytes) };
        if read(count as usize).is_err() {
            // The others may be to blame.
            count = 1;
            read(1).map_err(FillError::Read)?;
        }
        let count = self.apply_all(&owners, page, count, buffer, 0)?;
        self.install(&owners, page, count, buffer, 0)?;
        self.control.header().counts.pages_read.fetch_add(u64::from(count), Relaxed);
        Ok(count)
    }

    /// Puts over what was read of planned pages, from the buffer's page `at` on, what the log has
    /// of them; answers how many could be, from the first on.
    fn apply_all<const N: usize>(
        &self,
        owners: &Owners<'_, N>,
        page: u32,
        count: u32,
        buffer: &Buffer,
        at: usize,
    ) -> Result<u32, FillError> {
        if self.log().is_none() {
            return Ok(count);
        }
        for index in 0..count {
            let Some(owned) = owners.of(self, page + index) else { return Ok(index) };
            let into = buffer.page(at + index as usize);
            // SAFETY: pages of the buffer, which is ours.
            match unsafe { owned.apply_logged(page + index, into, buffer.scratch()) } {
                Ok(()) => {}
                // The others may be to blame.
                Err(_) if index > 0 => return Ok(index),
                Err(error) => return Err(FillError::Read(error)),
            }
        }
        Ok(count)
    }

    /// Makes entries for planned pages and brings them in, from the buffer's page `at` on.
    fn install<const N: usize>(
        &self,
        owners: &Owners<'_, N>,
        page: u32,
        count: u32,
        buffer: &Buffer,
        at: usize,
    ) -> Result<(), FillError> {
        let bytes = buffer.page(at);
        for index in 0..count {
            let Some(owned) = owners.of(self, page + index) else { return Err(FillError::NoRoom) };
            // SAFETY: a page of the buffer, which nobody changes now.
            unsafe {
                let bytes = bytes.add(index as usize * PAGE);
                owned.insert(page + index, self.hash(bytes));
                owned.note_pieces(page + index, bytes);
            }
        }
        let came = if self.watch.comes_clean && (count < FILLED_TOGETHER || self.watch.is_tracked) {
            // They come into nobody's page table: who touches one has the kernel map it, clean.
            // Unlike `UFFDIO_COPY` this would replace a page that is there. None is: a page that is
            // in RAM has an entry (`entries`), these had none, and only the owner of the shard
            // brings one, for a touch of a hole is a fault of ours in every process.
            buffer.copy_to(at, count as usize, &self.memory, Self::offset_of(page)) as u32
        } else {
            let to = self.base + page as usize * PAGE;
            // SAFETY: pages of the map; the buffer is so long, and nobody changes it now.
            match unsafe { self.watch.uffd.copy(to, bytes, count as usize * PAGE) } {
                Ok(Copy::Done) => count,
                Ok(Copy::Partial(done)) => (done / PAGE) as u32,
                Ok(Copy::Exists) | Err(_) => 0,
            }
        };
        for index in came..count {
            let to = self.base + (page + index) as usize * PAGE;
            // SAFETY: as above.
            match unsafe { self.watch.uffd.copy(to, bytes.add(index as usize * PAGE), PAGE) } {
                Ok(Copy::Done) => {}
                // A page without an entry was there: nobody knows what the file has of it, so it
                // counts as changed.
                Ok(_) => {
                    if let Some((owned, entry)) = owners.entry_of(self, page + index) {
                        owned.distrust(entry);
                    }
                }
                Err(errno) => {
                    for missing in (page + index..page + count).filter(|it| !self.is_in_memory(*it))
                    {
                        if let Some((owned, entry)) = owners.entry_of(self, missing) {
                            owned.remove(entry);
                        }
                    }
                    return Err(FillError::Install(errno));
                }
            }
        }
        Ok(())
    }

    /// Brings pages into RAM by reads side by side: those of up to `BUFFER_PAGES` pages, in
    /// ascending order, that are not there and whose shards are free. Answers which were passed
    /// over since theirs are not, a bit for each.
    pub(crate) fn fill_many(&self, pages: &[u32]) -> Result<u64, FillError> {
        let pages = &pages[..pages.len().min(BUFFER_PAGES)];
        let counted = pages.len() as u64;
        let room = self.make_room(counted);
        let filled = room.map_err(FillError::from).map(|()| {
            let buffer = Buffer::take();
            // Now, for nothing may allocate while shards are owned.
            let mut requests = Vec::with_capacity(BUFFER_PAGES);
            self.fill_planned(pages, &buffer, &mut requests)
        });
        self.uncount(counted - u64::from(filled.map_or(0, |(came, _)| came)));
        filled.map(|(_, passed)| passed)
    }

    fn fill_planned(
        &self,
        pages: &[u32],
        buffer: &Buffer,
        requests: &mut Vec<Request<'_>>,
    ) -> (u32, u64) {
        const _: () = assert!(BUFFER_PAGES <= u64::BITS as usize);
        let mut owners = Owners::<BUFFER_PAGES>::new();
        let (mut planned, mut count, mut passed) = ([0u32; BUFFER_PAGES], 0, 0);
        for (index, &page) in pages.iter().enumerate() {
            if page < self.mapped_pages() && owners.plan(self, page) {
                planned[count] = page;
                count += 1;
            } else if owners.of(self, page).is_none() {
                passed |= 1 << index;
            }
        }
        // Neighbours are read together. Each run: its first page's place, and how many they are.
        let (mut runs, mut run_count) = ([(0, 0); BUFFER_PAGES], 0);
        for (index, &page) in planned[..count].iter().enumerate() {
            if index > 0 && planned[index - 1] + 1 == page {
                runs[run_count - 1].1 += 1;
            } else {
                runs[run_count] = (index, 1);
                run_count += 1;
            }
        }
        let runs = &runs[..run_count];
        for &(first, length) in runs {
            let at = self.backing.place_of(Self::offset_of(planned[first]));
            // SAFETY: pages of the buffer for each request, until this returns.
            requests.push(unsafe { Request::read_raw(at, buffer.page(first), length * PAGE) });
        }
        let mut came = 0;
        self.read_each(requests, |index, got| {
            let (first, length) = runs[index];
            let page = planned[first];
            let whole = self.end_read(&owners, page, length, buffer, first, got);
            came += self.bring_planned(&owners, page, whole, buffer, first);
        });
        self.control.header().counts.pages_read.fetch_add(u64::from(came), Relaxed);
        (came, passed)
    }

    /// Reads side by side, if this process may and a ring is free, and calls `act` for each
    /// request, by its index, with the bytes that were read; with a negative number where they were
    /// not. Others are read meanwhile.
    pub(crate) fn read_each(&self, requests: &mut [Request<'_>], mut act: impl FnMut(usize, i32)) {
        let fd = self.backing.file().as_raw_fd();
        let mut ring = RING_POOL.iter().find_map(Lock::try_lock);
        let ring = ring.as_mut().and_then(|ring| (**ring).as_mut());
        match ring.filter(|_| requests.len() > 1) {
            Some(ring) => ring.do_each(fd, requests, act),
            None => (0..requests.len()).for_each(|index| act(index, -1)),
        }
    }

    /// Ends a read of `length` pages, whose shards are owned, into the buffer's pages from `first`
    /// on, of which `got` bytes were read; negative: they are read now. Answers how many are whole,
    /// the log's part as well, from the first on. Who touches one of the others is told why it
    /// cannot come.
    pub(crate) fn end_read<const N: usize>(
        &self,
        owners: &Owners<'_, N>,
        page: u32,
        length: usize,
        buffer: &Buffer,
        first: usize,
        got: i32,
    ) -> u32 {
        let (offset, file_bytes) = (Self::offset_of(page), self.file_bytes());
        let into = buffer.page(first);
        // SAFETY: pages of the buffer; no request for them is under way any more.
        let is_read = unsafe {
            match usize::try_from(got) {
                Ok(got) => Backing::check(into, length, got, offset, file_bytes),
                Err(_) => self.backing.read(into, length, offset, file_bytes),
            }
        };
        let apply = |()| self.apply_all(owners, page, length as u32, buffer, first).unwrap_or(0);
        is_read.map_or(0, apply)
    }

    /// Brings in `count` planned neighbours from the buffer's page `first` on; answers how many
    /// came.
    pub(crate) fn bring_planned<const N: usize>(
        &self,
        owners: &Owners<'_, N>,
        page: u32,
        count: u32,
        buffer: &Buffer,
        first: usize,
    ) -> u32 {
        match self.install(owners, page, count, buffer, first) {
            Ok(()) => count,
            // Those before the one that the kernel refused are there.
            Err(_) => (page..page + count).filter(|page| self.is_in_memory(*page)).count() as u32,
        }
    }
}

/// Makes the rings, if this process may have any. Once, under a lock of the caller's.
pub fn prepare_rings() {
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
pub unsafe fn forget_rings() {
    for place in &RING_POOL {
        // SAFETY: whoever held it is not in this process.
        unsafe { place.force_unlock() };
        // The memory of a ring is shared with the parent: dropping it only unmaps and closes.
        *place.lock() = None;
    }
}
