//! Costs: what a page costs to install and to extract, with and without a busy sibling thread.
//! Prints; run on request: `cargo test --release -p deepheap-sys --test costs -- --ignored
//! --nocapture`.

#![allow(clippy::unwrap_used)] // all of this file is a test

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use deepheap_sys::PAGE;
use deepheap_sys::memory::page_extractor::{PageExtractor, Taken, Victim};
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::memory::userfaultfd::{Copy, Userfaultfd};
use deepheap_sys::memory::zap::Zapper;
use std::time::{Duration, Instant};

const PAGES: usize = 1 << 18;
const BATCHES: u32 = 200;

fn nanoseconds_a_page(time: Duration, pages: usize) -> u128 {
    time.as_nanos() / pages as u128 / u128::from(BATCHES)
}

fn measure(busy: bool) {
    let memory = PinnedArray::<u8>::new(PAGES * PAGE).unwrap();
    let uffd = Userfaultfd::open().unwrap();
    uffd.register_missing(memory.as_ptr() as usize, PAGES * PAGE).unwrap();
    let (zapper, mut extractor) = (Zapper::new(), PageExtractor::new().unwrap());
    let batch = extractor.batch();
    let source = vec![1u8; PAGE];
    let buffer = PinnedArray::<u8>::new(batch * PAGE).unwrap();
    let into: Vec<_> = (0..batch).map(|page| buffer.as_ptr().wrapping_add(page * PAGE)).collect();
    let mut taken = vec![Taken::Missing; batch];
    let (mut install, mut extract, mut zap) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut seed = 88_172_645_463_325_252_u64;
    for round in 0..2 * BATCHES {
        let mut victims = Vec::new();
        let start = Instant::now();
        while victims.len() < batch {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let addr = memory.as_ptr() as usize + seed as usize % PAGES * PAGE;
            // SAFETY: registered; the source is a page.
            if unsafe { uffd.copy(addr, source.as_ptr(), PAGE) } == Ok(Copy::Done) {
                victims.push(Victim {
                    addr,
                    offset: 0,
                    len: PAGE,
                    may_be_shared: false,
                    clears_range: false,
                });
            }
        }
        install += start.elapsed() / 2;
        let start = Instant::now();
        if round % 2 == 0 {
            // SAFETY: installed just now, untouched since; nobody forks.
            unsafe { extractor.extract(&zapper, &victims, &into, &mut taken) }.unwrap();
            extract += start.elapsed();
            assert!(taken.iter().all(|taken| *taken == Taken::Copied));
        } else {
            let range =
                |victim: &Victim| libc::iovec { iov_base: victim.addr as *mut _, iov_len: PAGE };
            let ranges: Vec<_> = victims.iter().map(range).collect();
            // SAFETY: the test's own memory.
            unsafe { zapper.zap(&ranges) }.unwrap();
            zap += start.elapsed();
        }
    }
    eprintln!(
        "busy sibling {busy}, batch {batch}, batched zap {}, a page: \
         install {} ns, extract {} ns, zap {} ns",
        zapper.is_batched(),
        nanoseconds_a_page(install, batch),
        nanoseconds_a_page(extract, batch),
        nanoseconds_a_page(zap, batch),
    );
}

#[test]
#[ignore = "prints measurements"]
fn costs_of_a_page() {
    measure(false);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                core::hint::spin_loop();
            }
        });
        measure(true);
        stop.store(true, Relaxed);
    });
}
