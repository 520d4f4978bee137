//! Descriptor lists: free descriptors, the page buffer's, and the cache's queues, in order.
//!
//! ```text
//!   Free ─► PageBuffer ─► CacheSmall or CacheMain ─► CacheLeaving ─► Free
//!             ▲  │▲                   │     ▲              │ │
//!             │  ▼└───────────────────┴─────┼──────────────┘ │   [faulted in]
//!         Unevictable                       └────────────────┘   [stays]
//! ```
//! What the kernel did not let go when its turn came, because the program protected or locked it,
//! stands aside as `Unevictable`, so that eviction does not come past it again and again.
//!
//! Sharded by runs of indices, each list first in, first out in its shard, but for the free ones;
//! the replacement policy looks at one shard at a time. Neighbours in memory mostly get descriptors
//! of one shard, and those who take objects out take a run of them from each shard: so neighbours
//! of one age leave together, and lie side by side in the log.
//!
//! Guarantees: a descriptor stands in one list at most.
//! Never: allocates, waits.
//! Threads: any; list membership belongs to the lock of the shard, which is innermost.

use deepheap_heap::PageNo;
use deepheap_sys::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::lock::Lock;
use deepheap_sys::mapping::PinnedArray;

use super::{Descriptor, DescriptorId, NONE, State};
use crate::policy::ghost::Ghost;
use crate::policy::replacement::{self, CachePolicy, Queue, Replacement, Verdict};

/// The lists a descriptor can stand in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum List {
    /// Ready for use.
    Free = 1,
    /// In the page buffer, in order of arrival.
    PageBuffer = 2,
    /// In the object cache, in the small queue (`policy::replacement`), in order of arrival.
    CacheSmall = 3,
    /// In the object cache, in the main queue.
    CacheMain = 4,
    /// In the object cache, chosen to leave it.
    CacheLeaving = 5,
    /// In the page buffer, but could not be taken out of it.
    Unevictable = 6,
}

const LISTS: usize = 6;
/// In `Descriptor::list`: in none.
const NOT_LISTED: u8 = 0;

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
    length: u32,
}

const EMPTY: Ends = Ends { head: NONE, tail: NONE, length: 0 };

#[derive(Clone, Copy)]
struct Shard {
    lists: [Ends; LISTS],
}

impl Shard {
    fn ends(&mut self, list: List) -> &mut Ends {
        &mut self.lists[list as usize - 1]
    }
}

impl From<Queue> for List {
    fn from(queue: Queue) -> List {
        match queue {
            Queue::Small => List::CacheSmall,
            Queue::Main => List::CacheMain,
        }
    }
}

const SHARDS: usize = 16;
/// Descriptors side by side, and objects side by side, that share a shard.
const RUN: usize = 64;
/// A run takes no more than this part of what a shard has in a list.
const RUN_PART: usize = 16;

const _: () = assert!(SHARDS <= u32::BITS as usize);

/// The shard that a descriptor belongs to.
fn shard_of(id: DescriptorId) -> usize {
    id.0 as usize / RUN % SHARDS
}

/// A place in the round of all shards, for one who takes a batch of objects out of a list.
pub struct Round {
    at: usize,
    run: usize,
}

impl Round {
    /// The shard to begin with for the next object.
    fn next(&mut self) -> usize {
        let shard = self.at / self.run;
        self.at += 1;
        shard
    }
}

/// All descriptors of a heap, and the lists they stand in (sharded by index).
pub struct Descriptors {
    all: PinnedArray<Descriptor>,
    /// Descriptors from here on were never used; their memory is untouched.
    used: AtomicU32,
    shards: [Lock<Shard>; SHARDS],
    /// Shards that have free descriptors, a bit each; changed under the lock of the shard.
    free_shards: AtomicU32,
    /// Length of all `Unevictable` lists.
    unevictable: AtomicUsize,
    /// Runs that were taken out of the lists, of all shards in turn.
    rounds: [AtomicUsize; LISTS],
    replacement: Replacement,
    ghost: Ghost,
}

impl Descriptors {
    /// `count` descriptors, all free; `policy` chooses which objects leave the cache.
    pub fn new(count: usize, policy: CachePolicy) -> Result<Descriptors> {
        Ok(Descriptors {
            all: PinnedArray::new(count)?,
            used: AtomicU32::new(0),
            shards: [const { Lock::new(Shard { lists: [EMPTY; LISTS] }) }; SHARDS],
            free_shards: AtomicU32::new(0),
            unevictable: AtomicUsize::new(0),
            rounds: [const { AtomicUsize::new(0) }; LISTS],
            replacement: Replacement::new(policy),
            ghost: Ghost::new(count)?,
        })
    }

    /// Bytes of DRAM the descriptors take, and the memory of what left the cache.
    pub fn bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed) as usize * core::mem::size_of::<Descriptor>()
            + self.ghost.bytes()
    }

    /// Adapts the memory of what left the cache to the number of objects that are in it.
    pub fn grow_ghost(&self, cached: usize) {
        self.ghost.grow(replacement::ghost_length(cached));
    }

    /// A descriptor for a new object, in no list; none when all are in use.
    pub fn take(&self, page: PageNo) -> Option<DescriptorId> {
        self.pop_free(page.0 as usize / RUN % SHARDS).or_else(|| {
            let count = self.all.len() as u32;
            self.used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                    (n < count).then_some(n + 1)
                })
                .ok()
                .map(DescriptorId)
        })
    }

    /// The descriptor with this index.
    pub fn get(&self, id: DescriptorId) -> &Descriptor {
        &self.all[id.0 as usize]
    }

    /// Moves a descriptor to the tail of a list from wherever it stands.
    pub fn move_to(&self, id: DescriptorId, list: List) {
        let mut shard = self.shards[shard_of(id)].lock();
        self.relink(&mut shard, id, list);
    }

    /// Lists an owned object in the cache, before it is published there; where, says the policy.
    /// True if it had left the cache not long ago.
    pub fn enter_cache(&self, id: DescriptorId) -> bool {
        let descriptor = self.get(id);
        let reuse = descriptor.reuse();
        let known = self.replacement.asks_ghost(reuse) && self.ghost.take(descriptor.page().0);
        self.move_to(id, self.replacement.enters(reuse, known).into());
        known
    }

    /// Remembers a page as if its object had left the cache just now.
    pub fn remember(&self, page: PageNo) {
        if self.replacement.asks_ghost(0) {
            self.ghost.insert(page.0);
        }
    }

    /// A free descriptor, taken out of its list, of this shard or the next one that has any.
    fn pop_free(&self, start: usize) -> Option<DescriptorId> {
        loop {
            let free = self.free_shards.load(Ordering::Relaxed);
            // Those from `start` on first, then from the beginning.
            let from_start = free & (u32::MAX << start);
            let shard = if from_start != 0 { from_start } else { free }.trailing_zeros() as usize;
            let mut shard = self.shards.get(shard)?.lock();
            let head = shard.ends(List::Free).head;
            if head != NONE {
                self.unlink(&mut shard, DescriptorId(head));
                return Some(DescriptorId(head));
            }
        }
    }

    /// A place to begin taking `count` objects, of about `length` in all, out of a list: behind
    /// those of others who do so now. Runs are short where the list is, so that its youngest do not
    /// leave with its oldest.
    pub fn round(&self, list: List, length: usize, count: usize) -> Round {
        let run = (length / SHARDS / RUN_PART).clamp(1, RUN);
        let runs = &self.rounds[list as usize - 1];
        Round { at: runs.fetch_add(count.div_ceil(run), Ordering::Relaxed) % SHARDS * run, run }
    }

    /// The oldest page of a list of the page buffer's, in the round's shard or the next one that
    /// has any. It goes to the tail and belongs to nobody yet: whoever claims it lists it
    /// elsewhere.
    pub fn next_to_evict(&self, round: &mut Round, list: List) -> Option<DescriptorId> {
        self.first_of(round.next(), list, |shard, id| self.relink(shard, id, list))
    }

    /// How many stand in a list.
    pub fn length(&self, list: List) -> usize {
        self.shards.iter().map(|shard| shard.lock().ends(list).length as usize).sum()
    }

    /// How many stand aside as unevictable.
    pub fn unevictable(&self) -> usize {
        self.unevictable.load(Ordering::Relaxed)
    }

    /// The head of a list, in this shard or the next one that has any; `act` runs under its lock.
    fn first_of(
        &self,
        start: usize,
        list: List,
        act: impl Fn(&mut Shard, DescriptorId),
    ) -> Option<DescriptorId> {
        (0..SHARDS).find_map(|offset| {
            let mut shard = self.shards[(start + offset) % SHARDS].lock();
            let head = shard.ends(list).head;
            (head != NONE).then(|| {
                act(&mut shard, DescriptorId(head));
                DescriptorId(head)
            })
        })
    }

    /// The next object to leave the cache, in the round's shard or the next one that has any: the
    /// policy judges the heads of the queues, and lets at most `patience` of them go round once
    /// more. It belongs to nobody yet: whoever claims it lists it elsewhere. If it does not leave,
    /// the caller says so with `stays`.
    pub fn next_to_leave(&self, round: &mut Round, patience: &mut u32) -> Option<DescriptorId> {
        let start = round.next();
        (0..SHARDS)
            .find_map(|offset| self.leave_shard((start + offset) % SHARDS, patience))
            .or_else(|| {
                // All that there is was chosen before, and nobody said that it stays.
                self.first_of(start, List::CacheLeaving, |shard, id| {
                    self.relink(shard, id, List::CacheLeaving);
                })
            })
    }

    fn leave_shard(&self, shard: usize, patience: &mut u32) -> Option<DescriptorId> {
        let mut shard = self.shards[shard].lock();
        loop {
            let small = shard.ends(List::CacheSmall).length;
            let main = shard.ends(List::CacheMain).length;
            if small + main == 0 {
                return None;
            }
            let queue = self.replacement.next(small, main);
            let id = DescriptorId(shard.ends(queue.into()).head);
            let descriptor = self.get(id);
            match self.replacement.at_head(queue, descriptor.reuse()) {
                Verdict::Goes(to, reuse) if *patience > 0 => {
                    *patience -= 1;
                    descriptor.set_reuse(reuse);
                    self.relink(&mut shard, id, to.into());
                }
                verdict => {
                    if verdict == (Verdict::Leaves { remembered: true }) {
                        self.ghost.insert(descriptor.page().0);
                    }
                    self.relink(&mut shard, id, List::CacheLeaving);
                    return Some(id);
                }
            }
        }
    }

    /// An object that `next_to_leave` chose did not leave, or its owner moved it on: if it still
    /// stands where it was put, it goes to the tail of the main queue.
    pub fn stays(&self, id: DescriptorId) {
        // Only who chooses it lists it as leaving: if it is not now, it was moved on.
        let is_leaving = || self.get(id).list.load(Ordering::Relaxed) == List::CacheLeaving as u8;
        if !is_leaving() {
            return;
        }
        let mut shard = self.shards[shard_of(id)].lock();
        if is_leaving() {
            self.relink(&mut shard, id, List::CacheMain);
        }
    }

    /// Gives a descriptor back: state `Free`, waiters woken, list `Free`.
    pub fn release(&self, id: DescriptorId) {
        self.get(id).change(State::Free);
        self.move_to(id, List::Free);
    }

    /// Runs `act` over every descriptor (fork marks the resident ones as shared).
    pub fn for_each(&self, mut act: impl FnMut(DescriptorId, &Descriptor)) {
        for index in 0..self.used.load(Ordering::Relaxed) {
            act(DescriptorId(index), &self.all[index as usize]);
        }
    }

    fn relink(&self, shard: &mut Shard, id: DescriptorId, list: List) {
        self.unlink(shard, id);
        self.link(shard, id, list);
    }

    fn link(&self, shard: &mut Shard, id: DescriptorId, list: List) {
        let descriptor = self.get(id);
        debug_assert_eq!(descriptor.list.load(Ordering::Relaxed), NOT_LISTED);
        if list == List::Unevictable {
            self.unevictable.fetch_add(1, Ordering::Relaxed);
        }
        let ends = shard.ends(list);
        ends.length += 1;
        descriptor.list.store(list as u8, Ordering::Relaxed);
        if list == List::Free {
            if ends.head == NONE {
                self.free_shards.fetch_or(1 << shard_of(id), Ordering::Relaxed);
            }
            // Last in, first out: the one that was in use a moment ago is in the processor's cache.
            descriptor.previous.store(NONE, Ordering::Relaxed);
            descriptor.next.store(ends.head, Ordering::Relaxed);
            if ends.head == NONE {
                ends.tail = id.0;
            } else {
                self.all[ends.head as usize].previous.store(id.0, Ordering::Relaxed);
            }
            ends.head = id.0;
            return;
        }
        descriptor.next.store(NONE, Ordering::Relaxed);
        descriptor.previous.store(ends.tail, Ordering::Relaxed);
        if ends.tail == NONE {
            ends.head = id.0;
        } else {
            self.all[ends.tail as usize].next.store(id.0, Ordering::Relaxed);
        }
        ends.tail = id.0;
    }

    fn unlink(&self, shard: &mut Shard, id: DescriptorId) {
        let descriptor = self.get(id);
        let list = descriptor.list.load(Ordering::Relaxed);
        if list == NOT_LISTED {
            return;
        }
        if list == List::Unevictable as u8 {
            self.unevictable.fetch_sub(1, Ordering::Relaxed);
        }
        let ends = &mut shard.lists[list as usize - 1];
        ends.length -= 1;
        let next = descriptor.next.load(Ordering::Relaxed);
        let previous = descriptor.previous.load(Ordering::Relaxed);
        if previous == NONE {
            ends.head = next;
        } else {
            self.all[previous as usize].next.store(next, Ordering::Relaxed);
        }
        if next == NONE {
            ends.tail = previous;
        } else {
            self.all[next as usize].previous.store(previous, Ordering::Relaxed);
        }
        if list == List::Free as u8 && ends.head == NONE {
            self.free_shards.fetch_and(!(1 << shard_of(id)), Ordering::Relaxed);
        }
        descriptor.list.store(NOT_LISTED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepheap_store::ContentHash;

    /// Two runs of descriptors in each shard.
    const OBJECTS: u32 = (2 * RUN * SHARDS) as u32;

    fn cached(policy: CachePolicy, reuse: impl Fn(u32) -> u8) -> Descriptors {
        let descriptors = Descriptors::new(OBJECTS as usize, policy).unwrap();
        descriptors.grow_ghost(OBJECTS as usize);
        for page in 0..OBJECTS {
            let id = descriptors.take(PageNo(0)).unwrap();
            descriptors.get(id).begin(PageNo(page), State::Moving, None, ContentHash(0));
            descriptors.get(id).set_reuse(reuse(page));
            descriptors.enter_cache(id);
        }
        assert_eq!(descriptors.take(PageNo(0)), None);
        descriptors
    }

    fn leave(descriptors: &Descriptors, count: u32, patience: u32) -> Vec<u32> {
        let mut patience = patience;
        let mut round = descriptors.round(List::CacheLeaving, OBJECTS as usize, count as usize);
        (0..count)
            .filter_map(|_| {
                let id = descriptors.next_to_leave(&mut round, &mut patience)?;
                let page = descriptors.get(id).page().0;
                descriptors.release(id);
                Some(page)
            })
            .collect()
    }

    fn enter_again(descriptors: &Descriptors, page: u32) -> DescriptorId {
        let id = descriptors.take(PageNo(0)).unwrap();
        descriptors.get(id).begin(PageNo(page), State::Moving, None, ContentHash(0));
        descriptors.enter_cache(id);
        id
    }

    #[test]
    fn touched_objects_outlive_first_comers_and_the_ghost_knows_who_left() {
        let descriptors = cached(CachePolicy::S3Fifo, |page| u8::from(page / 16 % 4 == 0));
        let left = leave(&descriptors, OBJECTS / 2, u32::MAX);
        assert_eq!(left.len(), OBJECTS as usize / 2);
        assert!(left.iter().all(|page| page / 16 % 4 != 0), "a touched one left");
        for page in &left {
            enter_again(&descriptors, *page);
        }
        // They came again: they are in the main queue now, behind the touched ones, and those
        // have a round to go.
        let next = leave(&descriptors, OBJECTS / 8, u32::MAX);
        assert!(next.iter().all(|page| page / 16 % 4 != 0 && !left.contains(page)));
        assert_eq!(leave(&descriptors, 2 * OBJECTS, u32::MAX).len(), OBJECTS as usize * 7 / 8);
        assert_eq!(leave(&descriptors, 1, u32::MAX), []);
    }

    #[test]
    fn without_patience_the_head_leaves_whatever_its_count() {
        for policy in [CachePolicy::S3Fifo, CachePolicy::Lru, CachePolicy::Clock] {
            let descriptors = cached(policy, |_| 3);
            assert_eq!(leave(&descriptors, 2 * OBJECTS, 0).len(), OBJECTS as usize);
        }
    }

    #[test]
    fn lru_takes_the_oldest_of_each_shard_side_by_side() {
        let descriptors = cached(CachePolicy::Lru, |page| (page % 3) as u8);
        // A sixteenth of each shard's 128, then of the next shard's.
        let oldest: Vec<u32> = (0..16).flat_map(|shard| 64 * shard..64 * shard + 8).collect();
        assert_eq!(leave(&descriptors, 128, u32::MAX), oldest);
    }

    #[test]
    fn what_was_chosen_is_not_chosen_again_until_it_stays() {
        let descriptors = cached(CachePolicy::S3Fifo, |_| 0);
        let mut patience = u32::MAX;
        let mut round = descriptors.round(List::CacheLeaving, OBJECTS as usize, 1);
        let mut choose = || descriptors.next_to_leave(&mut round, &mut patience).unwrap();
        let mut chosen: Vec<u32> = (0..OBJECTS).map(|_| choose().0).collect();
        chosen.sort_unstable();
        assert!(chosen.iter().copied().eq(0..OBJECTS));
        // All are chosen already: then any will do, for those who chose them may be gone.
        let again = choose();
        descriptors.stays(DescriptorId(again.0 + 16));
        assert_eq!(choose(), DescriptorId(again.0 + 16));
        // One that was brought back meanwhile is left where it is.
        descriptors.move_to(again, List::PageBuffer);
        descriptors.stays(again);
        let mut round = descriptors.round(List::PageBuffer, 1, 1);
        assert_eq!(descriptors.next_to_evict(&mut round, List::PageBuffer), Some(again));
    }
}
