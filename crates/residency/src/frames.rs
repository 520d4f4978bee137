//! Frames: the physical pages behind managed memory, as the kernel sees them.
//!
//! Guarantees: a page is counted in its range before it is installed.
//! Never: allocates; decides what is installed or taken out, or who owns it.
//! Threads: any, also in a signal handler, inside the gate.

use core::cell::UnsafeCell;

use deepheap_heap::{PageNo, SPAN};
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::memory::mapping::{self, Advice};
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::memory::userfaultfd::{Copy, Userfaultfd};
use deepheap_sys::memory::zap::Zapper;
use deepheap_sys::threads::atomic::{AtomicUsize, Ordering};

use crate::PAGE;
use crate::page_buffer::PageBuffer;
use crate::ranges::Ranges;

/// The most pages that a fresh fault installs together. As many pages of zeros are kept ready.
pub const FRESH_MAX: usize = 64;

/// The userfaultfd. It only changes while no other thread can see it: in a forked child, before any
/// other thread of it exists.
struct OfProcess(UnsafeCell<Userfaultfd>);

// SAFETY: shared access only reads; the thread that replaces it is the only one (`after_fork`).
unsafe impl Sync for OfProcess where Userfaultfd: Sync {}

/// The result of copying pages in.
#[derive(Clone, Copy, Debug)]
pub struct CopiedIn {
    /// How many were installed, from the first one on.
    pub pages: usize,
    /// Why the next one was not.
    pub refused: Option<Errno>,
}

/// The frames of a region.
pub struct Frames {
    region_base: usize,
    /// Whether pages can be protected against writes.
    is_protectable: bool,
    /// Whether some pages have frames of shared memory.
    shares_frames: bool,
    userfaultfd: OfProcess,
    zapper: Zapper,
    /// Spans from the region's start on that may hold managed memory.
    managed_spans: AtomicUsize,
    /// How many pages there may be.
    pub page_buffer: PageBuffer,
    /// How many are in each 2 MiB.
    pub ranges: Ranges,
    /// `FRESH_MAX` pages of zeros.
    zeros: PinnedArray<u8>,
}

impl Frames {
    /// Frames of a region of `pages` pages, nothing of which is managed so far.
    pub fn new(
        region_base: usize,
        pages: usize,
        page_buffer: PageBuffer,
        userfaultfd: Userfaultfd,
        (is_protectable, shares_frames): (bool, bool),
    ) -> Result<Frames> {
        Ok(Frames {
            region_base,
            is_protectable,
            shares_frames,
            userfaultfd: OfProcess(UnsafeCell::new(userfaultfd)),
            zapper: Zapper::new(),
            managed_spans: AtomicUsize::new(0),
            page_buffer,
            ranges: Ranges::new(pages)?,
            zeros: PinnedArray::new(FRESH_MAX * PAGE)?,
        })
    }

    fn userfaultfd(&self) -> &Userfaultfd {
        // SAFETY: it is not replaced while another thread exists.
        unsafe { &*self.userfaultfd.0.get() }
    }

    /// Where the region starts.
    pub fn region_base(&self) -> usize {
        self.region_base
    }

    /// The page at an address of the region.
    pub fn page_at(&self, address: usize) -> PageNo {
        PageNo(((address - self.region_base) / PAGE) as u32)
    }

    /// The address of a page.
    pub fn address_of(&self, page: PageNo) -> usize {
        self.region_base + page.0 as usize * PAGE
    }

    /// The page of an address inside managed spans.
    pub fn managed_page(&self, address: usize) -> Option<PageNo> {
        let offset = address.wrapping_sub(self.region_base);
        let end = self.managed_spans() * SPAN;
        (offset < end).then_some(PageNo((offset / PAGE) as u32))
    }

    /// Spans from the region's start on that may hold managed memory.
    pub fn managed_spans(&self) -> usize {
        self.managed_spans.load(Ordering::Acquire)
    }

    /// The first `spans` spans may hold managed memory from now on.
    pub fn manage_up_to(&self, spans: usize) {
        self.managed_spans.fetch_max(spans, Ordering::Release);
    }

    /// Registers a range: from now on a touch of a page that is not present is a fault that we
    /// serve. The program's own mappings there, of files or shared memory, stay the kernel's: then
    /// the kernel refuses the whole range, and its halves are tried.
    pub fn register(&self, address: usize, length: usize) -> Result<()> {
        match self.register_whole(address, length) {
            Err(Errno::EINVAL) if length > PAGE => {
                let half = (length / 2).next_multiple_of(PAGE);
                self.register(address, half)?;
                self.register(address + half, length - half)
            }
            // SAFETY: memory is registered inside the gate or under the lock of growth; both are
            // closed to forks.
            Err(Errno::EINVAL) if unsafe { mapping::is_foreign(address as *mut u8) } => Ok(()),
            answer => answer,
        }
    }

    fn register_whole(&self, address: usize, length: usize) -> Result<()> {
        // SAFETY: our own region; neither advice drops anything. Pages merged by ksm would not be
        // exclusive; the answer is EINVAL where ksm is not built.
        unsafe {
            mapping::advise(address as *mut u8, length, Advice::NoHugePage)?;
            let _ = mapping::advise(address as *mut u8, length, Advice::Unmergeable);
        }
        match self.is_protectable {
            true => self.userfaultfd().register_protectable(address, length),
            false => self.userfaultfd().register_missing(address, length),
        }
    }

    /// Registers pages of windows (`lanes`): none is mapped from now on but by `map_shared`.
    pub fn register_shared(&self, first: PageNo, pages: usize) -> Result<()> {
        self.userfaultfd().register_unmapped(self.address_of(first), pages * PAGE)
    }

    /// Maps a page of a window, whose frame is there; `Exists` if it is mapped.
    pub fn map_shared(&self, page: PageNo) -> Result<Copy> {
        let mapped = self.userfaultfd().map_present(self.address_of(page));
        self.ranges.note_table(page);
        mapped
    }

    /// Protects all resident pages against writes, or ends that.
    pub fn protect(&self, on: bool) -> Result<()> {
        match self.managed_spans() * SPAN {
            0 => Ok(()),
            length => self.userfaultfd().protect(self.region_base, length, on),
        }
    }

    /// Ends the protection of so many pages.
    pub fn unprotect(&self, first: PageNo, pages: u32) -> Result<()> {
        self.userfaultfd().protect(self.address_of(first), pages as usize * PAGE, false)
    }

    /// The zapper, which takes pages out of the program's reach.
    pub fn zapper(&self) -> &Zapper {
        &self.zapper
    }

    /// `FRESH_MAX` pages of zeros, which nobody ever writes.
    pub fn zeros(&self) -> *const u8 {
        self.zeros.as_ptr()
    }

    /// Installs a page of zeros in place of an owned one that the program has taken away; `Exists`
    /// if the page is present.
    pub fn put_zeros(&self, page: PageNo) -> Result<Copy> {
        // SAFETY: a page of a managed span, owned; the zeros are pinned and never written. The
        // kernel refuses what is not registered any more.
        unsafe { self.userfaultfd().copy(self.address_of(page), self.zeros(), PAGE) }
    }

    /// `UFFDIO_COPY` of `count` consecutive pages from `source`. Another thread may have written to
    /// a page as soon as it is installed: it stays, whatever happens to the next one. A page that
    /// was present before (it was plain until a moment ago) keeps its bytes; `exists` is called
    /// with its index.
    ///
    /// The kernel copies within one mapping only. The program may have split ours, by `mprotect` or
    /// `mlock`, so pages that cannot be copied together are tried one by one.
    ///
    /// # Safety
    /// `source` holds that many pages, pinned and the caller's own; the pages are registered, and
    /// owned by the caller.
    pub unsafe fn copy_in(
        &self,
        first: PageNo,
        count: usize,
        source: *const u8,
        exists: impl Fn(usize),
    ) -> CopiedIn {
        let userfaultfd = self.userfaultfd();
        for index in 0..count as u32 {
            self.ranges.enter(PageNo(first.0 + index));
        }
        let (mut done, mut most) = (0, count);
        while done < count {
            let to = self.address_of(first) + done * PAGE;
            let pages = most.min(count - done);
            // SAFETY: the caller's promise.
            let copied = unsafe { userfaultfd.copy(to, source.add(done * PAGE), pages * PAGE) };
            match copied {
                Ok(Copy::Done) => done += pages,
                Ok(Copy::Partial(bytes)) => done += bytes / PAGE,
                Ok(Copy::Exists) => {
                    exists(done);
                    done += 1;
                }
                Err(_) if pages > 1 => most = 1,
                Err(errno) => {
                    for index in done as u32..count as u32 {
                        self.ranges.leave(PageNo(first.0 + index));
                    }
                    return CopiedIn { pages: done, refused: Some(errno) };
                }
            }
        }
        CopiedIn { pages: done, refused: None }
    }

    /// In a forked child, whose mappings have lost their userfaultfd: opens a new one and registers
    /// all managed memory with it.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub unsafe fn after_fork(&self) -> Result<()> {
        let own = match self.shares_frames {
            true => Userfaultfd::open_sharing_frames()?,
            false => Userfaultfd::open()?,
        };
        // SAFETY: by our contract nobody else uses the old one, which is closed.
        unsafe { *self.userfaultfd.0.get() = own };
        let spans = self.managed_spans();
        if spans > 0 {
            self.register(self.region_base, spans * SPAN)?;
        }
        self.zapper.after_fork();
        Ok(())
    }
}
