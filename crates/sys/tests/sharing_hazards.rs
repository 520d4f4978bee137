//! Sharing hazards: what the extractor's argument rests on, shown one step at a time: a store after
//! the splice is lost to the pipe if the page was shared, and is not once populate_write broke the
//! sharing.

#![allow(clippy::unwrap_used)] // all of this file is a test

use std::sync::{Mutex, MutexGuard, PoisonError};

use deepheap_sys::PAGE;
use deepheap_sys::memory::page_extractor::{BATCH_MAX, PageExtractor, RANGE, Taken, Victim};
use deepheap_sys::memory::pagemap;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::memory::userfaultfd::Userfaultfd;
use deepheap_sys::memory::zap::Zapper;
use libc::iovec;

/// A fork shares the pages of every test in this process: one at a time.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Splices the page's first byte, stores 7, and answers what the pipe holds.
fn pipe_sees(page: *mut u8) -> u8 {
    let mut ends = [0; 2];
    let mut seen = [0u8; 1];
    let range = iovec { iov_base: page.cast(), iov_len: 1 };
    // SAFETY: a pipe of our own, a page of our own, a buffer of one byte.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::vmsplice(ends[1], &range, 1, 0), 1);
        page.write_volatile(7);
        assert_eq!(libc::read(ends[0], seen.as_mut_ptr().cast(), 1), 1);
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    seen[0]
}

fn populate(page: *mut u8) {
    Zapper::new().populate_write(&[iovec { iov_base: page.cast(), iov_len: PAGE }]).unwrap();
}

/// Runs `body` while a child shares our memory.
fn with_child(body: impl FnOnce()) {
    // SAFETY: the child makes async-signal-safe calls only, and is waited for.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            loop {
                libc::pause();
            }
        }
        body();
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
}

#[test]
fn the_zero_page_loses_a_store_and_populate_write_cures_it() {
    let _turn = turn();
    let memory = PinnedArray::<u8>::new(2 * PAGE).unwrap();
    let (sick, cured) = (memory.as_ptr(), memory.as_ptr().wrapping_add(PAGE));
    assert_eq!((memory[0], memory[PAGE]), (0, 0)); // the reads map the zero page
    assert_eq!(pipe_sees(sick), 0, "the hazard is gone from this kernel");
    populate(cured);
    assert_eq!(pipe_sees(cured), 7);
}

#[test]
fn a_page_shared_by_fork_loses_a_store_and_populate_write_cures_it() {
    let _turn = turn();
    let mut memory = PinnedArray::<u8>::new(2 * PAGE).unwrap();
    (memory[0], memory[PAGE]) = (1, 1);
    let (sick, cured) = (memory.as_ptr(), memory.as_ptr().wrapping_add(PAGE));
    with_child(|| {
        assert_eq!(pipe_sees(sick), 1, "the hazard is gone from this kernel");
        populate(cured);
        assert_eq!(pipe_sees(cured), 7);
    });
}

/// One with a pipe, and one that moves pages, where this kernel does.
fn extractors() -> impl Iterator<Item = PageExtractor> {
    let moving = match PageExtractor::by_moving(BATCH_MAX) {
        Err(deepheap_sys::Errno::ENOTSUP) => None, // before Linux 6.8
        opened => Some(opened.unwrap()),
    };
    [PageExtractor::new().unwrap()].into_iter().chain(moving)
}

/// Extracts all pages of `memory` and tells what became of them and their first bytes.
fn extract_all(
    extractor: &mut PageExtractor,
    memory: &PinnedArray<u8>,
    may_be_shared: bool,
) -> (Vec<Taken>, Vec<u8>) {
    let pages = memory.len() / PAGE;
    let buffer = PinnedArray::<u8>::new(pages * PAGE).unwrap();
    let at = |array: &PinnedArray<u8>, page: usize| array.as_ptr().wrapping_add(page * PAGE);
    // Every other page first, so that neither side is one run.
    let order: Vec<usize> = (0..pages).step_by(2).chain((1..pages).step_by(2)).collect();
    let victims: Vec<_> = order
        .iter()
        .map(|page| Victim {
            addr: at(memory, *page) as usize,
            offset: 0,
            len: PAGE,
            may_be_shared,
            clears_range: false,
        })
        .collect();
    let into: Vec<_> = order.iter().map(|page| at(&buffer, *page)).collect();
    let mut taken = vec![Taken::Unreadable; pages];
    let zapper = Zapper::new();
    // SAFETY: one thread, no fork meanwhile; pages the test wrote itself.
    unsafe { extractor.extract(&zapper, &victims, &into, &mut taken) }.unwrap();
    let mut by_page = vec![Taken::Unreadable; pages];
    for (page, taken) in order.iter().zip(taken) {
        by_page[*page] = taken;
    }
    (by_page, (0..pages).map(|page| buffer[page * PAGE]).collect())
}

#[test]
fn extract_tells_copied_missing_and_unreadable_page_by_page() {
    let _turn = turn();
    let uffd = Userfaultfd::open().unwrap();
    let cases = extractors().zip(extractors()).map(|(one, other)| [(one, false), (other, true)]);
    for (mut extractor, may_be_shared) in cases.flatten() {
        let pages = extractor.batch();
        let mut memory = PinnedArray::<u8>::new(pages * PAGE).unwrap();
        let start = memory.as_ptr();
        for page in (0..pages).filter(|page| page % 3 != 0) {
            memory[page * PAGE] = page as u8;
        }
        uffd.register_missing(start as usize, pages * PAGE).unwrap();
        // Present, and neither the kernel nor we may read it.
        let closed = start.wrapping_add(10 * PAGE);
        // SAFETY: a page of the test's own.
        unsafe { assert_eq!(libc::mprotect(closed.cast(), PAGE, libc::PROT_NONE), 0) };
        let (taken, bytes) = extract_all(&mut extractor, &memory, may_be_shared);
        for page in 0..pages {
            let expected = match page {
                10 => Taken::Unreadable,
                _ if page % 3 == 0 => Taken::Missing,
                _ => Taken::Copied,
            };
            assert_eq!(taken[page], expected, "page {page}");
            let present = pagemap::is_present(start as usize + page * PAGE).unwrap();
            assert_eq!(present, page == 10, "what is copied is gone, what is not stays");
            if expected == Taken::Copied {
                assert_eq!(bytes[page], page as u8);
            }
        }
    }
}

#[test]
fn extract_takes_shared_pages_whole_and_leaves_the_childs_alone() {
    let _turn = turn();
    for mut extractor in extractors() {
        let mut memory = PinnedArray::<u8>::new(BATCH_MAX.min(extractor.batch()) * PAGE).unwrap();
        memory.fill(9);
        with_child(|| {
            let (taken, bytes) = extract_all(&mut extractor, &memory, true);
            assert!(taken.iter().all(|taken| *taken == Taken::Copied));
            assert!(bytes.iter().all(|byte| *byte == 9));
        });
    }
}

#[test]
fn a_page_that_is_shared_and_not_said_to_be_is_not_moved() {
    let _turn = turn();
    let Some(mut extractor) = extractors().nth(1) else { return };
    let mut memory = PinnedArray::<u8>::new(PAGE).unwrap();
    memory[0] = 5;
    with_child(|| {
        let (taken, _) = extract_all(&mut extractor, &memory, false);
        assert_eq!((taken[0], memory[0]), (Taken::Unreadable, 5));
    });
}

#[test]
fn extract_refuses_what_does_not_fit_and_touches_nothing() {
    let _turn = turn();
    let mut extractor = PageExtractor::new().unwrap();
    let mut taken = [Taken::Copied; 2];
    let victims =
        [Victim { addr: 0, offset: 0, len: PAGE, may_be_shared: true, clears_range: false }];
    // SAFETY: refused by its lengths.
    let answer = unsafe { extractor.extract(&Zapper::new(), &victims, &[], &mut taken) };
    assert_eq!(answer, Err(deepheap_sys::Errno::EINVAL));
    assert_eq!(taken, [Taken::Unreadable; 2]);
    // SAFETY: no victims.
    unsafe { extractor.extract(&Zapper::new(), &[], &[], &mut []) }.unwrap();
}

#[test]
fn extractor_works_on_in_the_child_of_a_fork() {
    let _turn = turn();
    for mut extractor in extractors() {
        let before = extractor.descriptors();
        extractor.after_fork().unwrap();
        // SAFETY: fcntl without memory arguments: the old descriptors are closed or used again.
        let is_open = |fd: &&i32| unsafe { libc::fcntl(**fd, libc::F_GETFD) } >= 0;
        let open = before.iter().filter(is_open).count();
        let now = extractor.descriptors();
        assert!(open <= now.iter().filter(|fd| before.contains(fd)).count() + 2);
        let mut memory = PinnedArray::<u8>::new(PAGE).unwrap();
        memory[0] = 3;
        let (taken, bytes) = extract_all(&mut extractor, &memory, false);
        assert_eq!((taken[0], bytes[0]), (Taken::Copied, 3));
    }
}

#[test]
fn a_range_that_is_cleared_is_gone_and_what_stays_in_it_stays() {
    const RANGE_PAGES: usize = 512;
    let _turn = turn();
    for mut extractor in extractors() {
        let memory = PinnedArray::<u8>::new(2 * RANGE).unwrap();
        let start = (memory.as_ptr() as usize).next_multiple_of(RANGE);
        let at = |page: usize| (start + page * PAGE) as *mut u8;
        let buffer = PinnedArray::<u8>::new(2 * PAGE).unwrap();
        for closed in [None, Some(at(RANGE_PAGES - 1))] {
            let victims = [0, RANGE_PAGES - 1].map(|page| Victim {
                addr: at(page) as usize,
                offset: 8,
                len: 16,
                may_be_shared: false,
                clears_range: true,
            });
            let into = [0, 1].map(|page| buffer.as_ptr().wrapping_add(page * PAGE));
            let mut taken = [Taken::Unreadable; 2];
            // SAFETY: pages inside `memory`; one thread, no fork meanwhile.
            unsafe {
                for page in [0, RANGE_PAGES - 1] {
                    at(page).add(8).write_volatile(1);
                }
                if let Some(page) = closed {
                    assert_eq!(libc::mprotect(page.cast(), PAGE, libc::PROT_NONE), 0);
                }
                extractor.extract(&Zapper::new(), &victims, &into, &mut taken).unwrap();
            }
            let stays = closed.is_some();
            assert_eq!(
                taken,
                [Taken::Copied, if stays { Taken::Unreadable } else { Taken::Copied }]
            );
            assert_eq!(buffer[0], 1);
            assert_eq!(pagemap::is_present(at(RANGE_PAGES - 1) as usize), Ok(stays));
            assert_eq!(pagemap::is_present(at(0) as usize), Ok(false));
        }
    }
}
