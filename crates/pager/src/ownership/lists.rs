//! Descriptor lists: the page buffer's, and the cache's queues, in order.
//!
//! ```text
//!   free ─► Probation or Protected ─► CacheSmall or CacheMain ─► CacheLeaving ─► free
//!                  ▲  │▲                          │     ▲              │ │
//!                  │  ▼└──────────────────────────┴─────┼──────────────┘ │   [faulted in]
//!              Unevictable                              └────────────────┘   [keep_in_cache]
//! ```
//! `InLane` is between free and the cache's queues, as the page buffer's lists are. A free
//! descriptor is in no list (`free_descriptors`).
//!
//! `Probation`, `Protected` and `Unevictable` are the page buffer's (`policy::replacement`).
//! If a page cannot be taken out, because the program protected or locked it, or it is pinned and
//! many are, it goes to `Unevictable`, so that eviction does not try it again and again.
//!
//! The lists are sharded by runs of indices. In its shard each list is first in, first out. The
//! replacement policy looks at one shard of the cache's lists at a time. Neighbours in
//! memory mostly get descriptors of one shard, and eviction and reclaim take a run of objects from
//! each shard. So neighbours of one age leave together, and lie side by side in the log.
//!
//! Guarantees: a descriptor stands in one list at most.
//! Never: allocates, waits.
//! Threads: any; list membership belongs to the lock of the shard, which is innermost.

use deepheap_heap::PageNo;
use deepheap_sys::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::lock::Lock;
use deepheap_sys::padded::Padded;
use deepheap_sys::pinned_array::PinnedArray;
use deepheap_sys::zap::Zapper;

use super::descriptor::{Descriptor, DescriptorId, NONE, State};
use super::free_descriptors::{FreeDescriptors, GROUP_RUNS, RUN, SHARDS};
use crate::policy::ghost::Ghost;
use crate::policy::replacement::{self, AtHead, Queue, Rank};

/// The lists a descriptor can stand in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum List {
    /// In the page buffer and not seen to be in use, in order of arrival.
    Probation = 1,
    /// In the object cache, in the small queue (`policy::replacement`), in order of arrival.
    CacheSmall = 2,
    /// In the object cache, in the main queue.
    CacheMain = 3,
    /// In the object cache, chosen to leave it.
    CacheLeaving = 4,
    /// In the page buffer, but could not be taken out of it.
    Unevictable = 5,
    /// In the page buffer and in use, in order of arrival.
    Protected = 6,
    /// In its lane (`lanes`), in no order that counts.
    InLane = 7,
}

const LISTS: usize = 7;
#[cfg(test)]
const ALL_LISTS: [List; LISTS] = [
    List::Probation,
    List::CacheSmall,
    List::CacheMain,
    List::CacheLeaving,
    List::Unevictable,
    List::Protected,
    List::InLane,
];
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

/// A shard, on cache lines of its own.
#[repr(align(64))]
struct LockedShard {
    lists: Lock<Shard>,
    /// Lengths of its `Probation` and `Protected` lists: changed under the lock, read without it.
    evictable: [AtomicU32; 2],
}

impl LockedShard {
    /// The length of a list of pages that may be evicted.
    fn evictable(&self, list: u8) -> Option<&AtomicU32> {
        const PROBATION: u8 = List::Probation as u8;
        const PROTECTED: u8 = List::Protected as u8;
        match list {
            PROBATION => Some(&self.evictable[0]),
            PROTECTED => Some(&self.evictable[1]),
            _ => None,
        }
    }
}

impl From<Rank> for List {
    fn from(rank: Rank) -> List {
        match rank {
            Rank::Probation => List::Probation,
            Rank::Protected => List::Protected,
        }
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

/// A run takes at most this part of a shard's list.
const RUN_PART: usize = 16;
/// Groups of descriptors that one call of `trim` looks at, at most.
const TRIM_LOOKS: usize = 64;

/// The shard that a descriptor belongs to.
fn shard_of(id: DescriptorId) -> usize {
    id.0 as usize / RUN % SHARDS
}

/// The shard that a page's descriptor should be of: one for neighbours, and others for pages that
/// lie in equal steps.
fn shard_for(page: PageNo) -> usize {
    let run = page.0 as usize / RUN;
    let run = run ^ run >> 16;
    let run = run ^ run >> 8;
    (run ^ run >> 4) % SHARDS
}

/// A position in the round of all shards, for a thread that takes a batch of objects from a list.
pub struct Round {
    at: usize,
    run: usize,
}

impl Round {
    /// The shard to begin with for the next run of at most `most` objects, and the length of the
    /// run.
    fn next_run(&mut self, most: usize) -> (usize, usize) {
        let (shard, passed) = (self.at / self.run, self.at % self.run);
        let count = most.min(self.run - passed);
        self.at += count;
        (shard, count)
    }

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
    free: FreeDescriptors,
    /// The generation that a descriptor begins with whose RAM was dropped: later than all that it
    /// may have had, so a thread that saw it before does not take it for what it was.
    generation: AtomicU32,
    /// Where `trim` looks next.
    hand: AtomicUsize,
    shards: [Padded<LockedShard>; SHARDS],
    /// Length of all `Unevictable` lists.
    unevictable: AtomicUsize,
    /// Runs that were taken from each list, from all shards in turn.
    rounds: [AtomicUsize; LISTS],
    ghost: Ghost,
}

impl Descriptors {
    /// `count` descriptors, all free.
    pub fn new(count: usize) -> Result<Descriptors> {
        Ok(Descriptors {
            all: PinnedArray::new(count)?,
            free: FreeDescriptors::new(count)?,
            generation: AtomicU32::new(0),
            hand: AtomicUsize::new(0),
            shards: core::array::from_fn(|_| {
                Padded(LockedShard {
                    lists: Lock::new(Shard { lists: [EMPTY; LISTS] }),
                    evictable: [const { AtomicU32::new(0) }; 2],
                })
            }),
            unevictable: AtomicUsize::new(0),
            rounds: [const { AtomicUsize::new(0) }; LISTS],
            ghost: Ghost::new(count)?,
        })
    }

    /// Bytes of DRAM that the descriptors and the ghost take.
    pub fn bytes(&self) -> usize {
        self.free.bytes() + self.ghost.bytes()
    }

    /// Adapts the ghost to the number of objects that are cached.
    pub fn grow_ghost(&self, cached: usize) {
        self.ghost.grow(replacement::ghost_length(cached));
    }

    /// Takes a descriptor, in no list, for a new object; none when all are in use.
    pub(super) fn take(&self, page: PageNo) -> Option<DescriptorId> {
        let start = shard_for(page);
        (0..SHARDS).find_map(|offset| {
            let shard = (start + offset) % SHARDS;
            let _locked = self.shards[shard].lists.lock();
            let id = self.free.take(shard)?;
            self.get(id).begin_generation(self.generation.load(Ordering::Relaxed));
            Some(id)
        })
    }

    /// Gives back the RAM of descriptors that are free for long, of a few at a time. Inside the
    /// gate: a fork must not find any withheld.
    pub fn trim(&self, zapper: &Zapper) {
        for _ in 0..TRIM_LOOKS {
            let from = self.hand.load(Ordering::Relaxed);
            let Some(group) = self.free.next_in_ram(from) else {
                self.hand.store(0, Ordering::Relaxed);
                return;
            };
            self.hand.store(group + 1, Ordering::Relaxed);
            self.drop_group(group, zapper);
        }
    }

    /// Drops the RAM of a group of descriptors, if all are free.
    fn drop_group(&self, group: usize, zapper: &Zapper) {
        let runs = group * GROUP_RUNS..(group + 1) * GROUP_RUNS;
        let lock = |run: usize| self.shards[run % SHARDS].lists.lock();
        let free = |run: &usize| {
            let _locked = lock(*run);
            self.free.withhold(*run)
        };
        let withheld = runs.clone().take_while(free).count();
        // Withheld, so no thread begins to use one of them until they are put back. A thread that
        // saw one before may still read it, finds zeros then, and looks again; a hint that it
        // stores there is of no use to anybody (`set_reuse`).
        if withheld == GROUP_RUNS {
            let of_group = FreeDescriptors::of_group(group);
            let descriptors = &self.all[of_group.start..of_group.end.min(self.all.len())];
            let last = descriptors.iter().map(Descriptor::generation).max().unwrap_or(0);
            self.generation.fetch_max(last, Ordering::Relaxed);
            let bytes = libc::iovec {
                iov_base: descriptors.as_ptr().cast_mut().cast(),
                iov_len: core::mem::size_of_val(descriptors).next_multiple_of(deepheap_sys::PAGE),
            };
            // SAFETY: whole pages of the array, whose descriptors are free and withheld: zeros are
            // a free descriptor, too, and the generation that they lose is made up for by `take`.
            if unsafe { zapper.zap(&[bytes]) }.is_ok() {
                self.free.note_dropped(group);
            }
        }
        for run in runs.take(withheld) {
            let _locked = lock(run);
            self.free.put_back(run);
        }
    }

    /// The descriptor with this index.
    pub fn get(&self, id: DescriptorId) -> &Descriptor {
        &self.all[id.0 as usize]
    }

    /// Moves a descriptor to the tail of a list from wherever it stands.
    pub(super) fn move_to(&self, id: DescriptorId, list: List) {
        let mut shard = self.shards[shard_of(id)].lists.lock();
        self.relink(&mut shard, id, list);
    }

    /// Lists an owned object in the cache before it is published there. The policy says in which
    /// queue.
    pub fn enter_cache(&self, id: DescriptorId) {
        let descriptor = self.get(id);
        let reuse = descriptor.reuse();
        let asks = replacement::asks_ghost(reuse);
        let left = if asks { self.ghost.take(descriptor.page().0) } else { None };
        self.move_to(id, replacement::enters(reuse, left).into());
    }

    /// Whether the object of a page is one of the last `recent` that left the cache.
    pub fn left_recently(&self, page: PageNo) -> bool {
        self.ghost.left_recently(page.0)
    }

    /// How many of the objects that left the cache last `left_recently` knows.
    pub fn recent(&self) -> usize {
        self.ghost.recent()
    }

    /// Remembers a page as if its object had left the cache just now.
    pub fn remember(&self, page: PageNo) {
        self.ghost.insert(page.0, Queue::Small);
    }

    /// A position from which to take `count` objects out of a list of about `length`, behind the
    /// positions of threads that do so now. A short list has short runs, so that its youngest
    /// objects do not leave with its oldest.
    pub fn round(&self, list: List, length: usize, count: usize) -> Round {
        let run = (length / SHARDS / RUN_PART).clamp(1, RUN);
        let runs = &self.rounds[list as usize - 1];
        Round { at: runs.fetch_add(count.div_ceil(run), Ordering::Relaxed) % SHARDS * run, run }
    }

    /// Fills `found` with the oldest pages of one of the page buffer's lists, a run of the round's
    /// shard or of the next one that has any; returns how many, 0 only if the lists are empty. They
    /// go to the tail of the list together. The caller does not own what is found: a thread that
    /// claims one lists it elsewhere.
    pub fn next_to_evict(
        &self,
        round: &mut Round,
        list: List,
        found: &mut [DescriptorId],
    ) -> usize {
        let (start, most) = round.next_run(found.len());
        let found = &mut found[..most];
        let taken = (0..SHARDS).find_map(|offset| {
            let mut shard = self.shards[(start + offset) % SHARDS].lists.lock();
            let ends = shard.ends(list);
            (ends.length > 0).then(|| self.turn(ends, found))
        });
        taken.unwrap_or(0)
    }

    /// Moves descriptors from the head of a list to its tail, in their order, until `found` is
    /// filled or all have moved.
    fn turn(&self, ends: &mut Ends, found: &mut [DescriptorId]) -> usize {
        let (first, mut next, mut last) = (ends.head, ends.head, NONE);
        let count = found.len().min(ends.length as usize);
        for place in &mut found[..count] {
            (last, next) = (next, self.all[next as usize].next.load(Ordering::Relaxed));
            *place = DescriptorId(last);
        }
        if next != NONE && last != NONE {
            self.all[next as usize].previous.store(NONE, Ordering::Relaxed);
            self.all[last as usize].next.store(NONE, Ordering::Relaxed);
            self.all[ends.tail as usize].next.store(first, Ordering::Relaxed);
            self.all[first as usize].previous.store(ends.tail, Ordering::Relaxed);
            (ends.head, ends.tail) = (next, last);
        }
        count
    }

    /// How many are on probation, and how many protected. Takes no lock: a faulting thread that
    /// looks for room asks outside the gate, where a fork does not wait for it.
    pub fn evictable(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(probation, protected), shard| {
            let [one, other] = &shard.evictable;
            let more = |sum: usize, count: &AtomicU32| sum + count.load(Ordering::Relaxed) as usize;
            (more(probation, one), more(protected, other))
        })
    }

    /// How many are in the `Unevictable` list.
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
            let mut shard = self.shards[(start + offset) % SHARDS].lists.lock();
            let head = shard.ends(list).head;
            (head != NONE).then(|| {
                act(&mut shard, DescriptorId(head));
                DescriptorId(head)
            })
        })
    }

    /// The next object to leave the cache, in the round's shard or the next one that has any. The
    /// policy judges the heads of the queues, and gives at most `patience` of them a second chance.
    /// The caller does not own the object yet: a thread that claims it lists it elsewhere. If it
    /// does not leave, the caller says so with `keep_in_cache`.
    pub fn next_to_leave(&self, round: &mut Round, patience: &mut u32) -> Option<DescriptorId> {
        let start = round.next();
        (0..SHARDS)
            .find_map(|offset| self.leave_shard((start + offset) % SHARDS, patience))
            .or_else(|| {
                // All objects were chosen before, and no thread has said that its choice stays.
                self.first_of(start, List::CacheLeaving, |shard, id| {
                    self.relink(shard, id, List::CacheLeaving);
                })
            })
    }

    fn leave_shard(&self, shard: usize, patience: &mut u32) -> Option<DescriptorId> {
        let mut shard = self.shards[shard].lists.lock();
        loop {
            let small = shard.ends(List::CacheSmall).length;
            let main = shard.ends(List::CacheMain).length;
            if small + main == 0 {
                return None;
            }
            let queue = replacement::next(small, main);
            let id = DescriptorId(shard.ends(queue.into()).head);
            let descriptor = self.get(id);
            match replacement::at_head(queue, descriptor.reuse()) {
                AtHead::Goes(to, reuse) if *patience > 0 => {
                    *patience -= 1;
                    descriptor.set_reuse(reuse);
                    self.relink(&mut shard, id, to.into());
                }
                verdict => {
                    if verdict == (AtHead::Leaves { remembered: true }) {
                        self.ghost.insert(descriptor.page().0, queue);
                    }
                    self.relink(&mut shard, id, List::CacheLeaving);
                    return Some(id);
                }
            }
        }
    }

    /// An object that `next_to_leave` chose did not leave, or its owner moved it on. If it is still
    /// listed as leaving, it goes to the tail of the main queue.
    pub fn keep_in_cache(&self, id: DescriptorId) {
        // Only `next_to_leave` lists an object as leaving: if it is not listed so now, it was moved
        // on.
        let is_leaving = || self.get(id).list.load(Ordering::Relaxed) == List::CacheLeaving as u8;
        if !is_leaving() {
            return;
        }
        let mut shard = self.shards[shard_of(id)].lists.lock();
        if is_leaving() {
            self.relink(&mut shard, id, List::CacheMain);
        }
    }

    /// Gives a descriptor back: state `Free`, waiters woken, in no list.
    pub(super) fn release(&self, id: DescriptorId) {
        self.get(id).change(State::Free);
        let mut shard = self.shards[shard_of(id)].lists.lock();
        self.unlink(&mut shard, id);
        self.free.give(id);
    }

    /// Descriptors that were ever in use are among the first so many.
    pub fn used(&self) -> usize {
        self.free.ever_used()
    }

    /// Runs `act` over every descriptor (fork marks the resident ones as shared).
    pub fn for_each(&self, mut act: impl FnMut(DescriptorId, &Descriptor)) {
        let mut from = 0;
        while let Some(group) = self.free.next_in_ram(from) {
            let of_group = FreeDescriptors::of_group(group);
            for index in of_group.start..of_group.end.min(self.all.len()) {
                act(DescriptorId(index as u32), &self.all[index]);
            }
            from = group + 1;
        }
    }

    /// Panics if a list contradicts itself, or if a shard is locked. Shows each descriptor and its
    /// list to `look`. No thread may move an object meanwhile.
    #[cfg(test)]
    pub fn check_invariants(&self, mut look: impl FnMut(DescriptorId, &Descriptor, List)) {
        let mut listed = 0;
        let mut unevictable = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            let Some(mut guard) = shard.lists.try_lock() else {
                panic!("shard {number} is locked")
            };
            for list in ALL_LISTS {
                let ends = *guard.ends(list);
                if let Some(told) = shard.evictable(list as u8) {
                    assert_eq!(told.load(Ordering::Relaxed), ends.length, "{list:?} of {number}");
                }
                let (mut previous, mut next, mut length) = (NONE, ends.head, 0);
                while next != NONE {
                    let (id, descriptor) = (DescriptorId(next), &self.all[next as usize]);
                    assert_eq!(shard_of(id), number, "{id:?} in {list:?} of another shard");
                    assert_eq!(descriptor.list.load(Ordering::Relaxed), list as u8, "{id:?}");
                    assert_eq!(descriptor.previous.load(Ordering::Relaxed), previous, "{id:?}");
                    look(id, descriptor, list);
                    (previous, next) = (next, descriptor.next.load(Ordering::Relaxed));
                    length += 1;
                    assert!(length <= ends.length, "{list:?} of shard {number} is longer");
                }
                assert_eq!((previous, length), (ends.tail, ends.length), "{list:?} of {number}");
                listed += length;
                unevictable += if list == List::Unevictable { length as usize } else { 0 };
            }
        }
        let mut used = 0;
        self.for_each(|id, descriptor| {
            let (is_used, state) = (self.free.is_used(id), descriptor.state().state());
            assert_eq!(is_used, state != State::Free, "{id:?} is {state:?}");
            used += u32::from(is_used);
        });
        assert_eq!(listed, used, "descriptors in no list");
        assert_eq!(self.unevictable(), unevictable, "unevictable pages");
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
        if let Some(told) = self.shards[shard_of(id)].evictable(list as u8) {
            told.store(ends.length, Ordering::Relaxed);
        }
        descriptor.list.store(list as u8, Ordering::Relaxed);
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
        if let Some(told) = self.shards[shard_of(id)].evictable(list) {
            told.store(ends.length, Ordering::Relaxed);
        }
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
        descriptor.list.store(NOT_LISTED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
