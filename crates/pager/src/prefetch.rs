//! Prefetch: workers read what will be wanted soon: the next stretches of a scan into the page
//! buffer, single objects that the program named, and neighbours (`neighbours`), into the object
//! cache.
//!
//! The first object of a stretch goes into the object cache instead, as a mark: the fault on it is
//! a cheap one and tells that the scan has come so far.
//!
//! Guarantees: bounded; a request that finds no room, in the queue or in DRAM, is dropped and
//! nothing is lost but time. What a worker is bringing is busy like any other arriving object:
//! whoever touches it waits for it.
//! Never: allocates.
//! Threads: any may ask, faulting ones in the signal handler; the fetchers serve.

use deepheap_heap::PageNo;
use deepheap_sys::atomic::{AtomicU32, Ordering};
use deepheap_sys::futex;
use deepheap_sys::lock::Lock;
use deepheap_sys::signals::Blocked;

use crate::access::{Operation, Piece, WINDOW_PIECES};
use crate::evict::Moves;
use crate::fetch::Window;
use crate::gate::Level;
use crate::object_table::Place;
use crate::pager::Pager;
use crate::policy::sequence::Direction;

/// Stretches that wait at most.
const STRETCHES: usize = 64;
/// Pages whose neighbours wait at most.
const BESIDE: usize = 64;
/// Objects that wait at most.
const OBJECTS: usize = 1024;

/// What waits, oldest first.
struct Queue<T, const N: usize> {
    waiting: [T; N],
    first: usize,
    count: usize,
}

impl<T: Copy, const N: usize> Queue<T, N> {
    /// An empty one; `filler` is never seen.
    const fn new(filler: T) -> Self {
        Queue { waiting: [filler; N], first: 0, count: 0 }
    }

    fn push(&mut self, new: T) -> bool {
        if self.count == N {
            return false;
        }
        self.waiting[(self.first + self.count) % N] = new;
        self.count += 1;
        true
    }

    fn pop(&mut self) -> Option<T> {
        if self.count == 0 {
            return None;
        }
        let oldest = self.waiting[self.first];
        self.first = (self.first + 1) % N;
        self.count -= 1;
        Some(oldest)
    }
}

/// What was asked for.
pub(crate) struct Prefetch {
    stretches: Lock<Queue<Window, STRETCHES>>,
    objects: Lock<Queue<PageNo, OBJECTS>>,
    /// Each stands for its neighbours.
    beside: Lock<Queue<PageNo, BESIDE>>,
    /// Counts the requests ever made; the fetchers sleep on it.
    signal: AtomicU32,
}

impl Prefetch {
    pub(crate) fn new() -> Prefetch {
        Prefetch {
            stretches: Lock::new(Queue::new(Window::stretch(PageNo(0), Direction::Up))),
            objects: Lock::new(Queue::new(PageNo(0))),
            beside: Lock::new(Queue::new(PageNo(0))),
            signal: AtomicU32::new(0),
        }
    }

    fn wake(&self, fetchers: u32) {
        self.signal.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.signal, fetchers);
    }
}

impl Pager {
    /// Asks for the stretch that a scan begins with `page`; true if somebody will look at it.
    pub(crate) fn ask_for(&self, page: PageNo, direction: Direction) -> bool {
        let asked = self.prefetch.stretches.lock().push(Window::stretch(page, direction));
        if asked {
            self.prefetch.wake(1);
        }
        asked
    }

    /// Asks for the neighbours of `page`.
    pub(crate) fn ask_for_beside(&self, page: PageNo) {
        if self.prefetch.beside.lock().push(page) {
            self.prefetch.wake(1);
        }
    }

    /// Asks for the objects at these addresses; returns how many are stored and will be brought.
    /// The others are in DRAM, nowhere, or too many. What yields the addresses must not fault.
    pub fn prefetch(&self, addresses: impl Iterator<Item = usize>) -> usize {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        let mut started = 0usize;
        let mut objects = self.prefetch.objects.lock();
        for page in addresses.filter_map(|address| self.managed_page(address)) {
            if matches!(self.table.load(page), Place::Stored(_)) {
                if !objects.push(page) {
                    break;
                }
                started += 1;
            }
        }
        drop(objects);
        if started > 0 {
            self.prefetch.wake(started.div_ceil(WINDOW_PIECES) as u32);
        }
        started
    }

    /// Fetcher: sleeps until somebody asks, then brings one stretch, or a window of objects;
    /// returns the pages it brought.
    pub fn serve_prefetch(&self, moves: &mut Moves) -> u32 {
        let mut pieces = [Piece { address: 0, length: 0 }; WINDOW_PIECES];
        loop {
            let seen = self.prefetch.signal.load(Ordering::SeqCst);
            // Inside the gate: a fork must not find a queue's lock held.
            let passage = self.gate.enter(Level::Mover);
            let stretch = self.prefetch.stretches.lock().pop();
            if let Some(stretch) = stretch {
                return self.fetch_ahead(stretch, moves);
            }
            let mut count = 0;
            let mut objects = self.prefetch.objects.lock();
            while count < WINDOW_PIECES
                && let Some(page) = objects.pop()
            {
                // Asked for twice, or touched meanwhile: there is nothing to bring.
                if matches!(self.table.load(page), Place::Stored(_)) {
                    pieces[count].address = self.address_of(page);
                    count += 1;
                }
            }
            drop(objects);
            let mut operation = Operation::Fetch;
            if count == 0
                && let Some(page) = self.prefetch.beside.lock().pop()
            {
                operation = Operation::FetchBeside;
                count = self.neighbours_of(page, &mut pieces);
            }
            drop(passage);
            if count > 0 {
                let buffer = self.access_buffer();
                // What cannot be read is told to whoever touches it.
                let _ = self.access(operation, &pieces[..count], &buffer, moves);
                return count as u32;
            }
            if operation == Operation::FetchBeside {
                continue; // they are on their way already: what else is there
            }
            futex::wait(&self.prefetch.signal, seen, None);
        }
    }

    fn fetch_ahead(&self, stretch: Window, moves: &mut Moves) -> u32 {
        let Some((window, block)) = self.first_stored(stretch) else { return 0 };
        // Before anything is owned: this may wait. Without a slot the stretch has no mark.
        let mut mark = self.slot_for(window.page, moves).unwrap_or(None);
        let mut pages = 0;
        if self.page_buffer.try_reserve(1) {
            match self.fetch_window(window, block, &mut mark) {
                Ok(Some(brought)) => pages = brought.pages,
                // What cannot be read is told to whoever touches it.
                Ok(None) | Err(_) => self.page_buffer.unreserve(1),
            }
        }
        if let Some(slot) = mark {
            self.cache.give_back(slot);
        }
        self.signal_eviction();
        pages
    }
}
