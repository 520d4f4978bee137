//! Lost write hunt: no increment is lost while pages are taken out and put back under the threads
//! that increment them; on fresh pages, on pages that were the shared zero page, and across forks.
//!
//! A page is a name in a small pager of the test's own: OUT (its bytes are in `cache`), BUSY (a
//! fault or an eviction is at it) or IN (the program sees it). One process, one test: SIGBUS is
//! one.

#![allow(clippy::unwrap_used)] // all of this file is a test

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use deepheap_sys::PAGE;
use deepheap_sys::faults::fault_signal::{self, Fault, Verdict};
use deepheap_sys::memory::page_extractor::{BATCH_MAX, PageExtractor, Taken, Victim};
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::memory::userfaultfd::{Copy, Userfaultfd};
use deepheap_sys::memory::zap::Zapper;
use deepheap_sys::threads::lock::Lock;
use std::collections::VecDeque;
use std::sync::{OnceLock, RwLock};

const OUT: u8 = 0;
const BUSY: u8 = 1;
const IN: u8 = 2;

const PAGES: usize = 4096;
const RESIDENT_WANTED: usize = 1024;
/// Above this the writers wait for the evictors.
const RESIDENT_MAX: usize = 2048;
const COUNTERS_A_PAGE: usize = PAGE / 8;
/// Children that share our pages at a time.
const CHILDREN_MAX: usize = 3;
const WRITERS: u64 = 4;
const EVICTORS: usize = 2;

/// Set in the environment: pages that may be shared are not said to be.
const CANARY: &str = "DEEPHEAP_HUNT_CANARY";

/// Set in the environment: pages leave as they do where vmsplice is refused.
const MOVES: &str = "DEEPHEAP_HUNT_MOVES";

struct Pager {
    memory: PinnedArray<u8>,
    cache: PinnedArray<u8>,
    state: PinnedArray<AtomicU8>,
    /// 1: the page may be shared (it was resident at a fork, or a zero page).
    shared: PinnedArray<AtomicU8>,
    resident: AtomicUsize,
    faults: AtomicU64,
    evicted: AtomicU64,
    uffd: Userfaultfd,
    zapper: Zapper,
    /// Break the rule on purpose: the hunt must find the loss.
    canary: bool,
    /// Evictions read, forks write: no fork in the middle of an eviction.
    fork_gate: RwLock<()>,
}

static PAGER: OnceLock<Pager> = OnceLock::new();

fn fault(fault: &Fault) -> Verdict {
    let Some(pager) = PAGER.get() else { return Verdict::NotOurs };
    let offset = fault.address.wrapping_sub(pager.memory.as_ptr() as usize);
    if offset >= PAGES * PAGE {
        return Verdict::NotOurs;
    }
    let page = offset / PAGE;
    if pager.state[page].compare_exchange(OUT, BUSY, AcqRel, Acquire).is_err() {
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
        return Verdict::Retry;
    }
    let bytes = pager.cache.as_ptr().wrapping_add(page * PAGE);
    // Before the copy: a fork that comes after the copy must find its mark kept.
    pager.shared[page].store(0, Release);
    // SAFETY: `memory` is registered, and BUSY makes the page's cache bytes ours.
    let copied =
        unsafe { pager.uffd.copy(pager.memory.as_ptr() as usize + page * PAGE, bytes, PAGE) };
    if copied != Ok(Copy::Done) {
        return Verdict::Fatal;
    }
    pager.resident.fetch_add(1, Relaxed);
    pager.faults.fetch_add(1, Relaxed);
    pager.state[page].store(IN, Release);
    Verdict::Retry
}

impl Pager {
    fn counter(&self, page: usize, index: usize) -> &AtomicU64 {
        // SAFETY: inside the memory, aligned, and only ever used atomically.
        unsafe { &*self.memory.as_ptr().add(page * PAGE + index * 8).cast::<AtomicU64>() }
    }

    /// Takes a batch of resident pages from `hand` on.
    fn evict(&self, extractor: &mut PageExtractor, hand: &mut usize) {
        let _no_fork = self.fork_gate.read().unwrap();
        let mut victims = Vec::new();
        for _ in 0..PAGES {
            *hand = (*hand + 1) % PAGES;
            let claimed = self.state[*hand].compare_exchange(IN, BUSY, AcqRel, Acquire).is_ok();
            if claimed {
                let addr = self.memory.as_ptr() as usize + *hand * PAGE;
                let may_be_shared = self.shared[*hand].load(Acquire) == 1 && !self.canary;
                victims.push(Victim {
                    addr,
                    offset: 0,
                    len: PAGE,
                    may_be_shared,
                    clears_range: false,
                });
            }
            if victims.len() == extractor.batch() {
                break;
            }
        }
        let page = |victim: &Victim| (victim.addr - self.memory.as_ptr() as usize) / PAGE;
        let into: Vec<_> = victims
            .iter()
            .map(|victim| self.cache.as_ptr().wrapping_add(page(victim) * PAGE))
            .collect();
        let mut taken = vec![Taken::Unreadable; victims.len()];
        // SAFETY: the victims are claimed, registered, in small pages; `shared` is set at forks,
        // which the gate keeps out; the cache bytes of claimed pages are ours.
        unsafe { extractor.extract(&self.zapper, &victims, &into, &mut taken) }.unwrap();
        for (victim, taken) in victims.iter().zip(&taken) {
            assert_eq!(*taken, Taken::Copied);
            self.state[page(victim)].store(OUT, Release);
        }
        self.resident.fetch_sub(victims.len(), Relaxed);
        self.evicted.fetch_add(victims.len() as u64, Relaxed);
    }

    fn sum(&self) -> u64 {
        (0..PAGES)
            .map(|page| {
                (0..COUNTERS_A_PAGE)
                    .map(|index| self.counter(page, index).load(Relaxed))
                    .fold(0u64, u64::wrapping_add)
            })
            .fold(0u64, u64::wrapping_add)
    }

    /// All threads increment `rounds` times each, evictors at work; exact sums after it.
    fn hunt(&self, rounds: u64, forks: bool) {
        let before = self.sum();
        let left = AtomicU32::new(WRITERS as u32);
        let children = Lock::new(VecDeque::new());
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let left = &left;
                scope.spawn(move || {
                    let mut seed = writer * 77_777 + 0x9e37_79b9;
                    for _ in 0..rounds {
                        while self.resident.load(Relaxed) > RESIDENT_MAX {
                            std::thread::yield_now();
                        }
                        seed ^= seed << 13;
                        seed ^= seed >> 7;
                        seed ^= seed << 17;
                        let page = seed as usize % PAGES;
                        self.counter(page, (seed >> 40) as usize % 16).fetch_add(1, Relaxed);
                    }
                    left.fetch_sub(1, AcqRel);
                });
            }
            for evictor in 0..EVICTORS {
                let left = &left;
                scope.spawn(move || {
                    let mut extractor = match std::env::var_os(MOVES) {
                        Some(_) => PageExtractor::by_moving(BATCH_MAX).unwrap(),
                        None => PageExtractor::new().unwrap(),
                    };
                    let mut hand = evictor * PAGES / EVICTORS;
                    while left.load(Acquire) > 0 {
                        if self.resident.load(Relaxed) > RESIDENT_WANTED {
                            self.evict(&mut extractor, &mut hand);
                        } else {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while forks && left.load(Acquire) > 0 {
                let no_eviction = self.fork_gate.write().unwrap();
                let mut children = children.lock();
                children.push_back(pause_in_child());
                if children.len() > CHILDREN_MAX {
                    children.pop_front().into_iter().for_each(end);
                }
                // Also the pages that arrived meanwhile: `fault` clears the flag before it
                // installs.
                for shared in self.shared.iter() {
                    shared.store(1, Release);
                }
                drop(no_eviction);
                std::thread::sleep(core::time::Duration::from_millis(20));
            }
        });
        children.lock().drain(..).for_each(end);
        assert_eq!(self.sum() - before, WRITERS * rounds, "writes were lost");
    }
}

/// A child that shares our pages for as long as it lives and touches none of them.
fn pause_in_child() -> i32 {
    // SAFETY: the child makes async-signal-safe calls only.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            loop {
                libc::pause();
            }
        }
        assert!(child > 0);
        child
    }
}

fn end(child: i32) {
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
}

#[test]
fn no_write_is_lost() {
    fault_signal::install(fault).unwrap();
    let memory = PinnedArray::<u8>::new(PAGES * PAGE).unwrap();
    let uffd = Userfaultfd::open().unwrap();
    let (state, shared) = (PinnedArray::new(PAGES).unwrap(), PinnedArray::new(PAGES).unwrap());
    // A plain span: a quarter written, a quarter read (the shared zero page), then put under
    // management. The rest is OUT.
    let (mut resident, mut written) = (0, 0);
    for page in 0..PAGES / 2 {
        let state: &AtomicU8 = &state[page];
        let shared: &AtomicU8 = &shared[page];
        // SAFETY: inside the memory.
        unsafe {
            let word = memory.as_ptr().add(page * PAGE).cast::<u64>();
            if page % 2 == 0 {
                word.write_volatile(1);
                written += 1;
            } else {
                word.read_volatile();
                shared.store(1, Relaxed);
            }
        }
        state.store(IN, Relaxed);
        resident += 1;
    }
    uffd.register_missing(memory.as_ptr() as usize, PAGES * PAGE).unwrap();
    let pager = PAGER.get_or_init(|| Pager {
        memory,
        cache: PinnedArray::new(PAGES * PAGE).unwrap(),
        state,
        shared,
        resident: AtomicUsize::new(resident),
        faults: AtomicU64::new(0),
        evicted: AtomicU64::new(0),
        uffd,
        zapper: Zapper::new(),
        canary: std::env::var_os(CANARY).is_some(),
        fork_gate: RwLock::new(()),
    });
    // The zero pages are there from here on: nobody has written them, all writers start at once.
    pager.hunt(30_000, false);
    assert_eq!(pager.sum(), written + WRITERS * 30_000);
    pager.hunt(20_000, true);
    let (faults, evicted) = (pager.faults.load(Relaxed), pager.evicted.load(Relaxed));
    eprintln!("faults {faults}, evicted {evicted}");
    assert!(evicted > 20_000, "the evictors were at work");
}

/// Hunts in a process of its own; answers whether it ended well, and what it said.
fn hunt_with(setting: &str) -> (bool, String) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let command = command.args(["--exact", "no_write_is_lost"]).env(setting, "1");
    let output = command.output().unwrap();
    // With panic = "abort" the harness may or may not capture what the test says.
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn no_write_is_lost_where_vmsplice_is_refused() {
    if PageExtractor::by_moving(1).is_err() {
        return; // before Linux 6.8
    }
    let (succeeded, said) = hunt_with(MOVES);
    assert!(succeeded, "{said}");
}

#[test]
fn the_hunt_finds_a_lost_write() {
    let losing = (0..8).any(|_| hunt_with(CANARY).1.contains("writes were lost"));
    assert!(losing, "writes between splice and zap of a shared page are lost, and were not missed");
}
