//! Staging: pinned, aligned buffers into which the device reads before a page is installed.
//!
//! Guarantees: a buffer belongs to one thread from `take` to the drop of its guard. The bytes noted
//! for a buffer are those that take RAM; RAM of buffers that no thread uses any more goes back to
//! the system (`trim`).
//! Never: allocates. Waits only when every buffer is in use, asleep.
//! Threads: any, also in a signal handler; a worker calls `trim`, inside the gate.

use deepheap_policy::sequence::WINDOW_MAX;
use deepheap_sys::errno::Result;
use deepheap_sys::memory::index_pool::{GROUP, GROUPS_MAX, IndexPool};
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::threads::thread;

use crate::PAGE;
use crate::page_buffer::Reserved;

/// Pieces of a call that are read from the device together.
pub const CALL_PIECES: usize = 64;

/// A staging buffer for one page: room for the block, and for the page made of it.
pub const PAGE_STAGING_BYTES: usize = 2 * PAGE;

/// For each processor so many windows of scans and so many calls have a buffer at a time: more
/// threads would not read faster. Each buffer is half a mebibyte of address space.
const WINDOWS_PER_CPU: usize = 8;

/// The least buffers of a pool.
pub const BUFFERS_MIN: usize = GROUP;
/// The most buffers of a pool.
pub const BUFFERS_MAX: usize = GROUPS_MAX * GROUP;

/// A pool of buffers of one size.
pub struct Staging {
    memory: PinnedArray<u8>,
    bytes: usize,
    pool: IndexPool,
    /// Bytes of each buffer that were ever used, from its start.
    noted: PinnedArray<AtomicU32>,
    /// The sum of them.
    noted_bytes: Padded<AtomicUsize>,
}

/// One buffer, given back when dropped.
pub struct StagingBuffer<'a> {
    staging: &'a Staging,
    index: usize,
}

impl Staging {
    /// A pool of `count` buffers, rounded up to whole groups, of `bytes` each (a multiple of the
    /// page size), untouched so far.
    pub fn new(bytes: usize, count: usize) -> Result<Staging> {
        let groups = count.clamp(BUFFERS_MIN, BUFFERS_MAX).div_ceil(GROUP);
        let count = groups * GROUP;
        Ok(Staging {
            memory: PinnedArray::new(count * bytes)?,
            bytes,
            pool: IndexPool::new(groups),
            noted: PinnedArray::new(count)?,
            noted_bytes: Padded(AtomicUsize::new(0)),
        })
    }

    /// Buffers in all.
    #[cfg(any(test, debug_assertions))]
    pub fn count(&self) -> usize {
        self.noted.len()
    }

    /// Bytes of DRAM that the buffers take.
    pub fn noted_bytes(&self) -> usize {
        self.noted_bytes.load(Ordering::Relaxed)
    }

    /// In a forked child: what threads of the parent held is free.
    pub fn forget_others(&self) {
        self.pool.forget_others();
    }

    /// Takes a free buffer. The bytes that were noted for it before still count.
    pub fn take(&self) -> StagingBuffer<'_> {
        StagingBuffer { staging: self, index: self.pool.take(|| false) }
    }

    /// Whether a later `trim` may give something back.
    pub fn is_touched(&self) -> bool {
        self.pool.is_touched()
    }

    /// Gives back the RAM of buffers that no thread took since the last call.
    pub fn trim(&self) {
        self.pool.trim(|index| {
            // The pool has taken the buffer for us and takes it back itself: no drop.
            let buffer = core::mem::ManuallyDrop::new(StagingBuffer { staging: self, index });
            let noted = buffer.noted().load(Ordering::Relaxed) as usize;
            // SAFETY: no thread uses these bytes. If the kernel refuses they stay, and stay noted.
            let dropped =
                noted > 0 && unsafe { mapping::give_back(buffer.address(), self.bytes) }.is_ok();
            if dropped {
                buffer.noted().store(0, Ordering::Relaxed);
                self.noted_bytes.fetch_sub(noted, Ordering::Relaxed);
            }
        });
    }
}

impl StagingBuffer<'_> {
    /// Notes that so many bytes of the buffer, from its start, will be used.
    pub fn note(&self, bytes: usize) {
        let new = self.unnoted(bytes);
        if new > 0 {
            self.noted().store(bytes as u32, Ordering::Relaxed);
            self.staging.noted_bytes.fetch_add(new, Ordering::Relaxed);
        }
    }

    /// How many of the first `bytes` of the buffer are not noted yet.
    pub fn unnoted(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.noted().load(Ordering::Relaxed) as usize)
    }

    fn noted(&self) -> &AtomicU32 {
        &self.staging.noted[self.index]
    }

    /// Its first page.
    pub fn page(&mut self) -> &mut [u8; PAGE] {
        // SAFETY: the buffer has at least a page, and is its holder's alone.
        unsafe { &mut *self.address().cast() }
    }

    /// Where the buffer is.
    pub fn address(&self) -> *mut u8 {
        // SAFETY: the pool has as many numbers as the mapping has buffers.
        unsafe { self.staging.memory.as_ptr().add(self.index * self.staging.bytes) }
    }
}

impl Drop for StagingBuffer<'_> {
    fn drop(&mut self) {
        self.staging.pool.give_back(self.index);
    }
}

/// The pools of a pager, by what a buffer is used for.
pub struct StagingPools {
    /// One object: its block, and the page that is made of it.
    pub pages: Staging,
    /// A window of a scan: blocks, and the pages that are made of them.
    pub windows: Staging,
    /// The pieces of a call: a page of the program's bytes and a block for each.
    pub access: Staging,
    /// Pages reserved in the page buffer for staging, which the limits do not include yet.
    staged: AtomicUsize,
}

impl StagingPools {
    /// Pools with so many buffers for pages; the number for windows and calls follows from the
    /// number of processors.
    pub fn new(page_buffers: usize) -> Result<StagingPools> {
        let windows = WINDOWS_PER_CPU * thread::cpu_count();
        Ok(StagingPools {
            pages: Staging::new(PAGE_STAGING_BYTES, page_buffers)?,
            windows: Staging::new(2 * WINDOW_MAX as usize * PAGE, windows)?,
            access: Staging::new(2 * CALL_PIECES * PAGE, windows)?,
            staged: AtomicUsize::new(0),
        })
    }

    /// Every pool.
    pub fn all(&self) -> [&Staging; 3] {
        [&self.pages, &self.windows, &self.access]
    }

    /// These pages are in use for staging, until the limits include them.
    pub fn note_staged(&self, reserved: Reserved<'_>) {
        self.staged.fetch_add(reserved.keep(), Ordering::Release);
    }

    /// Pages reserved in the page buffer for staging.
    pub fn staged_pages(&self) -> usize {
        self.staged.load(Ordering::Acquire)
    }

    /// The limits include so many of them now.
    pub fn unstage(&self, pages: usize) {
        self.staged.fetch_sub(pages, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4 * PAGE;

    fn resident(staging: &Staging) -> usize {
        mapping::resident_bytes(staging.memory.as_ptr(), staging.count() * BYTES).unwrap()
    }

    #[test]
    fn a_buffer_has_one_owner_however_many_threads_want_one() {
        let staging = Staging::new(PAGE, 1).expect("memory");
        std::thread::scope(|scope| {
            for thread in 0..4 * BUFFERS_MIN {
                let staging = &staging;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let buffer = staging.take();
                        // SAFETY: the buffer is ours alone.
                        unsafe { buffer.address().cast::<usize>().write_volatile(thread) };
                        std::thread::yield_now();
                        // SAFETY: as above.
                        assert_eq!(unsafe { buffer.address().cast::<usize>().read() }, thread);
                    }
                });
            }
        });
    }

    #[test]
    fn what_is_noted_is_what_is_used_and_goes_back_when_nobody_uses_it() {
        let staging = Staging::new(BYTES, 1).expect("memory");
        let use_pages = |buffer: &StagingBuffer<'_>, pages: usize| {
            buffer.note(pages * PAGE);
            for page in 0..pages {
                // SAFETY: ours alone, and so long.
                unsafe { buffer.address().add(page * PAGE).write_volatile(1) };
            }
        };
        let buffers: Vec<_> = (0..10).map(|_| staging.take()).collect();
        for buffer in &buffers {
            use_pages(buffer, 1);
            use_pages(buffer, 3);
            use_pages(buffer, 2);
        }
        assert_eq!(staging.noted_bytes(), 30 * PAGE);
        assert_eq!(resident(&staging), 30 * PAGE);
        let mut buffers = buffers.into_iter();
        let kept = buffers.next().expect("ten of them");
        drop(buffers);
        staging.trim();
        assert_eq!(staging.noted_bytes(), 30 * PAGE, "used just now");
        staging.trim();
        assert_eq!(
            (staging.noted_bytes(), resident(&staging)),
            (3 * PAGE, 3 * PAGE),
            "one is held"
        );
        drop(kept);
        assert!(staging.is_touched());
        staging.trim();
        assert_eq!((staging.noted_bytes(), resident(&staging)), (0, 0));
        assert!(!staging.is_touched());
    }
}
