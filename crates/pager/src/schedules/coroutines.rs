//! Coroutines: the threads of a schedule. At every atomic operation a seed decides who goes on.
//!
//! Guarantees: a thread that sleeps goes on only when it is woken; a thread misses many turns now
//! and then, so that what it has looked at changes meanwhile.
//! Threads: one of the system, which plays all of them in turns.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use deepheap_sim::Random;
use deepheap_sys::threads::schedule::Scheduler;

/// Which threads run, and which sleep.
pub(super) struct Coroutines {
    random: RefCell<Random>,
    /// How many points, on average, a thread passes before another one may run.
    patience: Cell<u64>,
    points_left: Cell<u64>,
    /// After one turn in so many the thread misses up to as many turns.
    misses: Cell<u64>,
    sleepers: RefCell<HashMap<usize, VecDeque<Sleeper>>>,
}

struct Sleeper {
    thread: shuttle::thread::Thread,
    is_woken: Rc<Cell<bool>>,
}

impl Coroutines {
    pub(super) fn new() -> Coroutines {
        Coroutines {
            random: RefCell::new(Random::new(0)),
            patience: Cell::new(1),
            points_left: Cell::new(0),
            misses: Cell::new(1),
            sleepers: RefCell::new(HashMap::new()),
        }
    }

    /// A schedule of this seed begins.
    pub(super) fn begin(&self, seed: u64) {
        assert!(self.sleepers.borrow().values().all(VecDeque::is_empty), "somebody sleeps still");
        let mut random = Random::new(seed);
        self.patience.set(2 << random.below(8));
        self.misses.set(10 << random.below(8));
        self.points_left.set(0);
        self.random.replace(random);
    }
}

impl Scheduler for Coroutines {
    fn point(&self, must_yield: bool) {
        let left = self.points_left.get();
        if left > 0 && !must_yield {
            self.points_left.set(left - 1);
            return;
        }
        let mut random = self.random.borrow_mut();
        self.points_left.set(random.below(2 * self.patience.get()));
        // Now and then a thread misses many turns, so that what it has looked at changes meanwhile.
        let most = self.misses.get();
        let turns = if random.below(most) == 0 { random.below(most) } else { 1 };
        drop(random);
        (0..turns).for_each(|_| shuttle::thread::yield_now());
    }

    fn sleep(&self, word: usize) {
        let is_woken = Rc::new(Cell::new(false));
        let sleeper = Sleeper { thread: shuttle::thread::current(), is_woken: is_woken.clone() };
        self.sleepers.borrow_mut().entry(word).or_default().push_back(sleeper);
        while !is_woken.get() {
            shuttle::thread::park();
        }
    }

    fn thread(&self) -> usize {
        1 + usize::from(shuttle::thread::current().id())
    }

    fn wake(&self, word: usize, most: usize) -> usize {
        let mut woken = Vec::new();
        if let Some(sleepers) = self.sleepers.borrow_mut().get_mut(&word) {
            let count = most.min(sleepers.len());
            woken.extend(sleepers.drain(..count));
        }
        for sleeper in &woken {
            sleeper.is_woken.set(true);
            sleeper.thread.unpark();
        }
        woken.len()
    }
}
