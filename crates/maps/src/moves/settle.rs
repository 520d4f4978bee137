//! Settle: the end of an eviction, by the thread that began it or by one that took over from the
//! dead.
//!
//! The pages of the journal have been put into the pipe, in this order, and holes were made of
//! them. The pipe is read into its slot in shared memory, not into memory of ours: if the process
//! dies, bytes that are no more in the pipe are in the slot, and the pipe knows how many they are.
//! So this may be begun again at any point.
//!
//! Pages are written from the slot, all of a batch side by side. A process that begins again writes
//! the pages that still differ from their entries: the same bytes to the same places. After it the
//! slot and the pages are another's. So a write that the dead process began must have ended before
//! the shard is taken over. A write that its thread waits for has: a killed thread ends its call
//! first. Joint writes have, too (`writers`).
//!
//! Guarantees: a page whose final bytes are not those of the file is written to the file, or put
//! back into RAM; only then its entry ends, and after all of them the journal.
//! Never: allocates.
//! Threads: the owner of the shard.

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::time::Duration;

use deepheap_sys::PAGE;
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::files::joint_writes::{JointWrite, WRITES_MAX};
use deepheap_sys::threads::thread;

use crate::moves::writers::with_writer;
use crate::region::Region;
use crate::tables::control::{BATCH, journal};
use crate::tables::ownership::Owned;

/// Between two tries to put a page back for which there is no memory.
const PAUSE: Duration = Duration::from_millis(5);
/// Tries; then the process ends, and another one goes on.
const TRIES: u32 = 2000;

/// The outcome of an eviction.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Pages that left RAM.
    pub gone: usize,
    /// Those among them that were written first.
    pub written: usize,
    /// Nothing was tried: all pipes are in use. The thread has slept for a moment.
    pub has_no_pipe: bool,
}

impl Owned<'_> {
    /// Ends the eviction in the journal, which is `TAKEN`. `may_be_there`: pages that are still in
    /// RAM have never left it, and stay.
    pub(crate) fn settle(&self, may_be_there: bool) -> Settled {
        let pipe = self.pipe.load(Relaxed) as usize;
        let count = (self.batch.load(Relaxed) as usize).min(BATCH);
        let slot = self.region.tables.slot(pipe);
        self.read_pipe(pipe, slot, count * PAGE);
        let pages: [u32; BATCH] =
            core::array::from_fn(|index| self.batch_pages[index].load(Relaxed));
        let mut settled = Settled::default();
        let (mut changed, mut changed_count) = ([0; BATCH], 0);
        for (index, &page) in pages[..count].iter().enumerate() {
            // A page that is still there has not left: its bytes in the slot may be old.
            if may_be_there && self.region.is_in_memory(page) {
                continue;
            }
            let is_changed = self.find(page).is_some_and(|entry| {
                // SAFETY: a page of the slot, which nobody changes now.
                self.hash(entry) != unsafe { self.region.hash(slot.add(index * PAGE)) }
                    || self.is_logged_in_parts(page)
            });
            if is_changed {
                changed[changed_count] = index;
                changed_count += 1;
            } else {
                self.end(page, &mut settled);
            }
        }
        let changed = &changed[..changed_count];
        let written = match self.log() {
            Some(log) => log.log_evicted(slot, &pages, changed),
            None => self.write_pages(slot, &pages, changed),
        };
        for &index in changed {
            if written >> index & 1 != 0 {
                settled.written += 1;
                self.end(pages[index], &mut settled);
            } else {
                self.put_back(slot.wrapping_add(index * PAGE), pages[index]);
            }
        }
        self.give_pipe_back(pipe);
        settled
    }

    /// Ends the journal, and gives back a pipe that is empty.
    fn give_pipe_back(&self, pipe: usize) {
        self.journal.store(journal::IDLE, Release);
        self.region.tables.header().pipe_users[pipe].store(0, Release);
    }

    /// Ends an eviction of which no page has left RAM.
    pub(crate) fn drop_pipe(&self, pipe: usize) {
        // SAFETY: the slot is ours, with the pipe.
        let emptied = unsafe { self.region.pipes[pipe].discard(self.region.tables.slot(pipe)) };
        if let Err(errno) = emptied {
            Region::broken("pipe", errno);
        }
        self.give_pipe_back(pipe);
    }

    /// Reads the rest of the pipe into the slot, behind the bytes that are there already.
    fn read_pipe(&self, pipe: usize, slot: *mut u8, bytes: usize) {
        let read = || -> Result<()> {
            let held = self.region.pipes[pipe].held_bytes()?;
            let done = bytes.checked_sub(held).ok_or(Errno::EPIPE)?;
            // SAFETY: the slot is that of our pipe, and long enough for all.
            unsafe { self.region.pipes[pipe].take(slot.add(done), held) }
        };
        if let Err(errno) = read() {
            Region::broken("pipe", errno);
        }
    }

    /// Writes pages of the slot, neighbours together, and all side by side if that can be; answers
    /// which are in the file, a bit for each.
    fn write_pages(&self, slot: *mut u8, pages: &[u32; BATCH], changed: &[usize]) -> u32 {
        const NONE: JointWrite = JointWrite { from: core::ptr::null(), bytes: 0, offset: 0 };
        const _: () = assert!(BATCH <= WRITES_MAX && BATCH < u32::BITS as usize);
        let (mut writes, mut count) = ([NONE; BATCH], 0);
        for run in changed.chunk_by(|&one, &next| one + 1 == next && pages[one] + 1 == pages[next])
        {
            writes[count] = JointWrite {
                from: slot.wrapping_add(run[0] * PAGE),
                bytes: run.len() * PAGE,
                offset: Region::offset_of(pages[run[0]]),
            };
            count += 1;
        }
        let (writes, file_bytes) = (&writes[..count], self.region.file_bytes());
        let (backing, counts) = (&self.region.backing, &self.region.tables.header().counts);
        // SAFETY: pages of the slot, which nobody changes now.
        let together =
            |writer: &mut _| unsafe { backing.write_together(writer, writes, file_bytes) };
        let together = if count < 2 { None } else { with_writer(together) }.unwrap_or(0);
        let mut written = 0;
        for (number, &JointWrite { from, bytes, offset }) in writes.iter().enumerate() {
            let count = bytes / PAGE;
            let is_written = together >> number & 1 != 0
                // SAFETY: as above.
                || unsafe { backing.write(from, count, offset, file_bytes) }.is_ok();
            if is_written {
                counts.pages_written.fetch_add(count as u64, Relaxed);
                written |= ((1 << count) - 1) << ((from as usize - slot as usize) / PAGE);
            } else if backing.can_write() {
                // A process that cannot write at all is no error of the device.
                counts.write_errors.fetch_add(1, Relaxed);
            }
        }
        written
    }

    fn put_back(&self, from: *const u8, page: u32) {
        for _ in 0..TRIES {
            // SAFETY: a page of the slot, which nobody changes now.
            match unsafe { self.region.memory.write_page(from, Region::offset_of(page)) } {
                Ok(()) => {
                    if let Some(entry) = self.find(page) {
                        self.give_chance(entry);
                    }
                    return;
                }
                Err(Errno::ENOMEM | Errno::ENOSPC | Errno::EAGAIN) => thread::sleep(PAUSE),
                Err(errno) => Region::broken("memory", errno),
            }
        }
        Region::broken("memory", Errno::ENOMEM);
    }

    /// The page has left, and the file has its bytes.
    pub(crate) fn end(&self, page: u32, settled: &mut Settled) {
        if let Some(entry) = self.find(page) {
            self.remove(entry);
            self.note_ghost(page);
            settled.gone += 1;
        }
    }
}
