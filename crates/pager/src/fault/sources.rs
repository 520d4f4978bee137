//! Sources: files that pages have their first bytes from, until the program has changed them.
//!
//! A page of a range with a source is *the file's* as long as it is `Zero` and was not taken: a
//! first touch reads it from the file, and takes it. A taken page is memory like any other. If a
//! page leaves RAM unchanged, it is the file's again: no store keeps it.
//!
//! | taken | copy | means |
//! |---|---|---|
//! | no | no | the file's: `Zero` stands for what the file has |
//! | yes | yes | in the page buffer since it was read; its hash is that of what was read |
//! | yes | no | the process's own: `Zero` stands for zeros |
//!
//! Guarantees: only the owner of a page changes its bits, and only while it owns it they hold. A
//! thread that sees `Zero` without owning the page does not know what that stands for (`cover`).
//! Never: allocates, but in `add`. Its bits take RAM only where pages were taken.
//! Threads: any; `add`, `forget` and `end` one at a time.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use deepheap_heap::PageNo;
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::files::direct_file::DirectFile;
use deepheap_sys::memory::pinned_array::PinnedArray;

use crate::PAGE;

/// Files at a time.
pub const SOURCES_MAX: usize = 64;

/// A file, and the pages that it gives; or a free place.
struct Source {
    first: AtomicU32,
    /// The page behind the last one; 0: nobody asks any more.
    end: AtomicU32,
    file: AtomicPtr<DirectFile>,
    file_bytes: AtomicU64,
}

/// See the file's header.
pub(crate) struct Sources {
    taken: PinnedArray<AtomicU64>,
    copies: PinnedArray<AtomicU64>,
    files: [Source; SOURCES_MAX],
    /// How many places were ever used.
    used: AtomicUsize,
}

impl Sources {
    /// None so far, for a region of `pages` pages.
    pub(crate) fn new(pages: usize) -> Result<Sources> {
        let free = || Source {
            first: AtomicU32::new(0),
            end: AtomicU32::new(0),
            file: AtomicPtr::new(null_mut()),
            file_bytes: AtomicU64::new(0),
        };
        Ok(Sources {
            taken: PinnedArray::new(pages.div_ceil(64))?,
            copies: PinnedArray::new(pages.div_ceil(64))?,
            files: core::array::from_fn(|_| free()),
            used: AtomicUsize::new(0),
        })
    }

    /// From now on those of the pages that are `Zero` are the file's; the program does not know
    /// them yet. False: there are as many files as can be.
    ///
    /// A thread that claims a page looks here afterwards, and the caller looks at the pages after
    /// this. The last step, as a claim, is a locked instruction: a full fence on x86_64. So either
    /// the owner of a page finds the file, or the caller finds the page owned.
    pub(crate) fn add(&self, first: PageNo, pages: usize, file: DirectFile, bytes: u64) -> bool {
        let free = self.files.iter().position(|source| source.file.load(Relaxed).is_null());
        let Some(index) = free else { return false };
        self.clear(first, pages);
        let source = &self.files[index];
        source.first.store(first.0, Relaxed);
        source.file_bytes.store(bytes, Relaxed);
        source.file.store(Box::into_raw(Box::new(file)), Release);
        source.end.store(first.0 + pages as u32, Release);
        self.used.fetch_max(index + 1, Release);
        true
    }

    /// From now on no page is the file's that begins there. Answers how many pages it had.
    pub(crate) fn forget(&self, first: PageNo) -> Option<usize> {
        let source = self.sources().find(|source| {
            source.first.load(Relaxed) == first.0 && source.end.load(Acquire) != 0
        })?;
        Some((source.end.swap(0, Release) - first.0) as usize)
    }

    /// Ends the file whose pages were forgotten and have all been owned once since then, so that
    /// nobody reads it, or gives a page back to it.
    pub(crate) fn end(&self, first: PageNo, pages: usize) {
        let is_forgotten = |source: &&Source| {
            source.first.load(Relaxed) == first.0 && source.end.load(Relaxed) == 0
        };
        for source in self.sources().filter(is_forgotten) {
            let file = source.file.swap(null_mut(), Relaxed);
            if !file.is_null() {
                // SAFETY: `add` made it of a box; nobody uses it, as the caller says.
                drop(unsafe { Box::from_raw(file) });
            }
        }
        self.clear(first, pages);
    }

    /// Clears the bits of pages. Looks first: an untouched part of the table takes no RAM.
    fn clear(&self, first: PageNo, pages: usize) {
        let (mut page, end) = (first.index(), first.index() + pages);
        while page < end {
            let next = (page / 64 + 1).saturating_mul(64).min(end);
            let bits = u64::MAX >> (64 - (next - page)) << (page % 64);
            for word in [&self.taken[page / 64], &self.copies[page / 64]] {
                if word.load(Relaxed) & bits != 0 {
                    word.fetch_and(!bits, Relaxed);
                }
            }
            page = next;
        }
    }

    /// Whether one of these pages has a file: then only its owner knows what `Zero` stands for.
    pub(crate) fn cover(&self, first: PageNo, pages: usize) -> bool {
        self.used.load(Acquire) != 0
            && self.sources().any(|source| {
                first.index() < source.end.load(Acquire) as usize
                    && first.index() + pages > source.first.load(Relaxed) as usize
            })
    }

    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.files[..self.used.load(Acquire)].iter()
    }

    fn source_of(&self, page: PageNo) -> Option<&Source> {
        self.sources().find(|source| {
            page.0 < source.end.load(Acquire) && page.0 >= source.first.load(Relaxed)
        })
    }

    /// Whether the page, which is `Zero`, is the file's. For a thread that does not own it, a hint.
    pub(crate) fn is_of_file(&self, page: PageNo) -> bool {
        self.used.load(Acquire) != 0 && self.source_of(page).is_some() && {
            let (word, bit) = place_of(page);
            self.taken[word].load(Acquire) & bit == 0
        }
    }

    /// How many pages from this one on have the same file, this one included.
    pub(crate) fn pages_from(&self, page: PageNo) -> usize {
        let source = self.source_of(page);
        source.map_or(0, |source| source.end.load(Acquire).saturating_sub(page.0) as usize)
    }

    /// Reads `pages` pages, all of one file. ENODATA: it is shorter than it was.
    ///
    /// # Safety
    /// `into` has room for them, and nobody else uses it.
    pub(crate) unsafe fn read(&self, page: PageNo, pages: usize, into: *mut u8) -> Result<()> {
        let source = self.source_of(page).ok_or(Errno::ENODATA)?;
        debug_assert!(page.index() + pages <= source.end.load(Acquire) as usize);
        let offset = u64::from(page.0 - source.first.load(Relaxed)) * PAGE as u64;
        let wanted = source.file_bytes.load(Relaxed).saturating_sub(offset);
        let wanted = wanted.min((pages * PAGE) as u64) as usize;
        // SAFETY: set before the range was, and ended after it; `into` is the caller's promise.
        let got = unsafe {
            let file = &*source.file.load(Acquire);
            file.read_up_to(into, pages * PAGE, offset)?
        };
        if got < wanted {
            return Err(Errno::ENODATA);
        }
        // SAFETY: as above.
        unsafe { into.add(wanted).write_bytes(0, pages * PAGE - wanted) };
        Ok(())
    }

    /// The owner has read the page, and is about to install it as it is.
    pub(crate) fn take_copy(&self, page: PageNo) {
        let (word, bit) = place_of(page);
        self.copies[word].fetch_or(bit, Relaxed);
        self.taken[word].fetch_or(bit, Release);
    }

    /// The owner makes the page the process's own; nothing if it has no source.
    pub(crate) fn take(&self, page: PageNo) {
        if self.used.load(Acquire) == 0 {
            return;
        }
        let (word, bit) = place_of(page);
        if self.copies[word].load(Relaxed) & bit != 0 {
            self.copies[word].fetch_and(!bit, Relaxed);
        }
        if self.source_of(page).is_some() {
            self.taken[word].fetch_or(bit, Release);
        }
    }

    /// Whether the owned page has been in the page buffer since it was read. It has left now: from
    /// here on it is the process's own, if it is not given back.
    pub(crate) fn end_copy(&self, page: PageNo) -> bool {
        if self.used.load(Acquire) == 0 {
            return false;
        }
        let (word, bit) = place_of(page);
        self.copies[word].load(Relaxed) & bit != 0
            && self.copies[word].fetch_and(!bit, Relaxed) & bit != 0
            && self.source_of(page).is_some()
    }

    /// The owner gives the page back to the file, and publishes it as `Zero` then.
    pub(crate) fn give_back(&self, page: PageNo) {
        let (word, bit) = place_of(page);
        self.copies[word].fetch_and(!bit, Relaxed);
        self.taken[word].fetch_and(!bit, Release);
    }
}

fn place_of(page: PageNo) -> (usize, u64) {
    (page.0 as usize / 64, 1 << (page.0 % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_page_is_the_files_until_it_is_taken_and_again_when_it_is_given_back() {
        let path = std::env::temp_dir().join(format!("deepheap-source-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&[7; PAGE + 100]).unwrap();
        let sources = Sources::new(1 << 20).unwrap();
        let page = PageNo;
        assert!(!sources.is_of_file(page(1000)));
        let file = DirectFile::open_in_place(&path, false).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(sources.add(page(1000), 2, file, PAGE as u64 + 100));
        assert!(sources.is_of_file(page(1001)) && !sources.is_of_file(page(1002)));
        let beside = DirectFile::open_in_place("/proc/self/exe".as_ref(), false).unwrap();
        assert!(sources.add(page(1002), 5, beside, 5 * PAGE as u64));
        assert_eq!(
            [1000, 1001, 1002, 1007].map(|first| sources.pages_from(page(first))),
            [2, 1, 5, 0]
        );
        let mut bytes = PinnedArray::<u8>::new(2 * PAGE).unwrap();
        // SAFETY: room for two pages.
        unsafe { sources.read(page(1000), 2, bytes.as_ptr()) }.unwrap();
        assert_eq!((bytes[PAGE + 99], bytes[PAGE + 100]), (7, 0));
        bytes[0] = 1;
        sources.take_copy(page(1000));
        assert!(!sources.is_of_file(page(1000)) && sources.end_copy(page(1000)));
        assert!(!sources.end_copy(page(1000)));
        sources.give_back(page(1000));
        assert!(sources.is_of_file(page(1000)));
        sources.take(page(1000));
        assert!(!sources.is_of_file(page(1000)) && !sources.end_copy(page(1000)));
        assert_eq!(sources.forget(page(1000)), Some(2));
        assert!(!sources.is_of_file(page(1001)));
        sources.end(page(1000), 2);
        assert_eq!(sources.forget(page(1000)), None);
    }

    #[test]
    fn what_was_taken_of_one_file_is_not_taken_of_the_next_and_neighbours_stay() {
        let sources = Sources::new(1 << 12).unwrap();
        let file = || DirectFile::open_in_place("/proc/self/exe".as_ref(), false).unwrap();
        for (first, pages) in [(0, 1), (3, 61), (63, 2), (64, 64), (100, 300)] {
            let (first, end) = (PageNo(first), PageNo(first + pages));
            assert!(sources.add(first, pages as usize, file(), 1 << 30));
            assert!(sources.cover(first, 1) && sources.cover(PageNo(end.0 - 1), 9));
            assert!(!sources.cover(end, 9));
            (first.0..end.0).for_each(|page| sources.take(PageNo(page)));
            let taken =
                |page: u32| sources.taken[page as usize / 64].load(Relaxed) >> (page % 64) & 1;
            assert!((first.0..end.0).all(|page| taken(page) == 1));
            // A bit of a neighbour, which is another file's.
            sources.taken[end.index() / 64].fetch_or(1 << (end.0 % 64), Relaxed);
            let had = sources.forget(first).unwrap();
            assert!(!sources.cover(first, had));
            sources.end(first, had);
            assert!((first.0..end.0).all(|page| taken(page) == 0) && taken(end.0) == 1);
            sources.taken[end.index() / 64].store(0, Relaxed);
        }
    }
}
