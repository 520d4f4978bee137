//! Index pool: hands out numbers of things that a thread uses for a moment, such as stacks and
//! buffers.
//!
//! Each number has a bit; 64 of them share a word, which has cache lines of its own. A thread
//! begins with the word of its lane, so that on a machine with many processors few of them want the
//! same word. Within a word the lowest free number is taken: as long as few threads want one, few
//! numbers are in use.
//!
//! Guarantees: a number has one holder from `take` to `give_back`. A thread that finds none sleeps
//! until one is given back. A number that `trim` passes to `act` was given back before the last
//! `trim`, and no other thread has it meanwhile.
//! Never: allocates | spins.
//! Threads: any, also in a signal handler. `trim`: one at a time.

use crate::memory::padded::Padded;
use crate::threads::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::threads::parking::Parking;
use crate::threads::tls;

/// Numbers of a word; a pool opens so many at a time.
pub const GROUP: usize = 64;
/// The most groups of a pool.
pub const GROUPS_MAX: usize = 16;

/// Processors that share a word.
const CPUS_PER_GROUP: usize = 8;

/// A bit for each number.
#[derive(Debug)]
struct Group {
    taken: AtomicU64,
    /// Numbers that were taken at least once since their memory was given back.
    touched: AtomicU64,
    /// Numbers that were taken since the last `trim`.
    recent: AtomicU64,
}

/// See the file's header.
#[derive(Debug)]
pub struct IndexPool {
    groups: [Padded<Group>; GROUPS_MAX],
    /// Groups whose numbers are handed out.
    open: AtomicUsize,
    /// Set when a number is taken that was not `touched`.
    is_uncounted: AtomicBool,
    given_back: Padded<Parking>,
}

/// How many groups a machine of so many processors can use at once.
pub fn groups_for(cpus: usize) -> usize {
    cpus.div_ceil(CPUS_PER_GROUP).clamp(1, GROUPS_MAX)
}

impl IndexPool {
    /// A pool whose first `open` groups are handed out.
    pub const fn new(open: usize) -> Self {
        IndexPool {
            groups: [const {
                Padded(Group {
                    taken: AtomicU64::new(0),
                    touched: AtomicU64::new(0),
                    recent: AtomicU64::new(0),
                })
            }; GROUPS_MAX],
            open: AtomicUsize::new(open),
            is_uncounted: AtomicBool::new(false),
            given_back: Padded(Parking::new()),
        }
    }

    /// Groups that are handed out.
    pub fn open_groups(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Opens one group more than the `open` ones that the caller has seen, if there are still so
    /// many. The caller has prepared the things that its numbers stand for.
    pub fn open_further(&self, open: usize) {
        let next = (open + 1).min(GROUPS_MAX);
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        if self.open.compare_exchange(open, next, order.0, order.1).is_ok() {
            self.given_back.notify(GROUP as u32);
        }
    }

    /// Takes a free number. While there is none, it calls `grow` to open a further group, and then
    /// sleeps.
    pub fn take(&self, grow: impl Fn() -> bool) -> usize {
        loop {
            if let Some(index) = self.try_take(|_| u64::MAX) {
                return index;
            }
            if !grow() {
                self.given_back.wait_unless(|| self.has_free(|_| u64::MAX));
            }
        }
    }

    /// As `take`, but a number whose memory is not in use yet is taken only if `may_touch` says so.
    /// If not, the thread sleeps until one of the others is given back; the first number of a pool
    /// needs no such leave.
    pub fn take_sparingly(&self, may_touch: impl Fn() -> bool, grow: impl Fn() -> bool) -> usize {
        let touched = |group: &Group| group.touched.load(Ordering::SeqCst);
        loop {
            if let Some(index) = self.try_take(touched) {
                return index;
            }
            if !self.is_touched() || may_touch() {
                return self.take(grow);
            }
            // A thread that holds one of them gives it back without our help, so this ends.
            self.given_back.wait_unless(|| !self.is_touched() || self.has_free(touched));
        }
    }

    fn try_take(&self, allowed: impl Fn(&Group) -> u64) -> Option<usize> {
        let open = self.open_groups();
        let start = tls::lane_of::<GROUPS_MAX>() % open;
        (0..open).map(|offset| (start + offset) % open).find_map(|number| {
            let group = &self.groups[number];
            let allowed = allowed(group);
            let mut taken = group.taken.load(Ordering::Relaxed);
            while allowed & !taken != 0 {
                let free = allowed & !taken;
                let bit = free & free.wrapping_neg();
                let with = taken | bit;
                match group.taken.compare_exchange_weak(
                    taken,
                    with,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        self.note(group, bit);
                        return Some(number * GROUP + bit.trailing_zeros() as usize);
                    }
                    Err(now) => taken = now,
                }
            }
            None
        })
    }

    /// Notes, for its holder, that a number was taken; mostly that is noted already.
    fn note(&self, group: &Group, bit: u64) {
        if group.recent.load(Ordering::Relaxed) & bit == 0 {
            group.recent.fetch_or(bit, Ordering::Relaxed);
        }
        if group.touched.load(Ordering::Relaxed) & bit == 0 {
            group.touched.fetch_or(bit, Ordering::Relaxed);
            self.is_uncounted.store(true, Ordering::Relaxed);
        }
    }

    fn has_free(&self, allowed: impl Fn(&Group) -> u64) -> bool {
        let open = &self.groups[..self.open.load(Ordering::SeqCst)];
        open.iter().any(|group| allowed(group) & !group.taken.load(Ordering::SeqCst) != 0)
    }

    /// Gives a number back that the caller took.
    pub fn give_back(&self, index: usize) {
        // Sequentially consistent: see `Parking`. The group does not matter to a thread that waits.
        self.groups[index / GROUP].taken.fetch_and(!bit_of(index), Ordering::SeqCst);
        self.given_back.notify(1);
    }

    /// Calls `act` for each number that was taken once but not since the last `trim`, so that it
    /// can give the memory back; no other thread takes the number meanwhile.
    pub fn trim(&self, mut act: impl FnMut(usize)) {
        for (number, group) in self.groups.iter().enumerate() {
            let recent = group.recent.swap(0, Ordering::Relaxed);
            let mut idle = group.touched.load(Ordering::Relaxed) & !recent;
            while idle != 0 {
                let bit = idle & idle.wrapping_neg();
                idle &= !bit;
                if group.taken.fetch_or(bit, Ordering::Acquire) & bit != 0 {
                    continue;
                }
                let index = number * GROUP + bit.trailing_zeros() as usize;
                act(index);
                group.touched.fetch_and(!bit, Ordering::Relaxed);
                self.give_back(index);
            }
        }
    }

    /// Whether a later `trim` has something to do.
    pub fn is_touched(&self) -> bool {
        self.groups.iter().any(|group| group.touched.load(Ordering::Relaxed) != 0)
    }

    /// Whether numbers that `count` has not seen were taken, for the first time or after a trim.
    pub fn is_uncounted(&self) -> bool {
        self.is_uncounted.load(Ordering::Relaxed)
    }

    /// The first and the last number of each group that were taken since they were trimmed.
    pub fn count(&self) -> impl Iterator<Item = (usize, usize)> {
        self.is_uncounted.store(false, Ordering::Relaxed);
        self.groups.iter().enumerate().filter_map(|(number, group)| {
            let touched = group.touched.load(Ordering::Relaxed);
            (touched != 0).then(|| {
                let last = GROUP - 1 - touched.leading_zeros() as usize;
                (number * GROUP + touched.trailing_zeros() as usize, number * GROUP + last)
            })
        })
    }

    /// In a forked child: what threads of the parent held is free.
    pub fn forget_others(&self) {
        for group in &self.groups {
            group.taken.store(0, Ordering::Relaxed);
        }
        self.given_back.forget_others();
    }
}

fn bit_of(index: usize) -> u64 {
    1 << (index % GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use core::time::Duration;

    impl IndexPool {
        /// Numbers that are held now.
        pub(crate) fn held(&self) -> usize {
            let count = |group: &Padded<Group>| group.taken.load(Ordering::Relaxed).count_ones();
            self.groups.iter().map(|group| count(group) as usize).sum()
        }
    }

    #[test]
    fn who_finds_no_number_sleeps_until_one_is_given_back() {
        let pool = IndexPool::new(1);
        let holders = [const { AtomicU32::new(0) }; GROUP];
        std::thread::scope(|scope| {
            for thread in 0..4 * GROUP {
                let (pool, holders) = (&pool, &holders);
                scope.spawn(move || {
                    for round in 0..200 {
                        let index = pool.take(|| false);
                        assert_eq!(holders[index].fetch_add(1, Ordering::SeqCst), 0);
                        if (thread + round) % 16 == 0 {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                        holders[index].fetch_sub(1, Ordering::SeqCst);
                        pool.give_back(index);
                    }
                });
            }
        });
        assert_eq!((pool.held(), pool.given_back.waiting()), (0, 0));
    }

    #[test]
    fn a_pool_grows_where_all_are_taken_and_only_as_far_as_it_may() {
        let pool = IndexPool::new(1);
        let grow = || {
            let open = pool.open_groups();
            if open < 3 {
                pool.open_further(open);
            }
            open < 3
        };
        let mut taken: Vec<usize> = (0..3 * GROUP).map(|_| pool.take(grow)).collect();
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(0..3 * GROUP));
        assert_eq!(pool.open_groups(), 3);
        pool.give_back(100);
        assert_eq!(pool.take(|| panic!("one is free")), 100);
        assert_eq!(pool.count().collect::<Vec<_>>(), [(0, 63), (64, 127), (128, 191)]);
    }

    #[test]
    fn a_number_without_memory_is_taken_only_by_leave() {
        let pool = IndexPool::new(1);
        let take = |leave: bool| pool.take_sparingly(|| leave, || false);
        let (first, second) = (take(false), take(true));
        assert_eq!((first, second), (0, 1));
        pool.give_back(first);
        assert_eq!(take(false), first, "its memory is there");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| take(false));
            while pool.given_back.waiting() == 0 {
                std::thread::yield_now();
            }
            pool.give_back(second);
            assert_eq!(waiting.join().expect("a thread"), second);
        });
        assert_eq!(pool.held(), 2);
    }

    #[test]
    fn only_what_nobody_took_for_a_while_is_trimmed() {
        let pool = IndexPool::new(1);
        let take = || pool.take(|| false);
        let (first, second, held) = (take(), take(), take());
        pool.give_back(first);
        pool.give_back(second);
        let trim = || {
            let mut trimmed = Vec::new();
            pool.trim(|index| trimmed.push(index));
            (trimmed, pool.is_touched())
        };
        assert_eq!(trim(), (vec![], true), "all were taken just now");
        pool.give_back(take());
        assert_eq!(trim(), (vec![second], true), "the first was taken again, the third is held");
        pool.give_back(held);
        assert_eq!(trim(), (vec![first, held], false));
        assert_eq!(trim(), (vec![], false));
        assert_eq!(pool.held(), 0);
    }
}
