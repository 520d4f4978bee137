//! Prefetch: the next stretch of a scan is read by a worker while the program uses this one.
//!
//! Guarantees: bounded; a request that finds no room, in the queue or in the page buffer, is
//! dropped and nothing is lost but time. The pages a worker is bringing are busy like any other
//! arriving object: whoever touches them waits for it.
//! Never: allocates, evicts.
//! Threads: faulting threads ask, in the signal handler; the fetcher serves.

use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_heap::PageNo;
use deepheap_sys::futex;
use deepheap_sys::lock::Lock;

use crate::gate::Level;
use crate::object_table::Place;
use crate::pager::Pager;
use crate::policy::sequence::WINDOW_MAX;

/// Requests that wait at most.
const QUEUE: usize = 16;

struct Requests {
    pages: [PageNo; QUEUE],
    count: usize,
}

/// Stretches of `WINDOW_MAX` pages to be fetched, oldest first.
pub(crate) struct Prefetch {
    requests: Lock<Requests>,
    /// Counts the requests ever made; the fetcher sleeps on it.
    signal: AtomicU32,
}

impl Prefetch {
    pub(crate) fn new() -> Prefetch {
        Prefetch {
            requests: Lock::new(Requests { pages: [PageNo(0); QUEUE], count: 0 }),
            signal: AtomicU32::new(0),
        }
    }

    fn push(&self, page: PageNo) -> bool {
        let mut requests = self.requests.lock();
        let count = requests.count;
        if count == QUEUE {
            return false;
        }
        requests.pages[count] = page;
        requests.count += 1;
        true
    }

    fn pop(&self) -> Option<PageNo> {
        let mut requests = self.requests.lock();
        let count = requests.count;
        if count == 0 {
            return None;
        }
        let page = requests.pages[0];
        requests.pages.copy_within(1..count, 0);
        requests.count -= 1;
        Some(page)
    }
}

impl Pager {
    /// Asks for the stretch that begins with `page`; true if somebody will look at it.
    pub(crate) fn ask_for(&self, page: PageNo) -> bool {
        let asked = self.prefetch.push(page);
        if asked {
            self.prefetch.signal.fetch_add(1, Ordering::SeqCst);
            futex::wake(&self.prefetch.signal, 1);
        }
        asked
    }

    /// Fetcher: sleeps until somebody asks, then brings one stretch; returns the pages it brought.
    pub fn serve_prefetch(&self) -> u32 {
        loop {
            let seen = self.prefetch.signal.load(Ordering::SeqCst);
            // Inside the gate: a fork must not find the queue's lock held.
            let passage = self.gate.enter(Level::Mover);
            if let Some(page) = self.prefetch.pop() {
                return self.fetch_ahead(page);
            }
            drop(passage);
            futex::wait(&self.prefetch.signal, seen, None);
        }
    }

    fn fetch_ahead(&self, page: PageNo) -> u32 {
        if !self.page_buffer.try_reserve(1) {
            return 0;
        }
        let brought = match self.table.load(page) {
            Place::Stored(block) => self.fetch_window(page, block, WINDOW_MAX as usize),
            _ => Ok(None),
        };
        self.signal_eviction();
        match brought {
            Ok(Some(pages)) => pages,
            // What cannot be read is told to whoever touches it.
            Ok(None) | Err(_) => {
                self.page_buffer.unreserve(1);
                0
            }
        }
    }
}
