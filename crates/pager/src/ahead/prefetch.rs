//! Prefetch: the queues of objects that were asked for because they will be wanted soon.
//!
//! There are four: windows of a scan, which go into the page buffer; objects that the program
//! named, or that equal steps lead to; objects that a trail comes to; and pages whose
//! neighbours are wanted. The last three go into the object cache.
//!
//! Guarantees: bounded; a request that finds no room in its queue is dropped, which costs only
//! time.
//! Never: allocates.
//! Threads: any may ask inside the gate, also in the signal handler; the fetchers (`fetcher`)
//! serve.

use deepheap_heap::PageNo;
use deepheap_policy::sequence::Direction;
use deepheap_residency::staging::CALL_PIECES;
use deepheap_sys::threads::atomic::{AtomicU32, Ordering};
use deepheap_sys::threads::futex;
use deepheap_sys::threads::lock::Lock;

use crate::ahead::window::Window;

/// Stretches that wait at most.
const STRETCHES: usize = 64;
/// Pages whose neighbours wait at most.
const BESIDE: usize = 64;
/// Objects that wait at most.
const OBJECTS: usize = 1024;

/// Requests that wait, oldest first.
pub(crate) struct Queue<T, const N: usize> {
    waiting: [T; N],
    first: usize,
    count: usize,
}

impl<T: Copy, const N: usize> Queue<T, N> {
    /// An empty one; `filler` is never seen.
    const fn new(filler: T) -> Self {
        Queue { waiting: [filler; N], first: 0, count: 0 }
    }

    pub(crate) fn push(&mut self, new: T) -> bool {
        if self.count == N {
            return false;
        }
        self.waiting[(self.first + self.count) % N] = new;
        self.count += 1;
        true
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.count == 0 {
            return None;
        }
        let oldest = self.waiting[self.first];
        self.first = (self.first + 1) % N;
        self.count -= 1;
        Some(oldest)
    }
}

/// Requests to fetch ahead.
pub(crate) struct Prefetch {
    pub(crate) stretches: Lock<Queue<Window, STRETCHES>>,
    pub(crate) objects: Lock<Queue<PageNo, OBJECTS>>,
    /// Objects that trails come to.
    pub(crate) on_trails: Lock<Queue<PageNo, OBJECTS>>,
    /// Pages whose neighbours are wanted.
    pub(crate) beside: Lock<Queue<PageNo, BESIDE>>,
    /// Whether walks in equal steps are fetched ahead.
    pub(crate) follows_strides: bool,
    /// Counts all requests; the fetchers sleep on it.
    pub(crate) signal: AtomicU32,
}

impl Prefetch {
    pub(crate) fn new(follows_strides: bool) -> Prefetch {
        Prefetch {
            stretches: Lock::new(Queue::new(Window::stretch(PageNo(0), Direction::Up))),
            objects: Lock::new(Queue::new(PageNo(0))),
            on_trails: Lock::new(Queue::new(PageNo(0))),
            beside: Lock::new(Queue::new(PageNo(0))),
            follows_strides,
            signal: AtomicU32::new(0),
        }
    }

    /// Asks for the window of a scan that begins with `page`; true if it found room in the queue.
    pub(crate) fn ask_for(&self, page: PageNo, direction: Direction) -> bool {
        let asked = self.stretches.lock().push(Window::stretch(page, direction));
        if asked {
            self.wake(1);
        }
        asked
    }

    /// Asks for objects, as long as there is room in their queue; returns how many were asked for.
    /// The queue is locked only if there is one, and the iterator must not fault.
    pub(crate) fn ask_for_all(
        &self,
        queue: &Lock<Queue<PageNo, OBJECTS>>,
        pages: impl Iterator<Item = PageNo>,
    ) -> usize {
        let mut pages = pages.peekable();
        if pages.peek().is_none() {
            return 0;
        }
        let mut queue = queue.lock();
        let asked = pages.take_while(|&page| queue.push(page)).count();
        drop(queue);
        if asked > 0 {
            self.wake(asked.div_ceil(CALL_PIECES) as u32);
        }
        asked
    }

    /// Asks for the neighbours of `page`.
    pub(crate) fn ask_for_beside(&self, page: PageNo) {
        if self.beside.lock().push(page) {
            self.wake(1);
        }
    }

    /// Whether no queue is locked now.
    #[cfg(test)]
    pub(crate) fn is_unlocked(&self) -> bool {
        let objects = [&self.objects, &self.on_trails].map(|queue| queue.try_lock().is_some());
        let others = (self.stretches.try_lock().is_some(), self.beside.try_lock().is_some());
        objects == [true; 2] && others == (true, true)
    }

    /// Wakes so many of the fetchers.
    pub(crate) fn wake(&self, fetchers: u32) {
        self.signal.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.signal, fetchers);
    }
}
