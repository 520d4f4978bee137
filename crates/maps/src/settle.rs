//! Settle: the end of an eviction, by who began it or by who took over from the dead.
//!
//! The pages of the journal have been put into the pipe, in this order, and holes were made of
//! them. What the pipe gives goes to its slot in shared memory, not to memory of ours: if the
//! process dies, what is no more in the pipe is in the slot, and the pipe knows how much that is.
//! So it may be begun again at any point.
//!
//! Pages are written from the slot, all of a batch side by side. Whoever begins again writes what
//! still differs from its entry: the same bytes to the same places. Only then the slot and the
//! pages are another's, so a write that its process began must have ended before the shard is taken
//! over. Those of a call that waits have, for a killed thread ends the call first, and joint writes
//! have (`writers`).
//!
//! Guarantees: a page whose final bytes are not those of the file is written to the file, or put
//! back into RAM; only then its entry ends, and after all of them the journal.
//! Never: allocates.
//! Threads: the owner of the shard.

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::time::Duration;

use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::joint_writes::{JointWrite, WRITES_MAX};
use deepheap_sys::{PAGE, thread};

use crate::control::{BATCH, journal};
use crate::log::Log;
use crate::ownership::Owned;
use crate::region::Region;
use crate::writers::with_writer;

/// Between two tries to put a page back for which there is no memory.
const PAUSE: Duration = Duration::from_millis(5);
/// Tries; then the process ends, and another one goes on.
const TRIES: u32 = 2000;

/// Pages of a batch that were changed, with consecutive numbers.
#[derive(Clone, Copy, Default)]
struct Run {
    /// Where in the batch.
    from: usize,
    pages: usize,
    /// The first one's number.
    page: u32,
}

/// What an eviction did.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Pages that left RAM.
    pub gone: usize,
    /// Those among them that were written first.
    pub written: usize,
    /// Pages that were put back, since they could not be written.
    pub put_back: usize,
    /// Nothing was tried: all pipes are in use. The thread has slept for a moment.
    pub has_no_pipe: bool,
}

impl Owned<'_> {
    /// Ends the eviction in the journal, which is `TAKEN`. `may_be_there`: pages that are still in
    /// RAM have never left it, and stay.
    pub(crate) fn settle(&self, may_be_there: bool) -> Settled {
        let pipe = self.shard.pipe.load(Relaxed) as usize;
        let count = (self.shard.batch.load(Relaxed) as usize).min(BATCH);
        let slot = self.region.control.slot(pipe);
        self.read_pipe(pipe, slot, count * PAGE);
        // A page that is still there has not left: its bytes in the slot may be old.
        let mut left = [false; BATCH];
        for (index, left) in left[..count].iter_mut().enumerate() {
            let page = self.shard.batch_pages[index].load(Relaxed);
            *left = !(may_be_there && self.region.is_in_memory(page));
        }
        let mut runs = [Run::default(); BATCH];
        let run_count = self.find_changed(slot, &left[..count], &mut runs);
        let runs = &runs[..run_count];
        let written = self.write_together(slot, runs);
        let mut settled = Settled::default();
        let (mut index, mut next) = (0, 0);
        while index < count {
            match runs.get(next).filter(|run| run.from == index) {
                Some(run) => {
                    let is_written = written >> next & 1 != 0;
                    self.write_or_put_back(slot, *run, is_written, &mut settled);
                    index += run.pages;
                    next += 1;
                }
                None => {
                    if left[index] {
                        self.end(index, &mut settled);
                    }
                    index += 1;
                }
            }
        }
        self.shard.journal.store(journal::IDLE, Release);
        self.give_pipe_back(pipe);
        settled
    }

    /// Gives back a pipe that is empty, and a journal that is idle.
    pub(crate) fn give_pipe_back(&self, pipe: usize) {
        self.region.control.header().pipe_users[pipe].store(0, Release);
    }

    /// Brings what is left in the pipe into the slot, behind what is there already.
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

    /// Finds the pages that were changed; neighbours are one run. Answers how many runs.
    fn find_changed(&self, slot: *mut u8, left: &[bool], runs: &mut [Run; BATCH]) -> usize {
        let mut count = 0;
        for index in (0..left.len()).filter(|index| left[*index]) {
            let page = self.shard.batch_pages[index].load(Relaxed);
            let is_changed = self.find(page).is_some_and(|entry| {
                // SAFETY: a page of the slot, which nobody changes now.
                self.hash(entry) != unsafe { self.region.hash(slot.add(index * PAGE)) }
                    || self.is_logged_in_parts(page)
            });
            if !is_changed {
                continue;
            }
            match runs[..count].last_mut() {
                Some(run)
                    if run.from + run.pages == index && run.page + run.pages as u32 == page =>
                {
                    run.pages += 1;
                }
                _ => {
                    runs[count] = Run { from: index, pages: 1, page };
                    count += 1;
                }
            }
        }
        count
    }

    /// Writes runs side by side, if that can be; answers which are written, a bit for each. The
    /// others are to be written one by one.
    fn write_together(&self, slot: *mut u8, runs: &[Run]) -> u32 {
        const NONE: JointWrite = JointWrite { from: core::ptr::null(), bytes: 0, offset: 0 };
        const _: () = assert!(BATCH <= WRITES_MAX && BATCH <= u32::BITS as usize);
        if runs.len() < 2 || self.region.log().is_some() {
            return 0;
        }
        let mut writes = [NONE; BATCH];
        for (write, run) in writes.iter_mut().zip(runs) {
            *write = JointWrite {
                from: slot.wrapping_add(run.from * PAGE),
                bytes: run.pages * PAGE,
                offset: Region::offset_of(run.page),
            };
        }
        let (writes, file_bytes) = (&writes[..runs.len()], self.region.file_bytes());
        // SAFETY: pages of the slot, which nobody changes now.
        let write = |writer: &mut _| unsafe {
            self.region.backing.write_together(writer, writes, file_bytes)
        };
        with_writer(write).unwrap_or(0)
    }

    fn write_or_put_back(
        &self,
        slot: *mut u8,
        Run { from, pages, page }: Run,
        is_written: bool,
        settled: &mut Settled,
    ) {
        if let Some(log) = self.region.log() {
            return (from..from + pages)
                .for_each(|index| self.log_or_put_back(&log, slot, index, settled));
        }
        let offset = Region::offset_of(page);
        let bytes = slot.wrapping_add(from * PAGE);
        let file_bytes = self.region.file_bytes();
        let written = match is_written {
            true => Ok(()),
            // SAFETY: pages of the slot, which nobody changes now.
            false => unsafe { self.region.backing.write(bytes, pages, offset, file_bytes) },
        };
        let counts = &self.region.control.header().counts;
        for index in from..from + pages {
            if written.is_ok() {
                counts.pages_written.fetch_add(1, Relaxed);
                settled.written += 1;
                self.end(index, settled);
            } else {
                self.put_back(slot, index);
                settled.put_back += 1;
            }
        }
        // Who cannot write at all is no error of the device.
        if written.is_err() && self.region.backing.can_write() {
            counts.write_errors.fetch_add(1, Relaxed);
        }
    }

    fn log_or_put_back(&self, log: &Log<'_>, slot: *mut u8, index: usize, settled: &mut Settled) {
        let page = self.shard.batch_pages[index].load(Relaxed);
        // SAFETY: a page of the slot, which nobody changes now.
        let bytes = unsafe { core::slice::from_raw_parts(slot.add(index * PAGE), PAGE) };
        match self.log_evicted(log, page, bytes) {
            Ok(()) => {
                settled.written += 1;
                self.end(index, settled);
            }
            Err(errno) => {
                self.put_back(slot, index);
                settled.put_back += 1;
                if errno != Errno::ENOSPC {
                    let counts = &self.region.control.header().counts;
                    counts.write_errors.fetch_add(1, Relaxed);
                }
            }
        }
    }

    fn put_back(&self, slot: *mut u8, index: usize) {
        let page = self.shard.batch_pages[index].load(Relaxed);
        let from = slot.wrapping_add(index * PAGE);
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
    fn end(&self, index: usize, settled: &mut Settled) {
        let page = self.shard.batch_pages[index].load(Relaxed);
        if let Some(entry) = self.find(page) {
            self.remove(entry);
            self.note_ghost(page);
            settled.gone += 1;
        }
    }
}
