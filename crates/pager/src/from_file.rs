//! From file: pages that are a file's, and the first touch of one.
//!
//! Guarantees: what is installed is what the file has now; a page that cannot be read stays the
//! file's.
//! Never: allocates, touches managed memory in a fault.
//! Threads: `install_from_file` is the faulting thread's, in its SIGBUS handler, inside the gate.
//! The rest is anybody's with all signals blocked, outside the gate, one at a time.

use core::ops::Range;

use deepheap_heap::{FreedRun, PageNo};
use deepheap_sys::direct_file::DirectFile;
use deepheap_sys::signals::Blocked;

use crate::PAGE;
use crate::fault_report::{FaultError, FaultKind, Served};
use crate::frames::FRESH_MAX;
use crate::gate::Level;
use crate::ownership::{Found, Owned, OwnedList};
use crate::pager::Pager;
use crate::policy::sequence::{Direction, Sequences};
use crate::staging::StagingBuffer;
use crate::window::Window;

impl Pager {
    /// From now on the pages, which the caller has and the program does not know yet, are read from
    /// the file when they are touched first. False: there are as many files as can be, or some of
    /// the pages are memory already and stay that.
    pub fn add_source(&self, first: PageNo, pages: usize, file: DirectFile, bytes: u64) -> bool {
        // A page of a plain span may be there without an entry: the kernel's large pages come as a
        // whole.
        self.take_over_spans();
        if !self.sources.add(first, pages, file, bytes) {
            return false;
        }
        // Others may be there as fresh neighbours of faults next door. From here on no more come.
        self.discard_resident(FreedRun { first, pages });
        let passage = self.gate.enter(Level::Mover);
        let are_zero =
            self.ownership.table.next_object(first.index(), first.index() + pages).is_none();
        drop(passage);
        if !are_zero && self.forget_source(first).is_some() {
            self.discard_resident(FreedRun { first, pages });
            self.end_source(first, pages);
        }
        are_zero
    }

    /// From now on no page is a file's that begins there; `end_source` once all of them have been
    /// discarded. Answers how many there are.
    pub fn forget_source(&self, first: PageNo) -> Option<usize> {
        self.sources.forget(first)
    }

    /// Ends the file of pages that were forgotten and discarded.
    pub fn end_source(&self, first: PageNo, pages: usize) {
        self.sources.end(first, pages);
    }

    /// Sees to it that no page of the run is a file's, or ever will be: `Zero` stands for zeros.
    pub fn part_from_files(&self, run: FreedRun) {
        if !self.sources.cover(run.first, run.pages) {
            return;
        }
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        for page in run.first.index()..run.first.index() + run.pages {
            self.part_from_file(PageNo::from(page));
        }
    }

    fn part_from_file(&self, page: PageNo) {
        loop {
            match self.ownership.look(page) {
                Found::Zero => {
                    // It stays `Zero`, so it needs no promise.
                    let Some(owned) = self.ownership.claim_fresh(page) else { continue };
                    self.sources.take(page);
                    return self.ownership.zero(owned);
                }
                // A copy of the file's would be given back to it.
                Found::Resident(seen) => {
                    let Some(owned) = self.ownership.claim_seen(page, seen) else { continue };
                    self.sources.take(page);
                    return self.ownership.put_back(owned);
                }
                Found::OnItsWay(seen) => self.ownership.wait(seen),
                // It was changed, and is the process's own.
                Found::Stored(_) | Found::Cached(_) | Found::Lost => return,
            }
        }
    }

    /// Reads the page, and in a scan those after it, and installs them. None: another thread was
    /// faster.
    pub(crate) fn install_from_file(
        &self,
        page: PageNo,
        sequences: &mut Sequences<'_>,
    ) -> Result<Option<Served>, FaultError> {
        self.promise(page).map_err(FaultError::NoPromise)?;
        let Some(first) = self.ownership.claim_fresh(page) else {
            self.end_promise(page);
            return Ok(None);
        };
        if !self.sources.is_of_file(page) {
            self.end_as_zero(first);
            return Ok(None);
        }
        let mut owned = OwnedList::<FRESH_MAX>::new();
        owned.push(first);
        let window = Window::of(page, sequences.fresh());
        let upwards = if window.direction == Direction::Up { window.count } else { 1 };
        // What comes behind its end may be another file's.
        let most = upwards.min(FRESH_MAX).min(self.sources.pages_from(page));
        while owned.len() < most && self.frames.page_buffer.try_reserve(1) {
            match self.claim_of_file(PageNo(page.0 + owned.len() as u32)) {
                Some(one) => owned.push(one),
                None => {
                    self.frames.page_buffer.unreserve(1);
                    break;
                }
            }
        }
        let claimed = owned.len();
        let (buffer, count) = self.stage_for_file(claimed);
        self.give_back_unread(&mut owned, count..claimed);
        // SAFETY: the buffer is ours alone, and so long.
        if let Err(errno) = unsafe { self.sources.read(page, count, buffer.address()) } {
            self.give_back_unread(&mut owned, 1..count);
            self.end_as_zero(owned.take(0));
            return Err(FaultError::File(errno));
        }
        for index in 0..count {
            // SAFETY: a page of the buffer, which was just filled.
            let bytes =
                unsafe { core::slice::from_raw_parts(buffer.address().add(index * PAGE), PAGE) };
            let hash = self.store.hash(bytes);
            self.ownership.descriptor(owned.id(index)).set_hash(hash);
            self.sources.take_copy(PageNo(page.0 + index as u32));
        }
        let copied = self.install(page, buffer.address(), &mut owned, 0..count);
        for index in copied.pages..count {
            self.sources.give_back(PageNo(page.0 + index as u32));
            self.end_as_zero(owned.take(index));
        }
        let installed = self.end_fresh(page, count, &copied, sequences)?;
        let (ahead, passed) = (installed as u32 - 1, installed as i16);
        Ok(Some(Served { kind: FaultKind::Stored, ahead, passed }))
    }

    /// Claims a page that is the file's, if its promise is at hand.
    fn claim_of_file(&self, page: PageNo) -> Option<Owned> {
        if !self.sources.is_of_file(page) || !self.try_promise(page) {
            return None;
        }
        let Some(owned) = self.ownership.claim_fresh(page) else {
            self.end_promise(page);
            return None;
        };
        if self.sources.is_of_file(page) {
            return Some(owned);
        }
        self.end_as_zero(owned);
        None
    }

    /// A buffer for up to so many pages, and for how many there is room.
    fn stage_for_file(&self, pages: usize) -> (StagingBuffer<'_>, usize) {
        if pages > 1 {
            let buffer = self.staging.windows.take();
            if self.try_stage(&buffer, pages * PAGE) {
                return (buffer, pages);
            }
        }
        (self.take_staging(PAGE), 1)
    }

    /// Ends these members, with their reservations; their pages stay the file's.
    fn give_back_unread(&self, owned: &mut OwnedList<FRESH_MAX>, members: Range<usize>) {
        let count = members.len();
        for index in members {
            self.end_as_zero(owned.take(index));
        }
        self.frames.page_buffer.unreserve(count);
    }
}
