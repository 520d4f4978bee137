//! Settle: the end of an eviction, by who began it or by who took over from the dead.
//!
//! The pages of the journal have been put into the pipe, in this order, and holes were made of
//! them. What the pipe gives goes to its slot in shared memory, not to memory of ours: if the
//! process dies, what is no more in the pipe is in the slot, and the pipe knows how much that is.
//! So it may be begun again at any point.
//!
//! Guarantees: a page whose final bytes are not those of the file is written to the file, or put
//! back into RAM; only then its entry ends, and after all of them the journal.
//! Never: allocates.
//! Threads: the owner of the shard.

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::time::Duration;

use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::{PAGE, thread};

use crate::control::{BATCH, journal};
use crate::log::Log;
use crate::ownership::Owned;
use crate::region::Region;

/// Between two tries to put a page back for which there is no memory.
const PAUSE: Duration = Duration::from_millis(5);
/// Tries; then the process ends, and another one goes on.
const TRIES: u32 = 2000;

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
        let mut settled = Settled::default();
        let mut index = 0;
        while index < count {
            // Neighbours that were changed are written together.
            let run = self.changed_run(slot, &left, index, count);
            match run {
                0 => {
                    if left[index] {
                        self.end(index, &mut settled);
                    }
                    index += 1;
                }
                run => {
                    self.write_or_put_back(slot, index, run, &mut settled);
                    index += run;
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

    /// How many consecutive pages from this one on were changed and have consecutive numbers.
    fn changed_run(&self, slot: *mut u8, left: &[bool; BATCH], from: usize, to: usize) -> usize {
        let first = self.shard.batch_pages[from].load(Relaxed);
        let is_changed = |index: &usize| {
            let page = self.shard.batch_pages[*index].load(Relaxed);
            let follows = page == first + (*index - from) as u32;
            left[*index]
                && follows
                && self.find(page).is_some_and(|entry| {
                    // SAFETY: a page of the slot, which nobody changes now.
                    self.hash(entry) != unsafe { self.region.hash(slot.add(*index * PAGE)) }
                        || self.is_logged_in_parts(page)
                })
        };
        (from..to).take_while(is_changed).count()
    }

    fn write_or_put_back(&self, slot: *mut u8, from: usize, run: usize, settled: &mut Settled) {
        if let Some(log) = self.region.log() {
            return (from..from + run)
                .for_each(|index| self.log_or_put_back(&log, slot, index, settled));
        }
        let first = self.shard.batch_pages[from].load(Relaxed);
        let offset = Region::offset_of(first);
        let bytes = slot.wrapping_add(from * PAGE);
        // SAFETY: pages of the slot, which nobody changes now.
        let written =
            unsafe { self.region.backing.write(bytes, run, offset, self.region.file_bytes()) };
        let counts = &self.region.control.header().counts;
        for index in from..from + run {
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
