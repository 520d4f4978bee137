//! Descriptor lists: the page buffer's, and the cache's queues, in order.
//!
//! ```text
//!   free ─► Probation or Protected ─► CacheSmall or CacheMain ─► CacheLeaving ─► free
//!                  ▲  │▲                          │     ▲              │ │
//!                  │  ▼└──────────────────────────┴─────┼──────────────┘ │   [faulted in]
//!              Unevictable                              └────────────────┘   [keep_in_cache]
//! ```
//! An object of the cache that becomes dense goes to `CacheDense`, from whichever of the cache's
//! lists it is in, and from there on as from the queues.
//!
//! `InLane` is between free and the cache's queues, as the page buffer's lists are. A free
//! descriptor is in no list (`free`).
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
//! Guarantees: a descriptor is in one list at most.
//! Never: allocates, waits.
//! Threads: any; list membership belongs to the lock of the shard, which is innermost.

mod free;

use deepheap_heap::PageNo;
use deepheap_policy::ghost::{self, Ghost};
use deepheap_policy::replacement::{self, AtHead, Queue, Rank};
use deepheap_sys::errno::Result;
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::memory::zap::Zapper;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicUsize, Ordering};
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::thread;

use super::descriptor::{Descriptor, DescriptorId, NONE, State};
use free::{FreeDescriptors, GROUP_RUNS, RUN};

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
    /// In the object cache, dense, in the order in which they became so.
    CacheDense = 8,
}

const LISTS: usize = 8;
/// In `Descriptor::list`: in none.
const NOT_LISTED: u8 = 0;

impl List {
    /// Its place in a table of all lists.
    fn at(self) -> usize {
        self as usize - 1
    }
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
}

type Lists = [Ends; LISTS];

/// A shard, on cache lines of its own.
#[repr(align(64))]
struct Shard {
    lists: Lock<Lists>,
    /// Lengths of the lists: changed under the lock, read without it.
    lengths: [AtomicU32; LISTS],
}

impl Shard {
    fn length(&self, list: List) -> u32 {
        self.lengths[list.at()].load(Ordering::Relaxed)
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

/// Shards of the lists: as many as processors, within limits, and a power of two.
const SHARDS_LEAST: usize = 16;
const SHARDS_MAX: usize = 64;

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
    shards: Box<[Padded<Shard>]>,
    /// Runs that were taken from each list, from all shards in turn.
    rounds: [AtomicUsize; LISTS],
    /// The names of objects that left the cache not long ago.
    pub ghost: Ghost<PinnedArray<core::sync::atomic::AtomicU32>>,
}

impl Descriptors {
    /// `count` descriptors, all free.
    pub fn new(count: usize) -> Result<Descriptors> {
        let shards = thread::cpu_count().clamp(SHARDS_LEAST, SHARDS_MAX).next_power_of_two();
        Self::in_shards(count, shards)
    }

    fn in_shards(count: usize, shards: usize) -> Result<Descriptors> {
        let shard = |_| {
            Padded(Shard {
                lists: Lock::new([Ends { head: NONE, tail: NONE }; LISTS]),
                lengths: [const { AtomicU32::new(0) }; LISTS],
            })
        };
        Ok(Descriptors {
            all: PinnedArray::new(count)?,
            free: FreeDescriptors::new(count, shards)?,
            generation: AtomicU32::new(0),
            hand: AtomicUsize::new(0),
            shards: (0..shards).map(shard).collect(),
            rounds: [const { AtomicUsize::new(0) }; LISTS],
            ghost: Ghost::new(PinnedArray::new(ghost::length(count))?),
        })
    }

    /// The shard that a descriptor belongs to.
    fn shard_of(&self, id: DescriptorId) -> usize {
        (id.0 as usize / RUN) & (self.shards.len() - 1)
    }

    /// All shards, from this one on.
    fn shards_from(&self, start: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.shards.len();
        (0..count).map(move |offset| start.wrapping_add(offset) & (count - 1))
    }

    /// The shard that a page's descriptor should be of: one for neighbours, and others for pages
    /// that lie in equal steps.
    fn shard_for(&self, page: PageNo) -> usize {
        let run = page.0 as usize / RUN;
        let run = run ^ run >> 16;
        let run = run ^ run >> 8;
        (run ^ run >> 4) & (self.shards.len() - 1)
    }

    /// Bytes of DRAM that the descriptors and the ghost take.
    pub fn bytes(&self) -> usize {
        self.free.bytes() + self.ghost.bytes()
    }

    /// Takes a descriptor, in no list, for a new object; none when all are in use.
    pub(super) fn take(&self, page: PageNo) -> Option<DescriptorId> {
        self.shards_from(self.shard_for(page)).find_map(|shard| {
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
        let lock = |run: usize| self.shards[run & (self.shards.len() - 1)].lists.lock();
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

    /// Moves a descriptor to the tail of a list from its present place.
    pub(super) fn move_to(&self, id: DescriptorId, list: List) {
        let mut lists = self.shards[self.shard_of(id)].lists.lock();
        self.relink(&mut lists, id, list);
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

    /// A position from which to take `count` objects out of a list of about `length`, behind the
    /// positions of threads that do so now. A short list has short runs, so that its youngest
    /// objects do not leave with its oldest.
    pub fn round(&self, list: List, length: usize, count: usize) -> Round {
        let shards = self.shards.len();
        let run = (length / shards / RUN_PART).clamp(1, RUN);
        let runs = &self.rounds[list.at()];
        Round { at: runs.fetch_add(count.div_ceil(run), Ordering::Relaxed) % shards * run, run }
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
        let taken = self.shards_from(start).find_map(|shard| {
            let shard = &self.shards[shard];
            let ends = &mut shard.lists.lock()[list.at()];
            let count = found.len().min(shard.length(list) as usize);
            self.turn(ends, &mut found[..count]);
            (count > 0).then_some(count)
        });
        taken.unwrap_or(0)
    }

    /// Moves descriptors from the head of a list, which has so many, to its tail, in their order.
    fn turn(&self, ends: &mut Ends, found: &mut [DescriptorId]) {
        let (first, mut next, mut last) = (ends.head, ends.head, NONE);
        for place in found {
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
    }

    /// How many are in a list. Takes no lock: a faulting thread that looks for room asks outside
    /// the gate, where a fork does not wait for it.
    pub fn length(&self, list: List) -> usize {
        self.shards.iter().map(|shard| shard.length(list) as usize).sum()
    }

    /// How many are on probation, and how many protected.
    pub fn evictable(&self) -> (usize, usize) {
        (self.length(List::Probation), self.length(List::Protected))
    }

    /// The next object to leave the cache, in the round's shard or the next one that has any. The
    /// policy judges the heads of the queues, and gives at most `patience` of them a second chance.
    /// Many objects are dense if that pays. The caller does not own the object yet: a thread that
    /// claims it lists it elsewhere. If it does not leave, the caller says so with `keep_in_cache`.
    pub fn next_to_leave(
        &self,
        round: &mut Round,
        patience: &mut u32,
        dense_pays: bool,
    ) -> Option<DescriptorId> {
        let (start, _) = round.next_run(1);
        let mut leaves = |shard| self.leave_shard(shard, patience, dense_pays);
        self.shards_from(start).find_map(&mut leaves).or_else(|| {
            // All objects were chosen before, and no thread has said that its choice stays.
            self.shards_from(start).find_map(|shard| {
                let mut lists = self.shards[shard].lists.lock();
                let head = Some(lists[List::CacheLeaving.at()].head).filter(|&head| head != NONE);
                let id = DescriptorId(head?);
                self.relink(&mut lists, id, List::CacheLeaving);
                Some(id)
            })
        })
    }

    fn leave_shard(
        &self,
        shard: usize,
        patience: &mut u32,
        dense_pays: bool,
    ) -> Option<DescriptorId> {
        let shard = &self.shards[shard];
        let mut lists = shard.lists.lock();
        loop {
            let (small, main) = (shard.length(List::CacheSmall), shard.length(List::CacheMain));
            let dense = shard.length(List::CacheDense);
            if small + main + dense == 0 {
                return None;
            }
            if dense > 0 && replacement::dense_leaves(small + main, dense, dense_pays) {
                let id = DescriptorId(lists[List::CacheDense.at()].head);
                self.ghost.insert(self.get(id).page().0, Queue::Main);
                self.relink(&mut lists, id, List::CacheLeaving);
                return Some(id);
            }
            let queue = replacement::next(small, main);
            let id = DescriptorId(lists[List::from(queue).at()].head);
            let descriptor = self.get(id);
            match replacement::at_head(queue, descriptor.reuse()) {
                AtHead::Goes(to, reuse) if *patience > 0 => {
                    *patience -= 1;
                    descriptor.set_reuse(reuse);
                    self.relink(&mut lists, id, to.into());
                }
                verdict => {
                    if verdict == (AtHead::Leaves { remembered: true }) {
                        self.ghost.insert(descriptor.page().0, queue);
                    }
                    self.relink(&mut lists, id, List::CacheLeaving);
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
        let mut lists = self.shards[self.shard_of(id)].lists.lock();
        if is_leaving() {
            self.relink(&mut lists, id, List::CacheMain);
        }
    }

    /// Lists an owned object of the cache that has become dense.
    pub fn enter_dense(&self, id: DescriptorId) {
        self.move_to(id, List::CacheDense);
    }

    /// Gives a descriptor back: state `Free`, waiters woken, in no list.
    pub(super) fn release(&self, id: DescriptorId) {
        self.get(id).change(State::Free);
        let mut lists = self.shards[self.shard_of(id)].lists.lock();
        self.unlink(&mut lists, id);
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

    fn relink(&self, lists: &mut Lists, id: DescriptorId, list: List) {
        self.unlink(lists, id);
        let (descriptor, ends) = (self.get(id), &mut lists[list.at()]);
        descriptor.list.store(list as u8, Ordering::Relaxed);
        descriptor.next.store(NONE, Ordering::Relaxed);
        descriptor.previous.store(ends.tail, Ordering::Relaxed);
        if ends.tail == NONE {
            ends.head = id.0;
        } else {
            self.all[ends.tail as usize].next.store(id.0, Ordering::Relaxed);
        }
        ends.tail = id.0;
        let length = &self.shards[self.shard_of(id)].lengths[list.at()];
        length.store(length.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn unlink(&self, lists: &mut Lists, id: DescriptorId) {
        let descriptor = self.get(id);
        let list = descriptor.list.load(Ordering::Relaxed);
        if list == NOT_LISTED {
            return;
        }
        let at = usize::from(list) - 1;
        let (ends, length) = (&mut lists[at], &self.shards[self.shard_of(id)].lengths[at]);
        length.store(length.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
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

#[cfg(any(test, debug_assertions))]
mod invariants;
#[cfg(test)]
mod tests;
