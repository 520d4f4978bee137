//! Zap: drops many scattered pages of our own memory with one TLB flush, or populates many at once.
//!
//! Guarantees: after `zap` answers Ok no thread of the process can read or write the dropped pages
//! through their old mapping; the kernel's batched call is used if it exists, madvise otherwise.
//! Never: allocates | changes errno | takes a deepheap lock, except its own in `new` and in the
//! child of a fork. One zapper serves all threads.
//! Threads: any, also in a signal handler.

use crate::PAGE;
use crate::errno::{Result, Saved};
use crate::files::own_descriptor::OwnDescriptor;
use crate::memory::mapping::{self, Advice};
use crate::process::process_status;
use crate::raw_call::{Descriptor, raw_call};
use crate::threads::lock::Lock;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicI32};
use libc::iovec;
use std::os::fd::AsRawFd;

/// The caller's own process, without a descriptor (Linux 6.14).
const PIDFD_SELF: i32 = -10001;
/// No batched call: one madvise for each range.
const ONE_BY_ONE: i32 = -1;
/// Ranges the kernel takes in one call (UIO_MAXIOV).
const RANGES_MAX: usize = 1024;

/// The means to zap and populate, as probed on this kernel.
#[derive(Debug)]
pub struct Zapper {
    /// A process descriptor for batched calls, or ONE_BY_ONE.
    zap_target: AtomicI32,
    populate_target: AtomicI32,
    frees_page_tables: AtomicBool,
    /// The process descriptor, if this kernel needs one.
    own: Lock<Option<OwnDescriptor>>,
}

impl Zapper {
    /// Finds out what the kernel can do, by doing it to a page of its own.
    pub fn new() -> Self {
        let zapper = Zapper {
            zap_target: AtomicI32::new(ONE_BY_ONE),
            populate_target: AtomicI32::new(ONE_BY_ONE),
            frees_page_tables: AtomicBool::new(false),
            own: Lock::new(None),
        };
        zapper.probe();
        zapper.frees_page_tables.store(zapper.probe_page_tables() == Some(true), Release);
        zapper
    }

    /// In the child of a fork: opens a new descriptor, since the inherited one names the parent.
    pub fn after_fork(&self) {
        let _errno = Saved::new();
        self.zap_target.store(ONE_BY_ONE, Release);
        self.populate_target.store(ONE_BY_ONE, Release);
        *self.own.lock() = None;
        self.probe();
    }

    /// True if scattered pages are zapped in batches, with one TLB flush for each batch.
    pub fn is_batched(&self) -> bool {
        self.zap_target.load(Acquire) != ONE_BY_ONE
    }

    /// True if the kernel frees a page table when the whole range that it maps is dropped (Linux
    /// 6.14 and later, if so configured).
    pub fn frees_page_tables(&self) -> bool {
        self.frees_page_tables.load(Acquire)
    }

    /// Drops all pages of all ranges (whole pages). Ok: all are gone. Err: some range could not be
    /// dropped, and any of the others may or may not be gone; zapping again is harmless.
    ///
    /// # Safety
    /// The ranges are anonymous memory of the caller's whose contents nobody needs any more.
    pub unsafe fn zap(&self, ranges: &[iovec]) -> Result<()> {
        let _errno = Saved::new();
        let target = self.zap_target.load(Acquire);
        // SAFETY: the caller's promise.
        unsafe { for_all(target, ranges, Advice::DontNeed) }
    }

    /// Makes every page of all ranges present, writable and unshared. Tries all; the first error is
    /// the answer (EFAULT: a page is missing in memory that userfaultfd watches).
    pub fn populate_write(&self, ranges: &[iovec]) -> Result<()> {
        let _errno = Saved::new();
        let target = self.populate_target.load(Acquire);
        // SAFETY: populating changes neither rights nor contents.
        unsafe { for_all(target, ranges, Advice::PopulateWrite) }
    }

    /// Touches a page in each of some ranges, drops the ranges, and compares the kernel's count of
    /// page tables before and after.
    fn probe_page_tables(&self) -> Option<bool> {
        const RANGE: usize = 2 << 20;
        const RANGES: usize = 64;
        let memory = mapping::map_pinned((RANGES + 1) * RANGE).ok()?;
        let first = (memory as usize).next_multiple_of(RANGE);
        // SAFETY: inside the mapping, which is this function's own; nothing in it is wanted.
        let _ = unsafe { mapping::advise(memory, (RANGES + 1) * RANGE, Advice::NoHugePage) };
        for range in 0..RANGES {
            // SAFETY: as above.
            unsafe { ((first + range * RANGE) as *mut u8).write_volatile(1) };
        }
        let page_table_kib = || process_status::kilobytes(["VmPTE:"])?[0];
        let before = page_table_kib();
        let ranges = [iovec { iov_base: first as *mut libc::c_void, iov_len: RANGES * RANGE }];
        // SAFETY: as above.
        let zapped = unsafe { self.zap(&ranges) };
        let after = page_table_kib();
        // SAFETY: mapped above and used here only.
        let _ = unsafe { mapping::unmap(memory, (RANGES + 1) * RANGE) };
        zapped.ok()?;
        // Other threads may touch some memory meanwhile.
        Some(before?.saturating_sub(after?) >= (RANGES * PAGE / 1024 / 2) as u64)
    }

    fn probe(&self) {
        let Ok(page) = mapping::map_pinned(PAGE) else { return };
        let range = [iovec { iov_base: page.cast(), iov_len: PAGE }];
        let works = |target, advice| {
            // SAFETY: the page is this function's own.
            unsafe { page.write_volatile(1) };
            let answered = batched(target, &range, advice) == Ok(PAGE);
            // SAFETY: as above.
            let kept = unsafe { page.read_volatile() } == 1;
            answered && kept == (advice == Advice::PopulateWrite)
        };
        let mut target = PIDFD_SELF;
        if !works(target, Advice::DontNeed) {
            let own = own_process().filter(|own| works(own.as_raw_fd(), Advice::DontNeed));
            target = own.as_ref().map_or(ONE_BY_ONE, |own| own.as_raw_fd());
            *self.own.lock() = own;
        }
        self.zap_target.store(target, Release);
        if target != ONE_BY_ONE && works(target, Advice::PopulateWrite) {
            self.populate_target.store(target, Release);
        }
        // SAFETY: mapped above and used here only.
        let _ = unsafe { mapping::unmap(page, PAGE) };
    }
}

impl Default for Zapper {
    fn default() -> Self {
        Self::new()
    }
}

/// A descriptor of this process.
fn own_process() -> Option<OwnDescriptor> {
    // SAFETY: no memory arguments; the new descriptor is close-on-exec and nobody's but ours.
    unsafe {
        let own = raw_call!(SYS_pidfd_open, libc::getpid(), 0).ok()?;
        Some(OwnDescriptor::adopt(Descriptor::new(own)))
    }
}

/// One process_madvise: bytes done, which is always a sum of whole ranges from the first on.
fn batched(target: i32, ranges: &[iovec], advice: Advice) -> Result<usize> {
    // SAFETY: the kernel reads `ranges` only; what the advice does is the callers' promise.
    unsafe {
        raw_call!(SYS_process_madvise, target, ranges.as_ptr(), ranges.len(), advice as i32, 0)
    }
}

/// Gives the advice for all ranges: in batches as far as `target` takes them, and alone for a range
/// that stops a batch. Goes on after an error; answers the first one.
///
/// # Safety
/// The ranges are the caller's, and what the advice drops is needed no more.
unsafe fn for_all(target: i32, mut ranges: &[iovec], advice: Advice) -> Result<()> {
    let mut answer = Ok(());
    while let Some(first) = ranges.first() {
        // One range is cheaper without the vector.
        if target != ONE_BY_ONE && ranges.len() > 1 {
            let batch = &ranges[..ranges.len().min(RANGES_MAX)];
            let mut bytes = batched(target, batch, advice).unwrap_or(0);
            let mut done = 0;
            while done < batch.len() && bytes >= batch[done].iov_len {
                bytes -= batch[done].iov_len;
                done += 1;
            }
            if done > 0 {
                ranges = &ranges[done..];
                continue;
            }
        }
        let start = first.iov_base.cast();
        // SAFETY: the caller's promise.
        answer = answer.and(unsafe {
            match advice {
                Advice::DontNeed => mapping::give_back(start, first.iov_len),
                advice => mapping::advise(start, first.iov_len, advice),
            }
        });
        ranges = &ranges[1..];
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use crate::memory::pinned_array::PinnedArray;

    fn ranges(memory: &PinnedArray<u8>, step: usize) -> Vec<iovec> {
        (0..memory.len() / PAGE)
            .step_by(step)
            .map(|page| iovec {
                iov_base: memory.as_ptr().wrapping_add(page * PAGE).cast(),
                iov_len: PAGE,
            })
            .collect()
    }

    fn zaps_exactly(zapper: &Zapper) {
        let memory = PinnedArray::<u8>::new(3000 * PAGE).unwrap();
        for page in 0..3000 {
            // SAFETY: inside `memory`, which nobody borrows now.
            unsafe { memory.as_ptr().add(page * PAGE).write_volatile(1) };
        }
        // SAFETY: the test's own memory.
        unsafe { zapper.zap(&ranges(&memory, 2)) }.unwrap();
        for page in 0..3000 {
            assert_eq!(memory[page * PAGE], (page % 2) as u8);
        }
        let mut bad = ranges(&memory, 1);
        bad.insert(3, iovec { iov_base: 0x1000 as *mut _, iov_len: PAGE });
        // SAFETY: the test's own memory, and a page below every mapping.
        assert_eq!(unsafe { zapper.zap(&bad) }, Err(Errno::ENOMEM));
        assert!(memory.iter().step_by(PAGE).all(|byte| *byte == 0), "goes on after an error");
    }

    #[test]
    fn zap_drops_all_ranges_and_nothing_else() {
        zaps_exactly(&Zapper::new());
    }

    #[test]
    fn zap_without_the_batched_call_is_the_same() {
        let zapper = Zapper::new();
        zapper.zap_target.store(ONE_BY_ONE, Release);
        zaps_exactly(&zapper);
        zapper.after_fork();
        zaps_exactly(&zapper);
    }

    #[test]
    fn populate_write_makes_pages_present() {
        let zapper = Zapper::new();
        let memory = PinnedArray::<u8>::new(100 * PAGE).unwrap();
        zapper.populate_write(&ranges(&memory, 2)).unwrap();
        assert_eq!(memory.resident_bytes().unwrap(), 50 * PAGE);
    }
}
