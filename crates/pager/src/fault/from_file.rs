//! From file: pages that are a file's, and the first touch of one.
//!
//! Guarantees: what is installed is what the file has now; a page that cannot be read stays the
//! file's.
//! Never: allocates, touches managed memory in a fault.
//! Threads: `install_from_file` is the faulting thread's, in its SIGBUS handler, inside the gate.
//! The rest is anybody's with all signals blocked, outside the gate, one at a time.

use core::ops::Range;

use deepheap_heap::{FreedRun, PageNo};
use deepheap_policy::sequence::Sequences;
use deepheap_residency::ownership::Found;
use deepheap_residency::page_buffer::Reserved;
use deepheap_residency::staging::StagingBuffer;
use deepheap_sys::files::direct_file::DirectFile;
use deepheap_sys::threads::signals::Blocked;

use crate::PAGE;
use crate::fault::report::{FaultError, FaultKind, FaultReport};
use crate::fault::{end_fresh, upwards};
use crate::gate::Level;
use crate::pager::Pager;

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
        let are_zero = self
            .residency
            .ownership
            .table
            .next_object(first.index(), first.index() + pages)
            .is_none();
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
            match self.residency.ownership.look(page) {
                Found::Zero => {
                    // It stays `Zero`, so it needs no promise.
                    let Some(owned) = self.residency.ownership.claim_fresh(page) else { continue };
                    self.sources.take(page);
                    return self.residency.ownership.zero(owned);
                }
                // A copy of the file's would be given back to it.
                Found::Resident(seen) => {
                    let Some(owned) = self.residency.ownership.claim_resident(page, seen.id())
                    else {
                        continue;
                    };
                    self.sources.take(page);
                    return self.residency.ownership.put_back(owned);
                }
                Found::OnItsWay(seen) => self.residency.ownership.wait(seen),
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
        sequences: &mut Sequences,
        reserved: &mut Reserved<'_>,
    ) -> Result<Option<FaultReport>, FaultError> {
        // The pages behind its end may be another file's.
        let most = || upwards(page, sequences).min(self.sources.pages_from(page));
        let owned = self.claim_run(page, true, reserved, most)?;
        let Some(mut owned) = owned else { return Ok(None) };
        let claimed = owned.len();
        let (buffer, count) = self.stage_for_file(claimed);
        let mut give_back = |unread: Range<usize>| {
            unread.for_each(|index| self.residency.to_zero(owned.take(index)));
        };
        give_back(count..claimed);
        reserved.shrink(count);
        // SAFETY: the buffer is ours alone, and so long.
        if let Err(errno) = unsafe { self.sources.read(page, count, buffer.address()) } {
            give_back(0..count);
            return Err(FaultError::File(errno));
        }
        for index in 0..count {
            // SAFETY: a page of the buffer, which was just filled.
            let bytes =
                unsafe { core::slice::from_raw_parts(buffer.address().add(index * PAGE), PAGE) };
            let hash = self.residency.store.hash(bytes);
            self.residency.ownership.descriptor(owned.id(index)).set_hash(hash);
            self.sources.take_copy(PageNo(page.0 + index as u32));
        }
        let copied = self.install(page, buffer.address(), &mut owned, 0..count, reserved);
        for index in copied.pages..count {
            self.sources.give_back(PageNo(page.0 + index as u32));
            self.residency.to_zero(owned.take(index));
        }
        let installed = end_fresh(page, &copied, sequences)?;
        Ok(Some(FaultReport::of(FaultKind::Stored, installed as u32 - 1, installed as i16)))
    }

    /// A buffer for up to so many pages, and for how many there is room.
    fn stage_for_file(&self, pages: usize) -> (StagingBuffer<'_>, usize) {
        if pages > 1 {
            let buffer = self.residency.staging.windows.take();
            if self.residency.try_stage(&buffer, pages * PAGE) {
                return (buffer, pages);
            }
        }
        (self.residency.take_staging(PAGE), 1)
    }
}
