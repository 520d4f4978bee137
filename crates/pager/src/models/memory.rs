//! Memory: what a thread of a scene sees when it loads: loom's to say.
//!
//! Every atomic has a cell of loom's, made when it is first used. The memory itself has the newest
//! value always.
//!
//! Threads: those of a scene, which run one at a time.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::panic::Location;
use core::sync::atomic::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

use deepheap_sys::threads::schedule::{Access, Scheduler, Word};
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread::{self, Thread, ThreadId};

/// An operation of the code, and the order that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Site {
    at: &'static Location<'static>,
    order: Ordering,
}

impl PartialOrd for Site {
    fn partial_cmp(&self, other: &Site) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Site {
    fn cmp(&self, other: &Site) -> core::cmp::Ordering {
        let key = |site: &Site| (site.at, format!("{:?}", site.order));
        key(self).cmp(&key(other))
    }
}

/// An operation that gets another order than the code says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weakened {
    site: Site,
    to: Ordering,
}

impl Site {
    /// The ways to weaken it.
    pub(super) fn weaker(&self) -> Vec<Weakened> {
        use Ordering::*;
        let all: &[Ordering] = match self.order {
            SeqCst => &[AcqRel, Relaxed],
            AcqRel => &[Acquire, Release, Relaxed],
            Acquire | Release => &[Relaxed],
            _ => &[],
        };
        all.iter().map(|&to| Weakened { site: *self, to }).collect()
    }
}

impl Weakened {
    /// The line of the code.
    pub(super) fn line(&self) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join(self.site.at.file())).unwrap_or_default();
        text.lines().nth(self.site.at.line() as usize - 1).unwrap_or_default().trim().into()
    }
}

impl fmt::Display for Weakened {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.site.at;
        let (file, line, from) = (at.file(), at.line(), self.site.order);
        write!(out, "{from:?} as {:?} in {file}:{line}: {}", self.to, self.line())
    }
}

/// A thread that sleeps.
struct Sleeper {
    word: usize,
    thread: Thread,
    is_woken: Rc<Cell<bool>>,
}

/// See the file's header.
pub(super) struct Memory {
    cells: RefCell<HashMap<usize, Rc<AtomicU64>>>,
    /// The threads that did something, and whether their last `SeqCst` operation was a store.
    threads: RefCell<Vec<(ThreadId, bool)>>,
    sleepers: RefCell<Vec<Sleeper>>,
    sites: RefCell<BTreeSet<Site>>,
    weakened: Option<Weakened>,
}

// SAFETY: the threads of a scene run one at a time, on one thread of the system.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(weakened: Option<Weakened>) -> Memory {
        Memory {
            cells: RefCell::default(),
            threads: RefCell::default(),
            sleepers: RefCell::default(),
            sites: RefCell::default(),
            weakened,
        }
    }

    /// An execution begins.
    pub(super) fn begin(&self) {
        self.cells.take();
        self.threads.take();
        self.sleepers.take();
    }

    /// The operations that there were.
    pub(super) fn sites(&self) -> BTreeSet<Site> {
        self.sites.borrow().clone()
    }

    fn cell(&self, word: Word) -> Rc<AtomicU64> {
        let make = || Rc::new(AtomicU64::new(word.read()));
        self.cells.borrow_mut().entry(word.address).or_insert_with(make).clone()
    }

    fn number(&self) -> usize {
        let (id, mut threads) = (thread::current().id(), self.threads.borrow_mut());
        threads.iter().position(|thread| thread.0 == id).unwrap_or_else(|| {
            threads.push((id, false));
            threads.len() - 1
        })
    }

    /// The order that the operation has, and whether it is `SeqCst`.
    fn order(&self, order: Ordering, at: &'static Location<'static>) -> Ordering {
        let site = Site { at, order };
        self.sites.borrow_mut().insert(site);
        self.weakened.filter(|weakened| weakened.site == site).map_or(order, |weakened| weakened.to)
    }

    /// Before an operation of this order: between a `SeqCst` store of a thread and its next
    /// `SeqCst` operation there is a fence.
    fn begin_operation(&self, order: Ordering, stores: bool) {
        if order == Ordering::SeqCst {
            let number = self.number();
            if core::mem::replace(&mut self.threads.borrow_mut()[number].1, stores) {
                fence(Ordering::SeqCst);
            }
        }
    }
}

fn of_load(order: Ordering) -> Ordering {
    match order {
        Ordering::AcqRel | Ordering::SeqCst => Ordering::Acquire,
        Ordering::Release => Ordering::Relaxed,
        other => other,
    }
}

fn of_store(order: Ordering) -> Ordering {
    match order {
        Ordering::AcqRel | Ordering::SeqCst => Ordering::Release,
        Ordering::Acquire => Ordering::Relaxed,
        other => other,
    }
}

fn of_change(order: Ordering) -> Ordering {
    if order == Ordering::SeqCst { Ordering::AcqRel } else { order }
}

impl Scheduler for Memory {
    fn point(&self, must_yield: bool) {
        if must_yield && !std::thread::panicking() {
            thread::yield_now();
        }
    }

    fn access(&self, word: Word, access: &Access<'_>, from: &'static Location<'static>) -> u64 {
        if std::thread::panicking() {
            return word.do_now(access);
        }
        let cell = self.cell(word);
        match *access {
            Access::Load(order) => {
                let order = self.order(order, from);
                self.begin_operation(order, false);
                cell.load(of_load(order))
            }
            Access::Store(value, order) => {
                let order = self.order(order, from);
                self.begin_operation(order, true);
                cell.store(value, of_store(order));
                word.write(value);
                0
            }
            Access::Change(change, success, failure) => {
                let order = self.order(success, from);
                self.begin_operation(order, true);
                let success = of_change(order);
                let failure = if order == Ordering::Relaxed { order } else { of_load(failure) };
                let mut now = word.read();
                loop {
                    let next = change(now);
                    // What is never there: it fails, and has read the newest.
                    let (expected, new) = next.map_or((!now, 0), |new| (now, new));
                    match cell.compare_exchange(expected, new, success, failure) {
                        Ok(_) => {
                            word.write(new);
                            return now;
                        }
                        Err(found) if found == now => return now,
                        Err(found) => now = found,
                    }
                }
            }
        }
    }

    fn fence(&self, order: Ordering, from: &'static Location<'static>) {
        if !std::thread::panicking() {
            match self.order(order, from) {
                Ordering::Relaxed => {}
                order => fence(order),
            }
        }
    }

    /// The kernel has full barriers in both calls, and looks at the newest value.
    fn look(&self, word: Word) -> u64 {
        fence(Ordering::SeqCst);
        // The upper half of a larger one.
        let half = Word { address: word.address.wrapping_sub(4), bytes: 8 };
        let is_half = word.bytes == 4 && self.cells.borrow().contains_key(&half.address);
        let is_half = is_half && !self.cells.borrow().contains_key(&word.address);
        let (whole, shift) = if is_half { (half, 32) } else { (word, 0) };
        let found = self.cell(whole).compare_exchange(
            !whole.read(),
            0,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        found.unwrap_or_else(|found| found) >> shift
    }

    fn sleep(&self, word: usize) {
        let is_woken = Rc::new(Cell::new(false));
        let (thread, is_woken_too) = (thread::current(), is_woken.clone());
        self.sleepers.borrow_mut().push(Sleeper { word, thread, is_woken: is_woken_too });
        while !is_woken.get() {
            thread::park();
        }
    }

    fn wake(&self, word: usize, most: usize) -> usize {
        if std::thread::panicking() {
            return 0;
        }
        fence(Ordering::SeqCst);
        let mut woken = Vec::new();
        self.sleepers.borrow_mut().retain(|sleeper| {
            let is_woken = sleeper.word == word && woken.len() < most;
            if is_woken {
                woken.push((sleeper.thread.clone(), sleeper.is_woken.clone()));
            }
            !is_woken
        });
        for (thread, is_woken) in &woken {
            is_woken.set(true);
            thread.unpark();
        }
        woken.len()
    }

    fn thread(&self) -> usize {
        if std::thread::panicking() { 1 } else { 1 + self.number() }
    }
}
