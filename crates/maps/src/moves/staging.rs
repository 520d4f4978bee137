//! Staging: buffers through which pages come into maps, of the whole process.
//!
//! They lie in a memory file of the process's own, where the kernel can copy pages from one such
//! file to another (`copy_to`); elsewhere in ordinary memory.
//!
//! Guarantees: a buffer has one user; its memory is ours, so touching it faults into nobody. The
//! child of a fork has buffers of its own.
//! Never: allocates after `prepare`, but in the child of a fork | waits while its caller holds a
//! shard.
//! Threads: any, also in a signal handler.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;

use deepheap_sys::PAGE;
use deepheap_sys::errno::Result;
use deepheap_sys::files::sparse_file::{SparseFile, can_copy_pages};
use deepheap_sys::memory::mapping;
use deepheap_sys::threads::thread;

/// Pages of a buffer.
pub(crate) const BUFFER_PAGES: usize = 64;
/// Pages beside them, for pages that are read along.
pub(crate) const SCRATCH_PAGES: usize = 2;
const ALL_PAGES: usize = BUFFER_PAGES + SCRATCH_PAGES;
/// Buffers of the process: reads under way at a time.
const BUFFERS: usize = 64;
/// How long a thread sleeps that finds none.
const PAUSE: Duration = Duration::from_micros(100);

/// All buffers.
struct Memory {
    at: *mut u8,
    file: Option<SparseFile>,
}

static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(core::ptr::null_mut());
static TAKEN: [AtomicU32; BUFFERS] = [const { AtomicU32::new(0) }; BUFFERS];

impl Memory {
    fn make() -> Result<Memory> {
        let bytes = BUFFERS * ALL_PAGES * PAGE;
        let in_file = || -> Result<Memory> {
            let file = SparseFile::create(c"deepheap-staging", bytes as u64)?;
            let at = file.map(bytes)?;
            Ok(Memory { at, file: Some(file) })
        };
        match can_copy_pages() {
            true => in_file(),
            false => Ok(Memory { at: mapping::map_pinned(bytes)?, file: None }),
        }
    }
}

fn memory() -> &'static Memory {
    // SAFETY: set by `prepare`, which comes before any buffer, to a leaked box; another one takes
    // its place in the child of a fork only, whose single thread has no buffer then.
    unsafe { &*MEMORY.load(Ordering::Acquire) }
}

/// Maps the buffers; each takes RAM once it is used. Once, under a lock of the caller's.
pub(crate) fn prepare() -> Result<()> {
    if MEMORY.load(Ordering::Acquire).is_null() {
        MEMORY.store(Box::into_raw(Box::new(Memory::make()?)), Ordering::Release);
    }
    Ok(())
}

/// Whether pages can be copied from buffers to memory files. After `prepare`.
pub(crate) fn can_copy() -> bool {
    memory().file.is_some()
}

/// In the child of a fork: the other threads' buffers are free. Those of a memory file are the
/// parent's, which goes on to use them: the child makes its own.
///
/// # Safety
/// The child has one thread, which is here and has no buffer.
pub(crate) unsafe fn after_fork() -> Result<()> {
    for taken in &TAKEN {
        taken.store(0, Ordering::Relaxed);
    }
    if !MEMORY.load(Ordering::Acquire).is_null() && can_copy() {
        let own = Box::into_raw(Box::new(Memory::make()?));
        // SAFETY: a leaked box, of `prepare` or of this in the parent; no buffer is in use.
        let parents = unsafe { Box::from_raw(MEMORY.swap(own, Ordering::AcqRel)) };
        // SAFETY: mapped by `make`.
        unsafe { mapping::unmap(parents.at, BUFFERS * ALL_PAGES * PAGE) }?;
    }
    Ok(())
}

/// A buffer; free again on drop.
pub(crate) struct Buffer(usize);

impl Buffer {
    /// Takes one; waits for it.
    pub(crate) fn take() -> Buffer {
        loop {
            // The first free one: few buffers have RAM.
            let free = TAKEN.iter().position(|taken| {
                taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            });
            match free {
                Some(index) => return Buffer(index),
                None => thread::sleep(PAUSE),
            }
        }
    }

    /// A page of it, which the holder of the buffer has alone.
    pub(crate) fn page(&self, index: usize) -> *mut u8 {
        assert!(index < BUFFER_PAGES, "a page of the buffer");
        memory().at.wrapping_add((self.0 * ALL_PAGES + index) * PAGE)
    }

    /// Fills pages of a file, from `offset` on, with `pages` of the buffer's from `index` on;
    /// answers how many, from the first on.
    pub(crate) fn copy_to(
        &self,
        index: usize,
        pages: usize,
        file: &SparseFile,
        offset: u64,
    ) -> usize {
        assert!(index + pages <= BUFFER_PAGES, "pages of the buffer");
        let Some(own) = &memory().file else { return 0 };
        file.copy_pages(offset, own, ((self.0 * ALL_PAGES + index) * PAGE) as u64, pages)
    }

    /// `SCRATCH_PAGES` beside them.
    pub(crate) fn scratch(&self) -> *mut u8 {
        self.page(BUFFER_PAGES - 1).wrapping_add(PAGE)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        TAKEN[self.0].store(0, Ordering::Release);
    }
}
