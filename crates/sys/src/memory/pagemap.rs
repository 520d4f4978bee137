//! Pagemap: finds which pages of a range are present, and which of them are only the shared zero
//! page.
//!
//! Guarantees: a page that was present or in swap during the whole call is reported. If
//! /proc/self/pagemap cannot be opened (a server that gave up its privileges may not open it, one
//! in a chroot has none), this holds only for pages that may be read.
//! Never: allocates | keeps a descriptor open | changes errno.
//! Threads: any, also in a signal handler. Under concurrent changes the answer for each page is
//! that of some moment of the call.

use crate::PAGE;
use crate::errno::{Errno, Result, Saved};
use crate::raw_call::{Descriptor, raw_call};
use core::mem::MaybeUninit;
use std::os::fd::AsRawFd;

const IOCTL_SCAN: libc::c_ulong = 0xc060_6610;
const IS_WRITTEN: u64 = 1 << 1;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO_PAGE: u64 = 1 << 5;

/// Protect what is told; refuse memory that is not tracked.
const SCAN_PROTECTS: u64 = 1 << 0;
const SCAN_IF_TRACKING: u64 = 1 << 1;

/// The most regions that the kernel answers at once: 3 KiB of stack.
const REGIONS_MAX: usize = 128;
/// Entries of /proc/self/pagemap read at once: 4 KiB of stack.
const ENTRIES_MAX: usize = 512;
/// Pages that `mincore` is asked about at once: 4 KiB of stack.
const LOOKS_MAX: usize = 4096;

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
/// pages) that are present or in swap, by rising address. Before Linux 6.7, and without
/// /proc/self/pagemap, zero pages cannot be told apart, and `is_zero_page` is true for all.
pub fn present_pages(
    addr: usize,
    len: usize,
    each: &mut dyn FnMut(usize, usize, bool),
) -> Result<()> {
    let _errno = Saved::new();
    let Ok(pagemap) = open() else { return look(addr, len, each) };
    let wanted = IS_PRESENT | IS_SWAPPED;
    let scan = Scan { flags: 0, wanted, told: wanted | IS_ZERO_PAGE };
    let scanned = scan.run(&pagemap, addr, len, &mut |first, pages, categories| {
        each(first, pages, categories & IS_ZERO_PAGE != 0);
    });
    match scanned {
        // An unknown ioctl: nothing has been reported yet.
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

/// Calls `each(first_addr, pages)` for all runs of pages in `addr..addr+len` (whole pages) that no
/// thread of this process has written since the last call for them, as far as the kernel knows; by
/// rising address. From now on it looks anew: a page that was reported, or whose content is looked
/// at after this call, has the same content when it is reported next, if nobody else writes it.
///
/// The memory is registered with a userfaultfd that `TRACKS_SHARED`, as one to be protected.
/// ENOTSUP where the kernel cannot say (before Linux 6.7, and without /proc/self/pagemap).
pub fn untouched_pages(addr: usize, len: usize, each: &mut dyn FnMut(usize, usize)) -> Result<()> {
    let _errno = Saved::new();
    let pagemap = open().map_err(|_| Errno::ENOTSUP)?;
    let scan = Scan {
        flags: SCAN_PROTECTS | SCAN_IF_TRACKING,
        // A page that left the page table while it was protected has a marker, which counts as
        // swapped.
        wanted: IS_PRESENT | IS_SWAPPED,
        told: IS_PRESENT | IS_SWAPPED | IS_WRITTEN,
    };
    let scanned = scan.run(&pagemap, addr, len, &mut |first, pages, categories| {
        if categories & IS_WRITTEN == 0 {
            each(first, pages);
        }
    });
    scanned.map_err(|errno| match errno {
        Errno::ENOTTY | Errno::EINVAL | Errno::EPERM => Errno::ENOTSUP,
        errno => errno,
    })
}

fn open() -> Result<Descriptor> {
    Descriptor::open(c"/proc/self/pagemap", libc::O_RDONLY, 0)
}

/// A question to the kernel.
struct Scan {
    flags: u64,
    /// Pages that are any of these.
    wanted: u64,
    /// The facts that it tells of them.
    told: u64,
}

impl Scan {
    fn run(
        &self,
        pagemap: &Descriptor,
        addr: usize,
        len: usize,
        each: &mut dyn FnMut(usize, usize, u64),
    ) -> Result<()> {
        let mut regions = [MaybeUninit::<Region>::uninit(); REGIONS_MAX];
        let end = (addr + len) as u64;
        let mut start = addr as u64;
        while start < end {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                flags: self.flags,
                start,
                end,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS_MAX as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: 0,
                category_anyof_mask: self.wanted,
                return_mask: self.told,
            };
            // SAFETY: the argument and the regions it points to live across the call, with the
            // sizes given.
            let answer =
                unsafe { raw_call!(SYS_ioctl, pagemap.as_raw_fd(), IOCTL_SCAN, &raw mut argument) };
            let filled = match answer {
                Ok(filled) => filled,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno),
            };
            for region in &regions[..filled] {
                // SAFETY: the kernel says that it filled in so many.
                let region = unsafe { region.assume_init() };
                let pages = (region.end - region.start) as usize / PAGE;
                each(region.start as usize, pages, region.categories);
            }
            if argument.walk_end <= start {
                // A kernel that does not move on would hold us here for ever.
                return Err(Errno::EIO);
            }
            start = argument.walk_end;
        }
        Ok(())
    }
}

/// For older kernels: reads 8 bytes for every page, present or not.
fn read_entries(
    pagemap: &Descriptor,
    addr: usize,
    len: usize,
    each: &mut dyn FnMut(usize, usize, bool),
) -> Result<()> {
    const HOLDS_SOMETHING: u64 = 1 << 63 | 1 << 62; // present, swapped
    let mut entries = [0u64; ENTRIES_MAX];
    let first = addr / PAGE;
    let pages = len / PAGE;
    let mut done = 0;
    let mut run = Run { pages: None, each };
    while done < pages {
        let wanted = (pages - done).min(ENTRIES_MAX);
        // SAFETY: the kernel writes at most `wanted` entries, which fit.
        let answer = unsafe {
            let (fd, at) = (pagemap.as_raw_fd(), (first + done) * 8);
            raw_call!(SYS_pread64, fd, entries.as_mut_ptr(), wanted * 8, at)
        };
        let got = match answer {
            Ok(bytes) => bytes / 8,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        if got == 0 {
            return Err(Errno::EIO);
        }
        for (index, entry) in entries[..got].iter().enumerate() {
            run.add((first + done + index) * PAGE, entry & HOLDS_SOMETHING != 0);
        }
        done += got;
    }
    run.end();
    Ok(())
}

/// For processes without /proc/self/pagemap.
fn look(addr: usize, len: usize, each: &mut dyn FnMut(usize, usize, bool)) -> Result<()> {
    let mut in_ram = [0u8; LOOKS_MAX];
    let mut run = Run { pages: None, each };
    for start in (addr..addr + len).step_by(LOOKS_MAX * PAGE) {
        let piece = (addr + len - start).min(LOOKS_MAX * PAGE);
        // SAFETY: one byte for each page of the piece.
        unsafe { raw_call!(SYS_mincore, start, piece, in_ram.as_mut_ptr()) }?;
        for (index, flags) in in_ram[..piece / PAGE].iter().enumerate() {
            let page = start + index * PAGE;
            run.add(page, flags & 1 != 0 || kernel_can_read(page));
        }
    }
    run.end();
    Ok(())
}

/// Whether the kernel can read a page. For that it brings a page back from swap, but it cannot make
/// a page that userfaultfd watches.
fn kernel_can_read(page: usize) -> bool {
    const NO_CHANGE: libc::c_int = -1;
    // SAFETY: the kernel reads the mask first, and then refuses NO_CHANGE: it changes nothing.
    let answer = unsafe { raw_call!(SYS_rt_sigprocmask, NO_CHANGE, page, 0, 8) };
    answer != Err(Errno::EFAULT)
}

/// A run of present pages, reported when it ends.
struct Run<'a> {
    pages: Option<(usize, usize)>,
    each: &'a mut dyn FnMut(usize, usize, bool),
}

impl Run<'_> {
    fn add(&mut self, page: usize, holds_something: bool) {
        if holds_something {
            let (start, count) = self.pages.unwrap_or((page, 0));
            self.pages = Some((start, count + 1));
        } else {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some((start, count)) = self.pages.take() {
            (self.each)(start, count, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping;
    use crate::memory::pinned_array::PinnedArray;
    use crate::memory::userfaultfd::{Userfaultfd, feature};

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
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap());
        let is_old = (numbers.next(), numbers.next()) < (Some(6), Some(7));
        for (page, seen) in seen.iter().enumerate() {
            assert_eq!(*seen, [Some(is_old), Some(true), None][page % 3], "page {page}");
        }
        assert!(is_present(at + 17).unwrap());
        assert!(!is_present(at + 2 * PAGE).unwrap());
    }

    #[test]
    fn pages_that_nobody_has_written_since_the_last_look_are_told() {
        let pages = 600;
        let file =
            crate::files::sparse_file::SparseFile::create(c"test", (pages * PAGE) as u64).unwrap();
        let at = file.map(pages * PAGE).unwrap();
        let userfaultfd = match Userfaultfd::open_with(feature::TRACKS_SHARED) {
            Err(Errno::ENOTSUP) => return, // an older kernel
            opened => opened.unwrap(),
        };
        userfaultfd.register_protectable(at as usize, pages * PAGE).unwrap();
        let bytes = [7u8; PAGE];
        for page in 0..pages {
            // SAFETY: pages of the mapping; the bytes are a page.
            unsafe { userfaultfd.copy(at as usize + page * PAGE, bytes.as_ptr(), PAGE) }.unwrap();
        }
        let untouched = || {
            let mut told = Vec::new();
            untouched_pages(at as usize, pages * PAGE, &mut |first, count| {
                let first = (first - at as usize) / PAGE;
                told.extend(first..first + count);
            })
            .unwrap();
            told
        };
        assert_eq!(untouched(), Vec::<usize>::new(), "nobody has looked before");
        assert_eq!(untouched(), (0..pages).collect::<Vec<_>>());
        for page in (0..pages).step_by(7) {
            // SAFETY: a byte of the mapping.
            unsafe { at.add(page * PAGE).write_volatile(1) };
        }
        assert_eq!(untouched(), (0..pages).filter(|page| page % 7 != 0).collect::<Vec<_>>());
        // What leaves the page table after it was written is not known any more.
        // SAFETY: bytes of the mapping, which stay in the file.
        unsafe {
            at.add(9 * PAGE).write_volatile(2);
            libc::madvise(at.cast(), 20 * PAGE, libc::MADV_DONTNEED);
        }
        let told = untouched();
        assert!(!told.contains(&9) && told.contains(&8) && told.contains(&300));
        // SAFETY: mapped above.
        unsafe { mapping::unmap(at, pages * PAGE) }.unwrap();
    }

    #[test]
    fn fallbacks_tell_the_same_pages_and_call_all_of_them_zero_pages() {
        let pages = 15_000;
        let memory = touched(pages);
        let at = memory.as_ptr() as usize;
        // Without this the kernel would make a page for each address that is looked at.
        let userfaultfd = Userfaultfd::open().unwrap();
        userfaultfd.register_missing(at, pages * PAGE).unwrap();
        for is_open in [true, false] {
            let mut told = 0;
            let mut each = |first: usize, count, zero: bool| {
                assert!(zero);
                assert_eq!(((first - at) / PAGE % 3, count), (0, 2));
                told += count;
            };
            if is_open {
                read_entries(&open().unwrap(), at, pages * PAGE, &mut each).unwrap();
            } else {
                look(at, pages * PAGE, &mut each).unwrap();
            }
            assert_eq!(told, 10_000);
        }
    }
}
