//! Pagemap: which pages of a range hold something, and which are only the shared zero page.
//!
//! Guarantees: a page that was present or in swap during the whole call is told.
//! Never: allocates | keeps a descriptor open | changes errno.
//! Threads: any, also in a signal handler. Under concurrent changes the answer is of some moment of
//! the call, page by page.

use crate::PAGE;
use crate::errno::{Errno, Result, Saved, check};
use core::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const IOCTL_SCAN: libc::c_ulong = 0xc060_6610;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO_PAGE: u64 = 1 << 5;

/// Regions the kernel may answer at once: 3 KiB of stack.
const REGIONS_MAX: usize = 128;
/// Entries of /proc/self/pagemap read at once: 4 KiB of stack.
const ENTRIES_MAX: usize = 512;

#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<ScanArgument>() == 96 && size_of::<Region>() == 24);

/// Calls `each(first_addr, pages, is_zero_page)` for all runs of pages in `addr..addr+len` (whole
/// pages) that are present or in swap, by rising address. Before Linux 6.7 zero pages cannot be
/// told apart, and `is_zero_page` is true for all.
pub fn present_pages(
    addr: usize,
    len: usize,
    each: &mut dyn FnMut(usize, usize, bool),
) -> Result<()> {
    let _errno = Saved::new();
    let pagemap = open()?;
    match scan(&pagemap, addr, len, each) {
        // An unknown ioctl: nothing has been told yet.
        Err(Errno::ENOTTY | Errno::EINVAL) => read_entries(&pagemap, addr, len, each),
        answer => answer,
    }
}

/// True if the page of `addr` is present or in swap.
pub fn is_present(addr: usize) -> Result<bool> {
    let mut found = false;
    present_pages(addr & !(PAGE - 1), PAGE, &mut |_, _, _| found = true)?;
    Ok(found)
}

fn open() -> Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a literal with its NUL.
    let fd = check(unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), flags) }.into())?;
    // SAFETY: a new descriptor of ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn scan(
    pagemap: &OwnedFd,
    addr: usize,
    len: usize,
    each: &mut dyn FnMut(usize, usize, bool),
) -> Result<()> {
    let mut regions = [MaybeUninit::<Region>::uninit(); REGIONS_MAX];
    let end = (addr + len) as u64;
    let mut start = addr as u64;
    while start < end {
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            flags: 0,
            start,
            end,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS_MAX as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            return_mask: IS_PRESENT | IS_SWAPPED | IS_ZERO_PAGE,
        };
        // SAFETY: the argument and the regions it points to live across the call, sizes as told.
        let answer = unsafe { libc::ioctl(pagemap.as_raw_fd(), IOCTL_SCAN, &raw mut argument) };
        let filled = match check(answer.into()) {
            Ok(filled) => filled,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        for region in &regions[..filled] {
            // SAFETY: the kernel says that it filled in so many.
            let region = unsafe { region.assume_init() };
            let pages = (region.end - region.start) as usize / PAGE;
            each(region.start as usize, pages, region.categories & IS_ZERO_PAGE != 0);
        }
        if argument.walk_end <= start {
            return Err(Errno::EIO); // a kernel that does not move on would hold us here for ever
        }
        start = argument.walk_end;
    }
    Ok(())
}

/// The way of older kernels: 8 bytes for every page, present or not.
fn read_entries(
    pagemap: &OwnedFd,
    addr: usize,
    len: usize,
    each: &mut dyn FnMut(usize, usize, bool),
) -> Result<()> {
    const HOLDS_SOMETHING: u64 = 1 << 63 | 1 << 62; // present, swapped
    let mut entries = [0u64; ENTRIES_MAX];
    let first = addr / PAGE;
    let pages = len / PAGE;
    let mut done = 0;
    let mut run: Option<(usize, usize)> = None;
    while done < pages {
        let wanted = (pages - done).min(ENTRIES_MAX);
        // SAFETY: the kernel writes at most `wanted` entries, which fit.
        let answer = unsafe {
            libc::pread(
                pagemap.as_raw_fd(),
                entries.as_mut_ptr().cast(),
                wanted * 8,
                ((first + done) * 8) as libc::off_t,
            )
        };
        let got = match check(answer as libc::c_long) {
            Ok(bytes) => bytes / 8,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        if got == 0 {
            return Err(Errno::EIO);
        }
        for (index, entry) in entries[..got].iter().enumerate() {
            if entry & HOLDS_SOMETHING != 0 {
                let at = (first + done + index) * PAGE;
                run = Some(run.map_or((at, 1), |(start, count)| (start, count + 1)));
            } else if let Some((start, count)) = run.take() {
                each(start, count, true);
            }
        }
        done += got;
    }
    if let Some((start, count)) = run {
        each(start, count, true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pinned_array::PinnedArray;

    /// Every third page written, the pages after them read: zero pages.
    fn touched(pages: usize) -> PinnedArray<u8> {
        let mut memory = PinnedArray::<u8>::new(pages * PAGE).unwrap();
        for page in (0..pages - 1).step_by(3) {
            memory[page * PAGE] = 1;
            // SAFETY: inside the array.
            unsafe { memory.as_ptr().add((page + 1) * PAGE).read_volatile() };
        }
        memory
    }

    #[test]
    fn present_pages_are_told_once_and_zero_pages_known() {
        let pages = 1500;
        let memory = touched(pages);
        let at = memory.as_ptr() as usize;
        let mut seen = vec![None; pages];
        present_pages(at, pages * PAGE, &mut |first, count, zero| {
            for page in 0..count {
                let known = seen[(first - at) / PAGE + page].replace(zero);
                assert_eq!(known, None);
            }
        })
        .unwrap();
        for (page, seen) in seen.iter().enumerate() {
            assert_eq!(*seen, [Some(false), Some(true), None][page % 3], "page {page}");
        }
        assert!(is_present(at + 17).unwrap());
        assert!(!is_present(at + 2 * PAGE).unwrap());
    }

    #[test]
    fn fallback_tells_the_same_pages_and_calls_all_of_them_zero_pages() {
        let pages = 1500;
        let memory = touched(pages);
        let at = memory.as_ptr() as usize;
        let mut told = 0;
        read_entries(&open().unwrap(), at, pages * PAGE, &mut |first, count, zero| {
            assert!(zero);
            assert_eq!(((first - at) / PAGE % 3, count), (0, 2));
            told += count;
        })
        .unwrap();
        assert_eq!(told, 1000);
    }
}
