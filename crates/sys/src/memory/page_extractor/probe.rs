//! Probe: finds whether this kernel keeps a page mapped that is also in a pipe, or copies it.
//!
//! The argument of `page_extractor` needs a store to an exclusive page to go to the physical page
//! that the pipe holds. It must do so also after the page was write-protected for a while, by the
//! program's mprotect or by the kernel, so that the store faults. Linux 5.19 and later mark
//! exclusive anonymous pages, and reuse them at such a fault. Linux 5.8 to 5.18 counted references
//! instead, and copied a page that a pipe refers to: the store was in the copy, and not in the
//! pipe.
//!
//! Never: touches memory other than its own.
//! Threads: any, outside the fault path.

use super::{open_pipe, readv, vmsplice};
use crate::PAGE;
use crate::errno::{Errno, Result, Saved, check};
use crate::files::own_descriptor::OwnDescriptor;
use crate::memory::mapping::{self, Advice};
use crate::memory::page_mover::moves_pages;
use libc::iovec;

const OLD: u8 = 1;
const NEW: u8 = 2;

/// The histories of a page after which a store must not move it. Each is tried on a page of its
/// own.
const WAYS: [Way; 3] = [Way::ProtectedBefore, Way::ProtectedWhileSpliced, Way::MadeExclusive];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Written, and then write-protected for a moment.
    ProtectedBefore,
    /// Write-protected for a moment while it is in the pipe.
    ProtectedWhileSpliced,
    /// First the shared zero page, then made exclusive as eviction does.
    MadeExclusive,
}

/// Whether pages can be taken out without losing a store: through a pipe, or by moving them where
/// vmsplice is refused. Takes a tenth of a millisecond or two.
///
/// Err: there is no pipe or no memory to find out with; EPERM, ENOSYS: vmsplice is refused, and
/// pages cannot be moved.
pub fn sees_stores() -> Result<bool> {
    match pipe_sees_stores() {
        Err(Errno::EPERM | Errno::ENOSYS) if moves_pages() => Ok(true),
        answer => answer,
    }
}

/// Whether stores to a page that is in a pipe can be read from the pipe, whatever happened to the
/// page.
fn pipe_sees_stores() -> Result<bool> {
    let _errno = Saved::new();
    let (reader, writer, _) = open_pipe(super::BATCH_MAX)?;
    let bytes = (WAYS.len() + 1) * PAGE;
    let memory = mapping::map_pinned(bytes)?;
    // A fork of another thread must not share the pages. SAFETY: our own memory, which no child
    // needs.
    unsafe { mapping::advise(memory, bytes, Advice::DontFork) }?;
    // SAFETY: the first page is read to, each other one is for one way; nobody else knows them.
    let sees = WAYS.iter().zip(1..).try_fold(true, |sees, (way, index)| unsafe {
        Ok(sees & sees_store(*way, memory.add(index * PAGE), memory, &reader, &writer)?)
    });
    // SAFETY: as mapped above; the pipe, if it still holds a page, has a reference of its own.
    unsafe { mapping::unmap(memory, bytes) }?;
    sees
}

/// # Safety
/// `page` and `buffer` are pages of the caller's, the first one untouched.
unsafe fn sees_store(
    way: Way,
    page: *mut u8,
    buffer: *mut u8,
    reader: &OwnDescriptor,
    writer: &OwnDescriptor,
) -> Result<bool> {
    if way == Way::MadeExclusive {
        // SAFETY: the caller's page; the advice changes no content.
        unsafe {
            page.read_volatile();
            if mapping::advise(page, PAGE, Advice::PopulateWrite).is_err() {
                return Ok(false); // before 5.14
            }
        }
    } else {
        // SAFETY: the caller's page.
        unsafe { page.write_volatile(OLD) };
    }
    if way == Way::ProtectedBefore {
        protect_for_a_moment(page)?;
    }
    let whole = |start: *mut u8| [iovec { iov_base: start.cast(), iov_len: PAGE }];
    until_done(|| vmsplice(writer, &whole(page)))?;
    if way == Way::ProtectedWhileSpliced {
        protect_for_a_moment(page)?;
    }
    // SAFETY: the caller's page, which is writable again.
    unsafe { page.write_volatile(NEW) };
    until_done(|| readv(reader, &whole(buffer)))?;
    // SAFETY: the caller's buffer.
    Ok(unsafe { buffer.read_volatile() } == NEW)
}

/// Older kernels leave the page write-protected afterwards, until a store faults.
fn protect_for_a_moment(page: *mut u8) -> Result<()> {
    for rights in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
        // SAFETY: a page of the probe's, which nobody touches meanwhile.
        check(unsafe { libc::mprotect(page.cast(), PAGE, rights) }.into())?;
    }
    Ok(())
}

/// Repeats a call while a signal interrupts it. A pipe takes and gives whole pages.
fn until_done(call: impl Fn() -> Result<usize>) -> Result<()> {
    loop {
        match call() {
            Ok(PAGE) => return Ok(()),
            Ok(_) => return Err(Errno::EIO),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_leaves_a_page_that_is_in_a_pipe_where_it_is() {
        assert_eq!(pipe_sees_stores(), Ok(true));
        assert_eq!(sees_stores(), Ok(true));
    }

    /// What the probe must notice: a page that is not exclusive is copied by the store.
    #[test]
    fn a_store_to_a_page_that_is_shared_is_not_seen() {
        let (reader, writer, _) = open_pipe(super::super::BATCH_MAX).expect("a pipe");
        let memory = mapping::map_pinned(2 * PAGE).expect("memory");
        // SAFETY: two pages of this test.
        let seen = unsafe {
            memory.add(PAGE).read_volatile(); // the shared zero page
            let page = iovec { iov_base: memory.add(PAGE).cast(), iov_len: PAGE };
            until_done(|| vmsplice(&writer, &[page])).expect("spliced");
            memory.add(PAGE).write_volatile(NEW);
            let buffer = iovec { iov_base: memory.cast(), iov_len: PAGE };
            until_done(|| readv(&reader, &[buffer])).expect("read");
            memory.read_volatile()
        };
        assert_ne!(seen, NEW);
    }
}
