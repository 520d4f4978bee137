//! Objects shorter than a page are taken out whole, exactly, and their page tables go with them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use deepheap_sys::PAGE;
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::page_extractor::{PageExtractor, RANGE, Taken, Victim};
use deepheap_sys::memory::pagemap;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::memory::zap::Zapper;

/// Page tables are counted for the whole process: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lengths that are short, odd, whole, and neighbours that must not run together.
const LENGTHS: [usize; 8] = [1, 128, PAGE, PAGE, 4095, 8, 2048, 136];

fn byte(victim: usize, at: usize) -> u8 {
    (victim * 31 + at * 7 + 1) as u8
}

/// Kilobytes of page tables of this process.
fn page_tables() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmPTE:")).expect("VmPTE");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// Fills a page for each length in every `stride` bytes of `memory`, takes them all out.
fn take_out(memory: *mut u8, stride: usize, clears_range: bool) -> Vec<(usize, Vec<u8>)> {
    let (mut extractor, zapper) = (PageExtractor::new().expect("a pipe"), Zapper::new());
    let mut victims = Vec::new();
    for (index, len) in LENGTHS.into_iter().enumerate() {
        let addr = memory as usize + index * stride;
        for at in 0..PAGE {
            // SAFETY: inside the mapping, which has a page every `stride` bytes.
            unsafe { (addr as *mut u8).add(at).write(byte(index, at)) };
        }
        victims.push(Victim { addr, offset: 0, len, may_be_shared: false, clears_range });
    }
    let mut out = PinnedArray::<u8>::new(LENGTHS.len() * PAGE).expect("memory");
    let base = out.get_mut(..).expect("all of it").as_mut_ptr();
    // SAFETY: a page for each victim.
    let into: Vec<*mut u8> = (0..LENGTHS.len()).map(|n| unsafe { base.add(n * PAGE) }).collect();
    let mut taken = [Taken::Missing; LENGTHS.len()];
    // SAFETY: private memory of this test's own, used by no other thread.
    unsafe { extractor.extract(&zapper, &victims, &into, &mut taken) }.expect("taken out");
    assert_eq!(taken, [Taken::Copied; LENGTHS.len()]);
    assert!(victims.iter().all(|victim| pagemap::is_present(victim.addr) == Ok(false)));
    let page = |n: usize| out.get(n * PAGE..(n + 1) * PAGE).expect("a page").to_vec();
    LENGTHS.into_iter().enumerate().map(|(n, len)| (len, page(n))).collect()
}

fn check(out: &[(usize, Vec<u8>)]) {
    for (index, (len, page)) in out.iter().enumerate() {
        assert!((0..*len).all(|at| page[at] == byte(index, at)), "object {index}");
        assert!(page[*len..].iter().all(|byte| *byte == 0), "more than object {index} came out");
    }
}

#[test]
fn exactly_the_bytes_of_each_object_come_out() {
    let _turn = turn();
    let memory = mapping::map_pinned(LENGTHS.len() * PAGE).expect("memory");
    check(&take_out(memory, PAGE, false));
}

#[test]
fn page_tables_of_emptied_ranges_are_given_back() {
    let _turn = turn();
    let memory = mapping::map_pinned((LENGTHS.len() + 1) * RANGE).expect("memory");
    let first = (memory as usize).next_multiple_of(RANGE) as *mut u8;
    let before = page_tables();
    check(&take_out(first, RANGE, true));
    let kept = page_tables().saturating_sub(before);
    // As the zapper has found out: kernels before 6.14 keep them.
    let gone = kept < LENGTHS.len() * 4;
    assert_eq!(gone, Zapper::new().frees_page_tables(), "{kept} KiB of page tables stayed");
}

#[test]
fn a_page_that_cannot_be_taken_is_not_dropped_with_its_range() {
    let _turn = turn();
    let memory = mapping::map_pinned(2 * RANGE).expect("memory");
    let first = (memory as usize).next_multiple_of(RANGE);
    let (mut extractor, zapper) = (PageExtractor::new().expect("a pipe"), Zapper::new());
    let addresses = [first, first + 8 * PAGE];
    for addr in addresses {
        // SAFETY: inside the mapping.
        unsafe { (addr as *mut u8).write(7) };
    }
    // SAFETY: the page is this test's own.
    unsafe { assert_eq!(libc::mprotect(addresses[0] as *mut _, PAGE, libc::PROT_NONE), 0) };
    let victims = [(addresses[0], false), (addresses[1], true)].map(|(addr, clears_range)| {
        Victim { addr, offset: 0, len: 64, may_be_shared: false, clears_range }
    });
    let mut out = [[0u8; PAGE]; 2];
    let into = [out[0].as_mut_ptr(), out[1].as_mut_ptr()];
    let mut taken = [Taken::Missing; 2];
    // SAFETY: private memory of this test's own, used by no other thread.
    unsafe { extractor.extract(&zapper, &victims, &into, &mut taken) }.expect("taken out");
    assert_eq!(taken, [Taken::Unreadable, Taken::Copied]);
    // SAFETY: the page is this test's own; readable again.
    unsafe {
        assert_eq!(libc::mprotect(addresses[0] as *mut _, PAGE, libc::PROT_READ), 0);
        assert_eq!(*(addresses[0] as *const u8), 7, "it went with its range");
    }
}
