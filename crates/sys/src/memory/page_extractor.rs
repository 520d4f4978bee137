//! Page extractor: takes pages out of a running program without losing a write.
//!
//! Guarantees: a page reported as `Copied` is gone from the program's memory, and every byte that
//! any thread ever stored to it is in `into`; a page with another report was not touched. The pipe
//! is empty between calls, whatever happened.
//! Never: allocates | takes a lock | changes errno | touches managed memory itself (the kernel
//! does).
//! Threads: one at a time for each extractor (`&mut`); many extractors may share one `Zapper`.
//! Callable in a signal handler.
//!
//! # Why no write is lost
//!
//! `extract` goes through these steps, all pages of the batch together:
//!
//! 1. populate: pages that may be shared are made exclusive (MADV_POPULATE_WRITE breaks sharing).
//! 2. splice: vmsplice takes a reference to the physical page behind each address into the pipe. It
//!    copies nothing, so the pipe sees every later store to that physical page.
//! 3. zap: MADV_DONTNEED removes the mappings; when it returns, every processor has flushed its
//!    TLB.
//! 4. drain: the pipe is read. The bytes are final.
//!
//! A store by any thread comes at one of two times. *Before its processor's flush in step 3*: it
//! went to the physical page that was mapped at the time. Claim: that is the page in the pipe.
//! *After it*: the address has no mapping, the range is registered with userfaultfd, so the store
//! faults and waits for the thread that owns the page (in the pager); it is not executed. *There is
//! no third time*: a store takes effect through a TLB entry, and the flush waits for every
//! processor to acknowledge, by an interrupt that is taken between instructions. Step 4 comes after
//! that, so it reads them all.
//!
//! The claim fails exactly if the kernel may put another physical page behind the address between 2
//! and 3. These do it: (a) copy-on-write, which happens to pages that are not *exclusive*
//! anonymous pages. A page becomes exclusive by a write fault, by UFFDIO_COPY and by
//! MADV_POPULATE_WRITE, and then do_wp_page reuses it whatever its reference count is. It stops
//! being exclusive by fork, by same-page merging (KSM), and is not so if it is the shared zero
//! page: hence `may_be_shared`, and the contract of `extract`. (b) Migration, compaction, huge-page
//! collapse: they need the reference count to be what the mappings explain, and the pipe's
//! reference spoils it. (c) Swap: a page that is swapped out while referenced stays in the swap
//! cache, its entry remembers exclusiveness, and the next fault maps the same page again.
//! Exception: while it is under writeback to a swap device that demands stable pages (zram among
//! them), Linux maps it as if shared. Such swap devices are not supported beside deepheap unless
//! the pages are locked in RAM (mlock2).
//!
//! Kernels before 5.19 do not know which anonymous pages are exclusive, and copy one at a write
//! fault because the pipe refers to it. `sees_stores` finds that out, and such kernels are refused.
//!
//! Where vmsplice is refused (Podman, CRI-O), a `page_mover` holds the pages in place of the pipe,
//! and steps 2 and 3 are one: the argument is there.
//!
//! The kernel itself counts as a thread as long as it writes through the address (read(2),
//! copy_to_user). It does not if it holds the physical page for longer (O_DIRECT reads, io_uring
//! fixed buffers, RDMA): such pages must not be victims while the transfer lasts.

mod probe;

pub use probe::sees_stores;

use crate::PAGE;
use crate::errno::{Errno, Result};
use crate::files::own_descriptor::OwnDescriptor;
use crate::memory::page_mover::PageMover;
use crate::memory::pagemap;
use crate::memory::zap::Zapper;
use crate::raw_call::{Descriptor, raw_call};
use crate::threads::schedule;
use core::sync::atomic::{AtomicU8, Ordering};
use libc::iovec;
use std::os::fd::{AsRawFd, RawFd};

/// Pages of the largest batch.
pub const BATCH_MAX: usize = 256;

const EMPTY: iovec = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };

/// A page to take out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its address: the start of a page.
    pub addr: usize,
    /// Where on the page the bytes to copy begin.
    pub offset: usize,
    /// How many of them there are, at least 1, all on the page. The rest is dropped.
    pub len: usize,
    /// True unless the page was installed by UFFDIO_COPY (or known written) since the last fork.
    pub may_be_shared: bool,
    /// Whether to drop its whole 2 MiB range, so that the kernel frees the page table. All pages of
    /// the range are victims of this call.
    pub clears_range: bool,
}

/// Bytes that one page table maps.
pub const RANGE: usize = 2 << 20;

impl Victim {
    fn bytes(&self) -> iovec {
        let start = self.addr + self.offset;
        iovec { iov_base: start as *mut libc::c_void, iov_len: self.len }
    }

    fn page(&self) -> iovec {
        iovec { iov_base: self.addr as *mut libc::c_void, iov_len: PAGE }
    }

    fn range(&self) -> usize {
        self.addr & !(RANGE - 1)
    }

    /// The range to zap for it.
    fn dropped(&self) -> iovec {
        match self.clears_range {
            true => iovec { iov_base: self.range() as *mut libc::c_void, iov_len: RANGE },
            false => self.page(),
        }
    }
}

/// The outcome for a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is gone, and its final bytes are in `into`.
    Copied,
    /// It was not present: nothing to take, nothing written.
    Missing,
    /// It is present but could not be taken; it was left as it is.
    Unreadable,
}

/// What holds the pages of one batch.
#[derive(Debug)]
enum Holder {
    Pipe { reader: OwnDescriptor, writer: OwnDescriptor },
    Mover(PageMover),
}

impl Holder {
    /// For so many pages, or as many as are granted, which it tells.
    fn new(wanted: usize) -> Result<(Holder, usize)> {
        let (reader, writer, batch) = open_pipe(wanted)?;
        match vmsplice(&writer, &[]) {
            // As by a seccomp filter.
            Err(Errno::EPERM | Errno::ENOSYS) => Self::by_moving(wanted),
            _ => Ok((Holder::Pipe { reader, writer }, batch)),
        }
    }

    fn by_moving(wanted: usize) -> Result<(Holder, usize)> {
        Ok((Holder::Mover(PageMover::new(wanted)?), wanted))
    }
}

/// What holds the pages of one batch, and the lists that extraction works with.
#[derive(Debug)]
pub struct PageExtractor {
    holder: Holder,
    /// Pages that were asked for.
    wanted: usize,
    batch: usize,
    /// Ranges for the current system call.
    vector: [iovec; BATCH_MAX],
    /// Which victim each page in the pipe is, in the pipe's order.
    spliced: [u16; BATCH_MAX],
}

// SAFETY: the pointers in `vector` are scratch of one call of `extract` and never used across
// calls.
unsafe impl Send for PageExtractor {}

impl PageExtractor {
    /// Opens a pipe for `BATCH_MAX` pages; `batch` tells how many the kernel granted.
    pub fn new() -> Result<Self> {
        Self::of(BATCH_MAX)
    }

    /// As `new`, for so many pages. The kernel grants an ordinary user 1 MiB a pipe, and 64 MiB in
    /// all his pipes (fs.pipe-max-size, fs.pipe-user-pages-soft).
    pub fn of(pages: usize) -> Result<Self> {
        Self::with(pages, Holder::new)
    }

    /// As `of`, without a pipe: as it is where vmsplice is refused. ENOTSUP before Linux 6.8.
    pub fn by_moving(pages: usize) -> Result<Self> {
        Self::with(pages, Holder::by_moving)
    }

    fn with(pages: usize, open: impl Fn(usize) -> Result<(Holder, usize)>) -> Result<Self> {
        let wanted = pages.clamp(1, BATCH_MAX);
        let (holder, batch) = open(wanted)?;
        let (vector, spliced) = ([EMPTY; BATCH_MAX], [0; BATCH_MAX]);
        Ok(PageExtractor { holder, wanted, batch, vector, spliced })
    }

    /// Pages that one `extract` can take: 1 to 256.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The descriptors it keeps open: the program must not close them.
    pub fn descriptors(&self) -> [RawFd; 2] {
        match &self.holder {
            Holder::Pipe { reader, writer } => [reader.as_raw_fd(), writer.as_raw_fd()],
            Holder::Mover(mover) => [mover.as_raw_fd(); 2],
        }
    }

    /// In the child of a fork: opens a new pipe, since the old one is shared with the parent.
    pub fn after_fork(&mut self) -> Result<()> {
        (self.holder, self.batch) = match self.holder {
            Holder::Pipe { .. } => Holder::new(self.wanted)?,
            Holder::Mover(_) => Holder::by_moving(self.wanted)?,
        };
        Ok(())
    }

    /// Takes the victims out: `taken[i]` tells what became of `victims[i]`, whose bytes are in
    /// `into[i]` (`victims[i].len` of them) if it was copied; `into[i]` may be overwritten
    /// in every case.
    ///
    /// Err: the pipe cannot be used (EBADF, ENOMEM) or the lengths differ or exceed `batch`
    /// (EINVAL); all victims are as they were, and `taken` says Unreadable.
    ///
    /// # Safety
    /// - Every victim is a page of private anonymous memory, named once, in no huge page, not
    ///   mergeable (KSM), and whatever touches it while it is missing waits until the caller
    ///   installs it again: registered with userfaultfd, claimed by the caller.
    /// - `may_be_shared` is false only for pages that are exclusive: installed by UFFDIO_COPY or
    ///   known written, and no fork since. No fork happens during the call.
    /// - No long-term pin of the kernel (O_DIRECT and the like) is on a victim.
    /// - Where `clears_range` is set, no thread installs a page in the range during the call.
    /// - Every `into[i]` is `len` writable bytes of pinned memory, which nobody else uses.
    pub unsafe fn extract(
        &mut self,
        zapper: &Zapper,
        victims: &[Victim],
        into: &[*mut u8],
        taken: &mut [Taken],
    ) -> Result<()> {
        taken.fill(Taken::Unreadable);
        if victims.len() != into.len() || victims.len() != taken.len() || victims.len() > self.batch
        {
            return Err(Errno::EINVAL);
        }
        taken.fill(Taken::Copied); // until a step finds otherwise
        for (buffer, victim) in into.iter().zip(victims) {
            // SAFETY: the caller's promise.
            unsafe { touch(*buffer, victim.len) };
        }
        self.make_exclusive(zapper, victims, taken);
        let Holder::Pipe { reader, writer } = &self.holder else {
            // SAFETY: the caller's promise.
            unsafe { self.extract_by_moving(zapper, victims, into, taken) };
            return Ok(());
        };
        let (reader, writer) = (reader.as_raw_fd(), writer.as_raw_fd());
        let spliced = self.splice(writer, victims, taken)?;
        schedule::point(); // the program may still write
        // SAFETY: exactly the pages that the pipe holds; the caller's promise for the rest.
        unsafe { self.zap(zapper, victims, spliced, taken) };
        schedule::point();
        // SAFETY: the caller's promise on `into`.
        unsafe { self.drain(reader, victims, into, spliced) };
        Ok(())
    }

    /// Steps 2 to 4 with a page mover: the page of a victim goes to the room's page of its index.
    ///
    /// # Safety
    /// As for `extract`.
    unsafe fn extract_by_moving(
        &mut self,
        zapper: &Zapper,
        victims: &[Victim],
        into: &[*mut u8],
        taken: &mut [Taken],
    ) {
        let Holder::Mover(mover) = &self.holder else { return };
        schedule::point(); // the program may still write
        // SAFETY: the caller's promise; the room was emptied last time.
        unsafe { move_out(mover, victims, taken) };
        schedule::point();
        for (index, victim) in victims.iter().enumerate().filter(|(at, _)| is_taken(taken, *at)) {
            let from = mover.at(index).wrapping_add(victim.offset);
            // SAFETY: the page is in the room, and nobody else's; the rest is the caller's promise.
            unsafe { from.copy_to_nonoverlapping(into[index], victim.len) };
        }
        let cleared = victims
            .iter()
            .filter(|victim| victim.clears_range && !stays_in(victim.range(), victims, taken))
            .map(Victim::dropped);
        let cleared = merge(gather(&mut self.vector, cleared));
        let room = iovec { iov_base: mover.at(0).cast(), iov_len: victims.len() * PAGE };
        // SAFETY: all bytes that are wanted were copied out of the room, and nothing is left in the
        // ranges. What cannot be dropped is in the way of the next move, which says so.
        let _ = unsafe { (zapper.zap(&[room]), zapper.zap(cleared)) };
    }

    /// Step 1. A victim whose sharing cannot be broken must not be spliced.
    fn make_exclusive(&mut self, zapper: &Zapper, victims: &[Victim], taken: &mut [Taken]) {
        let shared = victims.iter().filter(|victim| victim.may_be_shared);
        let ranges = gather(&mut self.vector, shared.map(Victim::page));
        if ranges.is_empty() || zapper.populate_write(ranges).is_ok() {
            return;
        }
        for (victim, taken) in victims.iter().zip(taken) {
            let alone = [victim.page()];
            if victim.may_be_shared && zapper.populate_write(&alone).is_err() {
                *taken = missing_or_unreadable(victim.addr);
            }
        }
    }

    /// Step 2. Answers how many pages are in the pipe; `self.spliced` says which.
    fn splice(&mut self, writer: RawFd, victims: &[Victim], taken: &mut [Taken]) -> Result<usize> {
        let mut spliced = 0;
        let mut next = 0;
        loop {
            let wanted = &mut self.spliced[spliced..];
            let mut count = 0;
            for (index, taken) in taken.iter().enumerate().skip(next) {
                if *taken == Taken::Copied {
                    wanted[count] = index as u16;
                    count += 1;
                }
            }
            if count == 0 {
                return Ok(spliced);
            }
            let lens = |index: &u16| victims[usize::from(*index)].len;
            let bytes = wanted[..count].iter().map(|index| victims[usize::from(*index)].bytes());
            let ranges = gather(&mut self.vector, bytes);
            let first = usize::from(wanted[0]);
            match vmsplice(&writer, ranges) {
                // Victims go in whole: the pipe has as many slots as `batch`, and a slot takes a
                // page.
                Ok(mut bytes) if bytes > 0 => {
                    for len in wanted[..count].iter().map(lens) {
                        if bytes == 0 {
                            break;
                        }
                        let Some(rest) = bytes.checked_sub(len) else {
                            broken("took a part of a page");
                        };
                        bytes = rest;
                        spliced += 1;
                    }
                    next = usize::from(self.spliced[spliced - 1]) + 1;
                }
                Err(Errno::EINTR) => {}
                // Nothing went in: the kernel refused the first page.
                Err(Errno::EFAULT | Errno::EHWPOISON) => {
                    taken[first] = missing_or_unreadable(victims[first].addr);
                    next = first + 1;
                }
                Ok(_) => {
                    refuse(&mut taken[first..]);
                    return Ok(spliced);
                }
                Err(errno) => {
                    refuse(&mut taken[first..]);
                    return if spliced == 0 { Err(errno) } else { Ok(spliced) };
                }
            }
        }
    }

    /// Step 3. A page that cannot be dropped stays where it is, and the pipe's copy is not used.
    ///
    /// # Safety
    /// As for `extract`; the first `spliced` of `self.spliced` are in the pipe.
    unsafe fn zap(
        &mut self,
        zapper: &Zapper,
        victims: &[Victim],
        spliced: usize,
        taken: &mut [Taken],
    ) {
        let indices = self.spliced[..spliced].iter().map(|index| usize::from(*index));
        let all_spliced = spliced == victims.len();
        let stays = |range| !all_spliced && stays_in(range, victims, taken);
        let dropped = indices.clone().map(|index| match &victims[index] {
            victim if victim.clears_range && stays(victim.range()) => victim.page(),
            victim => victim.dropped(),
        });
        let mut ranges = gather(&mut self.vector, dropped);
        if !zapper.is_batched() {
            // Each range costs a system call and a TLB flush: neighbours leave together, whatever
            // their order among the victims.
            ranges = merge(ranges);
        }
        // SAFETY: the pipe holds the pages' contents.
        if unsafe { zapper.zap(ranges) }.is_ok() {
            return;
        }
        // Some are gone and some are not: zap each alone. Those that are gone stay gone (they are
        // claimed, so no thread installs them), and zapping them again answers Ok.
        for index in indices {
            // SAFETY: as above.
            if unsafe { zapper.zap(&[victims[index].page()]) }.is_err() {
                taken[index] = Taken::Unreadable;
            }
        }
    }

    /// Step 4. From here on only the pipe holds the pages: it must be read.
    ///
    /// # Safety
    /// As for `extract`; the pipe holds `spliced` pages.
    unsafe fn drain(
        &mut self,
        reader: RawFd,
        victims: &[Victim],
        into: &[*mut u8],
        spliced: usize,
    ) {
        // Victims that were read completely, and bytes read of the next one.
        let (mut done, mut offset) = (0, 0);
        while done < spliced {
            let rest = self.spliced[done..spliced].iter().map(|index| usize::from(*index));
            let buffers = rest
                .clone()
                .map(|index| iovec { iov_base: into[index].cast(), iov_len: victims[index].len });
            let ranges = gather(&mut self.vector, buffers);
            if let Some(first) = ranges.first_mut() {
                first.iov_base = first.iov_base.wrapping_byte_add(offset);
                first.iov_len -= offset;
            }
            match readv(&reader, ranges) {
                Ok(0) => broken("ended"),
                Ok(bytes) => {
                    offset += bytes;
                    for index in rest {
                        if offset < victims[index].len {
                            break;
                        }
                        offset -= victims[index].len;
                        done += 1;
                    }
                }
                Err(Errno::EINTR) => {}
                // The kernel had reclaimed a buffer, and got no memory for it within a system call.
                // An ordinary fault on it can wait for memory, or die as such faults do.
                Err(Errno::EFAULT | Errno::ENOMEM) => {
                    for index in rest {
                        // SAFETY: the caller's promise.
                        unsafe { touch(into[index], victims[index].len) };
                    }
                }
                Err(_) => broken("cannot be read"),
            }
        }
    }
}

/// Moves those that are to be taken, neighbours together; tells what became of the others.
///
/// # Safety
/// As for `extract`; the room is empty.
unsafe fn move_out(mover: &PageMover, victims: &[Victim], taken: &mut [Taken]) {
    let (mut next, mut most) = (0, victims.len());
    while next < victims.len() {
        let first = victims[next].addr;
        let follows = |at: &usize| victims[*at].addr == first + (at - next) * PAGE;
        let run = (next..victims.len()).take(most);
        match run.take_while(|at| is_taken(taken, *at) && follows(at)).count() {
            0 => next += 1,
            // SAFETY: the caller's promise.
            pages => match unsafe { mover.take(next, first, pages) } {
                Ok(pages) => (next, most) = (next + pages, victims.len()),
                // They may lie in several mappings.
                Err(_) if pages > 1 => most = 1,
                Err(_) => {
                    taken[next] = missing_or_unreadable(first);
                    next += 1;
                }
            },
        }
    }
}

fn is_taken(taken: &[Taken], index: usize) -> bool {
    taken[index] == Taken::Copied
}

/// Whether a victim stays in this range, which must not be dropped with it.
fn stays_in(range: usize, victims: &[Victim], taken: &[Taken]) -> bool {
    let mut all = victims.iter().zip(taken);
    all.any(|(victim, taken)| *taken == Taken::Unreadable && victim.range() == range)
}

/// Fills `vector` with the pieces, merging adjacent ones, and answers the part it filled.
fn gather(vector: &mut [iovec; BATCH_MAX], pieces: impl Iterator<Item = iovec>) -> &mut [iovec] {
    let mut count = 0;
    for piece in pieces {
        match vector[..count].last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == piece.iov_base => {
                last.iov_len += piece.iov_len;
            }
            _ => {
                vector[count] = piece;
                count += 1;
            }
        }
    }
    &mut vector[..count]
}

/// Sorts ranges by address, and makes one of those that touch or overlap (a whole 2 MiB range may
/// be named by several of its pages).
fn merge(ranges: &mut [iovec]) -> &mut [iovec] {
    ranges.sort_unstable_by_key(|range| range.iov_base as usize);
    let mut count = 0;
    for index in 0..ranges.len() {
        let range = ranges[index];
        let start = range.iov_base as usize;
        match ranges[..count].last_mut() {
            Some(last) if start <= last.iov_base as usize + last.iov_len => {
                let end = (start + range.iov_len).max(last.iov_base as usize + last.iov_len);
                last.iov_len = end - last.iov_base as usize;
            }
            _ => {
                ranges[count] = range;
                count += 1;
            }
        }
    }
    &mut ranges[..count]
}

/// The report for a victim that the kernel refused. In doubt it is taken to be present: then it is
/// kept.
fn missing_or_unreadable(addr: usize) -> Taken {
    match pagemap::is_present(addr) {
        Ok(false) => Taken::Missing,
        Ok(true) | Err(_) => Taken::Unreadable,
    }
}

fn refuse(rest: &mut [Taken]) {
    for taken in rest {
        if *taken == Taken::Copied {
            *taken = Taken::Unreadable;
        }
    }
}

/// Makes a buffer present and writable, from user mode, where the kernel can wait for memory. The
/// buffer keeps its bytes: it may hold a part of a page already.
///
/// # Safety
/// `buffer` is `len` writable bytes, 1 to 4096, that nobody else uses.
unsafe fn touch(buffer: *mut u8, len: usize) {
    // SAFETY: the caller's promise; an unaligned buffer has a part in two pages.
    for byte in unsafe { [buffer, buffer.add(len - 1)] } {
        // One access that is a write to the processor even where it changes nothing: reading first
        // would map the zero page, for which the write then faults again and flushes TLBs.
        // SAFETY: inside the buffer, which nobody else uses.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        let _ = byte.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The pipe is broken: other code closed it or reads from it. Pages of the program may be lost in
/// it, so the process must not go on.
#[cold]
fn broken(how: &str) -> ! {
    crate::say!("fatal: the eviction pipe ", how, "; was its descriptor closed?");
    // SAFETY: no arguments.
    unsafe { libc::abort() }
}

fn vmsplice(pipe: &impl AsRawFd, ranges: &[iovec]) -> Result<usize> {
    let (fd, flags) = (pipe.as_raw_fd(), libc::SPLICE_F_NONBLOCK);
    // SAFETY: the kernel reads `ranges` and takes references to pages; it writes nothing.
    unsafe { raw_call!(SYS_vmsplice, fd, ranges.as_ptr(), ranges.len(), flags) }
}

fn readv(pipe: &impl AsRawFd, ranges: &[iovec]) -> Result<usize> {
    // SAFETY: the ranges are the buffers that `extract` was promised.
    unsafe { raw_call!(SYS_readv, pipe.as_raw_fd(), ranges.as_ptr(), ranges.len()) }
}

fn open_pipe(pages: usize) -> Result<(OwnDescriptor, OwnDescriptor, usize)> {
    let (reader, writer) = Descriptor::pipe()?;
    let (reader, writer) = (OwnDescriptor::adopt(reader), OwnDescriptor::adopt(writer));
    // Unprivileged processes may be held to less: take the most that is granted.
    let mut wanted = pages * PAGE;
    while wanted > PAGE && !resize(&writer, wanted) {
        wanted /= 2;
    }
    // SAFETY: fcntl without a memory argument.
    let granted = unsafe { raw_call!(SYS_fcntl, writer.as_raw_fd(), libc::F_GETPIPE_SZ) }?;
    Ok((reader, writer, (granted / PAGE).clamp(1, pages)))
}

fn resize(pipe: &OwnDescriptor, bytes: usize) -> bool {
    // SAFETY: fcntl with a number.
    unsafe { raw_call!(SYS_fcntl, pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one_whatever_their_order() {
        let of = |first: usize, pages: usize| iovec {
            iov_base: (first * PAGE) as *mut libc::c_void,
            iov_len: pages * PAGE,
        };
        // A range of 2 MiB, named by two of its pages, comes twice.
        let mut ranges = [of(9, 1), of(3, 2), of(512, 512), of(1, 1), of(5, 1), of(512, 512)];
        let merged: Vec<_> = merge(&mut ranges)
            .iter()
            .map(|range| (range.iov_base as usize / PAGE, range.iov_len / PAGE))
            .collect();
        assert_eq!(merged, [(1, 1), (3, 3), (9, 1), (512, 512)]);
        assert!(merge(&mut []).is_empty());
    }
}
