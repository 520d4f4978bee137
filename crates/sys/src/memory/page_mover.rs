//! Page mover: takes pages out of the program by moving them elsewhere (UFFDIO_MOVE, Linux 6.8),
//! where no pipe can hold them: the seccomp profiles of Podman and CRI-O refuse vmsplice.
//!
//! The kernel clears a page's entry, puts the same physical page behind an address in the mover's
//! room, and flushes the TLB of every processor before it returns. So a store before its
//! processor's flush is in the page that was moved, and a later one faults. A page that is shared,
//! or pinned by the kernel, is not moved. Nor is memory that may not be written, or that is locked.
//!
//! Never: allocates after `new` | changes errno | touches managed memory itself.
//! Threads: one at a time for each mover. A child of a fork makes its own.

use crate::PAGE;
use crate::errno::Result;
use crate::memory::mapping::{self, Advice};
use crate::memory::pinned_array::PinnedArray;
use crate::memory::userfaultfd::{Userfaultfd, feature};
use std::os::fd::{AsRawFd, RawFd};

/// See the file's header.
#[derive(Debug)]
pub struct PageMover {
    /// The one that the room is registered with. What is moved may have another.
    userfaultfd: Userfaultfd,
    room: PinnedArray<u8>,
}

impl PageMover {
    /// Room for so many pages. ENOTSUP: this kernel moves none.
    pub fn new(pages: usize) -> Result<PageMover> {
        let userfaultfd = Userfaultfd::open_with(feature::MOVE)?;
        let room = PinnedArray::new(pages * PAGE)?;
        userfaultfd.register_missing(room.as_ptr() as usize, pages * PAGE)?;
        Ok(PageMover { userfaultfd, room })
    }

    /// A page of the room. It is there while it holds one that was moved.
    pub fn at(&self, index: usize) -> *mut u8 {
        self.room.as_ptr().wrapping_add(index * PAGE)
    }

    /// Moves consecutive pages to those of the room from `index` on: the first ones of them, if not
    /// all. Answers how many. Errors are those of the first one, or that a mapping ends among them.
    ///
    /// # Safety
    /// The pages are private anonymous memory of the caller's to take. Those of the room are empty,
    /// and there are as many.
    pub unsafe fn take(&self, index: usize, address: usize, pages: usize) -> Result<usize> {
        // SAFETY: the caller's promise.
        let bytes =
            unsafe { self.userfaultfd.take(self.at(index) as usize, address, pages * PAGE) }?;
        Ok(bytes / PAGE)
    }
}

impl AsRawFd for PageMover {
    fn as_raw_fd(&self) -> RawFd {
        self.userfaultfd.as_raw_fd()
    }
}

/// Whether this kernel moves pages, and lets us.
pub fn moves_pages() -> bool {
    let (Ok(mover), Ok(page)) = (PageMover::new(1), PinnedArray::<u8>::new(PAGE)) else {
        return false;
    };
    let (from, to) = (page.as_ptr(), mover.at(0));
    // SAFETY: two pages of this function's; what is in the room is read when it is there.
    unsafe {
        // A fork of another thread must not share the page.
        let _ = mapping::advise(from, PAGE, Advice::DontFork);
        from.write_volatile(1);
        mover.take(0, from as usize, 1).is_ok()
            && (from.read_volatile(), to.read_volatile()) == (0, 1)
    }
}
